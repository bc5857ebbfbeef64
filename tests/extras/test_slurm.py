"""SLURM, with fake_slurm.py in place of its programs; tests/slurm uses a real SLURM and Snakemake's plugin."""

import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_slurm
import pytest
import small
import yte
from snakemake.resources import Resource
from snakemake_executor_plugin_slurm.utils import set_gres_string
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.extras import reproduce as launcher
from softmax_bottleneck.jobs import locks, workflow
from softmax_bottleneck.jobs.interrupt import TimeLimit, time_limit
from softmax_bottleneck.records import collection
from softmax_bottleneck.steps.measure import measure as measure_step
from softmax_bottleneck.steps.train import train
from softmax_bottleneck.store import artefacts, fingerprint
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Study

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "workflow" / "profiles" / "slurm" / "config.yaml"
MEASURING = ("measure", "truth", "synthetic")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster without jobs; its programs are found first."""
    folder = tmp_path / "cluster"
    monkeypatch.setenv("PATH", f"{fake_slurm.install(folder)}{os.pathsep}{os.environ['PATH']}")
    return folder


def call(study: Study, *words: str) -> int:
    return main(["train", "--study", str(study.file), "--run", study.needed[0].path, *words])


def folder_of(study: Study) -> Path:
    return Store().run_folder(study.needed[0].path)


@pytest.mark.fault("F1", "A15")
@pytest.mark.parametrize(("left", "margin", "expected_s"), [
    ("4:00:00", None, 4 * 3600 - 180), ("2:00", None, 90), ("1-00:00:30", "10m", 86430 - 600), ("45", "1m", 0),
    ("UNLIMITED", None, None), ("INVALID", None, None),
])  # fmt: skip
def test_time_left_in_a_job_minus_the_margin(cluster, monkeypatch, left, margin, expected_s) -> None:
    fake_slurm.add_job(cluster, "7", left)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert time_limit(None, margin).seconds == expected_s


@pytest.mark.fault("F1")
def test_the_shorter_of_two_limits_applies(monkeypatch) -> None:
    assert time_limit() == TimeLimit(None, "no limit") and time_limit("1.5d").seconds == 1.5 * 86400
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3600))
    assert time_limit("2h").seconds == pytest.approx(3600 - 180, abs=2)
    assert time_limit("10m").seconds == 600


@pytest.mark.fault("F8")
def test_a_job_left_behind_by_an_earlier_call_is_waited_for(begun: Study, cluster: Path, monkeypatch, caplog) -> None:
    """The submitting machine was restarted; the next call's job of the same run finds the old one alive."""
    monkeypatch.setattr(locks, "LOOK_EVERY_S", 0.05)
    fake_slurm.add_job(cluster, "42")
    fake_slurm.add_job(cluster, "43", left="1:00:00")
    owner = {"token": "x", "pid": 1, "started": 1, "pid_namespace_id": "another machine", "host": "node17", "job": "42"}
    folder_of(begun).mkdir(parents=True)
    (folder_of(begun) / locks.LEASE_FILE).write_text(json.dumps(owner), encoding="utf-8")
    monkeypatch.setenv("SLURM_JOB_ID", "43")
    result: list[int] = []
    second = threading.Thread(target=lambda: result.append(call(begun)))
    second.start()
    deadline = time.monotonic() + 60
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "(SLURM job 42)" in caplog.text and "waits for the other one to end" in caplog.text
    assert not (folder_of(begun) / "run.json").exists()
    (folder_of(begun) / locks.LEASE_FILE).unlink()  # the old job ends
    second.join(120)
    assert result == [0]


class Resources(dict[str, Any]):
    __getattr__ = dict.__getitem__


def profile(**lines: str) -> dict[str, Any]:
    """Return the profile as Snakemake reads it, with other values in some of the lines at its top."""
    words = PROFILE.read_text(encoding="utf-8")
    for name, value in lines.items():
        words, changed = re.subn(rf"^  {name}: *\S+", f"  {name}: {value}", words, flags=re.MULTILINE)
        assert changed == 1
    return yte.process_yaml(words, require_use_yte=True)


