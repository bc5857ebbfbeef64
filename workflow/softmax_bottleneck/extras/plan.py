"""The plan of a study as text: experiments, runs, how many are done, hours, memory and disk."""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from softmax_bottleneck.corpora.sizes import size_of
from softmax_bottleneck.report.views import check_options
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Study
from softmax_bottleneck.study.costs import BASIS, Cost, estimate, evaluation_hours, fit_hours
from softmax_bottleneck.study.plan import is_done
from softmax_bottleneck.training import check


@dataclass(frozen=True)
class Piece:
    """A run with its measurements, a finetuning, a dynamic evaluation, or a unit of fits, with hours by device."""

    is_done: bool
    gpu_h: float
    cpu_h: float


def plan(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Print the plan as a table, or as the JSON that `check` writes."""
    check_options(study)
    print(json.dumps(check.facts(study, check.costs(study)), indent=1) if options.json else text(study))


def text(study: Study) -> str:
    """Return the plan: a table of experiments and a table of models, with the hours of what is not done."""
    cost = check.costs(study)
    pieces = dict(_pieces(study, cost))
    lines = [f"{study.name}: {study.title}", ""]
    lines += [f"{'experiment':34} {'artefact':22} {'count':>5} {'done':>5} {'GPU h':>8} {'CPU h':>9} {'disk GB':>8}"]
    rows = [(one.id, one.artefact, [run.path for run in study.runs_of(one)]) for one in study.experiments]
    rows += [("all runs", "each run once", [run.path for run in study.needed])]
    for name, about, paths in rows:
        disk_gb = sum(cost[path][1].disk_gb for path in paths)
        lines += [f"{_line(name, about, (pieces[path] for path in paths))} {disk_gb:8.2f}"]
    finetuned, evaluated = [run.path for run in study.finetuned], [one.path for one in study.evaluations]
    for name, paths in (("finetuning", finetuned), ("dynamic evaluation", evaluated)):
        if paths:
            lines += [_line(name, "after training", (pieces[path] for path in paths))]
    for name in dict.fromkeys(unit.plan for unit in study.units):
        units = study.fits[name]
        lines += [_line(name, f"{units[0].kind}, {len(units[0].fits)} fits", (pieces[unit.path] for unit in units))]
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
    left = [piece for piece in listed if not piece.is_done]
    gpu_h, cpu_h = sum(piece.gpu_h for piece in left), sum(piece.cpu_h for piece in left)
    return f"{name:34} {about:22} {len(listed):5} {len(listed) - len(left):5} {gpu_h:8.1f} {cpu_h:9.1f}"


def _pieces(study: Study, cost: dict[str, tuple[int, Cost]]) -> Iterator[tuple[str, Piece]]:
    """Yield everything that takes hours by its path; finetunings at the most epochs they may take."""
    sizes = {name: size_of(study.store, dataset) for name, dataset in study.datasets.items()}
    for run in study.needed:
        one = cost[run.path][1]
        yield run.path, Piece(is_done(study, run), one.hours("gpu"), one.hours("cpu"))
    for run in study.finetuned:
        size = sizes[run.dataset]
        one = estimate(run, cost[run.start][0], size.tokens, size.vocabulary_size)
        yield run.path, Piece(is_done(study, run), one.gpu_h, one.cpu_h)
    for wanted in study.evaluations:
        size, count = sizes[wanted.run.dataset], cost[wanted.run.start or wanted.run.path][0]
        hours = evaluation_hours(wanted, count, size.tokens, size.vocabulary_size)
        done = (study.store.run_folder(wanted.path) / "dynamic.json").exists()
        yield wanted.path, Piece(done, hours["gpu"], hours["cpu"])
    for unit in study.units:
        done = (study.store.fits_folder(unit.path) / "done.json").exists()
        yield unit.path, Piece(done, fit_hours(unit, "gpu"), fit_hours(unit, "cpu"))
