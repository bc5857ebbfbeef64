"""Searches: which points are tried, which is chosen, and what a study plans before and after a choice."""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_results as fake
import numpy as np
import pandas as pd
import pytest
import small
from claim_examples import COLUMNS
from scipy import stats
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collection, records, verify
from softmax_bottleneck.report import archive
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.report.views import tuning as views
from softmax_bottleneck.steps.choose import choose
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import IncompleteError, UserError
from softmax_bottleneck.study import Run, Study, costs, plan
from softmax_bottleneck.study.study_file import Tuning
from softmax_bottleneck.study.tuning import Point, Round, Trial, TunedModel, decide
from softmax_bottleneck.training import feasibility

ROOT = Path(__file__).parents[2]
RATE = "schedule.learning_rate"
SEARCH = {"grid": {RATE: [1, 4]}, "seeds": [9], "widen": 2}


def searched(tuning: Tuning, loss: Callable[[Point], float]) -> tuple[list[Point], int, bool]:
    """Return the points tried until nothing follows, the index of the best, and whether it is interior."""
    grid = itertools.product(*tuning.grid.values())
    points: list[Point] = [dict(zip(tuning.grid, values, strict=True)) for values in grid]
    while (found := decide(tuning, points, [loss(point) for point in points])).following:
        points += found.following
    return points, found.best, found.interior


@pytest.mark.parametrize("optimum", [0.9, 2.3, 6.0, 10.5, 17.0, 33.0, 70.0, 160.0])
def test_a_search_of_one_setting_ends_at_the_minimum_of_a_ladder(optimum: float) -> None:
    """The ladder by hand: the grid, and steps of 7/10 and 40/28 beyond it, in two digits, four at each end."""
    tuning = Tuning(grid={RATE: (7.0, 10.0, 14.0, 20.0, 28.0, 40.0)}, seeds=(1,))
    ladder = np.array([1.7, 2.4, 3.4, 4.9, 7, 10, 14, 20, 28, 40, 57, 81, 120, 180])
    points, best, interior = searched(tuning, lambda point: math.log(point[RATE] / optimum) ** 2)
    nearest = int(np.abs(np.log(ladder / optimum)).argmin())
    assert points[best][RATE] == ladder[nearest]
    assert interior == (0 < nearest < len(ladder) - 1)
    tried = sorted(point[RATE] for point in points)
    assert tried == list(ladder[min(nearest - 1, 4) if nearest else 0 : max(nearest + 2, 10)])


def test_a_search_of_two_settings_ends_where_all_four_neighbours_are_worse() -> None:
    tuning = Tuning(grid={RATE: (1.0, 2.0), "body.dropout_input": (0.0, 0.1, 0.2)}, seeds=(1,), widen=9)

    def loss(point: Point) -> float:
        rate, dropout = math.log2(point[RATE]) - 4, 10 * point["body.dropout_input"] - 3.2
        return rate**2 + dropout**2 + rate * dropout

    points, best, interior = searched(tuning, loss)
    for axis in tuning.grid:
        ladder = sorted({point[axis] for point in points})
        place = ladder.index(points[best][axis])
        around = [{**points[best], axis: ladder[place + step]} for step in (-1, 1)]
        assert all(point in points and loss(point) > loss(points[best]) for point in around)
    assert interior and loss(points[best]) == min(map(loss, points))


def test_divergence_brackets_words_have_no_neighbours_and_whole_numbers_stay_whole() -> None:
    k, optimizer = "head.components", "schedule.optimizer"
    tuning = Tuning(grid={k: (2, 4), optimizer: ("sgd", "asgd"), "body.layers": (1,)}, seeds=(1,))
    points, best, interior = searched(tuning, lambda point: (point[k] - 7) ** 2 - (point[optimizer] == "sgd"))
    assert points[best] == {k: 8, optimizer: "sgd", "body.layers": 1} and interior
    assert all(type(point[k]) is int for point in points) and len(points) == 4 + 2
    rates = Tuning(grid={RATE: (1.0, 2.0, 4.0)}, seeds=(1,))
    assert decide(rates, [{RATE: rate} for rate in (1.0, 2.0, 4.0)], [3.0, 2.0, math.inf]) == decide(
        rates, [{RATE: rate} for rate in (1.0, 2.0, 4.0)], [3.0, 2.0, 2.5]
    )


