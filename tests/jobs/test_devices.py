"""GPUs of a workstation, with stand-ins for them: nine jobs on three, never two on one, in every order of ending."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from softmax_bottleneck.jobs import devices, interrupt, processes, workflow
from softmax_bottleneck.jobs.interrupt import StoppedError
from softmax_bottleneck.store.errors import UserError

UUIDS = [f"GPU-{n}{n}{n}{n}0000-0000-0000-0000-00000000000{n}" for n in range(3)]
LISTING = "".join(f"echo 'GPU {n}: NVIDIA H100 80GB HBM3 (UUID: {uuid})'\n" for n, uuid in enumerate(UUIDS))
JOB = """
import os, sys, time
from softmax_bottleneck.jobs import devices
log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
devices.LOOK_EVERY_S = 0.01
devices.lease_gpu()
os.write(log, f"begin {os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}\\n".encode())
time.sleep(0.02)
if len(sys.argv) > 1:
    os.kill(os.getpid(), 9)
os.write(log, f"end {os.getpid()}\\n".encode())
"""


@pytest.fixture
def machine(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own, an nvidia-smi that lists three cards, no leases, no batch job."""
    (place / "nvidia-smi").write_text(f"#!/bin/sh\n{LISTING}", encoding="utf-8")
    (place / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(place), prepend=os.pathsep)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(devices.tempfile, "tempdir", None)
    monkeypatch.setattr(devices, "_held", [])
    for name in (devices.VISIBLE_VARIABLE, devices.ORDER_VARIABLE, devices.GIVEN_VARIABLE, *devices.BATCH_VARIABLES):
        monkeypatch.setenv(name, "")  # so that what the test sets is taken back
        monkeypatch.delenv(name)
    yield place
    for descriptor in devices._held:
        os.close(descriptor)


def most_at_once(log: Path, killed: set[int]) -> dict[str, int]:
    """By card, how many processes were on it at the same time; one that was killed leaves no word, so its successor on
    the card stands for its end."""
    on: dict[str, set[int]] = {}
    most: dict[str, int] = {}
    for word, pid, *card in (line.split() for line in log.read_text(encoding="utf-8").splitlines()):
        if word == "end":
            for there in on.values():
                there.discard(int(pid))
            continue
        there = on.setdefault(card[0], set())
        there -= killed
        there.add(int(pid))
        most[card[0]] = max(most.get(card[0], 0), len(there))
    return most


def test_nine_jobs_on_three_gpus(machine: Path) -> None:
    """All start at once, three are killed at work: never two on one GPU, and all three are used."""
    jobs = [subprocess.Popen([sys.executable, "-c", JOB, *(["killed"] if n % 3 == 0 else [])]) for n in range(9)]
    codes = [job.wait(120) for job in jobs]
    assert codes.count(-signal.SIGKILL) == 3 and codes.count(0) == 6
    killed = {job.pid for job, code in zip(jobs, codes, strict=True) if code}
    assert most_at_once(machine / "log", killed) == dict.fromkeys(UUIDS, 1)
    assert (machine / "log").read_text(encoding="utf-8").count("begin") == 9


@pytest.mark.parametrize(("named", "seen"), [
    (None, UUIDS), ("2,0", [UUIDS[2], UUIDS[0]]), (UUIDS[1], [UUIDS[1]]), ("", []), ("1,-1,2", [UUIDS[1]]),
    ("MIG-7,9", ["MIG-7", "9"]),
])  # fmt: skip
def test_visible_gpus(machine: Path, monkeypatch: pytest.MonkeyPatch, named: str | None, seen: list[str]) -> None:
    if named is not None:
        monkeypatch.setenv(devices.VISIBLE_VARIABLE, named)
    assert list(devices.visible_gpus()) == seen


