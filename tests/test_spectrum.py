"""The rank engine against LAPACK's SVD of the same matrix, exact constructions and published tolerances."""

from __future__ import annotations

import json
import math
import os
import tracemalloc
from contextlib import contextmanager
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from softmax_bottleneck.measuring import spectrum as spectrum_module
from softmax_bottleneck.ranks import (
    DeviceGram,
    Gram,
    Spectrum,
    centred_singular_values,
    effective_rank,
    factored_singular_values,
    gram_singular_values,
    inertia_count,
    log_normalisers,
    nested_singular_values,
    press_rank,
    rank_report,
    singular_values,
)
from softmax_bottleneck.ranks import gram as gram_module
from softmax_bottleneck.ranks import spectra as spectrum
from softmax_bottleneck.ranks.spectra import dense_singular_values
from softmax_bottleneck.ranks.spectrum import FLOAT32_EPS, FLOAT64_EPS
from softmax_bottleneck.store.errors import DataError, UserError

SHAPES = [(1, 1), (1, 7), (7, 1), (5, 40), (40, 5), (64, 64), (300, 700), (700, 300)]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def orthonormal(rows: int, columns: int, seed: int) -> np.ndarray:
    return np.linalg.qr(rng(seed).normal(size=(rows, columns)))[0]


def with_spectrum(sigma: np.ndarray, m: int, n: int, seed: int = 0) -> np.ndarray:
    """An m x n matrix with these singular values (the others are zero)."""
    left, right = orthonormal(m, len(sigma), seed), orthonormal(n, len(sigma), seed + 1)
    return (left * sigma) @ right.T


def in_chunks(matrix: np.ndarray, rows: int = 97):
    return (matrix[start : start + rows] for start in range(0, len(matrix), rows))


def log_probabilities(m: int, n: int, d: int, seed: int = 0):
    """Factors of a softmax layer and its matrix of log-probabilities by the plain formula, float64."""
    r = rng(seed)
    h, w, b = r.normal(size=(m, d)), r.normal(size=(n, d)), r.normal(size=n)
    logits = h @ w.T + b
    log_z = np.log(np.exp(logits).sum(1))
    return h, w, b, log_z, logits - log_z[:, None]


@pytest.fixture(params=["chosen", "gram"])
def route(request, monkeypatch) -> str:
    """Small matrices as they are treated by choice (SVD), and forced through a Gram matrix."""
    if request.param == "gram":
        monkeypatch.setattr(spectrum, "DIRECT_ENTRIES", 0)
    return request.param


# --- singular values ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_singular_values_are_those_of_numpy(m, n, route):
    matrix = rng().normal(size=(m, n)) - 3
    found = gram_singular_values(in_chunks(matrix), n)
    expected = np.linalg.svd(matrix, compute_uv=False)
    assert (found.m, found.n, found.n_zero, len(found.sigma)) == (m, n, 0, min(m, n))
    # Eigenvalues are off by at most the square of the floor, which the spectrum states.
    assert np.abs(found.sigma**2 - expected**2).max() <= found.noise_floor**2 + 1e-14 * expected[0] ** 2
    assert found.noise_floor < 1e-6 * expected[0]


def test_the_route_fits_the_shape():
    def method(m, n):
        return gram_singular_values(in_chunks(rng().normal(size=(m, n)).astype(np.float32)), n).method

    assert method(300, 200) == "svd"
    assert method(3000, 400) == "gram-of-columns"
    assert method(400, 3000) == "gram-of-rows"


