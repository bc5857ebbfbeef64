"""Robustness experiments against the published ranks, and against counts by brute force."""

from pathlib import Path

import fake_results as fake
import numpy as np
import pytest
import torch
from softmax_bottleneck.ranks import robustness
from softmax_bottleneck.ranks.robustness import Truncated
from softmax_bottleneck.records import records
from softmax_bottleneck.steps import synthetic
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.training import model as models
from softmax_bottleneck.training import trained

PUBLISHED = Path(__file__).parents[2] / "report" / "published"
# Squares of ten singular values with the published effective ranks, 7, 10 and 10, for the test of the counts alone.
SQUARES = (1.0, 0.02, 0.01, 0.005, 0.003, 0.0015, 0.0006, 0.0002, 0.00018, 0.00015)


def published(table: int, metric: str) -> dict[str, float]:
    rows = records.read_csv(PUBLISHED / f"parthiban2021_sm_table{table}.csv")
    rows = rows[rows["metric"] == metric]
    levels = rows["condition"].str.extract(r"c=(1e-\d+)")[0]
    return dict(zip(levels, rows["value"].astype(float), strict=True))


def matrix(size: int, words: int = 90) -> Truncated:
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, 10)))[0] for n in (size, words))
    return Truncated(left, 300 * np.sqrt(SQUARES), right.T, size, "text/mos-nt")


def measured(name: str, size: int) -> dict[tuple[str, str], float]:
    rows = robustness.EXPERIMENTS[name](matrix(size), lambda line: None)
    return {(str(row["condition"]).split(";size")[0], str(row["metric"])): float(row["value"]) for row in rows}


@pytest.mark.parametrize("table", [15, 16])
def test_the_quarter_circle_law_gives_the_published_ranks(table: int) -> None:
    for level, rank in published(table, "rank_press").items():
        assert abs(robustness.predicted_rank(float(level), 10_000) - rank) <= 3, level


@pytest.mark.parametrize("metric", ["rank_eff_1e-3", "rank_eff_1e-4", "rank_eff_1e-5"])
def test_effective_ranks_under_noise_are_the_published_ones_at_any_size(metric: str) -> None:
    found = measured("noise-effective", 60)
    for level, rank in published(16, metric).items():
        assert found[f"c={level}", metric] == rank


def test_ranks_under_noise_are_near_the_prediction_for_their_size() -> None:
    found = measured("noise", 200)
    predicted = [found[f"c={c}", "rank_predicted"] for c in robustness.NOISE]
    drawn = [found[f"c={c}", "rank_press"] for c in robustness.NOISE]
    assert np.abs(np.subtract(drawn, predicted)).max() <= 6
    assert 10 < found["c=1e-26", "rank_press"] < 200  # some level lies between the two ends


def test_a_rebuilt_matrix_keeps_rank_10_and_its_error_grows_from_rounding() -> None:
    found = measured("rebuild", 60)
    assert [found[f"iteration={i}", "rank_press"] for i in range(1, 11)] == [10] * 10
    errors = [found[f"iteration={i}", "reconstruction_error"] for i in range(1, 11)]
    assert errors == sorted(errors) and 1e-31 < errors[0] < errors[-1] < 1e-26
    as_printed = [found[f"iteration={i};as printed", "reconstruction_error"] for i in range(1, 11)]
    assert len(set(as_printed[1:])) == 1 and as_printed[-1] < 1e-29  # of the diagonal matrix it does not grow
    assert {found[f"iteration={i};as printed", "rank_press"] for i in range(1, 11)} == {10}


def test_the_matrix_is_that_of_the_studys_own_model(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its singular values are numpy's for the first contexts."""
    text = fake.STUDY.replace("  moc: {head: moc}", "  mos-nt: {head: mos, like: mos, seeds: author}")
    text = text[: text.index("experiments:")] + "experiments:\n  parthiban2021-sm-table14: {options: {size: 30}}\n"
    study = fake.load(
        place, text.replace("models: [moc, mos]", "models: mos").replace("model: [moc, mos]", "model: mos")
    )
    (run,) = study.runs_of(study.experiments[0])
    folder = study.store.run_folder(run.path)
    fake.write_done(run)
    artefacts.write_json(folder / "run.json", run.to_json())
    fake.write_measure(run)
    net = models.build(run, 50).eval()
    hidden_TD = np.random.default_rng(2).standard_normal((80, run.body.context_size)).astype(np.float32)
    artefacts.write_npz(folder / "hidden.npz", hidden_TD=hidden_TD)
    monkeypatch.setattr(trained, "load_model", lambda folder, device: net)
    synthetic.synthetic(study, lambda line: None)
    rows = artefacts.read_json(study.store.study_folder(study.name) / "synthetic.json")["rows"]
    with torch.no_grad():
        log_p_NV = net.head.log_probs(torch.from_numpy(hidden_TD[:30])).numpy().astype(np.float64)
    first = next(row for row in rows if row["condition"].startswith("first 30 test contexts"))
    tolerance = 0.5 * np.sqrt(30 + 50 + 1) * 1.1920929e-7
    sigma = np.linalg.svd(log_p_NV, compute_uv=False)
    assert first["value"] == (sigma > tolerance * sigma[0]).sum()
    assert all(row["condition"].endswith("size=30;of=truth-demo/mos-nt") for row in rows)
