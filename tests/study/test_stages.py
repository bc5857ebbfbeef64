"""Stages after training: counts derived from the published text, records by stage, and their tables."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import claim_examples as examples
import pytest
import yaml
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collection
from softmax_bottleneck.report import cells, claims, views
from softmax_bottleneck.report.claims.rules import REPRODUCED, CorpusData
from softmax_bottleneck.report.claims.verdict import Code, judge, premises_of
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.training import feasibility

ROOT = Path(__file__).parents[2]
BETTER = next(claim for claim in claims.CLAIMS if claim.id == "kanai-ss-better")


BASE = yaml.safe_load((ROOT / "tests" / "nano.yaml").read_text(encoding="utf-8"))
TABLE = {
    "id": "later", "source": "kanai2018", "artefact": "Table", "kind": "table", "title": "Later", "view": "summary",
    "models": ["softmax", "mos"], "stages": ["finetune", "dynamic"],
    "columns": [
        {"metric": "test_ppl", "label": "trained"},
        {"metric": "test_ppl", "label": "finetuned", "stage": "finetuned"},
        {"metric": "test_ppl", "label": "dynamic", "stage": "dynamic"},
        {"metric": "p_value", "label": "p", "stage": "dynamic"},
        {"metric": "test_ppl_reduction_pct", "label": "reduction"},
        {"metric": "test_ppl_gain_vs_softmax", "label": "gain", "stage": "dynamic"},
    ],
}  # fmt: skip


def load(folder: Path, table: dict[str, Any] = TABLE, **values: Any) -> config.Study:
    config.load_experiment.cache_clear()
    whole = copy.deepcopy(BASE) | {"experiments": {table["id"]: None}} | values
    (folder / "experiments").mkdir(exist_ok=True)
    (folder / "experiments" / f"{table['id']}.yaml").write_text(yaml.safe_dump(table), encoding="utf-8")
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")
    return config.load_study(file)


def test_stages_follow_the_runs_of_the_experiments_that_ask(tmp_path: Path) -> None:
    one = load(tmp_path)
    assert [run.start for run in one.finetuned] == [run.path for run in one.needed]
    assert [evaluation.run.path for evaluation in one.evaluations] == [run.path for run in one.finetuned]
    assert one.run(one.finetuned[0].path) == one.finetuned[0]
    assert one.dynamic_evaluation(one.evaluations[1].path) == one.evaluations[1]
    with pytest.raises(UserError, match="no run 'x'"):
        one.dynamic_evaluation("x")
    alone = load(tmp_path, TABLE | {"stages": ["dynamic"]})
    assert not alone.finetuned and [e.run.path for e in alone.evaluations] == [run.path for run in alone.needed]
    assert not load(tmp_path, TABLE | {"stages": []}).evaluations


def test_a_model_is_evaluated_dynamically_with_or_without_finetuning(tmp_path: Path) -> None:
    load(tmp_path, TABLE | {"id": "alone", "stages": ["dynamic"]})
    with pytest.raises(UserError, match=r"study\.yaml: experiments\.later: 'softmax' on .* by experiments\.alone"):
        load(tmp_path, experiments={"alone": None, "later": None})
    shown = {"alone": {"models": ["mos"]}, "later": {"models": ["copy"]}}
    one = load(tmp_path, experiments=shown, models=BASE["models"] | {"copy": {"head": "mos", "like": "mos"}})
    assert [(e.run.model, bool(e.run.start)) for e in one.evaluations] == [("mos", False)] * 2 + [("copy", True)] * 2


def test_settings_of_a_stage_change_only_its_own_id(tmp_path: Path) -> None:
    one = load(tmp_path)
    other = load(tmp_path, settings=[*BASE["settings"], {"dynamic": {"decays": [0.5]}}])
    tuned = load(tmp_path, settings=[*BASE["settings"], {"finetune": {"epochs": 9}}])
    assert [run.path for run in one.needed] == [run.path for run in other.needed] == [run.path for run in tuned.needed]
    assert [run.path for run in one.finetuned] == [run.path for run in other.finetuned]
    assert not {e.path for e in one.evaluations} & {e.path for e in other.evaluations}
    assert not {run.path for run in one.finetuned} & {run.path for run in tuned.finetuned}
    assert len({one.digest, other.digest, tuned.digest}) == 3


def test_a_body_without_memory_cannot_be_evaluated_dynamically(tmp_path: Path) -> None:
    body = {"kind": "transformer", "attention_heads": 2, "dropout_embedding": 0, "dropout_weight": 0}
    one = load(tmp_path, settings=[*BASE["settings"], {"body": body}])
    with pytest.raises(UserError, match=r"models\.softmax: dynamic evaluation needs a body that carries"):
        feasibility.check_stages(one)


@pytest.mark.parametrize(("given", "rate"), [
    ({"scaling": "sum"}, "5e-05"),  # the default rates are those of `mean`
    ({"scaling": "sum", "learning_rates": [0.002, 0.0001]}, "0.0001"),
    ({"learning_rates": [0.00005, 0.002]}, "0.002"),
    ({"scaling": "sum", "learning_rates": [0, 0.0005, 0.002]}, ""),
    ({"learning_rates": [0, 0.00003, 0.0005]}, ""),
])  # fmt: skip
def test_step_sizes_for_the_other_scaling_are_rejected_in_one_line(tmp_path: Path, given: dict, rate: str) -> None:
    settings = [*BASE["settings"], {"dynamic": given}]
    if not rate:
        assert load(tmp_path, settings=settings).evaluations
        return
    with pytest.raises(UserError) as error:
        load(tmp_path, settings=settings)
    message = str(error.value)
    assert "models.softmax: dynamic.learning_rates: " in message and f"(got {rate})" in message and "\n" not in message


@pytest.mark.parametrize("damaged", [False, True])
def test_doubtful_choices_are_a_warning_in_table_and_verdict(tmp_path: Path, monkeypatch, damaged: bool) -> None:
    """36.45 -> 46.73 on the test text of WikiText-2 is what a step size on the grid's lower edge did."""
    monkeypatch.chdir(tmp_path)
    one = load(tmp_path)
    for evaluation in one.evaluations:
        run = evaluation.run
        write(evaluation.path, run, 46.73, dynamic=True)
        facts = {"test_ppl": 46.73, "valid_ppl": 40.0, "valid_gain": 1.0, "test_gain": -10.28 if damaged else 0.5}
        facts["dynamic_at_edge"] = float(damaged and run.seed == 1)
        usual = {"status": "ok", "provenance": {"run_id": run.run_id}}
        artefacts.write_json(Store().run_folder(evaluation.path) / "dynamic.json", usual | {"metrics": facts})
    found = collection.collect(one)
    place = one.needed[0].dataset
    assert found.dynamic_doubts(place, "softmax") == ((1, 2, 2) if damaged else (0, 0, 2))
    (part,) = views.build(one, one.experiments[0], found).sections
    notes = [cell.note for cell in part.rows[0].cells if cell.measured and cell.stage == "dynamic"]
    assert all(notes) == damaged and any(notes) == damaged
    expected = {"edge": 2, "apart": 4, "runs": 4} if damaged else {"edge": 0, "apart": 0, "runs": 4}
    data = CorpusData(found, place)
    claim = dataclasses.replace(BETTER, models=("mos", "softmax"))
    premise = next(one for one in premises_of(data, claim, REPRODUCED) if one.code is Code.DYNAMIC)
    assert premise.holds is not damaged and premise.facts == expected


