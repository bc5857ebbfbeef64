# Records of all runs, the tables and figures of the study's experiments, and the page that shows them.


rule synthetic:
    input:
        [fits_file(unit) for unit in UNITS],
    output:
        f"{RESULTS}/synthetic.json",
    log:
        f"results/logs/synthetic/{STUDY.name}.log",
    conda:
        "../../envs/environment.yaml"
    params:
        study=STUDY.digest,
        code=code_of("synthetic"),
    shell:
        "python -m softmax_bottleneck synthetic --log {log:q}"


rule collect:
    input:
        every_run(),
        [f"{RESULTS}/synthetic.json"] if any(e.is_synthetic for e in STUDY.experiments) else [],
        [path.as_posix() for path in evidence.files()],
    output:
        f"{RESULTS}/records.parquet",
    log:
        f"results/logs/collect/{STUDY.name}.log",
    localrule: True
    conda:
        "../../envs/environment.yaml"
    params:
        study=STUDY.digest,
        code=code_of("collect"),
    shell:
        "python -m softmax_bottleneck collect --log {log:q}"


rule table:
    input:
        f"{RESULTS}/records.parquet",
        published(),
    output:
        report(
            f"{RESULTS}/tables/{{experiment}}.csv",
            caption="../../report/captions/experiment.rst",
            **filed("Tables", "data"),
        ),
        page=report(
            f"{RESULTS}/tables/{{experiment}}.html",
            caption="../../report/captions/experiment.rst",
            **filed("Tables", "page"),
        ),
    log:
        f"results/logs/table/{STUDY.name}-{{experiment}}.log",
    localrule: True
    conda:
        "../../envs/environment.yaml"
    params:
        study=STUDY.digest,
        code=code_of("table"),
        artefact=words_of("artefact"),
        title=words_of("title"),
        caption=words_of("caption"),
    shell:
        "python -m softmax_bottleneck table --experiment {wildcards.experiment:q} --log {log:q}"


rule figure:
    input:
        f"{RESULTS}/records.parquet",
        published(),
    output:
        report(
            f"{RESULTS}/figures/{{experiment}}.svg",
            caption="../../report/captions/experiment.rst",
            **filed("Figures", "figure"),
        ),
        data=report(
            f"{RESULTS}/figures/{{experiment}}.csv",
            caption="../../report/captions/experiment.rst",
            **filed("Figures", "data"),
        ),
    log:
        f"results/logs/figure/{STUDY.name}-{{experiment}}.log",
    localrule: True
    conda:
        "../../envs/environment.yaml"
    params:
        study=STUDY.digest,
        code=code_of("figure"),
        artefact=words_of("artefact"),
        title=words_of("title"),
        caption=words_of("caption"),
    shell:
        "python -m softmax_bottleneck figure --experiment {wildcards.experiment:q} --log {log:q}"


rule claims:
    input:
        f"{RESULTS}/records.parquet",
        published(),
    output:
        report(
            f"{RESULTS}/claims.json",
            caption="../../report/captions/claims.rst",
            category="Report",
            labels={"title": "Conclusions of the papers, judged", "as": "data"},
        ),
    log:
        f"results/logs/claims/{STUDY.name}.log",
    localrule: True
    conda:
        "../../envs/environment.yaml"
    params:
        study=STUDY.digest,
        code=code_of("claims"),
    shell:
        "python -m softmax_bottleneck claims --log {log:q}"


rule verify:
    input:
        f"{RESULTS}/records.parquet",
        f"{RESULTS}/claims.json",
        expand(f"{RESULTS}/tables/{{experiment}}.csv", experiment=experiments_of("table")),
        expand(
            f"{RESULTS}/figures/{{experiment}}.svg",
            experiment=experiments_of("figure"),
        ),
    output:
        f"{RESULTS}/verify.json",
    log:
        f"results/logs/verify/{STUDY.name}.log",
    localrule: True
    conda:
        "../../envs/environment.yaml"
    params:
        study=STUDY.digest,
        code=code_of("verify"),
    shell:
        "python -m softmax_bottleneck verify --allow-missing --log {log:q}"


rule report:
    input:
        f"{RESULTS}/records.parquet",
        f"{RESULTS}/claims.json",
        expand(f"{RESULTS}/tables/{{experiment}}.csv", experiment=experiments_of("table")),
        expand(
            f"{RESULTS}/figures/{{experiment}}.svg",
            experiment=experiments_of("figure"),
        ),
        f"{RESULTS}/verify.json",
        templates(),
    output:
        report(
            report_page(),
            caption="../../report/captions/page.rst",
            category="Report",
            labels={"title": "The report of the study", "as": "page"},
        ),
    log:
        f"results/logs/report/{STUDY.name}.log",
    localrule: True
    conda:
        "../../envs/environment.yaml"
    params:
        study=STUDY.digest,
        code=code_of("report"),
    shell:
        "python -m softmax_bottleneck report --log {log:q}"
