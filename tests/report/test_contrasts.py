"""Contrasts follow the rules of inference: pooled seeds, each head at its own rate, costs, corpora, named families."""

import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from softmax_bottleneck.report import archive, contrasts, samples
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.contrasts import Contrast
from softmax_bottleneck.study import study_file as schema
from trained_examples import Trained, near, study

MOS = {"name": "mos"}


def only(studies, head=MOS) -> Contrast:
    (found,) = contrasts.against_baseline(samples.pool_runs(studies), "MoS", head)
    return found


def test_studies_and_machines_are_pooled_and_a_seed_counts_once() -> None:
    one = study("one", softmax=Trained(ppl=[50, 51, 52]), mos=Trained(head="mos", ppl=[45, 46, 47]))
    again = study("again", softmax=Trained(ppl=[50]))  # the same seed on the same machine
    other = study("other", machine="GPU", softmax=Trained(ppl=[54, 53], seeds=[1, 4]))
    found = only([one, again, other])
    logs = [np.mean(np.log([50, 54])), *np.log([51, 52, 53])]
    expected = stats.ttest_ind(np.log([45, 46, 47]), logs, equal_var=False)
    ends = expected.confidence_interval()
    assert found.n == (3, 4) and found.interval.value == pytest.approx(np.mean(np.log([45, 46, 47])) - np.mean(logs))
    assert found.ends == pytest.approx((100 * np.expm1(ends.low), 100 * np.expm1(ends.high)))
    assert found.p == pytest.approx(expected.pvalue)
    assert found.studies == ["again", "one", "other"]


def test_a_run_that_two_models_share_counts_once_and_a_repeated_one_twice() -> None:
    one = study(softmax=Trained(ppl=near(50), metrics={"sec_per_epoch": 10.0}), mos=Trained(head="mos", ppl=near(45)))
    shared = replace(one, records=replace(one.records, states=pd.concat([one.records.states] * 2)))
    assert len(only([shared, one]).baseline.runs) == 3
    seconds = one.records.rows["metric"] == "sec_per_epoch"
    rows = one.records.rows.assign(value=one.records.rows["value"].where(~seconds, 30.0))
    repeated = replace(one, records=replace(one.records, rows=rows))
    assert len(only([one, repeated]).baseline.runs) == 6 and only([one, repeated]).n == (3, 3)


def test_each_head_has_the_rate_of_its_best_validation_whatever_models_are_called() -> None:
    rates = study(
        softmax=Trained(ppl=near(50), valid=near(60)),
        softmax_r10=Trained(ppl=near(52), valid=near(55), rate=10),  # better validation, worse test
        anything=Trained(head="mos", ppl=near(45), valid=near(50)),
        mos_r10=Trained(head="mos", ppl=near(40), valid=near(51), rate=10),
    )
    found = only([rates])
    assert (found.model.choice.value, found.baseline.choice.value) == (20, 10)
    assert found.change == pytest.approx(100 * (45 / 52 - 1)) and not found.is_tuned and found.has_equal_search
    assert "not bracketed" in found.text and "{10, 20}" in found.text
    more = [study("more", softmax_r5=Trained(ppl=near(70), rate=5), mos_r40=Trained(head="mos", ppl=near(70), rate=40))]
    assert only([rates, *more]).is_tuned and not only([rates, *more]).has_equal_search


def test_at_shared_rates_only_those_tried_for_both_count() -> None:
    own = study(
        softmax=Trained(ppl=near(50)), softmax_r10=Trained(ppl=near(47), rate=10), mos=Trained(head="mos", ppl=near(48))
    )
    assert only([own]).change == pytest.approx(100 * (48 / 47 - 1))
    assert contrasts.at_shared_rates(only([own])).change == pytest.approx(100 * (48 / 50 - 1))


def test_seeds_that_chose_a_rate_are_left_out_if_three_others_remain() -> None:
    search = study("search", softmax_r10=Trained(ppl=[40], rate=10), softmax=Trained(ppl=[30]))
    confirmed = study(
        "confirmed", softmax=Trained(ppl=near(50), seeds=[2, 3, 4]), mos=Trained(head="mos", ppl=near(45))
    )
    assert sorted(only([search, confirmed]).baseline.log_ppl) == [2, 3, 4]


