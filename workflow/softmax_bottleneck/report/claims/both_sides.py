"""Claims of 2026: about tokens at the top of a softmax (Basri and Jacobs), and repeated tokens (Godey and Artzi).

The models of the claims about repeated tokens are named `<dataset>/<model>`, because some compare two vocabularies. The
coverage of a run is the number of sequences of each trained token that it read until it had learned them. It is only a
lower bound for a run that had not learned them at the end of the text.
"""

import math
from collections.abc import Iterator
from itertools import chain

import pandas as pd

from softmax_bottleneck.corpora.repeat import LEARNED
from softmax_bottleneck.ranks.top_tokens import RANDOM_DIRECTIONS, TopTokens
from softmax_bottleneck.records.metrics import ACCURACY, ACCURACY_HELD_OUT, STEPS, TOP_M
from softmax_bottleneck.records.records import Records, groups
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.verdict import Claim, Code, Premise
from softmax_bottleneck.report.source import bundled_dataset
from softmax_bottleneck.statistics.intervals import smallest, student
from softmax_bottleneck.study.languages import RepeatSettings

TOP = ("dataset", "model", "seed", "V", "d", "draws", "undecided", TOP_M, "low", "high", "median")


def top_sizes(records: Records) -> pd.DataFrame:
    """Return a row per output matrix with its number of top tokens of any probabilities (columns TOP).

    Undecided draws count as failures in `top_m` and `median`, and the interval holds whether they fail or succeed.
    """
    rows = []
    measured = records.synthetic[records.synthetic["metric"] == TOP_M]
    for (dataset, model, seed, condition), draws in groups(measured, "dataset", "model", "seed", "condition"):
        facts = dict(part.split("=") for part in condition.split(";"))  # `V=1000;d=16;undecided=1`, or without the last
        words, width, undecided = (int(facts.get(key, 0)) for key in ("V", "d", "undecided"))
        most, decided = min(words - 1, width + 1), [(m, m) for m in map(int, draws["value"])]
        top = TopTokens((*decided, *[(0, most)] * undecided), most, wall_s=0.0)
        found = (len(top.bounds), undecided, top.m[0], *top.interval, top.median[0])
        rows.append((dataset, model, int(seed), words, width, *found))
    return pd.DataFrame(rows, columns=list(TOP))


def _values(data: r.CorpusData, path: str, metric: str) -> dict[int, float]:
    """Return {seed: value} of a metric; `path` is `<dataset>/<model>`."""
    dataset, model = path.split("/")
    return data.records.values(dataset, model, metric)


def coverage(text: RepeatSettings, steps: float, batch_size: int) -> float:
    """Return the number of sequences per trained token that `steps` updates of `batch_size` sequences read."""
    return steps * batch_size / (text.vocabulary_size - text.held_out)


def _coverage(data: r.CorpusData, path: str) -> list[float]:
    """Return the log coverage of every run, for batches of one sequence; empty if the text's settings are unknown.

    The batch size of the study adds the same number to every log coverage, so that comparisons do not depend on it.
    """
    dataset = bundled_dataset(path.split("/")[0])
    text = dataset.repeat if dataset else None
    return [math.log(coverage(text, steps, 1)) for steps in _values(data, path, STEPS).values()] if text else []


def _held_out(data: r.CorpusData, path: str) -> list[float]:
    return list(_values(data, path, ACCURACY_HELD_OUT).values())


def tokens_learned(data: r.CorpusData, claim: Claim, slower: bool) -> Premise:
    """Return the premise that all runs of the two models of a claim learned their tokens.

    The coverage of a run that did not is too small. `slower` is True if the claim is that the first model needs more
    coverage than the second. Then an unlearned run of the first model makes the verdict *not reproduced* unsafe, and
    one of the second model the verdict *reproduced*. If `slower` is False, it is the other way round.
    """
    unsafe = (r.NOT_REPRODUCED, r.REPRODUCED) if slower else (r.REPRODUCED, r.NOT_REPRODUCED)
    unlearned = [
        [f"{path}, seed {seed}" for seed, share in _values(data, path, ACCURACY).items() if share < LEARNED]
        for path in claim.models
    ]
    spoils = tuple(verdict for verdict, runs in zip(unsafe, unlearned, strict=True) if runs)
    return Premise(Code.TOKENS_LEARNED, {"runs": "; ".join(chain(*unlearned)) or "none"}, not any(unlearned), spoils)


def _top_of_random(data: r.CorpusData) -> Iterator[float]:
    """Yield the lower end of the interval of m of every random matrix with d = 64."""
    yield from top_sizes(data.records).query("model == 'random' and d == 64")["low"]


def _top_of_trained(data: r.CorpusData) -> Iterator[float]:
    """Yield, for each trained matrix, its m less that of the only random matrix of the same size.

    Matrices with undecided draws are left out, because their m has bounds only.
    """
    sizes = top_sizes(data.records).query("undecided == 0")
    trained = sizes[(sizes["model"] != "random") & ~sizes["model"].str.endswith(RANDOM_DIRECTIONS)]
    pairs = trained.merge(sizes[sizes["model"] == "random"], on=["V", "d"], suffixes=("", "_random"))
    yield from pairs[TOP_M] - pairs[f"{TOP_M}_random"]


repeat_coverage = r.compared(_coverage, what="sequences of each token until learned", unit="×")
held_out = r.compared(_held_out, what="accuracy on held-out tokens", unit="share")
top_of_random = r.Quantity(_top_of_random, smallest, "top tokens, smallest over random matrices", units="matrices")
top_of_trained = r.Quantity(_top_of_trained, student, "top tokens of a trained less those of a random matrix")
