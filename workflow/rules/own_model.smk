# The rank of somebody's own model. No study asks for it: name its page, results/own/<name>/index.html, for config/<name>.yaml.


rule own_model:
    input:
        config=own_config,
        files=own_files,
    output:
        rank=STORE.own_folder("{own_model}").joinpath("rank.json").as_posix(),
        page=STORE.own_folder("{own_model}").joinpath("index.html").as_posix(),
    log:
        "results/logs/own_model/{own_model}.log",
    conda:
        "../../envs/environment.yaml"
    params:
        code=step_code("rank"),
    shell:
        "python -m softmax_bottleneck rank --config {input.config:q} --log {log:q}"
