"""Every way of stopping training, a dynamic evaluation or fits, against the same work that was left alone."""

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from small import flip
from softmax_bottleneck.jobs import locks, outcome_record, processes, resumable, workflow
from softmax_bottleneck.jobs.interrupt import Stop, StoppedError, TimeLimit, stopped_with_workflow
from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import BusyError, DataError, MemoryExhaustedError, UserError
from tiny_runs import KINDS, Kill, Kind, Reference, at_step, die, killed, of_parent, reference, write_lease

NOW = TimeLimit(0.0)
ALWAYS = Options(save_interval_s=0.0)
# What all kinds of work share is tried with one of them.
ONE = pytest.mark.parametrize("name", ["training"])


@pytest.fixture(params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def kind(name: str) -> Kind:
    return KINDS[name]


@pytest.fixture
def alone(name: str) -> Reference:
    return reference(name)


def ends_the_same(kind: Kind, folder: Path, alone: Reference) -> dict[str, Any]:
    """Left to go on, it comes to what it comes to alone, and leaves nothing lying about."""
    record = kind.run(folder)
    assert kind.came_to(folder) == alone.came_to
    assert record == artefacts.read_json(folder / kind.result) == artefacts.read_json(folder / "outcome.json")
    assert not [*folder.rglob("resume-*"), *folder.rglob("lease.json"), *folder.rglob(".*.tmp")]
    return record


def states(folder: Path) -> list[Path]:
    """Resume files, the newest last."""
    return sorted(folder.glob("resume-?.pt"), key=lambda path: torch.load(path, weights_only=True)["state"]["serial"])


def steps_of(path: Path) -> int:
    """Steps that were done when a state was saved."""
    return torch.load(path, weights_only=True)["state"]["steps"]


# --- kills ----------------------------------------------------------------------------------------------------------
# With an interval of 0 every step is saved, and the resumed work goes on in the middle of a part.
@pytest.mark.fault("A1")
@pytest.mark.parametrize("save_interval_s", [0.0, 300.0])
def test_killed_at_any_step_it_ends_the_same(kind, alone, tmp_path, save_interval_s):
    assert 10 <= alone.steps <= 50
    for step in range(int(save_interval_s == 0), alone.steps, 4 if save_interval_s == 0 else 9):
        killed(kind, tmp_path / str(step), step, save_interval_s)
        ends_the_same(kind, tmp_path / str(step), alone)


SAVE_POINTS = [
    (torch, "save", "before anything is written"), (artefacts, "sha256_file", "temporary file written, not renamed"),
    (Path, "replace", "renamed, hash not written"), (os, "open", "both written, not synced"),
]  # fmt: skip


@pytest.mark.fault("A2")
@pytest.mark.parametrize(("module", "function", "where"), SAVE_POINTS, ids=[point[2] for point in SAVE_POINTS])
@pytest.mark.parametrize("save", [1, 3])
@ONE
def test_killed_inside_the_save(kind, alone, tmp_path, monkeypatch, module, function, where, save):
    calls, original = [], getattr(module, function)

    def dies(*arguments: Any) -> Any:
        is_other = module is Path and not arguments[1].name.endswith(".sha256")  # the rename of the file itself
        calls.extend([] if is_other else [arguments])
        if not is_other and len(calls) == save:
            raise Kill
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, function, dies)
        with pytest.raises(Kill):
            kind.run(tmp_path, ALWAYS)
    ends_the_same(kind, tmp_path, alone)


@pytest.mark.fault("A1")
@ONE
def test_a_state_is_saved_every_five_minutes_and_a_step(kind, tmp_path, monkeypatch):
    """The clock is simulated."""
    now, saved = [0.0], [0.0]
    step, save = resumable.Session.step, resumable.Session.save

    def slow(self: resumable.Session) -> bool:
        now[0] += 100.0
        return step(self)

    def noted_save(self: resumable.Session) -> None:
        save(self)
        saved.append(now[0])

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(resumable.Session, "step", slow)
    monkeypatch.setattr(resumable.Session, "save", noted_save)
    kind.run(tmp_path)
    assert max(later - earlier for earlier, later in itertools.pairwise([*saved, now[0]])) <= 400.0


@pytest.mark.fault("A11")
def test_killed_between_the_end_and_the_record(kind, alone, tmp_path, monkeypatch):
    """Before each of its files gets its name; nothing is done again."""
    for doomed in kind.last_files:
        with monkeypatch.context() as patch:
            tiny_runs.dies_writing(patch, doomed)
            if doomed != kind.last_files[0]:
                patch.setattr(resumable.Session, "step", die)
            with pytest.raises(Kill):
                kind.run(tmp_path)
    monkeypatch.setattr(resumable.Session, "step", die)
    ends_the_same(kind, tmp_path, alone)


# --- the files of states --------------------------------------------------------------------------------------------
@pytest.mark.fault("E1")
@ONE
def test_a_full_disk_leaves_the_old_state(kind, alone, tmp_path, monkeypatch):
    original = torch.save

    def save(stored: Any, file: Any) -> None:
        if stored["state"]["serial"] == 5:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        original(stored, file)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save)
        with pytest.raises(OSError, match="No space"):
            kind.run(tmp_path, ALWAYS)
    assert len(states(tmp_path)) == 2 and not list(tmp_path.glob(".*.tmp"))
    ends_the_same(kind, tmp_path, alone)


