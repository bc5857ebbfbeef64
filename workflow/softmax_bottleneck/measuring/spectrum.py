"""The measurement `spectrum`: singular values and ranks of log-probabilities, at and before the end of training.

Suffixes: T contexts of the test text, N contexts of one chunk or of the whole text, D context width, V vocabulary.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softmax_bottleneck import ranks
from softmax_bottleneck.corpora import corpus
from softmax_bottleneck.heads.base import Head
from softmax_bottleneck.jobs.devices import choose_device, lent_gpu
from softmax_bottleneck.jobs.numerics import numerics
from softmax_bottleneck.measuring.computed import Computed
from softmax_bottleneck.measuring.perplexity import chunks_of, hidden_states
from softmax_bottleneck.measuring.saturation import saturation
from softmax_bottleneck.ranks import DeviceGram, Gram, Spectrum
from softmax_bottleneck.ranks.gram import ON_CPU, lapack_eigenvalues, lapack_threads
from softmax_bottleneck.ranks.spectrum import Float64
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study import Run, Study
from softmax_bottleneck.training import trained
from softmax_bottleneck.training.model import LanguageModel

NORMALISED_AT_ONCE = 2048  # contexts; 33,278 words take 1.1 GB on the device


def spectrum(study: Study, run: Run, done: Mapping[str, Any]) -> Computed:
    """Compute the ranks of the test text's log-probability matrix, and write spectrum.npz into the run's folder.

    spectrum.npz holds the singular values. If the run's dataset declares `rank_contexts`, the ranks use only that many
    contexts from the start of the text; further metrics, whose names end in `_all`, use all contexts.

    Args:
        study: the study.
        run: a trained run.
        done: content of the run's done.json; only `best_epoch` is read, the epoch of the stored weights.

    Returns:
        The results, whose attribute `files` is {"rank.json": ranks and their tolerances}. For a run with
        snapshots, `files` also has "epochs_rank.json", the ranks and the saturation along training. The caller
        writes these files.

    Raises:
        DataError: an input file is missing or damaged, or a log-probability is not finite.
        UserError: the machine lacks the memory for a Gram matrix.
    """
    folder = study.store.run_folder(run.path)
    limit = study.dataset(run.dataset).rank_contexts
    hidden_TD = artefacts.read_npz(folder / "hidden.npz")["hidden_TD"]
    with trained.loaded(run, folder) as model:
        first, whole = spectra(model, hidden_TD, limit)
    sigma = {"singular_values": (first or whole).with_zeros()}
    content = _rank_content(first or whole)
    if first:
        sigma["singular_values_all"] = whole.with_zeros()
        content["all"] = _rank_content(whole)
        content["metrics"] |= {f"{name}_all": rank for name, rank in content["all"].pop("metrics").items()}
    arrays = {"spectrum.npz": artefacts.write_npz(folder / "spectrum.npz", **sigma)}
    along = {}
    if trained.snapshots(folder):
        along["epochs_rank.json"] = {"rows": _ranks_along_training(study, run, done["best_epoch"], limit)}
    message = f"Press rank {content['metrics']['rank_press']} of {whole.n} columns"
    if any(ON_CPU in spectrum.method for spectrum in (first, whole) if spectrum):
        message += f"; {ON_CPU}, because those of the GPU failed a check"
    return Computed(along | {"rank.json": content}, arrays, message)


def _rank_content(spectrum: Spectrum) -> dict[str, Any]:
    """Return the content of rank.json for one spectrum: the ranks, and how they were computed.

    The key "metrics" has the ranks as {name: rank}; the names are listed in `RankReport.metrics`. All other keys of
    `RankReport.to_json` follow on the same level, such as `tolerance` (of the Press rank), `m`, `n` and `method`.
    """
    report = ranks.rank_report(spectrum)
    metrics = report.metrics()
    return {"metrics": metrics} | {key: value for key, value in report.to_json().items() if key not in metrics}


def _ranks_along_training(study: Study, run: Run, best_epoch: int, limit: int | None) -> list[dict[str, Any]]:
    """Return one row for the untrained model, one for each snapshot of training, and one for the best epoch.

    A row has the keys `epoch`, `phase` (of the optimiser: "sgd" or "asgd"), `valid_ppl` (validation perplexity) and
    `best` (True for the best epoch). It also has the ranks, such as `rank_press`, and the measures of saturation, such
    as `weight_entropy`. The untrained model has epoch 0, phase "untrained" and valid_ppl None. Ranks and saturation are
    computed on the first `limit` contexts of the test text (None: all).
    """
    rows, test_T = [], corpus.load_for(study, run).test
    device = choose_device(run.device)
    with numerics(run, device):
        for row, model in trained.models_along_training(study.store.run_folder(run.path), device):
            contexts = hidden_states(model, test_T[: limit + 1 if limit else None], run.schedule.bptt)
            _, spectrum = spectra(model, contexts.hidden.cpu().numpy())
            kept = {key: row.get(key) for key in ("epoch", "phase", "valid_ppl")} | {"best": row["epoch"] == best_epoch}
            rows.append(kept | _rank_content(spectrum)["metrics"] | saturation(model.head, contexts))
    return rows


@torch.no_grad()
def spectra(
    model: LanguageModel, hidden_TD: NDArray[np.float32], first_rows: int | None = None
) -> tuple[Spectrum | None, Spectrum]:
    """Return the spectra (first, all) of the log-probability matrix: of its first rows, and of all its rows.

    The model is set to evaluation mode. For a log-linear head the singular values are computed from the factors of the
    matrix, for other heads from its Gram matrix.

    Args:
        model: the model.
        hidden_TD: hidden states of all T contexts.
        first_rows: number of rows (contexts) of the first spectrum. If it is None or not less than T, the first
            spectrum is None.
    """
    model.eval()
    hidden = torch.from_numpy(hidden_TD).to(model.head.decoder.weight.device)
    if not model.head.is_log_linear:
        chunks: Iterator[Any] = chunks_of(model.head, hidden)  # those of a GPU stay there
        if hidden.device.type == "cpu":
            chunks = map(Tensor.numpy, chunks)
        return ranks.nested_singular_values(
            chunks, model.head.decoder.out_features, first_rows, make_gram=gram_maker(hidden.device)
        )
    weight_VD, bias_V = (tensor.cpu().numpy() for tensor in (model.head.decoder.weight, model.head.decoder.bias))
    contexts_ND = model.head.contexts(hidden).cpu().numpy()
    if hidden.device.type == "cpu":
        log_z_N = ranks.log_normalisers(contexts_ND, weight_VD, bias_V)
    else:
        log_z_N = device_log_normalisers(model.head, hidden)
    whole = ranks.factored_singular_values(contexts_ND, weight_VD, bias_V, log_z_N)
    if first_rows is None or first_rows >= len(contexts_ND):
        return None, whole
    return ranks.factored_singular_values(contexts_ND[:first_rows], weight_VD, bias_V, log_z_N[:first_rows]), whole


def device_log_normalisers(head: Head, hidden_TD: Tensor) -> Float64:
    """Return log Z [T] of a log-linear head in float64, as `log_normalisers` does, but on the device of the head.

    The sums over words of 245,569 contexts would take minutes of one CPU core, in a job that holds the GPU.
    """
    weight_DV, bias_V = head.decoder.weight.double().T, head.decoder.bias.double()
    parts = [
        torch.logsumexp(head.contexts(chunk_ND).double() @ weight_DV + bias_V, 1)
        for chunk_ND in hidden_TD.split(NORMALISED_AT_ONCE)
    ]
    return torch.cat(parts).cpu().numpy()


def gram_maker(device: torch.device) -> Callable[[int], Gram]:
    """Return a function that takes a number n and creates an n x n Gram matrix of zeros, to which rows can be added.

    On a CPU the function creates a `Gram`, whose eigenvalues LAPACK computes. On a GPU it creates a `DeviceGram`, whose
    eigenvalues the GPU computes. If the GPU fails or its result fails a check, all CPU cores compute them.
    """
    if device.type == "cpu":
        return Gram
    return functools.partial(DeviceGram, solver=eigenvalues_without_gpu, torch=torch, device=device)


def eigenvalues_without_gpu(matrix: Float64) -> Float64:
    """Return the ascending eigenvalues of a Gram matrix, computed by LAPACK on all CPU cores; overwrite the matrix.

    During the computation this process gives up its lease of the GPU, so that other jobs can use the GPU. Afterwards
    the function waits until the process has the lease again.
    """
    torch.cuda.empty_cache()
    with lent_gpu(), lapack_threads(len(os.sched_getaffinity(0))):
        return lapack_eigenvalues(matrix)