def test_chunk_sizes_and_buffers_do_not_matter():
    matrix = (rng().normal(size=(2600, 420)) - 8).astype(np.float32)

    def through_one_buffer(rows):
        buffer = np.empty((rows, 420), np.float32)
        for chunk in in_chunks(matrix, rows):
            buffer[: len(chunk)] = chunk
            yield buffer[: len(chunk)]
            buffer[:] = 7.0  # what a careless producer leaves behind

    whole = gram_singular_values([matrix], 420)
    for rows in (1, 50, 256, 1000, 2600):
        other = gram_singular_values(through_one_buffer(rows), 420)
        np.testing.assert_array_equal(other.sigma, whole.sigma)
    fortran = gram_singular_values(in_chunks(np.asfortranarray(matrix)), 420)
    np.testing.assert_array_equal(fortran.sigma, whole.sigma)


def test_the_matrix_is_never_held():
    base = rng().normal(size=(500, 200)).astype(np.float32)
    tracemalloc.start()
    gram_singular_values((base for _ in range(100)), 200)  # 50,000 x 200: 40 MB in float32
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6


def test_the_stated_noise_floor_covers_what_is_noise(monkeypatch):
    monkeypatch.setattr(spectrum, "DIRECT_ENTRIES", 0)
    for m, n, rank in ((50, 30, 5), (900, 300, 40), (2000, 500, 100)):
        matrix = with_spectrum(np.geomspace(1e4, 1e-1, rank), m, n)
        found = gram_singular_values(in_chunks(matrix), n)
        assert (found.sigma[rank:] <= found.noise_floor).all()
        assert found.noise_floor > 1e-9 * found.sigma_max  # a claim of more than float64 has would be false


def test_progress_counts_rows():
    seen: list[int] = []
    gram_singular_values(in_chunks(rng().normal(size=(2500, 500)), 1000), 500, progress=seen.append)
    assert seen == [1000, 2000, 2500]


@pytest.mark.parametrize("first", [1, 97, 200, 600, 2599])
@pytest.mark.parametrize(("m", "n"), [(2600, 420), (250, 700)])
def test_the_first_rows_and_all_rows_in_one_pass(m, n, first, route):
    """Both spectra against numpy's SVD of the two matrices, wherever the first part ends: held, streamed, beyond."""
    matrix = rng().normal(size=(m, n)) - 3
    part, whole = nested_singular_values(in_chunks(matrix), n, first)
    for found, rows in ((part, matrix[:first]), (whole, matrix)):
        if found is None:
            assert first >= m
            continue
        expected = np.linalg.svd(rows, compute_uv=False)
        assert (found.m, found.n, len(found.sigma)) == (*rows.shape, min(rows.shape))
        assert np.abs(found.sigma**2 - expected**2).max() <= found.noise_floor**2 + 1e-13 * expected[0] ** 2
    assert (part is None) == (first >= m)
    alone = gram_singular_values(in_chunks(matrix), n)
    np.testing.assert_allclose(whole.sigma, alone.sigma, rtol=0, atol=whole.noise_floor)


def test_a_sum_goes_on_after_its_spectrum_without_a_second_matrix():
    gram = Gram(1000)
    gram.add(rng().normal(size=(512, 1000)))  # two full blocks
    before = np.tril(gram.matrix)
    tracemalloc.start()
    gram.spectrum_so_far(512, 1000, "float64")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(np.tril(gram.matrix), before)
    assert peak < 0.6 * gram.matrix.nbytes


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 40, 300])
def test_the_solver_reads_the_lower_triangle_and_leaves_the_upper_one_alone(n, stages, monkeypatch):
    """Over a band, and as where scipy's library cannot do that; numpy's solver beside it."""
    if stages == 1:
        monkeypatch.setattr(gram_module, "_lapack", lambda name: None)
    square = rng().normal(size=(n, n))
    symmetric = square + square.T
    half = np.asfortranarray(np.tril(symmetric) + np.triu(np.full_like(square, np.nan), 1))
    found = gram_module.lapack_eigenvalues(half)
    np.testing.assert_allclose(found, np.linalg.eigvalsh(symmetric), rtol=0, atol=1e-12)
    assert np.isnan(half[np.triu_indices(n, 1)]).all()


