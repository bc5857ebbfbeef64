"""Options of views: typed, and rejected if unknown."""

from pathlib import Path

import fake_results as fake
import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collection
from softmax_bottleneck.report import views
from softmax_bottleneck.store.errors import UserError


@pytest.mark.parametrize("experiment, given, message", [
    ("sm-table1", "{baselin: ss}", r"options: unknown key 'baselin'; did you mean 'baseline'"),
    ("figure6", "{beside: [tst_ppl]}", r"options: beside\.0: unknown metric 'tst_ppl'; did you mean 'test_ppl'"),
    ("sm-table1", "{seeds_not_tested: [1, x]}", r"options: seeds_not_tested\.1: 'x' is not allowed"),
    ("sm-table7", "{settings: [{setting: a, publishd: b, label: c}]}",
     r"options: settings\.0: unknown key 'publishd'; did you mean 'published'"),
    ("sm-table7", "{settings: [{setting: a, label: c}]}", r"options: settings\.0\.published is not set"),
    ("sm-figure2", "{panels: [frist]}", r"options: panels\.0: 'frist' is not allowed"),
    ("sm-figure2", "{first: many}", r"options: first: 'many' is not allowed"),
    ("sm-figure2", "{first: true}", r"options: first: True is not allowed"),
    ("figure1", "{curves: {c: 1}}", r"options: curves: .* is not allowed"),
    ("figure2", "{windows: {ptb: [1, 2, 3]}}", r"options: windows\.ptb: .* is not allowed"),
])  # fmt: skip
def test_an_unknown_option_is_rejected_with_file_and_key(tmp_path, experiment: str, given: str, message: str) -> None:
    name = f"parthiban2021-{experiment}"
    study = fake.load(tmp_path, fake.showing(f"{name}: {{options: {given}}}"))
    with pytest.raises(UserError, match=rf"study\.yaml: experiments\.{name}: {message}"):
        views.check_options(study)


GRID = "models:\n  grid: {head: gss, grid: {head.c: [-1, 0], head.k: [2, 3]}}\n"


def unpublished(experiment: str) -> str:
    """Return a study with a grid, and this experiment alone, on a language that stands for no corpus."""
    text = fake.showing(f"parthiban2021-{experiment}").replace("truth-demo", "truth-rank32")
    return text.replace("models:\n", GRID, 1)


def test_a_correlation_on_a_corpus_without_a_published_window_has_one_row(place: Path) -> None:
    study = fake.load(place, unpublished("figure2-correlation: {models: [grid]}"))
    section, *_ = views.build(study, study.experiments[-1], collection.collect(study)).sections
    assert [row.key for row in section.rows] == ["all"]


@pytest.mark.parametrize("experiment, message", [
    ("figure2: {models: [grid, mos]}", r"models: .*'mos' has no options c and k"),
    ("figure2-correlation: {models: all}", r"models: .*'softmax' has no options c and k"),
    ("sm-table7: {models: [gss]}", r"models: 'gss' is not a search"),
    ("figure5: {models: [grid], options: {sweeps: {c: c}}}", r"models: several models have the same c on truth-rank32"),
    ("sm-figure2: {models: all, options: {panels: []}}", r".*\(ValueError: "),
])  # fmt: skip
def test_what_a_view_cannot_show_is_rejected_before_training(tmp_path: Path, experiment: str, message: str) -> None:
    study = fake.load(tmp_path, unpublished(experiment))
    with pytest.raises(UserError, match=rf"study\.yaml: experiments\.parthiban2021-[a-z0-9-]+: {message}"):
        views.check_options(study)


def test_an_error_in_an_experiments_own_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "experiments").mkdir()
    text = (config.ROOT / "config" / "experiments" / "known-truth.yaml").read_text(encoding="utf-8")
    file = tmp_path / "experiments" / "known-truth.yaml"
    for change, message in (
        (("metric: excess_ppl", "metric: exces_ppl"), r"columns\.1\.metric: unknown metric 'exces_ppl'; did you mean"),
        (("view: truth", "view: trut"), r"view: unknown 'trut'; did you mean 'truth'"),
        (("view: truth", "view: summary\noptions: {baselin: ss}"), r"options: unknown key 'baselin'; did you mean"),
    ):
        file.write_text(text.replace(*change), encoding="utf-8")
        config.load_experiment.cache_clear()
        with pytest.raises(UserError, match=rf"experiments/known-truth\.yaml: {message}"):
            views.check_options(fake.load(tmp_path))
