# A run is trained and measured; some experiments also finetune it and evaluate it dynamically. A finetuned run is
# measured like any other. Declared outputs are small. Weights, resume states, the epoch log and the files of the
# measuring steps are undeclared, because Snakemake deletes the declared outputs of interrupted and failed jobs.
# The profile sets time limits, memory and partitions (workflow/profiles/slurm).


rule check:
    output:
        f"{RESULTS}/check.json",
    log:
        f"results/logs/check/{STUDY.name}.log",
    conda:
        "../../envs/environment.yaml"
    params:
        study=STUDY.updated(with_choices=False).digest,
        code=step_code("check"),
    shell:
        "python -m softmax_bottleneck check --log {log:q}"


rule train:
    input:
        needed_by_job,
    output:
        trained_by_job(),
    log:
        "results/logs/train/{job}.log",
    benchmark:
        "results/benchmarks/train/{job}.jsonl"
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: sum(run.threads for run in JOBS[wildcards.job])
    resources:
        gpu=GPUS,
    shell:
        "python -m softmax_bottleneck train --diverged-ok --run {wildcards.job:q} --log {log:q}"


# Ends a round of a search. Its file names the settings to train, or further ones to try (`study.tuning`).
checkpoint choose:
    input:
        lambda wildcards: [done_file(run.path) for run in STUDY.round(wildcards.choice).runs],
    output:
        f"{RESULTS}/choices/{{choice}}.json",
    log:
        f"results/logs/choose/{STUDY.name}/{{choice}}.log",
    localrule: True
    conda:
        "../../envs/environment.yaml"
    params:
        code=step_code("choose"),
    shell:
        "python -m softmax_bottleneck choose --choice {wildcards.choice:q} --log {log:q}"


rule finetune:
    input:
        lambda wildcards: done_file(MODELS[wildcards.run].start),
        tokens=tokens_until("done.json"),
    output:
        run_file("done.json"),
    log:
        "results/logs/finetune/{run}.log",
    benchmark:
        "results/benchmarks/finetune/{run}.jsonl"
    wildcard_constraints:
        run=FINETUNED,
    priority: -2  # after the fits, so that `synthetic`, which needs all fits, does not run alone at the end
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: MODELS[wildcards.run].threads
    resources:
        gpu=GPUS,
    shell:
        "python -m softmax_bottleneck finetune --diverged-ok --run {wildcards.run:q} --log {log:q}"


rule dynamic:
    input:
        lambda wildcards: done_file(EVALUATIONS[wildcards.evaluation].run.path),
    output:
        run_file("dynamic.json", "{evaluation}"),
    log:
        "results/logs/dynamic/{evaluation}.log",
    benchmark:
        "results/benchmarks/dynamic/{evaluation}.jsonl"
    priority: -2  # see `finetune`
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: EVALUATIONS[wildcards.evaluation].run.threads
    resources:
        gpu=GPUS,
    shell:
        "python -m softmax_bottleneck dynamic --run {wildcards.evaluation:q} --log {log:q}"


rule measure:
    input:
        benchmarks_of,
        done=lambda wildcards: done_file(wildcards.run),
        tokens=tokens_until("measured.json"),
    output:
        run_file("measured.json"),
    log:
        "results/logs/measure/{run}.log",
    benchmark:
        "results/benchmarks/measure/{run}.jsonl"
    priority: 1  # before further training, so that an interim report has numbers early
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: MODELS[wildcards.run].threads
    resources:
        gpu=GPUS,
    params:
        code=step_code("measure"),
        settings=measure_settings,
    shell:
        "python -m softmax_bottleneck measure --run {wildcards.run:q} --log {log:q}"
