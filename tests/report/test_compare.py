"""Studies side by side: on the terminal, as files, from read-only folders."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path

import claim_examples as examples
import fake_results as fake
import pytest
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.store import artefacts

HARDWARE = "cpu AVX512, Fake CPU"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies in results/, the second with three heads; and another results folder, read-only, from elsewhere."""
    folder = tmp_path_factory.mktemp("compare")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(artefacts.os, "fsync", lambda descriptor: None)
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