@pytest.mark.fault("F4")
def test_memory_and_time_grow_with_the_attempt_up_to_a_cap(cluster: Path) -> None:
    class Wildcards:
        job = "truth-nano/softmax/1+2-0123456789ab"

    asked = profile()["set-resources"]["train"]
    grown = [{name: eval(asked[name], {"attempt": n, "wildcards": Wildcards}) for name in ("mem_mb", "runtime")}
        for n in range(1, 7)]  # fmt: skip
    assert [one["mem_mb"] for one in grown] == [32000, 64000, 64000, 64000, 64000, 64000]  # of two seeds
    squared_mb = 8 * 33_278**2 / 1e6  # the Gram matrix of WikiText-2's words, in float64
    assert eval(profile()["set-resources"]["measure"]["mem_mb"], {"attempt": 1}) > squared_mb
    assert [one["runtime"] for one in grown] == [1440, 2880, 2880, 2880, 2880, 2880]
    assert profile()["retries"] == 5


@pytest.mark.parametrize(
    ("gres", "model", "expected"),
    [('""', '""', " --gpus=1"), ('""', "3090", " --gpus=3090:1"), ("gpu:a100:4", "a100", " --gres=gpu:a100:4")],
)
def test_every_rule_with_a_gpu_requests_it_by_one_option(gres: str, model: str, expected: str) -> None:
    job = SimpleNamespace(job="1+2")
    rules = profile(gpu_partition="all", gres=gres, gpu_model=model)["set-resources"]
    for rule in rules:
        resources = Resources(gpu=1)
        for name, value in rules[rule].items():
            resources[name] = Resource.cli_evaluator(
                name, str(value), wildcards=job, input=[], attempt=1, async_run=None
            )
        assert set_gres_string(SimpleNamespace(resources=resources)) == expected
        assert (resources.slurm_partition, resources.runtime) == ("all", 120 if rule in MEASURING else 1440)


def test_the_rules_that_load_or_fit_a_model_request_a_gpu() -> None:
    """In the workflow and in the profile: another rule would take a GPU that it has not requested."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "workflow" / "rules").glob("*.smk")))
    _, *parts = re.split(r"^(?:rule|checkpoint) (\w+):\n", text, flags=re.MULTILINE)
    requesting = {name for name, rule in zip(parts[::2], parts[1::2], strict=True) if "gpu=GPUS" in rule}
    loading = {"training.trained", "training.fitting"}
    reached = {step for step, module in fingerprint.STEPS.items() if loading & fingerprint.closure([module])}
    assert requesting == reached == profile()["set-resources"].keys() and reached >= {"train", *MEASURING}


@pytest.mark.fault("F6")
@pytest.mark.parametrize("mood", ["fine", "failing", "missing"])
def test_job_states_come_from_the_program_that_answers(tmp_path: Path, monkeypatch, mood: str) -> None:
    folder = tmp_path / "cluster"
    programs = fake_slurm.install(folder, without=("sacct",) if mood == "missing" else ())
    if mood == "failing":
        (folder / "failing").touch()
    monkeypatch.setenv(
        "PATH", f"{programs}{os.pathsep}/bin{os.pathsep}/nonexistent" if mood != "missing" else str(programs)
    )
    assert profile()["slurm-status-command"] == ("sacct" if mood == "fine" else "squeue")


@pytest.mark.fault("F6")
def test_an_empty_record_that_snakemake_takes_for_done_does_not_count(study: Study) -> None:
    """Snakemake takes a job for a success if SLURM does not know it and its file is there."""
    done, outcome = folder_of(study) / "done.json", folder_of(study) / "outcome.json"
    done.write_bytes(done.read_bytes()[:200])
    assert collection.collect(study).counts()["ok"] == len(study.needed) - 1
    outcome.rename(outcome.with_suffix(".away"))
    with pytest.raises(DataError, match=r"done\.json"):
        measure_step(study, study.needed[0].path, small.quiet)
    outcome.with_suffix(".away").rename(outcome)
    for step in (measure_step, train):  # its outcome is whole: the record is written anew
        done.write_bytes(b"")
        step(study, study.needed[0].path, small.quiet)
        assert collection.collect(study).counts()["ok"] == len(study.needed)


@pytest.fixture
def submitting(begun: Study, cluster: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of `slurm` on a cluster that `doctor` finds no fault with."""
    monkeypatch.setattr(launcher, "doctor", lambda *_: None)
    return ["slurm", "--study", str(begun.file), "--set", "max_wall=4h", "--", "--jobs", "20"]


