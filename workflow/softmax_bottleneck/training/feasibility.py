"""Check that a study can run here: build its models without weights, count parameters and estimate costs.

This finds incompatible options, models that are too large for the machine, and datasets whose ranks are to be computed
over more contexts than the test text has.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from softmax_bottleneck.corpora.sizes import size_of
from softmax_bottleneck.corpora.words import check_contexts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Run, Study
from softmax_bottleneck.study.costs import Cost, estimate
from softmax_bottleneck.study.plan import Size, is_done, tracked
from softmax_bottleneck.training.model import build, count_parameters


def sizes_of(study: Study) -> dict[str, Size]:
    """Return {name: size} of a study's corpora (see `size_of`)."""
    return {name: size_of(study.store, dataset) for name, dataset in study.datasets.items()}


def parameters(run: Run, vocabulary_size: int) -> int:
    """Return the number of trainable parameters of a run's model, counted without allocating the weights.

    Raises:
        UserError: the options of the model do not fit together.
    """
    return count_parameters(build(run, vocabulary_size, "meta"))


def costs(study: Study) -> dict[str, tuple[int, Cost]]:
    """Return {path: (number of trainable parameters, estimated cost)} of every run that the study needs or awaits.

    Models with the same structure are built once, as building one takes milliseconds and a grid may have thousands.

    Raises:
        UserError: the options of a model do not fit together.
    """
    sizes = sizes_of(study)
    tracked_paths = {run.path for run in tracked(study)}
    counts: dict[str, int] = {}
    planned = {}
    for run in (*study.needed, *study.awaited):
        size, structure = sizes[run.dataset], _structure(run)
        if structure not in counts:
            try:
                counts[structure] = parameters(run, size.vocabulary_size)
            except UserError as error:
                raise UserError(f"{study.file}: models.{run.model}: {error}") from None
        planned[run.path] = counts[structure], estimate(run, counts[structure], size, run.path in tracked_paths)
    return planned


def _structure(run: Run) -> str:
    """Return a text that differs between two runs if their numbers of parameters may differ.

    A number that is not whole, such as a dropout or a slope, sets no size. Only whether it is zero counts: a body
    without the option rejects any other value.
    """
    body, head = (
        {key: bool(value) if isinstance(value, float) else value for key, value in part.items()}
        for part in (vars(run.body), run.head.options)
    )
    return f"{run.dataset} {body} {run.head.name} {head}"


def check_limits(study: Study, planned: Mapping[str, tuple[int, Cost]]) -> str:
    """Check that this machine and the texts suffice for the study; `planned` is the result of `costs`.

    Return what is left as text: the number of unfinished runs, and their disk space.

    Raises:
        UserError: an unfinished run needs more memory than the GPU or the machine has; the unfinished runs together
            need more disk space than is free; ranks are to be computed over more contexts than the test text has
            (`Dataset.rank_contexts`); or a text is too short for the number of streams (parallel sequences) into which
            it is cut.
    """
    sizes = sizes_of(study)
    for name, dataset in study.datasets.items():
        check_contexts(dataset, sizes[name].tokens["test"])
    for run, key, split, needed in _tokens_needed(study):
        there = sizes[run.dataset].tokens[split]
        if there < needed:
            raise UserError(f"{study.file}: models.{run.model}: {key}: {split} of {run.dataset} has {there} tokens, "
                            f"and {needed} are needed: take fewer streams (or pieces), or more text")  # fmt: skip
    runs = (*study.needed, *study.awaited)
    left = [run for run in runs if not is_done(study, run)]
    disk_gb = sum(planned[run.path][1].disk_gb for run in left)
    root = study.store.root.absolute()
    free_gb = shutil.disk_usage(next(p for p in (root, *root.parents) if p.exists())).free / 1e9
    if disk_gb > free_gb:
        raise UserError(f"{study.file}: {len(left)} runs need about {disk_gb:.1f} GB of disk, and {free_gb:.1f} GB are "
                        "there: free some")  # fmt: skip
    for run in left:
        cost = planned[run.path][1]
        for what, needed_gb, on_gpu in (
            ("training", cost.memory_gb, run.device != "cpu"),
            ("the singular values", cost.spectrum_gb, False),
        ):
            if needed_gb > (there_gb := _memory_gb(on_gpu)):
                raise UserError(
                    f"{study.file}: models.{run.model}: {what} on {run.dataset} takes about {needed_gb:.1f} GB of"
                    f" memory, and {there_gb:.1f} GB are there: make the model smaller"
                )
    return f"{len(left)} of {len(runs)} runs are left; they need {disk_gb:.1f} GB of disk"


