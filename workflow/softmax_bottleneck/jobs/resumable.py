"""Work that survives: step by step to its end across kills, signals, time limits, full disks and too little memory.

Training, dynamic evaluation and fits are such work. One process at a time works in a folder (its lease). It writes its
state every few minutes while it goes on, stops at a signal or a time limit with its state saved, never throws away work
that it cannot account for, and ends with the same bits however often it was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from softmax_bottleneck.jobs import checkpoint, outcome_record, processes, slurm
from softmax_bottleneck.jobs.devices import hardware_name
from softmax_bottleneck.jobs.interrupt import Stop, StoppedError, signals_to
from softmax_bottleneck.jobs.out_of_memory import as_out_of_memory_error
from softmax_bottleneck.jobs.run_lease import Lease
from softmax_bottleneck.jobs.time_limit import TimeLimit, time_limit
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.store.progress import LOG_INTERVAL_S, Say, duration
from softmax_bottleneck.study import Study

SAVE_SHARE = 0.05  # of the time at most goes into saving where parts are short
LONGEST_SHARE = 0.8  # of the interval between saves that a step is expected to take: one slept through is no measure
TICK_S = 5.0  # between signs of life

Outcome = tuple[dict[str, Any], dict[str, str], dict[str, Any]]


@dataclass(frozen=True)
class Job:
    """What is known of a piece of work before it is begun.

    Attributes:
        name: in messages and in lines of progress.
        folder: of its resume states and records; made when missing.
        result: name of the record that says that it is done.
        ids: what it is called, for the provenance; a record with other ids is something else's.
        identity: flat; what must be equal for a resume state to belong to it.
        device: where it is done.
        numerics: what else decides the last bits, in force while it is done.
        owned: the folder that one process at a time works in, where that is not `folder`.
        files: what it leaves besides, all of which goes when it starts over.
        is_whole: whether what it leaves besides is as the record says; may refuse to go on by an error.
    """

    name: str
    folder: Path
    result: str
    ids: Mapping[str, str]
    identity: Mapping[str, Any]
    device: torch.device
    numerics: AbstractContextManager[None]
    owned: Path | None = None
    files: Iterable[Path] = ()
    is_whole: Callable[[Mapping[str, Any]], bool] = lambda record: True


@dataclass(frozen=True)
class Options:
    """How a call works on a job.

    Attributes:
        say: takes lines of progress.
        limit: how long it may go on before it stops with its state saved, and wait for another process on the same job.
        restart: drop what is there and begin anew (recorded in the provenance).
        save_interval_s: longest time between resume states; they are also written at the end of a part, such as an
            epoch, unless parts are so short that saving would take a noticeable share of the time.
    """

    say: Say = lambda line: None
    limit: TimeLimit = field(default_factory=TimeLimit)
    restart: bool = False
    save_interval_s: float = 300.0

    @classmethod
    def of(cls, study: Study, say: Say, restart: bool) -> Options:
        """Of a step's call, within the study's and the batch system's time limits."""
        return cls(say, time_limit(study.max_wall, study.time_margin), restart)


DEFAULTS = Options()


class Work(Protocol):
    """What is done, step by step. All that changes is in its state: equal states go on to equal bits."""

    @property
    def finished(self) -> bool:
        """Whether no step is left."""

    @property
    def where(self) -> str:
        """How far it is: `epoch 2, update 11`."""

    @property
    def next_step(self) -> str:
        """Kind of the next step; those of one kind take about as long."""
        return "step"

    def step(self, session: Session) -> bool:
        """One step, which calls `session.tick` if it is long; whether a part such as an epoch ended with it."""

    def keep(self) -> None:
        """Write what the part that has just ended leaves; what is written twice must be the same bits."""
        return

    def state(self) -> dict[str, Any]:
        """All of it, as tensors, numbers and text."""

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned, tensors on the job's device, in place of the beginning."""

    def progress(self, wall_s: float) -> tuple[float, str]:
        """The share that is done, and a line of words, after so much time of work."""

    def outcome(self, session: Session) -> Outcome:
        """Write the files of the finished work; its record, the hashes of its parents, and more for its provenance."""


def run_to_end(job: Job, begin: Callable[[], Work], options: Options = DEFAULTS) -> dict[str, Any]:
    """Do a job to its end, from its resume state if there is one; its record, also if it was finished before.

    Raises:
        UserError: resume states or records damaged or of another job, too little GPU memory, or what `begin` raises.
        MemoryExhaustedError: too little memory of the machine.
        BusyError: another process owns the job.
        StoppedError: a signal, the time limit, or the workflow that started it is gone; the state is saved
            (exit_code 143, 130 or 75).
        OSError: the disk refused; what was saved before stays.
    """
    stop = Stop(options.limit.seconds, processes.workflow())
    if options.limit.seconds is not None:
        options.say(str(options.limit))
    with (
        Lease(job.owned or job.folder, options.limit.lock_timeout_s) as lease,
        signals_to(stop.receive),
        job.numerics,
        checkpoint.Checkpointer(job.folder, {**job.identity, "torch": torch.__version__.split(".")[0]}) as checkpointer,
    ):
        for leftover in (path for folder in {job.folder, lease.folder} for path in folder.glob(".*.tmp")):
            leftover.unlink(missing_ok=True)
        if options.restart:
            checkpointer.clear()
            for path in (*outcome_record.paths(job.folder, job.result), *job.files):
                artefacts.remove(path)
        record = _finished(job)
        if record is not None:
            checkpointer.clear()  # left by a kill after the record was written
            return record
        try:
            session = Session(job, options, begin(), lease, stop, checkpointer)
            session.work_to_end()
            return session.finish()
        except (MemoryError, RuntimeError) as error:
            known = as_out_of_memory_error(error, job.folder)
            if known is None:
                raise
            raise known from None


