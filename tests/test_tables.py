"""Tables: cells against published numbers and independent arithmetic, and what they say when runs are missing."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import math
import statistics as plain
from pathlib import Path

import fake_results as fake
import pandas as pd
import pytest
from scipy import stats
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collect, records
from softmax_bottleneck.report import cells, figures, numbers, pairs, source, views
from softmax_bottleneck.report.options import NoOptions
from softmax_bottleneck.report.registry import FIGURES, VIEWS
from softmax_bottleneck.report.views import words
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Column


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    """The small study and the one with published settings, all runs done."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(artefacts.os, "fsync", lambda descriptor: None)
        made = {}
        for name, text in (("fake", fake.STUDY), ("paper", fake.paper_text())):
            study = fake.load(folder, text)
            fake.write_all(study)
            made[name] = (study, collect.collect(study))
        return made


def build(made, name: str) -> cells.Table:
    study, found = made
    return views.build(study, source.experiment_of(study, name, "table"), found)


def cell(table: cells.Table, dataset: str, row: str, column: str) -> cells.Cell:
    part = next(part for part in table.parts if part.dataset == dataset)
    cells = next(one for one in part.rows if one.key == row).cells
    return cells[part.columns.index(column)]


# --- published numbers ----------------------------------------------------------------------------------------------
def test_published_cells_are_those_of_table_2_and_sm_table_1(finished) -> None:
    table = build(finished["paper"], "parthiban2021-table2")
    expected = {
        ("ptb", "softmax", "Test perplexity"): ("57.08", "0.09", "11"),
        ("ptb", "mos", "Test perplexity"): ("54.91", "0.26", "11"),
        ("ptb", "mos", "p against Softmax (Student)"): ("2.02e-15", "", "10"),
        ("wikitext-2", "softmax", "Training perplexity"): ("39.32", "0.14", "11"),
        ("ptb", "ss", "Press rank"): ("5113", "85", "11"),
        ("ptb", "softmax", "Parameters (millions)"): ("24.22", "", ""),
    }
    for place, (value, sd, n) in expected.items():
        assert cell(table, *place).published == cells.Published(value, sd, n)


def test_every_published_number_of_a_table_stands_in_exactly_one_cell(finished) -> None:
    table = build(finished["paper"], "parthiban2021-table6")
    shown = [
        (part.dataset, row.key, one.published.value)
        for part in table.parts
        for row in part.rows
        for one in row.cells
        if one.published
    ]
    rows = records.read_csv(source.PUBLISHED / "parthiban2021_table6.csv")
    names = {"ptb": "ptb", "wt2": "wikitext-2"}
    assert sorted(shown) == sorted(
        (names[d], m, v) for d, m, v in zip(*(rows[key] for key in ("dataset", "model", "value")), strict=True)
    )


def test_a_choice_between_two_published_numbers_is_refused(finished) -> None:
    study, found = finished["paper"]
    experiment = source.experiment_of(study, "parthiban2021-table2", "table")
    loose = dataclasses.replace(experiment, columns=(Column("test_ppl", "Test perplexity"),))
    with pytest.raises(UserError, match=r"parthiban2021-table2: test_ppl of softmax on ptb: several published numbers"):
        views.build(study, loose, found)


def test_an_unknown_published_file_is_named() -> None:
    with pytest.raises(UserError, match=r"did you mean 'parthiban2021_table2\.csv'"):
        source.read_published(("parthiban2021_table22.csv",))


# --- measured numbers -----------------------------------------------------------------------------------------------
def test_means_and_spreads_are_those_of_the_standard_library(finished) -> None:
    study, _ = finished["fake"]
    table = build(finished["fake"], "parthiban2021-table2")
    for model in study.labels:
        values = [fake.perplexities(run)["test_ppl"] for run in study.needed if run.model == model]
        measured = cell(table, "truth-demo", model, "Test perplexity").measured
        assert measured.mean == pytest.approx(plain.fmean(values), rel=1e-14)
        assert measured.sd == pytest.approx(plain.stdev(values), rel=1e-9)
        assert measured.n == 3


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
            found = cell(table, "ptb", model, column)
            assert found.measured.mean == pytest.approx(p, rel=1e-9)
            assert found.note == "n = 3 each" and found.difference is None
    assert cell(table, "ptb", "softmax", "p against Softmax (Student)").text == numbers.DASH


def test_gains_are_softmax_minus_model(finished) -> None:
    study, _ = finished["fake"]
    first = {run.model: fake.perplexities(run)["test_ppl"] for run in reversed(study.needed)}
    found = cell(build(finished["fake"], "parthiban2021-table1"), "truth-demo", "mos", "Perplexity gain")
    assert found.measured.mean == pytest.approx(first["softmax"] - first["mos"])
    quoted = cell(
        build(finished["fake"], "parthiban2021-table1"), "truth-demo", "mos", "Perplexity gain in the original paper"
    )
    assert quoted.published.value == "2.88" and quoted.measured is None and quoted.count == ""


