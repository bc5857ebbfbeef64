"""Any sequence of stops, kills, damage and double starts ends with the bits of a run that was left alone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from run_hash import content_sha256
from softmax_bottleneck.jobs import checkpoint
from softmax_bottleneck.jobs.interrupt import StoppedError
from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import BusyError, UserError
from tiny_runs import KINDS, Kill, at_step, die, killed, of_parent, reference, write_lease

SAVES = [(torch, "save"), (artefacts, "_exchange"), (artefacts, "_seal"), (artefacts, "_sync_folder")]
STEPS = st.integers(0, 24)


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
    """One folder of some kind of work, and all that can happen to it."""

    name = ""

    @initialize()
    def begin(self) -> None:
        self.kind, self.alone = KINDS[self.name], reference(self.name)
        self.home = Path(tempfile.mkdtemp())
        self.folder = self.home / "run"
        self.finished = False

    def teardown(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def work(self, save_interval_s: float = 0.0) -> None:
        self.kind.run(self.folder, Options(save_interval_s=save_interval_s))
        self.finished = True

    @rule(step=STEPS, number=st.sampled_from([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]))
    def signalled(self, step: int, number: signal.Signals) -> None:
        with pytest.MonkeyPatch.context() as patch:
            at_step(patch, step, lambda: os.kill(os.getpid(), number))
            try:
                self.work(300.0)
            except StoppedError as stopped:
                assert stopped.exit_code in (143, 130, 75)

    @rule(step=STEPS, save_interval_s=st.sampled_from([0.0, 300.0]))
    def killed(self, step: int, save_interval_s: float) -> None:
        with pytest.MonkeyPatch.context() as patch:
            at_step(patch, step, die)
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
            self.work(save_interval_s)
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
            self.kind.run(copy)
            assert self.kind.came_to(copy) == self.alone.came_to
        finally:
            shutil.rmtree(copy)

    @rule()
    def another_process_is_at_work(self) -> None:
        lease = write_lease(self.folder / self.kind.owned, **of_parent())
        before = small.tree(self.folder)
        try:
            with pytest.raises(BusyError):
                self.kind.run(self.folder)
            assert small.tree(self.folder) == before
        finally:
            lease.unlink()

    @precondition(lambda self: bool(self.states()))
    @rule()
    def other_work_in_its_place(self) -> None:
        with pytest.raises(UserError, match="another run"):
            self.kind.run(self.folder, other=True)

    @precondition(lambda self: self.folder.exists())
    @rule()
    def ends(self) -> None:
        self.work(300.0)

    @invariant()
    def nothing_is_half_written(self) -> None:
        """Under a final name there is a whole file, or a damaged state that this machine damaged itself."""
        if getattr(self, "finished", False):
            assert self.kind.came_to(self.folder) == self.alone.came_to
            assert artefacts.is_sound(self.folder / self.kind.result)


@pytest.mark.fault("A1", "A2", "A3", "A6", "A7", "A8", "A10", "A11", "A13")
@pytest.mark.parametrize("name", KINDS)
def test_any_life_ends_the_same(name):
    run_state_machine_as_test(
        type("LifeOfOne", (Life,), {"name": name}),
        settings=settings(max_examples=6, stateful_step_count=7, deadline=None, derandomize=True),
    )


@pytest.mark.fault("A8", "A10")
@pytest.mark.parametrize("seed", range(25))
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
    assert isinstance(found, str) or content_sha256(found) == content_sha256(whole)


@pytest.fixture(scope="module")
def two_states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("states")
    killed(KINDS["training"], folder, 11)
    return folder
