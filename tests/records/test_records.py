"""Records: what is read, what is not, and what is said of runs that are not complete."""

import dataclasses
import json
from pathlib import Path

import fake_results as fake
import pytest
import small
from softmax_bottleneck.records import collection, records
from softmax_bottleneck.report import contents, page
from softmax_bottleneck.report.claims.rules import CorpusData
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.paths import Store


@pytest.fixture
def study(place: Path):
    return fake.load(place, fake.STUDY.replace("seeds: [1, 2, 3]", "seeds: [1, 2]"))


def states(study) -> dict[str, tuple[str, str]]:
    found = collection.collect(study).states
    return {path: (state, reason)
        for path, state, reason in zip(found["path"], found["state"], found["reason"], strict=True)}  # fmt: skip


def test_every_number_of_a_run_becomes_one_row(study) -> None:
    run = study.needed[0]
    fake.write_run(run)
    rows = collection.collect(study).rows
    assert tuple(rows.columns) == records.COLUMNS
    assert set(rows["run_id"]) == {run.run_id}
    measure = json.loads((Store().run_folder(run.path) / "measure.json").read_text(encoding="utf-8"))["metrics"]
    for metric, value in measure.items():
        chosen = rows[rows["metric"] == metric]
        assert list(chosen["value"]) == [value] and list(chosen["seed"]) == [run.seed]
    rank = json.loads((Store().run_folder(run.path) / "rank.json").read_text(encoding="utf-8"))
    assert list(rows[rows["metric"] == "rank_tolerance"]["value"]) == [rank["tolerance"]]
    mc30 = rows[rows["condition"] == "benchmark=MC-30"].set_index("metric")["value"]
    assert mc30["n_pairs"] == 30 and mc30["n_pairs_not_in_vocab"] == 30 - 9
    rho = artefacts.read_json(Store().run_folder(run.path) / "wordsim.json")["benchmarks"]["MC-30"]
    assert [mc30[f"spearman{end}"] for end in ("", "_low", "_high")] == [rho["rho"], rho["low"], rho["high"]]
    assert set(rows[(rows["metric"] == "spearman") & (rows["condition"] == "benchmark=MC-30")]["n"]) == {9}
    sigma = artefacts.read_npz(Store().run_folder(run.path) / "spectrum.npz")["singular_values"]
    assert list(rows[rows["metric"] == "sigma_10"]["value"]) == [sigma[9] / sigma[0]]
    assert not rows.duplicated(["dataset", "model", "seed", "metric", "condition"]).any()


def test_nothing_is_read_before_the_first_run(study) -> None:
    found = collection.collect(study)
    some = {state: n for state, n in found.counts().items() if n}
    assert found.rows.empty and some == dict.fromkeys(("planned", "missing"), len(study.needed))
    assert set(found.states["reason"]) == {"not trained yet"}


def test_an_interrupted_run_says_how_many_epochs_are_done(study) -> None:
    first, second = study.needed[:2]
    fake.write_epochs(first, 4)
    Store().run_folder(second.path).mkdir(parents=True)
    (Store().run_folder(second.path) / "resume-b.pt").touch()
    log = Store().run_folder(first.path) / "epochs.jsonl"
    artefacts.append_line(log, '{"epoch": 4, "phase": "sgd", "train_ppl": 1.5, "valid_ppl": 2.5}')  # after a resume
    assert [line["valid_ppl"] for line in collection.collect(study).curve(first.path)][3:] == [2.5]
    for run, place in ((first, "4 of 10 epochs done"), (second, "0 of 10 epochs done")):
        state, reason = states(study)[run.path]
        assert state == "missing" and place in reason


@pytest.mark.fault("G1")
def test_diverged_and_failed_runs_give_a_reason_and_no_number(study) -> None:
    first, second = study.needed[:2]
    fake.write_run(first)
    fake.write_done(first, "diverged", "nan in epoch 3")
    artefacts.write_json(Store().run_folder(second.path) / "done.json", {"status": "killed"})
    found = states(study)
    assert found[first.path] == ("diverged", "nan in epoch 3")
    assert found[second.path] == ("failed", "done.json says killed")
    assert collection.collect(study).rows.empty


@pytest.mark.fault("G17")
def test_a_run_without_word_similarities_counts_and_says_so(study) -> None:
    run = study.needed[0]
    fake.write_run(run)
    (Store().run_folder(run.path) / "wordsim.json").unlink()
    assert states(study)[run.path] == ("ok", "word similarity not done yet")
    found = collection.collect(study)
    assert set(found.rows["table"]) == {"done", "measure", "rank"}
    files = [finding["file"] for finding in found.verification["findings"]]
    assert f"runs/{run.path}/wordsim.json" in files and not found.verification["complete"]


