"""Studies side by side: the matrix of conclusions, on the terminal, as files, from read-only folders."""

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
from softmax_bottleneck.report import compare, findings
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.claims.rules import CANNOT, CONFOUNDED, NOT_REPRODUCED, REPRODUCED, UNDECIDED
from softmax_bottleneck.report.head_table import head_table
from softmax_bottleneck.report.head_table import memory as memory_of_heads
from softmax_bottleneck.report.side_by_side import side_by_side
from softmax_bottleneck.store import artefacts
from trained_examples import Trained, near
from trained_examples import study as trained

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
    assert main(["compare", "fake", "fewer", "other/results"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown  # no cell is cut in a pipe
    assert "fake: truth-demo" in shown and "other/results/fake: truth-demo" in shown and HARDWARE in shown
    tables = side_by_side(compare.find_studies(["fake", "fewer", "other/results"]))
    heads = tables["Heads"]
    expected = fake.perplexities(next(run for run in fake.load(finished).needed if run.model == "mos"))["test_ppl"]
    for name in ("fake", "fewer", "other/results/fake"):
        assert heads[f"{name}: truth-demo"]["MoS [mos]"].startswith(f"{expected:.2f}")
    assert heads["fewer: truth-demo"]["GSS [gss]"] == "—"
    verdicts = tables["Conclusions"].filter(regex=r"\[not-sufficient\]$", axis=0).iloc[0].tolist()
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


@pytest.mark.parametrize(("entries", "verdict"), [
    ([], CANNOT), ([entry(CANNOT, 0), entry(CANNOT)], CANNOT), ([entry(CANNOT, 0), entry(CONFOUNDED)], CONFOUNDED),
    ([entry(CONFOUNDED, 9), entry(UNDECIDED)], UNDECIDED),
    ([entry(CONFOUNDED, 9), entry(REPRODUCED)], REPRODUCED),  # a study with a broken premise does not count
    ([entry(UNDECIDED), entry(NOT_REPRODUCED)], NOT_REPRODUCED),  # one of equal power decides
    ([entry(REPRODUCED), entry(REPRODUCED, 5)], REPRODUCED),
    ([entry(REPRODUCED), entry(NOT_REPRODUCED, 6)], compare.MIXED),  # half as many units are enough
    ([entry(REPRODUCED), entry(NOT_REPRODUCED, 7)], NOT_REPRODUCED),
    ([entry(REPRODUCED), entry(NOT_REPRODUCED) | {"numbers": [{"n": (9, 9)}, {"n": (2, 9)}]}], compare.MIXED),
    ([entry(REPRODUCED), entry(UNDECIDED, 7)], UNDECIDED),  # a small study does not overrule a large one
])  # fmt: skip
def test_the_overall_verdict_follows_from_the_rule(entries, verdict: str) -> None:
    assert compare.overall(entries) == compare.overall(entries[::-1]) == verdict


def study(name: str, claims: list[dict[str, Any]], *rows: examples.Row, hardware: str = "CPU") -> FinishedStudy:
    """Return a study whose records have a corpus and these rows."""
    records = examples.records_of(rows or [("softmax", "test_ppl", "", [50.0] * 3)])
    return FinishedStudy(name, name, name.title(), hardware, {}, claims, records)


def test_columns_are_corpora_and_have_the_verdicts_of_all_their_studies() -> None:
    place = examples.CORPUS
    own = [entry(UNDECIDED, dataset=place), entry(CANNOT, 0, "k-helps", place),
        entry(REPRODUCED, 5, "rebuilding", "synthetic")]  # fmt: skip
    archived = [entry(REPRODUCED, dataset=place), entry(REPRODUCED, 5, "not-of-this-study", place)]
    again = [entry(NOT_REPRODUCED, dataset=place)]
    fits = [entry(NOT_REPRODUCED, 5, "rebuilding", "synthetic"), entry(CANNOT, 0, "k-helps", place)]
    studies = [study("own", own), study("archived", archived), study("again", again), study("fits", fits)]
    found = compare.matrix(studies, {"paper": "A paper"})
    assert found["columns"] == ["This study", place, compare.SYNTHETIC_TEXTS]
    rows = {row["id"]: row for part in found["parts"] for row in part["rows"]}
    assert {name: (row["overall"], row["cells"]) for name, row in rows.items()} == {
        "mos-better": (compare.MIXED, [UNDECIDED, compare.MIXED, ""]),
        "k-helps": (CANNOT, [CANNOT, "", ""]),
        "rebuilding": (compare.MIXED, [REPRODUCED, "", NOT_REPRODUCED]),
    }
    assert dict(found["counts"]) == {compare.MIXED: 2, CANNOT: 1}
    assert [one["is_own"] for one in rows["mos-better"]["evidence"]] == [True, False, False]


MIXTURE = {"components": 5, "dropout_latent": 0}


def mos(level: float, **more: Any) -> Trained:
    return Trained(head="mos", options=MIXTURE, ppl=near(level), **more)


def test_heads_are_compared_with_the_softmax_in_every_setting() -> None:
    costs = {"parameters": 1.004e6, "sec_per_epoch": 25.0, "rank_press": 3400.0}
    one = trained("one", "ptb", softmax=Trained(ppl=near(50)), mos=mos(45, metrics=costs),
                  gss=Trained(head="gss", options={"c": -1.5, "k": 2.5}, ppl=[49.0]))  # fmt: skip
    two = trained("two", "wt2-small", softmax=Trained(ppl=near(60)), mos=mos(61, width=64))
    table = head_table([one, two])
    assert table["columns"] == ["Ptb, d = 32, 10 epochs"]  # wt2-small has no softmax of MoS's width
    rows = {row["label"]: row for row in table["rows"]}
    assert list(rows) == ["Softmax", "GSS", "MoS"]
    cell = rows["MoS"]["cells"][0]
    ends = stats.ttest_ind(np.log(near(45)), np.log(near(50)), equal_var=False).confidence_interval()
    assert cell["value"] == "−10.0\u00a0%" and cell["sign"] == -1
    assert cell["interval"] == " to ".join(f"−{-100 * np.expm1(end):.1f}" for end in ends)
    assert rows["MoS"]["costs"] | {"effective": ""} == {"size": "1.00", "time": "2.5", "press": "3400", "effective": ""}
    assert not rows["GSS"]["cells"][0]["interval"] and rows["GSS"]["advice"] == "untested"
    assert rows["Softmax"]["cells"][0]["value"] == f"{np.exp(np.log(near(50)).mean()):.2f}"
    assert head_table([trained(mos=mos(50))]) is None


def test_a_recommendation_needs_equal_size_equal_search_and_holms_correction() -> None:
    def advice(*studies: FinishedStudy) -> dict[str, Any]:
        return next(row for row in head_table(studies)["rows"] if row["label"] == "MoS")

    ptb, small, wt2 = (trained(name, name, softmax=Trained(ppl=near(50)), mos=mos(level))
        for name, level in (("ptb", 45), ("ptb-small", 46), ("wt2-small", 53)))  # fmt: skip
    both = advice(ptb, small)
    assert (both["advice"], both["lower"], both["higher"]) == ("better", "Ptb", "")
    assert both["gain"] == "−10.0 to −8.0" and "n = 3" in both["basis"] and "0 of 2" in both["basis"]
    assert advice(ptb, wt2)["advice"] == "mixed" and advice(wt2)["advice"] == "worse"
    assert advice(trained("ptb", "ptb", softmax=Trained(ppl=near(50)), mos=mos(50.1)))["advice"] == "open"
    larger = trained("ptb", "ptb", softmax=Trained(ppl=near(50)), mos=mos(45, metrics={"parameters": 1.02e6}))
    assert advice(larger)["advice"] == "untested"
    searched = trained("more", "ptb", softmax_r10=Trained(ppl=near(52), rate=10))
    assert advice(ptb, searched)["advice"] == "untested"  # only the softmax was tried at two rates


def test_holms_family_is_the_whole_table() -> None:
    base = np.log(near(50))
    level = next(x for x in np.arange(49.9, 48, -0.01)
                 if stats.ttest_ind(np.log(near(x)), base, equal_var=False).pvalue < 0.045)  # fmt: skip
    alone = trained("ptb", "ptb", softmax=Trained(ppl=near(50)), mos=mos(level))
    more = trained("more", "ptb", ss=Trained(head="sigsoftmax", ppl=near(50)))
    kinds = [next(row["advice"] for row in head_table(own)["rows"] if row["label"] == "MoS")
             for own in ([alone], [alone, more])]  # fmt: skip
    assert kinds == ["better", "open"]


def test_a_synthetic_language_gives_no_recommendation_beside_natural_text() -> None:
    language = trained("language", "language", is_synthetic=True, softmax=Trained(ppl=near(50)), mos=mos(40))
    text = trained("text", "text", softmax=Trained(ppl=near(50)), mos=mos(50.1))
    both, alone = (head_table(own) for own in ([language, text], [language]))
    assert [table["rows"][1]["advice"] for table in (both, alone)] == ["open", "better"]
    assert both["tests"] == 1 and [cell["sign"] for cell in both["rows"][1]["cells"]] == [0, -1]  # it is shown, last


def test_memory_is_relative_to_the_benchmarked_softmax() -> None:
    memory = memory_of_heads()
    assert memory["mos"] > memory["moc"] > memory["softmax"] == 1
    assert {head["name"] for head in findings.TEXTS["heads"].values()} <= memory.keys()
