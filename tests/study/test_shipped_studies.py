"""The studies in config/: their settings and numbers of runs are those that the papers and their code state."""

import dataclasses
from functools import cache
from pathlib import Path

import fake_results as fake
import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.report import views

ROOT = Path(__file__).parents[2]
KANAI = {"softmax", "relu", "sigmoid", "sigsoftmax", "mos"}  # heads; MoSS is mos with sigsoftmax


@cache
def load(name: str) -> config.Study:
    return config.load_study(ROOT / "config" / f"{name}.yaml")


def test_grids_on_different_corpora_may_share_their_members_names() -> None:
    study = load("paper")
    found = {(run.dataset, run.head.options["components"]) for run in study.runs if "nt-components" in run.model}
    assert found == {("ptb", k) for k in (1, 3, 5, 10, 15, 20)} | {("wikitext-2", k) for k in (10, 15, 20)}
    assert {run.model for run in study.runs if run.model.endswith("nt-components10")} == {"mos-nt-components10"}


def test_table_2_needs_its_110_runs_of_which_ten_are_the_authors_own() -> None:
    study = load("paper")
    table = fake.experiment(study, "parthiban2021-table2")
    planned = study.runs_of(table)
    assert len({run.path for run in planned}) == 5 * 11 * 2
    seeds = {(run.dataset, run.model): run.seed for run in reversed(planned)}  # the first of each: the authors' own
    assert {seeds["ptb", "softmax"], seeds["ptb", "mos"], seeds["wikitext-2", "gss"]} == {141, 28, 1881}
    others = study.runs_of(dataclasses.replace(table, seeds="random"))
    assert len(others) == 5 * 10 * 2 and not {run.seed for run in others} & {141, 28, 1881}


def published_settings() -> dict[str, dict[str, float]]:
    """The hyperparameters as published in SM Table 6: dataset/model -> our key -> value."""
    common = {"clip": 0.25, "bptt": 70, "dropout_output": 0.4, "dropout_embedding": 0.1, "dropout_weight": 0.5}
    single = {"embedding_size": 400, "hidden_size": 1150, "context_size": 400, "layers": 3}
    return {
        "ptb/softmax": common
        | single
        | {"learning_rate": 20, "batch_size": 20, "dropout_hidden": 0.3, "dropout_input": 0.4},
        "wikitext-2/lms-plif": common
        | single
        | {"learning_rate": 30, "batch_size": 80, "dropout_hidden": 0.2, "dropout_input": 0.65},
        "ptb/mos": common | {"embedding_size": 280, "hidden_size": 960, "context_size": 620, "batch_size": 12}
        | {"learning_rate": 20, "dropout_hidden": 0.225, "dropout_input": 0.4},
        "wikitext-2/mos": common | {"embedding_size": 300, "hidden_size": 1150, "context_size": 650, "batch_size": 15}
        | {"learning_rate": 15, "dropout_hidden": 0.2, "dropout_input": 0.55, "epochs": 500},
        # SM Table 9, Table 5; batch size and widths from its text and parameter counts
        "ptb/mos-fair": common | {"embedding_size": 280, "hidden_size": 960, "context_size": 280, "batch_size": 12}
        | {"dropout_embedding": 0.1, "dropout_input": 0.4, "dropout_hidden": 0.225, "dropout_output": 0.4}
        | {"embedding_noise": 0.1, "weight_decay": 1.2e-6, "learning_rate": 20},
        "wikitext-2/moc-nt": common | {"embedding_size": 300, "hidden_size": 1150, "context_size": 650}
        | {"optimizer": "nt-asgd", "nonmonotone_window": 5, "batch_size": 15},
        "ptb/mos-nt-components5": common | {"embedding_size": 280, "context_size": 620, "optimizer": "nt-asgd"},
    }  # fmt: skip