def study_in(folder: Path, **changes: object) -> Study:
    shown = {"known-truth": {"models": "all"}, "tuning": {"models": "all"}, "contrasts": {"models": "all"}}
    family = {"margin": 0.01, "family": [{"model": "mos", "against": "softmax", "label": "mixing"}]}
    return small.load(folder, small.values(**{"tuning": SEARCH, "contrasts": family, "experiments": shown} | changes))


def pretend(study: Study, run: Run, loss: float | None) -> None:
    """Write the record of a run that ended with a validation loss, or diverged."""
    status = {"status": "ok" if loss is not None else "diverged", "reason": None if loss is not None else "nan"}
    facts = {"run": run.to_json(), "best_valid_loss_nats": loss, "epochs": 3, "parameters": 100}
    record = status | facts | {"provenance": fake.provenance() | {"parents": {}}}
    artefacts.write_json(study.store.run_folder(run.path) / "done.json", record)


def end_rounds(study: Study, loss: Callable[[Run], float | None]) -> Study:
    """Pretend that all runs of the searches end, until every choice is made."""
    while study.unchosen:
        for run in study.searched:
            pretend(study, run, loss(run))
        for path in [path for path in study.rounds if not study.choice_file(path).exists()]:
            choose(study, path, small.quiet)
        study = study.updated()
    return study


def by_rate(run: Run) -> float | None:
    """The softmax is best at 4, the mixture at 1; at 64 and above training diverges."""
    best = 4 if run.head.name == "softmax" else 1
    return None if run.schedule.learning_rate >= 64 else 1 + abs(math.log(run.schedule.learning_rate / best))


@pytest.fixture
def study(place: Path) -> Study:
    return study_in(place)


def test_both_phases_are_planned_priced_and_packed_into_jobs(study: Study) -> None:
    assert len(study.searched) == len(study.needed) == 4 and not study.runs and len(study.awaited) == 4
    assert {run.seed for run in study.searched} == {9} and {run.seed for run in study.awaited} == {1, 2}
    priced = feasibility.costs(study)
    assert set(priced) == {run.path for run in (*study.needed, *study.awaited)}
    hours = sum(priced[run.path][1].hours("cpu") for run in study.awaited)
    softmax, mos = (next(r for r in study.awaited if r.model == name) for name in ("softmax", "mos"))
    size = plan.Size({"train": 1200, "valid": 300, "test": 300}, 40)
    each = [costs.estimate(run, priced[run.path][0], size).hours("cpu") for run in (softmax, mos)]
    assert hours == pytest.approx(2 * sum(each))
    packed = plan.jobs(dataclasses.replace(study, replicas_per_job=2))
    assert sorted(len(runs) for runs in packed.values()) == [2, 2]  # the points of a model's search share a job
    assert all(len({run.head.name for run in runs}) == 1 for runs in packed.values())


def test_the_confirmation_has_the_chosen_rates_and_the_plan_does_not_depend_on_who_asks(study: Study) -> None:
    before, done = study.updated(with_choices=False).digest, end_rounds(study, by_rate)
    rates = {run.model: run.schedule.learning_rate for run in done.runs}
    assert rates == {"softmax": 4, "mos": 1} and {run.seed for run in done.runs} == {1, 2}
    tried = {run.schedule.learning_rate for run in done.searched if run.head.name == "softmax"}
    assert tried == {1, 4, 16} and not done.awaited
    assert done.updated(with_choices=False).digest == before == study.digest != done.digest
    assert done.updated().digest == done.digest
    choices = {one.key[1]: one.choice for one in done.tuned}
    assert choices["softmax"] and choices["softmax"]["interior"]
    ppls = {entry["point"][RATE]: entry["valid_ppl"] for entry in choices["softmax"]["curve"]}
    assert ppls == pytest.approx({rate: math.exp(1 + abs(math.log(rate / 4))) for rate in (1, 4, 16)})


def test_a_choice_at_the_limit_is_not_bracketed_and_divergence_is_a_bracket(tmp_path: Path, study: Study) -> None:
    edge = end_rounds(study, lambda run: 9 - math.log(run.schedule.learning_rate))
    assert {run.schedule.learning_rate for run in edge.runs} == {64.0}  # two steps beyond 1, 4
    assert not any(one.choice and one.choice["interior"] for one in edge.tuned)
    said: list[str] = []
    choose(edge, edge.tuned[0].rounds[-1].path, said.append)
    assert "edge" in said[-1]
    other = study_in(tmp_path, study="other")
    bracketed = end_rounds(other, lambda run: by_rate(run) and 9 - math.log(run.schedule.learning_rate))
    assert {run.schedule.learning_rate for run in bracketed.runs} == {16.0}
    assert all(one.choice and one.choice["interior"] for one in bracketed.tuned)
    with pytest.raises(UserError, match="diverged on tiny"):
        end_rounds(study_in(tmp_path, study="third"), lambda run: None)