def test_a_library_has_as_many_threads_as_it_is_given():
    ask = gram_module._lapack("openblas_get_num_threads")
    before = ask()
    with gram_module.lapack_threads(before + 1):
        assert ask() == before + 1
    assert ask() == before


# --- on a device ----------------------------------------------------------------------------------------------------
ON_DEVICE = partial(DeviceGram, torch=torch, device="cpu")  # the way of a GPU


@pytest.mark.parametrize("first", [None, 97, 900])
@pytest.mark.parametrize(("m", "n"), [(1500, 400), (400, 1500)])
def test_a_device_finds_the_spectra_of_the_cpu(m, n, first, monkeypatch):
    monkeypatch.setattr(spectrum, "DIRECT_ENTRIES", 0)
    matrix = (rng().normal(size=(m, n)) - 3).astype(np.float32)
    pairs = zip(
        nested_singular_values(in_chunks(matrix), n, first, make_gram=ON_DEVICE),
        nested_singular_values(in_chunks(matrix), n, first),
        strict=True,
    )
    for found, cpu in pairs:
        assert (found is None) == (cpu is None)
        if found is not None:
            assert np.abs(found.sigma**2 - cpu.sigma**2).max() <= found.noise_floor**2 + cpu.noise_floor**2
            assert found.method == f"{cpu.method} (cpu)"
            assert rank_report(found).metrics() == rank_report(cpu).metrics()


def test_a_crowd_around_the_tolerance_is_counted_on_a_device():
    """200 singular values within 10 % of it: trusted, and counted as by the CPU."""
    matrix = crowded_matrix()
    found, cpu = (gram_singular_values(in_chunks(matrix), 600, make_gram=make) for make in (ON_DEVICE, Gram))
    assert found.method == "gram-of-columns (cpu)"
    assert rank_report(found).metrics() == rank_report(cpu).metrics()


def lost(values):
    """The smallest eigenvalues are another's: the sums over all hardly notice."""
    return torch.cat((values[:100] * 0 + values[300], values[100:])).sort().values


@pytest.mark.parametrize(
    "wrong",
    [
        lambda values: values * (1 + 1e-8),
        lambda values: torch.cat((values[:-2], values[-2:].mean().expand(2))),
        lost,
        lambda values: (_ for _ in ()).throw(RuntimeError("CUSOLVER_STATUS_EXECUTION_FAILED")),
    ],
    ids=["scaled", "same sum", "few too many", "failed"],
)
def test_eigenvalues_that_a_device_gets_wrong_are_found_by_the_cpu(wrong, monkeypatch):
    """Caught by the trace, by the Frobenius norm, by the inertia, and by the device's own error."""
    matrix = crowded_matrix()
    expected = gram_singular_values(in_chunks(matrix), 600)
    plain = torch.linalg.eigvalsh
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda matrix: wrong(plain(matrix)))
    found = gram_singular_values(in_chunks(matrix), 600, make_gram=ON_DEVICE)
    assert found.method == "gram-of-columns (cpu; eigenvalues by the CPU)"
    assert rank_report(found).metrics() == rank_report(expected).metrics()


