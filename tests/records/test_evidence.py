"""Runs measured elsewhere: from one checkout into the report of another, never into a mean; bad files are refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import fake_results as fake
import numpy as np
import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.records import collect, evidence, records
from softmax_bottleneck.report import render
from softmax_bottleneck.report.views import published_size
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import ROOT, Store

ORIGIN = "<b>A. Name</b>, 2026"
KEPT = sorted((ROOT / "report" / "evidence").glob("*.json"))


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> config.Study:
    """The made-up study, two of its seeds done, with an empty evidence folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(evidence, "FOLDER", tmp_path / "evidence")
    evidence.FOLDER.mkdir()
    loaded = fake.load(tmp_path)
    for run in loaded.needed:
        fake.write_run(run)
    return loaded


def carried(study: config.Study, model: str = "gss", seed: int = 3) -> dict[str, Any]:
    """A run as evidence, taken away from the study's own results."""
    run = next(run for run in study.needed if (run.model, run.seed) == (model, seed))
    fake.write_epoch_ranks(run)
    text = collect.evidence_of(study, run.path, ORIGIN)
    for path in Store().run_folder(run.path).iterdir():
        path.unlink()
    (evidence.FOLDER / f"{model}-{seed}.json").write_text(text, encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def test_a_carried_run_has_its_numbers_epochs_and_provenance(study: config.Study) -> None:
    run = next(run for run in study.needed if (run.model, run.seed) == ("gss", 3))
    before = artefacts.read_npz(Store().run_folder(run.path) / "spectrum.npz")
    content = carried(study)
    numbers = {row["metric"]: row["value"] for row in content["rows"] if not row["condition"]}
    assert numbers["test_ppl"] == fake.perplexities(run)["test_ppl"] and numbers["rank_press"] == fake.rank_of(run)
    (whole_K,) = before.values()
    assert all(sigma == whole_K[index - 1] for index, sigma in content["spectrum"])
    last = run.body.embedding_size + 2  # of a softmax
    assert {last, last + 1, fake.rank_of(run), fake.rank_of(run) + 1} <= {index for index, _ in content["spectrum"]}
    assert [line["epoch"] for line in content["history"]] == list(range(1, 11))
    assert content["run"]["run_id"] == run.run_id and content["provenance"]["hardware"]["cpu"] == "Fake CPU"


@pytest.mark.fault("G10")
def test_every_report_shows_it_escaped_with_its_numbers_and_curves(study: config.Study) -> None:
    """Also if its corpus or model is none of the study's; a difference needs the published setting."""
    content = carried(study)
    for key, value in (("dataset", "ptb"), ("model", "unheard-of")):
        other = content | {"run": content["run"] | {key: value}}
        (evidence.FOLDER / f"{key}.json").write_text(json.dumps(other), encoding="utf-8")
    folder = study.store.study_folder(study.name)
    found = collect.collect(study)
    records.save(found, folder)
    render.render(study, folder)
    page = artefacts.read_text(folder / "tables" / "published-size.html")
    assert "<b>A. Name" not in artefacts.read_text(folder / "page.json") and "<b>A. Name" not in page
    lines = records.read_csv(folder / "records.csv")
    archived = lines[lines["source"].str.startswith(f"evidence: {ORIGIN}, cpu AVX512")]
    assert set(archived["seed"]) == {"3"} and "evidence/gss-3.json" in found.parents
    drawn = records.read_csv(folder / "figures" / "published-size-spectra.csv")
    assert set(drawn["model"]) == {"gss", "unheard-of"} and 100 < len(drawn) / 3 < len(content["spectrum"])
    drawn = records.read_csv(folder / "figures" / "published-size-ranks.csv")
    assert list(drawn["rank_press"].astype(float)) == [10.0, 20.0, 30.0, 40.0, 50.0] * 3
    lines = records.read_csv(folder / "tables" / "published-size.csv")
    ppl = next(row["value"] for row in content["rows"] if row["metric"] == "test_ppl")
    shown = lines[lines["metric"] == "test_ppl"]
    assert set(shown["row"]) == {"dataset", "gss-3", "model"} and set(map(float, shown["measured"])) == {ppl}
    own = found.values("truth-demo", "gss", "test_ppl")
    assert set(own) == {1, 2}  # no mean has it


def test_a_run_of_the_study_itself_takes_its_place(study: config.Study) -> None:
    carried(study)
    assert len(collect.collect(study).evidence) == 1
    fake.write_run(next(run for run in study.needed if (run.model, run.seed) == ("gss", 3)))
    assert collect.collect(study).evidence == ()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_is_drawn_of_a_spectrum_is_all_that_can_be_seen(path: Path) -> None:
    """Every kept singular value has a drawn one within two hundredths of a decade, on both axes; none is made up."""
    one = evidence.load(path)
    whole = published_size._relative([one])
    drawn = published_size._apart(whole)
    columns = ["index", published_size.SIGMA]
    points, kept_points = (np.log10(frame[columns].clip(lower=1e-9).to_numpy()) for frame in (whole, drawn))
    apart = np.abs(points[:, None] - kept_points[None]).max(axis=2).min(axis=1)
    assert apart.max() <= 0.02 and len(drawn) < 0.8 * len(whole)
    assert set(map(tuple, drawn.to_numpy())) <= set(map(tuple, whole.to_numpy()))
    assert (drawn.iloc[0] == whole.iloc[0]).all() and (drawn.iloc[-1] == whole.iloc[-1]).all()


def test_a_run_of_another_study_is_refused(study: config.Study, tmp_path: Path) -> None:
    """The same model is in both; the command in the file would make nothing."""
    paper = fake.load(tmp_path, fake.paper_text())
    run = next(run for run in paper.needed if (run.dataset, run.model, run.seed) == ("ptb", "mos", 1001))
    fake.write_run(run)
    assert run.model in study.labels
    with pytest.raises(UserError, match="name the run's study with --study"):
        collect.evidence_of(study, run.path, "elsewhere")


def test_the_command_says_threads_that_the_study_does_not(study: config.Study) -> None:
    """They decide the last bits of every number."""
    run = study.needed[0]
    commands = []
    for threads in (run.threads, run.threads + 1):
        fake.write_run(dataclasses.replace(run, threads=threads))
        commands.append(json.loads(collect.evidence_of(study, run.path, ORIGIN))["command"])
    assert commands[1] == commands[0].replace("--configfile", f"--config threads={run.threads + 1} --configfile")
    assert commands[1] != commands[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"origin": ""}, "origin"),
        ({"rows": []}, "rows"),
        ({"rows": [{"metric": "test_ppl", "value": "low"}]}, "rows.0.value: 'low' is not allowed"),
        ({"surprise": 1}, "unknown key 'surprise'"),
        ({"provenance": {}}, "provenance.hardware, provenance.versions are not set"),
    ],
)
def test_what_does_not_fit_is_refused_by_key(study: config.Study, change: dict[str, Any], words: str) -> None:
    content = carried(study) | change
    path = evidence.FOLDER / "bad.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=f"bad.json.*{words}"):
        evidence.load(path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"origin": NaN}'])
