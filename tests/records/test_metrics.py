"""The catalogue of metrics: complete, and the only place that says what a number is."""

from pathlib import Path

import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.records import metrics, records
from softmax_bottleneck.store.errors import UserError

ROOT = Path(__file__).parents[2]
SETTINGS = "parthiban2021_sm_table[6-9].csv"  # their numbers are settings, not measured


def test_every_published_metric_and_every_column_is_in_the_catalogue() -> None:
    published = ROOT / "report" / "published"
    for path in set(published.glob("*.csv")) - set(published.glob(SETTINGS)):
        for name in set(records.read_csv(path).get("metric", ())):
            assert metrics.find(name).definition, (path.name, name)
    for path in (ROOT / "config" / "experiments").glob("*.yaml"):
        for column in config.load_experiment(path.stem, path.parent).columns:
            assert metrics.find(column.metric, column.stage).definition


def test_names_that_code_refers_to_are_in_the_catalogue() -> None:
    public = {key: value for key, value in vars(metrics).items() if key.isupper() and not key.startswith("_")}
    names = {value for value in public.values() if isinstance(value, str)} - {metrics.GAIN, metrics.REDUCTION}
    assert len(names) > 30
    assert all(name in metrics.catalogue() or f"{name}*" in metrics.catalogue() for name in names)


def test_a_parameter_at_the_end_of_a_name_is_read() -> None:
    assert metrics.find("rank_eff_1e-3").label == "Effective rank, ε = 10⁻³"
    assert metrics.find("hit_rate_5").label == "True word among the first 5"
    gain = metrics.find("test_ppl_gain_vs_softmax")
    assert gain.step == "render" and "than that of softmax" in gain.definition and gain.better == "larger"
    gain = metrics.find("spearman_gain_vs_moc")  # how much smaller the mean is, where larger is better
    assert gain.better == "smaller" and gain.unit == metrics.find("spearman").unit
    assert metrics.find("test_ppl").file == "measure.json"
    assert metrics.find("test_ppl", "dynamic").file == "dynamic.json"
    assert metrics.find("p_value", "dynamic").step == "render"


def test_an_unknown_metric_is_refused_with_the_nearest_one() -> None:
    for name in ("tst_ppl", "tst_ppl_gain_vs_softmax"):
        with pytest.raises(UserError, match=r"unknown metric 'tst_ppl'; did you mean 'test_ppl'"):
            metrics.find(name)
    for name in ("test_ppl_reduction_pctfoo", "test_ppl_gain_vs_", "_reduction_pct", "rank_eff_"):
        with pytest.raises(UserError, match=f"unknown metric '{name}'"):
            metrics.find(name)
