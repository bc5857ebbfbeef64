# Corpora: fetched or copied from the mirror by hash, or sampled from the known-truth language; then tokenised and checked.


rule download:
    output:
        artefacts.corpus_folder("{dataset}").joinpath("files.json").as_posix(),
    params:
        identity=lambda wildcards: settings.load_dataset(wildcards.dataset, STUDY_FILE.resolve().parent).identity,
    log:
        "results/logs/download/{dataset}.log",
    conda:
        "../../envs/environment.yaml"
    shell:
        "{STEP} download {STUDY_ARGS} --dataset {wildcards.dataset:q} --log {log:q}"


def corpus_files(wildcards):
    """A corpus cut from another needs that one's tokens, any other its own files."""
    dataset = settings.load_dataset(wildcards.dataset, STUDY_FILE.resolve().parent)
    if dataset.base:
        return [tokens_of(dataset.base)]
    return [artefacts.corpus_folder(dataset.name).joinpath("files.json").as_posix()]


rule tokenise:
    input:
        corpus_files,
    output:
        artefacts.tokens_folder("{dataset}").joinpath("corpus.json").as_posix(),
    params:
        identity=lambda wildcards: settings.load_dataset(wildcards.dataset, STUDY_FILE.resolve().parent).identity,
    log:
        "results/logs/tokenise/{dataset}.log",
    conda:
        "../../envs/environment.yaml"
    shell:
        "{STEP} tokenise {STUDY_ARGS} --dataset {wildcards.dataset:q} --log {log:q}"
