"""The matrix of conclusions: the overall rule, the cells of every study, and the bars of intervals against margins."""

from __future__ import annotations

from typing import Any

import claim_examples as examples
import pytest
from softmax_bottleneck.report import conclusions
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.claims.rules import CANNOT, CONFOUNDED, NOT_REPRODUCED, REPRODUCED, UNDECIDED
from softmax_bottleneck.report.conclusions import MIXED
from softmax_bottleneck.report.report import environment

NUMBER = {"what": "a difference", "text": "−3.0 %", "unit": "%", "value": -3.0, "low": -4.0, "high": -2.0, "n": (3, 3)}


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
        ([entry(REPRODUCED), entry(NOT_REPRODUCED, 6)], MIXED),  # half as many units are enough
        ([entry(REPRODUCED), entry(NOT_REPRODUCED, 7)], NOT_REPRODUCED),
        ([entry(REPRODUCED), entry(UNDECIDED, 7)], UNDECIDED),  # a small study does not overrule a large one
    ],
)
def test_the_overall_verdict_follows_from_the_rule(entries, verdict: str) -> None:
    assert conclusions.overall(entries) == conclusions.overall(entries[::-1]) == verdict


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
    found = conclusions.matrix(studies, {"paper": "A paper"})
    assert [(group["study"], len(group["places"])) for group in found["groups"]] == [
        ("own", 1), ("archived", 1), ("fits", 1)
    ]  # fmt: skip
    rows = {row["id"]: row for part in found["parts"] for row in part["rows"]}
    assert {name: row["overall"] for name, row in rows.items()} == {
        "mos-better": REPRODUCED, "k-helps": CANNOT, "rebuilding": MIXED
    }  # fmt: skip
    assert all(sum(cell["span"] for cell in row["cells"]) == 3 for row in rows.values())
    assert dict(found["counts"]) == {REPRODUCED: 1, MIXED: 1, CANNOT: 1}
    assert [cell["is_own"] for cell in rows["mos-better"]["cells"]] == [True, False, False]


def test_the_page_shows_the_symbol_of_every_verdict() -> None:
    place = examples.CORPUS
    facts: dict[str, Any] = {"premises": []}
    own = [entry(UNDECIDED, dataset=place) | facts, entry(CANNOT, 0, "k-helps", place) | facts]
    found = conclusions.matrix([study("own", own), study("other", [entry(REPRODUCED, dataset=place) | facts])], {})
    html = str(environment().get_template("claims.html.j2").module.matrix(found))
    shown = html.split('id="claim-mos-better"')[1].split("</tr>")[0].split("</details></th>")[-1]
    assert [text.split('"')[0] for text in shown.split('aria-label="')[1:]] == [REPRODUCED, UNDECIDED, REPRODUCED]
    assert 'id="claim-k-helps"' in html.split("no study can test yet")[1]
