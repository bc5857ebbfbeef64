"""Figures: same bytes every time, literal text, colours by name, data that are the numbers measured."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import fake_results as fake
import numpy as np
import pandas as pd
import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collect, records
from softmax_bottleneck.report import figures, registry, source
from softmax_bottleneck.report.figures import plots
from softmax_bottleneck.report.options import options_of
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import load_experiment

FIGURES = (
    *("known-truth-figure", "parthiban2021-figure4", "parthiban2021-figure7", "parthiban2021-rank-perplexity"),
    "parthiban2021-learning-curves",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(artefacts.os, "fsync", lambda descriptor: None)
        study = fake.load(folder)
        fake.write_all(study)
        yield study


def build(study, name: str) -> figures.Figure:
    return figures.build(study, source.experiment_of(study, name, "figure"), collect.collect(study))


def data(figure: figures.Figure) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(figure.csv)))


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_results_give_the_same_bytes_and_nothing_from_outside(finished, name: str) -> None:
    figure = build(finished, name)
    assert build(finished, name) == figure
    root = ElementTree.fromstring(figure.svg)
    for element in root.iter():
        tag = element.tag.split("}")[-1]
        assert tag not in {"script", "foreignObject", "a"}
        for key, value in element.attrib.items():
            assert not key.startswith("on")
            assert not key.endswith("href") or value.startswith("#")
    assert "<dc:date>" not in figure.svg and "url(http" not in figure.svg and "@import" not in figure.svg
    assert len(figure.alt) > 40 and data(figure)


def paths(svg: str) -> list[tuple[str, list[float]]]:
    """The commands and the numbers of every path, in order."""
    drawn = (path.get("d", "") for path in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"))
    return [
        ("".join(re.findall("[A-Za-z]", path)), [float(n) for n in re.findall(r"-?\d+\.?\d*", path)]) for path in drawn
    ]


def marks(element: ElementTree.Element, above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], list[float]]]:
    """What is drawn, in order: its looks with all that it inherits in words, and where it stands."""
    tag, own = element.tag.split("}")[-1], dict(element.attrib)
    moved = re.findall(r"-?[\d.]+", own.pop("transform", "")) if tag == "use" else []
    where = [float(number) for number in (own.get("x", [*moved, 0][0]), own.get("y", [*moved, 0, 0][1]))]
    style = sorted(part.strip().replace(": ", ":") for part in own.get("style", "").split(";"))
    href = next((value for key, value in own.items() if key.endswith("href")), "").replace("DejaVuSans-", "c")
    words = (
        *style,
        own.get("transform", ""),
        "clip" * ("clip-path" in own),
        href if href.startswith("#c") else href[:2],
    )
    looks = (*above, *(word for word in words if word))
    below = [mark for child in element for mark in marks(child, looks)]
    return [((tag, *looks), where), *below] if tag in ("path", "use", "rect") else below


def test_the_shorter_svg_draws_the_same() -> None:
    canvas, ((axes,),) = plots.panels(1, 1, 4.0, 3.0)
    axes.plot([1, 10, 123.456], [-1e-3, 2e-7, 0.0], "o-", clip_on=True)
    axes.plot([1], [math.nan], "s")
    axes.set(title="Qq 10⁻³", xscale="log")
    whole = io.StringIO()
    canvas.savefig(whole, format="svg", metadata={"Date": None})
    short = plots.to_svg(canvas)
    assert len(short) < 0.75 * len(whole.getvalue()) and "<g>" not in short and "<metadata" not in short
    before, after = paths(whole.getvalue()), paths(short)
    assert len(before) > 10 and [words for words, _ in after] == [words for words, _ in before]
    for (_, one), (_, other) in zip(before, after, strict=True):
        assert other == pytest.approx(one, abs=0.1)
    seen, kept = (marks(ElementTree.fromstring(svg)) for svg in (whole.getvalue(), short))
    assert len(seen) > 40 and [looks for looks, _ in kept] == [looks for looks, _ in seen]
    assert [place for _, place in kept] == [pytest.approx(place, abs=0.1) for _, place in seen]


@pytest.mark.parametrize(("x", "y"), [(1.0, math.nan), (1.0, -1.0), (1e9, 1.0)], ids=["nan", "no-log", "off-canvas"])
def test_dots_that_cannot_be_seen_leave_a_sound_svg(x: float, y: float) -> None:
    """matplotlib closes their empty group at once."""
    canvas, ((axes,),) = plots.panels(1, 1, 4.0, 3.0)
    axes.plot([1.0, 2.0], [1.0, 2.0], "o-")
    axes.plot([x], [y], "o")
    axes.set(xlim=(0, 3), ylim=(0.1, 3), yscale="log")
    assert len(paths(plots.to_svg(canvas))) > 10


@pytest.mark.parametrize(
    ("letters", "inches", "columns"),
    [([5], 0.1, 1), ([10, 10, 10], 9.0, 3), ([27, 5, 5, 27], 6.0, 2), ([80, 80], 3.0, 1), ([10, 60, 60, 10], 8.6, 1)],
)
def test_a_legend_is_as_wide_as_its_names(letters: list[int], inches: float, columns: int) -> None:
    canvas, _ = plots.panels(1, 1, inches, 2.0)
    names = {str(n): "x" * count for n, count in enumerate(letters)}
    plots.legend(canvas, names, plots.styles(list(names)))
    (drawn,) = canvas.legends
    assert drawn._ncols == columns
    canvas.draw_without_rendering()
    assert columns == 1 or drawn.get_window_extent().width <= canvas.bbox.width


@pytest.mark.fault("G11")
def test_hostile_labels_are_drawn_literally(finished) -> None:
    words = "$\\frac{1}{0}$ <script> & ]]>"
    labels = {**finished.labels, "mos": words, "softmax": "$", "moc": "{{7*7}}"}
    study = dataclasses.replace(finished, labels=labels)
    for name in ("known-truth-figure", "parthiban2021-figure4", "parthiban2021-figure7"):
        root = ElementTree.fromstring(build(study, name).svg)
        assert not [element for element in root.iter() if element.tag.split("}")[-1] == "script"]


def test_palette_is_fixed_for_known_names_and_kept_apart_for_new_ones() -> None:
    known = plots.styles(["softmax", "mos"])
    assert known["mos"].colour == plots.PALETTE["mos"]
    assert plots.styles(["mos", "x"])["mos"].colour == plots.styles(["mos"])["mos"].colour
    many = plots.styles([*plots.PALETTE, *(f"new-{index}" for index in range(len(plots.SPARE)))])
    assert len({style.colour for style in many.values()}) == len(many)
    crowd = plots.styles([f"model-{index}" for index in range(40)])
    assert len(crowd) == 40
    assert plots.styles(["brand-new"]) == plots.styles(["brand-new"])


def contrast(one: str, other: str) -> float:
    """WCAG 2.1 contrast ratio of two #rrggbb colours."""
    levels = []
    for colour in (one, other):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        levels.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(levels) + 0.05) / (min(levels) + 0.05)