def searched(own: FinishedStudy, **curves: dict[int, float | None]) -> FinishedStudy:
    """Return a study that searched models on seed 1: {model: {learning rate: validation perplexity}}."""

    def trial(model: str, rate: int, ppl: float | None) -> dict:
        return {"point": {"schedule.learning_rate": rate}, "valid_ppl": ppl, "runs": [f"made-up/{model}-{rate}/1-00"]}

    trials = {model: [trial(model, *point) for point in curve.items()] for model, curve in curves.items()}
    return replace(own, tuned=tuple({"dataset": "made-up", "model": model, "curve": trials[model]} for model in curves))


@pytest.mark.parametrize("other", [70.0, None])  # a diverged trial bounds the search, too
def test_a_search_alone_decides_the_rate_and_its_seed_is_not_compared(other) -> None:
    seeds = [2, 3, 4]
    own = study(softmax=Trained(ppl=near(50), seeds=seeds), mos=Trained(head="mos", ppl=near(45), seeds=seeds))
    before = study("before", softmax=Trained(ppl=[60], valid=[1]), softmax_r5=Trained(ppl=[9], valid=[1], rate=5),
                   mos_r40=Trained(head="mos", ppl=[9], valid=[1], rate=40))  # fmt: skip
    curve = {10: 60.0, 20: 50.0, 40: other}
    found = only([searched(own, softmax=curve, mos=curve), before])
    assert found.is_tuned and found.has_equal_search and found.change == pytest.approx(-10)
    assert (found.baseline.choice.tried, found.model.choice.tried) == ((5, 10, 20, 40), (10, 20, 40))
    assert (found.n, sorted(found.baseline.log_ppl)) == ((3, 3), seeds)
    assert contrasts.at_shared_rates(found).change == pytest.approx(-10)


def test_a_rate_that_only_left_out_seeds_ran_is_tried_and_not_chosen() -> None:
    lists, left_out = {"one": {"made-up": {"MoS": ["mos", "softmax"]}}}, {"one": {"mos": [1]}}
    own = study("one", softmax=Trained(ppl=near(50)), mos=Trained(head="mos", ppl=[9, *near(45)]))
    more = study("more", mos=Trained(head="mos", ppl=[9], rate=5))
    (named,) = contrasts.named_contrasts(samples.pool_runs([own, more]), [own, more], lists, left_out, {})
    assert named.model.choice.value == 20 and named.model.choice.tried == (5, 20) and named.n == (3, 3)
    only_seed = study("one", softmax=Trained(ppl=near(50)), mos=Trained(head="mos", ppl=[9]))
    assert not contrasts.named_contrasts(samples.pool_runs([only_seed]), [only_seed], lists, left_out, {})


def test_searches_of_several_archives_are_compared_on_those_that_share_a_rate() -> None:
    """The second search did not widen its grid to 40, where its loss would be 55 or so."""
    seeds = [2, 3, 4]
    own = study(softmax=Trained(ppl=near(50), seeds=seeds), at40=Trained(ppl=near(49)[:2], seeds=seeds[:2], rate=40))
    curves = {10: 52.0, 20: 50.0, 40: 51.0}, {10: 54.0, 20: 53.0}
    (sample,) = samples.pool_runs([searched(own, softmax=curve) for curve in curves]).values()
    assert sample.choice.value == 20 and sorted(sample.log_ppl) == seeds
    no_runs = {10: 52.0, 14: 49.0, 20: 50.0}  # the best rate has not been trained yet
    (sample,) = samples.pool_runs([searched(own, softmax=no_runs)]).values()
    assert sample.choice.value == 20 and sample.choice.tried == (10, 14, 20, 40)


def test_three_other_seeds_that_validate_better_at_another_rate_overrule_the_search() -> None:
    seeds = [2, 3, 4]
    rates = {
        "softmax": Trained(ppl=near(50), valid=[52, 50, 51], seeds=seeds),
        "softmax_10": Trained(ppl=near(48), valid=[51, 50, 50], seeds=seeds, rate=10),
        "softmax_40": Trained(ppl=[40, 40], valid=[1, 1], seeds=[2, 3], rate=40),  # too few
        "softmax_5": Trained(ppl=near(40), valid=[1, 1, 1], seeds=[1, 2, 3], rate=5),  # with the search's seed
        "softmax_7": Trained(ppl=[40, 40, math.inf], valid=[1, 1, 1], seeds=seeds, rate=7),  # diverged
    }
    own = study(mos=Trained(head="mos", ppl=near(45), seeds=seeds), **rates)
    curve = {10: 60.0, 20: 50.0, 40: 70.0}
    found = only([searched(own, softmax=curve, mos=curve)])
    assert (found.baseline.choice.value, found.model.choice.value) == (10, 20)
    assert found.change == pytest.approx(100 * (45 / 48 - 1)) and found.is_tuned