def test_wins_of_the_published_rhos_are_the_published_wins(finished) -> None:
    """Figure 4 follows from SM Table 3; rhos are put in as if they had been measured."""
    study, _ = finished["paper"]
    published = records.read_csv(source.PUBLISHED / "parthiban2021_sm_table3.csv")
    names = {"ptb": "ptb", "wt2": "wikitext-2"}
    first = {(run.dataset, run.model): run for run in reversed(study.needed)}
    lines = [
        (
            *("measured", "wordsim", names[row.dataset], row.model, row.condition.split(";")[0], "spearman"),
            *(float(row.value), math.nan, 1, first[names[row.dataset], row.model].seed, "x"),
        )
        for row in published.itertuples()
        if (names[row.dataset], row.model) in first
    ]
    rows = pd.DataFrame(lines, columns=list(records.COLUMNS))
    found = records.Records(rows, collect.collect(study).states)
    experiment = source.experiment_of(study, "parthiban2021-figure4", "figure")
    parts = words.wins(source.Source.of(study, experiment, found), NoOptions())
    shown = [one for part in parts for row in part.rows for one in row.cells if one.wanted]
    assert len(shown) == 2 * 6 * 5
    assert all(one.measured.mean == one.published.number for one in shown)


# --- differences ----------------------------------------------------------------------------------------------------
def test_differences_only_where_the_setting_is_the_published_one(finished) -> None:
    small = build(finished["fake"], "parthiban2021-table2")
    assert all(one.difference is None for part in small.parts for row in part.rows for one in row.cells)
    same = cell(build(finished["paper"], "parthiban2021-table2"), "ptb", "ss", "Test perplexity")
    assert same.difference == pytest.approx(same.measured.mean - 57.05)
    assert same.inside is (abs(same.difference) <= 0.15)


@pytest.mark.parametrize("part, key, value", [("schedule", "epochs", 999), ("body", "dropout_input", 0.1)])
def test_one_changed_setting_is_not_the_published_one(finished, part: str, key: str, value: float) -> None:
    study, _ = finished["paper"]
    run = study.needed[0]
    assert source.same_setting(run, source.paper_study())
    assert source.same_setting(dataclasses.replace(run, seed=5, threads=4), source.paper_study())
    changed = dataclasses.replace(run, **{part: dataclasses.replace(getattr(run, part), **{key: value})})
    assert not source.same_setting(changed, source.paper_study())
    assert not source.same_setting(run, None)


def test_a_difference_on_the_edge_of_the_published_spread() -> None:
    base = {"published": cells.Published("57.00", "0.25"), "same": True}
    assert cells.Cell(measured=cells.Measured(57.25), **base).inside is True
    assert cells.Cell(measured=cells.Measured(57.26), **base).inside is False
    assert cells.Cell(measured=cells.Measured(57.26), published=cells.Published("57.00"), same=True).inside is None
    assert cells.Cell(measured=cells.Measured(56.5), **base).difference_text == "−0.50"
    assert cells.Cell(measured=cells.Measured(1.0), published=cells.Published("N/A"), same=True).difference is None


# --- gaps -----------------------------------------------------------------------------------------------------------
@pytest.mark.fault("G1")
def test_every_subset_of_seeds_says_how_many_there_are_and_why(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    study = fake.load(tmp_path, fake.STUDY.replace("seeds: [1, 2, 3]", "seeds: [1, 2, 3, 4, 5]"))
    runs = [run for run in study.needed if run.model == "gss"]
    experiment = source.experiment_of(study, "parthiban2021-table2", "table")
    experiment = dataclasses.replace(experiment, models=("gss",))
    for run in runs:
        fake.write_run(run)
    complete = collect.collect(study)
    for kept in itertools.chain.from_iterable(itertools.combinations(runs, size) for size in range(len(runs) + 1)):
        ids = {run.run_id for run in kept}
        gone = [run for run in runs if run.run_id not in ids]
        states = complete.states.assign(
            state=[
                "ok" if i in ids or m != "gss" else "diverged"
                for i, m in zip(complete.states["run_id"], complete.states["model"], strict=True)
            ]
        )
        rows = complete.rows[complete.rows["run_id"].isin(ids) | (complete.rows["model"] != "gss")]
        one = cell(
            views.build(study, experiment, records.Records(rows, states)), "truth-demo", "gss", "Test perplexity"
        )
        values = [fake.perplexities(run)["test_ppl"] for run in kept]
        assert one.count == (f"n = {len(kept)}" if len(kept) == 5 else f"n = {len(kept)} of 5")
        names = ", ".join(str(run.seed) for run in gone)
        words = {0: "", 1: f"seed {names} diverged", 5: "5 seeds diverged"}
        assert one.gap == words.get(len(gone), f"seeds {names} diverged")
        assert (one.measured is None) == (not kept)
        if kept:
            assert one.measured.mean == pytest.approx(plain.fmean(values))
            assert one.measured.sd == (None if len(kept) == 1 else pytest.approx(plain.stdev(values)))


@pytest.mark.fault("G2", "G13")
def test_no_run_at_all_leaves_words_and_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path)
    found = collect.collect(study)
    for experiment in study.experiments:
        if experiment.kind == "table":
            table = views.build(study, experiment, found)
            for part, row, one in ((p, r, c) for p in table.parts for r in p.rows for c in r.cells):
                exactly_zero = row.key == "language" and one.note == "exact"
                assert one.measured is None or exactly_zero, (part.title, row.key)
                assert "nan" not in views.table_page(table).lower()


