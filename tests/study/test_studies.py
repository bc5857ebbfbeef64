"""Runs, grids, duplicates and experiments that follow from a study file; run_ids change when they must."""

import copy
from pathlib import Path
from typing import Any

import fake_results as fake
import pytest
import small
import yaml
from softmax_bottleneck import study as config
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import runs as run_module

ROOT = Path(__file__).parents[2]
NANO = yaml.safe_load((ROOT / "tests" / "nano.yaml").read_text(encoding="utf-8"))


def load(tmp_path: Path, values: dict[str, Any] | str) -> config.Study:
    file = tmp_path / "study.yaml"
    file.write_text(values if isinstance(values, str) else yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return config.load_study(file)


def runs(values: dict[str, Any], tmp_path: Path) -> dict[tuple[str, int], str]:
    return {(run.model, run.seed): run.run_id for run in load(tmp_path, values).runs}


def test_run_id_depends_on_the_models_settings_and_not_on_how_a_number_is_written(tmp_path: Path) -> None:
    before = runs(NANO, tmp_path)
    assert runs(small.changed(NANO, ("settings", 0, "schedule", "learning_rate"), 5.0), tmp_path) == before
    after = runs(small.changed(NANO, ("models", "mos", "head", "components"), 3), tmp_path)
    assert {key for key in before if before[key] != after[key]} == {("mos", 1), ("mos", 2)}


def test_ids_depend_on_the_code_of_corpus_training_body_and_every_head(tmp_path: Path, monkeypatch) -> None:
    head = {"name": "mos", "components": 2, "pointwise": "sigsoftmax"}
    values = small.changed(NANO, ("models", "mos", "head"), head)
    before, codes = runs(values, tmp_path), []
    monkeypatch.setattr(run_module, "step_code", lambda *names: codes.append(set(names)) or "edited")
    after = runs(values, tmp_path)
    assert all(before[key] != after[key] for key in before)
    heads = {"heads.mos", "heads.sigsoftmax", "heads.softmax"}  # the last is the default of `prior`
    assert {"train", "steps.tokenise", "bodies.awd_lstm", *heads} in codes


def test_run_survives_its_json() -> None:
    study = config.load_study(ROOT / "tests" / "nano.yaml")
    for run in study.runs:
        assert config.Run.from_json(run.to_json()) == run


def test_like_inherits_the_layers_of_the_whole_chain(tmp_path: Path) -> None:
    values = copy.deepcopy(NANO)
    values["settings"] += [{"when": {"model": "mos"}, "body": {"hidden_size": 12}},
        {"when": {"model": "mos-nt"}, "schedule": {"optimizer": "nt-asgd"}}]  # fmt: skip
    values["models"]["mos-nt"] = {"head": "mos", "like": "mos"}
    values["models"]["mos-nt-components"] = {"head": "mos", "like": "mos-nt", "grid": {"head.components": [1, 3]}}
    found = {run.model: run for run in load(tmp_path, values).runs}
    for model, components in (("mos-nt", 2), ("mos-nt-components1", 1), ("mos-nt-components3", 3)):
        run = found[model]
        facts = (run.body.hidden_size, run.schedule.optimizer, run.head.options["components"])
        assert facts == (12, "nt-asgd", components)
    assert (found["mos"].schedule.optimizer, found["softmax"].body.hidden_size) == ("et-asgd", 10)


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
    study = load(tmp_path, small.changed(NANO, ("models", "wide"), {"head": "gss", "grid": grid}))
    names = study.searches["wide"].members
    assert len(set(names)) == 2**5 and all(len(name) == len("wide-") + 8 for name in names)
    assert study.labels[names[0]].startswith("GSS: dropout input 0.125, dropout hidden 0.125")


def test_a_budget_chooses_the_same_members_always_and_a_larger_one_adds(tmp_path: Path) -> None:
    values = copy.deepcopy(NANO)
    entry = {"head": "gss", "grid": {"head.c": [*range(7)], "head.k": [*range(1, 9)]}}
    chosen = {}
    for budget in (0, 5, 20, None):
        values["models"]["wide"] = entry | ({} if budget is None else {"max_runs": budget})
        study = load(tmp_path, values)
        assert study.searches["wide"].size == 56
        chosen[budget] = set(study.searches["wide"].members)
        assert chosen[budget] == {run.model for run in study.runs if run.model.startswith("wide")}
    assert [len(members) for members in chosen.values()] == [0, 5, 20, 56]
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


def extending(tmp_path: Path, values: dict[str, Any]) -> config.Study:
    base = yaml.safe_dump(NANO, sort_keys=False)
    (tmp_path / "base.yaml").write_text(base, encoding="utf-8")
    return load(tmp_path, {"extends": "base.yaml"} | values)


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


def test_a_bad_extension_is_rejected_by_key(tmp_path: Path) -> None:
    for models, words in (({"gs": None}, r"models\.gs: .*'gss'"), ({"gss": {"hed": "mos"}}, r"models\.gss: .*'hed'")):
        with pytest.raises(UserError, match=words):
            extending(tmp_path, {"models": models})


def test_a_corpus_that_stands_for_the_published_one_takes_its_place_and_absent_ones_are_named(tmp_path: Path) -> None:
    study = load(tmp_path, NANO)
    table2 = fake.experiment(study, "parthiban2021-table2")
    assert table2.datasets == ("truth-nano",) and "WikiText-2" in table2.needs and "Penn" not in table2.needs


def test_what_a_study_cannot_make_says_why_and_needs_no_run(tmp_path: Path) -> None:
    values = copy.deepcopy(NANO)
    values["experiments"]["parthiban2021-table6"] = {"needs": "A GPU."}
    table6 = fake.experiment(load(tmp_path, values), "parthiban2021-table6")
    assert (table6.needs, table6.models) == ("A GPU.", ())
    values["models"] = {"other": {"head": "gss"}}
    values["experiments"] = {"parthiban2021-table6": None, "known-truth": {"models": "all"}}
    assert "none of its models (softmax, ss" in fake.experiment(load(tmp_path, values), "parthiban2021-table6").needs
