"""Word similarity against published counts and wins, scipy, and the protocol written out word by word."""

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from softmax_bottleneck.measuring.wordsim import Benchmark, evaluate, read_benchmark
from softmax_bottleneck.statistics.correlations import Wins, win_matrix
from softmax_bottleneck.store.errors import DataError

PUBLISHED = Path(__file__).parents[2] / "report" / "published"
FILES = {  # benchmark as SM Table 13 calls it -> file
    **{"WS-353": "WS-353-ALL", "WS-353-SIM": "WS-353-SIM", "WS-353-REL": "WS-353-REL", "RG-65": "RG-65"},
    **{"MC-30": "MC-30", "MTurk-287": "MTurk-287", "MTurk-771": "MTurk-771", "MEN": "MEN-TR-3k", "YP-130": "YP-130"},
    **{"VERB-143": "VERB-143", "RW-STANFORD": "RW-STANFORD", "SimVerb-3500": "SimVerb-3500"},
    **{"SimLex-999": "SIMLEX-999"},
}
CORPORA = {"ptb": "ptb", "wt2": "wikitext-2"}


def published(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def bench(*rows: tuple[str, str, float], name: str = "toy") -> Benchmark:
    return Benchmark(name, tuple(rows))


@pytest.fixture(scope="module")
def vocabularies(mirror) -> dict[str, list[str]]:
    """Return the words of the three splits of each corpus, with <eos>."""
    splits = ("train", "valid", "test")
    return {
        key: sorted({w for s in splits for w in (mirror / folder / f"{s}.txt").read_text("utf-8").split()} | {"<eos>"})
        for key, folder in CORPORA.items()
    }


@pytest.mark.corpora
def test_missing_pairs_are_those_of_sm_table_13(mirror, vocabularies):
    rows = published("parthiban2021_sm_table13.csv")
    wanted = {(r["dataset"], r["condition"].removeprefix("benchmark=")): int(r["value"]) for r in rows}
    assert len(wanted) == 39
    flat = {key: np.ones((len(words), 2)) for key, words in vocabularies.items()}
    for label, file in FILES.items():
        benchmark = read_benchmark(mirror / "word-sim" / f"EN-{file}.txt")
        assert len(benchmark.rows) == wanted["wordsim", label]
        for key, words in vocabularies.items():
            result = evaluate(flat[key], words, benchmark, n_resamples=0)
            assert result["n_pairs"] - result["n_found"] == wanted[key, label], (key, label)


def test_wins_recomputed_from_sm_table_3_are_those_of_figure_4():
    rhos: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in published("parthiban2021_sm_table3.csv"):
        rhos[row["dataset"]][row["model"]][row["condition"]] = float(row["value"])
    wins = {dataset: win_matrix(models) for dataset, models in rhos.items()}
    figure = published("parthiban2021_figure4.csv")
    assert len(figure) == 2 * 6 * 5
    for row in figure:
        other = row["condition"].split(";")[0].removeprefix("wins over ")
        assert wins[row["dataset"]][row["model"]][other] == Wins(int(row["value"]), 13), row


def by_hand(vectors: dict[str, np.ndarray], rows: list[tuple[str, str, float]]) -> float:
    """Follow the published protocol, one pair at a time."""
    cosines, scores = [], []
    for first, second, score in rows:
        u, v = (vectors[w] / np.linalg.norm(vectors[w]) + 1e-6 for w in (first, second))
        cosines.append(u @ v / (np.linalg.norm(u) * np.linalg.norm(v)))
        scores.append(score)
    return stats.spearmanr(cosines, scores).statistic


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    n=st.integers(4, 30), width=st.integers(2, 6), scale=st.sampled_from([1e-30, 1.0, 1e30]), seed=st.integers(0, 99)
)
def test_rho_is_that_of_the_protocol_by_hand(n, width, scale, seed):
    r = np.random.default_rng(seed)
    words = [f"w{i}" for i in range(n)]
    vectors = r.normal(size=(n, width)) * scale
    rows = [(words[i], words[(i * 7 + 1) % n], float(r.integers(5))) for i in range(n)]
    result = evaluate(vectors, words, bench(*rows), n_resamples=0)
    if len({score for _, _, score in rows}) > 1:
        assert result["rho"] == pytest.approx(by_hand(dict(zip(words, vectors, strict=True)), rows), abs=1e-12)


def test_words_of_the_benchmark_are_lower_cased_and_those_of_the_vocabulary_are_not():
    words = ["cat", "dog", "Paris", "ant"]
    rows = [("cat", "dog", 1.0), ("cat", "ant", 2.0), ("dog", "ant", 3.0), ("cat", "paris", 4.0)]
    result = evaluate(np.random.default_rng(0).normal(size=(4, 3)), words, bench(*rows), n_resamples=0)
    assert (result["n_pairs"], result["n_found"], result["coverage"]) == (4, 3, 0.75)


