"""Singular values against LAPACK's SVD of the same matrix: streamed, nested, centred, and from factors."""

import math
import tracemalloc

import numpy as np
import pytest
import scipy.linalg
from known_matrices import in_chunks, log_probabilities, rng, with_spectrum
from softmax_bottleneck.ranks import (
    Gram,
    centred_singular_values,
    effective_rank,
    factored_singular_values,
    gram_singular_values,
    log_normalisers,
    nested_singular_values,
    press_rank,
    rank_report,
    singular_values,
    spectra,
)
from softmax_bottleneck.ranks.spectra import dense_singular_values
from softmax_bottleneck.store.errors import DataError, UserError

SHAPES = [(1, 1), (1, 7), (7, 1), (5, 40), (40, 5), (64, 64), (300, 700), (700, 300)]


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_singular_values_are_those_of_numpy(m, n, route) -> None:
    matrix = rng().normal(size=(m, n)) - 3
    found, expected = gram_singular_values(in_chunks(matrix), n), np.linalg.svd(matrix, compute_uv=False)
    assert (found.m, found.n, found.n_zero, len(found.sigma)) == (m, n, 0, min(m, n))
    # Eigenvalues are off by at most the square of the floor, which the spectrum states.
    assert np.abs(found.sigma**2 - expected**2).max() <= found.noise_floor**2 + 1e-14 * expected[0] ** 2
    assert found.noise_floor < 1e-6 * expected[0]
    assert found.method in ("svd", "gram-of-columns" if m > n // 2 else "gram-of-rows")


def test_chunk_sizes_and_buffers_do_not_matter() -> None:
    matrix = (rng().normal(size=(2600, 420)) - 8).astype(np.float32)

    def through_one_buffer(rows: int):
        buffer = np.empty((rows, 420), np.float32)
        for chunk in in_chunks(matrix, rows):
            buffer[: len(chunk)] = chunk
            yield buffer[: len(chunk)]
            buffer[:] = 7.0  # what a careless producer leaves behind

    whole = gram_singular_values([matrix], 420)
    for rows in (1, 256, 1000):
        np.testing.assert_array_equal(gram_singular_values(through_one_buffer(rows), 420).sigma, whole.sigma)
    fortran = gram_singular_values(in_chunks(np.asfortranarray(matrix)), 420)
    np.testing.assert_array_equal(fortran.sigma, whole.sigma)


def test_the_matrix_is_never_held_and_progress_counts_its_rows() -> None:
    base, seen = rng().normal(size=(500, 200)).astype(np.float32), list[int]()
    tracemalloc.start()
    gram_singular_values((base for _ in range(100)), 200, progress=seen.append)  # 50,000 x 200: 40 MB in float32
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6 and seen == list(range(500, 50_001, 500))


def test_the_stated_noise_floor_covers_what_is_noise(monkeypatch) -> None:
    monkeypatch.setattr(spectra, "DIRECT_ENTRIES", 0)
    for m, n, rank in ((50, 30, 5), (900, 300, 40)):
        found = gram_singular_values(in_chunks(with_spectrum(np.geomspace(1e4, 1e-1, rank), m, n)), n)
        assert (found.sigma[rank:] <= found.noise_floor).all()
        assert found.noise_floor > 1e-9 * found.sigma_max  # a claim of more than float64 has would be false


@pytest.mark.parametrize("first", [1, 97, 200, 2599])
@pytest.mark.parametrize(("m", "n"), [(2600, 220), (250, 700)])
def test_the_first_rows_and_all_rows_in_one_pass(m, n, first, route) -> None:
    """Compare both spectra with numpy's SVD, wherever the first part ends: held, streamed, or beyond the matrix."""
    matrix = rng().normal(size=(m, n)) - 3
    part, whole = nested_singular_values(in_chunks(matrix), n, first)
    assert (part is None) == (first >= m)
    for found, rows in ((part, matrix[:first]), (whole, matrix)):
        if found is not None:
            expected = np.linalg.svd(rows, compute_uv=False)
            assert (found.m, found.n, len(found.sigma)) == (*rows.shape, min(rows.shape))
            assert np.abs(found.sigma**2 - expected**2).max() <= found.noise_floor**2 + 1e-13 * expected[0] ** 2


@pytest.mark.parametrize("centring", ["none", "rows", "both"])
@pytest.mark.parametrize(("m", "n"), [(1, 4), (40, 7), (700, 300), (200, 900)])
def test_centred_spectra_are_those_of_the_centred_matrix(m, n, centring, route) -> None:
    matrix = (rng().normal(size=(m, n)) - 8 + rng(1).normal(size=n)).astype(np.float32)
    centred = matrix.astype(np.float64)
    for row in centred if centring != "none" else ():
        row -= math.fsum(row) / len(row)
    for column in centred.T if centring == "both" else ():
        column -= math.fsum(column) / len(column)
    expected = np.linalg.svd(centred, compute_uv=False)
    streamed = centred_singular_values(lambda: in_chunks(matrix), n, centring)
    for found in (streamed, singular_values(matrix, centring)):
        np.testing.assert_allclose(found.sigma**2, expected**2, rtol=0, atol=found.noise_floor**2 + 1e-12 * m * n)


@pytest.mark.parametrize(("centring", "rank"), [("none", 8), ("rows", 7), ("both", 6)])
def test_centring_takes_log_z_and_the_bias_from_the_rank(centring, rank) -> None:
    """The ranks are D + 2, D + 1 and D (Yang et al. 2018, section 2), from factors and from rows."""
    *factors, matrix = log_probabilities(900, 400, 6)
    factored = factored_singular_values(*factors, centring)
    streamed = centred_singular_values(lambda: in_chunks(matrix), 400, centring)
    assert factored.n_zero == 400 - rank
    np.testing.assert_allclose(factored.sigma, streamed.sigma[:rank], rtol=1e-7)
    assert press_rank(factored.sigma, 900, 400).rank == press_rank(streamed.sigma, 900, 400).rank == rank
    assert rank_report(factored).effective == rank_report(streamed).effective


@pytest.mark.parametrize(
    ("m", "n", "d"), [(300, 120, 8), (90, 400, 20), (6, 50, 8), (50, 7, 12), (1, 9, 3), (2600, 450, 30)]
)
def test_factors_give_the_spectrum_of_the_matrix(m, n, d) -> None:
    *factors, log_p = log_probabilities(m, n, d)
    found, expected = factored_singular_values(*factors), np.linalg.svd(log_p, compute_uv=False)
    assert len(found.with_zeros()) == min(m, n) and found.n_zero == max(0, min(m, n) - d - 2)
    np.testing.assert_allclose(found.with_zeros(), expected, rtol=1e-11, atol=1e-11 * expected[0])


def test_factors_whose_large_parts_cancel() -> None:
    """A shift of all words by a million times the signal cancels in ln P and does not disturb its spectrum."""
    h, w, b, _, log_p = log_probabilities(400, 200, 6)
    w, b = w + 1e6, b + 1e6
    found = factored_singular_values(h, w, b, log_normalisers(h, w, b))
    np.testing.assert_allclose(found.sigma, np.linalg.svd(log_p, compute_uv=False)[:8], rtol=1e-6)
    assert rank_report(found).press.rank == 8


def test_log_normalisers_by_blocks_and_at_extremes() -> None:
    h, w, b, log_z, _ = log_probabilities(37, 19, 4)
    np.testing.assert_allclose(log_normalisers(h, w, b), log_z, rtol=1e-14)
    np.testing.assert_allclose(log_normalisers(h, w, b, block_bytes=8 * 19 * 5), log_z, rtol=1e-14)
    far = log_normalisers(h * 1e4, w, b)  # exp of these logits overflows
    np.testing.assert_allclose(far, np.logaddexp.reduce(h * 1e4 @ w.T + b, axis=1), rtol=1e-12)


@pytest.mark.fault("D5")
@pytest.mark.parametrize("bad", [-math.inf, math.inf, math.nan])
def test_one_bad_number_is_an_error_that_names_its_row(bad) -> None:
    matrix = rng().normal(size=(300, 20)).astype(np.float32)
    matrix[217, 5] = bad
    for call in (lambda: gram_singular_values(in_chunks(matrix, 100), 20), lambda: dense_singular_values(matrix)):
        with pytest.raises(DataError, match=r"row 217, column 5 of the matrix is .*(inf|nan)"):
            call()
    for call in (lambda: press_rank([1.0, bad], 5, 5), lambda: effective_rank([1.0, bad], 1e-3)):
        with pytest.raises(DataError, match="no singular value"):
            call()


GOOD = np.ones((4, 3), np.float32)


@pytest.mark.parametrize(("chunks", "columns", "message"), [
    ([GOOD, GOOD[:, 1:]], 3, r"shape \(4, 2\), expected \(any, 3\)"),
    ([GOOD, GOOD.astype(np.float64)], 3, r"float64, expected .* \(before it: float32\)"),
    ([], 3, "0 x 3 numbers has no rank"),
    ([GOOD[:, :0]], 0, "4 x 0 numbers has no rank"),
])  # fmt: skip
def test_chunks_of_another_form_are_rejected(chunks, columns, message) -> None:
    with pytest.raises(DataError, match=message):
        gram_singular_values(chunks, columns)


@pytest.mark.fault("D7")
def test_too_little_memory_says_how_much_is_needed() -> None:
    with pytest.raises(UserError, match="10000000 columns needs a Gram matrix of 745058"):
        Gram(10_000_000)


@pytest.mark.fault("D7")
def test_an_svd_that_does_not_converge_is_tried_another_way(monkeypatch) -> None:
    matrix, plain_svd = rng().normal(size=(30, 20)), scipy.linalg.svd

    def stubborn(*args, lapack_driver="gesdd", **options):
        if lapack_driver == "gesdd":
            raise np.linalg.LinAlgError("SVD did not converge")
        return plain_svd(*args, lapack_driver=lapack_driver, **options)

    monkeypatch.setattr(scipy.linalg, "svd", stubborn)
    found = gram_singular_values([matrix], 20)
    assert found.method == "svd-gesvd"
    np.testing.assert_allclose(found.sigma, np.linalg.svd(matrix, compute_uv=False))
