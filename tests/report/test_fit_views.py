"""Figures and tables of fits, from made-up numbers whose answers are known; the experiments of Ganea and Merity."""

import dataclasses
import io
import math
from pathlib import Path

import claim_examples as examples
import fake_results as fake
import numpy as np
import pandas as pd
import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collection, records
from softmax_bottleneck.report import cells, plots, views
from softmax_bottleneck.report.views import fits
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Study
from softmax_bottleneck.training import feasibility

NANO = Path(__file__).parents[1] / "nano.yaml"
FITS = """
fits:
  dirichlet:
    kind: dirichlet
    alphas: [0.1, 1]
    words: [10, 50]
    contexts: 30
    widths: [2, 8]
    bias: false
    models: {softmax: {head: softmax}, mos: {head: mos}, lms: {head: lms}}
    updates: 5
    learning_rate: 0.1
  truth:
    kind: language
    language: {vocabulary_size: 60, topics: 2, classes: 3, markers_per_topic: 2}
    ranks: [8, 32]
    widths: [4, 16]
    sample: 1000
    models:
      softmax: {head: softmax}
      gss: {head: gss}
      mos-equal: {head: {name: mos, components: 2}, label: Equal MoS, equal_to: softmax}
    seeds: [1, 2]
    updates: 5
    learning_rate: 0.1
"""
GANEA = ("figure1", "figure2", "figure3", "figure5", "figures6-8", "alphas")
TRUTH = ("width", "rank", "measured-rank", "gap-closed")
EXPERIMENTS = "".join(
    [f"  ganea2019-{name}:\n" for name in GANEA]
    + [f"  truth-{name}:\n" for name in (*TRUTH, "kl")]
    + [
        "  ganea2019-figure4: {datasets: [truth-nano], models: [plif]}\n",
    ]
)


def made_up(unit: config.Unit) -> list[dict]:
    """Rows of a unit whose KL is (r or M) / d, halved for every head but softmax, plus the seed in thousandths."""
    size = unit.law.get("rank", unit.law.get("words"))
    rows = []

    def add(model: str, where: str, **metrics: float) -> None:
        condition = ";".join(filter(None, [unit.condition, where]))
        for metric, value in metrics.items():
            rows.append({"table": unit.plan, "model": model, "condition": condition, "metric": metric,
                         "value": float(value), "seed": unit.seed})  # fmt: skip

    add("law", "", kl_no_context_nats=4, kl_uniform_nats=4, rank_truth=size + 2, rank_press=size + 2)
    add("law", "", **{"rank_eff_1e-3": size, "rank_eff_1e-4": size + 1, "squared_error_bound_d4": 0.1})
    add("law", "", squared_error_bound_d16=0.01, entropy_nats=math.log(size) / 2)
    for fit in unit.fits:
        kl = size / fit.width / 10 * (1 if fit.model == "softmax" else 0.5) + unit.seed / 1000
        press = fit.width + 2 if fit.model == "softmax" else 60
        add(fit.model, fit.condition, kl_nats=kl, excess_ppl=math.exp(kl) - 1, mode_match=1 / (1 + kl))
        add(fit.model, fit.condition, rank_press=press, width=fit.width, parameters=100 * fit.width)
        add(fit.model, fit.condition, **{"rank_eff_1e-3": fit.width, "rank_eff_1e-4": fit.width + 1})
        add(fit.model, fit.condition, squared_error=1.0)
    return rows


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    text = NANO.read_text(encoding="utf-8")
    text = text[: text.index("experiments:")].replace("models:", f"{FITS.strip()}\nmodels:\n  plif: {{head: lms-plif}}")
    file = tmp_path_factory.mktemp("fits") / "study.yaml"
    file.write_text(f"{text}experiments:\n{EXPERIMENTS}", encoding="utf-8")
    return config.load_study(file)


@pytest.fixture(scope="module")
def filled(study: Study, tmp_path_factory) -> records.Records:
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        rows = [row for unit in study.units for row in made_up(unit)]
        parents = {f"{unit.path}/done.json": "0" for unit in study.units}
        facts = {"status": "ok", "rows": rows, "provenance": {"parents": parents}}
        artefacts.write_json(Store().study_folder(study.name) / "synthetic.json", facts)
        return collection.collect(study)


def data(study: Study, found: records.Records, name: str) -> tuple[views.Figure, pd.DataFrame]:
    figure = views.build(study, fake.experiment(study, name), found)
    return figure, pd.read_csv(io.StringIO(figure.csv))


DRAWN = [f"ganea2019-{name}" for name in GANEA[1:]] + [f"truth-{name}" for name in TRUTH]


