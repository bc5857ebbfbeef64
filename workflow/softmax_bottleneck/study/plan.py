"""The plan of a study: which runs each experiment needs, how many are done, and what the rest costs."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Dataset, Run, Study, load_dataset
from softmax_bottleneck.study.costs import Cost, estimate, evaluation_hours


@dataclass(frozen=True)
class Size:
    """Tokens per split and number of word types of a corpus."""

    tokens: dict[str, int]
    vocabulary_size: int


def size_of(store: Store, dataset: Dataset) -> Size:
    """Size of a corpus: counted when it is tokenised, else as declared in its YAML."""
    marker = store.tokens_folder(dataset.name) / "corpus.json"
    if marker.exists():
        facts = artefacts.read_json(marker)
        return Size(facts["tokens"], facts["vocabulary_size"])
    if "tokens" in dataset.expected:
        return Size(dict(dataset.expected["tokens"]), int(dataset.expected["vocabulary_size"]))
    if dataset.language:
        tokens = {split: int(dataset.language[f"{split}_tokens"]) for split in ("train", "valid", "test")}
        return Size(tokens, int(dataset.language["vocabulary_size"]))
    if dataset.base:
        whole = size_of(store, load_dataset(dataset.base, dataset.folder))
        cut = {"train": int(dataset.train_tokens or whole.tokens["train"])}
        return Size(whole.tokens | cut, int(dataset.vocabulary_size or whole.vocabulary_size))
    return _size_of_files(dataset)


def _size_of_files(dataset: Dataset) -> Size:
    """A user's own corpus before it is tokenised: count its words.

    Raises:
        UserError: its size is neither declared nor to be counted yet.
    """
    from softmax_bottleneck.corpora import corpus

    splits = {}
    with tempfile.TemporaryDirectory() as scratch:
        for split in corpus.SPLITS:
            splits[split] = corpus.read_split(_text_of(dataset, f"{split}.txt", Path(scratch)))
    words = {word for tokens in splits.values() for word in tokens}
    return Size({split: len(tokens) for split, tokens in splits.items()}, len(words))


def _text_of(dataset: Dataset, name: str, scratch: Path) -> Path:
    """A text file of a corpus where it lies, or what an archive of it holds, in a scratch folder."""
    from softmax_bottleneck.corpora import archives

    where = dataset.folder / f"{dataset.name}.yaml"
    entry = dataset.files.get(name, {})
    if "path" not in entry:
        raise UserError(f"{where}: files.{name}: give a `path`, or `expected` with tokens and vocabulary_size")
    path: Path = dataset.folder / entry["path"]
    if "member" not in entry:
        return path
    archives.extract(path, scratch, archives.by_archive({name: entry}, str(where))[path.name])
    return scratch / name


def tracked(study: Study) -> tuple[Run, ...]:
    """Runs whose weights are kept at some epochs: those of experiments with the option `snapshots`."""
    asking = [experiment for experiment in study.experiments if experiment.options.get("snapshots")]
    paths = {run.path for experiment in asking for run in study.runs_of(experiment)}
    return tuple(run for run in study.needed if run.path in paths)


def jobs(study: Study) -> dict[str, tuple[Run, ...]]:
    """Training jobs by name: so many seeds of one model at a time as the study's `replicas_per_job` says.

    A job of one run has the run's path as its name, another one `<dataset>/<model>/<seed>+<seed>...-<hash>`. Which runs
    make a job depends on the study alone and not on what is done, so that every process finds the same jobs.
    """
    families: dict[tuple[str, str], list[Run]] = {}
    for run in study.needed:
        families.setdefault((run.dataset, run.model), []).append(run)
    size = study.replicas_per_job
    chunks = [tuple(runs[at : at + size]) for runs in families.values() for at in range(0, len(runs), size)]
    return {_job_name(chunk): chunk for chunk in chunks}


def _job_name(runs: tuple[Run, ...]) -> str:
    if len(runs) == 1:
        return runs[0].path
    seeds = "+".join(str(run.seed) for run in runs)
    paths = hashlib.sha256(" ".join(run.path for run in runs).encode()).hexdigest()
    return f"{runs[0].dataset}/{runs[0].model}/{seeds}-{paths[:12]}"


def is_done(study: Study, run: Run) -> bool:
    """Whether training has ended (also as diverged)."""
    return (study.store.run_folder(run.path) / "done.json").exists()


def parameters(run: Run, vocabulary_size: int) -> int:
    """Trainable parameters, counted on a model that holds no memory.

    Raises:
        UserError: an option of the head or body does not fit.
    """
    from softmax_bottleneck.training.model import build, count_parameters

    return count_parameters(build(run, vocabulary_size, "meta"))


def costs(study: Study) -> dict[str, tuple[int, Cost]]:
    """Parameters and cost of every needed run, by path; equal settings are counted once."""
    known: dict[tuple[str, str], int] = {}
    found = {}
    sizes = {name: size_of(study.store, dataset) for name, dataset in study.datasets.items()}
    keeping = {run.path for run in tracked(study)}
    for run in study.needed:
        size, key = sizes[run.dataset], (run.dataset, run.model)
        if key not in known:
            known[key] = parameters(run, size.vocabulary_size)
        cost = estimate(run, known[key], size.tokens, size.vocabulary_size, run.path in keeping)
        found[run.path] = (known[key], cost)
    return found


def check_limits(study: Study, cost: dict[str, tuple[int, Cost]]) -> None:
    """Refuse what cannot be done here before anything is begun.

    Raises:
        UserError: a run needs more memory, the rest of the study more disk, or a rank more contexts than there are.
    """
    for dataset in study.datasets.values():
        check_contexts(dataset, size_of(study.store, dataset).tokens["test"])
    left = [run for run in study.needed if not is_done(study, run)]
    disk_gb = sum(cost[run.path][1].disk_gb for run in left)
    free_gb = study.limits.get("disk_gb", shutil.disk_usage(_existing(study.store.root)).free / 1e9)
    if disk_gb > free_gb:
        raise UserError(f"{study.file}: {len(left)} runs need about {disk_gb:.1f} GB of disk, and {free_gb:.1f} GB are "
                        "there: free some, or set limits.disk_gb where results lie elsewhere")  # fmt: skip
    for run in left:
        one = cost[run.path][1]
        _check_memory(study, run, "training", one.memory_gb, _memory_gb(study, on_gpu=run.device != "cpu"))
        _check_memory(study, run, "the singular values", one.spectrum_gb, _memory_gb(study, on_gpu=False))


def _check_memory(study: Study, run: Run, what: str, needed_gb: float, there_gb: float) -> None:
    if needed_gb > there_gb:
        raise UserError(f"{study.file}: models.{run.model}: {what} on {run.dataset} takes about {needed_gb:.1f} GB of "
                        f"memory, and {there_gb:.1f} GB are there: make the model smaller, or set limits.memory_gb "
                        "where runs go elsewhere")  # fmt: skip


def check_stages(study: Study) -> None:
    """Refuse dynamic evaluation of models that could not see beyond a segment of a few words (UserError)."""
    from softmax_bottleneck.training.model import build

    for run in {(one.run.dataset, one.run.model): one.run for one in study.evaluations}.values():
        if not build(run, size_of(study.store, study.datasets[run.dataset]).vocabulary_size, "meta").body.carries_state:
            raise UserError(f"{study.file}: models.{run.model}: dynamic evaluation needs a body that carries what came "
                            f"before; {run.body.kind} does not: take it out of that experiment")  # fmt: skip


def check_contexts(dataset: Dataset, test_tokens: int) -> None:
    """Refuse ranks of more contexts than the test text has (UserError)."""
    there = test_tokens - 1
    if (dataset.rank_contexts or 0) > there:
        raise UserError(f"{dataset.folder / dataset.name}.yaml: rank_contexts: {dataset.rank_contexts} are asked for, "
                        f"and the test text has {there}; ask for so many or fewer")  # fmt: skip


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(one for one in (path, *path.parents) if one.exists())


def _memory_gb(study: Study, on_gpu: bool) -> float:
    """Memory of the GPU or of the machine, if the study does not say another."""
    if "memory_gb" in study.limits:
        return float(study.limits["memory_gb"])
    import torch

    if on_gpu and torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory) / 1e9
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


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


def facts(study: Study) -> dict[str, Any]:
    """The plan for machines: per experiment its runs, per run its parameters and cost."""
    cost = costs(study)
    runs = {path: {"parameters": count, **vars(one)} for path, (count, one) in cost.items()}
    experiments: dict[str, list[str]] = {e.id: [run.path for run in study.runs_of(e)] for e in study.experiments}
    fits = [unit.path for unit in study.units]
    stages = {"finetuned": [run.path for run in study.finetuned], "dynamic": [one.path for one in study.evaluations]}
    return {"study": study.name, "experiments": experiments, "runs": runs, "fits": fits} | stages