def test_of_a_repeated_pair_the_last_score_counts_and_the_reverse_is_another_pair():
    words = ["a", "b", "c", "d"]
    vectors = np.random.default_rng(1).normal(size=(4, 3))
    rows = [("a", "b", 9.0), ("b", "c", 2.0), ("c", "d", 3.0), ("b", "a", 4.0), ("a", "b", 1.0)]
    result = evaluate(vectors, words, bench(*rows), n_resamples=0)
    assert (result["n_pairs"], result["n_found"], result["n_scored"]) == (5, 5, 4)
    assert result["rho"] == pytest.approx(by_hand(dict(zip(words, vectors, strict=True)), rows[1:]))


def test_the_interval_is_reproducible_covers_rho_and_is_independent_between_benchmarks():
    r = np.random.default_rng(3)
    words = [f"w{i}" for i in range(120)]
    vectors = r.normal(size=(120, 8))
    cosine = lambda i, j: vectors[i] @ vectors[j] / np.linalg.norm(vectors[i]) / np.linalg.norm(vectors[j])  # noqa: E731
    rows = [(words[i], words[i + 1], float(cosine(i, i + 1) + r.normal() * 0.3)) for i in range(0, 118)]
    one = evaluate(vectors, words, bench(*rows), seed=5)
    assert one == evaluate(vectors, words, bench(*rows), seed=5)
    assert one["low"] != evaluate(vectors, words, bench(*rows), seed=6)["low"]
    assert one["low"] != evaluate(vectors, words, bench(*rows, name="other"), seed=5)["low"]
    assert one["low"] < one["rho"] < one["high"]
    reference = stats.bootstrap(
        ([cosine(i, i + 1) for i in range(118)], [row[2] for row in rows]),
        lambda x, y: stats.spearmanr(x, y).statistic, paired=True, vectorized=False, method="percentile",
        n_resamples=600, rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    assert one["low"] == pytest.approx(reference.low, abs=0.04)
    assert one["high"] == pytest.approx(reference.high, abs=0.04)


@pytest.mark.fault("G6")
def test_no_rho_without_enough_pairs_says_so_with_the_coverage():
    rows = [("a", "b", 1.0), ("a", "c", 2.0), ("b", "zebra", 3.0)]
    none = evaluate(np.eye(2), ["x", "y"], bench(*rows))
    assert (none["rho"], none["low"], none["high"], none["n_found"], none["coverage"]) == (None, None, None, 0, 0.0)
    assert none["reason"] == "not computable: 0 pairs, at least 3 are needed; 0 of 3 pairs found"
    two = evaluate(np.eye(3), ["a", "b", "c"], bench(*rows))
    assert (two["rho"], two["n_scored"]) == (None, 2)
    assert "2 of 3 pairs found" in two["reason"]


@pytest.mark.fault("G9")
@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_vectors_that_are_zero_or_not_finite_are_skipped_and_counted(bad):
    words = ["a", "b", "c", "d", "e"]
    vectors = np.random.default_rng(0).normal(size=(5, 4))
    rows = [(p, q, float(i)) for i, (p, q) in enumerate(["ab", "bc", "ac", "bd", "ad", "ce", "ea", "de"])]
    clean = evaluate(vectors, words, bench(*[row for row in rows if "e" not in row]), n_resamples=0)
    vectors[4] = bad
    result = evaluate(vectors, words, bench(*rows), n_resamples=0)
    assert (result["n_found"], result["n_scored"], result["n_skipped"]) == (8, 5, 3)
    assert result["rho"] == clean["rho"]


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.fault("G7", "G8")
def test_tabs_spaces_line_ends_and_odd_words_are_read(tmp_path):
    text = '\ufeffTiger\tCat\t7.35\r\nnull NaN 1\n\n"quoted" true\t-2e-1\r\nMünchen NA 3'
    found = read_benchmark(write(tmp_path / "EN-toy.txt", text.encode()))
    assert found.name == "EN-toy"
    expected = [("tiger", "cat", 7.35), ("null", "nan", 1.0), ('"quoted"', "true", -0.2), ("münchen", "na", 3.0)]
    assert list(found.rows) == expected


@pytest.mark.fault("G7")
@pytest.mark.parametrize(("line", "what"), [
    ("one two", "2 fields, expected 3"), ("one two 3 4", "4 fields"), ("one;two;3", "1 fields"),
    ("one two high", "score 'high' is not a finite number"), ("one two nan", "score 'nan'"),
    ("one two inf", "score 'inf'"), ("word1 word2 score", "score 'score'"),
])  # fmt: skip
def test_a_malformed_line_is_named(tmp_path, line, what):
    path = write(tmp_path / "EN-bad.txt", f"a b 1\n\n{line}\nc d 2\n".encode())
    with pytest.raises(DataError, match=what) as caught:
        read_benchmark(path)
    assert "EN-bad.txt:3: " in str(caught.value)


@pytest.mark.fault("G6", "G7")
def test_files_that_are_no_benchmark_are_refused(tmp_path):
    with pytest.raises(DataError, match="is missing"):
        read_benchmark(tmp_path / "absent.txt")
    with pytest.raises(DataError, match="holds no word pairs"):
        read_benchmark(write(tmp_path / "empty.txt", b"\n \n"))
    with pytest.raises(DataError, match="not UTF-8"):
        read_benchmark(write(tmp_path / "latin.txt", "münchen stadt 3".encode("latin-1")))
