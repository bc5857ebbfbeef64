"""The requirements on every head. The package lists its heads, so the suite tests a new one without an edit."""

import copy
import math
from typing import Any

import naive_heads
import numpy as np
import pytest
import torch
from softmax_bottleneck import heads
from softmax_bottleneck.heads import lms_plif, row_nll
from softmax_bottleneck.heads.base import Head, PointwiseHead
from softmax_bottleneck.heads.lms_plif import blocked_running_sum, fixed_point_histogram
from softmax_bottleneck.store.errors import UserError

# Beside every head at its defaults: the corners of its options.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("doc", {"components": 2, "lower_components": 3}),
    ("doc", {"components": 2, "lower_components": 1, "lower_size": 2}),  # two layers of a context, each its components
    ("gss", {"c": 1.5, "k": 0.5}),
    ("gss", {"c": -1.5, "k": 3}),
    ("lms", {"units": 1}),
    ("lms-plif", {"knots": 40, "bound": 2.0}),
    ("lms-plif", {"knots": 40, "frozen": True}),
    ("low-rank", {"rank": 2}),
    ("sigsoftmax", {"learned_shift": True}),
    ("mixtape", {"components": 8, "gate_size": 3, "own_gates": 4}),
    ("multi-facet", {"components": 1, "partitions": 2}),
    ("moc", {"components": 3, "pointwise": "sigsoftmax"}),
    ("mos", {"components": 1}),
    ("mos", {"components": 3, "pointwise": "sigsoftmax", "prior": "sigsoftmax"}),
    ("mos", {"components": 3, "pointwise": "lms-plif", "pointwise_options": {"knots": 40}}),
    ("mos", {"components": 3, "probability_floor": 1e-3}),
]
CASES = [(name, {}) for name in heads.names()] + VARIANTS
# So that gradcheck, which wiggles every parameter, ends.
FEW_PARAMETERS: dict[str, dict[str, Any]] = {
    "lms-plif": {"knots": 40}, "mos": {"components": 3}, "moc": {"components": 3},
    "doc": {"components": 2, "lower_components": 1}, "mixtape": {"gate_size": 2},
}  # fmt: skip

every_case = pytest.mark.parametrize(
    ("name", "options"), CASES, ids=[f"{n}-{'-'.join(f'{k}={v}' for k, v in o.items()) or 'default'}" for n, o in CASES]
)


def make(name: str, options: dict[str, Any], *, words: int = 11, width: int = 5, spread: float = 1.0) -> Head:
    """A head in float64, in evaluation mode, with logits of about +-3 at spread 1."""
    torch.manual_seed(3)
    head = heads.build(name, vocabulary_size=words, context_size=width, embedding_size=width, **options)
    torch.nn.init.normal_(head.decoder.weight, std=2.0 * spread / math.sqrt(width))
    torch.nn.init.normal_(head.decoder.bias, std=spread)
    if "learned_shift" in options:
        torch.nn.init.constant_(head.pointwise.shift, 0.7)
    return head.double().eval()


def contexts(rows: int, head: Head, seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Contexts [N, D] in float64 and targets [N]."""
    generator = torch.Generator().manual_seed(seed)
    h_ND = torch.randn(rows, head.context_size, generator=generator, dtype=torch.float64)
    return h_ND, torch.randint(0, head.vocabulary_size, (rows,), generator=generator)


def materialised_nll(head: Head, h_ND: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
    return -head.log_probs(h_ND).gather(1, target_N.unsqueeze(1)).squeeze(1)


def gradients(loss: torch.Tensor, head: Head, h_ND: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of the loss by the contexts and every parameter (zeros where it does not depend on one)."""
    inputs = [h_ND, *head.parameters()]
    return list(torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True))


def naive_log_probs(
    name: str, options: dict[str, Any], head: Head, h_ND: torch.Tensor, dtype: type = np.float64
) -> np.ndarray:
    """ln P [N, V] by the literal formula of the paper, in float64 or longer numbers."""
    full = heads.options(name, options)
    if name not in naive_heads.KNOWN:
        pytest.skip(f"tests/naive_heads.py has no formula for {name}: add the literal one of its paper")
    inner = heads.options(full["pointwise"], full["pointwise_options"]) if "pointwise" in full else {}
    parameters = {key: value.double().numpy().astype(dtype) for key, value in head.state_dict().items()}
    return naive_heads.log_probs(name, full, inner, parameters, h_ND.detach().double().numpy().astype(dtype))


