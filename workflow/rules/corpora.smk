# Corpora are downloaded, copied from a mirror or sampled from a synthetic language, and then tokenised and checked.
# Compute nodes of a cluster often have no network, so `download` runs where Snakemake runs (localrule).


rule download:
    output:
        STORE.corpus_folder("{dataset}").joinpath("files.json").as_posix(),
    log:
        "results/logs/download/{dataset}.log",
    priority: 2  # before training: the steps that wait for these files delay the interim report
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
        code=step_code("tokenise", "corpora.corpus_warnings"),
    shell:
        "python -m softmax_bottleneck tokenise --dataset {wildcards.dataset:q} --log {log:q}"
