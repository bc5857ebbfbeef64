"""Resumable work: kills, signals, time limits, full disks and lack of memory do not change the result.

Training, dynamic evaluation and fits call `run_to_end` with two things: a `Job`, which describes the work, and a
function that makes a `Work`, which does it in small steps. In this module, "step" means such a small step, for example
one update of the weights. A lease lets only one process at a time work in a folder. The process saves its state between
two steps: five minutes (`Options.save_interval_s`) after the last save, at the end of an epoch if that is quick, and
before it stops at a signal or a time limit. The next call resumes from the last saved state. After SIGTERM or a time
limit, no work is lost. After SIGKILL or a crash, the work since the last save is repeated: at most about five minutes,
and the step under way. The result has the same bits however often the work was interrupted, provided that the hardware
(of a CPU: the instruction set), the number of threads and the version of PyTorch stay the same, and on a GPU with
`deterministic: true`.

A folder has two files with resume states, written in turn, so that a kill at any moment leaves one of them intact. A
state has all that the remaining steps depend on, as the method `state` of the work returns it:

* training: the place in the text, the weights, the optimiser, the hidden state, the tally of losses, the rows of the
  epoch log, and the best weights so far;
* dynamic evaluation: the losses and gradient statistics of the finished passes, and the pass under way;
* fits: the number of updates, and the parameters and optimiser of every unfinished fit.

No state has that of a random generator, because every chunk or update seeds its generators from the seed and its place.

A state is verified when it is read. If a state or record belongs to another run or to another major version of PyTorch,
or if only damaged ones are left, an error is raised and nothing is overwritten. The record of a finished job has two
equal copies (`outcome_record`), because Snakemake deletes the declared output of an interrupted job.
"""

import logging
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from softmax_bottleneck.jobs import out_of_memory, outcome_record, processes
from softmax_bottleneck.jobs.interrupt import Stop, StoppedError, TimeLimit, signals_to, time_limit
from softmax_bottleneck.jobs.locks import Lease
from softmax_bottleneck.store import artefacts, errors, progress, provenance
from softmax_bottleneck.study import Study

SAVE_SHARE = 0.02  # largest share of the time that goes into saving at the ends of parts, such as epochs
TICK_S = 5.0  # between touches of the lease file
STATE_FILES = ("resume-a.pt", "resume-b.pt")

log = logging.getLogger(__name__)