# --- probabilities -----------------------------------------------------------------------------------------------
@every_case
def test_is_the_published_formula(name: str, options: dict[str, Any]) -> None:
    head = make(name, options)
    h_ND, target_N = contexts(6, head)
    expected_NV = naive_log_probs(name, options, head, h_ND)
    np.testing.assert_allclose(head.log_probs(h_ND).detach().numpy(), expected_NV, rtol=1e-10, atol=1e-10)
    nll_N = head.nll(h_ND, target_N).detach().numpy()
    np.testing.assert_allclose(nll_N, -expected_NV[np.arange(6), target_N.numpy()], rtol=1e-10, atol=1e-10)


MAGNITUDES = {
    "high and low": [100.0, -100.0] * 5, "all high": [100.0] * 11, "all low": [-100.0] * 11, "two words": [1e4, -1e4],
    "far apart": [1e4, 0.0, -1e4, 3.5, 1e4, -7777.0, 88.8, -0.01],
}  # fmt: skip


@pytest.mark.fault("D4", "D8")
@pytest.mark.parametrize("values", MAGNITUDES.values(), ids=MAGNITUDES.keys())
@every_case
def test_extreme_logits(name: str, options: dict[str, Any], values: list[float]) -> None:
    """float32 losses stay within rounding of float64, and gradients stay finite, whatever the logits."""
    head = make(name, options, words=len(values), spread=0.01)
    with torch.no_grad():
        head.decoder.bias.copy_(torch.tensor(values))
    h_ND, _ = contexts(len(values), head)
    target_N = torch.arange(len(values))
    exact_N = materialised_nll(head, h_ND, target_N).detach()
    h_ND = h_ND.float().requires_grad_()
    nll_N = head.float().nll(h_ND, target_N)
    assert nll_N.isfinite().all() and head.log_probs(h_ND).isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(nll_N.mean(), head, h_ND))
    # A logit of 1e4 is known to 1e-3 in float32, and the steepest function here multiplies that by 5 (a PLIF slope);
    # relu's logarithm turns a rounding error of 1e-9 beside its constant 1e-8 into 0.1.
    scale = 1e-6 * 5.0 * max(1.0, *map(abs, values))
    torch.testing.assert_close(nll_N.double(), exact_N, rtol=1e-5, atol=scale + 0.2 * (name == "relu"))


@pytest.mark.parametrize(
    ("dtype", "whole"), [(torch.bfloat16, True), (torch.float16, False)], ids=["bf16 head", "fp16 hidden states"]
)
@every_case
def test_half_precision(name: str, options: dict[str, Any], dtype: torch.dtype, whole: bool) -> None:
    """Half-precision hidden states, or a whole head, under autocast: only the given numbers are rounded."""
    options = FEW_PARAMETERS.get(name, {}) | options
    head = make(name, options).to(dtype if whole else torch.float32)
    twin = copy.deepcopy(head).double()
    h_ND, target_N = contexts(6, head)
    h_ND = h_ND.to(dtype).requires_grad_()
    weight_N = torch.linspace(0.1, 1.0, 6)
    with torch.autocast("cpu", torch.bfloat16):
        log_p_NV, nll_N, mean = head.log_probs(h_ND), head.nll(h_ND, target_N), head.mean_nll(h_ND, target_N)
    expected_NV = naive_log_probs(name, options, head, h_ND)
    assert log_p_NV.dtype == nll_N.dtype == torch.float32
    np.testing.assert_allclose(log_p_NV.detach().numpy(), expected_NV, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(nll_N.detach(), -expected_NV[np.arange(6), target_N], rtol=1e-5, atol=1e-5)
    double_ND = h_ND.detach().double().requires_grad_()
    for loss, weights in ((nll_N @ weight_N, weight_N.double()), (mean, torch.full((6,), 1.0 / 6.0).double())):
        expected = gradients(materialised_nll(twin, double_ND, target_N) @ weights, twin, double_ND)
        for ours, theirs in zip(gradients(loss, head, h_ND), expected, strict=True):
            assert (ours.double() - theirs).norm() <= 2.0 * torch.finfo(dtype).eps * max(theirs.norm(), 0.1)


@every_case
def test_no_tokens_have_no_loss(name: str, options: dict[str, Any]) -> None:
    head = make(name, FEW_PARAMETERS.get(name, {}) | options)
    h_ND, target_N = contexts(0, head)
    h_ND.requires_grad_()
    mean, nll_N = head.mean_nll(h_ND, target_N), head.nll(h_ND, target_N)
    assert head.log_probs(h_ND).shape == (0, 11) and nll_N.shape == (0,) and mean == 0.0
    for loss in (mean, nll_N.sum()):
        assert not any(gradient.any() for gradient in gradients(loss, head, h_ND))


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if "plif" not in str(case)], ids=str)
def test_an_offset_of_all_logits_costs_no_digits(name: str, options: dict[str, Any]) -> None:
    """The logits are exact in float32. PLIF is left out: its steeper scores are rounded themselves."""
    head = make(name, options)
    with torch.no_grad():
        head.decoder.weight.zero_()
        head.decoder.bias.mul_(1024.0).round_().div_(1024.0).add_(1e4)
    h_ND, _ = contexts(11, head)
    expected_NV = naive_log_probs(name, options, head, h_ND, np.longdouble)
    head.float()
    nll_N = head.nll(h_ND, torch.arange(11))
    np.testing.assert_allclose(nll_N.detach().numpy(), -expected_NV.diagonal(), rtol=0, atol=3e-6)
    np.testing.assert_allclose(head.log_probs(h_ND).detach().numpy(), expected_NV, rtol=0, atol=3e-6)


