"""Any sequence of stops, kills, damage and double starts ends with the bits of a run that was left alone."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import test_train as base
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from softmax_bottleneck.jobs import checkpoint, processes
from softmax_bottleneck.jobs.interrupt import StoppedError
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import BusyError, UserError
from softmax_bottleneck.training import train, trainer

RUN = base.make_run(epochs=4, switch_after_epoch=2)
SAVES = [(torch, "save"), (artefacts, "_exchange"), (artefacts, "_seal"), (artefacts, "_sync_folder")]


class Kill(BaseException):
    """Stands for a process that is gone."""


@contextmanager
def patched(owner: Any, name: str, before: Any) -> Any:
    """While inside, `before` is called ahead of every call of a function."""
    with pytest.MonkeyPatch.context() as patch:
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            before(*arguments, **options)
            return original(*arguments, **options)

        patch.setattr(owner, name, call)
        yield


class Life(RuleBasedStateMachine):
    """One run's folder, and all that can happen to it."""

    reference = ""

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp())
        self.folder = self.home / "run"
        self.finished = False
        if not Life.reference:
            train.train(RUN, base.CORPUS, self.home / "alone")
            Life.reference = train.result_hash(self.home / "alone")

    def teardown(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def train(self, save_interval_s: float = 0.0) -> None:
        train.train(RUN, base.CORPUS, self.folder, save_interval_s=save_interval_s)
        self.finished = True

    @rule(update=st.integers(0, 24), number=st.sampled_from([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]))
    def signalled(self, update: int, number: signal.Signals) -> None:
        def at(self: trainer.Trainer) -> None:
            if self.place.updates == update:
                os.kill(os.getpid(), number)

        with patched(trainer.Trainer, "update", at):
            try:
                self.train(300.0)
            except StoppedError as stopped:
                assert stopped.exit_code in (143, 130, 75)

    @rule(update=st.integers(0, 24), save_interval_s=st.sampled_from([0.0, 300.0]))
    def killed(self, update: int, save_interval_s: float) -> None:
        def at(self: trainer.Trainer) -> None:
            if self.place.updates == update:
                raise Kill

        with patched(trainer.Trainer, "update", at):
            self.until_killed(save_interval_s)

    @rule(point=st.sampled_from(SAVES), passage=st.integers(0, 12))
    def killed_while_saving(self, point: tuple[Any, str], passage: int) -> None:
        passed = []

        def at(*_: Any) -> None:
            passed.append(1)
            if len(passed) > passage:
                raise Kill

        with patched(*point, at):
            self.until_killed(0.0)

    def until_killed(self, save_interval_s: float) -> None:
        try:
            self.train(save_interval_s)
        except Kill:
            self.finished = False

    def states(self) -> list[Path]:
        return [self.folder / name for name in checkpoint.NAMES if (self.folder / name).exists()]

    @precondition(lambda self: len(self.states()) == 2)
    @rule(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
    def newest_state_is_damaged(self, place: float, bit: int, cut: bool) -> None:
        whole = {path: checkpoint._read(path) for path in self.states()}
        if any(isinstance(state, str) for state in whole.values()):
            return  # one is damaged already; both is another story
        path = max(whole, key=lambda one: whole[one]["serial"])
        data = bytearray(path.read_bytes())
        where = int(place * len(data))
        if cut:
            del data[where:]
        else:
            data[where] ^= 1 << bit
        path.write_bytes(data)

    @precondition(lambda self: self.folder.exists())
    @rule()
    def goes_on_in_a_copy(self) -> None:
        copy = self.home / "copy"
        shutil.copytree(self.folder, copy)
        try:
            train.train(RUN, base.CORPUS, copy)
            assert train.result_hash(copy) == Life.reference
        finally:
            shutil.rmtree(copy)

    @rule()
    def another_process_is_at_work(self) -> None:
        self.folder.mkdir(exist_ok=True)
        parent = processes.Process(os.getppid(), processes.started(os.getppid()))
        facts = {"token": "other", "host": "here", "realm": processes.realm(), **vars(parent)}
        lease = self.folder / "lease.json"
        lease.write_text(json.dumps(facts), encoding="utf-8")
        before = artefacts.sha256_bytes(b"".join(path.read_bytes() for path in sorted(self.files())))
        try:
            with pytest.raises(BusyError):
                train.train(RUN, base.CORPUS, self.folder)
            assert before == artefacts.sha256_bytes(b"".join(p.read_bytes() for p in sorted(self.files())))
        finally:
            lease.unlink()

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]

    @precondition(lambda self: bool(self.states()))
    @rule()
    def another_run_in_its_place(self) -> None:
        with pytest.raises(UserError, match="another run"):
            train.train(base.changed(RUN, seed=9), base.CORPUS, self.folder)

    @precondition(lambda self: self.folder.exists())
    @rule()
    def ends(self) -> None:
        self.train(300.0)

    @invariant()
    def nothing_is_half_written(self) -> None:
        """Under a final name there is a whole file, or a damaged state that this machine damaged itself."""
        if getattr(self, "finished", False):
            assert train.result_hash(self.folder) == Life.reference
            assert artefacts.is_sound(self.folder / "done.json")


@pytest.mark.fault("A1", "A2", "A3", "A6", "A8", "A10", "A11", "A13")
class TestLife(Life.TestCase):  # type: ignore[name-defined,misc]
    """What pytest runs."""

    settings = settings(max_examples=20, stateful_step_count=8, deadline=None, derandomize=True)


@pytest.mark.fault("A8", "A10")
@pytest.mark.parametrize("seed", range(60))
def test_a_mutated_state_is_rejected_or_says_the_same(tmp_path_factory, seed, two_states):
    """With its hash file gone or forged the hash inside decides."""
    draw = random.Random(seed)
    folder = tmp_path_factory.mktemp("state")
    for path in two_states.iterdir():
        shutil.copy(path, folder / path.name)
    path = folder / draw.choice(checkpoint.NAMES)
    whole, data = checkpoint._read(path), bytearray(path.read_bytes())
    where = draw.randrange(len(data))
    change = draw.choice(("flip", "cut", "insert", "exchange"))
    if change == "flip":
        data[where] ^= 1 << draw.randrange(8)
    elif change == "cut":
        del data[where:]
    elif change == "insert":
        data.insert(where, 7)
    else:
        data = bytearray((folder / next(name for name in checkpoint.NAMES if name != path.name)).read_bytes())
        whole = checkpoint._read(folder / next(name for name in checkpoint.NAMES if name != path.name))
    path.write_bytes(data)
    artefacts.sidecar(path).unlink()
    found = checkpoint._read(path)
    assert isinstance(found, str) or checkpoint.content_sha256(found) == checkpoint.content_sha256(whole)


@pytest.fixture(scope="module")
def two_states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("states")

    def at(self: trainer.Trainer) -> None:
        if self.place.updates == 11:
            raise Kill

    with patched(trainer.Trainer, "update", at), pytest.raises(Kill):
        train.train(RUN, base.CORPUS, folder, save_interval_s=0.0)
    (folder / "lease.json").unlink(missing_ok=True)
    return folder