def test_a_warning_leaves_the_verdict_and_is_its_reason() -> None:
    rows = [(f"kanai-{head}", "test_ppl", "dynamic", [level + x for x in (0, 0.1, 0.2)])
            for head, level in (("softmax", 57), ("ss", 55))]  # fmt: skip
    rows += [(row[0], metric, "dynamic", [gain] * 3) for row in rows[:2] for metric, gain in
             (("valid_gain", 1.0), ("test_gain", -1.0))]  # fmt: skip
    sizes = [(row[0], "parameters", "", [1e6] * 3) for row in rows[:2]]
    entry = judge(CorpusData(examples.records_of([*rows, *sizes]), examples.CORPUS), BETTER)
    assert entry.verdict == REPRODUCED and entry.reason.code is Code.DYNAMIC


def write(path: str, run: config.Run, ppl: float, dynamic: bool = False) -> None:
    """Files of a run, or of its dynamic evaluation, with one number."""
    folder = Store().run_folder(path)
    usual = {"status": "ok", "provenance": {"run_id": run.run_id}}
    if dynamic:
        artefacts.write_json(folder / "dynamic.json", usual | {"metrics": {"test_ppl": ppl, "test_gain": 0.0}})
        return
    artefacts.write_json(folder / "done.json", usual | {"run": {"run_id": run.run_id}, "epochs": 3})
    artefacts.write_json(folder / "measure.json", usual | {"metrics": {"test_ppl": ppl}})
    artefacts.write_json(folder / "rank.json", usual | {"metrics": {"rank_press": 3}, "m": 9, "n": 9})
    artefacts.write_json(folder / "wordsim.json", usual | {"benchmarks": {}})