@every_case
@pytest.mark.parametrize(("rows", "width", "words"), [(126, 61, 253), (1, 5, 2), (3, 1, 4)])
def test_awkward_shapes(name: str, options: dict[str, Any], rows: int, width: int, words: int, monkeypatch) -> None:
    """Losses and gradients at sizes that divide by nothing, in chunks that do not divide them."""
    monkeypatch.setitem(row_nll.CHUNK_BYTES, "cpu", 150_000)
    fitting = {"lms-plif": {"knots": 40}, "doc": {"lower_size": min(width - 1, options.get("lower_size", 0))}}
    head = make(name, options | fitting.get(name, {}), width=width, words=words)
    h_ND, target_N = contexts(rows, head)
    h_ND.requires_grad_()
    expected = materialised_nll(head, h_ND, target_N)
    torch.testing.assert_close(head.nll(h_ND, target_N), expected, rtol=1e-10, atol=1e-12)
    fused = gradients(head.mean_nll(h_ND, target_N), head, h_ND)
    for ours, theirs in zip(fused, gradients(expected.mean(), head, h_ND), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)


# --- gradients ---------------------------------------------------------------------------------------------------
@every_case
def test_gradcheck(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the derivatives by the contexts and every parameter, in several chunks, in a random direction."""
    monkeypatch.setitem(row_nll.CHUNK_BYTES, "cpu", 1)
    head = make(name, FEW_PARAMETERS.get(name, {}) | options, words=5, width=3)
    h_ND, target_N = contexts(3, head)
    inputs = (h_ND.requires_grad_(), *head.parameters())
    assert torch.autograd.gradcheck(lambda *_: head.nll(h_ND, target_N), inputs, fast_mode=True)
    # A second backward sweeps again instead of scaling what forward made, so it may round otherwise.
    assert torch.autograd.gradcheck(lambda *_: head.mean_nll(h_ND, target_N), inputs, nondet_tol=1e-12, fast_mode=True)


@every_case
def test_float32_gradients_are_as_good_as_materialised(name: str, options: dict[str, Any]) -> None:
    """The error against float64 is at most twice that of float32 autograd over the whole matrix."""
    # PLIF's cells are so narrow by default that rounding of the logits alone picks other slopes.
    head = make(name, FEW_PARAMETERS.get(name, {}) | options, width=24, words=307)
    h_ND, target_N = contexts(101, head)
    exact = gradients(materialised_nll(head, h_ND.requires_grad_(), target_N).mean(), head, h_ND)
    head.float()
    h_ND = h_ND.detach().float().requires_grad_()
    ours = gradients(head.mean_nll(h_ND, target_N), head, h_ND)
    theirs = gradients(materialised_nll(head, h_ND, target_N).mean(), head, h_ND)
    for truth, fused, plain in zip(exact, ours, theirs, strict=True):
        rounding = 3.0 * torch.finfo(torch.float32).eps * max(truth.norm(), 0.1)
        assert (fused - truth).norm() <= 2.0 * (plain - truth).norm() + rounding


# --- mixtures ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mixture", ["mos", "moc"])
def test_latent_dropout_is_locked_over_time(mixture: str) -> None:
    """A sequence loses the same units at every step, other sequences lose others, and the kept ones are scaled."""
    head = make(mixture, {"components": 2, "dropout_latent": 0.4}, width=50).train()
    h_TBD = torch.randn(7, 3, 50, dtype=torch.float64)
    drawn = head.latents(h_TBD, torch.Generator().manual_seed(0)).reshape(7, 3, 100)
    kept = torch.tanh(head.latent(h_TBD))
    mask = drawn / kept
    assert torch.equal(mask == 0.0, (mask[:1] == 0.0).expand_as(mask))
    assert not torch.equal(mask[:, 0] == 0.0, mask[:, 1] == 0.0)
    torch.testing.assert_close(mask[mask != 0.0], torch.full_like(mask[mask != 0.0], 1.0 / 0.6))
    assert 0.3 < (mask[0] == 0.0).double().mean() < 0.5
    assert torch.equal(drawn, head.latents(h_TBD, torch.Generator().manual_seed(0)).reshape(7, 3, 100))
    at_every_step = make(mixture, {"components": 2, "dropout_latent": 0.4, "locked_dropout": False}, width=50).train()
    drawn = at_every_step.latents(h_TBD, torch.Generator().manual_seed(0)).reshape(7, 3, 100)
    assert not torch.equal(drawn[0] == 0.0, drawn[1] == 0.0)
    head.eval()
    torch.testing.assert_close(head.latents(h_TBD, None).reshape(7, 3, 100), kept)


# --- single heads ------------------------------------------------------------------------------------------------
@every_case
def test_log_linear_heads_give_their_contexts(name: str, options: dict[str, Any]) -> None:
    head = make(name, options)
    h_ND, _ = contexts(6, head)
    if head.is_log_linear:
        expected_NV = head.decoder(head.contexts(h_ND)).log_softmax(1)
        torch.testing.assert_close(head.log_probs(h_ND), expected_NV, rtol=1e-12, atol=1e-12)
    else:
        with pytest.raises(UserError, match="log_probs"):
            head.contexts(h_ND)


def test_ranks_of_log_probabilities_follow_from_the_form() -> None:
    """A low-rank head has rank r + 2 whatever the width; the others exceed the softmax's E + 2."""

    def rank(name: str, **options: Any) -> int:
        head = make(name, options, words=60, width=6)
        h_ND, _ = contexts(80, head)
        return int(np.linalg.matrix_rank(head.log_probs(6.0 * h_ND).detach().numpy(), tol=1e-6))

    assert rank("softmax") == 8
    assert rank("low-rank", rank=3) == 5
    assert min(rank("mixtape"), rank("multi-facet"), rank("doc")) > 30


def test_initialisation() -> None:
    """Check the published initialisation: decoder U(-0.1, 0.1) and zero bias; prior and latent U(+-1/sqrt(fan in))."""
    torch.manual_seed(0)
    head = heads.build("mos", vocabulary_size=500, context_size=64, embedding_size=50)
    for weight, bound in (
        (head.decoder.weight, 0.1),
        (head.prior.weight, 1 / 8),
        (head.latent.weight, 1 / 8),
        (head.latent.bias, 1 / 8),
    ):
        assert weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3.0), rel=0.05)
    assert not head.decoder.bias.any()
    assert head.prior.bias is None