# --- damaged and foreign files --------------------------------------------------------------------------------------
def flip_and_forge(path: Path) -> None:
    flip(path)
    artefacts.sidecar(path).write_text(artefacts.sha256_file(path) + "\n", encoding="utf-8")


def flip_without_sidecar(path: Path) -> None:
    flip(path)
    artefacts.sidecar(path).unlink()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip, "flipped, hash forged": flip_and_forge, "flipped, no hash": flip_without_sidecar,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
}  # fmt: skip


@pytest.mark.fault("A8")
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
@ONE
def test_damaged_newest_state_falls_back(kind, alone, tmp_path, caplog, damage):
    killed(kind, tmp_path, 9)
    newest = states(tmp_path)[-1]
    damage(newest)
    ends_the_same(kind, tmp_path, alone)
    assert newest.name in caplog.text and "the other resume state is used" in caplog.text


@pytest.mark.fault("A9")
@ONE
def test_two_damaged_states_are_never_a_silent_restart(kind, alone, tmp_path):
    killed(kind, tmp_path, 9)
    for path in states(tmp_path):
        flip(path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("resume*")}
    with pytest.raises(UserError, match=r"no resume state can be trusted.*--restart") as refused:
        kind.run(tmp_path)
    assert refused.value.exit_code == 2
    assert {path.name: path.read_bytes() for path in tmp_path.glob("resume*")} == before
    assert kind.run(tmp_path, Options(restart=True))["provenance"]["restarted"] is True
    assert ends_the_same(kind, tmp_path, alone)["provenance"]["interruptions"] == 0


@pytest.mark.fault("A10")
def test_foreign_states_and_records_are_refused_by_name(kind, tmp_path):
    killed(kind, tmp_path, 9)
    with pytest.raises(UserError, match=rf"belongs to another run: .*{kind.differs}"):
        kind.run(tmp_path, other=True)
    kind.run(tmp_path)
    with pytest.raises(UserError, match=r"outcome\.json: belongs to another run: (run|evaluation|unit)_id is"):
        kind.run(tmp_path, other=True)


@pytest.mark.fault("A10")
@ONE
def test_a_state_of_another_torch_is_refused_by_name(kind, tmp_path, monkeypatch):
    killed(kind, tmp_path, 9)
    monkeypatch.setattr(torch, "__version__", "99.1.0")
    with pytest.raises(UserError, match=r"torch is '\d+' there and '99' here"):
        kind.run(tmp_path)


@pytest.mark.fault("A11", "A15")
@ONE
def test_finished_work_is_not_done_again(kind, tmp_path, monkeypatch):
    """Whatever becomes of one of its two records: the workflow engine deletes one of them, disks damage any."""
    record = kind.run(tmp_path)
    monkeypatch.setattr(resumable.Session, "step", die)
    assert kind.run(tmp_path) == record
    result, other = tmp_path / kind.result, tmp_path / "outcome.json"
    for path in (result, other):
        for damage in (artefacts.remove, flip, lambda path: path.write_bytes(b"")):
            written = next(one for one in (other, result) if one != path).stat().st_mtime_ns
            damage(path)
            assert kind.run(tmp_path) == record == artefacts.read_json(path)
            assert path.stat().st_mtime_ns == written  # what was made from it is not older than it


@pytest.mark.fault("E9")
@ONE
def test_a_damaged_record_is_reported(kind, tmp_path):
    kind.run(tmp_path)
    for path in outcome_record.paths(tmp_path, kind.result):
        flip(path)
    with pytest.raises(DataError, match=r"damaged.*--restart"):
        kind.run(tmp_path)
    kind.run(tmp_path, Options(restart=True))


# --- signals and limits ---------------------------------------------------------------------------------------------
@pytest.mark.fault("A3", "A4", "A5")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 75)])
@ONE
def test_signals_save_and_leave(kind, alone, tmp_path, monkeypatch, number, code):
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        at_step(patch, 7, lambda: os.kill(os.getpid(), number))
        with pytest.raises(
            StoppedError, match=f"{number.name} received; saved at .*run the same step again"
        ) as stopped:
            kind.run(tmp_path)
    assert stopped.value.exit_code == code
    assert signal.getsignal(number) == before
    assert steps_of(states(tmp_path)[-1]) == 8 and not (tmp_path / kind.result).exists()
    assert ends_the_same(kind, tmp_path, alone)["provenance"]["interruptions"] == 1


@pytest.mark.fault("A6")
@ONE
def test_signal_inside_the_save(kind, alone, tmp_path, monkeypatch):
    original = torch.save

    def save(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save)
        with pytest.raises(StoppedError):
            kind.run(tmp_path, ALWAYS)
    ends_the_same(kind, tmp_path, alone)


