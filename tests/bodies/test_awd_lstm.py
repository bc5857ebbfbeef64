"""The AWD-LSTM against a naive float64 cell loop, and its random parts against what SPEC.md 2 says of them.

Shapes: T time steps, B sequences, D features, V words, H units.
"""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from softmax_bottleneck.bodies import awd_lstm
from softmax_bottleneck.bodies.awd_lstm import AWDLSTM

V, T, B = 23, 7, 3
SIZES = {"vocabulary_size": V, "embedding_size": 5, "hidden_size": 6, "context_size": 4, "layers": 3}
DROPOUTS = {
    "dropout_input": 0.4, "dropout_hidden": 0.3, "dropout_output": 0.5, "dropout_embedding": 0.2, "dropout_weight": 0.5,
}  # fmt: skip


def make(**options) -> AWDLSTM:
    torch.manual_seed(3)
    return AWDLSTM(**SIZES | options)


def tokens(seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, V, (T, B)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def naive_layer(x_TBD, weights, h_BH, c_BH):
    """Run an LSTM cell with forget gate over a sequence; gates are in PyTorch's order: input, forget, cell, output."""
    w_ih, w_hh, b_ih, b_hh = weights
    outputs = []
    for x_BD in x_TBD:
        i, f, g, o = np.split(x_BD @ w_ih.T + b_ih + h_BH @ w_hh.T + b_hh, 4, axis=1)
        c_BH = sigmoid(f) * c_BH + sigmoid(i) * np.tanh(g)
        h_BH = sigmoid(o) * np.tanh(c_BH)
        outputs.append(h_BH)
    return np.stack(outputs), h_BH, c_BH


def naive_forward(body, ids_TB, state, masks):
    """Run the whole body in numpy; `masks` are of words, of the input, then of weights and output of every layer."""
    masks = [mask.double().numpy() for mask in masks]
    words, inputs, *rest = masks
    x_TBD = (words[:, None] * body.embedding.weight.double().detach().numpy())[ids_TB.numpy()] * inputs
    carried = []
    for number, layer in enumerate(body.layers):
        weight_mask, output_mask = rest[2 * number : 2 * number + 2]
        weights = [p.double().detach().numpy() for p in layer.parameters()]
        weights[1] = weights[1] * weight_mask
        h, c = (tensor[0].double().numpy() for tensor in state[number])
        raw_TBD, h, c = naive_layer(x_TBD, weights, h, c)
        x_TBD = raw_TBD * output_mask
        carried.append((h, c))
    return raw_TBD, x_TBD, carried


@pytest.fixture
def masks(monkeypatch):
    """Draw masks with numpy and return the list of them."""
    drawn, rng = [], np.random.default_rng(5)

    def draw(shape, dropout, like, generator):
        mask = torch.from_numpy((rng.random(shape) >= dropout) / (1 - dropout)).to(like.dtype)
        drawn.append(mask)
        return mask

    monkeypatch.setattr(awd_lstm, "keep_mask", draw)
    return drawn


@pytest.mark.parametrize("slices", [1, 3, 20])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_equals_naive_loop_given_the_masks(masks, dtype, tolerance, slices):
    body = make(**DROPOUTS).to(dtype)
    body.slices = slices
    state = tuple((torch.randn(1, B, w, dtype=dtype), torch.randn(1, B, w, dtype=dtype)) for w in (6, 6, 4))
    with torch.set_grad_enabled(slices > 1):
        output = body(tokens(), state)
    raw, dropped, carried = naive_forward(body, tokens(), state, masks)
    np.testing.assert_allclose(output.raw_TBD.detach(), raw, atol=tolerance)
    np.testing.assert_allclose(output.dropped_TBD.detach(), dropped, atol=tolerance)
    for (h, c), (naive_h, naive_c) in zip(output.state, carried, strict=True):
        np.testing.assert_allclose(h[0].detach(), naive_h, atol=tolerance)
        np.testing.assert_allclose(c[0].detach(), naive_c, atol=tolerance)


def test_masks_have_the_published_shapes(masks):
    body = make(**DROPOUTS)
    body(tokens(), body.initial_state(B))
    hidden, last = (24, 6), (16, 4)
    assert [tuple(mask.shape) for mask in masks] == [
        (V,), (1, B, 5), hidden, (1, B, 6), hidden, (1, B, 6), last, (1, B, 4)
    ]  # fmt: skip


@pytest.mark.parametrize("dropout", [0.225, 0.65])
def test_mask_statistics(dropout):
    count = 200_000
    mask = awd_lstm.keep_mask((count,), dropout, torch.zeros(1), torch.Generator().manual_seed(1))
    kept = mask > 0
    torch.testing.assert_close(mask[kept], torch.full_like(mask[kept], 1 / (1 - dropout)))
    deviation = abs(kept.double().mean().item() - (1 - dropout))
    assert deviation < 4 * (dropout * (1 - dropout) / count) ** 0.5


def test_train_passes_differ_and_eval_passes_agree():
    """Two equal training passes would show that DropConnect is skipped silently (SPEC.md A20)."""
    body = make(dropout_weight=0.5)
    state = body.initial_state(B)
    generator = torch.Generator().manual_seed(1)
    first, second = (body(tokens(), state, generator=generator).raw_TBD for _ in range(2))
    assert not torch.equal(first, second)
    again = body(tokens(), state, generator=torch.Generator().manual_seed(1)).raw_TBD
    assert torch.equal(first, again)
    body.eval()
    one, two = (body(tokens(), state, generator=generator) for _ in range(2))
    assert torch.equal(one.raw_TBD, two.raw_TBD)
    assert torch.equal(one.raw_TBD, one.dropped_TBD)


def test_gradient_reaches_the_raw_weights_through_the_mask():
    """Compare with central differences of the loss in float64, with the same masks in every evaluation."""
    body = make(**DROPOUTS).double()

    def loss():
        output = body(tokens(), body.initial_state(B), generator=torch.Generator().manual_seed(9))
        return output.dropped_TBD.square().sum() + output.raw_TBD.sum()

    loss().backward()
    step = 1e-6
    for parameter in (body.layers[1].weight_hh_l0, body.layers[0].weight_ih_l0, body.embedding.weight):
        for index in [(0, 0), (3, 1), (4, 4)]:
            with torch.no_grad():
                parameter[index] += step
                above = loss()
                parameter[index] -= 2 * step
                below = loss()
                parameter[index] += step
            assert parameter.grad[index].item() == pytest.approx(((above - below) / (2 * step)).item(), abs=1e-7)
    # a dropped weight gets no gradient
    zero_share = (body.layers[1].weight_hh_l0.grad == 0).double().mean().item()
    assert 0.25 < zero_share < 0.75


def test_pieces_change_no_gradient():
    """Cutting a chunk into pieces of 3, 3 and 1 time steps changes only the order of sums."""
    body, gradients = make(**DROPOUTS).double(), []
    for body.slices in (1, 3):
        output = body(tokens(), body.initial_state(B), generator=torch.Generator().manual_seed(9))
        loss = output.dropped_TBD.square().sum() + output.raw_TBD.sum() + output.below_TBD.sum()
        gradients.append(torch.autograd.grad(loss, list(body.parameters())))
    for whole, in_pieces in zip(*gradients, strict=True):
        torch.testing.assert_close(in_pieces, whole, rtol=1e-12, atol=1e-14)


class Stream:
    """A substitute for a GPU's stream that knows which (layer, piece) it has run or waited for."""

    current: "Stream"

    def __init__(self) -> None:
        self.knows: set[tuple[int, int]] = set()

    def wait_stream(self, other: "Stream") -> None:
        self.knows |= other.knows

    @contextmanager
    def enter(self):
        before, Stream.current = Stream.current, self
        yield
        Stream.current = before


def test_a_layer_waits_for_nothing_but_its_inputs(monkeypatch):
    """Layer l on piece s knows of (l - 1, s) and (l, s - 1), and of no layer above: a wavefront without a race."""
    main, count, knowledge = Stream(), [0] * 3, {}
    Stream.current, run = main, awd_lstm._run_layer
    sides = [Stream() for _ in count]

    def watched(*arguments):
        layer = sides.index(Stream.current)
        place = (layer, count[layer])
        knowledge[place] = set(Stream.current.knows)
        Stream.current.knows.add(place)
        count[layer] += 1
        return run(*arguments)

    monkeypatch.setattr(awd_lstm, "_streams", lambda device, layers, slices: [main, *sides])
    monkeypatch.setattr(torch.cuda, "stream", Stream.enter)
    monkeypatch.setattr(awd_lstm, "_run_layer", watched)
    body = make()
    body.slices = 3
    body(tokens(), body.initial_state(B))
    assert count == [3, 3, 3]
    for (layer, piece), known in knowledge.items():
        assert known == {(below, before) for below in range(layer + 1) for before in range(piece + 1)} - {
            (layer, piece)
        }
    assert main.knows == set(knowledge)  # the caller's stream waits for all


def test_embedding_noise_is_normal_independent_and_for_training_only():
    body = make(embedding_noise=0.15)
    ids = torch.zeros(400, 20, dtype=torch.long)
    noise = (body._embed(ids, torch.Generator().manual_seed(1)) - body.embedding.weight[0]).double()
    count = noise.numel()
    assert noise.std().item() == pytest.approx(0.15, rel=4 / (2 * count) ** 0.5)
    assert abs(noise.mean().item()) < 4 * 0.15 / count**0.5
    flat = noise.flatten()
    assert abs((flat[1:] * flat[:-1]).mean().item()) < 4 * 0.15**2 / count**0.5
    assert torch.equal(body.eval()._embed(ids, None), body.embedding.weight[0].expand(400, 20, -1))


def test_initialisation():
    body = AWDLSTM(vocabulary_size=2000, embedding_size=30, hidden_size=100, context_size=64, layers=3)
    assert body.embedding.weight.abs().max().item() == pytest.approx(0.1, abs=1e-4)
    for layer, hidden in zip(body.layers, (100, 100, 64), strict=True):
        for parameter in layer.parameters():
            limit = 1 / hidden**0.5
            assert parameter.abs().max().item() <= limit
            assert parameter.std().item() == pytest.approx(limit / 3**0.5, rel=0.15)


def test_units_added_for_a_gpus_kernels_change_nothing(monkeypatch):
    """A GPU runs 1150 units as 1152: states and gradients differ only by the order of sums in float64."""
    results = []
    for multiple in (1, 8):
        monkeypatch.setitem(awd_lstm.ALIGNED_UNITS, "cpu", multiple)
        body = make().double()
        output = body(tokens(), body.initial_state(B))
        gradients = torch.autograd.grad(output.raw_TBD.square().sum(), list(body.parameters()))
        results.append([output.raw_TBD, *(tensor for pair in output.state for tensor in pair), *gradients])
    for plain, padded in zip(*results, strict=True):
        torch.testing.assert_close(padded, plain, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("word_dropout", [0.0, 0.2])
def test_the_published_code_takes_the_last_word_for_padding(masks, published, word_dropout):
    """With `padding_idx=-1` the last word gets no gradient through the input (naive: one-hot words, a fixed row)."""
    body = make(published_padding=published, dropout_embedding=word_dropout).double()
    ids_TB = torch.cat([tokens(), torch.full((1, B), V - 1)])
    body(ids_TB, body.initial_state(B)).dropped_TBD.square().sum().backward()
    mask_V1 = masks.pop(0)[:, None] if word_dropout else torch.ones(V, 1)
    table_VD = body.embedding.weight.detach().clone().requires_grad_()
    frozen_VD = torch.cat([table_VD[:-1], table_VD[-1:].detach()]) if published else table_VD
    x_TBD = torch.nn.functional.one_hot(ids_TB, V).double() @ (frozen_VD * mask_V1)
    for layer in body.layers:
        x_TBD = layer(x_TBD)[0]
    x_TBD.square().sum().backward()
    assert table_VD.grad is not None and bool(table_VD.grad[-1].any()) == (not published)
    torch.testing.assert_close(body.embedding.weight.grad, table_VD.grad)
