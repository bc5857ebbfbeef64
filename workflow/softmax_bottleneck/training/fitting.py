"""Fits of output heads of several widths to the same known distributions, as a resumable job.

A *plan* is an entry under `fits` of a study's YAML. A *unit* is the set of all fits of a plan to the distributions of
one setting and one seed. Each finished fit has a file of its own, whose name contains a hash of the fit's settings and
code. Units with the same distributions and the same training settings (`Unit.law_id`) keep these files in one folder.
If a plan gets a new head or width, it has new units, but finished fits are not repeated. The missing fits of a unit run
together, because they share the distributions and all samples.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from softmax_bottleneck.corpora.known_distributions import make_distributions, natural
from softmax_bottleneck.jobs.devices import choose_device
from softmax_bottleneck.jobs.numerics import numerics
from softmax_bottleneck.jobs.resumable import DEFAULTS, Job, Options, Outcome, Session, Work, run_to_end
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Fit, Unit
from softmax_bottleneck.training import free_contexts, gradient_flow
from softmax_bottleneck.training.free_contexts import FreeContexts, Recipe
from softmax_bottleneck.training.run_record import DONE_FILE

EARLY = 0.05  # share of the updates after which early metrics are measured; step sizes are still near the first one
LEAST_KL = 1e-9  # nats; smaller differences from zero are rounding errors
LARGEST_RANKED = 1 << 24  # largest number of cells (contexts x words) of a matrix whose ranks are measured


def fit_unit(
    unit: Unit, folder: Path, law_folder: Path, options: Options = DEFAULTS, store: Store | None = None
) -> dict[str, Any]:
    """Do the missing fits of a unit (all fits to the distributions of one setting and seed); return its done.json.

    Other units, such as those of another plan, share `law_folder` if their distributions and training settings are the
    same. A fit that belongs to several units is therefore done once. A lease lets one process at a time work in
    `law_folder`.

    Args:
        unit: the heads, widths and known distributions.
        folder: the unit's own folder, with the resume states and done.json. The key `rows` of done.json holds the
            metrics of all fits.
        law_folder: folder of the finished fits to these distributions, one file per fit.
        options: progress function, time limit and restart of this call (see `Options`).
        store: results folder with the truth and the search of a unit of kind `natural` (default: `results`).

    Raises:
        UserError: the unit's device is not available.
        ExpectedError: the work was stopped, another process works in `law_folder`, a file is damaged, or memory ran out
            (`run_to_end` lists the subclasses).
        OSError: writing failed.
    """
    device = choose_device(unit.device, options.say)
    files = {name: law_folder / name for name in dict.fromkeys(fit.file_name for fit in unit.fits)}
    ids = {"law_id": unit.law_id, "unit_id": unit.unit_id}

    def is_whole(record: Mapping[str, Any]) -> bool:
        return bool(record["provenance"]["parents"] == _hashes(files))

    job = Job(name=unit.path, folder=folder, result=DONE_FILE, ids=ids, identity=ids, device=device,
              numerics=numerics(unit, device), owned=law_folder, files=files.values(), is_whole=is_whole)  # fmt: skip
    return run_to_end(job, lambda: Fitting(unit, files, device, options.say, store or Store()), options)


def _hashes(files: Mapping[str, Path]) -> dict[str, str]:
    return {name: artefacts.sha256_file(path) for name, path in files.items() if artefacts.is_sound(path)}


def best_rates(unit: Unit, store: Store) -> dict[str, float]:
    """Return {model: step size with the smallest mean ln KL over the widths of the search of a unit}.

    A step size at which a fit diverged is not chosen.

    Raises:
        DataError: a result of the search is missing or damaged.
    """
    losses: dict[str, dict[float, list[float]]] = {}
    for tried in unit.search:
        for row in artefacts.read_json(store.fits_folder(tried.path) / DONE_FILE)["rows"]:
            if row["metric"] == "kl_nats":
                values = losses.setdefault(row["model"], {}).setdefault(tried.learning_rate, [])
                values.append(math.log(max(row["value"], LEAST_KL)))
    for by_rate in losses.values():
        complete = max(map(len, by_rate.values()))
        by_rate |= {rate: [math.inf] for rate, values in by_rate.items() if len(values) < complete}
    return {model: min(by_rate, key=lambda rate: mean(by_rate[rate])) for model, by_rate in losses.items()}


class Fitting(Work):
    """The missing fits of a unit as resumable work; one call of `step` is one optimiser update of all these fits.

    Args:
        unit: all fits to the distributions of one seed.
        files: {file name: path} of the unit's files of single fits; a fit whose file is intact is not repeated.
        device: device of the computation.
        say: function that prints a line of progress.
        store: results folder with the truth and the search of a unit of kind `natural`.
    """

    def __init__(self, unit: Unit, files: Mapping[str, Path], device: torch.device, say: Say, store: Store) -> None:
        self.unit, self.files, self.device, self.say = unit, files, device, say
        if unit.truth:
            self.known = natural(store.fits_folder(f"truths/{unit.truth.path}"))
        else:
            self.known = make_distributions(unit.kind, unit.law, unit.seed)
        self.rates = best_rates(unit, store) if unit.search else {}
        self.recipe = Recipe(unit.sample, unit.bias, unit.updates, 1.0 if unit.search else unit.learning_rate)
        pending = {fit.file_name: fit for fit in unit.fits if not artefacts.is_sound(files[fit.file_name])}
        self.fits = {name: self._begin(fit) for name, fit in pending.items()}
        self.early: dict[str, dict[str, float]] = {}  # metrics after EARLY of the updates, if gradients are requested
        self.updates = 0

    def _begin(self, fit: Fit) -> FreeContexts:
        """Return a head and its context vectors with initial values.

        The width is `fit.width`. If the head `fit.equal_to` is given, the width is instead the largest one with which
        `fit.head` has at most as many parameters as `fit.equal_to` with width `fit.width`.
        """
        shape, bias, width = self.known.p_NM.shape, self.unit.bias, fit.width
        if fit.equal_to is not None:
            most = free_contexts.count_parameters(fit.equal_to, width, shape, bias)
            width = free_contexts.width_with(fit.head, shape, bias, most)
        fitted = FreeContexts(fit.head, width, shape, bias=bias, seed=self.unit.seed, device=self.device)
        fitted.rate_factor = self.rates.get(fit.model, 1.0)
        return fitted

    @property
    def finished(self) -> bool:
        """True if all updates are done or no fit was missing."""
        return not self.fits or self.updates == self.recipe.updates

    @property
    def where(self) -> str:
        """The current position, such as `update 3 of 100`."""
        return f"update {self.updates} of {self.recipe.updates}"

    def step(self, session: Session) -> bool:
        """Do one update of all fits; return False, because no part such as an epoch has ended (see `Work.step`).

        If the unit's `gradient` is true, the gradient shares and the KL divergence of every fit are measured once, when
        5 % of the updates are done (`_early`).
        """
        fits, seed = list(self.fits.values()), self.unit.seed
        free_contexts.update(fits, self.known, self.recipe, seed=seed, number=self.updates, device=self.device)
        self.updates += 1
        if self.unit.gradient and self.updates == max(1, int(EARLY * self.recipe.updates)):
            self.early = {name: self._early(fitted) for name, fitted in self.fits.items()}
        return False

    def _early(self, fitted: FreeContexts) -> dict[str, float]:
        """Return the present gradient shares and KL divergence of one fit; values that are not finite are left out.

        The keys are `gradient_energy_early`, `gradient_words_early` and `gradient_cosine_early` (formulas in the module
        `gradient_flow`), and `kl_nats_early`, the mean KL divergence from the true distributions in nats.
        """
        rows = free_contexts.chunk_rows(self.known, self.device)
        metrics = gradient_flow.gradient_shares(fitted, self.known)
        metrics["kl_nats"] = free_contexts.distances(fitted, self.known, rows)["kl_nats"]
        return {f"{name}_early": value for name, value in metrics.items() if math.isfinite(value)}

    def state(self) -> dict[str, Any]:
        """Return the state of all fits, for resuming."""
        fits = {name: fitted.state() for name, fitted in self.fits.items()}
        return {"updates": self.updates, "early": self.early, "fits": fits}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the unfinished fits from `state`, a result of the method `state`.

        If `state` lacks one of the missing fits, nothing is restored, and all missing fits start over. This happens if
        the file of a finished fit was lost or damaged after `state` was saved.
        """
        if self.fits.keys() <= state["fits"].keys():
            self.updates, self.early = state["updates"], state["early"]
            for name, fitted in self.fits.items():
                fitted.load(state["fits"][name])

    def progress(self, wall_s: float) -> tuple[float, str]:
        """Return the finished share of the updates (0 to 1), and a text such as `update 3 of 100`; ignore `wall_s`."""
        return self.updates / self.recipe.updates, self.where

    def outcome(self, session: Session) -> Outcome:
        """Measure every fit in `self.fits`, write its file, and drop the fit; return (record, parents, extras).

        Returns:
            record: content of done.json, with the keys `status` ("ok"), `wall_s` (seconds) and `rows`, one per metric
                of each fit of the unit. A row has the keys `table` (the name under `fits` of the study's YAML),
                `model`, `condition`, `metric`, `value` and `seed`. Metrics of the known distributions have model `law`.
            parents: {file name: sha256} of the files of all fits of the unit.
            extras: an empty dict, because the provenance needs no further entries.
        """
        for fit in self.unit.fits:
            if fit.file_name in self.fits:
                content = self._measured(fit, self.fits.pop(fit.file_name))
                session.lease.beat()
                artefacts.write_json(self.files[fit.file_name], content)
        metrics = {("law", ""): free_contexts.law_metrics(self.known)}
        if self._is_ranked():
            widths = sorted({fit.width for fit in self.unit.fits})
            metrics["law", ""] |= free_contexts.law_ranks(self.known, widths, self.unit.bias)
        for fit in self.unit.fits:
            metrics[fit.model, fit.condition] = artefacts.read_json(self.files[fit.file_name])["metrics"]
        rows, common = list[dict[str, Any]](), {"table": self.unit.plan, "seed": self.unit.seed}
        for (model, of_fit), values in metrics.items():
            place = common | {"model": model, "condition": ";".join(filter(None, [self.unit.condition, of_fit]))}
            rows += [place | {"metric": metric, "value": float(value)} for metric, value in values.items()]
        return {"status": "ok", "rows": rows, "wall_s": session.wall_s()}, _hashes(self.files), {}

    def _is_ranked(self) -> bool:
        """Return True if ranks can be measured: the matrix of distributions has no zeros and is not too large.

        It may have at most LARGEST_RANKED cells (contexts x words).
        """
        return self.known.p_NM.size <= LARGEST_RANKED and bool((self.known.p_NM > 0).all())

    def _measured(self, fit: Fit, fitted: FreeContexts) -> dict[str, Any]:
        """Return the content of a fit's file: status, metrics, settings and provenance; `fitted` is the trained fit.

        The metrics are the distances from the true distributions, the number of parameters and the width. If the unit's
        `gradient` is true, the gradient shares of the trained fit are added, and the early metrics (`_early`), measured
        after 5 % of the updates. Ranks are added unless the matrix is too large (`_is_ranked`) or P* or Q contains a
        zero. If a distance is not finite, the status is "diverged" and there are no metrics.
        """
        rows = free_contexts.chunk_rows(self.known, self.device)
        metrics = free_contexts.distances(fitted, self.known, rows)
        sound = all(math.isfinite(value) for value in metrics.values())
        if self.unit.gradient:
            metrics |= gradient_flow.gradient_shares(fitted, self.known) | self.early[fit.file_name]
        metrics |= {"parameters": fitted.parameters, "width": fitted.contexts_ND.shape[1]}
        if self.unit.truth:
            metrics |= free_contexts.top_distances(fitted, self.known, rows)
            metrics["update_ms"] = 1e3 * fitted.cpu_s / self.recipe.updates
            metrics["learning_rate"] = self.recipe.rate(0) * fitted.rate_factor
        if sound and self._is_ranked():
            try:
                metrics |= free_contexts.ranks(fitted, self.known, rows)
            except DataError:  # a word of probability zero has no logarithm, and the matrix no rank
                self.say(f"{self.unit.path}: {fit.model} at width {fit.width} rules words out: it has no rank")
        return {
            "status": "ok" if sound else "diverged",
            "metrics": metrics if sound else {},
            "fit": asdict(fit),
            "law": {key: getattr(self.unit, key) for key in ("kind", "law", "seed", "law_id")},
            "recipe": asdict(self.recipe),
            "provenance": provenance.block(device=self.device.type, threads=torch.get_num_threads()),
        }
