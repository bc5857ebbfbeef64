"""A study is refused before any job, with the key, the value and what is allowed; run_ids change when they must."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from softmax_bottleneck import study as config
from softmax_bottleneck.store.errors import UserError

ROOT = Path(__file__).parents[1]
NANO = yaml.safe_load((ROOT / "tests" / "nano.yaml").read_text(encoding="utf-8"))


def load(tmp_path: Path, values: dict[str, Any] | str) -> config.Study:
    file = tmp_path / "study.yaml"
    file.write_text(values if isinstance(values, str) else yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return config.load_study(file)


def changed(*path: str | int, value: Any) -> dict[str, Any]:
    values = copy.deepcopy(NANO)
    place: Any = values
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return values


SCHEDULE, BODY = ("settings", 0, "schedule"), ("settings", 0, "body")


@pytest.mark.fault("C1", "C2", "C3", "C4")
@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ((*BODY, "dropuot_input"), 0.1, ["unknown key 'dropuot_input'", "did you mean 'dropout_input'"]),
        ((*BODY, "dropout_input"), 1.0, ["dropout_input", "1.0", "less than 1"]),
        ((*BODY, "dropout_input"), -0.1, ["dropout_input", "-0.1", "at least 0"]),
        ((*SCHEDULE, "learning_rate"), "1e-3", ["learning_rate", "'1e-3'", "write 0.001"]),
        ((*SCHEDULE, "learning_rate"), float("nan"), ["learning_rate", "not a finite number"]),
        ((*SCHEDULE, "learning_rate"), 0, ["learning_rate", "more than 0"]),
        ((*SCHEDULE, "batch_size"), 0, ["batch_size", "at least 1"]),
        ((*SCHEDULE, "bptt"), 0, ["bptt", "at least 1"]),
        ((*SCHEDULE, "epochs"), 0, ["epochs", "at least 1"]),
        ((*SCHEDULE, "clip"), 0, ["clip", "more than 0"]),
        ((*SCHEDULE, "optimizer"), "adam", ["optimizer", "'adam'", "nt-asgd"]),
        (("models", "mos", "head", "components"), 0, ["models.mos", "components", "at least 1"]),
        (("models", "mos", "head", "components"), 1.5, ["components", "1.5"]),
        (("models", "mos", "head", "name"), "moss", ["models.mos", 'unknown head "moss"', 'did you mean "mos"']),
        (("models", "gss", "head"), {"name": "gss", "q": 1}, ["models.gss", 'no option "q"']),
        (("datasets",), ["ptbb"], ["no 'ptbb'", "did you mean 'ptb'"]),
        (("datasets",), ["word-sim"], ["benchmarks"]),
        (("device",), "tpu", ["device", "'tpu'", "cuda"]),
        (("seeds",), [], ["seeds"]),
        (("seeds",), [1, 1], ["seeds", "only once"]),
        (("seeds",), ["1"], ["seeds", "'1'"]),
        (("seeds",), [1.5], ["seeds", "1.5"]),
        (("seeds",), [2**64], ["seeds", "at most"]),
        (("study",), "a; touch b", ["study", "must match"]),
        (("study",), "../x", ["study", "must match"]),
        (("experiments", "parthiban2021-tabel2"), None, ["did you mean 'parthiban2021-table2'"]),
        (("experiments", "known-truth", "models"), ["softmx"], ["'softmx'", "did you mean 'softmax'"]),
        (("settings", 0, "when"), {"model": "moss"}, ["unknown 'moss'", "did you mean 'mos'"]),
        (("models", "mos", "like"), "nothing", ["models.mos.like", "'nothing'"]),
        (("models", "mos", "like"), "mos", ["models.mos.like", "circle", "mos -> mos"]),
        (("models", "mos", "datasets"), ["ptb"], ["models.mos.datasets", "unknown 'ptb'", "truth-nano"]),
        (("models", "mos", "seeds"), "first", ["models.mos.seeds", "'first'"]),
        (("models", "mos", "max_runs"), 3, ["models.mos.max_runs", "no grid"]),
        (("models", "gss", "grid"), {"c": [1]}, ["models.gss.grid", "'c'"]),
        (("models", "gss", "grid"), {"head.c": []}, ["models.gss.grid", "at least 1"]),
        (("models", "gss", "grid"), {"head.c": [1, 1]}, ["models.gss.grid", "only once"]),
        (("models", "gss", "grid"), {"head.q": [1]}, ["models.gss-q1", 'no option "q"']),
        (("models", "gss", "grid"), {"head.k": [-1]}, ["models.gss-k-1", "more than 0"]),
        (("models", "gss", "grid"), {"body.layrs": [1]}, ["models.gss.grid", "'layrs'", "did you mean 'layers'"]),
        (("models", "gss", "grid"), {"body.dropout_input": [1.5]}, ["models.gss.grid", "dropout_input", "less than 1"]),
        (
            ("models", "gss", "grid"),
            {"head.c": [*range(400)], "head.k": [*range(1, 400)]},
            ["models.gss.grid", "159600"],
        ),
        (
            ("models", "gss", "grid"),
            {"head.c": [1.0000001, 1.0000002]},
            ["models.gss.grid", "'gss-c1'", "another model"],
        ),
    ],
)
def test_bad_value_is_refused_by_name(
    tmp_path: Path, path: tuple[str | int, ...], value: Any, words: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        load(tmp_path, changed(*path, value=value))
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_missing_setting_is_named(tmp_path: Path) -> None:
    values = copy.deepcopy(NANO)
    del values["settings"][0]["schedule"]["clip"]
    with pytest.raises(UserError, match=r"models\.\w+: schedule: clip is not set"):
        load(tmp_path, values)


@pytest.mark.fault("C5")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("study: a\nstudy: b\n", ":2: key 'study' is given twice"),
        ("a:\n\t- b\n", ":2:"),
        ("- a\n- b\n", "expected `key: value`"),
        ("", "expected `key: value`"),
        ("no: 1\n", "is not text"),
        ("a: &a [1]\nb: [" + "*a," * 200 + "]\n", "200 YAML aliases"),
        ("a: " + "x" * (1 << 20), "too long"),
    ],
)
def test_bad_yaml_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(tmp_path, text)


@pytest.mark.fault("C5")
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.binary(max_size=400))
def test_any_bytes_are_read_or_refused_in_words(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("bytes") / "study.yaml"
    file.write_bytes(data)
    with pytest.raises(UserError):
        config.load_study(file)


def runs(values: dict[str, Any], tmp_path: Path) -> dict[tuple[str, int], str]:
    return {(run.model, run.seed): run.run_id for run in load(tmp_path, values).runs}


def test_run_id_does_not_depend_on_how_a_number_is_written(tmp_path: Path) -> None:
    assert runs(changed(*SCHEDULE, "learning_rate", value=5.0), tmp_path) == runs(NANO, tmp_path)


def test_run_id_changes_with_a_setting_and_only_where_it_applies(tmp_path: Path) -> None:
    before = runs(NANO, tmp_path)
    after = runs(changed("models", "mos", "head", "components", value=3), tmp_path)
    assert {key for key in before if before[key] != after[key]} == {("mos", 1), ("mos", 2)}


def test_run_survives_its_json() -> None:
    study = config.load_study(ROOT / "tests" / "nano.yaml")
    for run in study.runs:
        assert config.Run.from_json(run.to_json()) == run


def test_layers_apply_in_order_and_like_inherits(tmp_path: Path) -> None:
    values = copy.deepcopy(NANO)
    values["settings"].append({"when": {"model": "mos"}, "body": {"hidden_size": 12}})
    values["models"]["mos-nt"] = {"head": "mos", "like": "mos", "schedule": {"optimizer": "nt-asgd"}}
    found = {run.model: run for run in load(tmp_path, values).runs}
    assert found["softmax"].body.hidden_size == 10
    assert found["mos"].body.hidden_size == found["mos-nt"].body.hidden_size == 12
    assert (found["mos"].schedule.optimizer, found["mos-nt"].schedule.optimizer) == ("et-asgd", "nt-asgd")


# --- grids, twins, kin ----------------------------------------------------------------------------------------------
def test_like_inherits_the_layers_of_the_whole_chain(tmp_path: Path) -> None:
    values = copy.deepcopy(NANO)
    values["settings"] += [
        {"when": {"model": "mos"}, "body": {"hidden_size": 12}},
        {"when": {"model": "mos-nt"}, "schedule": {"optimizer": "nt-asgd"}},
    ]
    values["models"]["mos-nt"] = {"head": "mos", "like": "mos"}
    values["models"]["mos-nt-components"] = {"head": "mos", "like": "mos-nt", "grid": {"head.components": [1, 3]}}
    found = {run.model: run for run in load(tmp_path, values).runs}
    for model, components in (("mos-nt", 2), ("mos-nt-components1", 1), ("mos-nt-components3", 3)):
        run = found[model]
        facts = (run.body.hidden_size, run.schedule.optimizer, run.head.options["components"])
        assert facts == (12, "nt-asgd", components)
    assert found["mos"].schedule.optimizer == "et-asgd"


def test_like_inherits_what_an_entry_says_itself_and_options_of_the_same_head_alone(tmp_path: Path) -> None:
    values = copy.deepcopy(NANO)
    own = {"head": {"name": "mos", "components": 3, "probability_floor": 1e-8}, "body": {"hidden_size": 12}}
    values["models"]["mos"] = {**own, "schedule": {"clip": 0.5}}
    values["models"]["moss"] = {"head": {"name": "mos", "pointwise": "sigsoftmax"}, "like": "mos"}
    values["models"]["other"] = {"head": "moc", "like": "moss", "body": {"hidden_size": 14}}
    values["models"]["again"] = {"head": {"name": "mos", "components": 2}, "like": "other", "schedule": {"clip": 1}}
    found = {run.model: run for run in load(tmp_path, values).runs}
    keys = ("components", "probability_floor", "pointwise")
    facts = {
        name: (*(found[name].head.options.get(key) for key in keys), found[name].body.hidden_size, run.schedule.clip)
        for name, run in found.items()
    }
    assert facts["moss"] == (3, 1e-8, "sigsoftmax", 12, 0.5)
    assert facts["other"] == (15, None, "softmax", 14, 0.5)
    assert facts["again"] == (2, 1e-8, "sigsoftmax", 14, 1)


def test_a_grid_is_the_product_of_its_lists_and_its_name_stands_for_all(tmp_path: Path) -> None:
    values = copy.deepcopy(NANO)
    grid = {"head.c": [-1.5, 0], "head.k": [1.25, 2], "body.dropout_input": [0, 0.2]}
    values["models"]["wide"] = {"head": "gss", "grid": grid, "seeds": "author"}
    values["experiments"]["parthiban2021-table2"] = {"models": ["gss", "wide", "wide-c0-k2-dropout_input0"]}
    study = load(tmp_path, values)
    table = next(e for e in study.experiments if e.id == "parthiban2021-table2")
    shown = [run for run in study.runs_of(table) if run.model != "gss"]
    points = {(r.head.options["c"], r.head.options["k"], r.body.dropout_input) for r in shown}
    assert points == {(c, k, p) for c in (-1.5, 0) for k in (1.25, 2) for p in (0, 0.2)}
    assert len(shown) == 8 and {run.seed for run in shown} == {1}
    assert shown[0].model == "wide-c-1.5-k1.25-dropout_input0"
    assert study.labels[shown[0].model] == "GSS: c \u22121.5, k 1.25, dropout input 0"


def test_a_long_name_ends_in_a_hash_of_its_values(tmp_path: Path) -> None:
    keys = ("input", "hidden", "output", "embedding", "weight")
    grid = {f"body.dropout_{key}": [0.125, 0.25] for key in keys}
    study = load(tmp_path, changed("models", "wide", value={"head": "gss", "grid": grid}))
    names = study.searches["wide"].members
    assert len(set(names)) == 2**5 and all(len(name) == len("wide-") + 8 for name in names)
    assert study.labels[names[0]].startswith("GSS: dropout input 0.125, dropout hidden 0.125")


def test_a_budget_chooses_the_same_members_always_and_a_larger_one_adds(tmp_path: Path) -> None:
    values = copy.deepcopy(NANO)
    entry = {"head": "gss", "grid": {"head.c": [*range(30)], "head.k": [*range(1, 31)]}}
    chosen = {}
    for budget in (0, 5, 20, None):
        values["models"]["wide"] = entry | ({} if budget is None else {"max_runs": budget})
        study = load(tmp_path, values)
        assert study.searches["wide"].size == 900
        chosen[budget] = set(study.searches["wide"].members)
        assert chosen[budget] == {run.model for run in study.runs if run.model.startswith("wide")}
    assert [len(members) for members in chosen.values()] == [0, 5, 20, 900]
    assert chosen[0] < chosen[5] < chosen[20] < chosen[None]


def test_equal_settings_under_two_labels_are_one_run(tmp_path: Path) -> None:
    values = copy.deepcopy(NANO)
    values["models"]["wide"] = {"head": "gss", "grid": {"head.c": [-1.5, 0], "head.k": [2.5]}}
    values["experiments"] = {"parthiban2021-table6": {"models": ["wide"]}, "known-truth": {"models": ["gss", "wide"]}}
    study = load(tmp_path, values)
    paths = {(run.model, run.seed): run.path for run in study.runs}
    assert paths["wide-c-1.5-k2.5", 1] == paths["gss", 1] != paths["wide-c0-k2.5", 1]
    assert len(study.needed) == 4 and len(study.shown) == 6
    assert study.run(paths["wide-c-1.5-k2.5", 2]).model == "gss"
    (table6,) = (e for e in study.experiments if e.id == "parthiban2021-table6")
    assert {run.seed for run in study.runs_of(table6)} == {1}


def test_a_twin_alone_is_trained_under_the_first_label(tmp_path: Path) -> None:
    values = copy.deepcopy(NANO)
    values["models"]["again"] = {"head": "gss"}
    values["experiments"] = {"known-truth": {"models": ["again"]}}
    study = load(tmp_path, values)
    assert [run.model for run in study.needed] == ["gss", "gss"] and [r.model for r in study.shown] == ["again"] * 2


def test_datasets_of_a_model_limit_its_runs() -> None:
    study = config.load_study(ROOT / "config" / "paper.yaml")
    assert {run.dataset for run in study.runs if run.model.startswith("gss-grid-wt2")} == {"wikitext-2"}


def test_grids_on_different_corpora_may_share_their_members_names() -> None:
    study = config.load_study(ROOT / "config" / "paper.yaml")
    found = {(run.dataset, run.head.options["components"]) for run in study.runs if "nt-components" in run.model}
    assert found == {("ptb", k) for k in (1, 3, 5, 10, 15, 20)} | {("wikitext-2", k) for k in (10, 15, 20)}
    assert {run.model for run in study.runs if run.model.endswith("nt-components10")} == {"mos-nt-components10"}


def extending(tmp_path: Path, values: dict[str, Any]) -> config.Study:
    base = yaml.safe_dump(NANO, sort_keys=False)
    (tmp_path / "base.yaml").write_text(base, encoding="utf-8")
    return load(tmp_path, {"extends": "base.yaml"} | values)


def test_a_study_that_extends_another_with_nothing_has_its_runs(tmp_path: Path) -> None:
    assert [r.path for r in extending(tmp_path, {"study": "twin"}).runs] == [r.path for r in load(tmp_path, NANO).runs]


def test_what_extends_replaces_keys_appends_settings_and_changes_models(tmp_path: Path) -> None:
    layer = {"schedule": {"epochs": 7}}
    models = {"gss": None, "mos": {"label": "Mixture"}, "ss": {"head": "sigsoftmax"}}
    experiments = {"known-truth": {"models": "all"}}
    changes = {"study": "more", "seeds": [5], "settings": [layer], "models": models, "experiments": experiments}
    study = extending(tmp_path, changes)
    assert {run.model for run in study.runs} == {"softmax", "mos", "ss"}
    assert {(run.seed, run.schedule.epochs, run.schedule.clip) for run in study.runs} == {(5, 7, 0.25)}
    assert study.labels["mos"] == "Mixture" and study.name == "more"
    assert next(run for run in study.runs if run.model == "mos").head.options["components"] == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"extends": "study.yaml"}, "extends this file in turn"),
        ({"extends": "nothing.yaml"}, "nothing.yaml: cannot be read"),
        ({"extends": 3}, "is not the path"),
        ({"models": {"gs": None}}, "none to take away; did you mean 'gss'"),
        ({"models": {"gss": {"hed": "mos"}}}, "unknown key 'hed'"),
    ],
)
def test_a_bad_extension_is_refused_in_words(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        extending(tmp_path, values)


def test_seeds_of_a_model_may_be_its_own(tmp_path: Path) -> None:
    runs_by_model = load(tmp_path, changed("models", "gss", "seeds", value=[7, 9])).runs
    assert [run.seed for run in runs_by_model if run.model == "gss"] == [7, 9]


def test_the_quick_study_shares_its_runs_with_the_long_one() -> None:
    quick, long = (config.load_study(ROOT / "config" / f"{name}.yaml") for name in ("ptb-cpu-quick", "ptb-cpu"))
    assert len(quick.needed) == 27 and {run.path for run in quick.needed} < {run.path for run in long.needed}


def test_a_day_on_a_gpu_has_the_papers_models_at_full_size() -> None:
    day, paper = (config.load_study(ROOT / "config" / f"{name}.yaml") for name in ("gpu-day", "paper"))
    bodies = {(run.dataset, run.model): (run.body, run.schedule.learning_rate) for run in paper.runs}
    for run in day.runs:
        shared = bodies.get((run.dataset, run.model))
        assert shared in (None, (run.body, run.schedule.learning_rate)), run.model
    assert [e.id for e in day.experiments] == [e.id for e in paper.experiments]


# --- what an experiment shows ---------------------------------------------------------------------------------------
def experiment(study: config.Study, name: str) -> config.Experiment:
    return next(experiment for experiment in study.experiments if experiment.id == name)


def test_random_seeds_leave_out_the_authors_own() -> None:
    study = config.load_study(ROOT / "config" / "paper.yaml")
    random = dataclasses.replace(experiment(study, "parthiban2021-table2"), seeds="random")
    seeds = {run.seed for run in study.runs_of(random)}
    assert len(study.runs_of(random)) == 5 * 10 * 2 and not seeds & {141, 28, 1881}


def test_a_corpus_that_stands_for_the_published_one_takes_its_place_and_absent_ones_are_named(tmp_path: Path) -> None:
    study = load(tmp_path, NANO)
    table2 = experiment(study, "parthiban2021-table2")
    assert table2.datasets == ("truth-nano",) and "WikiText-2" in table2.needs and "Penn" not in table2.needs


def test_what_a_study_cannot_make_says_why_and_needs_no_run(tmp_path: Path) -> None:
    values = copy.deepcopy(NANO)
    values["experiments"]["parthiban2021-table6"] = {"needs": "A GPU."}
    table6 = experiment(load(tmp_path, values), "parthiban2021-table6")
    assert (table6.needs, table6.models) == ("A GPU.", ())
    values["models"] = {"other": {"head": "gss"}}
    values["experiments"] = {"parthiban2021-table6": None, "known-truth": {"models": "all"}}
    assert "none of its models (softmax, ss" in experiment(load(tmp_path, values), "parthiban2021-table6").needs


# --- the paper ------------------------------------------------------------------------------------------------------
def test_table_2_needs_its_110_runs() -> None:
    study = config.load_study(ROOT / "config" / "paper.yaml")
    planned = study.runs_of(experiment(study, "parthiban2021-table2"))
    assert len({run.path for run in planned}) == 5 * 11 * 2
    seeds = {(run.dataset, run.model): run.seed for run in reversed(planned)}  # the first of each: the authors' own
    assert {seeds["ptb", "softmax"], seeds["ptb", "mos"], seeds["wikitext-2", "gss"]} == {141, 28, 1881}


def published_settings() -> dict[str, dict[str, float]]:
    """SPEC section 5 as published in SM Table 6: dataset/model -> our key -> value."""
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
        "ptb/softmax-fair": common | {"embedding_size": 340, "hidden_size": 960, "context_size": 340, "batch_size": 12}
        | {"dropout_embedding": 0.125, "dropout_input": 0.28, "dropout_hidden": 0.225, "dropout_output": 0.26}
        | {"embedding_noise": 0.15, "weight_decay": 1.5e-6, "learning_rate": 20},
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
    study = config.load_study(ROOT / "config" / "paper.yaml")
    run = next(run for run in study.runs if (run.dataset, run.model) == (dataset, model))
    found = dataclasses.asdict(run.body) | dataclasses.asdict(run.schedule)
    assert {key: found[key] for key in published_settings()[name]} == published_settings()[name]


def test_details_of_the_published_code_are_in_the_papers_study() -> None:
    """Floors of mixtures as in Yang's code and Benka's; epochs; padding."""
    study = config.load_study(ROOT / "config" / "paper.yaml")
    runs = {(run.dataset, run.model): run for run in study.runs}
    mixtures = ("kanai-mos", "kanai-moss", "transformer-mos", "transformer-moss", "transformer-mos-components10")
    assert {runs["ptb", model].head.options["probability_floor"] for model in mixtures} == {1e-8}
    assert {runs["ptb", model].head.options["probability_floor"] for model in ("mos", "mos-nt", "ganea-mos")} == {0}
    epochs = [runs["wikitext-2", m].schedule.epochs for m in ("softmax", "moc", "moc-nt", "mos", "mos-nt")]
    assert epochs == [1000, 1000, 1000, 500, 500]
    assert all(run.body.published_padding == (run.body.kind == "awd-lstm") for run in study.runs)


def test_both_readings_of_ganeas_switch_are_in_the_papers_study() -> None:
    """When validation stalls, with the AWD-LSTM's dropout; or, as Parthiban et al. read it, after epoch 200."""
    runs = {(run.dataset, run.model): run for run in config.load_study(ROOT / "config" / "paper.yaml").runs}
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


STUDIES = [file for file in sorted((ROOT / "config").glob("*.yaml")) if "\nstudy:" in file.read_text(encoding="utf-8")]


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_shipped_study_is_valid(file: Path) -> None:
    study = config.load_study(file)
    assert study.needed or study.units  # runs, or fits alone


def test_every_key_of_a_study_is_documented() -> None:
    text = (ROOT / "config" / "README.md").read_text(encoding="utf-8")

    def keys(rules: Any) -> set[str]:
        if not isinstance(rules, dict):
            return set()
        own = set(rules.get("properties", {}))
        return own.union(*(keys(child) for child in rules.values()))

    missing = {key for key in keys(config.json_schema(config.StudyFile)) if f"`{key}`" not in text}
    assert not missing
