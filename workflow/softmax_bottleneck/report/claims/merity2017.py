"""Conclusions of Merity 2017 from untrained layers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from softmax_bottleneck.report.claims import quantities as q
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.engine import Claim
from softmax_bottleneck.report.claims.view import SYNTHETIC, View

SIZES = re.compile(r"^K=(?P<K>\d+);H=(?P<H>\d+);V=(?P<V>\d+);S=\d+;untrained;equal mixing$")  # the default reading
LARGEST = 3  # softmaxes from which on the published rank is nearly full


def _ranks(view: View, model: str) -> Iterator[tuple[int, int, int, float]]:
    """Yield K, H, V and rank of every draw of a layer."""
    rows = view.records.synthetic
    own = rows[(rows["metric"] == "rank") & (rows["model"] == model)]
    for condition, rank in zip(own["condition"], own["value"], strict=True):
        if found := SIZES.match(condition):
            yield int(found["K"]), int(found["H"]), int(found["V"]), float(rank)


def _limited(model: str) -> r.Rule:
    quantity = q.of_units(
        lambda view: (width + 2 - rank for _, width, _, rank in _ranks(view, model)),
        q.least,
        f"H + 2 less the rank of {model}, least of all draws",
        units="draws",
    )
    return r.above(quantity, -0.5, "no draw exceeds H + 2")


GROWTH = q.of_units(
    lambda view: ((k, rank) for k, _, _, rank in _ranks(view, "mos")),
    q.spearman,
    "Spearman’s ρ of K and the rank of MoS",
    units="draws",
)
NEARLY = q.of_units(
    lambda view: (rank / words for k, _, words, rank in _ranks(view, "mos") if k >= LARGEST),
    q.student,
    f"rank of MoS over V, {LARGEST} softmaxes or more",
    "share",
    units="draws",
)
claim = partial(Claim, "merity2017", where="rank table", corpora=SYNTHETIC)
CLAIMS = (
    claim("merity-softmax-limited", "An untrained softmax of width H has at most rank H + 2.",
          rule=_limited("softmax")),
    claim("merity-moc-limited", "So has a mixture of contexts, however many are mixed.", rule=_limited("moc")),
    claim("merity-mos-grows", "The rank of a mixture of softmaxes grows with their number.",
          rule=r.above(GROWTH, 0)),
    claim("merity-mos-full", f"From {LARGEST} softmaxes on it is nearly full.", rule=r.above(NEARLY, 0.9)),
)  # fmt: skip