@pytest.mark.parametrize("name", published_settings())
def test_the_papers_settings_are_the_published_ones(name: str) -> None:
    dataset, model = name.split("/")
    study = load("paper")
    run = next(run for run in study.runs if (run.dataset, run.model) == (dataset, model))
    found = dataclasses.asdict(run.body) | dataclasses.asdict(run.schedule)
    assert {key: found[key] for key in published_settings()[name]} == published_settings()[name]


def test_details_of_the_published_code_are_in_the_papers_study() -> None:
    """Floors of mixtures as in Yang's code and Benka's; epochs; padding."""
    study = load("paper")
    runs = {(run.dataset, run.model): run for run in study.runs}
    mixtures = ("kanai-mos", "kanai-moss", "transformer-mos", "transformer-moss", "transformer-mos-components10")
    assert {runs["ptb", model].head.options["probability_floor"] for model in mixtures} == {1e-8}
    assert {runs["ptb", model].head.options["probability_floor"] for model in ("mos", "mos-nt", "ganea-mos")} == {0}
    epochs = [runs["wikitext-2", m].schedule.epochs for m in ("softmax", "moc", "moc-nt", "mos", "mos-nt")]
    assert epochs == [1000, 1000, 1000, 500, 500]
    assert all(run.body.published_padding == (run.body.kind == "awd-lstm") for run in study.runs)


def test_both_readings_of_ganeas_switch_are_in_the_papers_study() -> None:
    """When validation stalls, with the AWD-LSTM's dropout; or, as Parthiban et al. read it, after epoch 200."""
    runs = {(run.dataset, run.model): run for run in load("paper").runs}
    names = [model for dataset, model in runs if model.startswith("ganea-") and dataset == "ptb"]
    readings = {"nt-asgd": 0.25, "et-asgd": 0.3}
    for model in names:
        body, schedule = runs["ptb", model].body, runs["ptb", model].schedule
        assert schedule.optimizer == ("et-asgd" if model.endswith("-et") else "nt-asgd")
        assert (body.dropout_hidden, body.embedding_size) == (readings[schedule.optimizer], 400)
        assert schedule.switch_after_epoch == 200 and schedule.nonmonotone_window == 5
    assert sorted(names) == sorted(
        f"ganea-{h}{et}" for h in ("softmax", "lms-plif", "mos", "mos-plif") for et in ("", "-et")
    )


STUDIES = [
    file.stem for file in sorted((ROOT / "config").glob("*.yaml")) if "\nstudy:" in file.read_text(encoding="utf-8")
]
# The paper: 309 of Parthiban et al.; 6 x 2 x 5 of Kanai; 2 x 2 + 3 + 7 of Benka; 8 of Ganea that are not among them.
RUNS = {"demo": 40, "ptb-cpu-quick": 27, "ptb-cpu": 132, "gpu-day": 137, "paper": 391}


@pytest.mark.fault("C6")
@pytest.mark.parametrize("name", STUDIES)
def test_every_shipped_study_is_valid_and_no_two_runs_share_a_folder(name: str) -> None:
    study = load(name)
    assert len(study.needed) == RUNS.get(name, len(study.needed)) and (study.needed or study.units)
    if name != "gpu-day":  # its experiments are those of the paper
        views.check_options(study)
    assert len({run.path.lower() for run in study.needed}) == len(study.needed)


def test_a_day_on_a_gpu_has_the_papers_models_at_full_size() -> None:
    day, paper = (load(name) for name in ("gpu-day", "paper"))
    bodies = {(run.dataset, run.model): (run.body, run.schedule.learning_rate) for run in paper.runs}
    for run in day.runs:
        shared = bodies.get((run.dataset, run.model))
        assert shared in (None, (run.body, run.schedule.learning_rate)), run.model
    assert [e.id for e in day.experiments] == [e.id for e in paper.experiments]
    for place, stages in day.stages.items():
        if place[1] in ("kanai-mos", "kanai-moss"):
            own, published = stages.dynamic, paper.stages[place].dynamic
            assert own == dataclasses.replace(published, tune_tokens=own.tune_tokens)
            assert (own.scaling, own.learning_rates) == ("sum", (0.002,))


