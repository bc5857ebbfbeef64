"""The overview figure at the top of the report."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import fake_results as fake
import pytest
from softmax_bottleneck.records import collect
from softmax_bottleneck.report import source, views
from softmax_bottleneck.report.views.perplexity import overview_experiment
from softmax_bottleneck.store import artefacts


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    text = fake.showing("known-truth: {models: all}").replace(
        "  moc: {head: moc}\n",
        "  moc: {head: moc}\n  mos-equal: {head: {name: mos, components: 2, dropout_latent: 0}}\n",
    )
    study = fake.load(tmp_path, text)
    fake.write_all(study)
    return study


def test_the_overview_shows_the_means_of_the_main_models(study) -> None:
    drawn = views.build(study, overview_experiment(study), collect.collect(study))
    rows = {row["model"]: row for row in csv.DictReader(io.StringIO(drawn.csv))}
    assert list(rows) == list(study.labels)
    for model in ("softmax", "mos-equal"):
        values = [fake.perplexities(run)["test_ppl"] for run in study.needed if run.model == model]
        assert float(rows[model]["test_ppl"]) == pytest.approx(sum(values) / 3, rel=1e-7)


def test_models_of_one_name_show_their_keys(study) -> None:
    twice = replace(study, labels=study.labels | {"ss": "Softmax"})
    assert [source.label(twice, model) for model in ("softmax", "ss", "gss")] == ["Softmax", "Softmax (ss)", "GSS"]
