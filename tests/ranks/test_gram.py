"""Gram matrices, their eigenvalues on the CPU and on a device, and what is checked of a device's answer."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from known_matrices import crowded_matrix, in_chunks, rng
from softmax_bottleneck.ranks import (
    DeviceGram,
    Gram,
    gram,
    gram_singular_values,
    inertia_count,
    nested_singular_values,
    rank_report,
    spectra,
)
from softmax_bottleneck.store.errors import DataError

ON_DEVICE = partial(DeviceGram, torch=torch, device="cpu")  # takes a GPU's code path


def test_a_sum_goes_on_after_its_spectrum_without_a_second_matrix() -> None:
    matrix = Gram(1000)
    matrix.add(rng().normal(size=(512, 1000)))  # two full blocks
    before = np.tril(matrix.matrix)
    tracemalloc.start()
    matrix.spectrum_so_far(512, 1000, "float64")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(np.tril(matrix.matrix), before) and peak < 0.6 * matrix.matrix.nbytes


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 40, 300])
def test_the_solver_reads_the_lower_triangle_and_leaves_the_upper_one_alone(n, stages, monkeypatch) -> None:
    """Both solvers do: in two stages over a band, and in one where scipy's library lacks those routines."""
    if stages == 1:
        monkeypatch.setattr(gram, "_lapack", lambda name: None)
    square = rng().normal(size=(n, n))
    half = np.asfortranarray(np.tril(square + square.T) + np.triu(np.full_like(square, np.nan), 1))
    found = gram.lapack_eigenvalues(half)
    np.testing.assert_allclose(found, np.linalg.eigvalsh(square + square.T), rtol=0, atol=1e-12)
    assert np.isnan(half[np.triu_indices(n, 1)]).all()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(n=st.integers(1, 25), threshold=st.floats(-3, 3), seed=st.integers(0, 999))
def test_inertia_counts_eigenvalues_of_indefinite_matrices(n, threshold, seed) -> None:
    matrix = rng(seed).normal(size=(n, n))
    matrix += matrix.T
    assert inertia_count(matrix, threshold) == (np.linalg.eigvalsh(matrix) > threshold).sum()


def test_inertia_needs_two_by_two_blocks_and_reads_the_lower_triangle() -> None:
    swap = np.array([[0.0, np.nan], [1.0, 0.0]])  # eigenvalues -1 and 1; no 1 x 1 pivot exists at threshold 0
    assert [inertia_count(swap, threshold) for threshold in (0.0, -2.0, 2.0)] == [1, 2, 0]


@pytest.mark.parametrize("to_chunk", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("first", [None, 97, 900])
@pytest.mark.parametrize(("m", "n"), [(1500, 300), (300, 1500)])
def test_a_device_finds_the_spectra_of_the_cpu(m, n, first, to_chunk, monkeypatch) -> None:
    monkeypatch.setattr(spectra, "DIRECT_ENTRIES", 0)
    matrix = (rng().normal(size=(m, n)) - 3).astype(np.float32)
    on_device = nested_singular_values(map(to_chunk, in_chunks(matrix)), n, first, make_gram=ON_DEVICE)
    for found, cpu in zip(on_device, nested_singular_values(in_chunks(matrix), n, first), strict=True):
        assert (found is None) == (cpu is None)
        if found is not None:
            assert np.abs(found.sigma**2 - cpu.sigma**2).max() <= found.noise_floor**2 + cpu.noise_floor**2
            assert found.method == f"{cpu.method} (cpu)"
            assert rank_report(found).metrics() == rank_report(cpu).metrics()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_are_summed_where_they_are_and_checked_by_row(dtype) -> None:
    rows = torch.from_numpy(rng().normal(size=(4000, 300))).to(dtype)
    gram_nn = ON_DEVICE(300)
    for chunk in rows.split(1300):
        gram_nn.add(chunk)
    assert gram_nn._block.dtype == dtype  # no copy in main memory, and none that is wider
    gram_nn._add_block()
    exact = rows.double().numpy().T @ rows.double().numpy()
    np.testing.assert_allclose(gram_nn.matrix.numpy(), exact, rtol=0, atol=1e-10)
    rows[3001, 7] = float("nan")
    with pytest.raises(DataError, match="row 3001, column 7 of the matrix is nan"):
        gram_singular_values(rows.split(1300), 300, make_gram=ON_DEVICE)
    with pytest.raises(DataError, match="float16"):
        gram_singular_values([rows.half()], 300, make_gram=ON_DEVICE)


def fail(values: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("CUSOLVER_STATUS_EXECUTION_FAILED")


WRONG = {
    "right": lambda values: values,
    "scaled": lambda values: values * (1 + 1e-8),  # caught by the trace
    "same sum": lambda values: torch.cat((values[:-2], values[-2:].mean().expand(2))),  # by the Frobenius norm
    "lost": lambda values: torch.cat((values[:100] * 0 + values[300], values[100:])).sort().values,  # by the inertia
    "failed": fail,
}


@pytest.mark.parametrize("case", WRONG)
def test_eigenvalues_that_a_device_gets_wrong_are_computed_by_the_cpu(case, monkeypatch) -> None:
    """200 singular values lie within 10 % of the tolerance; if right, they are trusted."""
    matrix, plain = crowded_matrix(), torch.linalg.eigvalsh
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda matrix: WRONG[case](plain(matrix)))
    found = gram_singular_values(in_chunks(matrix), 600, make_gram=ON_DEVICE)
    assert found.method == f"gram-of-columns (cpu{'' if case == 'right' else '; eigenvalues by the CPU'})"
    assert rank_report(found).metrics() == rank_report(gram_singular_values(in_chunks(matrix), 600)).metrics()
