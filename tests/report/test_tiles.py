"""The top of the page: tiles with intervals against margins, states in words, and the overview figure."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import fake_results as fake
import numpy as np
import pytest
from softmax_bottleneck.records import collect
from softmax_bottleneck.report import claims, figures, render, tiles
from softmax_bottleneck.report.claims.rules import CANNOT, REPRODUCED, UNDECIDED, Number
from softmax_bottleneck.report.claims.verdict import Code, Entry, Finding
from softmax_bottleneck.report.figures import overview
from softmax_bottleneck.store import artefacts

NUMBER = Number("a difference", "%", -3.0, (None, 0.0), (None, -0.5), (3, 3), -4.0, -2.0)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    shown = ("known-truth: {models: all}", "parthiban2021-table2: {models: all}", "merity2017-ranks:")
    text = fake.showing(*shown).replace(
        "  moc: {head: moc}\n",
        "  moc: {head: moc}\n  mos-equal: {head: {name: mos, components: 2, dropout_latent: 0}}\n",
    )
    study = fake.load(tmp_path, text)
    fake.write_all(study)
    return study


def test_a_bar_keeps_the_order_of_its_numbers_and_stays_on_its_axis() -> None:
    bar = tiles.bar(NUMBER)
    start, width = bar["interval"]
    margin, end_of_claim = 100 - bar["fails"][0][1], bar["holds"][1]
    assert 0 < start < bar["value"] < start + width < margin < end_of_claim < 100
    assert bar["holds"][0] == 0 and bar["fails"][0][0] == margin
    assert (bar["value"] - start) == pytest.approx(width / 2, abs=0.2)  # −3 is the middle of −4 to −2
    assert tiles.bar(replace(NUMBER, value=None)) is None


def test_ratios_lie_on_a_log_axis() -> None:
    bar = tiles.bar(Number("a ratio", "×", 4.0, (2.0, None), (2.0, None), (3, 3), 1.0, 16.0))
    assert bar["value"] - bar["interval"][0] == pytest.approx(bar["interval"][1] / 2, abs=0.2)


@pytest.mark.parametrize(
    ("verdict", "code", "state"),
    [
        (REPRODUCED, None, REPRODUCED),
        (UNDECIDED, Code.TOO_FEW, tiles.UNDERPOWERED),
        (UNDECIDED, Code.RUNS, tiles.UNDERPOWERED),
        (UNDECIDED, Code.UNSTABLE, tiles.UNSTABLE),
        (CANNOT, Code.NO_MODEL, "no runs"),
        (CANNOT, Code.ALL_DIVERGED, "diverged"),
        (CANNOT, Code.CEILING, "ceiling"),
        (CANNOT, Code.STEP_SIZE, tiles.UNMET),
    ],
)
def test_a_state_follows_from_verdict_and_code(verdict: str, code: Code | None, state: str) -> None:
    entry = Entry(claims.CLAIMS[0], "x", verdict, Finding(code, {}) if code else None)
    assert tiles.state(entry) == state


def test_every_claim_has_one_tile(study) -> None:
    ledger = claims.ledger(collect.collect(study), claims.of_study(study))
    parts = tiles.strip(ledger, {"truth": "The only corpus"})
    shown = [tile for part in parts for tile in part["tiles"]]
    assert not any(tile["place"] for tile in shown)
    assert sorted(tile["claim"] for tile in shown) == sorted(f"claim-{e.dataset}-{e.claim.id}" for e in ledger)
    assert {part["verdict"]: part["count"] for part in parts} == {v: n for v, n in claims.counts(ledger).items() if n}
    page = fake.page(study)
    assert all(f'href="#{tile["claim"]}"' in page for tile in shown)
    (corpus,) = study.datasets
    several = tiles.strip(ledger, {corpus: "This one", "other": "Another"})
    places = {tile["claim"]: tile["place"] for part in several for tile in part["tiles"]}
    assert {place for claim, place in places.items() if claim.startswith(f"claim-{corpus}-")} == {"This one"}


def test_the_overview_shows_the_means_of_the_main_models(study) -> None:
    drawn = figures.build(study, overview.experiment(study), collect.collect(study))
    rows = {row["model"]: row for row in csv.DictReader(io.StringIO(drawn.csv))}
    assert list(rows) == list(study.labels)
    for model in ("softmax", "mos-equal"):
        values = [fake.perplexities(run)["test_ppl"] for run in study.needed if run.model == model]
        assert float(rows[model]["test_ppl"]) == pytest.approx(sum(values) / 3, rel=1e-7)
    sizes = {model: float(row["parameters"]) for model, row in rows.items()}
    alike = [m for m in ("moc", "mos", "mos-equal") if abs(sizes[m] / sizes["softmax"] - 1) <= overview.ALIKE]
    assert ("are joined to it" in drawn.note) == bool(alike)


def test_labels_of_one_column_do_not_overlap() -> None:
    heights = overview._spread(np.array([5.0, 5.0, 5.1, 9.9]), 1.0, 0.0, 10.0)
    gaps = [after - before for before, after in pairwise(heights)]
    assert min(gaps) > 0.999 and heights[0] >= 0.5 and heights[-1] <= 9.5


def test_models_of_one_name_show_their_keys(study) -> None:
    twice = replace(study, labels=study.labels | {"ss": "Softmax"})
    assert [render.label(twice, model) for model in ("softmax", "ss", "gss")] == ["Softmax", "Softmax (ss)", "GSS"]