def test_a_gpu_that_was_wrong_is_given_back_while_the_cpu_works(monkeypatch):
    """Its matrix is gone before the CPU begins, and so is the lease; all processors are at work. A sum goes on."""
    heard, sides = [], []

    @contextmanager
    def noted(*words):
        heard.append(("in", *words))
        yield
        heard.append(("out", *words))

    def solve(matrix):
        sides.append((len(matrix), grams[-1].matrix is None))
        return np.linalg.eigvalsh(matrix)

    def make(n):
        grams.append(spectrum_module.gram_maker(torch.device("meta"))(n))
        return grams[-1]

    grams = []
    monkeypatch.setattr(spectrum, "DIRECT_ENTRIES", 0)
    monkeypatch.setattr(DeviceGram, "_zeros", lambda self, n: torch.zeros(n, n, dtype=torch.float64))
    monkeypatch.setattr(DeviceGram, "_add_products", lambda self, rows: self.matrix.add_(torch.tensor(rows.T @ rows)))
    monkeypatch.setattr(DeviceGram, "_trusted", lambda *_: False)
    monkeypatch.setattr(spectrum_module, "lent_gpu", lambda: noted("lent"))
    monkeypatch.setattr(spectrum_module, "lapack_threads", lambda count: noted(count))
    monkeypatch.setattr(spectrum_module, "lapack_eigenvalues", solve)
    matrix = rng().normal(size=(900, 600)) - 3
    first, whole = nested_singular_values(in_chunks(matrix), 600, 500, make_gram=make)
    assert first is not None and whole.method == "gram-of-columns (meta; eigenvalues by the CPU)"
    np.testing.assert_allclose(whole.sigma, np.linalg.svd(matrix, compute_uv=False), rtol=1e-9)
    assert sides == 2 * [(600, True)]
    cores = len(os.sched_getaffinity(0))
    assert heard == 2 * [("in", "lent"), ("in", cores), ("out", cores), ("out", "lent")]


def test_a_device_without_a_factorisation_has_the_inertia_counted_by_the_cpu(monkeypatch):
    def refuse(matrix):
        raise RuntimeError("not implemented")

    monkeypatch.setattr(torch.linalg, "ldl_factor_ex", refuse)
    assert gram_singular_values(in_chunks(crowded_matrix()), 600, make_gram=ON_DEVICE).method.endswith("(cpu)")


# --- centring -------------------------------------------------------------------------------------------------------
def centred(matrix: np.ndarray, centring: str) -> np.ndarray:
    """By the definition, entry by entry."""
    matrix = matrix.astype(np.float64).copy()
    if centring != "none":
        for row in matrix:
            row -= math.fsum(row) / len(row)
    if centring == "both":
        for column in matrix.T:
            column -= math.fsum(column) / len(column)
    return matrix


@pytest.mark.parametrize("centring", ["none", "rows", "both"])
@pytest.mark.parametrize(("m", "n"), [(1, 4), (40, 7), (300, 200), (700, 300), (200, 900)])
def test_centred_spectra_are_those_of_the_centred_matrix(m, n, centring, route):
    matrix = (rng().normal(size=(m, n)) - 8 + rng(1).normal(size=n)).astype(np.float32)
    expected = np.linalg.svd(centred(matrix, centring), compute_uv=False)
    streamed = centred_singular_values(lambda: in_chunks(matrix), n, centring)
    for found in (streamed, singular_values(matrix, centring)):
        np.testing.assert_allclose(found.sigma**2, expected**2, rtol=0, atol=found.noise_floor**2 + 1e-12 * m * n)


@pytest.mark.parametrize(("centring", "rank"), [("none", 8), ("rows", 7), ("both", 6)])
def test_centring_takes_log_z_and_the_bias_from_the_rank(centring, rank):
    """D + 2, D + 1, D (Yang et al. 2018, section 2), from factors and from rows."""
    h, w, b, log_z, matrix = log_probabilities(900, 400, 6)
    factored = factored_singular_values(h, w, b, log_z, centring)
    streamed = centred_singular_values(lambda: in_chunks(matrix), 400, centring)
    assert factored.n_zero == 400 - rank
    np.testing.assert_allclose(factored.sigma, streamed.sigma[:rank], rtol=1e-7)
    assert press_rank(factored.sigma, 900, 400).rank == press_rank(streamed.sigma, 900, 400).rank == rank


# --- the tolerance --------------------------------------------------------------------------------------------------
def test_the_published_tolerances():
    # tol / sigma_max of the published matrices of Penn Treebank and WikiText-2
    assert press_rank([1.0], 82_429, 10_000).tolerance == pytest.approx(1.812e-5, rel=3e-4)
    assert press_rank([1.0], 33_320, 33_278).tolerance == pytest.approx(1.538e-5, rel=3e-4)


