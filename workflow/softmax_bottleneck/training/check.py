"""The step `check`: every run of a study is built once without memory, before the first job begins.

So options that do not fit each other, models that do not fit the machine and ranks of more contexts than there are come
out while nothing is lost; and parameters and costs are known.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from softmax_bottleneck.corpora.sizes import size_of
from softmax_bottleneck.corpora.tokenise import check_contexts
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Run, Study
from softmax_bottleneck.study.costs import Cost, estimate, fit_hours
from softmax_bottleneck.study.plan import is_done, tracked
from softmax_bottleneck.training.model import build, count_parameters


def check(study: Study, say: Callable[[str], None]) -> None:
    """Refuse what cannot be built or does not fit; write what everything costs.

    Raises:
        UserError: naming the model or the dataset, and what to change.
    """
    planned = costs(study)
    check_limits(study, planned)
    check_lengths(study)
    check_stages(study)
    written = facts(study, planned) | {"provenance": provenance.block()}
    artefacts.write_json(study.store.study_folder(study.name) / "check.json", written)
    hours = sum(run["cpu_h"] for run in written["runs"].values()) + sum(fit_hours(unit, "cpu") for unit in study.units)
    say(f"{study.name}: {len(written['runs'])} runs can be built; about {hours:.1f} CPU core hours if none is done")


def parameters(run: Run, vocabulary_size: int) -> int:
    """Trainable parameters, counted on a model that holds no memory.

    Raises:
        UserError: an option of the head or body does not fit.
    """
    return count_parameters(build(run, vocabulary_size, "meta"))


def costs(study: Study) -> dict[str, tuple[int, Cost]]:
    """Parameters and cost of every needed run, by path; equal settings are counted once."""
    sizes = {name: size_of(study.store, dataset) for name, dataset in study.datasets.items()}
    tracked_paths = {run.path for run in tracked(study)}
    counts: dict[tuple[str, str], int] = {}
    planned = {}
    for run in study.needed:
        size, model = sizes[run.dataset], (run.dataset, run.model)
        if model not in counts:
            counts[model] = parameters(run, size.vocabulary_size)
        cost = estimate(run, counts[model], size.tokens, size.vocabulary_size, run.path in tracked_paths)
        planned[run.path] = (counts[model], cost)
    return planned


def check_limits(study: Study, planned: Mapping[str, tuple[int, Cost]]) -> None:
    """Refuse what cannot be done here before anything is begun.

    Raises:
        UserError: a run needs more memory, the rest of the study more disk, or a rank more contexts than there are.
    """
    for dataset in study.datasets.values():
        check_contexts(dataset, size_of(study.store, dataset).tokens["test"])
    left = [run for run in study.needed if not is_done(study, run)]
    disk_gb = sum(planned[run.path][1].disk_gb for run in left)
    free_gb = study.limits.disk_gb or _free_disk_gb(study.store.root)
    if disk_gb > free_gb:
        raise UserError(f"{study.file}: {len(left)} runs need about {disk_gb:.1f} GB of disk, and {free_gb:.1f} GB are "
                        "there: free some, or set limits.disk_gb where results lie elsewhere")  # fmt: skip
    for run in left:
        cost = planned[run.path][1]
        _check_memory(study, run, "training", cost.memory_gb, _memory_gb(study, on_gpu=run.device != "cpu"))
        _check_memory(study, run, "the singular values", cost.spectrum_gb, _memory_gb(study, on_gpu=False))


def _check_memory(study: Study, run: Run, what: str, needed_gb: float, there_gb: float) -> None:
    if needed_gb > there_gb:
        raise UserError(f"{study.file}: models.{run.model}: {what} on {run.dataset} takes about {needed_gb:.1f} GB of "
                        f"memory, and {there_gb:.1f} GB are there: make the model smaller, or set limits.memory_gb "
                        "where runs go elsewhere")  # fmt: skip


def check_lengths(study: Study) -> None:
    """Refuse streams of a text so many that each is too short for one update or prediction (UserError)."""
    sizes = {name: size_of(study.store, dataset) for name, dataset in study.datasets.items()}
    for run, key, split, needed in _tokens_needed(study):
        there = sizes[run.dataset].tokens[split]
        if there < needed:
            raise UserError(f"{study.file}: models.{run.model}: {key}: {split} of {run.dataset} has {there} tokens, "
                            f"and {needed} are needed: take fewer streams (or pieces), or more text")  # fmt: skip


def _tokens_needed(study: Study) -> Iterator[tuple[Run, str, str, int]]:
    """Run, key of its settings, split, and how many tokens that needs: two rows of streams, three to train on."""
    for run in (*study.needed, *study.finetuned):
        schedule = run.schedule
        yield run, "schedule.batch_size", "train", 3 * schedule.batch_size * schedule.pieces
        yield run, "schedule.eval_batch_size", "valid", 2 * schedule.eval_batch_size
        yield run, "schedule.test_batch_size", "test", 2 * schedule.test_batch_size
    for evaluation in study.evaluations:
        streams = evaluation.settings.statistics_batch_size
        yield evaluation.run, "dynamic.statistics_batch_size", "train", 2 * streams


def check_stages(study: Study) -> None:
    """Refuse dynamic evaluation of models that could not see beyond a segment of a few words (UserError)."""
    for run in {(wanted.run.dataset, wanted.run.model): wanted.run for wanted in study.evaluations}.values():
        size = size_of(study.store, study.datasets[run.dataset])
        if not build(run, size.vocabulary_size, "meta").body.carries_state:
            raise UserError(f"{study.file}: models.{run.model}: dynamic evaluation needs a body that carries what came "
                            f"before; {run.body.kind} does not: take it out of that experiment")  # fmt: skip


def _free_disk_gb(folder: Path) -> float:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free / 1e9


def _memory_gb(study: Study, on_gpu: bool) -> float:
    """Memory of the GPU or of the machine, if the study does not say another."""
    if study.limits.memory_gb:
        return study.limits.memory_gb
    if on_gpu and torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory) / 1e9
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def facts(study: Study, planned: Mapping[str, tuple[int, Cost]]) -> dict[str, Any]:
    """The plan for machines: per experiment its runs, per run its parameters and cost."""
    runs = {path: {"parameters": count, **vars(cost)} for path, (count, cost) in planned.items()}
    experiments: dict[str, list[str]] = {e.id: [run.path for run in study.runs_of(e)] for e in study.experiments}
    fits = [unit.path for unit in study.units]
    stages = {"finetuned": [run.path for run in study.finetuned], "dynamic": [one.path for one in study.evaluations]}
    return {"study": study.name, "experiments": experiments, "runs": runs, "fits": fits} | stages
