# The rank of somebody's own model. No study asks for it: name its page, results/own/<name>/index.html, for config/<name>.yaml.


rule rank:
    input:
        config=question_file,
        files=arrays_of,
    output:
        rank=STORE.own_folder("{model}").joinpath("rank.json").as_posix(),
        page=STORE.own_folder("{model}").joinpath("index.html").as_posix(),
    log:
        "results/logs/rank/{model}.log",
    benchmark:
        "results/benchmarks/rank/{model}.jsonl"
    conda:
        "../../envs/environment.yaml"
    params:
        code=step_code("rank"),
    shell:
        "python -m softmax_bottleneck rank --config {input.config:q} --log {log:q}"