def crowded_matrix() -> np.ndarray:
    """2,000 x 600 in float32, of log-probability kind, with 200 singular values within 10 % of the Press tolerance."""
    m, n = 2000, 600
    tolerance = 0.5 * math.sqrt(m + n + 1) * FLOAT32_EPS * 1e4
    crowd = tolerance * np.linspace(0.9, 1.1, 200)
    sigma = np.concatenate(
        [[1e4], np.geomspace(300, 2 * tolerance, 199), crowd, tolerance * np.geomspace(0.5, 1e-3, 100)]
    )
    return with_spectrum(np.sort(sigma)[::-1], m, n).astype(np.float32)


@pytest.mark.fault("D6")
def test_a_crowd_around_the_tolerance_is_counted_as_by_svd():
    matrix = crowded_matrix()
    m, n = matrix.shape
    reference = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    tolerance = 0.5 * math.sqrt(m + n + 1) * reference[0] * FLOAT32_EPS
    assert (np.abs(reference / tolerance - 1) < 0.1).sum() >= 190
    found = rank_report(gram_singular_values(in_chunks(matrix), n))
    assert found.method == "gram-of-columns"
    assert found.press.rank == (reference > tolerance).sum()
    assert found.press.low == (reference > 1.01 * tolerance).sum()
    assert found.press.high == (reference > 0.99 * tolerance).sum()
    assert found.press.tolerance_sensitive and "tolerance-sensitive" in found.note
    assert found.floor_clear
    published_way = np.linalg.svd(matrix, compute_uv=False)  # float32 in, computed in float64, float32 out
    assert found.press.rank == (published_way > 0.5 * np.sqrt(m + n + 1) * published_way.max() * FLOAT32_EPS).sum()


def test_inertia_counts_the_same_crowd():
    matrix = crowded_matrix().astype(np.float64)
    press = press_rank(np.linalg.svd(matrix, compute_uv=False), *matrix.shape)
    assert inertia_count(matrix.T @ matrix, press.tolerance**2) == press.rank


def test_a_float32_gram_matrix_is_wrong():
    matrix = crowded_matrix()
    gram32 = (matrix.T @ matrix).astype(np.float64)
    sigma = np.sqrt(np.maximum(scipy.linalg.eigvalsh(gram32), 0))
    truth = press_rank(np.linalg.svd(matrix.astype(np.float64), compute_uv=False), *matrix.shape)
    assert abs(press_rank(sigma, *matrix.shape).rank - truth.rank) > 50


@pytest.mark.fault("D6")
def test_a_tolerance_below_the_floor_is_flagged():
    found = gram_singular_values(in_chunks(rng().normal(size=(3000, 400)) - 9), 400)
    assert rank_report(found).floor_clear and rank_report(found).note == ""
    tiny = rank_report(found, eps=FLOAT64_EPS)
    assert not tiny.floor_clear
    assert "noise floor" in tiny.note and "SVD" in tiny.note


