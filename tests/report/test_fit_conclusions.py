"""Conclusions from fits to known distributions follow where they should, and only there."""

from __future__ import annotations

import math

import claim_examples
import pandas as pd
import pytest
from softmax_bottleneck.records import records
from softmax_bottleneck.report import claims
from softmax_bottleneck.report.fits import with_gap_closed


def frames(kl, ranks, seeds=(1, 2, 3)) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Made-up fits: `kl(model, r, d, seed)` and `ranks(model, r, d)`, of a softmax and two other heads."""
    rows = [
        {"model": model, "name": model, "seed": seed, "r": float(r), "d": float(d), "head": model, "equal": "",
         "kl_nats": kl(model, r, d, seed), "rank_press": float(ranks(model, r, d)), "parameters": 100.0 * d,
         "squared_error": 1.0 + 1 / d}
        for model in ("softmax", "gss", "mos") for r in (8, 32, 128) for d in (8, 16, 32) for seed in seeds
    ]  # fmt: skip
    bounds = {"squared_error_bound_d8": 0.5, "squared_error_bound_d16": 0.3, "squared_error_bound_d32": 0.2}
    laws_ = [
        {"model": "law", "seed": seed, "r": float(r), "kl_no_context_nats": 1.0, "rank_truth": r + 2.0, **bounds}
        for r in (8, 32, 128)
        for seed in seeds
    ]
    return with_gap_closed(pd.DataFrame(rows)), pd.DataFrame(laws_)


def bottleneck(model: str, r: int, d: int, seed: int) -> float:
    lost = 0.0 if r <= d else 0.1 * math.log2(r / d)
    return lost * {"softmax": 1.0, "gss": 1.0, "mos": 0.6}[model] * (1 + seed / 100) + 0.001


def full(model: str, r: int, d: int) -> int:
    return d + 2 if model == "softmax" else 200


def verdicts(frame: pd.DataFrame, law: pd.DataFrame) -> dict[str, str]:
    """What is concluded from made-up fits, as rows of the records."""
    rows = []
    for row in [*frame.to_dict("records"), *law.to_dict("records")]:
        where = f"r={row['r']:g};V=200" + (f";d={row['d']:g}" if "d" in row else "")
        numbers = {k: v for k, v in row.items() if isinstance(v, float) and k not in ("r", "d")}
        numbers |= {"width": row["d"]} if "d" in row else {}
        rows += [
            ("synthetic", row["model"], where, metric, value, row["seed"], "") for metric, value in numbers.items()
        ]
    states = pd.DataFrame(columns=list(records.STAGE_COLUMNS))
    found = records.Records(pd.DataFrame(rows, columns=list(claim_examples.COLUMNS)), states)
    about_fits = [claim for claim in claims.CLAIMS if claim.limits and claim.source != "gradient"]
    return {entry.claim.id: entry.verdict for entry in claims.ledger(found, about_fits)}


def test_conclusions_follow_where_they_should():
    frame, law = frames(bottleneck, full)
    found = verdicts(frame, law)
    assert found == dict.fromkeys(found, "reproduced")
    mos = frame[(frame["model"] == "mos") & (frame["r"] == 128) & (frame["d"] == 8) & (frame["seed"] == 1)]
    naive = 1 - (0.4 * 0.6 * 1.01 + 0.001) / (0.4 * 1.01 + 0.001)
    assert mos["gap_closed"].iloc[0] == pytest.approx(naive)


def test_conclusions_do_not_follow_where_they_should_not():
    flat, law = frames(lambda model, r, d, seed: 0.05 + 0.01 * (model != "softmax") + 0.001 * seed, full)
    found = verdicts(flat, law)
    for name in ("closes", "grows"):
        assert found[f"truth-{name}"] == "not reproduced", (name, found)
    for name in ("closes-gap", "rank-does-not-tell"):  # no fit has ended
        assert found[f"truth-{name}"] == "cannot be tested here", (name, found)
    worse, law = frames(
        lambda m, r, d, s: bottleneck("softmax", r, d, s) * (1.2 if m != "softmax" and r > d else 1), full
    )
    found = verdicts(worse, law)
    assert found["truth-closes-gap"] == found["truth-rank-does-not-tell"] == "not reproduced", found
    tight, law = frames(bottleneck, full)
    law["squared_error_bound_d8"] = 3.0
    assert verdicts(tight, law)["ganea-theorem-1"] == "not reproduced"


def test_two_seeds_are_not_enough_where_an_interval_is_needed():
    found = verdicts(*frames(bottleneck, full, seeds=(1, 2)))
    assert found["truth-closes-gap"] == found["truth-rank-is-not-enough"] == found["truth-closes"] == "undecided"
    assert found["ganea-theorem-1"] == "reproduced"  # holds in every fit, or does not
