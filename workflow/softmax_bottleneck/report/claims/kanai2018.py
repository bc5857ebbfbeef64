"""Conclusions of Kanai, Fujiwara, Yamanaka and Adachi 2018 on finetuned and dynamically evaluated models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from softmax_bottleneck.records.metrics import PRESS_RANK
from softmax_bottleneck.records.records import DYNAMIC, FINETUNED
from softmax_bottleneck.report.claims import engine as e
from softmax_bottleneck.report.claims import quantities as q
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.view import LAW, STOPPED_TOO, View

SS, SOFTMAX, SIGMOID, RELU, MOS, MOSS = (
    f"kanai-{head}" for head in ("ss", "softmax", "sigmoid", "relu", "mos", "moss")
)


def _room(view: View, pattern: str, as_wide_as: str = "") -> Iterator[float]:
    """Yield d + 2, the limit of a log-linear head, less the Press rank of every run; d may be another model's width."""
    for model in view.matching(pattern):
        width = view.mean(as_wide_as or model, "embedding_size")
        yield from (width + 2 - rank for rank in view.runs(model, PRESS_RANK).values() if not math.isnan(width))


ROOM = q.of_units(_room, q.least, "d + 2 less the Press rank, least of all runs", "", (PRESS_RANK,), "runs")
LIMIT = r.above(ROOM, -0.5, "no run’s Press rank exceeds d + 2")
BREAKS = r.hidden(r.above(r.rank_against(FINETUNED), r.HIGH))
CLEARLY = r.above(r.rank_against(FINETUNED, "rank_press_low"), r.HIGH)  # whatever the tolerance
MORE_RANK = r.hidden(r.above(r.rank_against(FINETUNED), 0))
# Its runs scatter over decades, their logarithms do not. Runs that diverge are what the claim is about: the paper
# averages them; here they are stopped, and have no perplexity of a test text.
STOPPED = "validation perplexity when training ends, or is stopped since it diverges"
FAILS = r.above(q.against(STOPPED_TOO, "×", words=STOPPED), math.log(10))

claim = partial(e.Claim, "kanai2018")
CLAIMS = (
    claim("kanai-ss-better", "SigSoftmax beats Softmax.", "Tables 1 and 2", r.better(DYNAMIC), (SS, SOFTMAX),
          law=e.law_wins(SOFTMAX)),
    claim("kanai-moss-better", "MoSS beats MoS.", "Tables 1 and 2", r.better(DYNAMIC), (MOSS, MOS),
          law=e.law_wins(MOS)),
    claim("kanai-mos-better", "MoS beats SigSoftmax.", "Tables 1 and 2", r.better(DYNAMIC), (MOS, SS),
          law=e.law_wins(SS)),
    claim("kanai-sigmoid-best", "No function that is not mixed is better than the sigmoid.", "Table 1",
          r.no_worse(DYNAMIC), (SIGMOID, SS), e.NOT_WT2, law=((SIGMOID, LAW), e.LAW_FAILS)),
    claim("kanai-sigmoid-no-better", "On WikiText-2 the sigmoid does not beat Softmax.", "Table 2", r.no_worse(DYNAMIC),
          (SOFTMAX, SIGMOID), e.WT2, law=e.NATURAL),
    claim("kanai-relu-fails", "The ReLU is numerically unstable: its perplexity is more than ten times Softmax’s.",
          "Tables 1 and 2", FAILS, (RELU, SOFTMAX), law=e.NO_TRAINING),
    claim("kanai-softmax-limited", "A softmax of width d has rank d + 2 at most.", "Theorem 2, Table 3", LIMIT,
          (f"softmax|moc|{SOFTMAX}",), law=((LAW, "softmax"), e.LAW_FAILS)),
    claim("kanai-ss-breaks", "SigSoftmax breaks the bottleneck: its rank is not bound by d + 2.", "Theorem 3, Table 3",
          r.every(BREAKS, CLEARLY), (SS, SOFTMAX), law=e.OF_HEADS),
    claim("kanai-sigmoid-breaks", "So does the sigmoid.", "Table 3", BREAKS, (SIGMOID, SOFTMAX), law=e.OF_HEADS),
    claim("kanai-relu-rank", "The ReLU has the highest rank of the functions that are not mixed.", "Table 3", MORE_RANK,
          (RELU, SS), law=e.OF_HEADS),
    claim("kanai-moss-rank", "MoSS has a higher rank than MoS.", "Table 3", MORE_RANK, (MOSS, MOS), law=e.OF_HEADS),
)  # fmt: skip