@pytest.mark.parametrize("name", DRAWN)
def test_figures_show_every_fit_once(study, filled, name):
    figure, shown = data(study, filled, name)
    wanted = {  # of three models; one setting of two in maps, no models in Figure 5, and no softmax among gaps
        "ganea2019-figure2": 2 * 2 * 3, "ganea2019-figure3": 2 * 2 * 3, "ganea2019-figures6-8": 2 * 2 * 3,
        "ganea2019-figure5": 2 * 2, "truth-gap-closed": 3 * 2 * 2,
    }  # fmt: skip
    assert len(shown) == wanted.get(name, 2 * 2 * 2 * 3)
    assert "<svg" in figure.svg and "mathdefault" not in figure.svg


def test_a_note_names_only_the_lines_that_are_drawn(study, filled):
    for name, lines in (("truth-width", "Vertical: d = r. "), ("truth-gap-closed", ""),
                        ("truth-measured-rank", "Dashed, without dots: the true distribution itself. ")):  # fmt: skip
        assert data(study, filled, name)[0].note.startswith(f"{lines}Fits in"), name


def test_the_numbers_drawn_are_those_of_the_fits(study, filled):
    _, shown = data(study, filled, "truth-width")
    for row in shown.to_dict("records"):
        factor = 1 if row["model"] == "softmax" else 0.5
        assert row["kl_nats"] == pytest.approx(row["r"] / row["d"] / 10 * factor + row["seed"] / 1000)
    _, shown = data(study, filled, "ganea2019-figures6-8")
    assert set(shown["alpha"]) == {1} and set(shown["M"]) == {10, 50}
    _, shown = data(study, filled, "truth-gap-closed")
    (gap,) = shown.query("model == 'gss' and r == 32 and d == 4 and seed == 2")["gap_closed"]
    assert gap == pytest.approx(1 - 0.402 / 0.802)


def table(study: Study, found: records.Records, name: str) -> cells.Table:
    return views.build(study, fake.experiment(study, name), found)


def test_the_loss_stands_by_law_head_and_width(study, filled):
    parts = table(study, filled, "truth-kl").sections
    assert [part.title for part in parts] == ["Rank of the true logits, r = 8", "Rank of the true logits, r = 32"]
    rows = {row.label: row for row in parts[1].rows}
    assert list(rows) == ["Softmax", "GSS", "Equal MoS"] and parts[1].columns == ("d = 4", "d = 16")
    first = rows["GSS"].cells[0]
    assert first.measured == cells.MeasuredCell(pytest.approx(0.4015), pytest.approx(0.001 / math.sqrt(2)), 2)
    assert first.text == "0.4015 ± 0.0007" and first.count == "2"
    is_lost = (filled.rows["seed"] == 2) & (filled.rows["model"] == "gss")
    lacking = dataclasses.replace(filled, rows=filled.rows[~is_lost])
    rows = {row.label: row for row in table(study, lacking, "truth-kl").sections[1].rows}
    assert rows["GSS"].cells[0].count == "1 of 2"


def test_what_the_fits_lack_is_rejected_or_left_out(study, filled):
    """A setting that no distribution of the plan has is rejected before fitting; a metric that no fit has, left out."""

    def changed(name: str, **options: object) -> config.PlannedExperiment:
        one = fake.experiment(study, name)
        return dataclasses.replace(one, options={**one.options, **options})

    for name, options, lacking in (
        ("ganea2019-figure2", {"fits": "truth"}, "alpha"),
        ("truth-width", {"x": "alpha"}, "alpha"),
        ("truth-rank", {"panels": "M"}, "M"),
    ):
        with pytest.raises(UserError, match=rf"experiments\.{name}: options: .* by {lacking}\."):
            views.check_options(dataclasses.replace(study, experiments=(changed(name, **options),)))
    for x, further in (("d", "alpha"), ("alpha", "d")):
        one = changed("truth-width", fits="dirichlet", metrics=["kl_nats"], x=x, panels="M")
        with pytest.raises(UserError, match=f"'dirichlet' has several values of {further}, which no axis"):
            views.check_options(dataclasses.replace(study, experiments=(one,)))
    price = config.load_study(config.ROOT / "config" / "price.yaml")
    for other, view in ((study, "price"), (price, "fit-loss")):  # each with the plan of the other
        table = next(one for one in other.experiments if one.kind == "table" and one.fits)
        with pytest.raises(UserError, match=rf"experiments\.{table.id}: options: fits: .* is of kind"):
            views.check_options(dataclasses.replace(other, experiments=(dataclasses.replace(table, view=view),)))
    assert views.build(study, changed("truth-kl", metric="test_ppl"), filled).sections == ()
    ranks = views.build(study, changed("truth-measured-rank", metrics=["kl_nats"]), filled)
    assert len(ranks.csv.splitlines()) == 1 + 2 * 2 * 2 * 3


