"""The tables of README.md and docs/results.md: equal to the archived runs, and written by docs/draw_results.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import fake_results as fake
import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collect
from softmax_bottleneck.report import archive
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.training import check

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import draw_results  # noqa: E402

RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
PARAMETERS, PPL, RANK = 0, 1, 2  # columns
NUMBER = re.compile(r"(\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?")


def rows_of(text: str, study: str = "demo") -> dict[str, list[tuple[float, float]]]:
    """Return head -> (mean, deviation) of every column of the table between a study's markers."""
    inside = text.split(draw_results.begin(study))[1].split(draw_results.END)[0]
    lines = [line.strip("| ").split(" | ") for line in inside.splitlines() if re.match(r"\| (?!head|---)", line)]
    found = {}
    for name, *cells in lines:
        matches = [NUMBER.fullmatch(cell) for cell in cells]
        assert all(matches), (name, cells)
        found[name] = [(float(m[1]), float(m[2] or 0)) for m in matches if m]
    return found


def archived(name: str) -> archive.ArchivedRun:
    return next(run for run in archive.archived_runs() if run.name == f"ptb-words-{name}")


def test_the_results_of_the_demonstration_are_possible() -> None:
    rows = rows_of(RESULTS)
    assert set(rows) >= {"Softmax", "SigSoftmax", "GSS", "LMS-PLIF", "MoC", "MoS"}
    assert rows["MoC"][RANK][0] == rows["Softmax"][RANK][0] < rows["MoS"][RANK][0]
    bound = float(re.search(r"has perplexity ([\d.]+)", RESULTS)[1])
    assert bound < min(cells[PPL][0] for cells in rows.values())
    assert draw_results.IMAGE in RESULTS and draw_results.PICTURE.stat().st_size < 300_000


@pytest.mark.parametrize("name", ["softmax", "ss", "gss", "lms-plif", "lms-plif-frozen", "moc", "mos", "mos-equal"])
def test_the_results_are_those_of_the_archived_runs(name: str) -> None:
    """Size, perplexity, ranks after the first and the last epoch at d = 64; perplexity and rank at the other widths."""
    run = archived(name)
    first, last = (next(line for line in run.epoch_ranks if line["epoch"] == n)["rank_press"] for n in (1, 10))
    assert last == run.values["rank_press"]
    size, ppl = run.values["params_m"], run.values["test_ppl"]
    assert f"| {run.label} | {size:.2f} | {ppl:.2f} | {first:,} | {last:,} |\n" in RESULTS
    if name in ("softmax", "gss", "lms-plif", "mos-equal"):
        runs = (archived(f"{name}-32"), run, archived(f"{name}-100"))
        shown = [f"{own.values['test_ppl']:.2f}, {own.values['rank_press']:,.0f}" for own in runs]
        assert f"| {run.label} | {' | '.join(shown)} |\n" in RESULTS


def test_the_changes_in_the_readme_follow_from_the_results() -> None:
    """Every percentage of the table of heads, from the small corpora's table and the archived runs."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tables = RESULTS.split(draw_results.begin("ptb-cpu"))[1].split(draw_results.END)[0].split("WikiText-2, small: mean")
    small = [rows_of(f"{draw_results.begin('ptb-cpu')}{table}{draw_results.END}", "ptb-cpu") for table in tables]
    heads = {"ss": "SigSoftmax", "gss": "GSS", "lms-plif": "LMS-PLIF", "moc": "MoC", "mos": "MoS"}
    for name, label in (heads | {"mos-equal": "MoS, equal parameters"}).items():
        ratios = [rows[label][PPL][0] / rows["Softmax"][PPL][0] for rows in small]
        sizes = [rows[label][PARAMETERS][0] / rows["Softmax"][PARAMETERS][0] for rows in small]
        run, softmax = archived(name).values, archived("softmax").values
        ratios.append(run["test_ppl"] / softmax["test_ppl"])
        sizes.append(run["parameters"] / softmax["parameters"])
        shown = label.replace("equal", "about equal")
        line = re.search(rf"^\| {shown} \| (.*) \|$", text, re.MULTILINE)[1].split(" | ")
        more = ", ".join(f"{100 * size - 100:.0f}" for size in sizes) + " %"
        assert line[1:4] == [f"{100 * ratio - 100:+.1f} %".replace("-", "−") for ratio in ratios]
        assert line[0] == ("none" if max(sizes) == 1 else more)
        assert line[4] == f"{run['rank_press']:,.0f}"


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
    assert "perplexity 29.00" in text and "rank 102" in text
    assert draw_results.write(study, collect.collect(study), text) == text


def test_a_page_without_its_markers_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path)
    with pytest.raises(ValueError, match=r"docs/results.md has no line <!-- results of fake"):
        draw_results.write(study, collect.collect(study), "nothing here")


def test_the_runs_and_hours_of_the_full_study_are_those_of_its_plan() -> None:
    study = config.load_study(ROOT / "config" / "paper.yaml")
    hours = sum(cost.gpu_h for _, cost in check.costs(study).values())
    for page in (ROOT / "docs" / "running.md", ROOT / "config" / "README.md"):
        text = page.read_text("utf-8")
        runs, stated = re.search(r"full size: ([\d,]+) runs \| about ([\d,]+) GPU hours", text).groups()
        assert int(runs.replace(",", "")) == len(study.needed), page
        assert float(stated.replace(",", "")) == pytest.approx(hours, rel=0.05), page


def test_the_table_of_heads_is_that_of_the_archives() -> None:
    assert draw_results.table_of_heads(RESULTS) == RESULTS
    for study in draw_results.archive.load_all():
        for dataset in study.datasets:
            values = [*study.records.values(dataset, "softmax", "test_ppl").values()]
            assert not values or f"{sum(values) / len(values):.2f}" in RESULTS.split(draw_results.begin("heads"))[1]
