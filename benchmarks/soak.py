"""Count in hundreds of trials how often the promises about kills and corrupted files hold.

make soak                                  # takes hours; prints a table, writes benchmarks/results/soak.json
make soak SOAK="--share 0.1"               # a tenth of everything; nothing is written
make soak SOAK="--only kills"              # one counter, which replaces its row in the file

Most kills and all corruptions happen inside one process, where a step costs milliseconds; some kills are real signals
to real processes. The exit code is 1 if a promise does not hold. Uses helpers of tests/, which `make` puts on the path.
"""

import argparse
import json
import logging
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import small
import tiny_runs
import torch
from run_hash import content_sha256, result_hash
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora import corpus
from softmax_bottleneck.jobs import resumable
from softmax_bottleneck.jobs.interrupt import StoppedError
from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.records import collect, integrity, verify
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.training import train, trainer
from tiny_runs import CORPUS, Kill

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "soak.json"
HEADS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "gss": {},
    "mos": {"options": {"components": 2}},
    "lms-plif": {"options": {"knots": 100}},
}
SEED = 20


@dataclass
class Counter:
    """One promise: how often it was tried, how often it held, and other facts."""

    promise: str
    tried: int = 0
    held: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def count(self, holds: bool, what: str) -> None:
        """Count one try."""
        self.tried += 1
        self.held += holds
        if not holds:
            self.failures.append(what)


# --- kills ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Reference:
    """An undisturbed run: its hash and its number of updates."""

    run: config.Run
    digest: str
    updates: int


def reference(folder: Path, head: str) -> Reference:
    """Train a run without disturbing it."""
    run = tiny_runs.make_run(head, learning_rate=2.0, **HEADS[head])
    done = train.train_run(run, CORPUS, folder)
    return Reference(run, result_hash(folder), done["steps"])


PLACES: dict[str, tuple[Any, str]] = {
    "update": (trainer.Trainer, "update"),
    "validation": (trainer, "evaluate"),
    "half a save": (torch, "save"),
    "before a rename": (Path, "replace"),  # of a file, or of its hash
    "end": (resumable.Session, "finish"),
    "epoch log": (train.Training, "keep"),
}


@contextmanager
def killed(place: str, at: int) -> Iterator[None]:
    """Raise `Kill` when a place is reached for the (`at` + 1)-th time, if ever."""
    owner, name = PLACES[place]
    original, passed = getattr(owner, name), []

    def dies(*arguments: Any, **options: Any) -> Any:
        passed.append(1)
        if len(passed) == at + 1:
            if place == "half a save":
                arguments[1].write(b"PK\x03\x04 half")
            raise Kill
        return original(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dies)
        yield


def injected(reference: Reference, folder: Path, draw: random.Random) -> list[str]:
    """Kill a run one to three times at random places; return these. (A run that has ended is not killed again.)"""
    places = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        place = draw.choice(list(PLACES))
        at = draw.randrange(reference.updates if place in ("update", "half a save", "before a rename") else 4)
        try:
            with killed(place, at):
                train.train_run(reference.run, CORPUS, folder, Options(save_interval_s=draw.choice((0.0, 300.0))))
        except Kill:
            places.append(f"{place} {at}")
    return places


def real(reference: Reference, folder: Path, draw: random.Random) -> list[str]:
    """Send a real signal to a real process at a random update; return [description], or [] if the process had ended."""
    number = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1))
    at = draw.randrange(1, reference.updates)
    reader, writer = os.pipe()
    original = trainer.Trainer.update

    def update(self: trainer.Trainer) -> None:
        if self.place.updates == at:
            os.write(writer, b".")
        original(self)

    child = os.fork()
    if not child:
        code = 1
        try:
            trainer.Trainer.update = update  # type: ignore[method-assign]
            train.train_run(reference.run, CORPUS, folder, Options(save_interval_s=0.0))
            code = 0
        except StoppedError as stopped:
            code = stopped.exit_code
        finally:
            os._exit(code)
    os.close(writer)
    os.read(reader, 1)
    time.sleep(draw.random() * 0.005)
    os.kill(child, number)
    how = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(reader)
    expected = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 75}[number]
    return [] if how == 0 else [f"{number.name} after update {at}" + ("" if how == expected else f", exit {how}!")]


