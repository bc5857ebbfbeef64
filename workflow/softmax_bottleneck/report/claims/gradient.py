"""Whether the gradient that a head lets through tells how near it comes to a known law: conclusions of our own.

Godey and Artzi 2026 see the output layer suppress most of a loss' gradient. Here the best gradient is known. Numbers
are of laws with more columns than the softmax has (r > d), and of heads with no more parameters than that softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pandas as pd

from softmax_bottleneck.measuring.statistics import pearson_r
from softmax_bottleneck.report.claims import quantities as q
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.engine import Claim
from softmax_bottleneck.report.claims.known_truth import HARDLY, OPEN, over_seeds
from softmax_bottleneck.report.claims.view import SYNTHETIC

EARLY, LATE, COSINE = "gradient_energy_early", "gradient_energy", "gradient_cosine_early"
WORDS, RANK = "gradient_words", "rank_press"
LOSS_EARLY, LOSS = "kl_nats_early", "kl_nats"
SPENT = 0.05  # of the gradient's energy: less is next to nothing
EQUAL = f"r > d and extra <= {HARDLY}"


def _r_within(first: str, second: str, own: pd.DataFrame) -> float:
    """Pearson's r over heads of two logarithms, both less their means at the same law and width."""
    if not {first, second} <= set(own):
        return math.nan
    own = own[(own[[first, second]] > 0).all(axis=1)]
    logs = own[[first, second]].map(math.log)
    centred = (logs - logs.groupby([own["r"], own["d"]]).transform("mean")).to_numpy()
    return float(pearson_r(centred[:, 0], centred[:, 1])) if len(own) >= q.MIN_POINTS else math.nan


def _mean(metric: str) -> Callable[[pd.DataFrame], float]:
    return lambda own: float(own[metric].mean()) if metric in own else math.nan


def _telling(first: str, second: str, what: str) -> q.Quantity:
    words = f"Pearson’s r of {what} within law and width"
    return over_seeds(words, "", EQUAL, partial(_r_within, first, second))


PASSED = over_seeds("energy of the best gradient that passes early", "share", OPEN, _mean(EARLY))
LEFT = over_seeds("energy of the best gradient that passes at the end", "share", OPEN, _mean(LATE))
claim = partial(Claim, "gradient", where="fits to known laws", corpora=SYNTHETIC)
CLAIMS = (
    claim("gradient-suppressed", "A softmax narrower than its law passes less than half of the best gradient’s energy.",
          rule=r.below(PASSED, 0.5), limits="That this is what it loses by."),
    claim("gradient-spent", "At the end next to nothing of the best gradient passes a narrow softmax any more.",
          rule=r.below(LEFT, SPENT),
          limits="That a network below it would get as far: context vectors are free here."),
    claim("gradient-speed", "Heads that let more of the best gradient through are nearer to the law early on.",
          rule=r.below(_telling(EARLY, LOSS_EARLY, "log energy passed and log loss, both early,"), -r.STRONG),
          limits="That a network below would learn faster."),
    claim("gradient-direction", "Heads whose steps lead along the best gradient are nearer to the law early on.",
          rule=r.below(_telling(COSINE, LOSS_EARLY, "log cosine and log loss, both early,"), -r.STRONG),
          limits="Where they end: a fast head may stop far from the law."),
    claim("gradient-explains", "Heads that let more of the best gradient through early end nearer to the law.",
          rule=r.below(_telling(EARLY, LOSS, "log energy passed early and log loss"), -r.STRONG),
          limits="Cause: a head that passes more is another function as well."),
    claim("gradient-words", "Heads that let more of the observed words’ gradients through end nearer to the law.",
          rule=r.below(_telling(WORDS, LOSS, "log energy of words passed and log loss"), -r.STRONG),
          limits="Cause: a head that has learned more may pass more for that."),
    claim("gradient-rank", "At equal parameters heads of higher Press rank end nearer to the law.",
          rule=r.below(_telling(RANK, LOSS, "log rank and log loss"), -r.STRONG),
          limits="Anything about ranks of natural language."),
)  # fmt: skip
