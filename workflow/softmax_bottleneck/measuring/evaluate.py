"""The measurement `evaluate`: perplexities and predicted words of a trained run, and hidden states of the test text."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from softmax_bottleneck.corpora import corpus
from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.heads.lms_plif import PiecewiseLinear
from softmax_bottleneck.measuring import known_truth, perplexity, predictions
from softmax_bottleneck.measuring.computed import Computed, contexts_file
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study import Run, Study
from softmax_bottleneck.training import model as models
from softmax_bottleneck.training.model import LanguageModel
from softmax_bottleneck.training.trained import loaded

GRID = 321  # points at which a learned function is stored: 0.125 apart if its domain is [-20, 20], as published


def evaluate(study: Study, run: Run, done: Mapping[str, Any]) -> Computed:
    """Compute the perplexities and predicted words of a trained run, and write hidden.npz into the run's folder.

    hidden.npz holds the hidden states of the test text and the token that follows each of them.

    Args:
        study: the study.
        run: the run.
        done: content of the run's done.json.

    Returns:
        A `Computed`: `files` has the contents of topk.json (predicted words) and measure.json (perplexities, sizes and
        times), which the caller writes. `arrays` has the hash of hidden.npz.

    Raises:
        DataError: an input file is missing or damaged; a paper published the word at a position of the test text, but
            the text has another word there; or the probabilities of a context do not sum to one.
    """
    folder, tokens = study.store.run_folder(run.path), corpus.load_for(study, run)
    places, law = _places(study, run.dataset, tokens), known_truth.law_of(study, run.dataset, tokens)
    with loaded(run, folder) as model:
        contexts = perplexity.hidden_states(model, tokens.test, run.schedule.bptt)
        rows = [place.index - 1 for place in places]
        predicted = perplexity.predict(model, contexts, rows, law.kl_nats if law else None)
        metrics = perplexity.perplexity_metrics(model, tokens, predicted.log_p_T, run.schedule)
        slopes, curves = _learned_function(run, model)
    metrics |= slopes | {"params_m": done["parameters"] / 1e6, "train_ppl": done["train_ppl"]}
    metrics["sec_per_epoch"] = done["timing"]["seconds_per_epoch"]
    metrics["ms_per_batch"] = 1000 * metrics["sec_per_epoch"] * done["epochs"] / done["steps"]
    metrics["train_minutes"] = done["timing"]["wall_s"] / 60
    metrics |= law.metrics(predicted.kl_T) if law and predicted.kl_T is not None else {}
    hidden = {"hidden_TD": contexts.hidden.cpu().numpy(), "targets_T": contexts.targets.cpu().numpy().astype(np.int32)}
    shown = [predictions.describe(place, predicted.top[row], tokens) for place, row in zip(places, rows, strict=True)]
    topk = {"contexts": shown, "hits": predictions.hit_rates(predicted.true_rank_T)}
    files = {"topk.json": topk, "measure.json": {"metrics": metrics} | curves}
    arrays = {"hidden.npz": artefacts.write_npz(folder / "hidden.npz", **hidden)}
    return Computed(files, arrays, f"test perplexity {metrics['test_ppl']:.2f}")


def _places(study: Study, name: str, tokens: Corpus) -> tuple[predictions.Place, ...]:
    """Return the positions of the test text whose predicted words are shown; `name` is the name of the dataset.

    If a paper published positions for this dataset, these are returned, otherwise a random sample.

    Raises:
        DataError: the test text lacks the published word at a published position.
    """
    file = contexts_file(study, name)
    if not file:
        return predictions.sampled_places(tokens)
    places = predictions.published_places(file)
    predictions.check_places(places, tokens)
    return places


def _learned_function(run: Run, model: LanguageModel) -> tuple[dict[str, float], dict[str, Any]]:
    """Return slope metrics and curves of the piecewise linear function (PLIF) that a run's head has learned.

    An untrained model with the same settings and seed gives the initial function, for comparison.

    Returns:
        Two dicts, both empty for a head without such a function. The first has the statistics slope_mean, slope_std,
        slope_min and slope_max of the learned function, and those of the initial function with the suffix `_init`. The
        second is {"function": values of both functions at evenly spaced logits, from `function_curves`}.
    """

    trained = piecewise_linear(model)
    if trained is None:
        return {}, {}
    initial = piecewise_linear(models.build(run, model.head.decoder.out_features))
    assert initial is not None  # the same head
    slopes = slope_metrics(trained) | slope_metrics(initial, "_init")
    return slopes, {"function": function_curves(trained, initial)}


def piecewise_linear(model: LanguageModel) -> PiecewiseLinear | None:
    """Return the learned function of a head `lms-plif`, or of a mixture with `pointwise: lms-plif`; None for others."""
    return next((module for module in model.head.modules() if isinstance(module, PiecewiseLinear)), None)


@torch.no_grad()
def slope_metrics(function: PiecewiseLinear, suffix: str = "") -> dict[str, float]:
    """Return mean, standard deviation, minimum and maximum of a function's slopes (Ganea et al. 2019, Table 2).

    The standard deviation divides by the number of slopes. The keys are slope_mean, slope_std, slope_min and slope_max,
    each followed by `suffix`.
    """
    slope_K = function.table()[:, 0].double()
    statistics = {"mean": slope_K.mean(), "std": slope_K.std(correction=0), "min": slope_K.min(), "max": slope_K.max()}
    return {f"slope_{name}{suffix}": float(value) for name, value in statistics.items()}


@torch.no_grad()
def function_curves(trained: PiecewiseLinear, initial: PiecewiseLinear) -> dict[str, list[float]]:
    """Return the values of the trained and the initial function at evenly spaced logits, for a figure.

    The keys are `logit` (GRID logits, from the lower to the upper bound of the domain), `trained` and `initial` (the
    values at these logits). All numbers are rounded to 4 decimals.
    """
    logit_G = torch.linspace(-trained.bound, trained.bound, GRID, dtype=torch.float64)
    curves = {
        "logit": logit_G,
        "trained": trained(logit_G.to(trained.raw_slope)),
        "initial": initial(logit_G.to(initial.raw_slope)),
    }
    return {name: [round(value, 4) for value in curve_G.tolist()] for name, curve_G in curves.items()}
