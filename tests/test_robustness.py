"""Robustness experiments against the published ranks, and against counts by brute force."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from softmax_bottleneck.ranks import robustness
from softmax_bottleneck.records import records
from softmax_bottleneck.store.errors import UserError

PUBLISHED = Path(__file__).parents[1] / "report" / "published"


def published(table: int, metric: str) -> dict[str, float]:
    rows = records.read_csv(PUBLISHED / f"parthiban2021_sm_table{table}.csv")
    rows = rows[rows["metric"] == metric]
    levels = rows["condition"].str.extract(r"c=(1e-\d+)")[0]
    return dict(zip(levels, rows["value"].astype(float), strict=True))


def measured(name: str, size: int) -> dict[tuple[str, str], float]:
    rows = robustness.rows({"synthetic": name, "size": size}, lambda line: None)
    return {(str(row["condition"]).split(";")[0], str(row["metric"])): float(row["value"]) for row in rows}


@pytest.mark.parametrize("table", [15, 16])
def test_the_quarter_circle_law_gives_the_published_ranks(table: int) -> None:
    for level, rank in published(table, "rank_press").items():
        assert abs(robustness.predicted_rank(float(level), 10_000) - rank) <= 3, level


@pytest.mark.parametrize("metric", ["rank_eff_1e-3", "rank_eff_1e-4", "rank_eff_1e-5"])
def test_effective_ranks_under_noise_are_the_published_ones_at_any_size(metric: str) -> None:
    found = measured("noise-effective", 60)
    for level, rank in published(16, metric).items():
        assert found[f"c={level}", metric] == rank


def test_ranks_under_noise_are_near_the_prediction_for_their_size() -> None:
    found = measured("noise", 200)
    predicted = [found[f"c={c}", "rank_predicted"] for c in robustness.NOISE]
    drawn = [found[f"c={c}", "rank_press"] for c in robustness.NOISE]
    assert np.abs(np.subtract(drawn, predicted)).max() <= 6
    assert 10 < found["c=1e-26", "rank_press"] < 200  # some level lies between the two ends


def test_a_rebuilt_matrix_keeps_rank_10_and_its_error_grows_from_rounding() -> None:
    found = measured("rebuild", 60)
    assert [found[f"iteration={i}", "rank_press"] for i in range(1, 11)] == [10] * 10
    errors = [found[f"iteration={i}", "reconstruction_error"] for i in range(1, 11)]
    assert errors == sorted(errors) and 1e-31 < errors[0] < errors[-1] < 1e-27


@pytest.mark.parametrize("size", [0, -1, 1.5, "big", 10**6])
def test_a_size_that_is_none_is_refused(size: object) -> None:
    with pytest.raises(UserError, match="size is"):
        list(robustness.rows({"synthetic": "noise", "size": size}, lambda line: None))