@pytest.mark.parametrize("absent", ["measure", "rank"])
def test_a_trained_run_that_is_not_measured_yet_is_missing_but_keeps_its_numbers(study, absent: str) -> None:
    run = study.needed[0]
    fake.write_run(run)
    (Store().run_folder(run.path) / f"{absent}.json").unlink()
    assert states(study)[run.path] == ("missing", f"trained; {absent} not done yet")
    tables = set(collection.collect(study).rows["table"])
    assert tables == {"done", "measure", "rank", "wordsim"} - {absent}


def test_hit_rates_are_records_with_their_number_of_contexts(study) -> None:
    run = study.needed[0]
    fake.write_done(run)
    hits = {"1": {"rate": 0.25, "low": 0.2, "high": 0.3, "n": 400}, "10": {"rate": 0.5, "low": None, "n": 400}}
    places = [{"group": "random", "context": n, "note": "cut" * (n - 1), "hit": n == 1} for n in (1, 2)]
    artefacts.write_json(Store().run_folder(run.path) / "topk.json", {"status": "ok", "contexts": places, "hits": hits})
    rows = collection.collect(study).rows
    rows = rows[rows["table"] == "topk"]
    found = {metric: (value, n) for metric, value, n in zip(rows["metric"], rows["value"], rows["n"], strict=True)}
    assert found == {
        "hit_rate_1": (0.25, 400), "hit_rate_1_low": (0.2, 400), "hit_rate_1_high": (0.3, 400),
        "hit_rate_10": (0.5, 400),
        "top5_hit": (1.0, 1),  # not of the second place, whose true word is not in the vocabulary
    }  # fmt: skip


def test_words_and_booleans_are_no_numbers(study) -> None:
    run = study.needed[0]
    fake.write_done(run)
    metrics = {"test_ppl": None, "valid_ppl": "nan", "train_ppl": True, "params_m": 3}
    artefacts.write_json(Store().run_folder(run.path) / "measure.json", {"status": "ok", "metrics": metrics})
    rows = collection.collect(study).rows
    assert list(rows[rows["table"] == "measure"]["metric"]) == ["params_m"]


def test_a_study_of_fits_alone_says_where_they_ran(study) -> None:
    block = {"git": {"commit": "c0ffee"}, "versions": {"torch": "2"}, "hardware": {"cpu": "a processor"}}
    synthetic = {"status": "ok", "rows": [], "provenance": block | {"parents": {"done.json": "0"}}}
    artefacts.write_json(Store().study_folder(study.name) / "synthetic.json", synthetic)
    found = collection.collect(study)
    assert found.environments == (block,)
    facts = dict(contents.facts_of(study, dataclasses.replace(found, states=found.states.iloc[:0])))
    assert facts["Hardware"] == "a processor" and facts["Code"] == "commit c0ffee"


@pytest.mark.parametrize(("test_ppl", "learned"), [(189.9, True), (191.0, False)])
def test_a_run_that_learned_only_how_frequent_words_are_is_said_and_no_point_of_a_trend(study, test_ppl, learned):
    fake.write_all(study)
    run = study.needed[0]
    fake.write_measure(run, test_ppl=test_ppl, unigram_ppl=200.0)
    found = collection.collect(study)
    remark = f"no better than a unigram model: test perplexity {test_ppl:.1f}, unigram 200.0"
    assert states(study)[run.path] == ("ok", "" if learned else remark)
    assert found.unlearned == (set() if learned else {(run.dataset, run.model, run.seed)})
    view = CorpusData(found, run.dataset)
    assert (run.model in view.learned("*")) == learned
    assert view.matching("*") == sorted({other.model for other in study.needed})


def test_tables_and_page_are_made_again_from_the_studys_folder_alone(finished, place) -> None:
    """With the runs renamed away `render` and `report` write the same bytes."""
    study = small.copied(finished, place)
    home = study.store.study_folder(study.name)
    rendered = [path for path in home.rglob("*") if path.suffix in {".csv", ".html", ".svg", ".json"}]
    before = {path: path.read_bytes() for path in rendered if path.name != "claims.json"}
    (study.store.root / "runs").rename(study.store.root / "elsewhere")
    contents.write(study, home)
    page.write(home)
    assert home / "report" / "index.html" in before and len(before) > 5
    assert [path.name for path in before if path.read_bytes() != before[path]] == []