@pytest.mark.fault("G2")
def test_one_run_has_no_spread(finished) -> None:
    one = cell(build(finished["fake"], "parthiban2021-table6"), "truth-demo", "softmax", "Press rank")
    assert one.text == "18" and one.count == "n = 1"


# --- views ----------------------------------------------------------------------------------------------------------
def test_the_language_heads_the_known_truth_table(finished) -> None:
    table = build(finished["fake"], "known-truth")
    assert [one.text for one in table.parts[0].rows[0].cells][:4] == ["29.00", "0.00", "0.0000", "102"]
    assert [row.key for row in table.parts[0].rows][:3] == ["language", "language-text", "softmax"]


def test_what_is_expected_of_the_law_and_what_it_has_on_this_text_are_two_numbers(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path, fake.STUDY)
    fake.write_all(study)
    for run in study.needed:
        ranks = {"law_rank_press": 102, "law_rank_eff_1e-3": 30, "law_rank_eff_1e-4": 47, "law_rank_eff_1e-5": 62}
        fake.write_measure(run, law_test_ppl=28.46, **ranks)
    found = collect.collect(study)
    rows = views.build(study, source.experiment_of(study, "known-truth", "table"), found).parts[0].rows
    assert [row.cells[0].text for row in rows[:2]] == ["29.00", "28.46"]
    assert [cell.text for cell in rows[1].cells[3:]] == ["102", "30", "47", "62"]  # a model's ranks stand below these
    drawn = figures.build(study, source.experiment_of(study, "known-truth-figure", "figure"), found)
    line = next(row for row in csv.DictReader(io.StringIO(drawn.csv)) if row["metric"] == "test_ppl")
    assert (float(line["exact"]), float(line["exact_on_text"])) == (29.0, 28.46)
    assert "no model can do better" not in drawn.caption


def test_correlations_are_of_one_kind_of_run_and_of_eight_at_least(finished) -> None:
    """Of 18 runs with one schedule there is one, with its interval; of two schedules of nine runs there are two."""
    study, found = finished["fake"]
    experiment = source.experiment_of(study, "parthiban2021-rank-perplexity", "figure")
    one = figures.build(study, experiment, found).note
    assert one.count("r = ") == 1 and "n = 18" in one and "95 % interval" in one
    longer = [
        dataclasses.replace(r, schedule=dataclasses.replace(r.schedule, epochs=99)) if r.model in ("mos", "gss") else r
        for r in study.runs
    ]
    two = figures.build(dataclasses.replace(study, runs=tuple(longer)), experiment, found).note
    assert "10 epochs: r = " in two and "n = 12" in two
    assert "99 epochs: no correlation from 6 runs, at least 8 are needed" in two and two.count("r = ") == 1
    asked = source.Source.of(study, experiment, found)
    single = pairs.correlations_by_kind(asked, "truth-demo", pairs.pairs(asked, "truth-demo", ["softmax"])[:1])
    assert single == "awd-lstm, ET-ASGD, 10 epochs: no correlation from 1 run, at least 8 are needed"
    unprinted = dataclasses.replace(asked, experiment=dataclasses.replace(experiment, models=("moc",)))
    panels = [len(FIGURES["rank-perplexity"](one, NoOptions()).canvas.axes) for one in (asked, unprinted)]
    assert panels == [4, 1]  # of WikiText-2 published means alone; no half for them where there are none


def test_word_similarity_shows_pairs_and_gaps(finished) -> None:
    table = build(finished["paper"], "parthiban2021-sm-table3")
    assert [row.label for row in table.parts[0].rows][:3] == ["WS-353", "WS-353-SIM", "WS-353-REL"]
    assert cell(table, "ptb", "benchmark=MC-30", "not in vocabulary").measured.mean == 21
    assert cell(table, "ptb", "benchmark=MC-30", "not in vocabulary").difference == 0
    absent = cell(table, "ptb", "benchmark=RG-65", "Softmax")
    assert absent.measured is None and absent.published.value == "0.3697" and absent.gap == "seed 141 not computed"