# The tuple (record, parents, extras) that `Work.outcome` returns.
Outcome = tuple[dict[str, Any], dict[str, str], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The description of a piece of resumable work: where its files are, and how it is identified.

    Attributes:
        name: name in messages and progress lines.
        folder: folder of the resume states and records; created if missing.
        result: file name of the record written at the end, `done.json` or `dynamic.json`.
        ids: {name: id}, such as the run_id, stored in the provenance of the record. If the record that is found in the
            folder has other ids, it belongs to another job.
        identity: flat mapping of the facts that determine the result, such as settings and seed, stored in the resume
            states. If a state that is found has another identity, it belongs to another job.
        device: device of the computation.
        numerics: context manager that is entered during the work and sets threads and determinism.
        owned: folder that the lease protects (None: `folder`). For jobs that write to a folder shared with other jobs,
            it is the shared folder, so that only one of these jobs works at a time.
        files: other output files, which are removed when the work starts over (`Options.restart`).
        is_whole: function that checks the other output files of a finished job, given the job's record. It returns
            False if the work must be done again. If it raises an error, nothing is computed, and the caller of
            `run_to_end` gets this error. The default always returns True.
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
    """The options of one call that works on a job.

    Attributes:
        say: function that prints a line of progress (default: prints nothing).
        limit: a `TimeLimit` (default: no limit). The work stops after `limit.seconds`. If another process works on the
            same job, the call first waits for that process, for at most `limit.lock_timeout_s` seconds.
        restart: True to discard existing states and records and start over (recorded in the provenance).
        save_interval_s: a state is saved after the first step that ends this many seconds or more after the last save.
            It is also saved at the end of a part, such as an epoch. Very short parts are saved less often, so that
            saving takes at most 2 % of the time (SAVE_SHARE).
    """

    say: progress.Say = lambda line: None
    limit: TimeLimit = field(default_factory=TimeLimit)
    restart: bool = False
    save_interval_s: float = 300.0

    @classmethod
    def of(cls, study: Study, say: progress.Say, restart: bool) -> "Options":
        """Return options with the time limit that follows from the study and the batch system."""
        return cls(say, time_limit(study.max_wall, study.time_margin), restart)


DEFAULTS = Options()


class Work(Protocol):
    """The work of a job, done in small steps; `run_to_end` calls these methods.

    The result must depend only on the content of the dict that `state()` returns: equal dicts lead to bitwise equal
    results.
    """

    @property
    def finished(self) -> bool:
        """True if no step is left."""

    @property
    def where(self) -> str:
        """The current position as text, e.g. `epoch 2, update 11`."""

    def step(self, session: "Session") -> bool:
        """Do one step; return True if a part of the work, such as an epoch, has ended with this step.

        A long step calls `session.tick` repeatedly, to keep the lease and to print progress.
        """

    def keep(self) -> None:
        """Write the output of the part, such as an epoch, that has just ended.

        If the process is killed before the next save, the part is repeated later, and its output is written again. The
        second call must write the same bits.
        """
        return

    def state(self) -> dict[str, Any]:
        """Return everything that the remaining steps depend on, as tensors, numbers and text."""

    def load(self, state: dict[str, Any]) -> None:
        """Restore the work from a dict that the method `state` returned; the caller puts its tensors on the device."""

    def progress(self, wall_s: float) -> tuple[float, str]:
        """Return the finished share of the work (0 to 1), and a text about its progress, such as `update 3 of 100`.

        `wall_s` is the wall time of all sessions so far in seconds, for a text that states the speed.
        """

    def outcome(self, session: "Session") -> Outcome:
        """Write the remaining output files of the finished work, and return what belongs in its record.

        The caller adds the provenance and writes the record last, as the sign that the work has finished. The record is
        a JSON file, such as done.json. `session.wall_s()` returns the wall time so far. If writing takes long, call
        `session.lease.beat()` now and then to keep the lease.

        Returns:
            record: content of the record, without provenance.
            parents: {name: sha256} of the inputs and of some output files, for the provenance.
            extras: further entries of the provenance.
        """


# --- resume states --------------------------------------------------------------------------------------------------
def _on_device(value: Any, device: torch.device) -> Any:
    """Return a value with all tensors moved to a device, also those inside nested dicts and lists."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _on_device(child, device) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_on_device(child, device) for child in value)
    return value


class Checkpointer:
    """A store of resume states in a folder: it writes two files in turn, so that a kill leaves one of them intact.

    Args:
        folder: the folder of the two files, resume-a.pt and resume-b.pt.
        identity: flat mapping that describes the run. A state is loaded only if it was saved with an equal identity.

    Attributes:
        write_s: duration of the last write in seconds; 0 before the first write.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.paths = [folder / name for name in STATE_FILES]
        self.identity = dict(identity)
        self.serial = 0
        self.write_s = 0.0

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a state over the older of the two files.

        Raises:
            OSError: the disk is full or fails; both old files then stay intact.
        """
        began = time.monotonic()
        full = {**state, "identity": self.identity, "serial": self.serial + 1}
        # Even and odd serial numbers have different files, so that the newest state is never overwritten.
        artefacts.write_with(self.paths[self.serial % 2], lambda file: torch.save({"state": full}, file))
        self.serial += 1
        self.write_s = time.monotonic() - began

    def load(self) -> dict[str, Any] | None:
        """Return the newest intact state with its tensors on the CPU; None if there is no file.

        Raises:
            UserError: all existing files are damaged, or the newest intact state belongs to another run.
        """
        states = {index: _read_state(path) for index, path in enumerate(self.paths) if path.exists()}
        sound = {index: state for index, state in states.items() if isinstance(state, dict)}
        if not states:
            return None
        folder = self.paths[0].parent
        problems = ", ".join(f"{self.paths[i].name} ({state})" for i, state in states.items() if i not in sound)
        if not sound:
            raise errors.UserError(f"{folder}: no resume state can be trusted: {problems}; "
                            "restore one from a backup, or start this run over with --restart")  # fmt: skip
        if problems:
            log.warning("%s: %s is damaged; the other resume state is used", folder, problems)
        newest = max(sound, key=lambda index: int(sound[index]["serial"]))
        outcome_record.refuse_foreign(self.paths[newest], sound[newest]["identity"], self.identity)
        self.serial = int(sound[newest]["serial"])
        return sound[newest]

    def clear(self) -> None:
        """Remove both files with resume states."""
        for path in self.paths:
            artefacts.remove(path)


def _read_state(path: Path) -> dict[str, Any] | str:
    """Return the state stored in a file, or the reason why the file cannot be used.

    A state's hash is in a second file and must match the state. A process that is killed while it writes can leave a
    state without this file (see `artefacts.write_with`). Such a state is used if the CRC checksums in its zip
    archive match. These are verified here, because `torch.load` does not verify them.
    """
    if artefacts.sidecar(path).exists() and not artefacts.is_sound(path):
        return "its hash does not match"
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                return "its content does not match the checksums inside"
        return torch.load(path, map_location="cpu", weights_only=True)["state"]
    except MemoryError:
        raise
    except Exception:  # readers raise many kinds of error for damaged files
        return "it cannot be read"


# --- the engine -----------------------------------------------------------------------------------------------------
def run_to_end(job: Job, begin: Callable[[], Work], options: Options = DEFAULTS) -> dict[str, Any]:
    """Do a job to its end, from its resume state if there is one, and return its record.

    If the job is already finished, nothing is computed. A record exists in two copies, outcome.json and the file
    `job.result`. If one copy is lost, it is restored from the other (see `outcome_record`).

    Args:
        job: the job.
        begin: function that returns the job's work in its initial state; called only if the job is not finished.
        options: options of this call.

    Raises:
        UserError: all files with resume states are damaged; a resume state or the record belongs to another job; the
            GPU's memory is too small; or `begin` raised this error.
        DataError: the record is damaged in every copy, and there is no resume state to make it again; or `job.is_whole`
            found that the output files do not agree with the record.
        MemoryExhaustedError: the machine's memory ran out.
        BusyError: another process owns the job, or took the job over while this process worked on it.
        StoppedError: the work was stopped, and its state is saved. The exit code is 143 for SIGTERM, 130 for SIGINT,
            and 75 for SIGUSR1 or the time limit.
        OSError: writing failed; earlier states are kept.
    """
    stop = Stop(options.limit.seconds)
    if options.limit.seconds is not None:
        left = progress.duration(options.limit.seconds)
        options.say(f"stops itself in {left} at the latest ({options.limit.why})")
    with Lease(job.owned or job.folder, options.limit.lock_timeout_s) as lease, signals_to(stop.receive), job.numerics:
        identity = {**job.identity, "torch": torch.__version__.split(".")[0]}
        checkpointer = Checkpointer(job.folder, identity)
        for leftover in (path for folder in {job.folder, lease.folder} for path in folder.glob(".*.tmp")):
            leftover.unlink(missing_ok=True)
        if options.restart:
            checkpointer.clear()
            for path in (*outcome_record.paths(job.folder, job.result), *job.files):
                artefacts.remove(path)
        record = _finished(job)
        if record is not None:
            checkpointer.clear()  # left behind by a kill after the record was written
            return record
        try:
            session = Session(job, options, begin(), lease, stop, checkpointer)
            session.work_to_end()
            return session.finish()
        except (MemoryError, RuntimeError) as error:
            known = out_of_memory.as_out_of_memory_error(error, job.folder)
            if known is None:
                raise
            raise known from None


def _finished(job: Job) -> dict[str, Any] | None:
    """Return the record of a finished job, or None if there is work to do; restore a lost copy of the record.

    There is work to do in three cases: the job has no record; both copies of the record are damaged, but there is a
    resume state; or `job.is_whole` returns False.

    Raises:
        UserError: the folder holds another job's record.
        DataError: both copies of the record are damaged, and there is no resume state; or `job.is_whole` raised it.
    """
    copies = outcome_record.paths(job.folder, job.result)
    sound = next((path for path in copies if artefacts.is_sound(path)), None)
    if sound is None:
        damaged = [path for path in copies if path.exists()]
        if damaged and not any((job.folder / name).exists() for name in STATE_FILES):
            raise errors.DataError(f"{damaged[0]}: the record of a finished run is damaged; restore it from a backup, "
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
    """The work that one process does on a job, until the job is finished or the process stops.

    The constructor takes the first six attributes, in the order below. If there is a resume state of the previous
    session, the constructor loads it into `work` and sets the last three attributes from it.

    Attributes:
        job, options: the description of the job, and the options of this call.
        work: the job's work, passed in its initial state.
        lease: the lock that makes this process the job's only owner.
        stop: the conditions under which this process must stop: a signal or the time limit.
        checkpointer: reads and writes the resume states.
        steps: number of steps done in this and earlier sessions.
        before_s: wall time of all earlier sessions in seconds. Of each session, only the time until its last save
            counts.
        history: one dict per session, this one last. Its keys are `from_step` (the session's first step), `device`
            (model of the GPU, or `cpu` and its instruction set, as in `cpu AVX2`), `threads` (number of CPU threads)
            and, only under SLURM, `job` (number of the SLURM job).
    """

    job: Job
    options: Options
    work: Work
    lease: Lease
    stop: Stop
    checkpointer: Checkpointer
    steps: int = 0
    before_s: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        state = self.checkpointer.load()
        if state is not None:
            self.work.load(_on_device(state["work"], self.job.device))
            self.history, self.before_s, self.steps = list(state["history"]), state["wall_s"], state["steps"]
        device = self.job.device
        if device.type == "cuda":
            hardware = torch.cuda.get_device_name(device)
        else:  # the instruction set, which decides the last bits of a result
            hardware = f"cpu {torch.backends.cpu.get_cpu_capability()}"
        session = {"from_step": self.steps, "device": hardware, "threads": torch.get_num_threads()}
        self.history.append(session | processes.batch_job())
        self.started = self.saved = self.ticked = self.reported = time.monotonic()

    def wall_s(self) -> float:
        """Return the wall time of all sessions so far, in seconds."""
        return self.before_s + time.monotonic() - self.started

    def work_to_end(self) -> None:
        """Do all remaining steps, and save resume states in between (errors as in `run_to_end`)."""
        while not self.work.finished:
            part_ended = self.step()
            if part_ended:
                self.lease.check()
                self.work.keep()
                self._report()
            self.tick()
            reason = None if self.work.finished else self.stop.reason()
            # After short parts, save only so often that saving takes a small share of the time.
            interval_s = self.options.save_interval_s
            if part_ended:
                interval_s = min(interval_s, self.checkpointer.write_s / SAVE_SHARE)
            if reason is not None or self.work.finished or time.monotonic() - self.saved >= interval_s:
                self.save()
            if reason is not None:
                raise StoppedError(f"{self.job.folder}: {reason[0]}; saved at {self.work.where}: "
                                   "run the same step again to resume", reason[1])  # fmt: skip

    def step(self) -> bool:
        """Do one step; return True if a part, such as an epoch, has ended."""
        part_ended = self.work.step(self)
        self.steps += 1
        return part_ended

    def tick(self) -> None:
        """Touch the lease file at most once in TICK_S seconds, and print progress about once a minute.

        The method is cheap enough to be called at every step.

        Raises:
            BusyError: another process has taken the lease over.
        """
        now = time.monotonic()
        if now - self.ticked >= TICK_S:
            self.ticked = now
            self.lease.beat()
            if now - self.reported >= progress.LOG_INTERVAL_S:
                self._report()

    def _report(self) -> None:
        self.reported = time.monotonic()
        share, words = self.work.progress(self.wall_s())  # share > 0: at least one step is done
        self.options.say(f"{self.job.name}  {words}  {progress.duration(self.wall_s() * (1 - share) / share)} left")

    def save(self) -> None:
        """Write the resume state.

        Raises:
            BusyError: another process has taken the lease over; then nothing is written.
        """
        self.lease.check()
        facts = {"work": self.work.state(), "history": self.history, "wall_s": self.wall_s(), "steps": self.steps}
        self.checkpointer.save(facts)
        self.saved = time.monotonic()

    def finish(self) -> dict[str, Any]:
        """Write the output files and the record of the finished work, remove the resume states, and return the record.

        `work.outcome` writes the output files and returns the content of the record. This method adds the provenance,
        and writes the record to two equal files: outcome.json, then `job.result`.

        Raises:
            BusyError: another process has taken the lease over; then no record is written.
        """
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
        return artefacts.read_json(self.job.folder / self.job.result)