def test_plif_slopes_start_as_published() -> None:
    """Check their derived distribution: mean 1.107, standard deviation 0.627, least about 0.02, greatest about 5."""
    torch.manual_seed(0)
    slope_K = make("lms-plif", {}).pointwise.table()[:, 0].detach().numpy()
    assert slope_K.mean() == pytest.approx(1.107, abs=0.006)
    assert slope_K.std() == pytest.approx(0.627, abs=0.006)
    assert slope_K.min() < 0.05
    assert 4.0 < slope_K.max() < 6.0


def test_plif_slopes_have_their_own_learning_rate_unless_frozen() -> None:
    free = make("lms-plif", {}).parameter_groups()
    assert [len(group["params"]) for group in free] == [2, 1]
    assert free[1]["lr"] == 0.02
    assert "lr" not in free[0]
    frozen = make("lms-plif", {"frozen": True})
    assert [len(group["params"]) for group in frozen.parameter_groups()] == [2]
    assert "pointwise.raw_slope" in frozen.state_dict()
    (_, in_mixture) = make(
        "mos", {"pointwise": "lms-plif", "pointwise_options": {"learning_rate": 0.5}}
    ).parameter_groups()
    assert in_mixture["lr"] == 0.5


@pytest.mark.fault("D8")
@pytest.mark.parametrize("length", [1, 511, 512, 513, 300_000])
def test_the_running_sum_of_a_gpu_is_exact(length: int) -> None:
    """Compare blocks of one and of two levels, whole and cut, with extended precision."""
    slope_K = np.random.default_rng(6).random(length)
    exact_K = slope_K.astype(np.longdouble).cumsum().astype(np.float64)
    np.testing.assert_allclose(blocked_running_sum(torch.from_numpy(slope_K)), exact_K, rtol=2e-15)