def test_rank_demo_keeps_readings_apart(finished) -> None:
    study, found = finished["fake"]
    other = found.synthetic[found.synthetic["model"] == "mos"].copy()
    other["condition"] = other["condition"] + ";tanh=False"
    other["value"] = 7.0
    both = records.Records(pd.concat([found.rows, other], ignore_index=True), found.states)
    table = views.build(study, source.experiment_of(study, "merity2017-ranks", "table"), both)
    rows = {row.label: row for row in table.parts[0].rows}
    assert list(rows) == ["Softmax", "MoC", "MoS", "MoS (tanh=False)"]
    assert rows["MoS (tanh=False)"].cells[1].measured == cells.Measured(7.0, 0.0, 3)
    assert [one.published.value for one in rows["MoS"].cells] == ["34", "629", "979", "995", "997"]
    assert [one.measured.mean for one in rows["MoS"].cells] == [35, 435, 835, 1001, 1001]


def test_a_new_model_needs_no_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = fake.STUDY.replace("  moc: {head: moc}", "  moc: {head: moc}\n  brand-new: {head: gss, label: Brand new}")
    study = fake.load(tmp_path, text)
    fake.write_all(study)
    found = collect.collect(study)
    for name in ("known-truth", "parthiban2021-table2", "parthiban2021-table6"):
        table = views.build(study, source.experiment_of(study, name, "table"), found)
        assert table.parts[0].rows[-1].label == "Brand new" and table.parts[0].rows[-1].cells[0].measured


# --- files ----------------------------------------------------------------------------------------------------------
def test_the_csv_has_one_line_per_cell_and_the_html_is_escaped(finished, tmp_path: Path, monkeypatch) -> None:
    study, found = finished["fake"]
    hostile = dataclasses.replace(study, labels={**study.labels, "mos": "</td><script>alert(1)</script>", "ss": "=1+1"})
    experiment = source.experiment_of(hostile, "parthiban2021-table2", "table")
    experiment = dataclasses.replace(experiment, title="{{7*7}} $x$ <b>")
    table = views.build(hostile, experiment, found)
    html = views.table_page(table)
    assert "<script" not in html and "{{7*7}} $x$ &lt;b&gt;" in html
    lines = list(csv.DictReader(io.StringIO(table.csv)))
    assert len(lines) == sum(len(row.cells) for part in table.parts for row in part.rows)
    wanted = cell(table, "truth-demo", "mos", "Test perplexity")
    line = next(row for row in lines if (row["row"], row["column"]) == ("mos", "Test perplexity"))
    assert float(line["measured"]) == wanted.measured.mean and line["n"] == "3" and line["published"] == "54.91"


def test_make_writes_csv_and_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path, fake.showing("parthiban2021-table2: {models: all}"))
    fake.build(study)
    path = tmp_path / "results/fake/tables/parthiban2021-table2.csv"
    assert artefacts.is_sound(path) and artefacts.is_sound(path.with_suffix(".html"))
    with pytest.raises(UserError, match="no table 'parthiban2021-table22' in this study; did you mean"):
        source.experiment_of(study, "parthiban2021-table22", "table")


def test_every_declared_experiment_has_a_view_and_published_files() -> None:
    for path in sorted((config.ROOT / "config" / "experiments").glob("*.yaml")):
        experiment = config.load_experiment(path.stem, path.parent)
        assert experiment.view in (VIEWS if experiment.kind == "table" else FIGURES), path
        source.read_published(experiment.published)


def test_runs_that_diverged_enter_a_second_mean_at_the_perplexity_where_they_stopped(tmp_path, monkeypatch) -> None:
    """As Kanai et al. 2018 average ReLU (2.78e5 ± 8e5); the first mean leaves them out."""
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path, fake.STUDY)
    fake.write_all(study)
    gone, *kept = (run for run in study.needed if run.model == "gss")
    fake.write_done(gone, "diverged", "valid perplexity 278000 is over 10 times the vocabulary size")
    table = views.build(study, source.experiment_of(study, "parthiban2021-table2", "table"), collect.collect(study))
    (row,) = (row for row in table.parts[0].rows if row.key == "gss")
    found = dict(zip(table.parts[0].columns, row.cells, strict=True))
    values = [fake.perplexities(run)["valid_ppl"] for run in kept]
    cell = found["Validation perplexity"]
    assert cell.measured.mean == pytest.approx(plain.mean(values)) and cell.count == "n = 2 of 3"
    both = [*values, 278000.0]
    assert cell.note.startswith(f"{plain.mean(both):.2f} ± {plain.stdev(both):.2f} with diverged runs")
    assert "diverged" not in found["Test perplexity"].note and "seed 1 diverged" in found["Test perplexity"].gap
