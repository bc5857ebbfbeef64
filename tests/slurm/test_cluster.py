"""Studies through a real SLURM of one node, with jobs cancelled, out of time, queued again, and left behind.

Whatever happens, the study ends with the bits of a run on this machine alone. The SLURM is the one that start.sh beside
this file starts (`make slurm-test` does both, as root on Debian); without it these tests skip.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from run_hash import result_hash
from softmax_bottleneck import study as config
from softmax_bottleneck.store import artefacts

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "tests" / "slurm" / "study.yaml"
TUNED = ROOT / "tests" / "slurm" / "tuned.yaml"
IMPATIENT = ROOT / "tests" / "slurm" / "impatient.py"
PROFILE = ROOT / "workflow" / "profiles" / "slurm"
CLUSTER = Path("/run/softmax-bottleneck-slurm")
# Names the folder of start.sh: another clone's SLURM is left alone, as it ends with that clone.
STARTED_BY = CLUSTER / "ready"
READY = STARTED_BY.exists() and STARTED_BY.read_text(encoding="utf-8").strip() == str(Path(__file__).resolve().parent)
SHOWN = 5000  # characters of a log, where something failed
LONGEST_S = 900  # of one call of Snakemake, on a busy machine
QUICK = ["--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "10"]

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not READY, reason="needs the SLURM of tests/slurm/start.sh (root, Debian): make slurm-test"),
]


def snakemake(folder: Path, *words: str, local: bool = False, study: Path = STUDY) -> list[str]:
    """The command of a study in `folder`: through the profile, or on this machine alone."""
    where = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder), "--configfile", str(study)]
    how = ["--cores", "2"] if local else ["--workflow-profile", str(PROFILE), *QUICK]
    program = ["-m", "snakemake"] if local else [str(IMPATIENT)]
    return ["timeout", "--kill-after=10", str(LONGEST_S), sys.executable, *program, *where, *how, *words]


def run(command: Sequence[str], folder: Path) -> str:
    """Return the output of a command that must succeed."""
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-SHOWN:]
    return done.stdout


@contextmanager
def started(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command in the background, its output in `snakemake.log`; not left behind."""
    with (folder / "snakemake.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def until(seen: Callable[[], object], what: str, seconds: float = LONGEST_S) -> None:
    """Wait for something that others do."""
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)


def ended_well(process: subprocess.Popen[bytes], folder: Path) -> str:
    """Snakemake's log, once it has ended without an error."""
    code = process.wait(LONGEST_S + 60)
    log = (folder / "snakemake.log").read_text(encoding="utf-8")
    assert code == 0, log[-SHOWN:]
    return log


def lease_of(folder: Path, besides: str) -> dict[str, str | int]:
    """The lease of a run that is being trained, and has begun; empty when there is none."""
    for path in folder.glob("results/runs/*/*/*/lease.json"):
        if str(path.parent) != besides and (path.parent / "run.json.sha256").exists():
            with suppress(OSError, ValueError):
                return json.loads(path.read_text(encoding="utf-8")) | {"folder": str(path.parent)}
    return {}


def training(folder: Path, besides: str = "") -> dict[str, str | int]:
    """The lease of a run that is being trained, as soon as there is one."""
    found: list[dict[str, str | int]] = [{}]
    until(lambda: found.append(lease_of(folder, besides)) or found[-1], "a run that is trained")
    return found[-1]


def told_of_job(job: object) -> dict[str, str]:
    """Return the record that SLURM keeps of a job that has ended."""
    lines = (CLUSTER / "finished-jobs.log").read_text(encoding="utf-8").splitlines()
    line = [line for line in lines if f"JobId={job} " in line][-1]
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def watchers(job: object) -> list[Path]:
    """Return the processes of SLURM that watch the steps of a job on this node, which tell when a step has ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has just ended
            if path.read_bytes().startswith(f"slurmstepd: [{job}.".encode()):
                found.append(path)
    return found


def done_of(folder: Path) -> dict:
    return artefacts.read_json(folder / "done.json")


def hashes(folder: Path) -> dict[str, object]:
    """Return the hashes of weights and epoch log, and the ranks, of every run of the study."""
    found = {}
    for planned in config.load_study(STUDY).needed:
        place = folder / "results" / "runs" / planned.path
        found[planned.path] = (result_hash(place), artefacts.read_json(place / "rank.json")["metrics"])
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study on this machine, without SLURM and without disturbance."""
    folder = tmp_path_factory.mktemp("alone")
    run(snakemake(folder, local=True), folder)
    return folder


@pytest.fixture
def begun(alone: Path, tmp_path: Path) -> Path:
    """A folder in which the corpus is ready and nothing is trained."""
    for part in ("corpora", "tokens", "nano-slurm/check.json", "nano-slurm/check.json.sha256"):
        source, target = alone / "results" / part, tmp_path / "results" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)
    return tmp_path


