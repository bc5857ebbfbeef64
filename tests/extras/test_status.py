"""What a person sees while a study runs: one line, and a page that fills as runs end and disturbs nothing."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import small
from softmax_bottleneck.extras import partial, reproduce, status
from softmax_bottleneck.jobs import outcomes
from softmax_bottleneck.jobs.outcomes import Attempt
from softmax_bottleneck.study import Study

DEAD = 2**22 + 1  # above any process number of Linux
NOW = 1000.0


def ended(step: str, what: str, began: float, seconds: float, code: int = 0) -> Attempt:
    return Attempt(step, what, DEAD, began, began + seconds, code, "")


def at_work(step: str, what: str, began: float) -> Attempt:
    return Attempt(step, what, os.getpid(), began)


def test_every_step_that_is_done_leaves_the_list(study: Study) -> None:
    steps = status.planned_steps(study)
    assert {step for step, _ in steps} == {"train", "measure"} and len(steps) == 8
    assert all(file.exists() for file in steps.values())
    steps["measure", study.needed[0].path].unlink()
    left = [step for step, file in steps.items() if not file.exists()]
    assert status.runs_done(study, left) == 3 and status.line(study, left, [], NOW) == "3 of 4 runs"


def test_a_line_names_what_is_at_work_and_how_far_it_is(begun: Study) -> None:
    first, second = begun.needed[:2]
    log = begun.store.run_folder(first.path) / "epochs.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"epoch": 1, "wall_s": 2.0}\n{"epoch": 2, "wa', encoding="utf-8")
    tried = [at_work("train", first.path, 990.0), at_work("measure", second.path, 990.0), at_work("check", "", 990.0)]
    killed = Attempt("train", begun.needed[2].path, DEAD, 980.0)
    left = list(status.planned_steps(begun))
    words = "0 of 4 runs; train softmax/1 epoch 2 of 3, measure softmax/2, check"
    assert status.line(begun, left, [*tried, killed], NOW) == words
    many = [at_work("fit", f"plan/laws/{seed}-0", 990.0) for seed in range(9)]
    assert status.line(begun, left, many, NOW) == "0 of 4 runs; fit laws/0, fit laws/1, fit laws/2, 6 more"


def test_the_time_left_follows_from_the_steps_of_this_call() -> None:
    tried = [ended("measure", "a", 950.0, 10.0), ended("check", "", 900.0, 50.0), ended("train", "x", 900.0, 9.0, 2)]
    left = [("measure", "b"), ("fit", "f")]
    # 10, and 30 (as steps usually take) are left; 60 were done in 100 seconds
    assert status.seconds_left(left, tried, {}, NOW) == pytest.approx(40 * 100 / 60)
    busy = [*tried, at_work("fit", "f", 980.0)]
    assert status.seconds_left(left, busy, {}, NOW) == pytest.approx(20 * 100 / 80)
    assert status.seconds_left([], tried, {}, NOW) is None and status.seconds_left(left, [], {}, NOW) is None


def test_the_time_left_learns_from_the_epochs_of_runs_at_work_and_of_earlier_calls() -> None:
    first, resumed = status.Training(1.0, 10, [20.0]), status.Training(1.0, 10, [10.0] * 7)
    trainings = {"a": first, "b": resumed, "c": status.Training(4.0, 10, [])}
    tried = [ended("tokenise", "d", 990.0, 1.0), at_work("train", "a", 975.0), at_work("train", "b", 995.0)]
    left = [("train", "a"), ("train", "b"), ("train", "c"), ("measure", "a")]
    pace = (20 + 70) / 0.8  # seconds for what was taken to be an hour
    expected_s = pace * (0.9 + 0.3 + 4.0) + 1.0
    assert status.seconds_left(left, tried, trainings, NOW) == pytest.approx(expected_s / (1 + 25 + 5) * 25)
    none_logged = {"c": status.Training(4.0, 10, [])}
    assert status.seconds_left([("train", "c")], [at_work("train", "c", 990.0)], none_logged, NOW) is None


def test_attempts_are_read_back_and_broken_lines_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "outcomes.jsonl"
    monkeypatch.setenv(outcomes.VARIABLE, str(log))
    outcomes.note("train", "a")
    outcomes.note("train", "a", 0)
    outcomes.note("train", "b")
    log.write_text(log.read_text(encoding="utf-8") + '{"step": "cut', encoding="utf-8")
    one, other = outcomes.attempts(log)
    assert one.code == 0 and not one.works and 0 <= one.lasted_s(0.0) < 60
    assert other.works and other.failure == (75, f"train b: {outcomes.KILLED}")


# --- the page --------------------------------------------------------------------------------------------------------
class Pages(partial.LivePage):
    """Whose command is another one."""

    def __init__(self, study: Study, *command: str) -> None:
        super().__init__(study, [], io.BytesIO())
        self.call, self.log, self.due = list(command), None, 0.0  # type: ignore[assignment]

    def made(self, runs_done: int, said: list[str]) -> bool:
        """Whether a page was begun; waits for its end."""
        self.look(runs_done, said.append)
        begun = self.child is not None
        while self.child is not None:
            time.sleep(0.01)
            self.look(runs_done, said.append)
        return begun


@pytest.mark.fault("A21")
def test_a_live_page_says_how_far_it_is_and_touches_nothing_else(study: Study) -> None:
    home = study.store.study_folder(study.name)
    (study.store.run_folder(study.needed[0].path) / "rank.json").unlink()
    before = small.tree(Path("results"))
    page = partial.partial(study, reload_s=30).read_text(encoding="utf-8")
    assert '<meta http-equiv="refresh" content="30">' in page and "<b>3 of 4 runs</b> so far" in page
    assert "refresh" not in partial.partial(study).read_text(encoding="utf-8")
    after = {name: digest for name, digest in small.tree(Path("results")).items() if "small/partial/" not in name}
    assert after == before
    partial.remove(study, was_live=True)
    assert "url=../../report/index.html" in (home / "partial" / partial.PAGE).read_text(encoding="utf-8")
    partial.remove(study, was_live=False)
    assert not (home / "partial").exists()


@pytest.mark.fault("A21")
def test_a_page_is_made_when_a_run_ended_and_not_often(study: Study) -> None:
    said: list[str] = []
    pages = Pages(study, sys.executable, "-c", "sum(range(3000000))")
    assert not pages.made(0, said) and pages.made(1, said) and pages.is_there and len(said) == 1
    pause_s = pages.due - time.monotonic()
    assert pause_s > 0.2 and not pages.made(2, said)  # twenty times the CPU time that it took
    pages.due = 0.0
    assert not pages.made(1, said) and pages.made(2, said) and len(said) == 1


@pytest.mark.fault("A21")
def test_a_page_that_fails_or_hangs_fails_nothing(study: Study) -> None:
    said: list[str] = []
    assert Pages(study, sys.executable, "-c", "raise SystemExit(2)").made(1, said) and said == []
    pages = Pages(study, "sleep", "100")
    pages.look(1, said.append)
    pages.stop()
    assert pages.child is not None and pages.child.returncode == -9 and said == []


def test_without_a_terminal_a_line_comes_now_and_then(study: Study, capsys: Any, monkeypatch: Any) -> None:
    said: list[str] = []
    pages = Pages(study, "true")
    with status.Display(study, Path("none.jsonl"), pages, said.append, on_terminal=False) as shown:
        shown.look()
        assert said == []
        shown.looked = shown.printed = time.monotonic() - 31
        pages.due = float("inf")
        shown.look()
        shown.look()
    assert said == ["4 of 4 runs"] and capsys.readouterr().err == ""
    with status.Display(study, Path("none.jsonl"), pages, said.append, on_terminal=True) as shown:
        shown.looked = 0.0
        shown.look()
        shown.say("words")
    assert capsys.readouterr().err == f"{status.CLEAR}4 of 4 runs{status.CLEAR}{status.CLEAR}" and said[1:] == ["words"]


def test_a_step_that_was_killed_is_named_once_while_the_others_go_on(study: Study, tmp_path: Path) -> None:
    log, said = tmp_path / "steps.jsonl", []
    lines = [
        {"step": "train", "what": "tiny/mos/1-0", "pid": DEAD, "at": 1.0},
        {"step": "train", "what": "tiny/mos/2-0", "pid": os.getpid(), "at": 1.0},
        {"step": "measure", "what": "tiny/mos/3-0", "pid": DEAD, "at": 1.0},
        {"step": "measure", "what": "tiny/mos/3-0", "pid": DEAD, "at": 2.0, "code": 0, "words": ""},
    ]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    with status.Display(study, log, Pages(study, "true"), said.append, on_terminal=False) as shown:
        shown.printed = float("inf")  # no line of how far it is, however slow the machine
        for looks in range(4):
            shown.looked = 0.0
            shown.look()
            steps = [line for line in said if not line.startswith("interim report")]
            assert len(steps) == (looks > 0)
    assert steps == [f"train tiny/mos/1-0: {outcomes.KILLED}"]


@pytest.mark.fault("A18")
def test_what_snakemake_itself_stumbles_over_is_shown(study: Study, tmp_path: Path) -> None:
    log = tmp_path / "study.log"
    log.write_text("first\n" * 50 + "OSError: no space\n", encoding="utf-8")
    said: list[str] = []
    why = reproduce._why(1, [], tmp_path / "none.jsonl", log, said.append)
    assert why is not None and why.exit_code == 3 and len(said) == 12 and said[-1] == "OSError: no space"
    steps = [{"step": "train", "what": name, "pid": DEAD, "at": 1.0} for name in ("a", "b")]
    ends = tmp_path / "ends.jsonl"
    ends.write_text("\n".join(json.dumps(step) for step in steps), encoding="utf-8")
    assert f"1 more steps failed, see {log}" in str(reproduce._why(1, [], ends, log, said.append))
