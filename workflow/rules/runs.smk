# One path per run: train -> measure -> spectrum, word similarity, ranks along training; and for some experiments train ->
# finetune -> dynamic evaluation, a finetuned run being measured as any other. Declared outputs are small; weights, resume
# states and the epoch log lie beside them undeclared, because Snakemake deletes declared outputs of interrupted jobs.
# Time, memory and places in a queue are the profile's (workflow/profiles/slurm).


rule check:
    output:
        f"{RESULTS}/check.json",
    log:
        f"results/logs/check/{STUDY.name}.log",
    conda:
        "../../envs/environment.yaml"
    params:
        study=STUDY.digest,
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
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: EVALUATIONS[wildcards.evaluation].run.threads
    resources:
        gpu=GPUS,
    shell:
        "python -m softmax_bottleneck dynamic --run {wildcards.evaluation:q} --log {log:q}"


rule measure:
    input:
        done=lambda wildcards: done_file(wildcards.run),
        tokens=tokens_until("measure.json"),
    output:
        run_file("measure.json"),
        run_file("topk.json"),
    log:
        "results/logs/measure/{run}.log",
    benchmark:
        "results/benchmarks/measure/{run}.jsonl"
    priority: 1  # before further training: a page of what is done can be made early
    group:
        "measure"
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: MODELS[wildcards.run].threads
    resources:
        gpu=GPUS,
    params:
        code=step_code("measure"),
        contexts=lambda wildcards: STUDY.datasets[MODELS[wildcards.run].dataset].contexts,
    shell:
        "python -m softmax_bottleneck measure --run {wildcards.run:q} --log {log:q}"


rule spectrum:
    input:
        run_file("measure.json"),
    output:
        run_file("rank.json"),
    log:
        "results/logs/spectrum/{run}.log",
    benchmark:
        "results/benchmarks/spectrum/{run}.jsonl"
    priority: 1  # before further training: a page of what is done can be made early
    group:
        "measure"
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: MODELS[wildcards.run].threads
    resources:
        gpu=GPUS,
    params:
        code=step_code("spectrum"),
        rank_contexts=lambda wildcards: STUDY.datasets[MODELS[wildcards.run].dataset].rank_contexts,
    shell:
        "python -m softmax_bottleneck spectrum --run {wildcards.run:q} --log {log:q}"


rule wordsim:
    input:
        run_file("measure.json"),  # which ties it to the job that measures its run
        lambda wildcards: done_file(wildcards.run),
        benchmarks_of,
    output:
        run_file("wordsim.json"),
    log:
        "results/logs/wordsim/{run}.log",
    benchmark:
        "results/benchmarks/wordsim/{run}.jsonl"
    priority: 1  # before further training: a page of what is done can be made early
    group:
        "measure"
    conda:
        "../../envs/environment.yaml"
    params:
        code=step_code("wordsim"),
        benchmarks=lambda wildcards: STUDY.datasets[RUNS[wildcards.run].dataset].wordsim,
    shell:
        "python -m softmax_bottleneck wordsim --run {wildcards.run:q} --log {log:q}"
