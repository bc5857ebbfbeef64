"""The plan of a study as a person reads it: experiments, runs, how many are done, hours, memory and disk."""

from __future__ import annotations

from softmax_bottleneck.corpora.sizes import size_of
from softmax_bottleneck.study import Run, Study
from softmax_bottleneck.study.costs import Cost, estimate, evaluation_hours
from softmax_bottleneck.study.plan import is_done
from softmax_bottleneck.training.check import costs


def text(study: Study) -> str:
    """The plan as a person reads it."""
    cost = costs(study)
    lines = [f"{study.name}: {study.title}", ""]
    lines += [f"{'experiment':34} {'artefact':22} {'runs':>5} {'done':>5} {'GPU h':>8} {'CPU h':>9} {'disk GB':>8}"]
    lines += [_line(study, e.id, e.artefact, study.runs_of(e), cost) for e in study.experiments]
    lines += [_line(study, "all together (each run once)", "", study.needed, cost), ""]
    lines += _stage_lines(study, cost)
    lines += _fits_lines(study)
    hours = f"{'GPU h/run':>10} {'CPU h/run':>10} {'memory GB':>10}"
    lines += [f"{'model':34} {'dataset':22} {'seeds':>5} {'parameters':>15} {hours}"]
    for dataset, model in dict.fromkeys((run.dataset, run.model) for run in study.needed):
        runs = [run for run in study.needed if (run.dataset, run.model) == (dataset, model)]
        count, one = cost[runs[0].path]
        lines += [f"{model:34} {dataset:22} {len(runs):5} {count:15,} {one.gpu_h:10.2f} {one.cpu_h:10.2f} "]
        lines[-1] += f"{max(one.memory_gb, one.spectrum_gb):10.2f}"
    lines += ["", "Hours are estimates for runs not done, at 20 TFLOP/s (GPU) or 60 GFLOP/s (one CPU core)."]
    return "\n".join(lines)


def _line(study: Study, name: str, artefact: str, runs: tuple[Run, ...], cost: dict[str, tuple[int, Cost]]) -> str:
    left = [run for run in runs if not is_done(study, run)]
    gpu_h, cpu_h, disk_gb = (sum(getattr(cost[r.path][1], key) for r in left) for key in ("gpu_h", "cpu_h", "disk_gb"))
    done = len(runs) - len(left)
    return f"{name:34} {artefact:22} {len(runs):5} {done:5} {gpu_h:8.1f} {cpu_h:9.1f} {disk_gb:8.2f}"


def _stage_lines(study: Study, cost: dict[str, tuple[int, Cost]]) -> list[str]:
    """What follows training: how many runs, how many are done, and at most how many hours the others take."""
    sizes = {name: size_of(study.store, dataset) for name, dataset in study.datasets.items()}
    stages: dict[str, list[tuple[bool, float, float]]] = {"finetuning": [], "dynamic evaluation": []}
    for run in study.finetuned:
        size, count = sizes[run.dataset], cost[run.start][0]
        one = estimate(run, count, size.tokens, size.vocabulary_size)
        stages["finetuning"].append((is_done(study, run), one.gpu_h, one.cpu_h))
    for wanted in study.evaluations:
        size, count = sizes[wanted.run.dataset], cost[wanted.run.start or wanted.run.path][0]
        hours = evaluation_hours(wanted, count, size.tokens, size.vocabulary_size)
        done = (study.store.run_folder(wanted.path) / "dynamic.json").exists()
        stages["dynamic evaluation"].append((done, hours["gpu"], hours["cpu"]))
    lines = []
    for name, found in stages.items():
        gpu_h, cpu_h = (sum(one[kind] for one in found if not one[0]) for kind in (1, 2))
        finished = sum(one[0] for one in found)
        lines.append(f"{name:34} {'after training':22} {len(found):5} {finished:5} {gpu_h:8.1f} {cpu_h:9.1f}")
    return [*lines, ""] if study.finetuned or study.evaluations else []


def _fits_lines(study: Study) -> list[str]:
    """Fits to known laws: of every entry its units, how many are done, and how many fits each makes."""
    shown = {unit.plan for unit in study.units}
    lines = []
    for name in (name for name in study.fits if name in shown):
        units = study.fits[name]
        done = sum((study.store.fits_folder(unit.path) / "done.json").exists() for unit in units)
        lines.append(f"{name:34} {units[0].kind:22} {len(units):5} {done:5} {len(units[0].fits):5}")
    head = f"{'fits to known laws':34} {'laws':22} {'units':>5} {'done':>5} {'fits':>5}"
    return [head, *lines, ""] if lines else []
