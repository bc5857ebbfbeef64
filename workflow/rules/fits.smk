# Output heads on free context vectors, fitted to known laws: one job per unit, the fits to the laws of one draw. What is
# fitted lies in a folder of its laws, undeclared: a head more in a plan fits that head alone.


rule fit:
    output:
        fits_file("{unit}"),
    log:
        "results/logs/fit/{unit}.log",
    benchmark:
        "results/benchmarks/fit/{unit}.jsonl"
    wildcard_constraints:
        unit=rf"{NAME}/{NAME}/[0-9]+-[0-9a-f]{{12}}",
    priority: -1  # after the corpora and runs: the first page shows trained models
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: UNITS[wildcards.unit].threads
    resources:
        gpu=GPUS,
    shell:
        "python -m softmax_bottleneck fit --unit {wildcards.unit:q} --log {log:q}"