def test_a_search_is_no_equal_one_if_only_one_side_has_it_or_it_ends_on_an_edge() -> None:
    own = study(softmax=Trained(ppl=near(50)), mos=Trained(head="mos", ppl=near(45)))
    inside, edge = {10: 60.0, 20: 50.0, 40: 55.0}, {7: 60.0, 10: 55.0, 20: 50.0}
    assert not only([searched(own, softmax=inside)]).has_equal_search
    assert not only([searched(own, softmax=inside, mos=edge)]).has_equal_search
    unshared = contrasts.at_shared_rates(only([searched(own, softmax=inside)]))
    assert unshared.n == (3, 3) and unshared.change == pytest.approx(-10)


def test_shared_rates_without_runs_leave_the_contrast_as_it_is() -> None:
    own = study(softmax=Trained(ppl=near(50), rate=10), mos=Trained(head="mos", ppl=near(45), rate=40))
    found = only([searched(own, softmax={5: 60.0, 10: 50.0, 20: 70.0}, mos={10: 70.0, 20: 60.0, 40: 50.0})])
    assert contrasts.at_shared_rates(found).n == (3, 3)


def test_declared_contrasts_are_a_family_on_each_corpus() -> None:
    """Models of one head are contrasts of their own, in several archives. One that has not run counts, too."""
    more = {f"mos{k}": Trained(head="mos", options={"components": k}, ppl=near(50 - k)) for k in (5, 6)}
    models = {"softmax": Trained(ppl=near(50)), "mos": Trained(head="mos", ppl=near(48)), **more}
    family = tuple(
        schema.Contrast(model=name, against="softmax", label="gain", same_size=True) for name in ("mos", *more, "later")
    )
    declared = schema.Contrasts(family=family, margin=0.01)
    parts = [study("plan", "one", **models)]
    parts += [study("plan", "two", **{name: models[name]}) for name in models]
    parts = [replace(part, contrasts=declared) for part in parts]
    found = contrasts.named_contrasts(samples.pool_runs(parts), parts, {}, {}, {})
    changes = pytest.approx([-4, -10, -12] * 2)
    assert [one.change for one in found] == changes
    assert [one.family for one in found] == [
        contrasts.Family("plan", name, tests=4) for name in ("one", "two") for _ in range(3)
    ]
    assert len({one.label for one in found}) == 1 and len({one.note for one in found}) == 3
    smallest = min(found, key=lambda one: one.p)
    assert smallest.adjusted_p == pytest.approx(4 * smallest.p)


def test_contrasts_that_a_study_declares_are_named() -> None:
    pairs = [("layer", "mixing", True), ("wide", "the same time", False)]
    family = tuple(
        schema.Contrast(model="mos", against=name, label=text, same_size=is_equal) for name, text, is_equal in pairs
    )
    own = study(
        "plan", layer=Trained(head="moc", options={"components": 1}, ppl=near(50)),
        mos=Trained(head="mos", ppl=near(48)), wide=Trained(ppl=near(40), width=64),
    )  # fmt: skip
    own = replace(own, contrasts=schema.Contrasts(family=family, margin=0.01))
    found = contrasts.named_contrasts(samples.pool_runs([own]), [own], {}, {}, {})
    assert [one.label for one in found] == ["MoS against tanh layer", "MoS against Softmax, the same time"]
    assert [one.change for one in found] == pytest.approx([-4, 20])


def test_a_diverged_run_is_never_best_and_leaves_no_interval() -> None:
    fails = study(softmax=Trained(ppl=near(50)), mos=Trained(head="mos", ppl=[30, 30, math.inf]),
        mos_r10=Trained(head="mos", ppl=near(45), rate=10))  # fmt: skip
    assert only([fails]).model.choice.value == 10
    alone = study(softmax=Trained(ppl=near(50)), mos=Trained(head="mos", ppl=[30, 31, 32, math.inf]))
    found = only([alone])
    assert found.ends is None and math.isnan(found.p) and "1 diverged" in found.text


