# On a cluster, compute nodes often have no way out: what is fetched is fetched where Snakemake runs (localrule).
# Corpora: fetched or copied from the mirror by hash, or sampled from the known-truth language; then tokenised and checked.


rule download:
    output:
        STORE.corpus_folder("{dataset}").joinpath("files.json").as_posix(),
    log:
        "results/logs/download/{dataset}.log",
    priority: 2  # before any training: whoever waits for these files holds up a page
    localrule: True
    conda:
        "../../envs/environment.yaml"
    params:
        identity=lambda wildcards: settings.load_dataset(wildcards.dataset, STUDY_FILE.resolve().parent).identity,
        code=step_code("download"),
    shell:
        "python -m softmax_bottleneck download --dataset {wildcards.dataset:q} --log {log:q}"


rule tokenise:
    input:
        corpus_files,
    output:
        STORE.tokens_folder("{dataset}").joinpath("corpus.json").as_posix(),
    log:
        "results/logs/tokenise/{dataset}.log",
    benchmark:
        "results/benchmarks/tokenise/{dataset}.jsonl"
    conda:
        "../../envs/environment.yaml"
    params:
        identity=lambda wildcards: settings.load_dataset(wildcards.dataset, STUDY_FILE.resolve().parent).identity,
        code=step_code("tokenise", "corpora.split_overlap"),
    shell:
        "python -m softmax_bottleneck tokenise --dataset {wildcards.dataset:q} --log {log:q}"
