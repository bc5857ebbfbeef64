"""The baselines of the benchmarks are our mathematics: losses, gradients and updates; and the scripts run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import cases  # noqa: E402
import cpu  # noqa: E402
import gpu  # noqa: E402
import plain  # noqa: E402
import rank_engine  # noqa: E402
import timing  # noqa: E402

NAMES = tuple(cases.cases())


def small(name: str) -> cases.Case:
    torch.manual_seed(5)
    case = cases.shrunk(cases.cases()[name])
    return cases.dataclasses.replace(case, dropouts=plain.Dropouts())


def assert_alike(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Compare in norm, since literal formulas in float32 round differently."""
    assert (ours - theirs).norm() <= 2e-4 * theirs.norm() + 1e-7


@pytest.mark.parametrize("name", NAMES)
def test_baseline_heads_have_our_losses_and_gradients(name: str) -> None:
    case = small(name)
    if case.head == "lms-plif":  # few cells: in many, rounding of the logits moves some into another
        case = cases.dataclasses.replace(case, options=(("knots", 40),))
    theirs = cases.plain_head(case)
    ours = cases.our_head(case, theirs).train()
    h_TBD = torch.randn(case.bptt, case.batch, case.context)
    target_N = torch.randint(case.words, (case.tokens,))
    contexts, gradients = [h_TBD.clone().requires_grad_() for _ in range(2)], []
    losses = [ours.mean_nll(contexts[0], target_N), theirs.loss(contexts[1], target_N, statistics=True)]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
    for loss, context, head in zip(losses, contexts, (ours, theirs), strict=True):
        loss.backward()
        named = {key.removeprefix("pointwise."): value.grad for key, value in head.named_parameters()}
        gradients.append({"h": context.grad, **named})
    assert gradients[0].keys() == gradients[1].keys()
    for key in gradients[0]:
        assert_alike(gradients[0][key], gradients[1][key])


@pytest.mark.parametrize("name", ["ptb/gss", "ptb/mos"])
def test_baseline_steps_are_our_updates(name: str) -> None:
    """Two updates from the same weights on the same text, dropout off: forward, penalties, clip, SGD."""
    case = small(name)
    trainer = cases.trainer(case)
    model = plain.PlainModel(cases.plain_head(case), case.widths, case.dropouts)
    ours = dict(trainer.model.named_parameters())
    places = {"head.": "head.", "lstms.": "body.layers."}
    for key, parameter in model.named_parameters():
        mine = next(key.replace(old, new, 1) for old, new in places.items() if key.startswith(old))
        parameter.data.copy_(ours[mine] if mine in ours else ours["body.embedding.weight"])
    step = plain.PlainStep(model, case.learning_rate * case.bptt / 70 * 70 / case.bptt, habits=True)
    state = model.state(case.batch)
    for chunk in trainer.chunks[:2]:
        trainer.update()
        step.learning_rate = case.learning_rate * 70 / case.bptt  # the plain one divides by the published 70
        state = step(trainer.train_LB[chunk.start : chunk.start + chunk.length + 1], state)
    for key, parameter in model.named_parameters():
        mine = next(key.replace(old, new, 1) for old, new in places.items() if key.startswith(old))
        assert_alike(ours[mine] if mine in ours else ours["body.embedding.weight"], parameter)


def test_flops_of_the_published_sizes() -> None:
    """Softmax on Penn Treebank by hand: 3 x 2 x 1400 x 400 x 10,000, and three LSTM layers."""
    case = cases.cases()["ptb/softmax"]
    assert case.head_flops() == 3 * 2 * 1400 * 400 * 10_000
    units = 1150 * (400 + 1150) + 1150 * (1150 + 1150) + 400 * (1150 + 400)
    assert case.step_flops() == case.head_flops() + 3 * 2 * 4 * 1400 * units


def test_peak_memory_excludes_memory_that_is_kept() -> None:
    kept: list[torch.Tensor] = []

    def run() -> None:
        torch.zeros(64 * timing.MIB // 4).fill_(1.0)
        kept.append(torch.ones(16 * timing.MIB // 4))

    assert 40 < timing.peak_mib(run, 16 * timing.MIB) < 90


@pytest.mark.tier2
def test_a_quick_run_measures_everything_and_writes_nothing() -> None:
    before = cpu.RESULTS.read_bytes() if cpu.RESULTS.exists() else None
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCHMARKS / "cpu.py"), "--quick"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "step, ptb, softmax" in done.stdout
    assert (cpu.RESULTS.read_bytes() if cpu.RESULTS.exists() else None) == before


def test_ranks_of_all_methods_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_engine, "elsewhere", lambda *_: {"peak_mib": 0.0})
    rows = rank_engine.measure(quick=True)
    assert len({row["rank"] for row in rows if row["head"] == "general"}) == 1
    assert {row["rank"] for row in rows if row["head"] == "softmax"} == {rank_engine.WIDTH + 1}


@pytest.mark.tier2
def test_the_gpu_pieces_run_in_small_on_a_cpu() -> None:
    kinds = {name.split()[0]: piece for name, piece in gpu.pieces().items()}
    results = {kind: gpu.measured(piece, gpu.Place(dry=True)) for kind, piece in kinds.items()}
    assert all(result["rows"] and result["problem"] is None for result in results.values()), results
    assert results["spectrum"]["rows"][0]["method"] == "gram-of-columns (cpu)"