def test_costs_stand_beside_the_change_and_time_needs_a_shared_machine() -> None:
    slow = {"parameters": 1.02e6, "sec_per_epoch": 30.0}
    one = study("one", softmax=Trained(ppl=near(50)), mos=Trained(head="mos", ppl=near(45), metrics=slow))
    busy = study("busy", softmax=Trained(ppl=[50], metrics={"sec_per_epoch": 900.0}))
    gpu = study("gpu", machine="GPU", softmax=Trained(ppl=[50], metrics={"sec_per_epoch": 1.0}))
    found = only([one, busy, gpu])  # a busy machine only slows a run, and the GPU trained no MoS
    assert found.size == pytest.approx(1.02) and not found.is_equal_size
    assert [*found.times().values()] == pytest.approx([3.0]) and found.time == "3.0"
    apart = study("mos", machine="GPU", mos=Trained(head="mos", ppl=near(45)))
    assert not only([study(softmax=Trained(ppl=near(50))), apart]).times(1)


def test_seconds_of_a_processor_with_the_name_of_an_older_one_do_not_count() -> None:
    slow = study(
        softmax=Trained(ppl=near(50), metrics={"sec_per_epoch": 10.0}),
        mos=Trained(head="mos", ppl=near(45), metrics={"sec_per_epoch": 30.0}),
    )
    fast = study("tuned-amd-epyc", softmax=Trained(ppl=[50.0], seeds=[7], metrics={"sec_per_epoch": 5.0}))
    found = only([slow, fast])
    assert [*found.times().values()] == pytest.approx([3.0]) and found.n == (3, 4)


def test_a_ratio_of_times_is_of_the_lowest_of_three_runs_and_machines_are_not_averaged() -> None:
    def on(machine: str, n: int, ratio: float = 1.5) -> list:
        return [
            study(f"{head}{machine}{seed}", machine=machine, **{head: Trained(
                head=head, ppl=[50], seeds=[seed], metrics={"sec_per_epoch": 2 * factor * (1 + seed)})})
            for head, factor in (("softmax", 1.0), ("mos", ratio)) for seed in range(n)
        ]  # fmt: skip

    assert only(on("CPU", 3)).time == "1.5"
    few = only(on("CPU", 2))
    assert few.time == "—" and [*few.times(1).values()] == pytest.approx([1.5])
    both = only([*on("A CPU", 3), *on("B CPU", 3, 4.0)])
    assert both.time == "1.5 to 4.0" and contrasts.time_range([both, few]) == "1.5 to 4.0"
    gpu = only([*on("NVIDIA H200, Xeon", 3), *on("Xeon", 1)])
    assert re.findall(r"\d\.\d", gpu.time) == ["1.5", "1.5"] and "H200" in gpu.time
    two_threads = [
        replace(own, settings={key: replace(run, threads=2) for key, run in own.settings.items()})
        for own in on("NVIDIA H200, Xeon", 3, 4.0)
    ]
    assert only([*on("NVIDIA H200, Xeon", 3), *two_threads]).time == "NVIDIA H200 1.5 to 4.0"


def test_settings_differ_in_width_and_epochs_and_not_in_inner_width() -> None:
    models = {f"{head}_{width}_{epochs}": Trained(head=head, ppl=near(50), width=width, epochs=epochs)
        for head, width, epochs in product(("softmax", "mos"), (32, 64), (10, 20))}  # fmt: skip
    wide = study("wide", mos=Trained(head="mos", ppl=near(40), inner=256, metrics={"parameters": 1.2e6}))
    found = contrasts.against_baseline(samples.pool_runs([study("many", **models), wide]), "MoS", MOS)
    assert len({one.setting for one in found}) == len(found) == 4
    assert all(one.is_equal_size and one.change == pytest.approx(0) for one in found)  # the size nearest the softmax's


def test_a_cut_of_a_corpus_is_that_corpus() -> None:
    assert samples.corpus_of("ptb-small") == samples.corpus_of("ptb") == "ptb"
    assert samples.corpus_of("wt2-small") == samples.corpus_of("wikitext-2") != "ptb"
    assert samples.corpus_of("unknown") == "unknown"


