"""Prices of widths on natural distributions, from made-up numbers whose answers are known."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import findings
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.claims import CLAIMS, natural
from softmax_bottleneck.report.claims.rules import NOT_REPRODUCED, REPRODUCED, SYNTHETIC, UNDECIDED, CorpusData
from softmax_bottleneck.report.claims.verdict import judge
from softmax_bottleneck.report.views import price
from softmax_bottleneck.report.views.fits import Frames
from softmax_bottleneck.statistics.intervals import Interval

FREE = {1: 2.0, 2: 2.5, 3: 4.0, 9: 3.0}  # context-free KL by seed
NAMES = {"softmax": "Softmax", "gss": "GSS", "mos": "MoS"}


def line(model: str, d: float, seed: int, kl: float, ms: float = 1.0, **more: Any) -> dict[str, Any]:
    own = {"truth": "text", "model": model, "d": d, "seed": seed, "kl_nats": kl, "update_ms": ms, "learning_rate": 0.2}
    return own | {"head": model, "kl_top_1": kl / 2, "kl_top_10": 0.9 * kl} | more


def frames(gains: dict[str, float], after: float = 0.0995, softmax: float = 0.1, control: float | None = 0.1) -> Frames:
    """Fits whose gain is a share of the context-free KL, by model; `after`: KL with twice the updates (before: 0.1).

    `softmax` is its KL with twice the updates, and `control` the gain of MoS on the truth `mos` at width 64, where
    seeds differ by 0.001 and twice the updates change nothing. The seed of the search is 9, with 10 updates.
    """
    lines = []
    for seed in (1, 2, 3):
        noise = 0.001 * seed
        lines += [line("softmax", d, seed, FREE[seed] * (0.2 + noise) / d, ms=d) for d in (2.0, 8.0)]
        for model, gain in gains.items():
            kl = FREE[seed] * ((0.2 + noise) / 2 - gain - noise / 10)
            lines.append(line(model, 2.0, seed, kl, ms=4.0))
    for model in ("softmax", *gains):
        lines += [line(model, 2.0, 9, 0.1 + (rate != 0.2), rate=rate) for rate in (0.1, 0.2, 0.5)]
        lines.append(line(model, 2.0, 9, softmax if model == "softmax" else after, updates=20))
    if control is not None:
        for (seed, free), (model, gain) in itertools.product(FREE.items(), (("softmax", 0), ("mos", control))):
            kl = free * (0.2 - gain - 0.001 * seed * (model == "mos"))
            for more in [{"rate": 0.2}, {"updates": 20}] if seed == 9 else [{}]:
                lines.append(line(model, 64, seed, kl, truth="mos", **more))
    truths = [{"truth": truth, "seed": seed, "kl_no_context_nats": free, "kept_mass": 0.75}
              for truth in ("text", "mos") for seed, free in FREE.items()]  # fmt: skip
    return Frames(pd.DataFrame(lines), pd.DataFrame(truths), NAMES)


def prices(made: Frames) -> dict[tuple[str, float], natural.Price]:
    found = natural.judged(natural.prices(made.fits, made.truths))
    return {(price.model, price.width): price for price in found if price.truth == "text"}


def test_prices_and_gains_are_those_computed_by_hand():
    found = prices(frames({"gss": 0.02}))
    softmax, gss = found["softmax", 2], found["gss", 2]
    shares = [(0.2 + 0.001 * seed) / 2 for seed in (1, 2, 3)]
    half = stats.t.ppf(0.975, 2) * np.std(shares, ddof=1) / math.sqrt(3)
    assert (softmax.share.value, softmax.share.high) == pytest.approx((np.mean(shares), np.mean(shares) + half))
    gains = [0.02 + 0.0001 * seed for seed in (1, 2, 3)]
    assert gss.gain.value == pytest.approx(np.mean(gains))
    assert gss.gain.low == pytest.approx(np.mean(gains) - stats.t.ppf(0.975, 2) * 0.0001 / math.sqrt(3))
    # A softmax with updates of 4 ms lies midway between d = 2 and 8 on log scales: KL is half of that at d = 2.
    at_time = [(0.2 + 0.001 * seed) / 4 - (0.2 + 0.001 * seed) / 2 + gain for seed, gain in enumerate(gains, start=1)]
    assert gss.at_time.value == pytest.approx(np.mean(at_time)) and not gss.is_bound
    assert (gss.later, gss.change) == pytest.approx((0.0005 / 3, 0.0005 / 3)) and gss.updates == 20
    assert found["softmax", 8].unjudged == "not checked"  # the search has only width 2


def test_a_head_slower_than_every_softmax_is_compared_with_the_slowest_and_never_pays_at_equal_time():
    made = frames({"gss": 0.09})
    slow = made.fits.assign(update_ms=made.fits["update_ms"].where(made.fits["model"] != "gss", 9.0))
    fast, found = prices(made)["gss", 2], prices(Frames(slow, made.truths, NAMES))["gss", 2]
    widest = [(0.2 + 0.001 * seed) / 8 - (0.2 + 0.001 * seed) / 2 + 0.09 + 0.0001 * seed for seed in (1, 2, 3)]
    assert found.is_bound and found.at_time.value == pytest.approx(np.mean(widest))
    low = replace(fast, at_time=replace(fast.at_time, value=0.06, low=0.05))
    assert low.pays_at_time and not replace(low, is_bound=True).pays_at_time


def test_the_softmax_at_equal_time_is_the_best_within_that_time():
    """Updates take 2 and 8 ms, with KL 0.4 and `kl`. A wider softmax with a larger KL does not count."""
    cases = ((2, 0.4, 0.4), (8, 0.1, 0.1), (4, 0.1, 0.2), (4, 0.9, 0.4), (9, 0.1, 0.1), (1, 0.1, None))
    for ms, kl, expected in cases:
        found = natural._at_time(pd.DataFrame({"update_ms": [2.0, 8.0], "kl_nats": [0.4, kl]}), ms)
        assert math.isnan(found) if expected is None else found == pytest.approx(expected)


@pytest.mark.parametrize(("gain", "after", "softmax", "verdict"), [
    (0.06, 0.0995, 0.1, "pays"), (0.02, 0.0995, 0.1, "small gain"), (-0.02, 0.0995, 0.1, "small loss"),
    (-0.06, 0.0995, 0.1, "loses"), (0.0, 0.0995, 0.1, "open"), (0.06, 0.0860, 0.1, "pays"),
    (0.06, 0.084, 0.1, "not judged: not converged"), (0.06, 0.0995, 0.08, "not judged: softmax not converged"),
    (0.0497, 0.0995, 0.1, "small gain"), (0.0499, 0.0995, 0.1, "pays"),
    (0.0050, 0.0860, 0.1, "small gain"), (0.0044, 0.0860, 0.1, "open"),  # twice the updates: 0.014 of 3 nats
])  # fmt: skip
def test_verdicts_need_the_margin_the_interval_and_converged_fits(gain, after, softmax, verdict):
    # With twice the updates, KL may change by 2 % of 0.1 or by a tenth of 5 % of 3 nats: 0.015. A gain is 0.0002 more.
    found = prices(frames({"gss": gain}, after, softmax))["gss", 2]
    assert found.verdict == verdict and not found.edge


@pytest.mark.parametrize(("control", "reason"), [(0.01, ""), (-0.01, "failed"), (0.0004, "failed"), (None, "not run")])
def test_mixtures_are_judged_only_if_the_control_passes(control, reason):
    found = prices(frames(dict.fromkeys(("gss", "moc", "mos", "multi-facet"), 0.06), control=control))
    verdict = f"not judged: control {reason}" if reason else "pays"
    verdicts = [found[model, 2].verdict for model in ("gss", "moc", "mos", "multi-facet")]
    assert verdicts == ["pays", verdict, verdict, verdict]  # GSS is no mixture


@pytest.mark.parametrize(("gain", "later", "is_passed"), [(0.11, 0.11, 1), (0.101, 0.11, 0), (0.11, 0.09, 0)])
def test_a_sampled_mixture_decides_by_half_of_the_softmaxs_loss(gain, later, is_passed):
    """A softmax loses 0.2 of the context-free KL. Gains of three seeds differ by 0.001, a half-width of 0.0025."""
    made, lines = frames({"mos": 0.06}, control=0.1 - 0.2 * is_passed), []
    for (seed, free), (model, won) in itertools.product(FREE.items(), (("softmax", (0, 0)), ("mos", (gain, later)))):
        for part, more in enumerate([{"rate": 0.2}, {"updates": 20}] if seed == 9 else [{}]):
            kl = free * (0.2 - won[part] - 0.001 * (seed - 2) * (model == "mos" and seed != 9))
            lines.append(line(model, 16, seed, kl, truth="sampled", **more))
    truths = made.truths[made.truths["truth"] == "text"].assign(truth="sampled")
    both = [pd.concat(parts) for parts in ((made.fits, pd.DataFrame(lines)), (made.truths, truths))]
    found = natural.judged(natural.prices(*both))
    verdicts = {price.verdict for price in found if (price.truth, price.model) == ("text", "mos")}
    assert verdicts == {"pays" if is_passed else "not judged: control failed"}


def test_p_values_are_those_of_scipy_with_holms_correction_over_truths():
    made = frames({"gss": 0.0005, "mos": 0.002}, control=None)
    both = [pd.concat([part, part.assign(truth="other")]) for part in (made.fits, made.truths.query("truth == 'text'"))]
    found = [price for price in natural.judged(natural.prices(*both)) if price.model != "softmax"]
    gss, mos = (stats.ttest_1samp(gain + np.array([1e-4, 2e-4, 3e-4]), 0).pvalue for gain in (0.0005, 0.002))
    corrected = {"mos": 4 * mos, "gss": max(4 * mos, 2 * gss)}  # two heads and two truths
    assert mos < gss and [price.p for price in found] == pytest.approx([corrected[price.model] for price in found])
    assert [price.truth for price in found] == ["other", "other", "text", "text"]  # so that a truth has one section


def test_one_or_two_seeds_decide_nothing():
    made = frames({"gss": 0.06})
    for seeds in ([1, 9], [1, 2, 9]):
        found = prices(Frames(made.fits[made.fits["seed"].isin(seeds)], made.truths, NAMES))["gss", 2]
        assert found.verdict == "not judged: too few seeds" and not math.isfinite(found.gain.low)


def test_a_step_size_at_the_edge_of_the_search_is_marked():
    made = frames({"gss": 0.02})
    found = prices(Frames(made.fits[made.fits["rate"] != 0.5], made.truths, NAMES))
    assert {one.edge for one in found.values()} == {True}


def cell(truth: str, model: str, width: float, gain: float, **facts: Any) -> natural.Price:
    """A judged price with intervals of 0.01 to each side; the softmax of the truth loses 0.2."""
    near = [Interval(value, value - 0.01, value + 0.01, (3,), 0.01, 3) for value in (0.2 - gain, gain, gain)]
    own = dict(zip(("share", "gain", "at_time"), near, strict=True)) | {"kl": 0.1, "p": 0.5, "unjudged": ""}
    own |= {"is_bound": False, "later": gain, "change": 0.0, "updates": 20}
    return natural.Price(truth=truth, model=model, head=model, width=width, edge=False, **own | facts)


def table(states: str) -> list[natural.Price]:
    """Prices of the truths a, b, ... on which GSS pays at width 64 (1), does not (0), is not judged (x) or is missing.

    MoC, which has the softmax's rank, and GSS at width 8 always pay, which must count for nothing.
    """
    cells = []
    for truth, state in zip("abcd", states.rstrip("-"), strict=False):
        cells += [cell(truth, "softmax", 8, 0.0), cell(truth, "softmax", 64, 0.0)]
        cells += [cell(truth, "moc", 64, 0.1), cell(truth, "gss", 8, 0.1)]
        cells.append(cell(truth, "gss", 64, 0.04 if state == "0" else 0.1, unjudged="x" * (state == "x")))
    return cells


@pytest.mark.parametrize(("states", "overall"), [
    ("0000", "none"), ("1110", "most"), ("0001", "depends"), ("1100", "depends"), ("111x", "most"), ("100x", "depends"),
    ("110x", "open"), ("000-", "open"), ("xxxx", "open"), ("----", "open"),
])  # fmt: skip
def test_the_outcome_is_that_of_the_declaration(states, overall):
    found, verdicts = natural.outcome(table(states), ("a", "b", "c", "d"))
    kinds = {"0": "none", "1": "pays", "x": "open", "-": "open"}
    assert found == overall and list(verdicts.values()) == [kinds[state] for state in states]


def test_missing_cells_are_open_except_where_the_softmax_loses_too_little():
    cells = [*table("00"), cell("a", "multi-facet", 16, 0.0), cell("a", "mos", 256, 0.0)]
    assert natural.outcome(cells, ("a", "b"))[1] == {"a": "none", "b": "open"}
    low = [cell("b", "softmax", width, 0.0, share=Interval(0.04, 0.03, 0.05, (3,), 0, 3)) for width in (16, 256)]
    assert natural.outcome([*cells, *low], ("a", "b"))[1] == {"a": "none", "b": "none"}
    kinds = ([], low, [cell("b", "softmax", 64, 0.0)], [*low, cell("b", "softmax", 64, 0.0)])  # loses more at 64
    assert [natural.is_hopeless(some, "b") for some in kinds] == [False, True, False, False]


def records(paying: tuple[str, ...], updates: int = 20) -> Records:
    """Records of GSS and MoS at width 64 on the four truths; GSS gains 0.06 on those in `paying`, and MoS 0.001."""
    rows, ways = [], [";rate=0.1", ";rate=0.2", ";rate=0.5", f";updates={updates}"]
    for truth, seed in itertools.product(natural.TRUTHS, (1, 2, 3, 9)):
        where, gains = f"truth={truth};N=9;V=9", {"softmax": 0, "gss": 0.06 * (truth in paying), "mos": 0.001}
        rows.append(("law", where, "kl_no_context_nats", 2.0, seed))
        for way, model in itertools.product(ways if seed == 9 else [""], gains):
            facts = {"kl_nats": 2 * (0.2 - gains[model] + 1e-5 * seed), "update_ms": 1, "learning_rate": 0.2}
            rows += [(model, f"{where}{way};d=64;head={model}", *fact, seed) for fact in facts.items()]
    lines = pd.DataFrame(rows, columns=["model", "condition", "metric", "value", "seed"])
    return Records(lines.assign(dataset="synthetic", table="price", run_id=""), pd.DataFrame(columns=["dataset"]))


def test_of_several_studies_the_longer_fits_decide():
    early, late = records(("mos",), updates=20), records(natural.TRUTHS[:2], updates=40)
    for studies in ((early, late), (late, early)):
        table = natural.prices_of(*studies)
        assert natural.outcome(table)[1] == dict.fromkeys(natural.TRUTHS, "none") | dict.fromkeys(
            natural.TRUTHS[:2], "pays"
        )
        assert len(table) == 12 and {price.updates for price in table} == {40}


@pytest.mark.parametrize(
    ("paying", "verdict", "state"),
    [(natural.TRUTHS[1:], REPRODUCED, "fails"), ((), NOT_REPRODUCED, "holds"), (("mos",), NOT_REPRODUCED, "depends")],
)
def test_the_claim_and_the_finding_follow_the_outcome(paying, verdict, state):
    made = records(paying)
    (claim,) = (claim for claim in CLAIMS if claim.id == "rank-pays")
    entry = judge(CorpusData(made, SYNTHETIC), claim)
    assert (entry.verdict, entry.numbers[0].value) == (verdict, 25 * len(paying))
    evidence = findings.Evidence([FinishedStudy("price", "price", "price", "cpu", {}, [], made)], {}, [])
    finding = findings.natural_distributions(evidence)
    assert finding.state == state and finding.facts["pays"] == len(paying) and len(finding.figure.rows) == 4
    texts = findings.TEXTS["findings"]["natural-distributions"]
    assert all(len(text.format(**finding.facts).split()) <= 20 for text in texts["short"].values())
    few = made.rows[~made.rows["condition"].str.contains("truth=mos")]  # and no control
    opened = judge(CorpusData(replace(made, rows=few), SYNTHETIC), claim)
    assert (opened.verdict, str(opened.reason.code)) == (UNDECIDED, "prices_judged")


def test_tables_and_figure_show_every_price(monkeypatch):
    made = frames({"gss": 0.02, "mos": 0.06}, control=None)
    monkeypatch.setattr(price.Frames, "of", lambda source, fits, setting: made)
    (section,) = price.price_table(None, fits="price")  # type: ignore[arg-type]
    cells = {row.key: row.cells for row in section.rows}
    assert [len(cells[model]) for model in NAMES] == [2, 2, 2] and not cells["gss"][1].wanted
    assert "control not run" in cells["mos"][0].note
    (top,) = price.price_top_table(None, fits="price", width=2)  # type: ignore[arg-type]
    row = {row.key: [cell.measured.mean for cell in row.cells if cell.measured] for row in top.rows}["softmax"]
    kl = np.mean([FREE[seed] * (0.2 + 0.001 * seed) / 2 for seed in (1, 2, 3)])
    assert row == pytest.approx([kl / 2, 0.9 * kl, 0.1 * kl, kl])
    absent = {"price.truths.llm": "llm.gguf", "price.truths.text": "archived.npz"}
    own = {"runs": (), "experiments": (), "labels": {}, "fit_labels": {"price": NAMES}}
    source: Any = SimpleNamespace(study=SimpleNamespace(absent_truths=absent, **own))
    drawing = price.price_curves_figure(source, fits="price")
    assert drawing.note.endswith("Hollow: not judged. Left out, because their saved model is missing: llm.")
    assert len(drawing.data) == 4
    made = frames({"gss": 0.02})
    made = Frames(made.fits.query("d == 2"), made.truths, NAMES)  # every cell is judged
    assert "Hollow" not in price.price_curves_figure(source, fits="price").note
    assert {text.get_text() for text in drawing.canvas.axes[0].texts} >= set(NAMES.values())


def test_without_fits_nothing_is_shown(monkeypatch):
    empty = Frames(pd.DataFrame(columns=["model", "seed"]), pd.DataFrame(columns=["model", "seed"]), NAMES)
    monkeypatch.setattr(price.Frames, "of", lambda source, fits, setting: empty)
    source: Any = None
    assert [*price.price_table(source, fits="price"), *price.price_top_table(source, fits="price", width=2)] == []
    assert price.price_curves_figure(source, fits="price").data.empty
