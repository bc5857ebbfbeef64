# One path per run: train -> measure -> spectrum, word similarity. Declared outputs are small; weights, resume state and
# the epoch log lie beside done.json undeclared, because Snakemake deletes declared outputs of interrupted jobs.


rule check:
    output:
        f"{RESULTS}/check.json",
    params:
        study=STUDY.digest,
    log:
        f"results/logs/check/{STUDY.name}.log",
    conda:
        "../../envs/environment.yaml"
    shell:
        "{STEP} check {STUDY_ARGS} --log {log:q}"


def tokens_until(name):
    """The tokens of a run's corpus, until `name` is there: its run_id says on which tokens it was made, so that newer
    files of the same tokens must not make it again. (`ancient` would do, but hides jobs whose own outputs are missing.)
    """

    def inputs(wildcards):
        finished = artefacts.run_folder(wildcards.run).joinpath(name).exists()
        return [] if finished else [tokens_of(RUNS[wildcards.run].dataset)]

    return inputs


def check_until_done(wildcards):
    """Every configured run is built once, without memory, before the first is trained; a finished run needs nothing."""
    return [f"{RESULTS}/check.json"] if tokens_until("done.json")(wildcards) else []


rule train:
    input:
        tokens=tokens_until("done.json"),
        check=check_until_done,
    output:
        run_file("done.json"),
    log:
        "results/logs/train/{run}.log",
    benchmark:
        "results/benchmarks/train/{run}.jsonl"
    threads: lambda wildcards: RUNS[wildcards.run].threads
    resources:
        gpu=1,
        mem_mb=lambda wildcards, attempt: min(8000 * attempt, 64000),
        runtime=lambda wildcards, attempt: min(1440 * attempt, 2880),
    conda:
        "../../envs/environment.yaml"
    shell:
        "{STEP} train {STUDY_ARGS} --run {wildcards.run:q} --log {log:q}"


rule measure:
    input:
        done=run_file("done.json"),
        tokens=tokens_until("measure.json"),
    output:
        run_file("measure.json"),
    params:
        code=code_of("measure"),
    log:
        "results/logs/measure/{run}.log",
    threads: lambda wildcards: RUNS[wildcards.run].threads
    resources:
        gpu=1,
    conda:
        "../../envs/environment.yaml"
    shell:
        "{STEP} measure --run {wildcards.run:q} --log {log:q}"


rule spectrum:
    input:
        run_file("measure.json"),
    output:
        run_file("rank.json"),
    params:
        code=code_of("spectrum"),
    log:
        "results/logs/spectrum/{run}.log",
    threads: lambda wildcards: RUNS[wildcards.run].threads
    resources:
        gpu=1,
    conda:
        "../../envs/environment.yaml"
    shell:
        "{STEP} spectrum --run {wildcards.run:q} --log {log:q}"


def benchmarks_of(wildcards):
    """What says that the benchmarks of this run's dataset are there; a language derives its own."""
    named = STUDY.datasets[RUNS[wildcards.run].dataset].wordsim
    return [] if named in {None, "self"} else [artefacts.corpus_folder(named).joinpath("files.json").as_posix()]


rule wordsim:
    input:
        run_file("done.json"),
        benchmarks_of,
    output:
        run_file("wordsim.json"),
    params:
        code=code_of("wordsim"),
    log:
        "results/logs/wordsim/{run}.log",
    conda:
        "../../envs/environment.yaml"
    shell:
        "{STEP} wordsim {STUDY_ARGS} --run {wildcards.run:q} --log {log:q}"
