"""Weights of archived runs in float16, from which ranks and perplexities are measured again without training.

The file `<archive>.weights.safetensors` lies beside its archive. It holds the tensors `<path of a run>/<parameter>` and
names the corpora by their hashes. The settings of the runs are in the archive. Ranks use the same contexts as the step
`spectrum`: the first `rank_contexts` of the test text (None: all), read in one stream from the start.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from softmax_bottleneck.corpora import corpus
from softmax_bottleneck.jobs.devices import choose_device
from softmax_bottleneck.jobs.numerics import numerics
from softmax_bottleneck.jobs.out_of_memory import as_out_of_memory_error
from softmax_bottleneck.measuring.perplexity import hidden_states, losses
from softmax_bottleneck.measuring.spectrum import spectra
from softmax_bottleneck.ranks import rank_report
from softmax_bottleneck.report import archive, archive_file
from softmax_bottleneck.report.archive_file import FIX
from softmax_bottleneck.store import artefacts, paths
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.study import Run, Study
from softmax_bottleneck.training import model as models
from softmax_bottleneck.training import trained
from softmax_bottleneck.training.feasibility import parameters

ENDING = ".weights.safetensors"
RANKS = ("rank_press", "rank_eff_1e-3", "rank_eff_1e-4", "rank_eff_1e-5")
# Largest differences to the archived numbers, relative; a rank may always differ by two. In the 42 runs of the
# demonstration, float16 changed the perplexity by at most 2e-5, and no rank by more than one.
PERPLEXITY, RANK, RANK_AT_LEAST = 0.001, 0.01, 2


def file_of(archived: Path) -> Path:
    """Return the path of the weights of an archive file."""
    return archived.with_name(archived.name.removesuffix(archive_file.ENDING) + ENDING)


def write(study: Study, archived: Path) -> Path:
    """Write the weights of an archive's runs beside it and return the path; the same results give the same bytes.

    Raises:
        DataError: a file of a run or a corpus is missing or damaged, or a weight is beyond the range of float16.
    """
    states = archive.load(archived).records.states
    tensors: dict[str, Any] = {}
    for path in dict.fromkeys(states["path"][states["state"] == "ok"]):
        for name, tensor in trained.load_weights(study.store.run_folder(path)).items():
            tensors[f"{path}/{name}"] = half = tensor.half().cpu().contiguous()
            if not half.isfinite().all():
                raise DataError(f"{path}: {name}: not finite in float16. Expected weights below 65,504 in size")
    corpora = {name: _reference(study, name) for name in dict.fromkeys(states["dataset"])}
    file, metadata = file_of(archived), {"corpora": json.dumps(corpora, sort_keys=True)}
    artefacts.write_bytes(file, safetensors.torch.save(tensors, metadata))
    return file


def _reference(study: Study, name: str) -> dict[str, Any]:
    """Return what identifies a corpus and the contexts of its ranks."""
    content = artefacts.read_json(study.store.tokens_folder(name) / corpus.VOCABULARY_FILE)
    identity = ("token_sha256", "tokens", "vocabulary_size")
    return {key: content[key] for key in identity} | {"rank_contexts": study.datasets[name].rank_contexts}


def check_parameters(study: archive.FinishedStudy, where: Path) -> None:
    """Check that every run has as many parameters as a model with its settings.

    The size of the vocabulary is the recorded number of columns (`rank_columns`); a run without it is not checked.

    Raises:
        UserError: the numbers differ. The message names `where`, the file of the archive.
    """
    for (dataset, name), run in study.settings.items():
        words = study.records.values(dataset, name, "rank_columns")
        for seed, count in study.records.values(dataset, name, "parameters").items():
            if seed in words and count != (expected := parameters(run, int(words[seed]))):
                problem = f"{where}: rows: {dataset}/{name}/{seed}: parameters contradict its settings"
                raise UserError(f"{problem} (got {count:g}). Expected {expected}. {FIX}")


def measure_again(archived: Path, store: paths.Store) -> Iterator[tuple[str, dict[str, tuple[float, float]]]]:
    """Yield (path of a run, {metric: (its value from the float16 weights, the archived value)}) of all finished runs.

    Raises:
        DataError: the weights of a run or the tokens of a corpus are missing, damaged, or of another archive or text.
        UserError, MemoryExhaustedError: the memory of the GPU or of the machine is too small.
    """
    study, file = archive.load(archived), artefacts.checked(file_of(archived))
    for path, run, weights, reference in _stored_runs(study, file):
        try:
            measured = _measure(run, weights, reference, store)
            archived_numbers = {
                metric: study.records.values(run.dataset, run.model, metric)[run.seed] for metric in measured
            }
        except (KeyError, MemoryError, RuntimeError, TypeError) as error:  # another model, no number, no memory
            raise (as_out_of_memory_error(error, file) or _damaged(file, error)) from None
        yield path, {metric: (value, archived_numbers[metric]) for metric, value in measured.items()}


def _stored_runs(
    study: archive.FinishedStudy, file: Path
) -> Iterator[tuple[str, Run, dict[str, torch.Tensor], Mapping[str, Any]]]:
    """Yield the path, settings and weights of every finished run, and what identifies its corpus (`_reference`)."""
    runs = {row["path"]: row for row in study.records.states.to_dict("records") if row["state"] == "ok"}
    try:
        with safetensors.safe_open(file, "pt") as stored:
            corpora = json.loads(stored.metadata()["corpora"])
            names = [name.rpartition("/") for name in sorted(stored.keys())]
            if lacking := runs.keys() - {path for path, _, _ in names}:
                raise ValueError(f"{min(lacking)}: no weights")
            for path, group in groupby(names, key=lambda name: name[0]):
                row = runs[path]
                run = replace(study.settings[row["dataset"], row["model"]], seed=int(row["seed"]))
                weights = {name: stored.get_tensor(f"{path}/{name}").float() for _, _, name in group}
                if not all(tensor.isfinite().all() for tensor in weights.values()):
                    raise ValueError(f"{path}: a weight is not finite")
                yield path, run, weights, corpora[run.dataset]
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise _damaged(file, error) from None


def _damaged(file: Path, error: Exception) -> DataError:
    return DataError(f"{file}: not the weights of this archive ({error!r:.200}). {FIX}")


def _measure(
    run: Run, weights: Mapping[str, torch.Tensor], reference: Mapping[str, Any], store: paths.Store
) -> dict[str, float]:
    """Return the exact test perplexity and the ranks of a model on the corpus that `reference` names."""
    text = corpus.load(store.tokens_folder(run.dataset))
    if corpus.token_sha256(text) != reference["token_sha256"]:
        raise DataError(f"{store.tokens_folder(run.dataset)}: not the text of the archive. Expected the tokens with"
                        f" sha256 {reference['token_sha256']:.12}")  # fmt: skip
    device = choose_device(run.device)
    with numerics(run, device):
        model = models.build(run, reference["vocabulary_size"], device)
        models.load_weights(model, dict(weights))
        nll_N = losses(model, text.test, run.schedule.test_batch_size, run.schedule.bptt)
        hidden_TD = hidden_states(model, text.test, run.schedule.bptt).hidden.cpu().numpy()
        _, spectrum = spectra(model, hidden_TD[: reference["rank_contexts"]])
    ranks = rank_report(spectrum).metrics()
    return {"test_ppl_sound": math.exp(nll_N.mean())} | {name: float(ranks[name]) for name in RANKS}


def is_close(metric: str, value: float, archived: float) -> bool:
    """Return True if a number from float16 weights agrees with the archived one within the tolerances above."""
    limit = max(RANK * archived, RANK_AT_LEAST) if metric in RANKS else PERPLEXITY * archived
    return abs(value - archived) <= limit