def test_a_whole_corpus_names_its_cut_whatever_the_optimiser() -> None:
    whole, cut = (
        study(name, name, softmax=Trained(ppl=near(50)), mos=Trained(head="mos", ppl=near(45)))
        for name in ("ptb", "ptb-small")
    )
    runs = {
        key: replace(run, schedule=replace(run.schedule, optimizer="nt-asgd")) for key, run in whole.settings.items()
    }
    whole = replace(whole, settings=runs, corpora={"ptb": "The Penn Treebank"})
    cut = replace(cut, corpora={"ptb-small": "Penn Treebank, small"})
    found = contrasts.against_baseline(samples.pool_runs([whole, cut]), "MoS", MOS)
    assert contrasts.corpora(found) == ["Penn Treebank"]
    assert {contrast.setting.title for contrast in found} == {"Penn Treebank", "small Penn Treebank"}


def test_the_family_over_all_heads_leaves_single_runs_out_and_corrects_by_holm() -> None:
    heads = {"ss": Trained(head="sigsoftmax", ppl=near(48)), "mos": Trained(head="mos", ppl=near(49.5))}
    natural = study("plan", softmax=Trained(ppl=near(50)), **heads)
    single = study("single", "wt2-small", softmax=Trained(ppl=near(50)), mos=Trained(head="mos", ppl=[45.0]))
    found = samples.pool_runs([natural, single])
    every = [
        *contrasts.against_baseline(found, "SigSoftmax", {"name": "sigsoftmax"}),
        *contrasts.against_baseline(found, "MoS", MOS),
    ]
    adjusted = contrasts.over_all_heads(every)
    assert sorted(one.label for one in adjusted) == ["MoS", "SigSoftmax"]  # one run has no interval
    smallest, largest = sorted(one.p for one in adjusted)
    assert sorted(adjusted.values()) == pytest.approx(sorted([2 * smallest, max(2 * smallest, largest)]))


def test_options_are_matched_in_the_order_of_preference() -> None:
    models = {f"mos{k}": Trained(head="mos", options={"components": k}, ppl=near(40 + k)) for k in (2, 3, 15)}
    found = only([study(softmax=Trained(ppl=near(50)), **models)], {"name": "mos", "components": [5, 3, 15]})
    assert found.model.ppl == pytest.approx(np.exp(np.mean(np.log(near(43)))))


def test_the_rival_at_equal_time_is_the_best_validated_softmax_that_is_no_slower() -> None:
    slow, slower, slowest = ({"sec_per_epoch": seconds} for seconds in (20, 30, 40))  # the softmax takes 10 s
    wide = study(softmax=Trained(ppl=near(50)), softmax_64=Trained(ppl=near(46), width=64, metrics=slow),
                 softmax_100=Trained(ppl=near(40), width=100, metrics=slowest),
                 softmax_72=Trained(ppl=[40, 41, math.inf], width=72, metrics=slow),
                 mos=Trained(head="mos", ppl=near(45), metrics=slower))  # fmt: skip
    found = samples.pool_runs([wide])
    (mos,) = contrasts.against_baseline(found, "MoS", MOS)
    rival = contrasts.at_equal_time(found, mos)
    assert rival and rival.change == pytest.approx(100 * (45 / 46 - 1)) and rival.time == "1.5"
    once = study("once", softmax=Trained(ppl=near(50)), mos=Trained(head="mos", ppl=near(45), metrics=slower),
                 softmax_64=Trained(ppl=[46.0], width=64, metrics=slow))  # fmt: skip
    found = samples.pool_runs([once])
    assert contrasts.at_equal_time(found, *contrasts.against_baseline(found, "MoS", MOS)) is None  # one timed run
    alone = samples.pool_runs([study(softmax=Trained(ppl=near(50)), mos=Trained(head="mos", ppl=near(45)))])
    assert contrasts.at_equal_time(alone, *contrasts.against_baseline(alone, "MoS", MOS)) is None


