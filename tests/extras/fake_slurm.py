"""SLURM's programs without SLURM: jobs are entries of a JSON file, where what becomes of them is written beforehand.

`install(folder, plans)` makes a `bin` folder for PATH. A plan says, for jobs whose comment ends in its name, what
happens to one submission after the other; the last holds for all that follow:

    {"refuse": "words"}                          sbatch fails with these words
    {"command": [...], "state": "UNKNOWN"}       runs a command in place of the job, which ends in a state (without
                                                 one: COMPLETED or FAILED, as the command does)

As a program it is called with the name of the SLURM program first.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo")
LIVING = ("PENDING", "RUNNING")
Step = dict[str, Any]


def install(folder: Path, plans: dict[str, list[Step]] | None = None, without: tuple[str, ...] = ()) -> Path:
    """The folder for PATH; `without` are programs that this cluster does not have."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.json").write_text(json.dumps({"jobs": [], "plans": plans or {}, "doubles": 0}), encoding="utf-8")
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in PROGRAMS:
        if name not in without:
            call = f'exec "{sys.executable}" -S -E "{Path(__file__)}" {name} "{folder}" "$@"'
            (programs / name).write_text(f"#!/bin/sh\n{call}\n", encoding="utf-8")
            (programs / name).chmod(0o755)
    return programs


def jobs(folder: Path) -> list[dict[str, Any]]:
    """Every job that was submitted, in order."""
    return json.loads((folder / "state.json").read_text(encoding="utf-8"))["jobs"]


def doubles(folder: Path) -> int:
    """How often a job was submitted while one for the same work lived."""
    return json.loads((folder / "state.json").read_text(encoding="utf-8"))["doubles"]


def add_job(folder: Path, **facts: Any) -> None:
    """A job that is there already: `id`, `state`, `left` (its time left as squeue prints it)."""
    with _state(folder) as state:
        state["jobs"].append({"name": "", "comment": "", "left": "INVALID", **facts})


# --- the programs ---------------------------------------------------------------------------------------------------
@contextmanager
def _state(folder: Path) -> Iterator[dict[str, Any]]:
    """The state, alone, and written back."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        yield state
        (folder / "new.json").write_text(json.dumps(state), encoding="utf-8")
        (folder / "new.json").replace(folder / "state.json")


def _option(words: list[str], *names: str) -> str:
    """The value of `--name value`, `--name=value` or `-n value`; empty when it is not there."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else words[index + 1]
    return ""


def sbatch(folder: Path, words: list[str]) -> int:
    """Takes a job, or refuses it."""
    comment = _option(words, "--comment")
    with _state(folder) as state:
        earlier = [job for job in state["jobs"] if job["comment"] == comment]
        state["doubles"] += any(job["state"] in LIVING for job in earlier)
        plan = next((plan for name, plan in state["plans"].items() if comment.endswith(name)), [{"command": ["true"]}])
        step = plan[min(len(earlier), len(plan) - 1)]
        leaked = sorted(name for name in os.environ if name.startswith("SLURM_") and name != "SLURM_CONF")
        job = {"id": str(101 + len(state["jobs"])), "name": _option(words, "--job-name"), "comment": comment}
        job |= {"memory": int(_option(words, "--mem") or 0), "minutes": int(_option(words, "-t") or 0)}
        job |= {
            "partition": _option(words, "-p"),
            "gpus": _option(words, "--gpus"),
            "leaked": leaked,
            "left": "INVALID",
        }
        job |= {"requeue": "--requeue" in words, "at": time.time()}
        state["jobs"].append(job | {"state": "REFUSED" if "refuse" in step else "RUNNING"})
    if "refuse" in step:
        print(step["refuse"], file=sys.stderr)
        return 1
    subprocess.Popen(
        [sys.executable, "-S", "-E", __file__, "run", str(folder), job["id"], json.dumps(step)],
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL},
        start_new_session=True,
    )
    print(job["id"])
    return 0


def run(folder: Path, words: list[str]) -> int:
    """Act as a compute node: run the command, then write its state."""
    number, step = words[0], json.loads(words[1])
    code = subprocess.run(step.get("command", ["true"]), check=False).returncode
    with _state(folder) as state:
        job = next(job for job in state["jobs"] if job["id"] == number)
        job["state"] = step.get("state", "FAILED" if code else "COMPLETED")
    return 0


def squeue(folder: Path, words: list[str]) -> int:
    """States, or the time left, of the jobs asked for."""
    with _state(folder) as state:
        found = state["jobs"]
    found = [job for job in found if job["state"] != "REFUSED"]
    number, name = _option(words, "--jobs", "-j"), _option(words, "--name")
    chosen = [job for job in found if number in ("", job["id"]) and name in ("", job["name"])]
    if number and not chosen:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    layout = _option(words, "--format", "-o", "--Format")
    for job in chosen:
        told = layout.replace("%i", job["id"]).replace("%T", job["state"]).replace("%L", job["left"])
        print(told)
    return 0


def sacct(folder: Path, words: list[str]) -> int:
    """The same from the accounting; fine or failing, as the cluster's is."""
    mood = (folder / "sacct").read_text(encoding="utf-8") if (folder / "sacct").exists() else "fine"
    if mood == "failing":
        print("Slurm accounting storage is disabled", file=sys.stderr)
        return 1
    if "--format=JobIdRaw,State" in words:
        return squeue(folder, ["--format=%i|%T", f"--name={_option(words, '--name')}"])
    return 0


def scancel(folder: Path, words: list[str]) -> int:
    """Jobs by number."""
    with _state(folder) as state:
        for job in state["jobs"]:
            if job["id"] in words and job["state"] in LIVING:
                job["state"] = "CANCELLED"
    return 0


def scontrol(folder: Path, words: list[str]) -> int:
    """Its configuration."""
    print("MinJobAge               = 300 sec\nMaxArraySize            = 1001")
    return 0


def sinfo(folder: Path, words: list[str]) -> int:
    """Its partitions."""
    print("cpu\ngpu")
    return 0


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]](Path(sys.argv[2]), sys.argv[3:]))