@pytest.mark.fault("F7")
@pytest.mark.parametrize(("codes", "expected", "pauses"),
    [([1, 75, 0], 0, [60, 120]), ([1] * 5, 3, [60, 120, 240, 480]), ([75, 2], 2, [60])])  # fmt: skip
def test_a_failed_call_is_repeated_after_longer_pauses_unless_a_step_failed_for_good(
    submitting: list[str], monkeypatch: pytest.MonkeyPatch, codes: list[int], expected: int, pauses: list[float]
) -> None:
    calls, paused, returned = [], [], iter(codes)

    def run(call: list[str], lock: object, *, ends: Path, **_: Any) -> Any:
        calls.append(call)
        if (code := next(returned)) > 1:  # of a step; Snakemake's own is 1, also where `sbatch` fails
            monkeypatch.setenv(workflow.LOG_VARIABLE, str(ends))
            workflow.note("train", "run", code)
        return launcher._problem(code, [], ends, None), False

    monkeypatch.setattr(launcher, "_snakemake", run)
    monkeypatch.setattr(launcher, "time", SimpleNamespace(sleep=paused.append))
    assert main(submitting) == expected
    assert paused == pauses and len(calls) == len(codes)
    profile = calls[0].index("--workflow-profile")
    assert Path(calls[0][profile + 1]) == PROFILE.parent
    assert calls[0][-4:] == ["--config", "max_wall=4h", "--jobs", "20"]


@pytest.mark.fault("F7")
@pytest.mark.parametrize(("fails", "expected", "pauses"), [
    ("True", 2, 0),  # a dry run fails too, as after `-- --until mesure`
    ("'--dry-run' not in sys.argv", 3, 4),
])  # fmt: skip
def test_an_outage_is_retried_and_a_wrong_option_is_not(
    submitting, monkeypatch, capsys, fails, expected, pauses
) -> None:
    snakemake = [sys.executable, "-c", f"import sys; sys.exit({fails})"]
    monkeypatch.setattr(launcher, "snakemake_command", lambda *_: snakemake)
    monkeypatch.setattr(launcher, "PAUSE_S", 0.0)
    assert main(submitting) == expected
    printed = capsys.readouterr().err
    assert printed.count(" of 5 in 0 s") == pauses
    assert ("the same command resumes" in printed.splitlines()[-1]) == (expected == 3)


def test_sigterm_ends_snakemake_and_no_call_follows_or_begins_beside_another(submitting, monkeypatch) -> None:
    saves = "trap 'touch saved; exit 1' TERM; sleep 1; kill -TERM $PPID; sleep 60 & wait"
    monkeypatch.setattr(launcher, "snakemake_command", lambda *_: ["/bin/sh", "-c", saves])
    monkeypatch.setenv("PATH", os.defpath)
    assert main(submitting) == 143 and Path("saved").exists()
    assert main(submitting) == 75  # this process holds the lock of the first call


def test_steps_that_outlive_the_wait_are_not_called_saved(submitting, monkeypatch, capsys) -> None:
    outlives = "(trap '' TERM; sleep 3) & sleep 1; kill -TERM $PPID; wait"
    monkeypatch.setattr(launcher, "snakemake_command", lambda *_: ["/bin/sh", "-c", outlives])
    monkeypatch.setattr(launcher, "SETTLE_S", 0.2)
    assert main(submitting) == 143
    printed = "".join(capsys.readouterr())
    assert "some steps have not saved" in printed and "steps still run after 0 s" in printed
    assert "the state is saved" not in printed


@pytest.mark.fault("F10")
def test_runs_on_gpus_of_several_types_are_told_apart(study: Study) -> None:
    for planned, gpu in zip(study.needed, ["A100", "A100", "V100", "V100"], strict=True):
        for name in ("done.json", "outcome.json"):
            path = Store().run_folder(planned.path) / name
            done = artefacts.read_json(path)
            done["provenance"]["sessions"] = [{"from_update": 0, "device": gpu, "threads": 1}]
            artefacts.write_json(path, done)
        measure_step(study, planned.path, small.quiet)
    found = collection.collect(study)
    assert found.counts()["ok"] == 4 and found.counts()["mixed hardware"] == 0
    (warning,) = found.hardware_warnings()
    assert "A100" in warning and "V100" in warning