def kills(number: int, folder: Path) -> Counter:
    """Count how often a run that is killed anywhere ends with the same bits, and return the counter."""
    counter, draw = Counter("killed anywhere, the same bits in the end"), random.Random(SEED)
    known = [reference(folder / "alone" / head, head) for head in HEADS]
    real_ones = number // 10
    index = signals = 0
    while counter.tried < number:
        undisturbed, place = draw.choice(known), folder / str(index)
        how = (real if counter.tried < real_ones else injected)(undisturbed, place, draw)
        index, signals = index + 1, signals + len(how)
        if how:  # else the run ended before it was killed
            train.train_run(undisturbed.run, CORPUS, place)
            same = result_hash(place) == undisturbed.digest and "!" not in how[-1]
            counter.count(same, f"{undisturbed.run.model}: {', '.join(how)}")
    counter.facts = {"by real signals": real_ones, "kills in all": signals, "heads": sorted(HEADS)}
    return counter


# --- corruption -----------------------------------------------------------------------------------------------------
def mutate(path: Path, draw: random.Random, others: list[Path]) -> str:
    """Change a file in one random way; return how."""
    data = bytearray(path.read_bytes())
    kind = draw.choice(("flip", "flip", "flip", "cut", "empty", "insert", "zeros", "swap", "hash"))
    where = draw.randrange(len(data)) if data else 0
    other = draw.choice(others) if kind == "swap" and others else path
    if other.read_bytes() != data:
        path.write_bytes(other.read_bytes())
        artefacts.sidecar(path).write_bytes(artefacts.sidecar(other).read_bytes())
        return f"exchanged for {other}"
    if kind == "hash":
        note = artefacts.sidecar(path)
        text = note.read_text(encoding="utf-8")
        note.write_text(text[:5] + ("0" if text[5] != "0" else "1") + text[6:], encoding="utf-8")
    elif kind == "cut" and data:
        path.write_bytes(data[:where])
    elif kind == "empty" and data:
        path.write_bytes(b"")
    elif kind == "insert" or not data:
        path.write_bytes(data[:where] + bytes([draw.randrange(256)]) + data[where:])
    elif kind == "zeros" and any(data[where : where + 64]):
        path.write_bytes(data[:where] + bytes(len(data[where : where + 64])) + data[where + 64 :])
    else:
        data[where] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
    return f"{kind} at {where} of {len(data)}"


@contextmanager
def restored(*paths: Path) -> Iterator[None]:
    """Restore files and their hashes on leaving."""
    kept = {one: one.read_bytes() for path in paths for one in (path, artefacts.sidecar(path))}
    try:
        yield
    finally:
        for path, data in kept.items():
            path.write_bytes(data)


RESULT_FILES = ("done.json", "outcome.json", "run.json", "measure.json", "topk.json", "rank.json", "wordsim.json",
                "hidden.npz", "spectrum.npz", "epochs.jsonl", "model.safetensors")  # fmt: skip


def corruptions(number: int, folder: Path) -> Counter:
    """Count how often a damaged file is found and yields no number, and return the counter."""
    counter, draw = Counter("corrupted files found, and no number of them"), random.Random(SEED)
    study = small.tokenised(folder)
    small.finish(study)
    assert verify.verify(study).complete
    stopped = folder / "stopped"  # a run with two resume states
    with killed("update", 14), suppress(Kill):
        train.train_run(tiny_runs.make_run(), CORPUS, stopped, Options(save_interval_s=0.0))
    clean = {run.path: numbers(study, run) for run in study.needed}
    kinds = [lambda: _corrupt_result(study, clean, draw)] * 6
    kinds += [lambda: _corrupt_state(stopped, draw)] * 3 + [lambda: _corrupt_tokens(draw)]
    for _ in range(number):
        counter.count(*draw.choice(kinds)())
    return counter


def numbers(study: config.Study, run: config.Run) -> list[tuple[object, ...]]:
    """Return the numbers that the records have of one run."""
    reading = collect.Reading(run, run.path, integrity.read(run, study.store.run_folder(run.path)))
    return list(reading.numbers()) if reading.state(study)[0] in ("ok", "missing") else []


