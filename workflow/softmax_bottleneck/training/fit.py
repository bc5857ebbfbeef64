"""A unit of fits in its folder: every head and width fitted to the same laws, exact to the bit across kills.

Fits that are done stay done: each has a file of its own, named by what it is, in the folder of its laws, so that
another head or width in a plan fits that one alone. Those that are not go on side by side, because they share the
laws and every fresh sample of them.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from softmax_bottleneck.corpora.known_distributions import Laws, make_laws
from softmax_bottleneck.jobs import processes
from softmax_bottleneck.jobs.checkpoint import Checkpointer
from softmax_bottleneck.jobs.interrupt import Stop, StoppedError, signals_to
from softmax_bottleneck.jobs.numerics import numerics
from softmax_bottleneck.jobs.run_lease import Lease
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.store.progress import duration
from softmax_bottleneck.study import Fit, Unit
from softmax_bottleneck.training import free_contexts
from softmax_bottleneck.training.free_contexts import FreeContexts, Recipe

Say = Callable[[str], None]
SAVE_INTERVAL_S = 60.0
SPEAK_INTERVAL_S = 30.0
LARGEST_RANKED = 1 << 24  # cells of a matrix whose ranks are measured


def fit(
    unit: Unit,
    store: Store,
    device: torch.device,
    say: Say,
    *,
    max_wall_s: float | None = None,
    save_interval_s: float = SAVE_INTERVAL_S,
) -> list[dict[str, Any]]:
    """Fit what is not fitted yet, and return tidy rows of all numbers of the unit.

    Args:
        unit: what to fit to what.
        device: where.
        say: told every half minute how far it is.
        max_wall_s: stop and save after this many seconds.
        save_interval_s: longest time between resume states.

    Raises:
        BusyError: another process works on these laws.
        StoppedError: a signal, the time budget, or the workflow that started it is gone; the state is saved.
        UserError: resume states are damaged.
    """
    stop = Stop(max_wall_s, workflow=processes.workflow())
    folder = store.fits_folder(f"laws/{unit.law_path}")
    with Lease(folder) as lease, signals_to(stop), numerics(unit, device):
        session = _Session(unit, folder, device, say)
        session.resume()
        session.work(lease, stop, save_interval_s)
        return session.finish()


class _Session:
    """The fits of a unit that are not done, side by side."""

    def __init__(self, unit: Unit, folder: Path, device: torch.device, say: Say) -> None:
        self.unit, self.folder, self.device, self.say = unit, folder, device, say
        self.laws: Laws = make_laws(unit.kind, unit.law, unit.seed)
        self.recipe = Recipe(unit.sample, unit.bias, unit.updates, unit.learning_rate)
        pending = {fit.file_name: fit for fit in unit.fits if not artefacts.is_sound(folder / fit.file_name)}
        self.open = {name: self._begin(fit) for name, fit in pending.items()}
        self.updates = 0
        self.resume_folder = folder / f"resume-{unit.unit_id}"
        self.checkpoints = Checkpointer(self.resume_folder, {"law_id": unit.law_id})

    def _begin(self, fit: Fit) -> FreeContexts:
        head, options = fit.head.name, fit.head.options
        shape = self.laws.law_NM.shape
        return FreeContexts(head, options, self._width(fit), shape, self.unit.bias, self.unit.seed, self.device)

    def _width(self, fit: Fit) -> int:
        """Its own, or the largest one with no more parameters than the head it is compared with."""
        if fit.equal_to is None:
            return fit.width
        shape, bias = self.laws.law_NM.shape, self.unit.bias
        most = free_contexts.count_parameters(fit.equal_to.name, fit.equal_to.options, fit.width, shape, bias)
        return free_contexts.width_with(fit.head.name, fit.head.options, shape, bias, most)

    def resume(self) -> None:
        """Go on from the newest resume state, if there is one."""
        state = self.checkpoints.load()
        if state is not None and self.open.keys() <= state["fits"].keys():
            self.updates = int(state["updates"])
            for name, one in self.open.items():
                one.load(state["fits"][name])
            self.say(f"{self.unit.path}: goes on after update {self.updates} of {self.recipe.updates}")

    def work(self, lease: Lease, stop: Stop, save_interval_s: float) -> None:
        """All updates that are left."""
        started = saved = spoken = time.monotonic()
        first = self.updates
        while self.open and self.updates < self.recipe.updates:
            free_contexts.update(
                list(self.open.values()), self.laws, self.recipe, self.unit.seed, self.updates, self.device
            )
            self.updates += 1
            now, reason = time.monotonic(), stop.reason()
            if reason is not None or now - saved >= save_interval_s:
                lease.beat()
                self._save()
                saved = now
            if reason is not None:
                raise StoppedError(f"{self.unit.path}: {reason[0]}; its state is saved", reason[1])
            if now - spoken >= SPEAK_INTERVAL_S:
                left_s = (now - started) / (self.updates - first) * (self.recipe.updates - self.updates)
                self.say(f"{self.unit.path}: update {self.updates} of {self.recipe.updates}, {duration(left_s)} left")
                spoken = now

    def _save(self) -> None:
        self.resume_folder.mkdir(exist_ok=True)
        fits = {name: one.state() for name, one in self.open.items()}
        self.checkpoints.save({"updates": self.updates, "fits": fits})

    def finish(self) -> list[dict[str, Any]]:
        """Measure and write what has been fitted; the rows of the whole unit."""
        for fit in self.unit.fits:
            if fit.file_name in self.open:
                facts = self._measure(fit, self.open.pop(fit.file_name))
                artefacts.write_json(self.folder / fit.file_name, facts)
        shutil.rmtree(self.resume_folder, ignore_errors=True)
        rows = [self._row("law", "", metric, v) for metric, v in self._law_metrics().items()]
        for fit in self.unit.fits:
            facts = artefacts.read_json(self.folder / fit.file_name)
            rows += [self._row(fit.model, fit.condition, metric, v) for metric, v in facts["metrics"].items()]
        return rows

    def _is_ranked(self) -> bool:
        """Ranks are of a logarithm: every word must be possible in every context."""
        return self.laws.law_NM.size <= LARGEST_RANKED and bool((self.laws.law_NM > 0).all())

    def _measure(self, fit: Fit, fitted: FreeContexts) -> dict[str, Any]:
        rows = free_contexts.chunk_rows(self.laws, self.device)
        metrics = free_contexts.distances(fitted, self.laws, rows)
        sound = all(math.isfinite(value) for value in metrics.values())
        metrics |= {"parameters": fitted.parameters, "width": fitted.contexts_ND.shape[1]}
        if sound and self._is_ranked():
            try:
                metrics |= free_contexts.ranks(fitted, self.laws, rows)
            except DataError:  # a word that the head rules out has no logarithm, and the matrix no rank
                self.say(f"{self.unit.path}: {fit.model} at width {fit.width} rules words out: it has no rank")
        return {
            "status": "ok" if sound else "diverged",
            "metrics": metrics if sound else {},
            "fit": asdict(fit),
            "law": {key: getattr(self.unit, key) for key in ("kind", "law", "seed", "law_id")},
            "recipe": asdict(self.recipe),
            "provenance": provenance.block(device=self.device.type, threads=torch.get_num_threads()),
        }

    def _law_metrics(self) -> dict[str, float]:
        found = free_contexts.law_metrics(self.laws)
        widths = sorted({fit.width for fit in self.unit.fits})
        return found | (free_contexts.law_ranks(self.laws, widths, self.unit.bias) if self._is_ranked() else {})

    def _row(self, model: str, condition: str, metric: str, value: float) -> dict[str, Any]:
        where = ";".join(filter(None, [self.unit.condition, condition]))
        named = {"table": self.unit.plan, "model": model, "condition": where, "metric": metric}
        return named | {"value": float(value), "seed": self.unit.seed}
