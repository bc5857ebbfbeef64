"""A: kills, crashes and signals, from the command line and from the workflow."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import small
from softmax_bottleneck.jobs import processes, workflow
from softmax_bottleneck.records import collection, records
from softmax_bottleneck.report import contents, page
from softmax_bottleneck.steps.measure import measure
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Study
from tiny_runs import Kill, dies_writing

ROOT = Path(__file__).parents[2]


def command(study: Study, *words: str) -> list[str]:
    return ["train", "--study", str(study.file), "--run", study.needed[0].path, *words]


def folder_of(study: Study) -> Path:
    return Store().run_folder(study.needed[0].path)


def home(study: Study) -> Path:
    return study.store.study_folder(study.name)


MEASURING_FILES = {"evaluate": ("hidden.npz", "topk.json", "measure.json"), "spectrum": ("spectrum.npz", "rank.json"),
    "wordsim": ("wordsim.json",)}  # fmt: skip
LATER_STEPS: dict[str, tuple[Callable[[Study, str], object], tuple[str, ...]]] = {
    **{
        step: (lambda study, path, step=step: measure(study, path, small.quiet, only=step), files)
        for step, files in MEASURING_FILES.items()
    },
    "collect": (lambda study, _: collection.collect_to(study, home(study)), (*records.FILES, "verify.json")),
    "render": (lambda study, _: contents.write(study, home(study)), ("claims.json", "page.json")),
    "report": (lambda study, _: page.write(home(study)), ("index.html",)),
}


@pytest.mark.fault("A12")
@pytest.mark.parametrize("name", LATER_STEPS)
def test_killed_in_a_later_step_only_that_step_is_done_again(study, monkeypatch, name):
    """Killed before each of its files gets its name: no file under a final name is new, and the next call makes all."""
    call, files = LATER_STEPS[name]
    path = study.needed[0].path
    before = small.tree(Path("results"))
    for doomed in files[:1] if name == "render" else sorted({files[0], files[-1]}):
        with monkeypatch.context() as patch:
            dies_writing(patch, doomed)
            with pytest.raises(Kill):
                call(study, path)
        call(study, path)
        assert small.tree(Path("results")) == before


STARTING = """
import os, sys, time
sys.path[:0] = {paths!r}
from softmax_bottleneck.__main__ import main
class Finder:
    def find_spec(self, name, *_):
        if name == "torch":  # the step is still starting
            os.kill({pid}, 9)
            time.sleep(30)
sys.meta_path.insert(0, Finder())
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.fault("A22")
@pytest.mark.parametrize(("step", "is_dead"), [("check", True), ("train", False)])
def test_a_step_whose_workflow_dies_while_it_starts_stops_at_once(begun, monkeypatch, tmp_path, step, is_dead):
    """The workflow dies before the step looks for it, or while the step imports torch; nothing is written."""
    with subprocess.Popen(["sleep", "60"]) as workflow_process:
        pid = workflow_process.pid
        where = f"{pid} {processes.Process.of(pid).started} {processes.pid_namespace_id()}"
        monkeypatch.setenv(workflow.PROCESS_VARIABLE, where)
        if is_dead:
            workflow_process.kill()
            workflow_process.wait()
        script = STARTING.format(paths=[str(ROOT / "workflow")], pid=pid)
        words = command(begun) if step == "train" else [step, "--study", str(begun.file)]
        words = [sys.executable, "-c", script, *words]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
        workflow_process.kill()
    assert ended.returncode == 75, ended.stderr
    assert not folder_of(begun).exists() and not (home(begun) / "check.json").exists()