def test_numbers_carry_their_stage_and_tables_ask_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = load(tmp_path)
    ppl = {"softmax": 40.0, "mos": 30.0}
    for run in one.needed:
        write(run.path, run, ppl[run.model] + run.seed)
    for run in one.finetuned[:3]:  # the last one is not finetuned yet
        write(run.path, run, ppl[run.model] + run.seed - 5)
    for evaluation in one.evaluations[:3]:
        write(evaluation.path, evaluation.run, ppl[evaluation.run.model] + evaluation.run.seed - 9, dynamic=True)
    found = collection.collect(one)
    place = one.needed[0].dataset
    assert found.values(place, "softmax", "test_ppl") == {1: 41.0, 2: 42.0}
    assert found.values(place, "softmax", "test_ppl", "finetuned") == {1: 36.0, 2: 37.0}
    assert found.values(place, "mos", "test_ppl", "dynamic") == {1: 22.0}
    assert found.counts()["planned"] == 4 and len(found.stages) == 8
    missing = found.stages[found.stages["state"] == "missing"]
    assert missing["reason"].tolist() == ["not finetuned yet", "not evaluated yet"]
    (part,) = views.build(one, one.experiments[0], found).sections
    softmax, mos = (row.cells for row in part.rows)
    assert [cell.measured.mean for cell in softmax[:3] if cell.measured] == [41.5, 36.5, 32.5]
    assert [cell.count for cell in mos[:3]] == ["2", "1 of 2", "1 of 2"]
    assert mos[1].gap == mos[2].gap == "seed 2 missing"
    assert mos[3].gap  # one value against two: no test
    assert mos[4].measured == cells.MeasuredCell(pytest.approx(100 * 10 / 41.5))
    assert (mos[5].measured, mos[5].gap) == (cells.MeasuredCell(32.5 - 22), "seed 2 missing")


def test_a_result_of_another_start_gives_no_number(place: Path) -> None:
    one = load(place)
    run, after = one.needed[0], one.finetuned[0]
    write(run.path, run, 40.0)
    write(after.path, after, 35.0)
    folder = Store().run_folder(after.path)
    done = artefacts.read_json(folder / "done.json")
    done["provenance"]["parents"] = {
        "start/done.json": artefacts.sha256_file(Store().run_folder(run.path) / "done.json")
    }
    artefacts.write_json(folder / "done.json", done)
    assert collection.collect(one).values(run.dataset, run.model, "test_ppl", "finetuned") == {1: 35.0}
    trained = artefacts.read_json(Store().run_folder(run.path) / "done.json")
    artefacts.write_json(Store().run_folder(run.path) / "done.json", trained | {"epochs": 4})
    found = collection.collect(one)
    assert found.values(run.dataset, run.model, "test_ppl", "finetuned") == {}
    assert found.stages["state"].tolist()[0] == "stale"
