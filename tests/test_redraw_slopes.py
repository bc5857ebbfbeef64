"""The shelf of LMS-PLIF with its own, borrowed and new slopes, against numpy's SVD and plain straight lines."""

from __future__ import annotations

import sys
from pathlib import Path

import fake_results as fake
import numpy as np
import pytest
import torch
from safetensors.torch import save
from softmax_bottleneck.heads.lms_plif import PiecewiseLinear
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.training import model as models

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import redraw_slopes  # noqa: E402

OPTIONS = {"knots": 50, "bound": 3.0, "w_variance": 0.7, "frozen": False, "learning_rate": 0.02}
N, V, D = 60, 40, 5


def naive_shelf(logits_NV: np.ndarray, slopes: PiecewiseLinear, width: int) -> float:
    """Straight lines between the knots, and beyond them, in float64."""
    slope_K = np.log1p(np.exp(slopes.raw_slope.detach().double().numpy()))
    knots = np.linspace(-slopes.bound, slopes.bound, slopes.knots + 1)
    values = np.concatenate([[0.0], np.cumsum(slope_K) * np.diff(knots)])
    scores_NV = np.interp(logits_NV, knots, values)
    scores_NV += np.minimum(logits_NV - knots[0], 0) * slope_K[0] + np.maximum(logits_NV - knots[-1], 0) * slope_K[-1]
    sigma_K = np.linalg.svd(scores_NV - np.log(np.exp(scores_NV).sum(1, keepdims=True)), compute_uv=False)
    return float(sigma_K[width + 2] / sigma_K[0])


def made_up(seed: int) -> redraw_slopes.Trained:
    torch.manual_seed(seed)
    logits_NV = torch.randn(N, D) @ torch.randn(D, V)
    return redraw_slopes.Trained(logits_NV, D, PiecewiseLinear(**OPTIONS), OPTIONS)


def word_by_word(model: models.LanguageModel, tokens_T: np.ndarray) -> torch.Tensor:
    """Log-probabilities after every word but the last, read one at a time."""
    state, log_p = model.initial_state(1), []
    for token in tokens_T[:-1]:
        output = model(torch.tensor([[int(token)]]), state)
        state = output.state
        log_p.append(model.head.log_probs(output.dropped_TBD))
    return torch.cat(log_p)


@torch.no_grad()
def test_every_line_says_whose_slopes_make_which_shelf() -> None:
    runs = {"one": made_up(1), "other": made_up(2)}
    lines = list(redraw_slopes.compare(runs, 3))
    assert len(lines) == 6
    for start, (name, lender) in zip((0, 3), (("one", "other"), ("other", "one")), strict=True):
        logits_NV = runs[name].logits_NV.double().numpy()
        own, borrowed = (naive_shelf(logits_NV, runs[whose].slopes, D) for whose in (name, lender))
        assert lines[start] == f"{name}: with its own slopes the shelf begins at {own:.1e} of the largest"
        assert lines[start + 1] == f"  with those of {lender} at {borrowed:.1e}"
        drawn = []
        for seed in range(3):
            torch.manual_seed(seed)
            drawn.append(naive_shelf(logits_NV, PiecewiseLinear(**OPTIONS), D))
        low, middle, high = (f"{value:.1e}" for value in sorted(drawn))
        assert lines[start + 2] == f"  with 3 new draws at {low} to {high}, median {middle}"


def test_a_finished_run_is_read_with_contexts_of_its_whole_test_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    study = fake.load(tmp_path)
    folders, built = {}, {}
    for name in ("lms-plif", "softmax"):
        run = next(run for run in study.needed if run.model == name)
        folders[name] = Store().run_folder(run.path)
        built[name] = model = models.build(run, V).eval()
        artefacts.write_json(folders[name] / "run.json", run.to_json())
        weights = {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}
        artefacts.write_bytes(folders[name] / "model.safetensors", save(weights))
    tokens = np.arange(201, dtype=np.int32) % V
    artefacts.write_npy(Store().tokens_folder(study.needed[0].dataset) / "test.npy", tokens)
    found = redraw_slopes.trained(folders["lms-plif"], 50)
    assert found.logits_NV.shape == (50, V) and found.options["knots"] == 2000
    whole = redraw_slopes.trained(folders["lms-plif"], 1000)
    with torch.no_grad():
        torch.testing.assert_close(
            whole.slopes(whole.logits_NV).log_softmax(1), word_by_word(built["lms-plif"], tokens)
        )
    assert torch.equal(whole.logits_NV[[0, -1]], found.logits_NV[[0, -1]])
    redraw_slopes.main([str(folders["lms-plif"]), "--draws", "2", "--contexts", "50"])
    assert "2 new draws at" in capsys.readouterr().out
    with pytest.raises(UserError, match="its head is softmax; name runs of lms-plif"):
        redraw_slopes.main([str(folders["softmax"])])
    with pytest.raises(UserError, match="--contexts 3: the shelf begins at singular value"):
        redraw_slopes.main([str(folders["lms-plif"]), "--contexts", "3"])
    with pytest.raises(SystemExit, match="2"):
        redraw_slopes.main([str(folders["lms-plif"]), "--draws", "0"])
