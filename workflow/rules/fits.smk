# Output heads on free context vectors, fitted to known distributions. A job makes all fits of a plan to the
# distributions of one setting and seed. The files of fits are undeclared, so that a head added later is fitted alone.


rule truth:
    input:
        needed_by_truth,
    output:
        truth_file("{truth}"),
    log:
        "results/logs/truth/{truth}.log",
    benchmark:
        "results/benchmarks/truth/{truth}.jsonl"
    wildcard_constraints:
        truth=rf"{NAME}/[0-9]+-[0-9a-f]{{12}}",
    priority: 1
    conda:
        "../../envs/environment.yaml"
    resources:
        gpu=GPUS,
    shell:
        "python -m softmax_bottleneck truth --truth {wildcards.truth:q} --log {log:q}"


rule fit:
    input:
        needed_by_fit,
    output:
        fits_file("{unit}"),
    log:
        "results/logs/fit/{unit}.log",
    benchmark:
        "results/benchmarks/fit/{unit}.jsonl"
    wildcard_constraints:
        unit=rf"{NAME}/{NAME}/[0-9]+-[0-9a-f]{{12}}",
    priority: -1  # after corpora and runs, so that the first interim report shows trained models
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: UNITS[wildcards.unit].threads
    resources:
        gpu=GPUS,
    shell:
        "python -m softmax_bottleneck fit --unit {wildcards.unit:q} --log {log:q}"
