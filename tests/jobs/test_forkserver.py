"""A fork of the server does what the process of the step would do; else the step does its work itself."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from softmax_bottleneck.jobs import forkserver, interrupt

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract addresses")

PROGRAM = """
import os, signal, sys, time
from softmax_bottleneck.jobs import forkserver
forkserver._prepare = lambda: None  # nothing is imported
obey = forkserver._obey
forkserver._obey = lambda step: time.sleep(0.2) or obey(step)

class SlowError(RuntimeError):
    def __str__(self):
        time.sleep(0.5)  # the thread above runs before the traceback is written
        return "a bug"

def run(words):
    received = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: received.append(number))
    print(os.getpid(), os.getcwd(), os.environ.get("NAME"), forkserver.VARIABLE in os.environ, *words, flush=True)
    while words[0] == "waits" and not received:
        time.sleep(0.05)
    if words[0] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if words[0] == "raises":
        raise SlowError
    return 40 + received[0] if received else int(words[1])

forkserver.serve({}, run)
"""
STEP = """
import sys
from softmax_bottleneck.jobs.forkserver import run_in_fork
code = run_in_fork(sys.argv[1:])
sys.exit(99 if code is None else code)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package, which a test may edit."""
    source = Path(forkserver.__file__).parents[1]
    return shutil.copytree(source, tmp_path_factory.mktemp("code") / source.name, ignore=shutil.ignore_patterns("*c"))


@pytest.fixture(scope="module")
def environment(package: Path) -> Iterator[dict[str, str]]:
    """Return the environment of steps while a server runs."""
    names = [f"{name}_THREADS" for name in forkserver.LIBRARIES]
    environment = os.environ | dict.fromkeys(names, "1") | {"PYTHONPATH": str(package.parent)}
    with pytest.MonkeyPatch.context() as patch, (package.parent / "log").open("wb") as log:
        patch.setattr(forkserver, "PROGRAM", PROGRAM.replace("{}", "{{}}").replace("serve({{}}", "serve({}"))
        patch.setenv("PYTHONPATH", str(package.parent))
        with forkserver.started(1, log, None) as server:
            yield environment | server


def start(environment: dict[str, str], *words: str, folder: Path = Path()) -> subprocess.Popen[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8", "errors": "surrogateescape"}
    return subprocess.Popen([sys.executable, "-c", STEP, *words], env=environment, cwd=folder, **options)


def test_a_fork_has_the_files_folder_and_environment_of_its_step(environment, tmp_path: Path) -> None:
    step = start(environment | {"NAME": "\udcff ü"}, "returns", "3", folder=tmp_path)
    out, err = step.communicate(timeout=60)
    pid, *rest = out.split()
    assert (step.returncode, err) == (3, "") and int(pid) != step.pid
    assert rest == [str(tmp_path.resolve()), "\udcff", "ü", "False", "returns", "3"]


@pytest.mark.parametrize("how", ["dies", "raises"])
def test_a_step_fails_if_its_fork_does(environment, how: str) -> None:
    step = start(environment, how)
    _, err = step.communicate(timeout=60)
    assert step.returncode == 1 and ("SlowError: a bug" in err) == (how == "raises")


@pytest.mark.fault("A18", "A22")
@pytest.mark.parametrize("number", interrupt.EXIT_CODES)
def test_a_fork_receives_the_signals_of_its_step(environment, number: signal.Signals) -> None:
    step = start(environment, "waits")
    assert step.stdout is not None and step.stdout.readline()
    step.send_signal(number)
    assert step.wait(60) == 40 + number


@pytest.mark.fault("A19")
def test_a_fork_is_killed_with_its_step_and_the_server_goes_on(environment) -> None:
    step = start(environment, "waits")
    assert step.stdout is not None
    fork = psutil.Process(int(step.stdout.readline().split()[0]))
    step.kill()
    fork.wait(20)
    assert start(environment, "returns", "0").wait(60) == 0


def test_a_step_works_itself_with_other_threads_other_code_or_without_a_server(environment, package: Path) -> None:
    assert start(environment | {"OMP_NUM_THREADS": "2"}, "returns", "0").wait(60) == 99
    assert start(environment | {forkserver.VARIABLE: b"\0none".hex()}, "returns", "0").wait(60) == 99
    assert start(environment, "returns", "0").wait(60) == 0
    os.utime(package / "heads" / "mos.py", (time.time() + 5,) * 2)
    assert start(environment, "returns", "0").wait(60) == 99


def test_the_server_ends_with_its_context(package: Path, tmp_path: Path) -> None:
    before = psutil.Process().children()
    with (tmp_path / "log").open("wb") as log, forkserver.started(1, log, None) as server:
        (child,) = (process for process in psutil.Process().children() if process not in before)
    assert not child.is_running() and start(os.environ | server, "returns", "0").wait(60) == 99
