"""The findings in README.md: written by docs/draw_results.py from records and ledger."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import fake_results as fake
import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collect
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.training import check

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import draw_results  # noqa: E402

PPL, RANK = 1, 2  # columns
NUMBER = re.compile(r"(\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?")


def rows_of(text: str, study: str = "demo") -> dict[str, list[tuple[float, float]]]:
    """Head -> (mean, deviation) of every column of the table between the markers."""
    inside = text.split(draw_results.begin(study))[1].split(draw_results.END)[0]
    lines = [line.strip("| ").split(" | ") for line in inside.splitlines() if re.match(r"\| (?!head|---)", line)]
    found = {}
    for name, *cells in lines:
        matches = [NUMBER.fullmatch(cell) for cell in cells]
        assert all(matches), (name, cells)
        found[name] = [(float(m[1]), float(m[2] or 0)) for m in matches if m]
    return found


def test_what_the_readme_says_of_the_demonstration_is_possible() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = rows_of(text)
    assert set(rows) >= {"Softmax", "SigSoftmax", "GSS", "LMS-PLIF", "MoC", "MoS"}
    assert rows["MoC"][RANK][0] == rows["Softmax"][RANK][0] < rows["MoS"][RANK][0]
    bound = float(re.search(r"expected perplexity is ([\d.]+)", text)[1])
    assert bound < min(cells[PPL][0] for cells in rows.values())
    assert draw_results.IMAGE in text and draw_results.PICTURE.stat().st_size < 300_000


def test_what_the_readme_says_of_penn_treebank_is_possible() -> None:
    rows = rows_of((ROOT / "README.md").read_text(encoding="utf-8"), "ptb-cpu")
    width = config.load_study(ROOT / "config" / "ptb-cpu.yaml").needed[0].body.embedding_size
    assert rows["Softmax"][RANK][0] <= width + 2 < rows["MoS"][RANK][0] <= 2000


def test_the_table_is_made_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    study = fake.load(tmp_path, fake.STUDY.replace("study: fake", "study: demo"))
    fake.write_all(study)
    before = f"# Title\n\n{draw_results.begin('demo')}\nold\n{draw_results.END}\nrest\n"
    text = draw_results.write(study, collect.collect(study), before)
    assert text.startswith("# Title\n") and text.endswith(f"{draw_results.END}\nrest\n") and "old" not in text
    rows = rows_of(text)
    assert len(rows) == 6
    for model in ("softmax", "mos"):
        values = [fake.perplexities(run)["test_ppl"] for run in study.needed if run.model == model]
        assert rows[study.labels[model]][PPL][0] == pytest.approx(sum(values) / 3, abs=0.005)
    assert "The law’s expected perplexity is 29.00, and the rank of its log-probabilities is 102." in text
    assert draw_results.write(study, collect.collect(study), text) == text


def test_a_readme_without_its_markers_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path)
    with pytest.raises(ValueError, match=r"README.md has no line <!-- results of fake"):
        draw_results.write(study, collect.collect(study), "nothing here")


def test_the_runs_and_hours_of_the_full_study_are_those_of_its_plan() -> None:
    study = config.load_study(ROOT / "config" / "paper.yaml")
    hours = sum(cost.gpu_h for _, cost in check.costs(study).values())
    for page in (ROOT / "README.md", ROOT / "config" / "README.md"):
        runs, said = re.search(
            r"full size: ([\d,]+) runs \| about ([\d,]+) GPU hours", page.read_text("utf-8")
        ).groups()
        assert int(runs.replace(",", "")) == len(study.needed), page
        assert float(said.replace(",", "")) == pytest.approx(hours, rel=0.05), page


def test_what_full_size_leaves_out_is_said() -> None:
    """The second stage of the search, of which nothing is trained, and the size of the matrix that is rebuilt."""
    study = config.load_study(ROOT / "config" / "paper.yaml")
    stages = [study.searches[f"{name}-fair-stage2"] for name in ("mos", "softmax")]
    (rebuilt,) = (one.options["size"] for one in study.experiments if one.id == "parthiban2021-sm-table14")
    assert all(stage.members == () for stage in stages)
    runs = f"SM Table 8: {len(stages)} x {stages[0].size:,} runs)"
    said = f"{runs} and rebuilds {rebuilt:,} of SM Table 14's 10,000 contexts"
    assert said in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