def test_what_is_no_evidence_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"bad\.json"):
        evidence.load(path)


def test_the_command_prints_a_file_that_is_accepted(study: config.Study, capsys: pytest.CaptureFixture[str]) -> None:
    run = study.needed[0]
    asked = ["evidence", "--study", str(study.file), "--origin", "someone", "--run"]
    assert main([*asked, run.path]) == 0
    target = evidence.FOLDER / "printed.json"
    target.write_text(capsys.readouterr().out, encoding="utf-8")
    assert (evidence.load(target).run, evidence.load(target).label) == (run, study.labels[run.model])
    assert main([*asked, run.path.replace("-", "-0")]) == 2


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_is_kept_is_possible_and_whole(path: Path) -> None:
    """A softmax has rank d + 2 at most; a spectrum falls; the last epoch is the planned one."""
    one = evidence.load(path)
    rank, settings = one.values["rank_press", ""], one.run
    assert rank <= one.values["embedding_size", ""] + 2 or settings.head.name not in ("softmax", "moc")
    sigmas = [sigma for _, sigma in one.spectrum]
    assert sigmas == sorted(sigmas, reverse=True) and one.spectrum[0][0] == 1 and sigmas[-1] >= 0
    command, _, target = one.content["command"].partition(" -- ")
    folder = f"results/runs/{settings.dataset}/{settings.model}/{settings.seed}-{one.run_id}"
    assert target in (f"{folder}/rank.json", f"{folder}/measured.json")  # the former before one job measured a run
    assert (ROOT / command.split()[-1]).is_file()
    assert (f" --config threads={settings.threads} " in command) == (settings.threads > 1)
    assert one.content["history"][-1]["epoch"] == settings.schedule.epochs
    assert one.values["test_ppl", ""] < one.values["unigram_ppl", ""]
