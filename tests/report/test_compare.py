"""Studies side by side: the matrix of conclusions, on the terminal, as files, from read-only folders."""

import csv
import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import claim_examples as examples
import fake_results as fake
import numpy as np
import pytest
from scipy import stats
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import compare
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.claims.rules import CANNOT, CONFOUNDED, NOT_REPRODUCED, REPRODUCED, UNDECIDED
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study import Study

HARDWARE = "cpu AVX512, Fake CPU"
NUMBER = {"what": "a difference", "text": "−3.0 %", "unit": "%", "value": -3.0, "low": -4.0, "high": -2.0, "n": (3, 3)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies in results/, the second with three heads; and another results folder, read-only, from elsewhere."""
    folder = tmp_path_factory.mktemp("compare")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        text = fake.showing("known-truth: {models: all}", "parthiban2021-table2: {models: all}")
        text = text.replace("seeds: [1, 2, 3]", "seeds: [1]")
        fewer = re.sub(r"  (gss|lms-plif|moc): .*\n", "", text).replace("study: fake", "study: fewer")
        for words in (text, fewer.replace("[moc, mos]", "[mos]")):
            study = fake.load(folder, words)
            fake.write_all(study)
            examples.judged(study)
    shutil.copytree(folder / "results" / "fake", folder / "other" / "results" / "fake")
    for path in (folder / "other").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return folder


def test_claims_and_heads_stand_side_by_side_with_the_hardware(finished: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(finished)
    assert main(["compare", "fake", "fewer", "other/results", "--out", "side"]) == 0
    shown = capsys.readouterr().out
    assert "fake: truth-demo" in shown and "other/results/fake: truth-demo" in shown and HARDWARE in shown
    rows = list(csv.DictReader((finished / "side" / "compare.csv").open(encoding="utf-8")))
    heads = {(row["study"], row["row"]): row["text"] for row in rows if row["table"] == "Heads"}
    expected = fake.perplexities(next(run for run in fake.load(finished).needed if run.model == "mos"))["test_ppl"]
    for name in ("fake", "fewer", "other/results/fake"):
        assert heads[f"{name}: truth-demo", "MoS [mos]"].startswith(f"{expected:.2f}")
    assert heads["fewer: truth-demo", "GSS [gss]"] == "—"
    verdicts = [row["text"] for row in rows if row["row"].endswith("[not-sufficient]")]
    judged = artefacts.read_json(finished / "results" / "fake" / "claims.json")["claims"]
    assert verdicts[0].startswith(next(one["verdict"] for one in judged if one["id"] == "not-sufficient"))


def test_what_is_no_finished_study_is_named(finished: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(finished)
    assert main(["compare", "fake", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main(["compare", "fake"]) == 2
    assert "fake" not in capsys.readouterr().out


def entry(verdict: str, n: int = 3, name: str = "mos-better", dataset: str = "a") -> dict[str, Any]:
    facts = dict.fromkeys(("statement", "where", "limits", "criterion", "reason"), "")
    numbers = [NUMBER | {"n": (n, n)}] if n else []
    return {"id": name, "source": "paper", "dataset": dataset, "verdict": verdict, "numbers": numbers, **facts}


@pytest.mark.parametrize(
    ("entries", "verdict"),
    [
        ([], CANNOT),
        ([entry(CANNOT, 0), entry(CANNOT)], CANNOT),
        ([entry(CANNOT, 0), entry(CONFOUNDED)], CONFOUNDED),
        ([entry(CONFOUNDED, 9), entry(UNDECIDED)], UNDECIDED),
        ([entry(CONFOUNDED, 9), entry(REPRODUCED)], REPRODUCED),  # a study with a broken premise does not count
        ([entry(UNDECIDED), entry(NOT_REPRODUCED)], NOT_REPRODUCED),  # one of equal power decides
        ([entry(REPRODUCED), entry(REPRODUCED, 5)], REPRODUCED),
        ([entry(REPRODUCED), entry(NOT_REPRODUCED, 6)], compare.MIXED),  # half as many units are enough
        ([entry(REPRODUCED), entry(NOT_REPRODUCED, 7)], NOT_REPRODUCED),
        ([entry(REPRODUCED), entry(NOT_REPRODUCED) | {"numbers": [{"n": (9, 9)}, {"n": (2, 9)}]}], compare.MIXED),
        ([entry(REPRODUCED), entry(UNDECIDED, 7)], UNDECIDED),  # a small study does not overrule a large one
    ],
)
def test_the_overall_verdict_follows_from_the_rule(entries, verdict: str) -> None:
    assert compare.overall(entries) == compare.overall(entries[::-1]) == verdict


def study(name: str, claims: list[dict[str, Any]], *rows: examples.Row, hardware: str = "CPU") -> FinishedStudy:
    """Return a study whose records have a corpus and these rows."""
    records = examples.records_of(rows or [("softmax", "test_ppl", "", [50.0] * 3)])
    return FinishedStudy(name, name, name.title(), hardware, {}, claims, records)


def test_columns_are_corpora_that_test_something_and_what_needs_no_corpus_spans_them() -> None:
    place = examples.CORPUS
    own = [
        entry(UNDECIDED, dataset=place),
        entry(CANNOT, 0, "k-helps", place),
        entry(REPRODUCED, 5, "rebuilding", "synthetic"),
    ]
    archived = [entry(REPRODUCED, dataset=place), entry(REPRODUCED, 5, "not-of-this-study", place)]
    fits = [entry(NOT_REPRODUCED, 5, "rebuilding", "synthetic")]
    silent = [entry(CANNOT, 0, dataset=place)]
    studies = [study("own", own), study("archived", archived), study("fits", fits), study("silent", silent)]
    found = compare.matrix(studies, {"paper": "A paper"})
    assert [(group["study"], len(group["places"])) for group in found["groups"]] == [
        ("own", 1), ("archived", 1), ("fits", 1)
    ]  # fmt: skip
    rows = {row["id"]: row for part in found["parts"] for row in part["rows"]}
    assert {name: row["overall"] for name, row in rows.items()} == {
        "mos-better": REPRODUCED, "k-helps": CANNOT, "rebuilding": compare.MIXED
    }  # fmt: skip
    assert all(sum(cell["span"] for cell in row["cells"]) == 3 for row in rows.values())
    assert dict(found["counts"]) == {REPRODUCED: 1, compare.MIXED: 1, CANNOT: 1}
    assert [cell["is_own"] for cell in rows["mos-better"]["cells"]] == [True, False, False]


@pytest.fixture
def planned(tmp_path: Path) -> Study:
    return fake.load(tmp_path)


def test_heads_are_compared_with_the_softmax_at_its_size_where_there_is_such_a_model(planned: Study) -> None:
    levels = {"softmax": 50.0, "gss": 50.1, "mos": 40.0, "mos-equal": 45.0, "moc": 60.0}
    rows = [(model, "test_ppl", "", [x, 1.01 * x, 0.99 * x]) for model, x in levels.items()]
    rows += [(model, "parameters", "", [{"moc": 1.2e6, "gss": 0.8e6}.get(model, 1e6)] * 3) for model in levels]
    times = {"softmax": [1.0, 1.1, 0.9], "gss": [1.3, 1.5, 1.6]}
    rows += [(model, "sec_per_epoch", "", own) for model, own in times.items()]
    rows += [(model, "unigram_ppl", "", [60.0] * 3) for model in levels]
    single = [(model, "test_ppl", "", [x]) for model, x in {"softmax": 80.0, "gss": 40.0}.items()]
    alone = study("none", [], ("mos", "test_ppl", "", [50.0] * 3))
    table = compare.head_table([study("own", [], *rows), study("one", [], *single), alone], planned)
    assert [column["study"] for column in table["columns"]] == ["own", "one"]
    cells = {row["label"]: row["cells"] for row in table["rows"]}
    assert list(cells) == ["Softmax", "GSS", "MoC", "MoS"]
    assert cells["MoS"][0]["value"] == "−10.0\u00a0%" and cells["MoS"][0]["sign"] == -1 and not cells["MoS"][1]
    assert cells["MoC"][0]["sign"] == 1 and cells["MoC"][0]["size"] == "1.20" and cells["MoC"][0]["unlearned"] == 3
    slower = stats.ttest_ind(np.log(times["gss"]), np.log(times["softmax"]), equal_var=False).confidence_interval()
    assert table["rows"][1]["first"]["least_time"] == f"{np.exp(slower.low):.2f}"
    assert cells["GSS"][0]["size"] == "0.80"
    assert cells["GSS"][0]["sign"] == 0 and cells["GSS"][1]["value"] == "−50.0\u00a0%"
    assert not cells["GSS"][1]["interval"] and cells["Softmax"][1]["value"] == "80.00"
    logs = np.log([[45, 45.45, 44.55], [50, 50.5, 49.5]])
    low, high = stats.ttest_ind(*logs, equal_var=False).confidence_interval()
    assert cells["MoS"][0]["interval"] == f"−{-100 * np.expm1(low):.1f} to −{-100 * np.expm1(high):.1f}"
    assert compare.head_table([alone], planned) is None and table["rows"][3]["gain"] == "10.0"
    twice = compare.head_table([study("own", [], *rows), study("again", [], *rows)], planned)  # on one corpus
    assert [row["compared"] for row in twice["rows"]] == [1] * 4 and twice["rows"][3]["lower"] == 1


def test_a_synthetic_language_gives_no_recommendation_beside_natural_text(planned: Study) -> None:
    def trained(name: str, softmax: float, *more: examples.Row) -> FinishedStudy:
        levels = {"softmax": softmax, "mos": 40.0}.items()
        made = study(name, [], *((model, "test_ppl", "", [x, 1.01 * x, 0.99 * x]) for model, x in levels),
                     *((model, "parameters", "", [1e6] * 3) for model, _ in levels), *more)  # fmt: skip
        frames = (made.records.rows.assign(dataset=name), made.records.states.assign(dataset=name))
        return dataclasses.replace(made, records=Records(*frames))

    language = trained(
        "language", 50.0, ("softmax", "law_test_ppl", "", [30.0] * 3), ("mos", "unigram_ppl", "", [41.0] * 3)
    )
    studies = ([language, trained("text", 40.1)], [language])
    both, alone = (compare.head_table(own, planned)["rows"][1] for own in studies)
    counts = [(row["lower"], row["compared"], row["text"], row["unlearned"]) for row in (both, alone)]
    assert counts == [(0, 1, " on natural text", 0), (1, 1, "", 3)]
    assert [cell["sign"] for cell in both["cells"]] == [0, -1]  # the language is shown nevertheless, last


@pytest.mark.parametrize(
    ("lower", "higher", "unlearned", "sizes", "expected"),
    [
        (2, 1, 0, {}, "mixed"),
        (1, 0, 1, {}, "better"),
        (0, 1, 0, {}, "worse"),
        (0, 0, 1, {}, "fragile"),
        (0, 1, 1, {}, "fragile"),  # a run that failed says more of its training than of the head
        (0, 0, 0, {"size": 1.04, "time": 1.6, "least_time": 0.9}, "free"),  # a time that may be the softmax's
        (0, 0, 0, {"size": 1.0, "time": 1.6, "least_time": 1.4}, "unproven"),
        (0, 0, 0, {"size": 1.2, "time": None, "least_time": None, "memory": 1.0}, "unproven"),
        (0, 0, 0, {"size": 1.0, "least_time": 0.9, "memory": 1.6}, "unproven"),
    ],
)
def test_a_recommendation_follows_from_the_rule(lower, higher, unlearned, sizes, expected) -> None:
    assert compare.advice({"lower": lower, "higher": higher, "unlearned": unlearned}, sizes) == expected


def test_memory_is_relative_to_the_benchmarked_softmax() -> None:
    memory = compare.memory()
    assert memory["mos"] > memory["moc"] > memory["softmax"] == 1
    assert memory["lms-plif-frozen"] == memory["lms-plif"] and memory["ss"] == memory["sigsoftmax"]
