"""Hours of a plan against arithmetic by hand."""

import re
from pathlib import Path

import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.extras import plan
from softmax_bottleneck.study import costs
from softmax_bottleneck.study.plan import Size
from softmax_bottleneck.training import feasibility

ROOT = Path(__file__).parents[2]
SIZE = Size({"train": 929_589, "valid": 73_760, "test": 82_430}, 10_000)


@pytest.fixture(scope="module")
def paper() -> config.Study:
    return config.load_study(ROOT / "config" / "paper.yaml")


@pytest.fixture(scope="module")
def priced(paper: config.Study) -> dict[str, tuple[int, costs.Cost]]:
    """Return the costs that `check` estimates for every run."""
    return feasibility.costs(paper)


def run_of(study: config.Study, model: str) -> config.Run:
    return next(run for run in study.needed if (run.dataset, run.model) == ("ptb", model))


def test_an_update_of_softmax_by_hand(paper: config.Study, priced: dict[str, tuple[int, costs.Cost]]) -> None:
    """3 x 2 x 1400 tokens, of 400 x 10,000 and of the layers' weights; 681 updates an epoch, 3 ms and 68 steps each."""
    run = run_of(paper, "softmax")
    layers = 4 * (1150 * (400 + 1150) + 1150 * (1150 + 1150) + 400 * (1150 + 400)) + 8 * (1150 + 1150 + 400)
    parameters = 400 * 10_000 + 10_000 + layers
    token_s = 2 * 4_000_000 / 45e12 + 2 * (parameters - 4_000_000) / 19e12
    updates = 929_589 / (20 * 70 * 0.975)
    epoch_s = 3 * 929_589 * token_s + updates * (3e-3 + 3 * 70 * 0.975 * 1.8e-5)
    epoch_s += 73_760 * token_s + 73_760 / 700 / 3 * (3e-3 + 3 * 70 * 1.8e-5)
    hours = costs.training_hours(run, parameters, SIZE, "gpu")
    assert hours == pytest.approx(run.schedule.epochs * epoch_s / 3600, rel=1e-12)
    assert hours == pytest.approx(priced[run.path][1].gpu_h, rel=1e-3)


def test_fits_by_hand(paper: config.Study) -> None:
    """2,000 updates of softmax, MoS of 15, LMS of 16 units at four widths, on 100,000 distributions of 1,000 words."""
    cells, widths = 100_000 * 1_000, (10, 30, 100, 300)
    products = 3 * 2 * cells * sum(widths) * (1 + 15 + 1) / 45e12
    functions = 4 * cells * (1 + 15 + 8) / 4e10
    update_s = products + functions + 12 * 1e-3 + cells / 7e8
    unit = next(unit for unit in paper.units if (unit.plan, unit.name) == ("dirichlet", "alpha0.1-M1000"))
    assert costs.fit_hours(unit, "gpu") == pytest.approx(2000 * update_s / 3600, rel=1e-12)


def test_a_dynamic_evaluation_by_hand(paper: config.Study) -> None:
    """Softmax: both texts forward, both again and the tuning text with an update per segment, and the statistics."""
    wanted = next(one for one in paper.evaluations if one.run.model == "kanai-softmax" and one.run.dataset == "ptb")
    dynamic, parameters = wanted.settings, 24_221_600
    settings = len(dynamic.learning_rates) * len(dynamic.decays)
    updates = (settings * (dynamic.tune_tokens or 73_760) + 73_760 + 82_430) / dynamic.segment
    batches = 929_589 / dynamic.segment / dynamic.statistics_batch_size
    pass_s = 2 * parameters * dynamic.segment / 60e9
    static_s = (73_760 + 82_430) / dynamic.segment * (pass_s + 8e-4)
    followed_s = updates * (3 * (pass_s + 8e-4) + 10 * parameters / 60e9)
    gathered_s = batches * 3 * (dynamic.statistics_batch_size * pass_s + 8e-4)
    hours = costs.evaluation_hours(wanted, parameters, SIZE, "cpu")
    assert hours == pytest.approx((static_s + followed_s + gathered_s) / 3600, rel=1e-12)
    assert costs.evaluation_hours(wanted, parameters, SIZE, "gpu") < hours


@pytest.mark.parametrize(("hours", "shown"), [
    (0.0, "0"), (0.01, "0.6 min"), (0.5, "30 min"), (0.99, "59 min"), (1.0, "1.0 h"), (2080.2, "2,080.2 h"),
])  # fmt: skip
def test_hours_are_printed_as_minutes_below_one(hours: float, shown: str) -> None:
    assert plan.duration(hours) == shown


def test_a_plan_begins_with_what_is_left(paper: config.Study, priced: dict[str, tuple[int, costs.Cost]]) -> None:
    count, done, gpu, cpu = re.findall(r"\d[\d,]*(?:\.\d)?", plan.text(paper).splitlines()[1])
    assert (
        int(done) == int(count) == len(paper.needed) + len(paper.finetuned) + len(paper.evaluations) + len(paper.units)
    )
    trained = sum(cost.hours("cpu") for path, (_, cost) in priced.items() if path in {run.path for run in paper.needed})
    assert float(cpu.replace(",", "")) > trained and float(gpu.replace(",", "")) < trained
