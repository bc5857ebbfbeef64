"""A search, its choice and its confirmation through Snakemake, killed in each phase."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import small
from softmax_bottleneck import study as config
from softmax_bottleneck.study import Study

STUDY = Path(__file__).parent / "tuned-nano.yaml"
RECORDS = "results/tuned-nano/records.json"  # with --until, Snakemake plans nothing after a choice
STEP = [sys.executable, "-m", "softmax_bottleneck"]
WORDS = [*STEP, "reproduce", "--cores", "1", "--study", "study.yaml", "--", RECORDS]


def killed(condition: Callable[[], bool]) -> None:
    """Start the command, and kill it and all of its processes once the condition holds."""
    process = subprocess.Popen(WORDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, "ended, or waited too long"
        time.sleep(0.01)
    for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ends with its parent
            one.kill()
    process.wait()


@pytest.mark.pipeline
def test_a_search_killed_in_each_phase_ends_with_the_same_choice(finished: Path, place: Path, monkeypatch) -> None:
    """The best of the rates 1 and 8 is an end of the grid; one step beyond it training is worse or diverges."""
    monkeypatch.setattr(os, "environ", os.environ | {"OMP_NUM_THREADS": "1"})
    for name in ("corpora", "tokens"):
        shutil.copytree(finished / "results" / name, place / "results" / name)
    small.write(place)
    shutil.copy(STUDY, "study.yaml")

    def planned() -> Study:
        config.load_dataset.cache_clear()
        return config.load_study(Path("study.yaml"))

    begun = planned()
    (trial, *_), folder = begun.searched, begun.store.run_folder
    killed(lambda: (folder(trial.path) / "done.json").exists())
    killed(lambda: bool(planned().runs))  # chosen: the confirmation begins
    written = {path: path.read_bytes() for path in Path("results/tuned-nano/choices").rglob("*.json")}
    done = subprocess.run(WORDS, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in written} == written
    study = planned()
    chosen = study.tuned[0].choice
    assert chosen and chosen["interior"] and len(chosen["curve"]) > 2  # widened beyond the grid
    ppls = {entry["point"]["schedule.learning_rate"]: entry["valid_ppl"] or float("inf") for entry in chosen["curve"]}
    assert min(ppls, key=ppls.__getitem__) == chosen["chosen"]["schedule.learning_rate"]
    for run in study.searched:  # the choice rests on the runs' own records
        record = json.loads((folder(run.path) / "done.json").read_text(encoding="utf-8"))
        assert (record["status"] == "ok") == (ppls[run.schedule.learning_rate] < float("inf"))
        assert not (folder(run.path) / "measured.json").exists()
    assert {run.schedule.learning_rate for run in study.runs} == {chosen["chosen"]["schedule.learning_rate"]}
    assert all((folder(run.path) / "measured.json").exists() for run in study.runs) and len(study.runs) == 1
