"""Pooling, choice of settings, shares and Holm's correction against naive computations; no decisions under the null."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from null import wrong_families
from scipy import stats
from softmax_bottleneck.report.claims.natural import _p_value
from softmax_bottleneck.report.contrasts import in_percent
from softmax_bottleneck.statistics.intervals import student, welch_p
from softmax_bottleneck.statistics.pooled import choose, confirmed, holm, per_seed, share_of_gain

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def test_a_seed_is_the_mean_of_its_machines_not_of_its_runs() -> None:
    runs = [(1, "a", 1.0), (1, "a", 2.0), (1, "b", 4.5), (2, "b", 7.0)]
    assert per_seed(runs) == {1: 3.0, 2: 7.0}
    assert per_seed(reversed(runs)) == per_seed(runs)


def test_a_setting_is_chosen_on_shared_seeds() -> None:
    losses = {5.0: {1: 2.0, 2: 2.0}, 10.0: {1: 1.0, 2: 1.2, 3: 9.0}, 20.0: {1: 1.5, 2: 1.0}}
    found = choose(losses)  # by its own mean 10 would lose to 20
    assert (found.value, found.tried, found.seeds, found.is_interior) == (10.0, (5.0, 10.0, 20.0), {1, 2}, True)
    assert found.compared([1, 2, 3]) == [1, 2, 3] and found.compared([1, 2, 3, 4, 5]) == [3, 4, 5]
    assert not choose({10.0: {1: 1.0}, 20.0: {1: 2.0}}).is_interior
    assert choose({20.0: {1: math.inf, 2: 0.0}, 10.0: {1: 3.0, 2: 3.0}}).value == 10.0
    assert choose({20.0: {1: 1.0}}).seeds == frozenset()
    assert choose({20.0: {1: 1.0}, 10.0: {2: 2.0}}).value == 20.0  # no shared seed


def test_the_lowest_of_two_values_replaces_a_diverged_one() -> None:
    losses = {20.0: {2: math.inf, 3: 4.0, 4: 4.0}, 10.0: dict.fromkeys((2, 3, 4), 6.0)}
    assert confirmed(20.0, losses | {5.0: dict.fromkeys((2, 3, 4), 5.0)}) == 5.0
    same = {20.0: {2: 5.0, 3: 5.0, 4: 5.0, 5: 9.0}, 10.0: dict.fromkeys((2, 3, 4), 5.0)}
    assert confirmed(20.0, same) == 20.0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(P_VALUES)
def test_holm_is_the_step_down_procedure(p_values: list[float]) -> None:
    adjusted = holm([*p_values, math.nan])
    assert math.isnan(adjusted.pop())
    assert holm(p_values, len(p_values) + 2) == holm([*p_values, 1.0, 1.0])[:-2]
    for level in (0.01, 0.05, 0.3):
        rejected, order = set(), np.argsort(p_values, kind="stable")
        for step, index in enumerate(order):
            if p_values[index] * (len(p_values) - step) > level:
                break
            rejected.add(index)
        assert {index for index, p in enumerate(adjusted) if p <= level} == rejected


def test_welchs_p_value_is_scipys() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.normal(0, 1, 4), rng.normal(1, 3, 7)
    assert welch_p(first, second) == pytest.approx(stats.ttest_ind(first, second, equal_var=False).pvalue)
    assert math.isnan(welch_p(first[:2], second))
    assert welch_p([0.1] * 3, second) == pytest.approx(stats.ttest_1samp(second, 0.1).pvalue)


def test_equal_numbers_have_an_interval_without_width_and_no_p_value() -> None:
    """In floating point, the mean of three times 0.1 is not 0.1."""
    sides = [np.full((3, 1), value) for value in (0.1, 0.3)]
    found = student(sides, 0.025)
    assert (found.low, found.high, found.spread) == pytest.approx((found.value, found.value, 0))
    assert math.isnan(welch_p(*(side[:, 0] for side in sides))) and math.isnan(_p_value([0.1] * 3))
    assert _p_value([1.0, 2.0]) == pytest.approx(stats.ttest_1samp([1.0, 2.0], 0).pvalue)
    share = share_of_gain([1.0] * 3, [0.75] * 3, [0.5] * 3)
    assert (share.low, share.value, share.high) == (0.5, 0.5, 0.5)
    share = share_of_gain([3.9] * 3, [3.6] * 3, [3.3] * 3)  # the discriminant is below 0 by rounding
    assert (share.low, share.high) == pytest.approx((0.5, 0.5))


def test_no_numbers_have_no_mean_and_no_bounded_interval() -> None:
    found = student([np.empty((0, 1)), np.ones((3, 1))], 0.025)
    assert math.isnan(found.value) and (found.low, found.high, found.n) == (-math.inf, math.inf, (0, 3))
    assert math.isnan(in_percent(found).value)


def test_a_share_has_the_interval_that_inverts_the_t_test() -> None:
    base, part, whole = (
        np.random.default_rng(7).normal(mean, 0.01, n) for mean, n in ((0.0, 5), (-0.05, 3), (-0.08, 4))
    )
    found = share_of_gain(base, part, whole)
    errors = [sample.var(ddof=1) / len(sample) for sample in (base, part, whole)]

    at = [errors[0] * (1 - found.value) ** 2, errors[1], errors[2] * found.value**2]
    freedom = sum(at) ** 2 / sum(term**2 / (n - 1) for term, n in zip(at, (5, 3, 4), strict=True))
    grid = np.linspace(-1, 3, 40_001)
    gap = (base.mean() - part.mean()) - grid * (base.mean() - whole.mean())
    error = np.sqrt(errors[0] * (1 - grid) ** 2 + errors[1] + errors[2] * grid**2)
    inside = np.abs(gap) <= stats.t.ppf(0.975, freedom) * error
    assert (found.low, found.high) == pytest.approx((grid[inside].min(), grid[inside].max()), abs=2e-4)
    assert found.value == pytest.approx((base.mean() - part.mean()) / (base.mean() - whole.mean()))


def test_a_share_of_no_gain_has_no_bounded_interval() -> None:
    found = share_of_gain([1.0, 1.1, 0.9], [0.9, 1.0, 0.8], [1.0, 1.2, 0.8])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert math.isinf(share_of_gain([1.0, 1.1], [0.9, 1.0], [0.5, 0.6]).high)


@pytest.mark.parametrize("studies", [1, 2, 3])
def test_equal_heads_are_told_apart_in_five_per_cent_of_families_at_most(studies: int) -> None:
    """The standard error of 200 families is 1.5 %; docs/results.md has 10,000 of each."""
    assert wrong_families(np.random.default_rng(5), 200, studies=studies) <= 0.05 + 2 * 0.015


def test_a_planted_effect_is_found_and_shuffled_labels_lose_it() -> None:
    rng = np.random.default_rng(3)
    decided = shuffled = 0
    for _ in range(200):
        both = np.concatenate([rng.normal(0.0, 0.01, 5), rng.normal(0.05, 0.01, 5)])
        decided += welch_p(both[:5], both[5:]) < 0.05
        mixed = rng.permutation(both)
        shuffled += welch_p(mixed[:5], mixed[5:]) < 0.05
    assert decided > 190 and shuffled < 30
