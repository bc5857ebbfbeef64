"""The explorer's panels: every point where its number says, and the law's own line in each."""

from __future__ import annotations

from pathlib import Path

import fake_results as fake
import pytest
from softmax_bottleneck.records import collect
from softmax_bottleneck.report import explorer
from softmax_bottleneck.report.figures import plots
from softmax_bottleneck.store import artefacts

LOOKS = plots.styles(["a", "b"])


def test_points_lie_where_their_numbers_say() -> None:
    panel = explorer.Panel("t", "x", {"a": [(1, 10.0), (3, 1000.0)], "b": [(2, 100.0)]}, [(1, 10.0), (3, 10.0)])
    drawn = panel.drawn(LOOKS)
    a, b = drawn["lines"]
    assert a["path"] == f"M0,{explorer.HEIGHT}L{explorer.WIDTH},0"
    assert b["dot"] == (explorer.WIDTH / 2, explorer.HEIGHT / 2)  # the geometric mean, on a log axis
    assert drawn["law"]["path"] == f"M0,{explorer.HEIGHT}L{explorer.WIDTH},{explorer.HEIGHT}"
    assert drawn["y_ticks"] == [(explorer.HEIGHT, "10"), (0, "1,000")]


def test_every_model_is_in_every_panel_and_the_law_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    study = fake.load(tmp_path, fake.STUDY.replace("seeds: [1, 2, 3]", "seeds: [1]"))
    assert explorer.explorer(study, collect.collect(study)) == []
    for run in study.needed:
        fake.write_run(run)
    (corpus,) = explorer.explorer(study, collect.collect(study))
    assert [model["key"] for model in corpus["models"]] == list(study.labels)
    assert [panel["title"] for panel in corpus["panels"]] == [
        *("Validation perplexity", "Singular values, relative", "Rank", "KL from the law (nats)"),
    ]
    for panel in corpus["panels"]:
        assert [line["model"] for line in panel["lines"]] == list(study.labels), panel["title"]
        assert panel["law"] or panel["title"] == "Rank"  # the made-up runs have no ranks of the law
