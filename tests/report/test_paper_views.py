"""Tables and figures of the main paper on made-up results of all its runs, against published files and arithmetic."""

import csv
import dataclasses
import io
import math
import re
from pathlib import Path

import fake_results as fake
import numpy as np
import pytest
from scipy import stats
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora.sizes import size_of
from softmax_bottleneck.ranks import robustness
from softmax_bottleneck.records import collection, records
from softmax_bottleneck.report import cells, source, views
from softmax_bottleneck.report.views import words
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.training import feasibility

PREFIX = "parthiban2021-"
ALL = {f"table{i}" for i in range(1, 7)} | {f"figure{i}" for i in range(1, 8)}
ALL |= {f"sm-table{i}" for i in range(1, 19)} | {f"sm-figure{i}" for i in range(2, 6)}


def paper() -> config.Study:
    return config.load_study(config.ROOT / "config" / "paper.yaml")


def benchmarks() -> dict[str, tuple[int, int]]:
    """Pairs of every published benchmark, half of them found."""
    rows = records.read_csv(source.PUBLISHED / "parthiban2021_sm_table13.csv")
    rows = rows[rows["metric"] == "n_pairs"]
    names = rows["condition"].str.removeprefix("benchmark=")
    return {name: (int(pairs), int(pairs) // 2) for name, pairs in zip(names, rows["value"], strict=True)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    """The whole paper with three random seeds, every run done."""
    folder = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        study = fake.load(
            folder, fake.paper_text(experiments=()).replace("size: 10000", "size: 60").replace("4000", "60")
        )
        for run in study.needed:
            fake.write_run(run)
            fake.write_wordsim(run, benchmarks())
            fake.write_topk(run)
            fake.write_epoch_ranks(run)
        chosen = [experiment.options for experiment in study.experiments if "size" in experiment.options]
        rng = np.random.default_rng(0)
        left, right = (np.linalg.qr(rng.standard_normal((60, 10)))[0] for _ in range(2))
        matrix = robustness.Truncated(left, np.arange(10.0, 0, -1), right.T, 57, "ptb/mos-nt")
        kinds = [robustness.EXPERIMENTS[options["synthetic"]] for options in chosen]
        rows = [row for kind in kinds for row in kind(matrix, lambda line: None)]
        parents = {f"{unit.path}/done.json": "0" for unit in study.units}
        facts = {"status": "ok", "rows": rows, "provenance": {"parents": parents}}
        artefacts.write_json(Store().study_folder(study.name) / "synthetic.json", facts)
        yield study, collection.collect(study)


def table(made, name: str) -> cells.Table:
    study, found = made
    return views.build(study, fake.experiment(study, PREFIX + name), found)


def figure(made, name: str) -> tuple[views.Figure, list[dict[str, str]]]:
    study, found = made
    drawn = views.build(study, fake.experiment(study, PREFIX + name), found)
    return drawn, list(csv.DictReader(io.StringIO(drawn.csv)))


def test_all_tables_and_figures_are_planned() -> None:
    study = paper()
    assert {PREFIX + name for name in ALL} <= {experiment.id for experiment in study.experiments}
    assert not [experiment.id for experiment in study.experiments if experiment.needs]


def published_counts() -> list[tuple[str, str, str]]:
    """(dataset, our label, published millions) of every parameter count the paper prints."""
    corpora = {"ptb": "ptb", "wt2": "wikitext-2"}
    found = []
    for name in ("table2", "table5", "sm_table4", "sm_table5", "sm_table10", "sm_table11"):
        rows = records.read_csv(source.PUBLISHED / f"parthiban2021_{name}.csv")
        for row in rows[rows["metric"] == "params_m"].itertuples():
            k = re.match(r"K=(\d+);NT", row.condition)
            found.append((corpora[row.dataset], f"mos-nt-components{k[1]}" if k else row.model, row.value))
    return found


def test_parameter_counts_of_the_plan_are_the_published_ones() -> None:
    study = paper()
    vocabulary = {name: size_of(study.store, dataset).vocabulary_size for name, dataset in study.datasets.items()}
    runs = {(run.dataset, run.model): run for run in study.runs}
    rows = published_counts()
    assert len(rows) == 5 * 2 + 3 + 6 + 3 + 12 + 12
    for dataset, model, printed in rows:
        count = feasibility.parameters(runs[dataset, model], vocabulary[dataset])
        assert f"{count // 10_000 / 100:.2f}" == printed, (dataset, model)  # the paper truncates


def test_every_table_is_filled_once_all_runs_are_done(made) -> None:
    study, found = made
    for experiment in study.experiments:
        if experiment.kind == "table" and experiment.source == "parthiban2021":
            one = views.build(study, experiment, found)
            assert one.sections and all(section.rows for section in one.sections)
            empty = [cell for *_, cell in one.every_cell if cell.wanted and not cell.measured and not cell.label]
            assert {gap for cell in empty for gap in cell.gaps} <= {source.NOT_IN_STUDY, source.BY_PAPER}, experiment.id


@pytest.mark.parametrize("name", sorted(n for n in ALL if "figure" in n))
def test_every_figure_is_drawn_with_its_data(made, name: str) -> None:
    drawn, rows = figure(made, name)
    assert rows and len(drawn.svg) > 3000


def test_settings_of_the_plan_are_the_published_ones_without_a_difference(made) -> None:
    for name in ("sm-table6", "sm-table9"):
        for dataset, row, column, cell in table(made, name).every_cell:
            if cell.published and cell.measured:
                assert cell.difference == pytest.approx(0, abs=1e-12), (name, dataset, row, column)


def test_sweep_rows_find_their_published_conditions(made) -> None:
    every = table(made, "sm-table4").every_cell
    found = {row: cell.published.value for _, row, column, cell in every if column == "Press rank"}
    ranks = {1: "282", 3: "5575", 5: "8057", 10: "9976", 15: "9979", 20: "9980"}
    assert found == {f"mos-nt-components{k}": rank for k, rank in ranks.items()}


def test_the_measured_correlation_is_that_of_scipy(made) -> None:
    study, _ = made
    runs = [run for run in study.runs if run.model.startswith("gss-grid-ptb")]
    pairs = np.array(
        [(fake.perplexities(study.run(r.path))["test_ppl"], fake.rank_of(study.run(r.path))) for r in runs]
    )
    (own,) = (c for d, row, column, c in table(made, "figure2-correlation").every_cell if (d, row) == ("ptb", "all")
        and "runs" in column)  # fmt: skip
    assert own.measured.mean == pytest.approx(stats.pearsonr(*pairs.T).statistic, abs=1e-9)
    assert "n = 72" in own.note and not own.gap


def test_published_hits_of_figure_3_are_those_of_the_paper(made) -> None:
    """Hits of six by group as counted in the supplement, for two of the models."""
    _, rows = figure(made, "figure3")
    groups = ("yang2018_cherry_picked", "authors_cherry_picked", "random")
    for model, expected in {"mos": (5, 1, 3), "moc-nt": (3, 0, 3), "gss": (3, 2, 3)}.items():
        own = [row for row in rows if row["model"] == model]
        assert tuple(sum(float(r["published"]) for r in own if r["group"] == g) for g in groups) == expected
        assert all(row["measured"] == "1" or float(row["measured"]) == 1 for row in own)


def test_predictions_of_rank_may_be_compared_at_the_papers_size_only(made) -> None:
    for _, _, column, cell in table(made, "sm-table15").every_cell:
        if column == "Predicted for 10,000":
            assert abs(cell.difference) <= 3
        else:
            assert cell.difference is None


def test_the_matrix_that_gets_noise_is_that_of_the_studys_model(made) -> None:
    found = {(row, column): cell for _, row, column, cell in table(made, "sm-table16").every_cell}
    cell = found["c = 1e-25", "Effective rank, ε = 10⁻³"]
    assert (
        cell.published.value == "7" and cell.measured.mean == 10
    )  # of the singular values 10, 9 ... 1, not the paper's
    (whole,) = (
        c for _, row, column, c in table(made, "sm-table14").every_cell if row.startswith("all") and "Press" in column
    )
    assert (whole.published.value, whole.measured.mean) == ("8933", 57)


def test_figure_6_shows_both_perplexities_and_the_size_along_the_components(made) -> None:
    shown, rows = figure(made, "figure6")
    assert shown.note.startswith("Crosses: published. ")
    unpublished = dataclasses.replace(fake.experiment(made[0], PREFIX + "figure6"), published=())
    assert "Crosses" not in views.build(made[0], unpublished, made[1]).note
    published = {(r["dataset"], float(r["value"])): r for r in rows if r["origin"] == "published"}
    assert {key for key in published if key[0] == "ptb"} == {("ptb", k) for k in (1, 3, 5, 10, 15, 20)}
    fifteen = published["wikitext-2", 15]
    assert (fifteen["train_ppl"], fifteen["test_ppl"], fifteen["params_m"]) == ("35.92", "63.06", "34.9")


def test_captions_name_the_settings_of_the_runs_that_are_shown(made) -> None:
    study, found = made
    one = fake.experiment(study, PREFIX + "sm-table4")
    one = dataclasses.replace(one, caption="{schedule.learning_rate} {schedule.epochs} {head.components} {corpora}")
    assert source.Source(study, one, found).caption == "20 1000 1, 3, 5, 10, 15, 20 Penn Treebank"
    assert "{" not in "".join(source.Source(study, e, found).caption for e in study.experiments)


def test_a_word_that_a_cut_vocabulary_lacks_is_neither_hit_nor_miss(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path)
    run = study.needed[0]
    fake.write_done(run)
    top = [{"word": "<unk>", "log_prob": math.log(0.5)}, {"word": "the", "log_prob": math.log(0.1)}]
    place = {"group": "random", "context": 2, "target": "<unk>", "published_target": "centrust", "hit": True}
    place |= {"top": top}
    kept = place | {"context": 3, "target": "the", "published_target": "the", "note": ""}
    facts = {"status": "ok", "contexts": [place | {"note": "'centrust' is not in this vocabulary"}, kept], "hits": {}}
    artefacts.write_json(Store().run_folder(run.path) / "topk.json", facts)
    predicted = {place.target: prediction for place, prediction in words.predictions(collection.collect(study), run)}
    assert predicted == {"centrust": ("<unk> 0.50\nthe 0.10", None), "the": ("<unk> 0.50\n*the 0.10", True)}
