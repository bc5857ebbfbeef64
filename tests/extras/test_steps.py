"""Several seeds in one job: the same bits as alone, and what is finished stays when another seed is not."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_hash import result_hash
from run_snakemake import in_process
from softmax_bottleneck import study as config
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.jobs import interrupt, locks
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import plan

ROOT = Path(__file__).parents[2]
NANO = ROOT / "tests" / "nano.yaml"
PAIR = {"replicas_per_job": 2}
WORDS = ["--study", str(NANO), "--set", "replicas_per_job=2"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the corpus of the nano study and nothing trained."""
    folder = tmp_path_factory.mktemp("corpus")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for step in ("download", "tokenise"):
            assert main([step, "--study", str(NANO), "--dataset", "truth-nano"]) == 0
    return folder


@pytest.fixture(scope="module")
def alone(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Hashes of the softmax' two runs, each trained by itself."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "results").symlink_to(corpus / "results")
    before, found = Path.cwd(), {}
    os.chdir(folder)
    try:
        for run in config.load_study(NANO).needed[:2]:
            assert main(["train", "--study", str(NANO), "--run", run.path]) == 0
            found[run.path] = result_hash(Store().run_folder(run.path))
            Store().run_folder(run.path).rename(folder / run.path.replace("/", "-"))
    finally:
        os.chdir(before)
    return found


@pytest.fixture
def job(corpus: Path, place: Path) -> str:
    """The job of the softmax' two seeds, in a working directory of its own."""
    (place / "results").mkdir()
    (place / "results" / "tokens").symlink_to(corpus / "results" / "tokens")
    return next(iter(plan.jobs(config.load_study(NANO, PAIR))))


def hashes(paths: dict[str, str]) -> dict[str, str]:
    return {path: result_hash(Store().run_folder(path)) for path in paths}


def test_every_run_is_in_one_job_with_seeds_of_its_model() -> None:
    study = config.load_study(NANO, {"seeds": [1, 2, 3, 4, 5], "replicas_per_job": 2})
    jobs = plan.jobs(study)
    assert sorted(run.path for runs in jobs.values() for run in runs) == sorted(run.path for run in study.needed)
    for name, runs in jobs.items():
        assert len({(run.dataset, run.model) for run in runs}) == 1
        assert name.split("/")[:2] == [runs[0].dataset, runs[0].model]
        seeds, _, identity = name.split("/")[2].rpartition("-")
        assert seeds == "+".join(str(run.seed) for run in runs) and re.fullmatch("[0-9a-f]{12}", identity)
    assert sorted(len(runs) for runs in jobs.values()) == [1, 1, 1, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.tier2)])
def test_a_job_that_is_stopped_or_killed_loses_nothing(job: str, alone: dict[str, str], capfd, number) -> None:
    """SIGTERM reaches every seed once; of a killed job the seeds notice it, save, and stop.

    While another process holds the second seed, only the first is trained; the next call trains the second.
    """
    words = [sys.executable, "-m", "softmax_bottleneck", "train", *WORDS, "--run", job]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300
        held: dict[str, int] = {}
        while len(held) < len(alone):  # after its first epoch each is held, or it might end before it looks around
            assert process.poll() is None and time.monotonic() < deadline
            for path in set(alone) - set(held):
                if (Store().run_folder(path) / "epochs.jsonl").exists():
                    held[path] = json.loads((Store().run_folder(path) / locks.LEASE_FILE).read_bytes())["pid"]
                    os.kill(held[path], signal.SIGSTOP)
            time.sleep(0.005)
        process.send_signal(number)
        time.sleep(1.5 * interrupt.LOOK_EVERY_S)
        for pid in held.values():
            os.kill(pid, signal.SIGCONT)
        assert process.wait(300) == (143 if number == signal.SIGTERM else -number)
    while any((Store().run_folder(path) / locks.LEASE_FILE).exists() for path in alone):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first, second = alone
    with locks.Lease(Store().run_folder(second)):
        assert main(["train", *WORDS, "--run", job]) == 75
    told = capfd.readouterr().err
    assert f"1 of 2 seeds did not finish: {second} (exit 75); run the same step again" in told
    done = Store().run_folder(first) / "done.json"
    assert artefacts.is_sound(done) and not Store().job_file(job).exists()
    written = done.stat().st_mtime_ns
    assert main(["train", *WORDS, "--run", job]) == 0
    assert done.stat().st_mtime_ns == written and hashes(alone) == alone
    assert not any((Store().run_folder(path) / locks.LEASE_FILE).exists() for path in alone)
    through = artefacts.read_json(Store().job_file(job))["done"]
    assert through == {path: artefacts.sha256_file(Store().run_folder(path) / "done.json") for path in alone}
    ends = [artefacts.read_json(Store().run_folder(path) / "done.json")["provenance"] for path in alone]
    assert [end["interruptions"] for end in ends] == [1, 1]


def test_snakemake_trains_two_seeds_in_one_job_and_measures_each(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(corpus / "results")
    words = ["--configfile", str(NANO), "--config", "replicas_per_job=2", 'models={"gss": {"head": "gss"}}']
    words += ['experiments={"known-truth": {"models": "all"}}', "--snakefile", str(ROOT / "Snakefile")]
    code, log = in_process(*words, "--directory", str(tmp_path), "--cores", "2", "--dry-run", "--quiet", "host")
    assert code == 0, log
    counts = dict(re.findall(r"^(\w+)\s+(\d+)$", log, re.MULTILINE))
    assert (counts["train"], counts["measure"]) == ("1", "2")
