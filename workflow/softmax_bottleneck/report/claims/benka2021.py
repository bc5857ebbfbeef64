"""Conclusions of Benka, Hammer and Su 2021 on mixtures of softmaxes on a Transformer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from softmax_bottleneck.records.metrics import TEST_PPL
from softmax_bottleneck.report.claims import quantities as q
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.engine import LAW_FAILS, NO_SETTING, NO_TRAINING, OF_HEADS, Claim, law_wins
from softmax_bottleneck.report.claims.kanai2018 import LIMIT
from softmax_bottleneck.report.claims.premises import Premise, wide
from softmax_bottleneck.report.claims.view import LAW, View
from softmax_bottleneck.report.claims.wording import Code

PLAIN, MOS, COMPONENTS = "transformer", "transformer-mos", "transformer-mos-components"
PUBLISHED_WIDTHS = {200.0, 300.0}  # of the text and of the published code


def _added(view: View, *models: str) -> list[float]:
    """Return the parameters of the first model less those of the second, in millions: the same in every run."""
    counts = [view.mean(model, "params_m") for model in models]
    return [counts[0] - counts[1]] * (not any(map(math.isnan, counts)))


def _published_size(view: View, models: Sequence[str]) -> Premise:
    widths = {width for model in models for width in view.runs(model, "embedding_size").values()}
    text = ", ".join(f"{width:.0f}" for width in sorted(widths)) or "unknown"
    return Premise(Code.PUBLISHED_WIDTH, {"widths": text}, bool(widths) and widths <= PUBLISHED_WIDTHS)


ADDED = q.of_units(_added, q.least, "parameters added, in millions", "", ("params_m",), "models")
TIME = q.against("ms_per_batch", "×")

claim = partial(Claim, "benka2021")
CLAIMS = (
    claim("benka-mos-helps", "A mixture of softmaxes helps a Transformer.", "Table 1", r.better(), (MOS, PLAIN),
          law=law_wins(PLAIN)),
    claim("benka-bottleneck", "A Transformer with a softmax has the bottleneck: its rank is at most d + 2.",
          "section 6", LIMIT, (PLAIN,), law=((LAW, PLAIN), LAW_FAILS)),
    claim("benka-breaks", "A mixture breaks it.", "section 6", r.HIGH_RANK, (MOS, PLAIN), law=OF_HEADS),
    claim("benka-k-helps", "Up to ten softmaxes, more are better.", "Table 2",
          r.below(q.along(TEST_PPL, within=(1, 10)), 0), (f"{COMPONENTS}*",),
          law=NO_SETTING),
    claim("benka-k-hurts", "Fifteen softmaxes are worse than ten.", "Table 2", r.larger(),
          (f"{COMPONENTS}15", f"{COMPONENTS}10"), law=NO_SETTING),
    claim("benka-parameters", "The mixture adds nearly a million parameters.", "section 6",
          r.between(ADDED, (0.8, 1.0)), (MOS, PLAIN), premises=(_published_size,),
          law="its parameters are none of a network"),
    claim("benka-time", "Training takes about 1.5 times as long.", "section 6",
          r.between(TIME, (math.log(1.25), math.log(1.75))), (MOS, PLAIN),
          premises=(wide,), law=NO_TRAINING),
)  # fmt: skip