# What is left of linear RGB to an eye without its green, or its red cones (Machado, Oliveira and Fernandes 2009).
BLIND = {
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
JUST_APART = 18  # CIE 1976 colour difference; about 2 is just noticeable side by side


def seen(colour: str, blindness: str) -> np.ndarray:
    """CIELAB of a #rrggbb colour as it is seen."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    ratios = XYZ @ np.clip(np.array(BLIND[blindness]) @ linear, 0, 1) / XYZ.sum(axis=1)
    x, y, z = np.where(ratios > 0.008856, np.cbrt(ratios), 7.787 * ratios + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("blindness", BLIND)
def test_colours_of_known_heads_stay_apart_for_colour_blind_eyes(blindness: str) -> None:
    for (one, a), (other, b) in itertools.combinations(plots.PALETTE.items(), 2):
        assert np.linalg.norm(seen(a, blindness) - seen(b, blindness)) > JUST_APART, (one, other)


def test_a_model_looks_the_same_in_every_figure() -> None:
    for models in (["mos"], ["x", "mos", "softmax"], ["softmax", "y", "x", "mos"]):
        looks = plots.styles(models)
        assert looks["mos"] == plots.styles(["mos"])["mos"]
        assert (looks.get("x") or plots.styles(["x"])["x"]).marker == plots.styles(["x"])["x"].marker


def test_text_in_figures_has_contrast_aa() -> None:
    for theme in (plots.LIGHT, plots.DARK):
        assert min(contrast(theme.paper, theme.ink), contrast(theme.paper, theme.muted)) >= 4.5
        assert all(contrast(theme.paper, colour) >= 1.8 for colour in plots.PALETTE.values())


def test_truth_data_are_the_measured_numbers(finished) -> None:
    rows = data(build(finished, "known-truth-figure"))
    expected = {(run.model, str(run.seed)): fake.perplexities(run)["test_ppl"] for run in finished.needed}
    found = {(r["model"], r["seed"]): float(r["value"]) for r in rows if r["metric"] == "test_ppl"}
    assert found == pytest.approx(expected, rel=1e-7)
    assert {float(row["exact"]) for row in rows if row["metric"] == "rank_press"} == {102.0}


def test_spectrum_data_start_at_one_fall_and_keep_the_cliff(finished) -> None:
    rows = data(build(finished, "parthiban2021-figure7"))
    for run in finished.needed[:4]:
        own = [r for r in rows if (r["model"], r["seed"]) == (run.model, str(run.seed))]
        indices, values = ([float(r[key]) for r in own] for key in ("index", "relative_singular_value"))
        sigma = artefacts.read_npz(Store().run_folder(run.path) / "spectrum.npz")["singular_values"]
        np.testing.assert_allclose(values, sigma[np.array(indices, dtype=int) - 1] / sigma[0], rtol=1e-7)
        rank = fake.rank_of(run)
        assert {rank, rank + 1} <= set(indices) and indices[-1] == len(sigma)


@pytest.mark.parametrize("name", ["sm-figure2", "sm-figure4"])
def test_singular_values_of_the_supplement_are_as_they_are_on_a_log_axis(finished, name: str) -> None:
    """SM Figures 2 and 4, in contrast to Figure 7: not divided by the largest, and not cut below the tolerance."""
    one = load_experiment(f"parthiban2021-{name}", config.ROOT / "config")
    one = dataclasses.replace(one, datasets=("truth-demo",), models=("softmax", "mos"))
    study = dataclasses.replace(finished, experiments=(one,))
    with plots.mpl.rc_context(plots.rc_settings()):
        drawing = registry.FIGURES["spectrum"](
            source.Source.of(study, one, collect.collect(study)), options_of(study, one)
        )
    (axes,) = drawing.canvas.axes
    run = next(run for run in finished.needed if run.model == "mos")
    sigma = artefacts.read_npz(Store().run_folder(run.path) / "spectrum.npz")["singular_values"]
    assert axes.get_yscale() == "log" and axes.get_ylim()[0] < sigma.min() and axes.get_ylim()[1] > sigma.max() > 100
    assert max(float(np.max(line.get_ydata())) for line in axes.lines) == pytest.approx(sigma.max(), rel=0.1)
    values = {row["singular_value"] for row in data(figures.build(study, one, collect.collect(study)))}
    assert f"{sigma[0]:.8g}" in values


def test_kanais_singular_values_are_those_of_the_finetuned_models(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path, fake.paper_text(experiments=()))
    one = source.experiment_of(study, "kanai2018-singular-values", "figure")
    trained = study.runs_of(one)[0]
    after = study.last_stage(trained, one.stages)
    rows = pd.DataFrame([{"run_id": after.run_id, "seed": 1, "value": 1.0}]).reindex(columns=list(records.COLUMNS))
    spectra = {trained.path: np.array([[1, 2], [7.0, 1.0]]), after.path: np.array([[1, 2], [30.0, 2.0]])}
    found = dataclasses.replace(collect.collect(study), spectra=spectra, rows=rows)
    assert [row["singular_value"] for row in data(figures.build(study, one, found))] == ["30", "2"]


def test_learning_curves_count_an_epoch_repeated_after_a_resume_once(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path)
    run = study.needed[0]
    fake.write_epochs(run, 5)
    log = Store().run_folder(run.path) / "epochs.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines()
    log.write_text("\n".join([*lines, lines[-1], lines[0][:9]]), encoding="utf-8")
    rows = data(build(study, "parthiban2021-learning-curves"))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4", "5"]


def test_long_learning_curves_are_thinned_but_keep_their_switch_and_end(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path)
    fake.write_epochs(study.needed[0], 1000)
    epochs = [int(row["epoch"]) for row in data(build(study, "parthiban2021-learning-curves"))]
    assert {1, 6, 7, 1000} <= set(epochs) and 100 < len(epochs) < 200


def test_rank_perplexity_joins_published_means_and_states_r(finished) -> None:
    figure = build(finished, "parthiban2021-rank-perplexity")
    published = {r["model"]: r for r in data(figure) if (r["origin"], r["dataset"]) == ("published", "truth-demo")}
    assert (published["mos"]["test_ppl"], published["ss"]["rank_press"]) == ("54.91", "5113")
    pairs = np.array([(fake.perplexities(run)["test_ppl"], fake.rank_of(run)) for run in finished.needed])
    assert f"r = {np.corrcoef(pairs.T)[0, 1]:+.2f}".replace("-", "−") in figure.note and "n = 18" in figure.note


@pytest.mark.fault("G2", "G13")
@pytest.mark.parametrize("name", FIGURES)
def test_no_run_gives_a_figure_that_says_so(tmp_path: Path, monkeypatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    figure = build(fake.load(tmp_path), name)
    assert ElementTree.fromstring(figure.svg) is not None
    assert "nan" not in figure.alt


def test_make_writes_the_figure_and_its_data(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path, fake.showing("known-truth-figure: {models: all}"))
    fake.build(study)
    path = tmp_path / "results/fake/figures/known-truth-figure.svg"
    assert artefacts.is_sound(path) and artefacts.is_sound(path.with_suffix(".csv"))
    with pytest.raises(UserError, match="no figure 'known-truth' in this study"):
        source.experiment_of(study, "known-truth", "figure")