@pytest.mark.parametrize("ppl", [[48, 48.1, math.inf], [math.inf] * 3])
def test_a_contrast_with_a_diverged_run_stays_a_test_of_its_family(ppl) -> None:
    one = study("plan", softmax=Trained(ppl=near(50)), moc=Trained(head="moc", ppl=near(49)),
                mos=Trained(head="mos", ppl=ppl))  # fmt: skip
    lists = {"plan": {"made-up": {"MoC": ["moc", "softmax"], "MoS": ["mos", "softmax"]}}}
    moc, mos = contrasts.named_contrasts(samples.pool_runs([one]), [one], lists, {}, {})
    p = stats.ttest_ind(np.log(near(49)), np.log(near(50)), equal_var=False).pvalue
    assert moc.adjusted_p == pytest.approx(2 * p) and math.isnan(mos.adjusted_p) and mos.family.tests == 2


def test_named_contrasts_are_corrected_within_their_study_and_leave_out_seeds_that_chose() -> None:
    one = study("plan", softmax=Trained(ppl=near(50)), moc=Trained(head="moc", ppl=near(49)),
                mos=Trained(head="mos", ppl=[10, *near(48)]))  # fmt: skip
    not_run = {"GSS": ["gss", "softmax"]}
    lists = {"plan": {"made-up": {"MoC": ["moc", "softmax"], "MoS": ["mos", "softmax"]} | not_run}}
    notes = {"plan": {"made-up": "a note"}}
    found = contrasts.named_contrasts(samples.pool_runs([one]), [one], lists, {"plan": {"mos": [1]}}, notes)
    assert {(one.family.tests, one.note) for one in found} == {(3, "a note")}
    assert [(one.study, one.label) for one in found] == [("plan", "MoC"), ("plan", "MoS")]
    logs = [np.log(near(level)) for level in (49, 48, 50)]
    first, second = (stats.ttest_ind(own, logs[2], equal_var=False).pvalue for own in logs[:2])
    smaller = min(first, second)
    assert [one.adjusted_p for one in found] == pytest.approx([max(2 * first, 3 * smaller), 3 * smaller])
    partly = study("plan", machine="GPU", softmax=Trained(ppl=near(50)))  # another archive, without most models
    assert len(contrasts.named_contrasts(samples.pool_runs([one, partly]), [one, partly], lists, {}, {})) == 2
    moc, mos = found
    plan, other = contrasts.Family("plan", tests=2), contrasts.Family("other")
    interleaved = contrasts.corrected([(plan, moc), (other, moc), (plan, mos)])
    assert [one.study for one in interleaved] == ["plan", "plan", "other"]
    assert [one.adjusted_p for one in interleaved] == pytest.approx([max(first, 2 * smaller), 2 * smaller, first])


def test_no_archived_run_of_a_log_linear_head_exceeds_the_rank_bound(shipped) -> None:
    """A theorem, so a test of the code: the log-probabilities of Softmax and MoC have rank d + 2 at most."""
    found = samples.pool_runs(archive.load_all())
    ranks = [
        (run.values["rank_press"], model.setting.width + 2)
        for model, sample in found.items() if model.head in ("softmax", "moc")
        for run in sample.runs if "rank_press" in run.values
    ]  # fmt: skip
    assert len(ranks) > 100 and all(rank <= bound for rank, bound in ranks)


def test_a_contrast_that_two_studies_named_counts_once_with_the_larger_p_value() -> None:
    own = only([study(softmax=Trained(ppl=near(50)), mos=Trained(head="mos", ppl=near(49)))])
    sides = (own.label, own.model, own.baseline)
    named = [
        contrasts.Named(*sides, family=contrasts.Family(f"p = {p}"), adjusted_p=p)
        for p in (math.nan, 0.01, 0.03, 0.02, math.nan)
    ]
    for order in (named, named[::-1], named[:3], named[2:]):  # one without a p-value never counts
        assert [one.adjusted_p for one in contrasts.distinct(order)] == [0.03]
    larger = replace(named[2], family=contrasts.Family("larger", tests=5))
    for order in ([larger, named[2]], [named[2], larger]):  # of equal p-values, that of the larger family
        assert contrasts.distinct(order) == [larger]


def test_perplexities_of_held_out_tokens_are_not_pooled(shipped) -> None:
    """The archived study of repeated tokens has them; its searches minimise updates instead of perplexity."""
    studies = archive.find("repeat")
    assert {choice["by"] for study in studies for choice in study.tuned} == {"steps"}
    assert not samples.pool_runs(studies)