def _finished(job: Job) -> dict[str, Any] | None:
    """What finished work left, both records sound again; None when there is work to do.

    Raises:
        UserError: the folder holds another job's record.
        DataError: the record is damaged and there is no resume state, or it is not of the files beside it.
    """
    sound = outcome_record.sound_record(job.folder, job.result)
    if sound is None:
        damaged = [path for path in outcome_record.paths(job.folder, job.result) if path.exists()]
        if damaged and not any((job.folder / name).exists() for name in checkpoint.NAMES):
            raise DataError(f"{damaged[0]}: the record of a finished run is damaged; restore it from a backup, "
                            "or do the run again with --restart")  # fmt: skip
        return None
    record: dict[str, Any] = artefacts.read_json(sound)
    outcome_record.refuse_foreign(sound, {key: record["provenance"].get(key) for key in job.ids}, job.ids)
    if not job.is_whole(record):
        return None
    outcome_record.restore(job.folder, job.result)
    return record


@dataclass
class Session:
    """One process working on a job.

    Attributes:
        steps: done by all sessions.
        before_s: wall time of earlier ones.
        history: an entry for each.
        longest_s: time that the longest step of every kind took in this one.
    """

    job: Job
    options: Options
    work: Work
    lease: Lease
    stop: Stop
    checkpointer: checkpoint.Checkpointer
    steps: int = 0
    before_s: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    longest_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        state = self.checkpointer.load()
        if state is not None:
            self.work.load(checkpoint.on_device(state["work"], self.job.device, copy=False))
            self.history, self.before_s, self.steps = list(state["history"]), state["wall_s"], state["steps"]
        hardware = {"device": hardware_name(self.job.device), "threads": torch.get_num_threads(), **slurm.batch_job()}
        self.history.append({"from_step": self.steps, **hardware})
        self.started = self.saved = self.ticked = self.reported = time.monotonic()

    def wall_s(self) -> float:
        """Time that all sessions have worked so far."""
        return self.before_s + time.monotonic() - self.started

    def work_to_end(self) -> None:
        """All steps that are left (errors as of `run_to_end`)."""
        while not self.work.finished:
            part_ended = self.step()
            if part_ended:
                self.lease.check()
                self.work.keep()
                self._report()
            self.tick()
            self.checkpointer.check()
            reason = None if self.work.finished else self.stop.reason()
            if reason is not None or self._save_is_due(part_ended):
                self.save()
            if reason is not None:
                self.checkpointer.wait()
                raise StoppedError(f"{self.job.folder}: {reason[0]}; saved at {self.work.where}: "
                                   "run the same step again to go on", reason[1])  # fmt: skip

    def step(self) -> bool:
        """One step of the work; whether a part ended with it."""
        kind, began = self.work.next_step, time.monotonic()
        part_ended = self.work.step(self)
        self.steps += 1
        took_s = min(time.monotonic() - began, LONGEST_SHARE * self.options.save_interval_s)
        self.longest_s[kind] = max(took_s, self.longest_s.get(kind, 0.0))
        return part_ended

    def _save_is_due(self, part_ended: bool) -> bool:
        """Whether the state would be older than allowed after the next step, or this is a good moment to save."""
        if self.work.finished:
            return True
        interval_s = self.options.save_interval_s
        next_s = self.longest_s.get(self.work.next_step, interval_s / 2)  # of a kind that is not known yet: long
        if part_ended:
            interval_s = min(interval_s, self.checkpointer.write_s / SAVE_SHARE)
        return time.monotonic() - self.saved + next_s >= interval_s

    def tick(self) -> None:
        """Every few seconds a sign of life; cheap enough to be called at every step and within long ones."""
        now = time.monotonic()
        if now - self.ticked >= TICK_S:
            self.ticked = now
            self.lease.beat()
            if now - self.reported >= LOG_INTERVAL_S:
                self._report()

    def _report(self) -> None:
        self.reported = time.monotonic()
        share, words = self.work.progress(self.wall_s())  # at least one step is done by now
        self.options.say(f"{self.job.name}  {words}  {duration(self.wall_s() * (1 - share) / share)} left")

    def save(self) -> None:
        """Begin to write the resume state; the work goes on (BusyError when the lease was lost: nothing is written)."""
        self.checkpointer.wait()
        self.lease.check()
        facts = {"work": self.work.state(), "history": self.history, "wall_s": self.wall_s(), "steps": self.steps}
        self.checkpointer.save(facts)
        self.saved = time.monotonic()

    def finish(self) -> dict[str, Any]:
        """Write the files of the work, then its records; only then the resume states go."""
        self.checkpointer.wait()
        self.lease.check()
        facts, parents, extras = self.work.outcome(self)
        self.lease.check()
        facts["provenance"] = provenance.block(
            parents,
            **dict(self.job.ids),
            **extras,
            sessions=self.history,
            interruptions=len(self.history) - 1,
            mixed_hardware=len({(entry["device"], entry["threads"]) for entry in self.history}) > 1,
            restarted=self.options.restart,
        )
        for path in outcome_record.paths(self.job.folder, self.job.result):
            artefacts.write_json(path, facts)
        self.checkpointer.clear()
        record: dict[str, Any] = artefacts.read_json(self.job.folder / self.job.result)
        return record
