"""Learning rates and the start of averaging, against loops written out by hand."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from softmax_bottleneck.training import schedule as schedules
from tiny_runs import make_run

LOSSES = st.lists(st.integers(0, 20), max_size=30)


@given(LOSSES, st.integers(1, 6))
def test_nt_asgd_averages_from_the_epoch_of_the_published_loop(losses, window) -> None:
    """`if len(best_val_loss) > n and val_loss > min(best_val_loss[:-n])`, appended after the test, once."""
    logs, expected = list[int](), None
    for epoch, loss in enumerate(losses, start=1):
        older = [logs[i] for i in range(len(logs)) if i < len(logs) - window]
        if expected is None and older and loss > sorted(older)[0]:
            expected = epoch + 1
        logs.append(loss)
    schedule = make_run(optimizer="nt-asgd", nonmonotone_window=window).schedule
    assert schedules.averages_from(schedule, losses) == expected


@pytest.mark.parametrize(("optimizer", "first"), [("asgd", 1), ("et-asgd", 4), ("sgd", None), ("plateau-sgd", None)])
def test_the_other_optimizers_average_from_a_fixed_epoch_or_never(optimizer: str, first: int | None) -> None:
    schedule = make_run(optimizer=optimizer, switch_after_epoch=3).schedule
    assert {schedules.averages_from(schedule, losses) for losses in ([], [2.0], [1.0, 2.0, 3.0, 4.0])} == {first}


@given(LOSSES)
def test_plateaus_divide_the_learning_rate(losses) -> None:
    schedule = make_run(optimizer="plateau-sgd", plateau_factor=2.0, learning_rate=8.0, bptt=12).schedule
    lowest, expected, is_best = float("inf"), 8.0, list[bool]()
    for loss in losses:
        expected, lowest = (expected, loss) if loss < lowest else (expected / 2, lowest)
        is_best.append(loss == lowest and loss not in losses[: len(is_best)])
    assert schedules.decay(schedule, is_best) == expected / 8
    assert schedules.chunk_scale(schedule, 6, schedules.decay(schedule, is_best)) == expected / 16
    assert schedules.decay(dataclasses.replace(schedule, optimizer="sgd"), is_best) == 1.0
