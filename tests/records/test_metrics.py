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
    assert gain.better == "smaller"
    assert metrics.find("kl_nats_gain_vs_mos").unit == "nats" and metrics.find("kl_nats_reduction_pct").unit == ""
    assert metrics.find("test_ppl").file == "measure.json"
    assert metrics.find("test_ppl", "dynamic").file == "dynamic.json"
    assert metrics.find("p_value", "dynamic").step == "render"


def test_an_unknown_metric_is_refused_with_the_nearest_one() -> None:
    for name in ("tst_ppl", "tst_ppl_gain_vs_softmax"):
        with pytest.raises(UserError, match=r"unknown metric 'tst_ppl'; did you mean 'test_ppl'"):
            metrics.find(name)
    with pytest.raises(UserError, match=r"unknown metric 'rank_eff_'; did you mean 'rank_eff_\*'"):
        metrics.find("rank_eff_")


@pytest.mark.parametrize("name", [
    "_gain_vs_mos", "test_ppl_gain_vs_", "rank_eff_1e-3_gain_vs_", "test_ppl_reduction_pct_gain_vs_mos",
    "_reduction_pct", "test_ppl_reduction_pctfoo", "rank_eff_1e-3_reduction_pct_reduction_pct",
])  # fmt: skip
def test_a_malformed_comparison_is_refused(name: str) -> None:
    for read in (metrics.comparison, metrics.find):
        with pytest.raises(UserError, match=f"^metric '{name}': expected <metric>_gain_vs_<model> or "):
            read(name)