def test_matrices_at_the_limit_of_the_direct_route_are_clear_of_the_floor():
    for m, n in ((1025, 1025), (1100, 1000), (2100, 500), (30_000, 35)):
        found = gram_singular_values(in_chunks(rng().normal(size=(m, n)) - 9, 1000), n)
        assert found.method.startswith("gram")
        assert rank_report(found).floor_clear


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    m=st.integers(1, 30),
    n=st.integers(1, 30),
    rank=st.integers(0, 30),
    noise=st.floats(0, 0.5),
    seed=st.integers(0, 99),
)
def test_rank_of_known_rank_plus_noise_below_the_tolerance(m, n, rank, noise, seed):
    rank = min(rank, m, n)
    sigma = np.geomspace(1.0, 1e-3, rank) if rank else np.zeros(1)
    tolerance = 0.5 * math.sqrt(m + n + 1) * FLOAT32_EPS * sigma[0]
    matrix = with_spectrum(sigma, m, n, seed)
    disturbance = rng(seed).normal(size=(m, n))
    matrix += disturbance * (noise * tolerance / np.linalg.norm(disturbance, 2))
    assert rank_report(gram_singular_values([matrix], n)).press.rank == rank


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    shape=st.sampled_from([(6, 9), (40, 12), (12, 40), (25, 25)]),
    exponent=st.integers(-20, 20),
    seed=st.integers(0, 99),
    forced=st.booleans(),
)
def test_permutations_and_scaling_change_no_rank(shape, exponent, seed, forced):
    m, n = shape
    matrix = with_spectrum(7.0 ** -np.arange(min(m, n)), m, n, seed)
    r = rng(seed)
    other = np.ldexp(matrix[r.permutation(m)][:, r.permutation(n)], exponent)
    with pytest.MonkeyPatch.context() as patch:
        if forced:
            patch.setattr(spectrum, "DIRECT_ENTRIES", 0)
        one, two = (rank_report(gram_singular_values([x], n)) for x in (matrix, other))
    assert one.metrics() == two.metrics()
    assert two.press.sigma_max == pytest.approx(math.ldexp(one.press.sigma_max, exponent))


# --- factors --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("m", "n", "d"), [(300, 120, 8), (90, 400, 20), (6, 50, 8), (50, 7, 12), (1, 9, 3), (2600, 450, 30)]
)
def test_factors_give_the_spectrum_of_the_matrix(m, n, d):
    h, w, b, log_z, log_p = log_probabilities(m, n, d)
    found = factored_singular_values(h, w, b, log_z)
    expected = np.linalg.svd(log_p, compute_uv=False)
    assert len(found.with_zeros()) == min(m, n) and found.n_zero == max(0, min(m, n) - d - 2)
    np.testing.assert_allclose(found.with_zeros(), expected, rtol=1e-11, atol=1e-11 * expected[0])
    assert (expected[d + 2 :] <= expected[0] * 1e-12).all()


def test_both_ways_find_d_plus_2_for_a_softmax():
    h, w, b, log_z, log_p = log_probabilities(2600, 450, 30)
    streamed = rank_report(gram_singular_values(in_chunks(log_p.astype(np.float32)), 450))
    factored = rank_report(factored_singular_values(h, w, b, log_z))
    assert streamed.press.rank == factored.press.rank == 30 + 2
    assert streamed.effective == factored.effective
    assert factored.n_zero == 450 - 32


def test_factors_whose_large_parts_cancel():
    """A shift shared by all words, a million times the signal, is no part of ln P and does not disturb its spectrum."""
    h, w, b, _, log_p = log_probabilities(400, 200, 6)
    w, b = w + 1e6, b + 1e6
    found = factored_singular_values(h, w, b, log_normalisers(h, w, b))
    expected = np.linalg.svd(log_p, compute_uv=False)
    np.testing.assert_allclose(found.sigma, expected[:8], rtol=1e-6)
    assert rank_report(found).press.rank == 8


def test_log_normalisers_by_blocks_and_at_extremes():
    h, w, b, log_z, _ = log_probabilities(37, 19, 4)
    np.testing.assert_allclose(log_normalisers(h, w, b), log_z, rtol=1e-14)
    np.testing.assert_allclose(log_normalisers(h, w, b, block_bytes=8 * 19 * 5), log_z, rtol=1e-14)
    far = log_normalisers(h * 1e4, w, b)  # exp of these logits overflows
    np.testing.assert_allclose(far, np.logaddexp.reduce(h * 1e4 @ w.T + b, axis=1), rtol=1e-12)


