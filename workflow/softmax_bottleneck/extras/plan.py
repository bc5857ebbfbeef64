"""The plan of a study as text: experiments, runs, how many are done, hours, memory and disk.

With a budget of hours it lists what they buy: first one experiment, the first seed of all its cells before any second
seed, then always the experiment that is cheapest to complete.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from softmax_bottleneck.corpora.sizes import size_of
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Evaluation, Experiment, Study
from softmax_bottleneck.study.costs import BASIS, Cost, estimate, evaluation_hours, fit_hours
from softmax_bottleneck.study.plan import is_done
from softmax_bottleneck.training.check import costs

FIRST = "parthiban2021-table2"  # the experiment that a budget buys first, if the study has it
KINDS = ("gpu", "cpu")


@dataclass(frozen=True)
class Piece:
    """A run with its measurements, a finetuning, a dynamic evaluation, or a unit of fits, with hours by device."""

    is_done: bool
    hours: Mapping[str, float]


Pieces = Mapping[str, Piece]


def text(study: Study, budget_h: float | None = None) -> str:
    """Return the plan as text, or what `budget_h` hours buy."""
    cost = costs(study)
    runs, stages, fits = _runs(study, cost), dict(_stages(study, cost)), _fits(study)
    lines = [f"{study.name}: {study.title}", ""]
    if budget_h is not None:
        return "\n".join([*lines, *_bought(study, runs | stages | fits, budget_h), "", BASIS])
    lines += [f"{'experiment':34} {'artefact':22} {'count':>5} {'done':>5} {'GPU h':>8} {'CPU h':>9} {'disk GB':>8}"]
    for experiment in study.experiments:
        paths = [run.path for run in study.runs_of(experiment)]
        disk_gb = sum(cost[path][1].disk_gb for path in paths)
        lines += [f"{_line(experiment.id, experiment.artefact, (runs[path] for path in paths))} {disk_gb:8.2f}"]
    disk_gb = sum(cost[run.path][1].disk_gb for run in study.needed)
    lines += [f"{_line('all runs', 'each run once', runs.values())} {disk_gb:8.2f}"]
    finetuned, evaluated = [run.path for run in study.finetuned], [one.path for one in study.evaluations]
    for name, paths in (("finetuning", finetuned), ("dynamic evaluation", evaluated)):
        if paths:
            lines += [_line(name, "after training", (stages[path] for path in paths))]
    for name in dict.fromkeys(unit.plan for unit in study.units):
        units = study.fits[name]
        about = f"{units[0].kind}, {len(units[0].fits)} fits"
        lines += [_line(name, about, (fits[unit.path] for unit in units))]
    hours = f"{'GPU h/run':>10} {'CPU h/run':>10} {'memory GB':>10}"
    lines += ["", f"{'model':34} {'dataset':22} {'seeds':>5} {'parameters':>15} {hours}"]
    for (dataset, model), seeds in Counter((run.dataset, run.model) for run in study.needed).items():
        count, one = next(cost[run.path] for run in study.needed if (run.dataset, run.model) == (dataset, model))
        line = f"{model:34} {dataset:22} {seeds:5} {count:15,}"
        line += f" {one.hours('gpu'):10.2f} {one.hours('cpu'):10.2f} {max(one.memory_gb, one.spectrum_gb):10.2f}"
        lines.append(line)
    return "\n".join([*lines, "", f"Hours are of runs not done, with their perplexities and ranks. {BASIS}"])


def _line(name: str, about: str, pieces: Iterable[Piece]) -> str:
    """Return a row of the plan: how many pieces, how many are done, and the hours of the others."""
    listed = list(pieces)
    gpu_h, cpu_h = (sum(piece.hours[kind] for piece in listed if not piece.is_done) for kind in KINDS)
    done = sum(piece.is_done for piece in listed)
    return f"{name:34} {about:22} {len(listed):5} {done:5} {gpu_h:8.1f} {cpu_h:9.1f}"


# --- what takes hours, by path --------------------------------------------------------------------------------------
def _runs(study: Study, cost: Mapping[str, tuple[int, Cost]]) -> dict[str, Piece]:
    hours = {path: {kind: one.hours(kind) for kind in KINDS} for path, (_, one) in cost.items()}
    return {run.path: Piece(is_done(study, run), hours[run.path]) for run in study.needed}


def _stages(study: Study, cost: Mapping[str, tuple[int, Cost]]) -> Iterator[tuple[str, Piece]]:
    """Yield finetunings, at the most epochs they may take, and dynamic evaluations."""
    sizes = {name: size_of(study.store, dataset) for name, dataset in study.datasets.items()}
    for run in study.finetuned:
        size = sizes[run.dataset]
        one = estimate(run, cost[run.start][0], size.tokens, size.vocabulary_size)
        yield run.path, Piece(is_done(study, run), {"gpu": one.gpu_h, "cpu": one.cpu_h})
    for wanted in study.evaluations:
        size, count = sizes[wanted.run.dataset], cost[wanted.run.start or wanted.run.path][0]
        hours = evaluation_hours(wanted, count, size.tokens, size.vocabulary_size)
        yield wanted.path, Piece((study.store.run_folder(wanted.path) / "dynamic.json").exists(), hours)


def _fits(study: Study) -> dict[str, Piece]:
    done = {unit.path: (study.store.fits_folder(unit.path) / "done.json").exists() for unit in study.units}
    return {u.path: Piece(done[u.path], {kind: fit_hours(u, kind) for kind in KINDS}) for u in study.units}


# --- what a budget buys ---------------------------------------------------------------------------------------------
def _paths_of(study: Study, experiment: Experiment, hours: Mapping[str, float]) -> list[str]:
    """Return what an experiment needs: the first seed of every cell, the cheapest first, then the second seeds."""
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


def _bought(study: Study, pieces: Pieces, budget_h: float) -> list[str]:
    """Return the experiments in the order in which a budget buys them, until it is spent.

    Raises:
        UserError: no experiment computes anything.
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
