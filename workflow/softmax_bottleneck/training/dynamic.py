"""A dynamic evaluation in its folder: to its end across kills, signals and time limits, exact to the bit.

The same rules as for training (`train`): one process at a time, a state saved every few minutes and at a signal, the
result written last, and once more beside it under a name that the workflow engine does not delete.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.jobs import processes
from softmax_bottleneck.jobs.checkpoint import Checkpointer
from softmax_bottleneck.jobs.interrupt import Stop, StoppedError, signals_to
from softmax_bottleneck.jobs.numerics import numerics
from softmax_bottleneck.jobs.run_lease import Lease
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Evaluation
from softmax_bottleneck.training import dynamic_evaluation as dynamic
from softmax_bottleneck.training import train
from softmax_bottleneck.training.model import LanguageModel

RESULT_FILE = "dynamic.json"


def evaluate(
    wanted: Evaluation,
    model: LanguageModel,
    corpus: Corpus,
    folder: Path,
    *,
    parents: Mapping[str, str],
    say: Callable[[str], None] = lambda line: None,
    max_wall_s: float | None = None,
    restart: bool = False,
    save_interval_s: float = train.SAVE_INTERVAL_S,
) -> dict[str, Any]:
    """Evaluate to the end in `folder`, from its resume state if there is one; the content of dynamic.json.

    Args:
        wanted: run and settings.
        model: the run's weights; as they were when this returns.
        corpus: token ids of the run's corpus.
        folder: owned by one process at a time; made when missing.
        parents: hashes of what the weights come from, for the provenance.
        say: told every few seconds how far it is.
        max_wall_s: stop and save after this many seconds.
        restart: drop a resume state and begin anew.
        save_interval_s: longest time between resume states.

    Raises:
        UserError: a body that carries nothing from segment to segment; resume states damaged or of other settings.
        BusyError: another process owns the folder.
        StoppedError: a signal, the time budget, or the workflow that started it is gone; the state is saved.
    """
    if not model.body.carries_state:
        raise UserError(f"dynamic evaluation reads a few words at a time, so it needs a body that carries what came "
                        f"before; {wanted.run.body.kind} does not")  # fmt: skip
    stop = Stop(max_wall_s, workflow=processes.workflow())
    device = model.head.decoder.weight.device
    with Lease(folder) as lease, signals_to(stop), numerics(wanted.run, device):
        for leftover in folder.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        done = folder / train.OUTCOME_FILE
        if done.exists() and artefacts.is_sound(done) and not restart:
            facts: dict[str, Any] = artefacts.read_json(done)
        else:
            work = _Work(wanted, dynamic.Evaluator(model, corpus, wanted.settings), folder, lease, stop, say)
            facts = work.run(save_interval_s, restart, device) | {"status": "ok"}
            facts["provenance"] = provenance.block(dict(parents), run_id=wanted.run.run_id, sessions=work.history)
            artefacts.write_json(done, facts)
        artefacts.write_json(folder / RESULT_FILE, facts)
        Checkpointer(folder, {}).clear()
        written: dict[str, Any] = artefacts.read_json(folder / RESULT_FILE)
        return written


class _Work:
    """One process working on an evaluation."""

    def __init__(
        self,
        wanted: Evaluation,
        evaluator: dynamic.Evaluator,
        folder: Path,
        lease: Lease,
        stop: Stop,
        say: Callable[[str], None],
    ) -> None:
        self.wanted, self.evaluator, self.lease, self.stop, self.say = wanted, evaluator, lease, stop, say
        self.checkpointer = Checkpointer(folder, _identity(wanted))
        self.history: list[dict[str, Any]] = []  # one entry per process
        self.before_s = 0.0  # wall time of earlier ones
        self.started = self.saved = self.ticked = time.monotonic()

    def run(self, save_interval_s: float, restart: bool, device: torch.device) -> dict[str, Any]:
        """All that is left to do; settings, results and time."""
        if restart:
            self.checkpointer.clear()
        state = self.checkpointer.load()
        if state is not None:
            self.evaluator.load(state["evaluator"])
            self.history, self.before_s = list(state["history"]), state["wall_s"]
        self.history.append({"from_s": round(self.before_s, 1), **train.hardware(self.wanted.run, device)})
        while not self.evaluator.finished:
            self.evaluator.step()
            self._between_steps(save_interval_s)
        settings = dataclasses.asdict(self.wanted.settings)
        return {"settings": settings, "wall_s": round(self._wall_s(), 3)} | self.evaluator.results()

    def _wall_s(self) -> float:
        return self.before_s + time.monotonic() - self.started

    def _between_steps(self, save_interval_s: float) -> None:
        now = time.monotonic()
        if now - self.ticked >= train.TICK_S:
            self.ticked = now
            self.lease.beat()
            self.say(f"{self.wanted.run.model}/{self.wanted.run.seed}: {self.evaluator.progress()}")
        if now - self.saved >= save_interval_s:
            self._save()
        reason = self.stop.reason()
        if reason is not None and not self.evaluator.finished:
            self._save()
            raise StoppedError(f"{self.wanted.path}: {reason[0]}; saved: run the same step again to go on", reason[1])

    def _save(self) -> None:
        self.lease.check()
        state = {"evaluator": self.evaluator.state(), "history": self.history, "wall_s": self._wall_s()}
        self.checkpointer.save(state)
        self.saved = time.monotonic()


def _identity(wanted: Evaluation) -> dict[str, Any]:
    """What must be equal for a resume state to belong to this evaluation."""
    settings = {key: str(value) for key, value in dataclasses.asdict(wanted.settings).items()}
    return {"run_id": wanted.run.run_id, "code": wanted.code, **settings}