def test_the_figure_marks_the_chosen_point_and_not_the_lowest_perplexity() -> None:
    """A search by `steps` can choose another one."""
    ppls: dict[str, float] = {"m1": 20.0, "m4": 30.0, "m16": 40.0}
    runs: list[Any] = [SimpleNamespace(model=model, seed=9, path=model) for model in ppls]
    trials = tuple(Trial({RATE: rate}, (run,)) for rate, run in zip((1, 4, 16), runs, strict=True))
    tuned = TunedModel((Round("tiny", "m", trials),), {"best": {RATE: 4}, "interior": True}, ())
    source: Any = SimpleNamespace(records=SimpleNamespace(values=lambda dataset, model, *_: {9: ppls[model]}))
    shown = [(rate, ppl, best) for *_, rate, ppl, best, _ in views._trials(source, tuned, RATE)]
    assert shown == [(1, pytest.approx(20), False), (4, pytest.approx(30), True), (16, pytest.approx(40), False)]


def test_an_edit_of_the_grid_or_the_settings_makes_new_choices(tmp_path: Path, study: Study) -> None:
    end_rounds(study, by_rate)
    assert study_in(tmp_path, tuning=SEARCH | {"grid": {RATE: [1, 2]}}).unchosen
    body = small.changed(small.STUDY, ("settings", 0, "body", "hidden_size"), 8)["settings"]
    assert len(study_in(tmp_path, settings=body).unchosen) == 2 and not study_in(tmp_path).unchosen


