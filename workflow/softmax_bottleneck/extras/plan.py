"""The plan of a study as text: experiments and runs, how many are done, and the hours, memory and disk they need."""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator

from softmax_bottleneck.report.views import check_options
from softmax_bottleneck.study import Study, costs, plan
from softmax_bottleneck.training import feasibility

Hours = tuple[bool, float, float]  # True if a run or another item of work is done, its GPU hours, its CPU hours


def print_plan(study: Study, options: argparse.Namespace) -> None:
    """Print the plan of a study: as two tables (see `text`), or as JSON if `options.json` is true.

    The JSON has the content of check.json, except for the provenance (see `feasibility.facts`).

    Raises:
        UserError: an option of a table or figure is invalid, or the options of a model do not fit together.
    """
    check_options(study)
    print(json.dumps(feasibility.facts(study, feasibility.costs(study)), indent=1) if options.json else text(study))


def text(study: Study) -> str:
    """Return the plan of a study as text with two tables.

    The first table has the hours that the experiments and fits still need. The second has a row per model and dataset:
    number of runs, number of parameters, hours of a run and its memory.
    """
    cost = feasibility.costs(study)
    work = dict(_work(study, cost))
    left = [hours for hours in work.values() if not hours[0]]
    gpu, cpu = (duration(sum(hours[kind] for hours in left)) for kind in (1, 2))
    total = f"left: {len(left)} of {len(work)} runs, evaluations and fits: {gpu} of a GPU, or {cpu} of a CPU core"
    lines = [f"{study.name}: {study.title}", total, ""]
    lines += [f"{'experiment':34} {'artefact':22} {'count':>5} {'done':>5} {'GPU':>9} {'CPU':>9} {'disk GB':>8}"]
    rows = [(one.id, one.artefact, [run.path for run in study.runs_of(one)]) for one in study.experiments]
    if study.shown_tuned:
        rows += [("search", "one seed a point", [run.path for run in study.searched])]
        rows += [("confirmation", "at points to choose", [run.path for run in study.awaited])]
    needed = (*study.needed, *study.awaited)
    for name, about, paths in [*rows, ("all runs", "each run once", [run.path for run in needed])]:
        disk_gb = sum(cost[path][1].disk_gb for path in paths)
        lines += [f"{_line(name, about, (work[path] for path in paths))} {disk_gb:8.2f}"]
    finetuned, evaluated = [run.path for run in study.finetuned], [one.path for one in study.evaluations]
    for name, paths in (("finetuning", finetuned), ("dynamic evaluation", evaluated)):
        lines += [_line(name, "after training", (work[path] for path in paths))] if paths else []
    for name in dict.fromkeys(unit.plan for unit in study.units):
        units = study.fits[name]
        lines += [_line(name, f"{units[0].kind}, {len(units[0].fits)} fits", (work[unit.path] for unit in units))]
    hours = f"{'GPU/run':>10} {'CPU/run':>10} {'memory GB':>10}"
    lines += ["", f"{'model':34} {'dataset':22} {'runs':>5} {'parameters':>15} {hours}"]
    labels = {run.path: (run.dataset, run.model) for run in needed}
    labels |= {run.path: (one.key[0], f"{one.key[1]}: search") for one in study.shown_tuned for run in one.runs}
    seeds = Counter(labels[run.path] for run in needed)
    for (dataset, model), run in {labels[run.path]: run for run in needed}.items():
        count, one = cost[run.path]
        line = f"{model:34} {dataset:22} {seeds[dataset, model]:5} {count:15,}"
        line += f" {duration(one.hours('gpu')):>10} {duration(one.hours('cpu')):>10}"
        line += f" {max(one.memory_gb, one.spectrum_gb):10.2f}"
        lines.append(line)
    basis = f"The first table has the hours still needed; those of runs include perplexities and ranks. {costs.BASIS}"
    return "\n".join([*lines, "", basis])


def _line(name: str, about: str, work: Iterable[Hours]) -> str:
    """Return a row of the first table of `text`; the caller appends the disk space of runs.

    `work` has an item (is done, GPU hours, CPU hours) for each run or other piece of work. The row has `name`, the
    remark `about`, the number of items, how many of them are done, and the GPU and CPU hours of the others.
    """
    listed = list(work)
    left = [(gpu_h, cpu_h) for is_done, gpu_h, cpu_h in listed if not is_done]
    gpu_h, cpu_h = sum(gpu_h for gpu_h, _ in left), sum(cpu_h for _, cpu_h in left)
    return f"{name:34} {about:22} {len(listed):5} {len(listed) - len(left):5} {duration(gpu_h):>9} {duration(cpu_h):>9}"


def duration(hours: float) -> str:
    """Return hours as text: `12.3 h`, `45 min`, or below ten minutes `3.1 min`; zero is `0`."""
    if hours >= 1:
        return f"{hours:,.1f} h"
    return f"{60 * hours:.{0 if hours >= 1 / 6 else 1}f} min" if hours else "0"


def _work(study: Study, cost: dict[str, tuple[int, costs.Cost]]) -> Iterator[tuple[str, Hours]]:
    """Yield (path, (is done, GPU hours, CPU hours)) for every run, finetuning, dynamic evaluation and unit of a study.

    The hours are those of the complete item, even if the item is done or partly done. Finetuning is estimated with its
    maximum number of epochs.

    Args:
        study: the study.
        cost: path of each run -> (number of parameters, cost), as `feasibility.costs` returns them.
    """
    sizes = feasibility.sizes_of(study)
    searched = {run.path for run in study.searched}  # these are trained, but not measured
    for run in (*study.needed, *study.awaited):
        one = cost[run.path][1]
        gpu_h, cpu_h = (one.gpu_h, one.cpu_h) if run.path in searched else (one.hours("gpu"), one.hours("cpu"))
        yield run.path, (plan.is_done(study, run), gpu_h, cpu_h)
    for run in study.finetuned:
        estimate = costs.estimate(run, cost[run.start][0], sizes[run.dataset])
        yield run.path, (plan.is_done(study, run), estimate.gpu_h, estimate.cpu_h)
    for evaluation in study.evaluations:
        count, size = cost[evaluation.run.start or evaluation.run.path][0], sizes[evaluation.run.dataset]
        gpu_h, cpu_h = (costs.evaluation_hours(evaluation, count, size, kind) for kind in ("gpu", "cpu"))
        done = (study.store.run_folder(evaluation.path) / "dynamic.json").exists()
        yield evaluation.path, (done, gpu_h, cpu_h)
    for unit in study.units:
        done = (study.store.fits_folder(unit.path) / "done.json").exists()
        yield unit.path, (done, costs.fit_hours(unit, "gpu"), costs.fit_hours(unit, "cpu"))