def test_without_a_driver_there_is_no_gpu(machine: Path) -> None:
    (machine / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n", encoding="utf-8")
    assert devices.visible_gpus() == ()
    devices.lease_gpu()
    assert devices.VISIBLE_VARIABLE not in os.environ and not devices._held


@pytest.mark.parametrize("batch", [True, False])
def test_a_lease_is_taken_once_and_not_where_a_batch_job_has_one_gpu(
    machine: Path, monkeypatch: pytest.MonkeyPatch, batch: bool
) -> None:
    if batch:
        monkeypatch.setenv("SLURM_JOB_ID", "4711")
        monkeypatch.setenv(devices.VISIBLE_VARIABLE, "0")
        devices.lease_gpu()
        assert not devices._held and os.environ[devices.VISIBLE_VARIABLE] == "0"
        assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # that of nvidia-smi, for the index 0
    monkeypatch.setenv(devices.VISIBLE_VARIABLE, "0,1")  # jobs of `make reproduce` inside one allocation
    devices.lease_gpu()
    devices.lease_gpu()
    assert len(devices._held) == 1 and os.environ[devices.VISIBLE_VARIABLE] == UUIDS[0]


def test_a_lent_card_is_taken_back_when_another_job_is_through(machine: Path) -> None:
    devices.lease_gpu()
    one_card = os.environ | {devices.VISIBLE_VARIABLE: UUIDS[0]}
    with devices.lent_gpu():
        other = subprocess.Popen([sys.executable, "-c", JOB.replace("0.02", "0.3")], env=one_card)
        deadline = time.monotonic() + 60
        while not (machine / "log").exists() or "begin" not in (machine / "log").read_text(encoding="utf-8"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    words = (machine / "log").read_text(encoding="utf-8").split()
    assert words == ["begin", str(other.pid), UUIDS[0], "end", str(other.pid)]
    other.wait(60)


@pytest.mark.fault("E16")
def test_the_folder_of_leases_is_the_users_own(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyone may write to the folder for temporary files: what others put there first is refused."""
    folder, elsewhere = machine / f"softmax-bottleneck-{os.getuid()}", machine / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    for put in (lambda: folder.symlink_to(elsewhere), folder.touch, lambda: folder.symlink_to("gone")):
        put()
        with pytest.raises(UserError, match=re.escape(str(folder))):
            devices.lease_gpu()
        folder.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(devices.os, "getuid", lambda: 54321)
        with pytest.raises(UserError, match="softmax-bottleneck-54321"):
            devices.lease_gpu()
    assert not devices._held and not list(elsewhere.iterdir()) and elsewhere.stat().st_mode & 0o777 == 0o755
    folder.mkdir()
    folder.chmod(0o777)
    devices.lease_gpu()
    assert devices._held and folder.stat().st_mode & 0o777 == 0o700


def leased_next() -> str:
    """Return the GPU that another job leases."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "_held", held := list[int]())
        patch.setenv(devices.VISIBLE_VARIABLE, ",".join(UUIDS))
        devices.lease_gpu()
        os.close(held[0])
        return os.environ[devices.VISIBLE_VARIABLE]


SAVES = """
import pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
pathlib.Path(sys.argv[-1]).touch()
time.sleep(30)
"""


@pytest.mark.fault("A22")
def test_all_runs_of_a_job_stop_when_its_workflow_ends(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "LOOK_EVERY_S", 0.01)
    ends = f"while [ ! -e {machine}/a ] || [ ! -e {machine}/b ]; do sleep 0.05; done"
    with subprocess.Popen(["sh", "-c", ends]) as parent:
        where = f"{parent.pid} {processes.Process.of(parent.pid).started} {processes.pid_namespace_id()}"
        monkeypatch.setenv(workflow.PROCESS_VARIABLE, where)
        with interrupt.stopped_with_workflow(print), pytest.raises(StoppedError, match="2 of 2 seeds") as stopped:
            devices.train_together([sys.executable, "-c", SAVES], ["a", "b"])
    assert stopped.value.exit_code == 75


SHOWS = [sys.executable, "-c", "import os, sys; open(sys.argv[-1], 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])"]


@pytest.mark.parametrize("batch", [True, False])
def test_runs_of_a_job_go_round_its_cards(machine: Path, monkeypatch: pytest.MonkeyPatch, batch: bool) -> None:
    """A whole node's in a batch job; else all share the one card that the job has leased, and nobody else has it."""
    if batch:
        monkeypatch.setenv("SLURM_JOB_ID", "4711")
    devices.train_together(SHOWS, list("abcd"), "auto")
    shown = [(machine / name).read_text(encoding="utf-8") for name in "abcd"]
    assert shown == ([*UUIDS, UUIDS[0]] if batch else [UUIDS[0]] * 4)
    assert batch or leased_next() == UUIDS[1]


def test_a_killed_jobs_card_stays_its_processes_own(machine: Path) -> None:
    """The lease is inherited: it is free when the last of them has ended, not before."""
    code = "from softmax_bottleneck.jobs import devices\n"
    code += "devices.train_together(['sh', '-c', 'echo $$; exec sleep 60'], [''], 'auto')"
    job = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    child = int(job.stdout.readline())
    job.kill()
    job.wait()
    try:
        assert leased_next() == UUIDS[1]
    finally:
        os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while leased_next() != UUIDS[0]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


EXITS = [
    sys.executable, "-c", "import os, sys; n = int(sys.argv[-1]); os.kill(os.getpid(), -n) if n < 0 else sys.exit(n)",
]  # fmt: skip


@pytest.mark.parametrize(("codes", "error", "expected"), [
    (["0", "75"], StoppedError, 75), (["143", "0"], StoppedError, 143), (["75", "2"], UserError, 2),
    (["75", "74"], StoppedError, 74), (["-9", "0"], StoppedError, 137),
])  # fmt: skip
def test_errors_that_need_a_correction_come_first(codes: list[str], error: type[Exception], expected: int) -> None:
    with pytest.raises(error) as raised:
        devices.train_together(EXITS, codes)
    assert raised.value.exit_code == expected  # type: ignore[attr-defined]