def _corrupt_result(
    study: config.Study, clean: dict[str, list[tuple[object, ...]]], draw: random.Random
) -> tuple[bool, str]:
    """Damage a file of a run or study; return (is it found without a changed number, description)."""
    if draw.random() < 0.1:
        files = [path for path in Path("results/small").rglob("*.*") if artefacts.sidecar(path).exists()]
        path = draw.choice(sorted(path for path in files if path.name not in ("verify.json", "index.html")))
        with restored(path):
            how = mutate(path, draw, [])
            return bool(integrity.damage(Store(), path)), f"{path}: {how}"
    run, name = draw.choice(study.needed), draw.choice(RESULT_FILES)
    path = Store().run_folder(run.path) / name
    with restored(path):
        how = mutate(path, draw, [Store().run_folder(other.path) / name for other in study.needed if other != run])
        found = integrity.inspect(integrity.read(run, path.parent))
        honest = numbers(study, run) in ([], clean[run.path])
    return bool(found) and honest, f"{path}: {how}: found {found}, {'' if honest else 'a number changed'}"


def _corrupt_state(folder: Path, draw: random.Random) -> tuple[bool, str]:
    """Damage one or both resume states; return (does the promise hold, description).

    The promise: the intact state is loaded; if both are damaged, `load` raises UserError.
    """
    paths = [folder / name for name in resumable.STATE_FILES]
    both = draw.random() < 0.3
    chosen = paths if both else [draw.choice(paths)]
    whole = {path: resumable._read_state(path) for path in paths}
    with restored(*paths):
        how = [mutate(path, draw, []) for path in chosen]
        try:
            loaded = resumable.Checkpointer(folder, whole[paths[0]]["identity"]).load()
        except UserError:
            return both, f"{chosen}: {how}: refused"
    left = next((whole[path] for path in paths if path not in chosen), None)
    return not both and content_sha256(loaded) == content_sha256(left), f"{chosen}: {how}"


def _corrupt_tokens(draw: random.Random) -> tuple[bool, str]:
    """Damage a file of the tokenised corpus: it is not loaded."""
    folder = Store().tokens_folder("tiny")
    names = ["train.npy", "valid.npy", "test.npy", "vocabulary.json"]
    path = folder / draw.choice(names)
    others = [folder / name for name in names[:3] if name != path.name] if path.suffix == ".npy" else []
    with restored(path):
        how = mutate(path, draw, others)
        try:
            corpus.load(folder)
        except DataError:
            return True, ""
    return False, f"{path}: {how}"


# --- command line ---------------------------------------------------------------------------------------------------
def soak(share: float, only: Sequence[str], folder: Path) -> list[Counter]:
    """Run the named counters, or all."""
    plan = {"kills": (kills, 200), "corruptions": (corruptions, 1000)}
    found = []
    for name in only or plan:
        place, began = folder / name, time.monotonic()
        count, number = plan[name]
        with small.inside_new(place):
            counter = count(max(1, round(number * share)), place)
        counter.facts["seconds"] = round(time.monotonic() - began, 1)
        print(f"{counter.promise}: {counter.held} of {counter.tried} {counter.facts}", flush=True)
        for failure in counter.failures[:5]:
            print(f"  FAILED {failure}")
        found.append(counter)
    return found


def write(found: list[Counter], path: Path) -> None:
    """Write the counters as JSON, with date and machine; other rows of the file stay."""
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version(),
               "torch": torch.__version__, "instructions": torch.backends.cpu.get_cpu_capability()}  # fmt: skip
    before = json.loads(path.read_text(encoding="utf-8"))["promises"] if path.exists() else []
    day = {"counted": time.strftime("%Y-%m-%d")}
    rows = {row["promise"]: row for row in before} | {
        c.promise: {"promise": c.promise, "tried": c.tried, "held": c.held, **day, **c.facts, "failures": c.failures}
        for c in found
    }
    facts = {**day, "on": machine, "promises": list(rows.values())}
    path.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    """Count, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="share of the full numbers")
    parser.add_argument("--only", nargs="*", default=[], metavar="COUNTER", help="kills, corruptions")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # a thousand warnings about leases taken over and damaged states
    with tempfile.TemporaryDirectory() as folder:
        found = soak(options.share, options.only, Path(folder).resolve())
    if options.share == 1:
        write(found, RESULT)
    return 0 if all(counter.held == counter.tried for counter in found) else 1


if __name__ == "__main__":
    sys.exit(main())
