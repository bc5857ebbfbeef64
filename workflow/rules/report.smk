# Records of all runs, the tables and figures of the study's experiments, and the page that shows them.


def report_page():
    return f"{RESULTS}/report/index.html"


def experiments_of(kind):
    return [experiment.id for experiment in STUDY.experiments if experiment.kind == kind]


rule synthetic:
    output:
        f"{RESULTS}/synthetic.json",
    params:
        study=STUDY.digest,
        code=code_of("synthetic"),
    log:
        f"results/logs/synthetic/{STUDY.name}.log",
    conda:
        "../../envs/environment.yaml"
    shell:
        "{STEP} synthetic {STUDY_ARGS} --log {log:q}"


rule collect:
    input:
        files_of_runs("done.json"),
        files_of_runs("measure.json"),
        files_of_runs("rank.json"),
        files_of_runs("wordsim.json"),
        [f"{RESULTS}/synthetic.json"] if any(e.is_synthetic for e in STUDY.experiments) else [],
    output:
        f"{RESULTS}/records.parquet",
    params:
        study=STUDY.digest,
        code=code_of("records"),
    log:
        f"results/logs/collect/{STUDY.name}.log",
    conda:
        "../../envs/environment.yaml"
    shell:
        "{STEP} collect {STUDY_ARGS} --log {log:q}"


rule table:
    input:
        f"{RESULTS}/records.parquet",
    output:
        f"{RESULTS}/tables/{{experiment}}.csv",
    params:
        study=STUDY.digest,
        code=code_of("tables"),
    log:
        f"results/logs/table/{STUDY.name}-{{experiment}}.log",
    conda:
        "../../envs/environment.yaml"
    shell:
        "{STEP} table {STUDY_ARGS} --experiment {wildcards.experiment:q} --log {log:q}"


rule figure:
    input:
        f"{RESULTS}/records.parquet",
    output:
        f"{RESULTS}/figures/{{experiment}}.svg",
    params:
        study=STUDY.digest,
        code=code_of("figures"),
    log:
        f"results/logs/figure/{STUDY.name}-{{experiment}}.log",
    conda:
        "../../envs/environment.yaml"
    shell:
        "{STEP} figure {STUDY_ARGS} --experiment {wildcards.experiment:q} --log {log:q}"


rule report:
    input:
        f"{RESULTS}/records.parquet",
        expand(f"{RESULTS}/tables/{{experiment}}.csv", experiment=experiments_of("table")),
        expand(f"{RESULTS}/figures/{{experiment}}.svg", experiment=experiments_of("figure")),
        WORKFLOW.parent.joinpath("report", "template.html.j2").as_posix(),
    output:
        report_page(),
    params:
        study=STUDY.digest,
        code=code_of("report"),
    log:
        f"results/logs/report/{STUDY.name}.log",
    conda:
        "../../envs/environment.yaml"
    shell:
        "{STEP} report {STUDY_ARGS} --log {log:q}"