@pytest.mark.parametrize("knots", [1, 40])
def test_a_nan_logit_is_looked_up_in_an_existing_cell(knots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a GPU's way, where another index would end the process: the loss is NaN and other rows keep theirs."""

    def as_on_a_gpu(total_K: torch.Tensor, cell_X: torch.Tensor, value_X: torch.Tensor) -> None:
        total_K += fixed_point_histogram(cell_X, value_X, len(total_K)).to(total_K.dtype)

    monkeypatch.setattr(lms_plif, "add_to_histogram_", as_on_a_gpu)
    torch.manual_seed(3)
    head = heads.build("lms-plif", vocabulary_size=9, context_size=4, embedding_size=4, knots=knots, bound=1.0)
    h_ND, target_N = torch.randn(4, 4), torch.arange(4)
    expected_N = head.nll(h_ND, target_N).detach()
    h_ND[1, 2], h_ND[2, 0] = math.nan, math.inf
    h_ND.requires_grad_()
    nll_N = head.nll(h_ND, target_N)
    (grad_ND,) = torch.autograd.grad(nll_N.sum(), h_ND)
    assert nll_N.isfinite().tolist() == grad_ND.isfinite().all(1).tolist() == [True, False, False, True]
    assert nll_N[1].isnan() and torch.equal(nll_N[::3], expected_N[::3])
    logits = torch.tensor([0.5, math.nan, -math.inf, 1e30])
    assert head.pointwise(logits).isnan().tolist() == [False, True, False, False]


def test_fixed_point_histogram_is_exact_and_free_of_order() -> None:
    generator = torch.Generator().manual_seed(0)
    cell_X = torch.randint(0, 9, (5000,), generator=generator)
    value_X = torch.randn(5000, generator=generator) * 1e-5
    total_K = fixed_point_histogram(cell_X, value_X, 9)
    expected_K = np.bincount(cell_X.numpy(), value_X.double().numpy(), 9)
    np.testing.assert_allclose(total_K.numpy(), expected_K, rtol=0, atol=1e-10)
    order_X = torch.randperm(5000, generator=generator)
    assert torch.equal(total_K, fixed_point_histogram(cell_X[order_X], value_X[order_X], 9))
    assert not fixed_point_histogram(cell_X, torch.zeros(5000), 9).any()


@pytest.mark.parametrize(("name", "options", "words"), [
    ("gsss", {}, ["gsss", "'gss'"]), ("gss", {"C": 1.0}, ["'C'", "c, k"]), ("gss", {"c": math.nan}, ["c: nan"]),
    ("mos", {"prior": "relu"}, ["prior: 'relu'"]), ("mos", {"pointwise": "moc"}, ["moc", "softmax"]),
    ("mos", {"pointwise": "gss", "pointwise_options": {"z": 1}}, ["head gss", "'z'"]),
])  # fmt: skip
def test_mistakes_are_named(name: str, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        heads.build(name, vocabulary_size=5, context_size=3, embedding_size=3, **options)
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words)
    assert heads.options("gss", {"c": 1}) == {"c": 1.0, "k": 2.5}


@every_case
def test_declared_families(name: str, options: dict[str, Any]) -> None:
    """A head is log-linear at its default options as declared, and a pointwise family means a pointwise function."""
    head, declared = make(name, options), heads.declaration(name)
    assert options or head.is_log_linear == declared.is_log_linear
    assert isinstance(head, PointwiseHead) == ("pointwise" in declared.family)
