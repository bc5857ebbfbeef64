"""The tables of README.md, docs/results.md and docs/evidence.md follow from the archives by docs/draw_results.py."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.report import archive
from softmax_bottleneck.training import feasibility

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import draw_results  # noqa: E402

pytestmark = pytest.mark.usefixtures("shipped")
RESULTS = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("results.md", "evidence.md"))


def archived(name: str) -> archive.ArchivedRun:
    return next(run for run in archive.archived_runs() if run.name.endswith(f"/ptb-words-{name}"))


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


def test_every_file_follows_from_the_archives() -> None:
    """The findings of the README and their figures, and the tables of both pages; no number is typed by hand."""
    for path, text in draw_results.written(archive.load_all()).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make findings`"
    assert len((ROOT / "README.md").read_text(encoding="utf-8")) <= 8000


def test_the_table_is_made_of_the_records() -> None:
    (demo, *_) = archive.find("demo")
    table = RESULTS.split(draw_results.begin("demo"))[1]
    for model in ("softmax", "mos"):
        values = [*demo.records.values("truth-demo", model, "test_ppl").values()]
        label = demo.records.planned("truth-demo", model)["label"].iloc[0]
        shown = re.search(rf"^\| {label} \| [^|]+ \| ([0-9.]+)", table, re.MULTILINE)[1]
        assert float(shown) == pytest.approx(sum(values) / len(values), abs=0.005)


def test_the_runs_and_hours_of_the_full_study_are_those_of_its_plan() -> None:
    study = config.load_study(ROOT / "config" / "paper.yaml")
    hours = sum(cost.gpu_h for _, cost in feasibility.costs(study).values())
    for page in (ROOT / "docs" / "running.md", ROOT / "config" / "README.md"):
        text = page.read_text("utf-8")
        runs, stated = re.search(r"full size: ([\d,]+) runs \| about ([\d,]+) GPU hours", text).groups()
        assert int(runs.replace(",", "")) == len(study.needed), page
        assert float(stated.replace(",", "")) == pytest.approx(hours, rel=0.05), page


def test_falls_of_the_rate_follow_epochs_that_are_no_better() -> None:
    history = [{"valid_ppl": ppl} for ppl in (10.0, 9.0, 9.5, 9.0, 8.0, 8.5)]  # the rate falls after epochs 3, 4 and 6
    run = SimpleNamespace(history=history)
    assert [draw_results.falls(run, epochs) for epochs in (1, 3, 4, 5, 6)] == ["0", "0", "1", "2", "2"]