def test_the_learned_function_is_drawn_from_its_value_at_zero(study, place):
    run = next(run for run in study.runs if run.model == "plif")
    grid = np.linspace(-2, 2, 9)
    curves = {"logit": grid, "initial": 3 + grid, "trained": 5 + 2 * grid}
    facts = {"status": "ok", "metrics": {}, "function": {key: value.tolist() for key, value in curves.items()}}
    artefacts.write_json(Store().run_folder(run.path) / "measure.json", facts)
    found = collection.collect(study)
    _, shown = data(study, found, "ganea2019-figure4")
    assert len(shown) == 9
    assert np.allclose(shown["initial"], grid) and np.allclose(shown["learned"], 2 * grid)


@pytest.fixture(scope="module")
def paper() -> Study:
    return config.load_study(config.ROOT / "config" / "paper.yaml")


def test_models_of_ganea_have_the_published_sizes(paper):
    """24.2 and 26.6 million as published; PLIF's published ones count two numbers per knot, ours has one."""
    runs = [run for run in paper.runs if run.dataset == "ptb" and run.model.startswith("ganea-")]
    counts = {run.model: feasibility.parameters(run, 10_000) for run in runs}
    published = {"ganea-softmax": 24.2, "ganea-lms-plif": 24.4, "ganea-mos": 26.6, "ganea-mos-plif": 28.6}
    knots = {"ganea-lms-plif": 100_000, "ganea-mos-plif": 1_000_000}
    for model, millions in published.items():
        assert round((counts[model] + knots.get(model, 0)) / 1e6, 1) == millions


def test_ganeas_figure_5_shows_how_far_drawn_laws_are_from_uniform(study, filled):
    """KL(P || 1/M) = ln M - H(P): with H = ln(M) / 2, as made up, it is the other half."""
    _, rows = data(study, filled, "ganea2019-figure5")
    assert set(zip(rows["M"], rows["alpha"], strict=True)) == {(10, 0.1), (10, 1), (50, 0.1), (50, 1)}
    np.testing.assert_allclose(rows["drawn"], np.log(rows["M"]) / 2)
    assert set(rows["kl_uniform_nats"]) == {4}


def test_more_vocabularies_than_colours_are_all_drawn(study, filled, monkeypatch):
    monkeypatch.setattr(plots, "SPARE", plots.SPARE[:1])
    with monkeypatch.context() as patch:
        patch.setattr(views.fits.plots, "to_svg", lambda canvas: [line.get_label() for line in canvas.axes[0].lines])
        labels = views.build(study, fake.experiment(study, "ganea2019-figure5"), filled).svg
    assert [label for label in labels if label.startswith("M")] == ["M = 10", "M = 50"]


def test_the_axis_of_gaps_ends_at_the_largest_gap():
    ((axes,),) = plots.panels(1, 1, 3, 3)[1]
    axes.plot([1, 2], [-9.0, 0.25])
    fits._scale(axes, pd.Series([-9.0, 0.25]), "gap_closed", is_rank=False)
    assert axes.get_ylim() == pytest.approx((-1, 0.25 + 0.05 * 1.25))


def test_the_sweep_of_untrained_layers_names_the_fewest_softmaxes_of_full_rank() -> None:
    demo = config.load_study(config.ROOT / "config" / "demo.yaml")
    found = examples.records_of(examples.swept(1), "synthetic")
    table = views.build(demo, fake.experiment(demo, "merity2017-components"), found)
    (section,) = table.sections
    needed = {row.key: row.cells[-1] for row in section.rows}
    keys = list(needed)
    assert (keys[0], keys[-1]) == ("H=32;V=125", "H=8;V=500")  # by words per dimension
    for key, cell in needed.items():
        h, v = (int(part.partition("=")[2]) for part in key.split(";"))
        assert cell.measured.mean == math.ceil(4 + math.log2(v / h / 16))
    demo_table = views.build(demo, fake.experiment(demo, "merity2017-ranks"), found)
    assert not any(cell.measured for *_, cell in demo_table.every_cell)  # it shows nothing of the sweep
    few = [(*row[:3], [row[3][0] / 2]) for row in examples.swept(1)]
    (section,) = views.build(demo, table.experiment, examples.records_of(few, "synthetic")).sections
    assert all(row.cells[-1].measured is None and "6" in row.cells[-1].label for row in section.rows)