@pytest.mark.fault("A4")
def test_second_interrupt_leaves_at_once(monkeypatch):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    stop = Stop()
    stop.receive(signal.SIGINT)
    assert stop.reason() == ("SIGINT received", 130) and not codes
    stop.receive(signal.SIGINT)
    assert codes == [130]


@pytest.mark.fault("A1", "F1")
@ONE
def test_a_time_limit_stops_and_some_way_is_made_every_time(kind, alone, tmp_path):
    for _ in range(5):
        with pytest.raises(StoppedError, match="time limit reached") as stopped:
            kind.run(tmp_path, Options(limit=NOW))
        assert stopped.value.exit_code == 75
    record = ends_the_same(kind, tmp_path, alone)
    assert [entry["from_step"] for entry in record["provenance"]["sessions"]] == list(range(6))


@pytest.mark.fault("A13")
@ONE
def test_work_stops_when_its_workflow_is_gone(kind, alone, tmp_path, monkeypatch):
    with subprocess.Popen(["sleep", "600"]) as sleeper, monkeypatch.context() as patch:
        started = processes.Process.of(sleeper.pid).started
        patch.setenv(workflow.PROCESS_VARIABLE, f"{sleeper.pid} {started} {processes.pid_namespace_id()}")
        patch.setattr("softmax_bottleneck.jobs.interrupt.LOOK_EVERY_S", 0.01)
        at_step(patch, 5, lambda: (sleeper.kill(), sleeper.wait(), time.sleep(0.2)))
        lines: list[str] = []
        with (
            stopped_with_workflow(lines.append),
            pytest.raises(StoppedError, match="SIGUSR1 received; saved") as stopped,
        ):
            kind.run(tmp_path)
    assert stopped.value.exit_code == 75 and len(lines) == 1
    ends_the_same(kind, tmp_path, alone)


@pytest.mark.fault("A16")
@ONE
def test_sessions_on_other_hardware_are_recorded(kind, tmp_path, monkeypatch):
    killed(kind, tmp_path, 9)
    assert kind.run(tmp_path / "one")["provenance"]["mixed_hardware"] is False
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX9000")
    provenance = kind.run(tmp_path)["provenance"]
    assert provenance["mixed_hardware"] is True and provenance["sessions"][1]["device"] == "cpu AVX9000"


# --- memory ---------------------------------------------------------------------------------------------------------
ALLOCATOR = "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"


@pytest.mark.fault("A17")
@pytest.mark.parametrize(("error", "raised", "words"), [
    (MemoryError(), MemoryExhaustedError, r"out of memory at a peak of [0-9.]+ GB.*mem_mb"),
    (RuntimeError(ALLOCATOR), MemoryExhaustedError, r"out of memory at a peak of [0-9.]+ GB.*mem_mb"),
    (torch.OutOfMemoryError("tried to allocate 9 GiB"), UserError, r"9 GiB.*schedule.batch_size \(another run"),
    (RuntimeError("a bug"), RuntimeError, "a bug"),
])  # fmt: skip
@ONE
def test_out_of_memory_is_reported_and_can_be_retried(kind, alone, tmp_path, monkeypatch, error, raised, words):
    calls, (owner, function) = [], kind.inner
    inner = getattr(owner, function)

    def fails(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            raise error
        return inner(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, fails)
        with pytest.raises(raised, match=words):
            kind.run(tmp_path, ALWAYS)
    assert steps_of(states(tmp_path)[-1]) >= 5
    ends_the_same(kind, tmp_path, alone)


# --- one writer -----------------------------------------------------------------------------------------------------
@pytest.mark.fault("A13")
def test_a_second_process_is_refused(kind, tmp_path):
    lease = write_lease(tmp_path / kind.owned, **of_parent())
    with pytest.raises(BusyError, match=f"owned by process {os.getppid()} on here, seen . s ago") as busy:
        kind.run(tmp_path)
    assert busy.value.exit_code == 75
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [lease]


@pytest.mark.fault("A13")
def test_a_process_that_lost_its_lease_stops_without_writing(kind, tmp_path, monkeypatch):
    at_step(monkeypatch, 8, lambda: write_lease(tmp_path / kind.owned, pid=1))
    with pytest.raises(BusyError, match="took this run over"):
        kind.run(tmp_path, ALWAYS)
    assert not (tmp_path / kind.result).exists() and not (tmp_path / "outcome.json").exists()
    assert steps_of(states(tmp_path)[-1]) == 8
    assert locks._read_lease(tmp_path / kind.owned / "lease.json")["token"] == "other"  # the new owner's lease stays


@pytest.mark.fault("A13")
@ONE
def test_a_process_that_lost_its_lease_at_the_end_writes_no_record(kind, tmp_path, monkeypatch):
    original = resumable.Session.finish

    def finish(self: resumable.Session) -> dict[str, Any]:
        write_lease(tmp_path / kind.owned, pid=1)
        return original(self)

    monkeypatch.setattr(resumable.Session, "finish", finish)
    with pytest.raises(BusyError, match="took this run over"):
        kind.run(tmp_path)
    assert not [path for pattern in kind.last_files for path in tmp_path.rglob(pattern)]
