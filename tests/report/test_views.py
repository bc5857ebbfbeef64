"""Tables and figures of made-up results: cells against published files and independent arithmetic, and their gaps."""

import csv
import dataclasses
import io
import statistics as plain
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import fake_results as fake
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collection, records
from softmax_bottleneck.report import cells, numbers, plots, source, views
from softmax_bottleneck.report.page import table_page
from softmax_bottleneck.report.views import ranks
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Column, load_experiment

Made = tuple[config.Study, records.Records]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    """The small study and the one with published settings, all runs done."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = {}
        for name, text in (("fake", fake.STUDY), ("paper", fake.paper_text())):
            study = fake.load(folder, text)
            fake.write_all(study)
            made[name] = (study, collection.collect(study))
        yield made


def build(made: Made, name: str) -> cells.Table | views.Figure:
    study, found = made
    return views.build(study, fake.experiment(study, name), found)


def rows(figure: views.Figure) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(figure.csv)))


def cell(table: cells.Table, dataset: str, row: str, column: str) -> cells.Cell:
    section = next(section for section in table.sections if section.dataset == dataset)
    return next(one for one in section.rows if one.key == row).cells[section.columns.index(column)]


def test_a_published_number_has_its_deviation_and_number_of_runs(finished) -> None:
    table = build(finished["paper"], "parthiban2021-table2")
    for place, printed in {
        ("ptb", "softmax", "Test perplexity"): ("57.08", "0.09", "11"),
        ("ptb", "mos", "p against Softmax (Student)"): ("2.02e-15", "", "10"),
    }.items():
        assert cell(table, *place).published == cells.PublishedCell(*printed)


def test_a_choice_between_two_published_numbers_and_an_unknown_file_are_rejected(finished) -> None:
    study, found = finished["paper"]
    experiment = fake.experiment(study, "parthiban2021-table2")
    loose = dataclasses.replace(experiment, columns=(Column("test_ppl", "Test perplexity"),))
    with pytest.raises(UserError, match=r"parthiban2021-table2: test_ppl of softmax on ptb: several published numbers"):
        views.build(study, loose, found)
    with pytest.raises(UserError, match=r"did you mean 'parthiban2021_table2\.csv'"):
        source.read_published(("parthiban2021_table22.csv",))


def test_means_and_spreads_are_those_of_the_standard_library(finished) -> None:
    study, _ = finished["fake"]
    for model in study.labels:
        values = fake.ppls_of(study, model)
        one = cell(build(finished["fake"], "parthiban2021-table2"), "truth-demo", model, "Test perplexity")
        expected = (pytest.approx(plain.fmean(values), rel=1e-14), pytest.approx(plain.stdev(values), rel=1e-9), 3)
        assert dataclasses.astuple(one.measured) == expected
    one = cell(build(finished["fake"], "parthiban2021-table6"), "truth-demo", "softmax", "Press rank")
    assert one.text == "18" and one.count == "1"


def test_p_values_are_those_of_scipy_without_the_authors_seeds(finished) -> None:
    study, _ = finished["paper"]
    table = build(finished["paper"], "parthiban2021-table2")
    samples = {
        model: [
            fake.perplexities(run)["test_ppl"]
            for run in study.needed
            if (run.dataset, run.model) == ("ptb", model) and run.seed > 1000 and run.seed != 1881
        ]
        for model in study.labels
    }
    for model in ("ss", "mos"):
        for column, equal in (("p against Softmax (Student)", True), ("p against Softmax (Welch)", False)):
            p = stats.ttest_ind(samples[model], samples["softmax"], equal_var=equal).pvalue
            one = cell(table, "ptb", model, column)
            assert one.measured.mean == pytest.approx(p, rel=1e-9)
            assert one.note == "n = 3 each" and one.difference is None
    assert cell(table, "ptb", "softmax", "p against Softmax (Student)").text == numbers.DASH


def test_gains_are_the_other_model_minus_this_one(finished) -> None:
    study, found = finished["fake"]
    first = {run.model: fake.perplexities(run)["test_ppl"] for run in reversed(study.needed)}
    table = build(finished["fake"], "parthiban2021-table1")
    gain = cell(table, "truth-demo", "mos", "Perplexity gain")
    assert gain.measured.mean == pytest.approx(first["softmax"] - first["mos"])
    quoted = cell(table, "truth-demo", "mos", "Perplexity gain in the original paper")
    assert quoted.published.value == "2.88" and quoted.measured is None and quoted.count == ""
    column = Column("test_ppl_gain_vs_ss", "Gain over SS")
    over_ss = dataclasses.replace(fake.experiment(study, "parthiban2021-table1"), columns=(column,))
    gain = cell(views.build(study, over_ss, found), "truth-demo", "mos", "Gain over SS")
    assert gain.measured.mean == pytest.approx(first["ss"] - first["mos"])


def test_differences_only_where_the_setting_is_the_published_one(finished) -> None:
    small = build(finished["fake"], "parthiban2021-table2")
    assert all(one.difference is None for *_, one in small.every_cell)
    same = cell(build(finished["paper"], "parthiban2021-table2"), "ptb", "ss", "Test perplexity")
    assert same.difference == pytest.approx(same.measured.mean - 57.05)
    assert same.inside is (abs(same.difference) <= 0.15)
    study, _ = finished["paper"]
    run = study.needed[0]
    assert source.same_setting(dataclasses.replace(run, seed=5, threads=4))
    for part, key, value in (("schedule", "epochs", 999), ("body", "dropout_input", 0.1)):
        changed = dataclasses.replace(run, **{part: dataclasses.replace(getattr(run, part), **{key: value})})
        assert not source.same_setting(changed)


@pytest.mark.parametrize("changed", [None, "mos", "softmax"])
def test_a_gain_is_compared_if_both_models_have_the_published_setting(finished, monkeypatch, changed) -> None:
    monkeypatch.setattr(source, "same_setting", lambda run, name="": run.model != changed)
    gain = cell(build(finished["paper"], "parthiban2021-table1"), "ptb", "mos", "Perplexity gain")
    assert gain.difference == (None if changed else pytest.approx(gain.measured.mean - 1.28))


@pytest.mark.parametrize(("models", "published"), [
    ("sigsoftmax: {head: sigsoftmax}", "57.05"), ("sigsoftmax: {head: sigsoftmax}\n  ss: {head: sigsoftmax}", None),
    ("sigsoftmax: {head: sigsoftmax}\n  other: {head: sigsoftmax}", None),
    ("sigsoftmax: {head: sigsoftmax, body: {kind: transformer, attention_heads: 2}}", None),
])  # fmt: skip
def test_the_only_model_with_a_published_head_has_its_numbers(place: Path, models: str, published: str | None) -> None:
    """A model `ss` has them by its name, whatever else the study has."""
    study = fake.load(
        place, fake.showing("parthiban2021-table2: {models: all}").replace("ss: {head: sigsoftmax}", models)
    )
    table = views.build(study, study.experiments[0], collection.collect(study))
    rows = {row.key: row.cells for section in table.sections for row in section.rows if section.dataset == "truth-demo"}
    index = table.sections[0].columns.index("Test perplexity")
    numbers = {model: one[index].published and one[index].published.value for model, one in rows.items()}
    assert numbers["sigsoftmax"] == published and numbers.get("ss") == (None if published else "57.05")


def test_a_difference_on_the_edge_of_the_published_spread() -> None:
    def compared(mean: float, *printed: str) -> cells.Cell:
        return cells.Cell(cells.MeasuredCell(mean), cells.PublishedCell(*printed), same=True)

    assert compared(57.25, "57.00", "0.25").inside is True and compared(57.26, "57.00", "0.25").inside is False
    assert compared(57.26, "57.00").inside is None
    assert compared(56.5, "57.00", "0.25").difference == -0.5
    assert compared(1.0, "N/A").difference is None
    old = cells.Cell(cells.MeasuredCell(56.0, 0.4, 5), study="s")
    whole = cells.Cell(
        cells.MeasuredCell(57.5, 0.3, 4), cells.PublishedCell("57.00", "0.25", "11"), same=True, archived=old
    )
    facts = [whole.facts[key] for key in ("sd", "published_sd", "published_n", "inside_published_sd", "archived_sd")]
    assert facts == [0.3, "0.25", "11", "false", 0.4]
    assert dataclasses.replace(whole, metric="sec_per_epoch").difference is None  # another machine
    rows = [
        cells.Row("", "", tuple(cells.Cell(published=whole.published, archived=a) for a in own))
        for own in ((old, old), (old, dataclasses.replace(old, study="t")))
    ]
    rows.append(cells.Row("", "", (old, cells.Cell(cells.MeasuredCell(1.0)))))
    assert [row.is_archived for row in rows] == [True, True, False]


@pytest.mark.fault("G2", "G13")
def test_no_run_at_all_leaves_no_numbers(place: Path) -> None:
    study = fake.load(place)
    found = collection.collect(study)
    for experiment in study.experiments:
        shown = views.build(study, experiment, found)
        if experiment.kind == "table":
            assert "nan" not in table_page(shown).lower()
            for _, row, _, one in shown.every_cell:
                is_exactly_zero = row == "language" and one.note == "exact"
                assert one.measured is None or is_exactly_zero, (experiment.id, row)
        else:
            assert ElementTree.fromstring(shown.svg) is not None


def test_a_language_heads_its_table_with_two_kinds_of_exact_values(place: Path) -> None:
    """Those expected of its distribution, and those on this very text."""
    study = fake.load(place)
    fake.write_all(study)
    for run in study.needed:
        ranks = {"law_rank_press": 102, "law_rank_eff_1e-3": 30, "law_rank_eff_1e-4": 47, "law_rank_eff_1e-5": 62}
        fake.write_measure(run, law_test_ppl=28.46, **ranks)
    made = study, collection.collect(study)
    shown = build(made, "known-truth").sections[0].rows
    assert [row.key for row in shown][:3] == ["language", "language-text", "softmax"]
    assert [one.text for one in shown[0].cells][:4] == ["29.00", "0.00", "0.0000", "102"]
    assert [shown[1].cells[0].text, *(one.text for one in shown[1].cells[3:])] == ["28.46", "102", "30", "47", "62"]


def test_word_similarity_shows_pairs_and_gaps(finished) -> None:
    table = build(finished["paper"], "parthiban2021-sm-table3")
    assert [row.label for row in table.sections[0].rows][:3] == ["WS-353", "WS-353-SIM", "WS-353-REL"]
    pairs = cell(table, "ptb", "benchmark=MC-30", "not in vocabulary")
    assert (pairs.measured.mean, pairs.difference) == (21, 0)
    absent = cell(table, "ptb", "benchmark=RG-65", "Softmax")
    assert absent.measured is None and absent.published.value == "0.3697"
    assert absent.gaps == ("seed 141 not computed",)


def test_spectrum_data_start_at_one_fall_and_keep_the_cliff(finished) -> None:
    study, _ = finished["fake"]
    lines = rows(build(finished["fake"], "parthiban2021-figure7"))
    for run in study.needed[:4]:
        own = [r for r in lines if (r["model"], r["seed"]) == (run.model, str(run.seed))]
        indices, values = ([float(r[key]) for r in own] for key in ("index", "relative_singular_value"))
        sigma = artefacts.read_npz(Store().run_folder(run.path) / "spectrum.npz")["singular_values"]
        np.testing.assert_allclose(values, sigma[np.array(indices, dtype=int) - 1] / sigma[0], rtol=1e-7)
        rank = fake.rank_of(run)
        assert {rank, rank + 1} <= set(indices) and indices[-1] == len(sigma)


@pytest.mark.parametrize("name", ["sm-figure2", "sm-figure4"])
def test_singular_values_of_the_supplement_are_raw_on_a_log_axis(finished, name: str) -> None:
    """SM Figures 2 and 4, in contrast to Figure 7: not divided by the largest, and not cut below the tolerance."""
    study, found = finished["fake"]
    one = load_experiment(f"parthiban2021-{name}", config.ROOT / "config")
    one = config.PlannedExperiment.of(one, datasets=("truth-demo",), models=("softmax", "mos"))
    study = dataclasses.replace(study, experiments=(one,))
    with plots.mpl.rc_context(fname=plots.STYLE_SHEET):
        drawing = ranks.spectrum_figure(source.Source(study, one, found), **views.options_of(study, one))
    (axes,) = drawing.canvas.axes
    run = next(run for run in study.needed if run.model == "mos")
    sigma = artefacts.read_npz(Store().run_folder(run.path) / "spectrum.npz")["singular_values"]
    assert axes.get_yscale() == "log" and axes.get_ylim()[0] < sigma.min() and axes.get_ylim()[1] > sigma.max() > 100
    assert sigma[0] in set(drawing.data["singular_value"])


def test_kanais_singular_values_are_those_of_the_finetuned_models(place: Path) -> None:
    study = fake.load(place, fake.paper_text(experiments=()))
    one = fake.experiment(study, "kanai2018-singular-values")
    trained = study.runs_of(one)[0]
    after = study.last_stage(trained, one.stages)
    known = pd.DataFrame([{"run_id": after.run_id, "seed": 1, "value": 1.0}]).reindex(columns=list(records.COLUMNS))
    spectra = {trained.path: np.array([[1, 2], [7.0, 1.0]]), after.path: np.array([[1, 2], [30.0, 2.0]])}
    found = dataclasses.replace(collection.collect(study), spectra=spectra, rows=known)
    assert [row["singular_value"] for row in rows(views.build(study, one, found))] == ["30", "2"]


def test_the_csv_has_one_line_per_cell_and_the_html_is_escaped(finished) -> None:
    study, found = finished["fake"]
    hostile = dataclasses.replace(study, labels={**study.labels, "mos": "</td><script>alert(1)</script>", "ss": "=1+1"})
    experiment = fake.experiment(hostile, "parthiban2021-table2")
    table = views.build(hostile, dataclasses.replace(experiment, title="{{7*7}} $x$ <b>"), found)
    html = table_page(table)
    assert "<script" not in html and "{{7*7}} $x$ &lt;b&gt;" in html
    lines = list(csv.DictReader(io.StringIO(table.csv)))
    assert len(lines) == len([*table.every_cell])
    line = next(row for row in lines if (row["row"], row["column"]) == ("mos", "Test perplexity"))
    assert float(line["measured"]) == cell(table, "truth-demo", "mos", "Test perplexity").measured.mean
    assert (line["n"], line["published"]) == ("3", "54.91")


@pytest.mark.fault("G11")
def test_the_same_results_give_the_same_bytes_and_nothing_from_outside(finished) -> None:
    """Also with hostile labels, which are drawn literally."""
    study, found = finished["fake"]
    labels = {**study.labels, "mos": "$\\frac{1}{0}$ <script> & ]]>", "softmax": "$", "moc": "{{7*7}}"}
    labels |= {"ss": "a_b^c \\unk{", "gss": "50 %&#~"}
    hostile = dataclasses.replace(study, labels=labels)
    figure = build((hostile, found), "parthiban2021-figure4")
    assert build((hostile, found), "parthiban2021-figure4") == figure
    for element in ElementTree.fromstring(figure.svg).iter():
        assert element.tag.split("}")[-1] not in {"script", "foreignObject", "a"}
        for key, value in element.attrib.items():
            assert not key.startswith("on")
            assert not key.endswith("href") or value.startswith("#")
    assert "<dc:date>" not in figure.svg and "url(http" not in figure.svg and "@import" not in figure.svg
    assert rows(figure)


def test_models_of_one_name_show_their_keys(place: Path) -> None:
    study = fake.load(place)
    twice = dataclasses.replace(study, labels=study.labels | {"ss": "Softmax"})
    assert [source.label(twice, model) for model in ("softmax", "ss", "gss")] == ["Softmax", "Softmax (ss)", "GSS"]