@pytest.mark.fault("F2", "F5")
def test_jobs_that_are_cancelled_or_queued_again_end_with_the_same_bits(alone: Path, tmp_path: Path) -> None:
    """The whole study from nothing to its report, each GPU job with `gpu=1`.

    One training job is cancelled: Snakemake submits another. One is queued again, which is what preemption and a failed
    node come to: SLURM starts it anew under its number, unnoticed by Snakemake.
    """
    with started(snakemake(tmp_path), tmp_path) as process:
        cancelled = training(tmp_path)
        run(["scancel", str(cancelled["job"])], tmp_path)
        requeued = training(tmp_path, besides=str(cancelled["folder"]))
        run(["scontrol", "requeue", str(requeued["job"])], tmp_path)
        state = ["squeue", "--noheader", "--format=%T", f"--jobs={requeued['job']}"]
        until(lambda: run(state, tmp_path).strip() == "PENDING", "the job to be queued")
        # SLURM waits two minutes, so that nothing of the first life's end counts for the second. Here the late word has
        # come as soon as the processes are gone that watched the first life. The order to end it revoked the job's
        # credential to the second, so the second life begins in a later one: else "Job credential revoked" fails it.
        until(lambda: not watchers(requeued["job"]), "the end of the job's first life")
        run(["scontrol", "update", f"JobId={requeued['job']}", "StartTime=now+2"], tmp_path)
        log = ended_well(process, tmp_path)
    facts = told_of_job(cancelled["job"])
    assert facts["JobState"] == "CANCELLED" and facts["Partition"] == "gpu"
    failed = re.findall(r"SLURM-job '(\d+)' failed, SLURM status is: '(\w+)'", log)
    assert failed.count((str(cancelled["job"]), "CANCELLED")) == 1 and str(requeued["job"]) not in dict(failed), log
    if len(failed) > 1:  # a job that failed for a reason of SLURM's was submitted again, like the cancelled one
        warnings.warn(f"more jobs failed than were disturbed: {failed}\n{log}", stacklevel=1)
    for lease in (cancelled, requeued):
        block = done_of(Path(lease["folder"]))["provenance"]
        assert block["interruptions"] == 1
        assert (block["sessions"][1]["job"] == lease["job"]) == (lease is requeued)
    assert artefacts.is_sound(tmp_path / "results" / "nano-slurm" / "report" / "index.html")
    assert hashes(tmp_path) == hashes(alone)


@pytest.mark.fault("F1")
def test_seeds_in_one_job_stop_before_its_time_limit_and_go_on_in_the_next(alone: Path, begun: Path) -> None:
    """One minute, of which 59 seconds are margin: saved and stopped at once, and submitted again with more."""
    asked = [f"train:{one}" for one in ("runtime=attempt", "mem_mb=1000", "slurm_partition=gpu")]  # all of the rule's
    words = ["--until", "measure", "--set-resources", *asked, "--config", "time_margin=59s", "replicas_per_job=2"]
    log = run(snakemake(begun, *words), begun)
    assert log.count("Error in rule train") >= 1
    told = min((begun / ".snakemake" / "slurm_logs" / "rule_train").rglob("*.log")).read_text(encoding="utf-8")
    assert told.count("stops itself in 0:00 at the latest") == told.count("time limit reached; saved at epoch") == 2
    for path in hashes(alone):
        assert done_of(begun / "results" / "runs" / path)["provenance"]["interruptions"] >= 1
    assert hashes(begun) == hashes(alone)


@pytest.mark.fault("F8")
def test_jobs_left_behind_by_a_killed_snakemake_are_waited_for(alone: Path, begun: Path) -> None:
    """SIGKILL of Snakemake; its job goes on; the next call's job of the same run waits for it and trains nothing."""
    with started(snakemake(begun, "--until", "measure", "--jobs", "1"), begun) as process:
        lease = training(begun)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    os.kill(int(lease["pid"]), signal.SIGSTOP)  # so that it is still there when the next job comes
    path = Path(lease["folder"]).relative_to(begun / "results" / "runs").as_posix()
    try:
        with started(snakemake(begun, "--until", "measure"), begun) as process:
            logs = begun / ".snakemake" / "slurm_logs" / "rule_train"
            waits = f"SLURM job {lease['job']}"
            until(
                lambda: any(waits in file.read_text(encoding="utf-8") for file in logs.rglob("*.log")), "a second job"
            )
            os.kill(int(lease["pid"]), signal.SIGCONT)
            ended_well(process, begun)
    finally:
        with suppress(ProcessLookupError):
            os.kill(int(lease["pid"]), signal.SIGCONT)
    assert told_of_job(lease["job"])["JobState"] == "COMPLETED"
    assert done_of(begun / "results" / "runs" / path)["provenance"]["interruptions"] == 0
    assert hashes(begun) == hashes(alone)


def test_a_search_through_slurm_chooses_and_confirms_as_on_this_machine(begun: Path, monkeypatch) -> None:
    """Search jobs, a choice on the machine of Snakemake, wider rates, and two confirmation seeds in one job."""
    local = begun / "local"
    local.mkdir()
    shutil.copytree(begun / "results", local / "results")
    target = "results/tuned-slurm/records.json"  # with --until, Snakemake plans nothing after a choice
    run(snakemake(local, target, local=True, study=TUNED), local)
    run(snakemake(begun, target, "--config", "replicas_per_job=2", study=TUNED), begun)
    found = {}
    for folder in (local, begun):
        monkeypatch.chdir(folder)
        study = config.load_study(TUNED)
        chosen = study.tuned[0].choice
        assert chosen and len(study.searched) == len(chosen["curve"]) > 2 and len(study.runs) == 2
        ended = {planned.path: done_of(study.store.run_folder(planned.path)) for planned in study.needed}
        jobs = [block["provenance"]["sessions"][0].get("job") for block in ended.values()]
        assert all(jobs) == (folder == begun)
        seeds = {ended[planned.path]["provenance"]["sessions"][0].get("job") for planned in study.runs}
        assert len(seeds) == 1  # one job, or none
        decided = {key: chosen[key] for key in ("curve", "chosen", "interior")}
        found[folder] = decided, {path: result_hash(study.store.run_folder(path)) for path in ended}
    assert found[local] == found[begun]
