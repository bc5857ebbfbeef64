"""What the project promises about kills, corruption, double starts and bad input, counted by the hundred.

make soak                                  # prints a table, writes benchmarks/results/soak.json; hours
make soak SOAK="--share 0.1 --no-result"   # a tenth of everything, for a look; nothing is written
make soak SOAK="--only workflow damages"   # some counters, which replace their rows in the file

Most kills and all corruptions happen inside one process, where a step costs milliseconds; some kills are real signals
to real processes. Exit 1 when a promise does not hold. Uses the helpers of tests/, which `make` puts on the path.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import canaries
import fake_results as fake
import fuzz
import numpy as np
import pytest
import small
import test_a_reproduce
import test_c_config
import test_damage
import test_train as base
import torch
from run_hash import content_sha256, result_hash
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora import corpus
from softmax_bottleneck.corpora.download import download
from softmax_bottleneck.corpora.tokenise import tokenise
from softmax_bottleneck.jobs import checkpoint, resumable
from softmax_bottleneck.jobs.interrupt import StoppedError
from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.records import collect, inspection, integrity, verify
from softmax_bottleneck.records.repair import repair
from softmax_bottleneck.report import views
from softmax_bottleneck.report.options import check_options
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import BusyError, DataError, UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.training import check, train, trainer

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
    """One promise: how often it was tried, how often it held, and what else was measured."""

    promise: str
    tried: int = 0
    held: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def count(self, holds: bool, what: str) -> None:
        """Note one try."""
        self.tried += 1
        self.held += holds
        if not holds:
            self.failures.append(what)
        if self.tried % 50 == 0:
            print(f"  {self.promise}: {self.held} of {self.tried}", flush=True)


class Kill(BaseException):
    """Stands for a process that is gone."""


# --- kills ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Reference:
    """A run left alone: its hash, and how many updates it has."""

    run: config.Run
    digest: str
    updates: int


def references(folder: Path) -> dict[str, Reference]:
    """One run of every head, left alone."""
    found = {}
    for head, options in HEADS.items():
        run = base.make_run(head, learning_rate=2.0, **options)
        done = train.train_run(run, base.CORPUS, folder / head)
        found[head] = Reference(run, result_hash(folder / head), done["steps"])
    return found


PLACES = ("update", "validation", "half a save", "before the rename", "before the hash", "end", "epoch log")


@contextmanager
def killed(place: str, at: int) -> Iterator[None]:
    """Inside, the process "dies" at the `at`-th passage of a place (which may never come)."""
    with pytest.MonkeyPatch.context() as patch:
        owner: Any
        owner, name = {
            "update": (trainer.Trainer, "update"),
            "validation": (trainer, "evaluate"),
            "half a save": (torch, "save"),
            "before the rename": (artefacts, "_exchange"),
            "before the hash": (artefacts, "_seal"),
            "end": (resumable.Session, "finish"),
            "epoch log": (train.Training, "keep"),
        }[place]
        original, passed = getattr(owner, name), []

        def dies(*arguments: Any, **options: Any) -> Any:
            passed.append(1)
            if len(passed) == at + 1:
                if place == "half a save":
                    arguments[1].write(b"PK\x03\x04 half")
                raise Kill
            return original(*arguments, **options)

        patch.setattr(owner, name, dies)
        yield


def injected(reference: Reference, folder: Path, draw: random.Random) -> list[str]:
    """Kill a run one to three times at random places; where. (A run that ended before is killed no more.)"""
    places = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        place = draw.choice(PLACES)
        at = draw.randrange(reference.updates if place in ("update", "half a save", "before the rename") else 4)
        try:
            with killed(place, at):
                train.train_run(reference.run, base.CORPUS, folder, Options(save_interval_s=draw.choice((0.0, 300.0))))
        except Kill:
            places.append(f"{place} {at}")
    return places


def real(reference: Reference, folder: Path, draw: random.Random) -> list[str]:
    """A real signal to a real process, sent when it has come to a random update; nothing if it ended before."""
    number = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1))
    at = draw.randrange(1, reference.updates)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _train_and_report(reference, folder, at, writer)
    os.close(writer)
    os.read(reader, 1)
    time.sleep(draw.random() * 0.005)
    os.kill(child, number)
    _, status = os.waitpid(child, 0)
    os.close(reader)
    how = os.waitstatus_to_exitcode(status)
    expected = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 75}[number]
    return [] if how == 0 else [f"{number.name} after update {at}" + ("" if how == expected else f", exit {how}!")]


def _train_and_report(reference: Reference, folder: Path, at: int, writer: int) -> None:
    """In a forked process: train, and write one byte when the update is reached. Never returns."""
    original = trainer.Trainer.update

    def update(self: trainer.Trainer) -> None:
        if self.place.updates == at:
            os.write(writer, b".")
        original(self)

    trainer.Trainer.update = update  # type: ignore[method-assign]
    code = 1
    try:
        train.train_run(reference.run, base.CORPUS, folder, Options(save_interval_s=0.0))
        code = 0
    except StoppedError as stopped:
        code = stopped.exit_code
    finally:
        os._exit(code)


def kills(number: int, folder: Path) -> Counter:
    """Promise: killed anywhere, the end has the same bits."""
    counter, draw = Counter("killed anywhere, the same bits in the end"), random.Random(SEED)
    known = references(folder / "alone")
    real_ones = number // 10
    index = signals = 0
    while counter.tried < number:
        reference, place = draw.choice(list(known.values())), folder / str(index)
        how = (real if counter.tried < real_ones else injected)(reference, place, draw)
        index, signals = index + 1, signals + len(how)
        if how:  # else the run ended before it was killed
            train.train_run(reference.run, base.CORPUS, place)
            same = result_hash(place) == reference.digest and "!" not in how[-1]
            counter.count(same, f"{reference.run.model}: {', '.join(how)}")
    counter.facts = {"by real signals": real_ones, "kills in all": signals, "heads": sorted(HEADS)}
    return counter


# --- minutes lost ---------------------------------------------------------------------------------------------------
def minutes_lost(number: int, folder: Path) -> Counter:
    """Promise: a kill loses five minutes at most; updates and validations take made-up times on a made-up clock."""
    counter, draw, lost = Counter("at most five minutes lost"), random.Random(SEED), []
    for index in range(number):
        lost.append(_lost_s(folder / str(index), draw) / 60)
        counter.count(lost[-1] <= 5.0, f"{lost[-1]:.2f} minutes")
    counter.facts = {"mean minutes": round(float(np.mean(lost)), 2), "largest": round(max(lost), 2)}
    return counter


def _lost_s(folder: Path, draw: random.Random) -> float:
    """Seconds between the newest state and a kill at a random update, by the clock that training sees."""
    run = base.make_run(epochs=12, switch_after_epoch=6, learning_rate=1.0)
    update_s, validation_s = draw.choice((0.5, 5.0, 20.0, 60.0)), draw.choice((1.0, 30.0, 120.0))
    now, saved, died = [0.0], [0.0], draw.randrange(8, 70)
    with pytest.MonkeyPatch.context() as patch:
        update, evaluate, save = trainer.Trainer.update, trainer.evaluate, resumable.Session.save

        def slow_update(self: trainer.Trainer) -> None:
            now[0] += update_s * (0.8 + 0.4 * draw.random())
            if self.place.updates == died:
                raise Kill
            update(self)

        def slow_evaluate(*arguments: Any) -> float:
            now[0] += validation_s
            return evaluate(*arguments)

        def noted_save(self: resumable.Session) -> None:
            save(self)
            saved[0] = now[0]

        patch.setattr(time, "monotonic", lambda: now[0])
        patch.setattr(trainer.Trainer, "update", slow_update)
        patch.setattr(trainer, "evaluate", slow_evaluate)
        patch.setattr(resumable.Session, "save", noted_save)
        try:
            train.train_run(run, base.CORPUS, folder)
        except Kill:
            return now[0] - saved[0]
    raise AssertionError("the run ended before it was killed")


# --- corruption -----------------------------------------------------------------------------------------------------
def mutate(path: Path, draw: random.Random, others: list[Path]) -> str:
    """Change a file in one random way; which."""
    data = bytearray(path.read_bytes())
    kind = draw.choice(("flip", "flip", "flip", "cut", "empty", "insert", "zeros", "swap", "hash"))
    where = draw.randrange(len(data)) if data else 0
    if kind == "swap" and others:
        other = draw.choice(others)
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
    """Files as they were, afterwards."""
    kept = {one: one.read_bytes() for path in paths for one in (path, artefacts.sidecar(path))}
    try:
        yield
    finally:
        for path, data in kept.items():
            path.write_bytes(data)


def corruptions(number: int, folder: Path) -> Counter:
    """Promise: a damaged file is found, and never becomes a number."""
    counter, draw = Counter("corrupted files found, and no number of them"), random.Random(SEED)
    study, stopped = _finished_study(folder), _stopped_run(folder / "stopped")
    clean = {run.path: numbers(study, run) for run in study.needed}
    kinds = [lambda: _corrupt_result(study, clean, draw)] * 6
    kinds += [lambda: _corrupt_state(stopped, draw)] * 3 + [lambda: _corrupt_tokens(draw)]
    for _ in range(number):
        found, what = draw.choice(kinds)()
        counter.count(found, what)
    return counter


def _finished_study(folder: Path) -> config.Study:
    study = small.tokenised(folder)
    small.finish(study)
    assert verify.verify(study).complete
    return study


def _stopped_run(folder: Path) -> Path:
    """A run with two states, killed on the way."""
    with killed("update", 14), suppress(Kill):
        train.train_run(base.make_run(), base.CORPUS, folder, Options(save_interval_s=0.0))
    return folder


RESULT_FILES = ("done.json", "outcome.json", "run.json", "measure.json", "topk.json", "rank.json", "wordsim.json",
                "hidden.npz", "spectrum.npz", "epochs.jsonl", "model.safetensors")  # fmt: skip


def _corrupt_result(study: config.Study, clean: Clean, draw: random.Random) -> tuple[bool, str]:
    """A file of a finished run, or of the study: verify names it, and its run gives its numbers or none."""
    if draw.random() < 0.1:
        return _corrupt_shared(draw)
    run, name = draw.choice(study.needed), draw.choice(RESULT_FILES)
    path = Store().run_folder(run.path) / name
    with restored(path):
        how = mutate(path, draw, [Store().run_folder(other.path) / name for other in study.needed if other != run])
        found = integrity.inspect(integrity.read(run, path.parent), inspection._size(study, run.dataset))
        honest = numbers(study, run) in ([], clean[run.path])
    return bool(found) and honest, f"{path}: {how}: found {found}, {'' if honest else 'a number changed'}"


Clean = dict[str, list[tuple[object, ...]]]


def numbers(study: config.Study, run: config.Run) -> list[tuple[object, ...]]:
    """What the records hold of one run."""
    found = integrity.read(run, study.store.run_folder(run.path))
    return list(collect._run_rows(study, collect._Reading(run, run.path, found)))


def _corrupt_shared(draw: random.Random) -> tuple[bool, str]:
    """A file of the study, as a table."""
    files = [path for path in Path("results/small").rglob("*.*") if artefacts.sidecar(path).exists()]
    path = draw.choice(sorted(path for path in files if path.name not in ("verify.json", "index.html")))
    with restored(path):
        how = mutate(path, draw, [])
        found = inspection.damage(Store(), path)
    return bool(found), f"{path}: {how}"


def _corrupt_state(folder: Path, draw: random.Random) -> tuple[bool, str]:
    """A resume state: what is loaded is the other one, whole; with both damaged, nothing is."""
    paths = [folder / name for name in checkpoint.NAMES]
    both = draw.random() < 0.3
    chosen = paths if both else [draw.choice(paths)]
    whole = {path: checkpoint._read(path) for path in paths}
    with restored(*paths):
        how = [mutate(path, draw, []) for path in chosen]
        try:
            loaded = checkpoint.Checkpointer(folder, whole[paths[0]]["identity"]).load()
        except UserError:
            return both, f"{chosen}: {how}: refused"
    left = next((whole[path] for path in paths if path not in chosen), None)
    return not both and content_sha256(loaded) == content_sha256(left), f"{chosen}: {how}"


def _corrupt_tokens(draw: random.Random) -> tuple[bool, str]:
    """A file of the tokenised corpus: it is not loaded."""
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


# --- two at once ----------------------------------------------------------------------------------------------------
def double_starts(number: int, folder: Path) -> Counter:
    """Promise: of two processes on one run never both write, whenever they start and whichever is killed."""
    counter, draw = Counter("two launches, one writer"), random.Random(SEED)
    reference = next(iter(references(folder / "alone").values()))
    refused = taken_over = 0
    for index in range(number):
        place = folder / str(index)
        place.mkdir()
        codes, intervals = _two_launches(reference, place, draw)
        refused += 75 in codes
        taken_over += codes == [-9, 0]
        train.train_run(reference.run, base.CORPUS, place / "run")
        same = result_hash(place / "run") == reference.digest
        overlap = any(a[1] > b[0] and b[1] > a[0] for i, a in enumerate(intervals) for b in intervals[i + 1 :])
        counter.count(same and not overlap and set(codes) <= {0, 75, -9}, f"schedule {index}: {codes} {intervals}")
    counter.facts = {"refused with 75": refused, "taken over": taken_over, "double writers": number - counter.held}
    return counter


def _two_launches(reference: Reference, place: Path, draw: random.Random) -> tuple[list[int], list[tuple[int, int]]]:
    """Start two processes and perhaps kill the first, at random times; exit codes, and when each owned the run."""
    children = {"first": _launch(reference, place, "first")}
    events = {"second": draw.choice((0.0, draw.random() * 0.1, draw.random() * 0.6))}
    if draw.random() < 0.5:
        events["kill"] = draw.random() * 0.4
    began = time.monotonic()
    for event, moment in sorted(events.items(), key=lambda one: one[1]):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        if event == "kill":
            os.kill(children["first"], signal.SIGKILL)
        else:
            children[event] = _launch(reference, place, event)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children.values()]
    return codes, [_interval(place / name) for name in children if (place / name).exists()]


def _launch(reference: Reference, place: Path, name: str) -> int:
    child = os.fork()
    if child == 0:
        _train_and_note(reference, place, name)
    return child


def _train_and_note(reference: Reference, place: Path, name: str) -> None:
    """In a forked process: train, and note the time of every write that changes the run. Never returns."""
    original, log = artefacts.write_with, os.open(place / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def write_with(path: Path, write: Callable[[Any], object]) -> str:
        os.write(log, f"{time.monotonic_ns()}\n".encode())
        try:
            return original(path, write)
        finally:
            os.write(log, f"{time.monotonic_ns()}\n".encode())

    artefacts.write_with = write_with
    code = 1
    try:
        train.train_run(reference.run, base.CORPUS, place / "run", Options(save_interval_s=0.0))
        code = 0
    except BusyError as busy:
        code = busy.exit_code
    finally:
        os._exit(code)


def _interval(path: Path) -> tuple[int, int]:
    """First and last moment at which a process wrote."""
    moments = [int(line) for line in path.read_text(encoding="utf-8").split()]
    return (moments[0], moments[-1]) if moments else (0, 0)


# --- seeds, configurations, canaries --------------------------------------------------------------------------------
def seed_subsets(folder: Path) -> Counter:
    """Promise: of every subset of five seeds the table says how many there are, which are missing, and their mean."""
    counter = Counter("subsets of five seeds shown right")
    for mask in range(32):
        with small.inside_new(folder / str(mask)):
            study = fake.load(Path(), fake.STUDY.replace("[1, 2, 3]", "[1, 2, 3, 4, 5]"))
            runs = [run for run in study.needed if run.model == "gss"]
            present = [run for bit, run in enumerate(runs) if mask >> bit & 1]
            for run in present:
                fake.write_run(run)
            counter.count(_shown_right(study, runs, present), f"subset {mask:05b}")
    return counter


def _shown_right(study: config.Study, runs: list[config.Run], present: list[config.Run]) -> bool:
    experiment = next(one for one in study.experiments if one.id == "known-truth")
    table = views.build(study, experiment, collect.collect(study))
    part = table.parts[0]
    cells = next(row.cells for row in part.rows if row.key == "gss")
    cell = cells[part.columns.index("Test perplexity")]
    shown = f"{cell.count} {cell.gap}"
    absent = [run.seed for run in runs if run not in present]
    if not present:
        return cell.measured is None
    mean = np.mean([fake.perplexities(run)["test_ppl"] for run in present])
    right = cell.measured is not None and abs(cell.measured.mean - mean) < 1e-9 and cell.measured.n == len(present)
    said = f"{len(present)} of 5" in shown if absent else "5" in shown
    return right and said and all(str(seed) in shown for seed in absent)


def bad_configurations(folder: Path) -> Counter:
    """Promise: a single wrong field is refused before the first job, in seconds."""
    counter, slowest = Counter("wrong fields refused before the first job"), 0.0
    with small.inside_new(folder / "study"):
        wrong = [(one, None) for one in test_c_config.study_mutations()]
        wrong += [(None, one) for one in test_c_config.dataset_mutations()]
        for study, dataset in wrong:
            began = time.monotonic()
            values = study.values if study else small.STUDY
            message = test_c_config.refused(Path(), values, dataset.values if dataset else None)
            slowest = max(slowest, time.monotonic() - began)
            counter.count(bool(message), (study or dataset).name)
        if list(Path().glob("results*")):
            counter.failures.append("something was written")
    counter.facts = {"slowest s": round(slowest, 2)}
    return counter


def nothing_executes(folder: Path) -> Counter:
    """Promise: no text, file or archive that should not run is ever run."""
    counter = Counter("canaries that stayed silent")
    for name, silent in canaries.all_of(folder):
        counter.count(silent, name)
    counter.facts = {"executed": counter.tried - counter.held}
    return counter


# --- the workflow, its files, its configuration -----------------------------------------------------------------------
def workflow_failures(number: int, folder: Path) -> Counter:
    """Promise: after a kill, a signal, a failed step or a time limit the same command goes on to the same bits."""
    counter, draw = Counter("workflow ended early, the same command goes on"), random.Random(SEED)
    os.environ["PYTHONPATH"] = str(ROOT / "workflow")  # of processes that work in other folders
    small.tokenised(base_folder := _new(folder / "base"))
    with small.inside_new(folder / "undisturbed"):
        study = small.begun(base_folder, Path.cwd(), test_a_reproduce.one_run())
        small.finish(study)
        expected = test_a_reproduce.outcome(Path(), study)
    ends = [draw.choice(test_a_reproduce.FAULTS) for _ in range(number)]
    tries = [(happens, base_folder, folder / str(index), expected) for index, happens in enumerate(ends)]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for happens, wrong in zip(ends, pool.map(_ended_early, tries), strict=True):
            counter.count(not wrong, wrong)
            counter.facts[happens.__name__] = counter.facts.get(happens.__name__, 0) + 1
    return counter


def _ended_early(one: tuple[Callable[[config.Study], None], Path, Path, dict[str, str]]) -> str:
    """The broken promise of a study that is ended early and begun again, in a folder of its own; else nothing."""
    happens, base_folder, folder, expected = one
    wrong = ""
    with small.inside_new(folder), redirect_stdout(io.StringIO()):
        study = small.begun(base_folder, Path.cwd(), test_a_reproduce.one_run())
        try:
            happens(study)
            test_a_reproduce.goes_on(study, expected)
        except AssertionError as error:
            broken = traceback.extract_tb(error.__traceback__)[-1].line
            wrong = f"{happens.__name__}: {broken} {' '.join(str(error).split())[:300]}"
    shutil.rmtree(folder)
    return wrong


def _new(folder: Path) -> Path:
    folder.mkdir()
    os.chdir(folder)
    return folder


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _become_a_link(path: Path) -> None:
    """To a copy that was changed."""
    other = path.with_name(f"{path.name}.other")
    other.write_bytes(b"x" + path.read_bytes())
    path.unlink()
    path.symlink_to(other.name)


DAMAGE = (*test_damage.DAMAGE, _cut, _zeros, _become_a_link)


def damages(share: float, folder: Path) -> Counter:
    """Promise: damage to any file is found, repaired, and what was removed is made again to the same bits."""
    counter, draw = Counter("damages found, and repaired to the same bits"), random.Random(SEED)
    study = small.tokenised(folder)
    small.finish(study)
    shutil.copytree("results", "kept")
    before, kinds = _bits(study), test_damage.kinds(study)
    every = [(path, damage) for path in kinds for damage in DAMAGE]
    for path, damage in draw.sample(every, max(1, round(share * len(every)))):
        damage(path)
        # A record of a finished run has a twin, from which `repair` restores it.
        found = not verify.verify(study).complete or path.name in ("done.json", "outcome.json")
        repair(study)
        for name in study.datasets:  # as the workflow does: what is gone, and what is made from it
            fetched, tokens = study.store.corpus_folder(name) / "files.json", study.store.tokens_folder(name)
            if not fetched.exists():
                download(study, name, small.quiet)
            if not (tokens / "corpus.json").exists() or fetched.stat().st_mtime > tokens.stat().st_mtime:
                tokenise(study, name, small.quiet)
        small.finish(study)
        again = verify.verify(study).complete and _bits(study) == before
        counter.count(found and again, f"{damage.__name__} of {path}: {'found' if found else 'not found'}, {again}")
        test_damage.restore()
    counter.facts = {"kinds of file": len(kinds), "kinds of damage": len(DAMAGE), "pairs": len(every)}
    return counter


def _bits(study: config.Study) -> dict[str, str]:
    """Hashes of all that holds no time: arrays, tokens, tables, and records but those of how long it took."""
    root = study.store.root
    arrays = [path for pattern in ("*.npz", "*.npy", "*.safetensors", "tables/*.csv") for path in root.rglob(pattern)]
    hashes = {str(path): artefacts.sha256_file(path) for path in arrays if "partial" not in path.parts}
    return hashes | {"records": test_a_reproduce.untimed_records(Path())}


def fuzzed_configurations(number: int, folder: Path) -> Counter:
    """Promise: a real study with anything wrong in it is a plan or one line, soon, in bounded memory."""
    counter, slowest_s, refused = Counter("fuzzed configurations: a plan or one line"), 0.0, 0
    for seed in range(number):
        try:
            outcome = fuzz.tried(folder / "study", seed, _built)
        except Exception as error:  # whatever it is, it is what must not be
            counter.count(False, f"study {seed}: {type(error).__name__}: {error}")
            continue
        slowest_s, refused = max(slowest_s, outcome.seconds), refused + bool(outcome.message)
        counter.count(outcome.is_sound and fuzz.peak_gb() < 4.0, f"study {seed}: {outcome}")
    counter.facts = {"refused": refused, "slowest s": round(slowest_s, 2), "peak GB": round(fuzz.peak_gb(), 2)}
    return counter


def _built(study: config.Study) -> None:
    """What `plan` does: options of views are read, and every model is built without memory."""
    check_options(study)
    check.costs(study)


# --- all ------------------------------------------------------------------------------------------------------------
def soak(share: float, only: Sequence[str], folder: Path) -> list[Counter]:
    """The counters asked for, or all."""

    def many(number: int) -> int:
        return max(1, round(number * share))

    plan: dict[str, Callable[[Path], Counter]] = {
        "kills": lambda place: kills(many(200), place),
        "minutes": lambda place: minutes_lost(many(60), place),
        "corruptions": lambda place: corruptions(many(1000), place),
        "double": lambda place: double_starts(many(100), place),
        "seeds": seed_subsets,
        "fields": bad_configurations,
        "canaries": nothing_executes,
        "workflow": lambda place: workflow_failures(many(100), place),
        "damages": lambda place: damages(share, place),
        "configurations": lambda place: fuzzed_configurations(many(10_000), place),
    }
    found = []
    for name in only or plan:
        place, began = folder / name, time.monotonic()
        place.mkdir()
        with small.inside(place):
            counter = plan[name](place)
        counter.facts["seconds"] = round(time.monotonic() - began, 1)
        print(f"{counter.promise}: {counter.held} of {counter.tried} {counter.facts}", flush=True)
        for failure in counter.failures[:5]:
            print(f"  FAILED {failure}")
        found.append(counter)
    return found


def write(found: list[Counter], path: Path) -> None:
    """The counters as JSON, with when and where they were counted; the rows of others in the file stay."""
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version(),
               "torch": torch.__version__, "instructions": torch.backends.cpu.get_cpu_capability()}  # fmt: skip
    before = json.loads(path.read_text(encoding="utf-8"))["promises"] if path.exists() else []
    day = {"counted": time.strftime("%Y-%m-%d")}
    rows = {row["promise"]: row for row in before} | {
        c.promise: {"promise": c.promise, "tried": c.tried, "held": c.held, **day, **c.facts, "failures": c.failures}
        for c in found
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {**day, "on": machine, "promises": list(rows.values())}
    path.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    """Count, print, write."""
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--share", type=float, default=1.0, help="of the full numbers")
    given.add_argument("--only", nargs="*", default=[], metavar="COUNTER", help="kills, workflow, damages, ...")
    given.add_argument("--no-result", action="store_true", help="write nothing")
    asked = given.parse_args()
    logging.disable(logging.WARNING)  # leases taken over and damaged states, said a thousand times
    with tempfile.TemporaryDirectory() as folder:
        found = soak(asked.share, asked.only, Path(folder).resolve())
    if not asked.no_result:
        write(found, RESULT)
    print(f"\n{'promise':45} {'held':>6} {'tried':>6}")
    for counter in found:
        print(f"{counter.promise:45} {counter.held:6} {counter.tried:6}")
    return 0 if all(counter.held == counter.tried for counter in found) else 1


if __name__ == "__main__":
    sys.exit(main())