def test_factors_that_do_not_fit_are_named():
    h, w, b, log_z, _ = log_probabilities(10, 12, 3)
    with pytest.raises(DataError, match=r"bias has shape \(11,\), expected \(12,\)"):
        factored_singular_values(h, w, b[1:], log_z)
    with pytest.raises(DataError, match=r"weight has shape \(12, 2\), expected \(12, 3\)"):
        factored_singular_values(h, w[:, 1:], b, log_z)
    log_z[4] = math.inf
    with pytest.raises(DataError, match="row 4 of log Z is inf"):
        factored_singular_values(h, w, b, log_z)
    with pytest.raises(DataError, match="0 x 12 numbers has no rank"):
        factored_singular_values(h[:0], w, b, log_z[:0])


# --- refusals -------------------------------------------------------------------------------------------------------
@pytest.mark.fault("D5")
@pytest.mark.parametrize("bad", [-math.inf, math.inf, math.nan])
def test_one_bad_number_is_refused_and_its_row_named(bad):
    matrix = rng().normal(size=(300, 20)).astype(np.float32)
    matrix[217, 5] = bad
    with pytest.raises(DataError, match=r"row 217, column 5 of the matrix is .*(inf|nan)"):
        gram_singular_values(in_chunks(matrix, 100), 20)
    with pytest.raises(DataError, match="row 217"):
        dense_singular_values(matrix)
    with pytest.raises(DataError, match="no singular value"):
        press_rank([1.0, bad], 5, 5)
    with pytest.raises(DataError, match="no singular value"):
        effective_rank([1.0, bad], 1e-3)


def test_chunks_of_another_form_are_refused():
    good = np.ones((4, 3), np.float32)
    with pytest.raises(DataError, match=r"shape \(4, 2\), expected \(any, 3\)"):
        gram_singular_values([good, good[:, 1:]], 3)
    with pytest.raises(DataError, match=r"shape \(3,\)"):
        gram_singular_values([good[0]], 3)
    with pytest.raises(DataError, match=r"float64, expected .* \(before it: float32\)"):
        gram_singular_values([good, good.astype(np.float64)], 3)
    with pytest.raises(DataError, match="float16"):
        gram_singular_values([good.astype(np.float16)], 3)
    with pytest.raises(DataError, match="0 x 3 numbers has no rank"):
        gram_singular_values([], 3)
    with pytest.raises(DataError, match="0 x 3 numbers has no rank"):
        gram_singular_values([good[:0]], 3)
    with pytest.raises(DataError, match="4 x 0 numbers has no rank"):
        gram_singular_values([good[:, :0]], 0)
    with pytest.raises(DataError, match="expected one row"):
        press_rank([], 3, 3)
    with pytest.raises(DataError, match="no singular value"):
        press_rank([1.0, -1.0], 3, 3)


@pytest.mark.fault("D7")
def test_too_little_memory_says_how_much_is_needed():
    with pytest.raises(UserError, match="10000000 columns needs a Gram matrix of 745058"):
        Gram(10_000_000)


@pytest.mark.fault("D7")
def test_an_svd_that_does_not_converge_is_tried_another_way(monkeypatch):
    matrix = rng().normal(size=(30, 20))
    plain_svd = scipy.linalg.svd

    def stubborn(*args, lapack_driver="gesdd", **options):
        if lapack_driver == "gesdd":
            raise np.linalg.LinAlgError("SVD did not converge")
        return plain_svd(*args, lapack_driver=lapack_driver, **options)

    monkeypatch.setattr(scipy.linalg, "svd", stubborn)
    found = gram_singular_values([matrix], 20)
    assert found.method == "svd-gesvd"
    np.testing.assert_allclose(found.sigma, np.linalg.svd(matrix, compute_uv=False))


# --- ranks ----------------------------------------------------------------------------------------------------------
def test_press_counts_strictly_above_and_its_neighbours():
    tolerance = press_rank([1.0], 60, 40).tolerance
    at = press_rank([1.0, 1.5 * tolerance, 1.005 * tolerance, tolerance, 0.995 * tolerance, 0.5 * tolerance], 60, 40)
    assert (at.rank, at.low, at.high) == (3, 2, 5)
    assert at.tolerance_sensitive
    assert not press_rank([1.0, 1.5 * tolerance, 0.5 * tolerance], 60, 40).tolerance_sensitive