@pytest.mark.parametrize(("changes", "message"), [
    ({"tuning": SEARCH | {"seeds": [2]}}, "tuning.seeds: seed 2"),
    ({"tuning": SEARCH | {"grid": {"schedule.learning_rat": [1, 2]}}}, "learning_rat"),
    ({"contrasts": {"margin": 0.01, "family": [{"model": "mos", "against": "sofmax", "label": "x"}]}}, "'softmax'"),
])  # fmt: skip
def test_bad_keys_are_one_line(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as found:
        study_in(tmp_path, **changes)
    assert "\n" not in str(found.value)


def test_a_damaged_choice_is_found_removed_and_made_again(study: Study) -> None:
    def choice_in(file: Path) -> dict[str, object]:
        return json.loads(file.read_text(encoding="utf-8")) | {"provenance": None}

    done = end_rounds(study, by_rate)
    path = next(reversed(done.rounds))
    file = done.choice_file(path)
    whole = choice_in(file)
    small.flip(file)
    damaged = done.updated()
    assert damaged.unchosen == [file] and damaged.awaited
    found, removed = verify.repair(damaged)
    assert "damaged" in {finding.kind for finding in found.findings if finding.file.endswith(file.name)}
    assert file.relative_to(study.store.root) in removed and not file.exists()
    choose(damaged, path, small.quiet)
    assert choice_in(file) == whole


def test_search_runs_are_recorded_apart_and_archived_before_any_choice(study, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(archive, "FOLDER", tmp_path / "archives")
    with pytest.raises(IncompleteError):
        archive.write(study, unfinished=True)
    first = study.searched[0]
    pretend(study, first, 2.0)
    found = collection.collect(study)
    assert found.states.empty and list(found.stages["state"]).count("ok") == 1
    assert found.values("tiny", first.model, "valid_ppl", records.SEARCH) == {9: pytest.approx(math.exp(2))}
    assert found.values("tiny", "softmax", "valid_ppl") == {}
    stored = archive.load(archive.write(study, unfinished=True))
    assert len(stored.records.stages) == 1 and len(stored.missing) == 3 + 2  # three trials, two choices
    assert stored.contrasts == study.contrasts and stored.records.values("tiny", first.model, "valid_ppl", "search")
    findings = {finding.file for finding in verify.verify(study).findings}
    assert {f"small/choices/{path}.json" for path in study.rounds} <= findings
    done = end_rounds(study, by_rate)
    stored = archive.load.__wrapped__(archive.write(done, unfinished=True))  # the same file again
    assert [choice["chosen"] for choice in stored.tuned] == [{RATE: 4.0}, {RATE: 1.0}]


def contrast(study: Study, mos: list[float], softmax: list[float], diverged: str = "") -> dict[str, Any]:
    """Return the cells of the first contrast, with perplexities of the seeds 1, 2, ..., by column."""
    lines = [("tiny", model, "", "test_ppl", ppl, seed, f"{model}-{seed}")
             for model, ppls in (("mos", mos), ("softmax", softmax)) for seed, ppl in enumerate(ppls, 1)]  # fmt: skip
    states = pd.DataFrame([("tiny", diverged, 9, "diverged")], columns=["dataset", "model", "seed", "state"])
    found = records.Records(pd.DataFrame(lines, columns=list(COLUMNS)), states)
    row, *_ = views.contrasts_table(Source(study, fake.experiment(study, "contrasts"), found), "tiny").rows
    return dict(zip(views.CONTRAST_COLUMNS, row.cells, strict=True))


def test_a_contrast_is_welchs_and_a_diverged_run_or_two_seeds_leave_none(study: Study) -> None:
    a, b = [100.0, 102.0, 101.0], [104.0, 105.0, 103.0]
    expected = stats.ttest_ind(np.log(a), np.log(b), equal_var=False)
    low, high = expected.confidence_interval()
    cells = contrast(study, a, b)
    logs = [np.log(a).mean() - np.log(b).mean(), low, high]
    shown = [cells[key].measured.mean for key in ("change", "p")]
    assert shown == pytest.approx([100 * np.expm1(logs[0]), expected.pvalue])
    ends = [f"{100 * np.expm1(end):+.2f}".replace("-", "−") for end in logs[1:]]
    assert cells["interval"].label == " to ".join(ends)
    for unclear in (contrast(study, a, b, diverged="mos"), contrast(study, a[:2], b), contrast(study, [], b)):
        assert all(unclear[key].measured is None and unclear[key].reason for key in ("change", "p", "verdict"))


def test_contrasts_that_diverged_or_have_not_run_stay_in_their_family(place: Path) -> None:
    models = small.STUDY["models"] | {"moc": {"head": {"name": "moc", "components": 2, "dropout_latent": 0.1}}}
    family = [{"model": name, "against": "softmax", "label": "mixing"} for name in ("mos", "moc")]
    two = study_in(place, models=models, contrasts={"margin": 0.01, "family": family})
    a, b = [100.0, 102.0, 101.0], [104.0, 105.0, 103.0]
    p = stats.ttest_ind(np.log(a), np.log(b), equal_var=False).pvalue
    for diverged in ("", "moc"):
        assert contrast(two, a, b, diverged)["p"].measured.mean == pytest.approx(2 * p)


def test_a_panel_has_ticks_at_the_values_of_its_setting_which_may_be_words(place: Path) -> None:
    study = study_in(place, tuning=SEARCH | {"grid": {RATE: [1, 4], "schedule.precision": ["fp32", "tf32"]}})
    for run in study.searched:
        pretend(study, run, 2.0)
    source = Source(study, fake.experiment(study, "tuning"), collection.collect(study))
    rates, words = views.tuning_figure(source).canvas.axes
    assert list(rates.get_xticks()) == [1, 4] and (rates.get_xscale(), words.get_xscale()) == ("log", "linear")


@pytest.mark.parametrize(("name", "rates"), [("tuned", 3), ("tuned-small", 6)])
def test_the_tuned_studies_have_equal_sizes_and_the_runs_that_they_state(
    name: str, rates: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # away from results of these studies
    study = config.load_study(ROOT / "config" / f"{name}.yaml")
    corpora, priced = len(study.datasets), feasibility.costs(study)
    assert len(study.searched) == 6 * rates * corpora and len(study.awaited) == 6 * 5 * corpora
    sizes = {run.model: priced[run.path][0] for run in study.awaited}
    wide = sizes.pop("softmax-wide")
    assert max(sizes.values()) / min(sizes.values()) < 1.01 and wide > 2 * max(sizes.values())
    contrasts = study.contrasts
    assert contrasts and contrasts.margin == 0.01
    pairs = [f"{one.model} {one.against}" for one in contrasts.family]
    assert pairs == ["mos moc-k1", "mos softmax-wide", "mos softmax", "moc moc-k1", "ss softmax"]
