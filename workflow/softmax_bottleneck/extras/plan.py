"""The plan of a study as a person reads it: experiments, runs, how many are done, hours, memory and disk.

And what a budget of hours buys: first the runs of one experiment, every cell of it once before any has a second seed,
then whatever fills the next experiment with the fewest hours more.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from softmax_bottleneck.corpora.sizes import size_of
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Evaluation, Experiment, Run, Study
from softmax_bottleneck.study.costs import BASIS, RATES, Cost, estimate, evaluation_hours, fit_hours, training_hours
from softmax_bottleneck.study.plan import Size, is_done
from softmax_bottleneck.training.check import costs

FIRST = "parthiban2021-table2"  # what a budget fills first, where a study has it


@dataclass(frozen=True)
class Piece:
    """A run with what is measured on it, a finetuning, a dynamic evaluation, or a unit of fits: hours by device."""

    kind: str
    is_done: bool
    hours: Mapping[str, float]


def text(study: Study, budget_h: float | None = None) -> str:
    """The plan as a person reads it, or what `budget_h` hours buy."""
    cost = costs(study)
    pieces = dict(_pieces(study, cost, _sizes(study)))
    lines = [f"{study.name}: {study.title}", ""]
    if budget_h is not None:
        return "\n".join([*lines, *_bought_lines(study, pieces, budget_h), "", BASIS])
    lines += [f"{'experiment':34} {'artefact':22} {'runs':>5} {'done':>5} {'GPU h':>8} {'CPU h':>9} {'disk GB':>8}"]
    lines += [_line(study, e.id, e.artefact, study.runs_of(e), cost) for e in study.experiments]
    lines += [_line(study, "all together (each run once)", "", study.needed, cost), ""]
    lines += _stage_lines(pieces)
    lines += _fits_lines(study, pieces)
    lines += _precision_lines(study, cost)
    hours = f"{'GPU h/run':>10} {'CPU h/run':>10} {'memory GB':>10}"
    lines += [f"{'model':34} {'dataset':22} {'seeds':>5} {'parameters':>15} {hours}"]
    for dataset, model in dict.fromkeys((run.dataset, run.model) for run in study.needed):
        runs = [run for run in study.needed if (run.dataset, run.model) == (dataset, model)]
        count, one = cost[runs[0].path]
        lines += [
            f"{model:34} {dataset:22} {len(runs):5} {count:15,} {one.hours('gpu'):10.2f} {one.hours('cpu'):10.2f}"
        ]
        lines[-1] += f" {max(one.memory_gb, one.spectrum_gb):10.2f}"
    return "\n".join([*lines, "", f"Hours are of runs not done, with their perplexities and ranks. {BASIS}"])


def _sizes(study: Study) -> dict[str, Size]:
    return {name: size_of(study.store, dataset) for name, dataset in study.datasets.items()}


def _pieces(
    study: Study, cost: Mapping[str, tuple[int, Cost]], sizes: Mapping[str, Size]
) -> Iterator[tuple[str, Piece]]:
    """All that takes hours, by its path; finetuning at its most epochs."""
    for run in study.needed:
        one = cost[run.path][1]
        yield run.path, Piece("training", is_done(study, run), {kind: one.hours(kind) for kind in ("gpu", "cpu")})
    for run in study.finetuned:
        size = sizes[run.dataset]
        one = estimate(run, cost[run.start][0], size.tokens, size.vocabulary_size)
        yield run.path, Piece("finetuning", is_done(study, run), {"gpu": one.gpu_h, "cpu": one.cpu_h})
    for wanted in study.evaluations:
        size, count = sizes[wanted.run.dataset], cost[wanted.run.start or wanted.run.path][0]
        hours = evaluation_hours(wanted, count, size.tokens, size.vocabulary_size)
        done = (study.store.run_folder(wanted.path) / "dynamic.json").exists()
        yield wanted.path, Piece("dynamic evaluation", done, hours)
    for unit in study.units:
        done = (study.store.fits_folder(unit.path) / "done.json").exists()
        yield unit.path, Piece("fits", done, {kind: fit_hours(unit, kind) for kind in ("gpu", "cpu")})


def _line(study: Study, name: str, artefact: str, runs: tuple[Run, ...], cost: dict[str, tuple[int, Cost]]) -> str:
    left = [cost[run.path][1] for run in runs if not is_done(study, run)]
    gpu_h, cpu_h = (sum(one.hours(kind) for one in left) for kind in ("gpu", "cpu"))
    disk_gb = sum(one.disk_gb for one in left)
    done = len(runs) - len(left)
    return f"{name:34} {artefact:22} {len(runs):5} {done:5} {gpu_h:8.1f} {cpu_h:9.1f} {disk_gb:8.2f}"


def _stage_lines(pieces: Mapping[str, Piece]) -> list[str]:
    """What follows training: how many runs, how many are done, and at most how many hours the others take."""
    lines = []
    for kind in ("finetuning", "dynamic evaluation"):
        found = [piece for piece in pieces.values() if piece.kind == kind]
        gpu_h, cpu_h = (sum(piece.hours[on] for piece in found if not piece.is_done) for on in ("gpu", "cpu"))
        finished = sum(piece.is_done for piece in found)
        lines.append(f"{kind:34} {'after training':22} {len(found):5} {finished:5} {gpu_h:8.1f} {cpu_h:9.1f}")
    return [*lines, ""] if any(piece.kind not in ("training", "fits") for piece in pieces.values()) else []


def _precision_lines(study: Study, cost: Mapping[str, tuple[int, Cost]]) -> list[str]:
    """What the training of all runs would take on a GPU in each precision."""
    sizes, words = _sizes(study), []
    for precision in (precision for kind, precision in RATES if kind == "gpu"):
        hours = 0.0
        for run in study.needed:
            schedule = dataclasses.replace(run.schedule, precision=precision)  # type: ignore[arg-type]
            size, other = sizes[run.dataset], dataclasses.replace(run, schedule=schedule)
            hours += training_hours(other, cost[run.path][0], size.tokens, size.vocabulary_size, "gpu")
        words.append(f"{precision} {hours:.1f}")
    return [f"GPU h of all training by schedule.precision: {', '.join(words)}", ""]


# --- what a budget buys ---------------------------------------------------------------------------------------------
def _paths_of(study: Study, experiment: Experiment, hours: Mapping[str, float]) -> list[str]:
    """What an experiment needs: of every cell the first seed, the cheapest first; then of every cell the second."""
    turns: Counter[tuple[str, str]] = Counter()
    ordered: list[tuple[int, float, list[str]]] = []
    for run in study.runs_of(experiment):
        cell, last = (run.dataset, run.model), study.last_stage(run, experiment.stages)
        parts = [run.path, last.path] if last is not run else [run.path]
        if "dynamic" in experiment.stages:
            parts.append(Evaluation(last, study.stages[cell].dynamic).path)
        ordered.append((turns[cell], sum(hours[path] for path in parts), parts))
        turns[cell] += 1
    for unit in study.fits.get(experiment.fits, ()):
        cell = (unit.plan, unit.name)
        ordered.append((turns[cell], hours[unit.path], [unit.path]))
        turns[cell] += 1
    return list(dict.fromkeys(path for _, _, parts in sorted(ordered) for path in parts))


def _bought_lines(study: Study, pieces: Mapping[str, Piece], budget_h: float) -> list[str]:
    """Experiments in the order in which hours fill them, until these are spent.

    Raises:
        UserError: there is nothing to buy.
    """
    kind = "cpu" if study.device == "cpu" else "gpu"
    left_h = {path: 0.0 if piece.is_done else piece.hours[kind] for path, piece in pieces.items()}
    shown = [experiment for experiment in study.experiments if not experiment.is_void]
    waiting = {e.id: paths for e in shown if (paths := _paths_of(study, e, left_h))}
    if not waiting:
        raise UserError(f"{study.file}: no experiment of this study computes anything: a budget has nothing to buy")
    lines = [f"{budget_h:g} {kind.upper()} hours buy, in this order:", ""]
    lines += [f"{'experiment':34} {'pieces':>6} {'of':>5} {kind.upper() + ' h':>8} {'spent':>8}"]
    spent_h = 0.0
    while waiting:
        cheapest = min(waiting, key=lambda name: sum(left_h[path] for path in waiting[name]))
        name = FIRST if FIRST in waiting else cheapest
        paths, before_h, count = waiting.pop(name), spent_h, 0
        for path in paths:
            if spent_h + left_h[path] > budget_h:
                break
            spent_h, count = spent_h + left_h[path], count + 1
            left_h[path] = 0.0
        lines.append(f"{name:34} {count:6} {len(paths):5} {spent_h - before_h:8.1f} {spent_h:8.1f}")
        if count < len(paths):
            missing = sum(left_h[path] for path in paths)
            lines.append(f"... which lacks {missing:.1f} hours; {len(waiting)} further experiments are not begun")
            break
    return lines


def _fits_lines(study: Study, pieces: Mapping[str, Piece]) -> list[str]:
    """Fits to known laws: of every entry its units, how many are done, and at most how many hours the others take."""
    lines = []
    for name in dict.fromkeys(unit.plan for unit in study.units):
        units = [pieces[unit.path] for unit in study.fits[name]]
        gpu_h, cpu_h = (sum(unit.hours[on] for unit in units if not unit.is_done) for on in ("gpu", "cpu"))
        law = f"{study.fits[name][0].kind}, {len(study.fits[name][0].fits)} fits"
        lines.append(f"{name:34} {law:22} {len(units):5} {sum(u.is_done for u in units):5} {gpu_h:8.1f} {cpu_h:9.1f}")
    head = f"{'fits to known laws':34} {'laws':22} {'units':>5} {'done':>5} {'GPU h':>8} {'CPU h':>9}"
    return [head, *lines, ""] if lines else []
