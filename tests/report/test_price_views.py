"""Prices of widths on natural distributions, from made-up numbers whose answers are known."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from softmax_bottleneck.report.views import price
from softmax_bottleneck.report.views.fits import Frames

FREE = {1: 2.0, 2: 2.5, 3: 4.0, 9: 3.0}  # context-free KL by seed
NAMES = {"softmax": "Softmax", "gss": "GSS", "mos": "MoS"}


def line(model: str, d: float, seed: int, kl: float, ms: float = 1.0, **more: Any) -> dict[str, Any]:
    own = {"truth": "text", "model": model, "d": d, "seed": seed, "kl_nats": kl, "update_ms": ms, "learning_rate": 0.2}
    return own | {"kl_top_1": kl / 2, "kl_top_10": 0.9 * kl} | more


def frames(gains: dict[str, float], after: float = 0.0995) -> Frames:
    """Fits whose gain is a share of the context-free KL, by model; `after`: KL with twice the updates (before: 0.1)."""
    lines = []
    for seed in (1, 2, 3):
        noise = 0.001 * seed
        lines += [line("softmax", d, seed, FREE[seed] * (0.2 + noise) / d, ms=d) for d in (2.0, 8.0)]
        for model, gain in gains.items():
            kl = FREE[seed] * ((0.2 + noise) / 2 - gain - noise / 10)
            lines.append(line(model, 2.0, seed, kl, ms=4.0))
    for model in ("softmax", *gains):
        lines += [line(model, 2.0, 9, 0.1 + (rate != 0.2), rate=rate) for rate in (0.1, 0.2, 0.5)]
        lines.append(line(model, 2.0, 9, after, updates=20))
    truths = pd.DataFrame([{"truth": "text", "seed": seed, "kl_no_context_nats": free, "kept_mass": 0.75}
                           for seed, free in FREE.items()])  # fmt: skip
    return Frames(pd.DataFrame(lines), truths, NAMES)


def test_prices_and_gains_are_those_computed_by_hand():
    found = {(one.model, one.width): one for one in price.prices(frames({"gss": 0.02}))}
    assert set(found) == {("softmax", 2), ("softmax", 8), ("gss", 2)}
    softmax, gss = found["softmax", 2], found["gss", 2]
    kl = [FREE[seed] * (0.2 + 0.001 * seed) / 2 for seed in (1, 2, 3)]
    half = stats.t.ppf(0.975, 2) * np.std(kl, ddof=1) / math.sqrt(3)
    assert (softmax.kl.value, softmax.kl.high) == pytest.approx((np.mean(kl), np.mean(kl) + half))
    assert softmax.share == pytest.approx((0.201 + 0.202 + 0.203) / 6) and softmax.gain.value == 0
    gains = [0.02 + 0.0001 * seed for seed in (1, 2, 3)]
    assert gss.gain.value == pytest.approx(np.mean(gains))
    assert gss.gain.low == pytest.approx(np.mean(gains) - stats.t.ppf(0.975, 2) * 0.0001 / math.sqrt(3))
    # A softmax with updates of 4 ms lies midway between d = 2 and 8 on log scales: KL is half of that at d = 2.
    at_time = [(0.2 + 0.001 * seed) / 4 - (0.2 + 0.001 * seed) / 2 + gain for seed, gain in enumerate(gains, start=1)]
    assert gss.at_time.value == pytest.approx(np.mean(at_time))


@pytest.mark.parametrize(("gain", "after", "verdict"), [
    (0.06, 0.0995, "pays"), (0.02, 0.0995, "small gain"), (-0.02, 0.0995, "loses"), (0.0, 0.0995, "open"),
    (0.06, 0.084, "not converged"), (0.06, 0.0975, "pays"), (0.06, 0.0860, "pays"),
])  # fmt: skip
def test_verdicts_need_the_margin_the_interval_and_converged_fits(gain, after, verdict):
    # With twice the updates, KL may change by 2 % of 0.1 or by a tenth of 5 % of 3 nats: 0.015.
    (found,) = (one for one in price.prices(frames({"gss": gain}, after)) if one.model == "gss")
    assert found.verdict == verdict and not found.edge


def test_p_values_are_those_of_scipy_with_holms_correction():
    found = {one.model: one.p for one in price.prices(frames({"gss": 0.0005, "mos": 0.002})) if one.model != "softmax"}
    raw = {model: stats.ttest_1samp([gain + 0.0001 * seed for seed in (1, 2, 3)], 0).pvalue
           for model, gain in (("gss", 0.0005), ("mos", 0.002))}  # fmt: skip
    assert raw["mos"] < raw["gss"]
    assert found == pytest.approx({"mos": 2 * raw["mos"], "gss": max(raw["gss"], 2 * raw["mos"])}, rel=1e-6)


def test_a_step_size_at_the_edge_of_the_search_is_marked():
    made = frames({"gss": 0.02})
    edge = made.fits["rate"].isna() | (made.fits["rate"] <= 0.2)
    found = price.prices(Frames(made.fits[edge], made.truths, NAMES))
    assert {one.edge for one in found} == {True}


def test_tables_and_figure_show_every_price(monkeypatch):
    made = frames({"gss": 0.02, "mos": 0.06})
    monkeypatch.setattr(price.Frames, "of", lambda source, fits: made)
    (section,) = price.price_table(None, fits="price")  # type: ignore[arg-type]
    cells = {row.key: row.cells for row in section.rows}
    assert [len(cells[model]) for model in NAMES] == [2, 2, 2] and "pays" in cells["mos"][0].note
    assert cells["gss"][1].measured is None and not cells["gss"][1].wanted
    (top,) = price.price_top_table(None, fits="price", width=2)  # type: ignore[arg-type]
    row = {row.key: [cell.measured.mean for cell in row.cells if cell.measured] for row in top.rows}["softmax"]
    kl = np.mean([FREE[seed] * (0.2 + 0.001 * seed) / 2 for seed in (1, 2, 3)])
    assert row == pytest.approx([kl / 2, 0.9 * kl, 0.1 * kl, kl])
    source: Any = SimpleNamespace(study=SimpleNamespace(absent_truths={"price.truths.llm": "llm.gguf"}))
    drawing = price.price_curves_figure(source, fits="price")
    assert "llm" in drawing.note
    panel = drawing.canvas.axes[0]
    assert len(drawing.data) == 4 and {text.get_text() for text in panel.texts} >= set(NAMES.values())


def test_without_fits_nothing_is_shown(monkeypatch):
    empty = Frames(pd.DataFrame(columns=["model", "seed"]), pd.DataFrame(columns=["model", "seed"]), NAMES)
    monkeypatch.setattr(price.Frames, "of", lambda source, fits: empty)
    assert list(price.price_table(None, fits="price")) == []  # type: ignore[arg-type]
    assert list(price.price_top_table(None, fits="price", width=2)) == []  # type: ignore[arg-type]
    assert price.price_curves_figure(None, fits="price").data.empty  # type: ignore[arg-type]