def _memory_gb(on_gpu: bool) -> float:
    """Return the memory in GB (1e9 bytes) of the GPU if `on_gpu` is true and there is one, else of the machine."""
    if on_gpu and torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory) / 1e9
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def _tokens_needed(study: Study) -> Iterator[tuple[Run, str, str, int]]:
    """Yield (run, key, split, tokens) for every text that is read in parallel streams.

    `tokens` is the least number of tokens that the split must have for the run. `key` is the setting with the number of
    streams, such as `schedule.batch_size`. Each stream needs two tokens, an input and its target. Training needs three
    per stream, because no chunk starts at a stream's last two tokens. If training divides its text into pieces
    (`schedule.pieces`), each piece needs three tokens per stream.
    """
    for run in (*study.needed, *study.finetuned):
        schedule = run.schedule
        yield run, "schedule.batch_size", "train", 3 * schedule.batch_size * schedule.pieces
        yield run, "schedule.eval_batch_size", "valid", 2 * schedule.eval_batch_size
        yield run, "schedule.test_batch_size", "test", 2 * schedule.test_batch_size
    for evaluation in study.evaluations:
        streams = evaluation.settings.statistics_batch_size
        yield evaluation.run, "dynamic.statistics_batch_size", "train", 2 * streams


def never_averaged(study: Study) -> list[str]:
    """Return the models of which the optimizer `et-asgd` averages no weights, because training ends before."""
    schedules = {run.model: run.schedule for run in (*study.needed, *study.awaited)}
    averaging = {model: schedule for model, schedule in schedules.items() if schedule.optimizer == "et-asgd"}
    return [model for model, schedule in averaging.items() if schedule.switch_after_epoch >= schedule.epochs]


def check_stages(study: Study) -> None:
    """Raise UserError if dynamic evaluation is planned for a stateless body, such as the transformer."""
    sizes = sizes_of(study)
    for run in {(e.run.dataset, e.run.model): e.run for e in study.evaluations}.values():
        if not build(run, sizes[run.dataset].vocabulary_size, "meta").body.carries_state:
            raise UserError(f"{study.file}: models.{run.model}: dynamic evaluation needs a body that carries what came "
                            f"before; {run.body.kind} does not: take it out of that experiment")  # fmt: skip


def facts(study: Study, planned: Mapping[str, tuple[int, Cost]]) -> dict[str, Any]:
    """Return the plan of a study as a dict for check.json; `planned` is the result of `costs`.

    Returns:
        A dict with the keys `study` (name), `experiments` ({id: paths of its runs}), `runs` ({path: dict with
        `parameters`, the number of parameters, and the fields of `Cost`}), `fits` (paths of the units of fits),
        `finetuned` (paths of the finetuned runs) and `dynamic` (paths of the dynamic evaluations).
    """
    runs = {path: {"parameters": count, **vars(cost)} for path, (count, cost) in planned.items()}
    experiments: dict[str, list[str]] = {e.id: [run.path for run in study.runs_of(e)] for e in study.experiments}
    fits = [unit.path for unit in study.units]
    stages = {"finetuned": [run.path for run in study.finetuned], "dynamic": [e.path for e in study.evaluations]}
    return {"study": study.name, "experiments": experiments, "runs": runs, "fits": fits} | stages