def test_a_matrix_of_zeros_has_rank_0_by_every_rule(route):
    report = rank_report(gram_singular_values([np.zeros((9, 4), np.float32)], 4))
    assert set(report.metrics().values()) == {0}
    assert report.note == ""


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=40), st.sampled_from([1e-3, 1e-4, 1e-5, 0.25]))
def test_effective_rank_is_the_definition_in_exact_arithmetic(sigma, epsilon):
    squares = [Fraction(value) ** 2 for value in sorted(sigma, reverse=True)]
    wanted = (1 - Fraction(epsilon)) * sum(squares)
    expected = next(k for k in range(len(squares) + 1) if sum(squares[:k]) >= wanted)
    assert effective_rank(sigma, epsilon) == expected


def test_effective_rank_does_not_lose_a_long_tail():
    """A million small squares are 1 % of the whole: added to the largest one by one in float32 they would vanish."""
    sigma = np.concatenate([[1.0], np.full(1_000_000, 1e-4)])
    assert effective_rank(sigma, 0.0198) == 1
    assert effective_rank(sigma, 1e-3) == pytest.approx(1 + 1_000_000 * (1 - 1e-3 * 1.01 / 0.01), abs=2)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -1.0, math.nan])
def test_effective_rank_refuses_a_senseless_epsilon(epsilon):
    with pytest.raises(UserError, match="between 0 and 1"):
        effective_rank([1.0], epsilon)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(n=st.integers(1, 25), threshold=st.floats(-3, 3), seed=st.integers(0, 999))
def test_inertia_counts_eigenvalues_of_indefinite_matrices(n, threshold, seed):
    matrix = rng(seed).normal(size=(n, n))
    matrix += matrix.T
    assert inertia_count(matrix, threshold) == (np.linalg.eigvalsh(matrix) > threshold).sum()


def test_inertia_needs_two_by_two_blocks_and_reads_the_lower_triangle():
    swap = np.array([[0.0, np.nan], [1.0, 0.0]])  # eigenvalues -1 and 1; no 1 x 1 pivot exists at threshold 0
    assert inertia_count(swap, 0.0) == 1
    assert inertia_count(swap, -2.0) == 2
    assert inertia_count(swap, 2.0) == 0


# --- what is written ------------------------------------------------------------------------------------------------
def test_a_spectrum_survives_npz(tmp_path):
    h, w, b, log_z, _ = log_probabilities(40, 30, 5)
    before = factored_singular_values(h, w, b, log_z)
    np.savez(tmp_path / "spectrum.npz", **before.to_arrays())
    with np.load(tmp_path / "spectrum.npz", allow_pickle=False) as arrays:
        after = Spectrum.from_arrays(arrays)
    np.testing.assert_array_equal(before.sigma, after.sigma)
    assert rank_report(before) == rank_report(after)


def test_a_report_is_json_with_the_published_names():
    report = rank_report(gram_singular_values([rng().normal(size=(9, 4)).astype(np.float32)], 4))
    written = json.loads(json.dumps(report.to_json()))
    assert written["rank_press"] == written["rank_press_low"] == written["rank_press_high"] == 4
    assert written["rank_eff_1e-3"] == written["rank_eff_1e-4"] == written["rank_eff_1e-5"] == 4
    assert (written["m"], written["n"], written["n_zero"]) == (9, 4, 0)
    assert (written["method"], written["dtype"], written["eps"]) == ("svd", "float32", 2.0**-23)
    assert written["tolerance"] == pytest.approx(0.5 * math.sqrt(14) * 2.0**-23 * written["sigma_max"])
    assert written["floor_clear"] is True and written["tolerance_sensitive"] is False
