# Records of all runs, the tables and figures of the experiments, and the report.


rule synthetic:
    input:
        [fits_file(unit) for unit in UNITS],
        runs_of_synthetic(),
    output:
        f"{RESULTS}/synthetic.json",
    log:
        f"results/logs/synthetic/{STUDY.name}.log",
    benchmark:
        f"results/benchmarks/synthetic/{STUDY.name}.jsonl"
    conda:
        "../../envs/environment.yaml"
    resources:
        gpu=GPUS,
    params:
        study=STUDY.digest,
        code=step_code("synthetic"),
    shell:
        "python -m softmax_bottleneck synthetic --log {log:q}"


rule collect:
    input:
        every_run,
        [f"{RESULTS}/synthetic.json"] if any(e.is_synthetic for e in STUDY.experiments) else [],
    output:
        study_files(records.FILES),
    log:
        f"results/logs/collect/{STUDY.name}.log",
    benchmark:
        f"results/benchmarks/collect/{STUDY.name}.jsonl"
    localrule: True
    conda:
        "../../envs/environment.yaml"
    params:
        study=lambda wildcards: STUDY.digest,
        code=step_code("collect"),
    shell:
        "python -m softmax_bottleneck collect --log {log:q}"


rule render:
    input:
        study_files(records.FILES),
        of_workflow(
            "config/paper.yaml",
            "config/ptb-cpu.yaml",
            "report/published/*.csv",
            "report/*.j2",
            "report/*.yaml",
            "report/*.css",
            "report/*.mplstyle",
            "report/evidence/settings.json.gz",
            "report/evidence/studies/*.json.gz",
            "benchmarks/results/cpu.json",
        ),
    output:
        [shown(experiment, suffix) for experiment in STUDY.experiments for suffix in experiment.suffixes],
        study_files(OVERVIEW),
        page=f"{RESULTS}/page.json",
        claims=report(
            f"{RESULTS}/claims.json",
            caption="../../report/captions/claims.rst",
            category="Report",
            labels={"title": "Verdicts on the conclusions of the papers", "as": "data"},
        ),
    log:
        f"results/logs/render/{STUDY.name}.log",
    benchmark:
        f"results/benchmarks/render/{STUDY.name}.jsonl"
    localrule: True
    conda:
        "../../envs/environment.yaml"
    params:
        study=lambda wildcards: STUDY.digest,
        code=step_code("render"),
    shell:
        "python -m softmax_bottleneck render --log {log:q}"


rule report:
    input:
        rules.render.output,
        [path.as_posix() for path in Path("results").glob("*/claims.json") if path.parent.name != STUDY.name],
        of_workflow("report/*.j2", "report/*.css", "report/*.js"),
    output:
        report(
            f"{RESULTS}/report/index.html",
            caption="../../report/captions/page.rst",
            category="Report",
            labels={"title": "The report of the study", "as": "page"},
        ),
    log:
        f"results/logs/report/{STUDY.name}.log",
    benchmark:
        f"results/benchmarks/report/{STUDY.name}.jsonl"
    localrule: True
    conda:
        "../../envs/environment.yaml"
    params:
        code=step_code("report"),
    shell:
        "python -m softmax_bottleneck report --log {log:q}"