def test_kanais_tables_need_six_heads_five_seeds_and_each_stage_once() -> None:
    paper = load("paper")
    for name, corpus in (("kanai2018-table1", "ptb"), ("kanai2018-table2", "wikitext-2")):
        table = fake.experiment(paper, name)
        planned = paper.runs_of(table)
        assert len(planned) == 6 * 5 and {run.dataset for run in planned} == {corpus}
        assert {run.head.name for run in planned} == KANAI
        assert {run.schedule.optimizer for run in planned} == {"nt-asgd"}
        assert {run.schedule.epochs for run in planned} == {1000 if corpus == "ptb" else 1500}
    assert len(paper.finetuned) == len(paper.evaluations) == 2 * 6 * 5
    assert {one.run.path for one in paper.evaluations} == {run.path for run in paper.finetuned}
    assert {run.start for run in paper.finetuned} <= {run.path for run in paper.needed}


def test_kanais_settings_are_those_of_the_code_bases() -> None:
    paper = load("paper")
    rates = {(run.dataset, run.model): run.schedule.learning_rate for run in paper.finetuned}
    assert {rates["ptb", "kanai-softmax"], rates["wikitext-2", "kanai-ss"]} == {30}
    assert (rates["ptb", "kanai-moss"], rates["wikitext-2", "kanai-mos"]) == (25, 20)
    deltas = {(r.dataset, "components" in r.head.options): r.schedule.max_length_delta for r in paper.finetuned}
    assert deltas == {("ptb", False): 10, ("ptb", True): 40, ("wikitext-2", False): 10, ("wikitext-2", True): 20}
    by_model = {(one.run.dataset, one.run.model): one.settings for one in paper.evaluations}
    plain = by_model["ptb", "kanai-sigmoid"]
    assert (plain.scaling, len(plain.learning_rates), len(plain.decays), plain.epsilon) == ("mean", 6, 4, 2e-5)
    for corpus, decay, epsilon in (("ptb", 0.075, 1e-3), ("wikitext-2", 0.02, 2e-3)):
        mixture = by_model[corpus, "kanai-moss"]
        assert (mixture.scaling, mixture.learning_rates, mixture.decays, mixture.epsilon) == (
            "sum", (0.002,), (decay,), epsilon)  # fmt: skip
    heads = {run.model: run.head.options for run in paper.finetuned if run.head.name == "mos"}
    assert {options["probability_floor"] for options in heads.values()} == {1e-8}
    assert (heads["kanai-moss"]["pointwise"], heads["kanai-moss"]["prior"]) == ("sigsoftmax", "sigsoftmax")


def test_benkas_tables_need_their_runs() -> None:
    paper = load("paper")
    counts = {"benka2021-table1": 2 * 2, "benka2021-table2": 4, "benka2021-heads": 9}
    for name, count in counts.items():
        assert len({run.path for run in paper.runs_of(fake.experiment(paper, name))}) == count, name
    sweep = paper.runs_of(fake.experiment(paper, "benka2021-table2"))
    assert [run.head.options["components"] for run in sweep] == [2, 5, 10, 15] and {run.seed for run in sweep} == {26}
    mixed = next(run for run in paper.runs if (run.dataset, run.model) == ("ptb", "transformer-mos"))
    assert mixed.run_id == sweep[2].run_id  # ten softmaxes: trained once for both tables
    body, schedule = mixed.body, mixed.schedule
    assert (body.layers, body.embedding_size, body.hidden_size, body.attention_heads) == (4, 200, 200, 4)
    assert (body.tied, body.initialisation, body.dropout_input, body.dropout_hidden) == (False, "xavier", 0.2, 0.1)
    assert (schedule.learning_rate, schedule.plateau_factor, schedule.epochs, schedule.batch_size) == (7, 1.75, 50, 20)
    assert (schedule.bptt, schedule.variable_length, schedule.clip, schedule.weight_decay) == (35, False, 0.25, 0)
    assert (schedule.tested_weights, schedule.loss_divisor, schedule.test_batch_size) == ("last", "targets", 10)
