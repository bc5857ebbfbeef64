"""Word similarity: rank correlation of the cosines of word vectors with human scores, on the field's benchmarks.

The protocol is that of Parthiban et al. 2021 (Figure 4, SM Tables 3 and 13), with its quirks. Benchmark words are
lower-cased, but the vocabulary is not. Word vectors are scaled to unit length, and 1e-6 is added to every component
before the cosine is computed. A pair is dropped if the vocabulary lacks one of its words. If a file has the same pair
twice in the same order, the last score counts. The correlation is Spearman's rho (ties get their average rank).

Suffixes: V vocabulary, D word-vector width, N pairs found (words in the vocabulary, repetitions removed).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from softmax_bottleneck.corpora import corpus
from softmax_bottleneck.corpora.language import SIMILARITY_FILE
from softmax_bottleneck.measuring.computed import Computed
from softmax_bottleneck.statistics.correlations import RESAMPLES, spearman
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study import Run, Study
from softmax_bottleneck.study.datasets import OWN_BENCHMARK

SHIFT = 1e-6  # added to every component of a normalised word vector, as published


@dataclass(frozen=True)
class Benchmark:
    """A word-similarity benchmark: its name, and rows (first word, second word, human score) in the file's order.

    The words are lower-cased.
    """

    name: str
    rows: tuple[tuple[str, str, float], ...]


def read_benchmark(path: Path) -> Benchmark:
    """Read a benchmark from a UTF-8 file of lines `word1 word2 score`, separated by tabs or spaces.

    Blank lines are skipped. The name of the benchmark is the file's stem.

    Raises:
        DataError: the file is missing, not UTF-8 or empty, or a line is malformed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path} is missing: run the download step, or name a mirror folder that has it") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        fields, place = line.split(), f"{path}:{number}"
        if not fields:
            continue
        if len(fields) != 3:
            raise DataError(f"{place}: {len(fields)} fields, expected 3 separated by tabs or spaces: word1 word2 score")
        try:
            score = float(fields[2])
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise DataError(f"{place}: the score {fields[2]!r} is not a finite number")
        rows.append((fields[0].lower(), fields[1].lower(), score))
    if not rows:
        raise DataError(f"{path} holds no word pairs: expected lines of `word1 word2 score`")
    return Benchmark(path.stem, tuple(rows))


def evaluate(
    embedding_VD: NDArray[np.floating[Any]],
    words: Sequence[str],
    benchmark: Benchmark,
    *,
    seed: int = 0,
    n_resamples: int = RESAMPLES,
) -> dict[str, Any]:
    """Return Spearman's rho between the cosines of word vectors and the scores of a benchmark.

    Args:
        embedding_VD: word vectors, one row per word of the vocabulary.
        words: the vocabulary, with upper and lower case.
        benchmark: word pairs and scores.
        seed: seed of the bootstrap, which draws different random numbers for every benchmark.
        n_resamples: number of bootstrap resamples.

    Returns:
        The dict that wordsim.json stores for this benchmark, with these keys:

        * benchmark, n_pairs: name of the benchmark; number of pairs in the file, repetitions included.
        * n_found: number of these pairs whose words are both in the vocabulary. SM Table 13 prints n_pairs - n_found.
        * coverage: n_found / n_pairs.
        * n_skipped: number of found pairs, each counted once, with a word vector that is zero, nan or infinite.
        * n_scored: number of all other found pairs, each counted once, from which rho is computed.
        * rho, low, high: the coefficient and the bounds of its bootstrap interval, or None (see `Correlation`).
        * level, n_resamples: confidence level of the interval, and number of bootstrap resamples.
        * reason: text that says why rho is None, and how many pairs were found; empty if rho is a number.

    Raises:
        DataError: the number of word vectors is not the number of words.
    """
    if embedding_VD.ndim != 2 or len(embedding_VD) != len(words):
        raise DataError(
            f"word vectors have shape {embedding_VD.shape}, expected one row for each of {len(words)} words"
        )
    row_of = {word: row for row, word in enumerate(words)}
    rows = [row for row in benchmark.rows if row_of.keys() >= {row[0], row[1]}]
    score_of = {(first, second): score for first, second, score in rows}  # of a repeated pair the last score counts
    rows_N2 = np.array([[row_of[first], row_of[second]] for first, second in score_of], dtype=np.int64).reshape(-1, 2)
    cosine_N = _cosines(embedding_VD, rows_N2)
    usable_N = np.isfinite(cosine_N)
    score_N = np.array(list(score_of.values()), dtype=np.float64)[usable_N]
    rng = np.random.default_rng(derive(seed, "bootstrap", benchmark.name))
    correlation = spearman(cosine_N[usable_N], score_N, rng, n_resamples)
    n_found, n_pairs = len(rows), len(benchmark.rows)
    return {
        "benchmark": benchmark.name,
        "n_pairs": n_pairs,
        "n_found": n_found,
        "coverage": n_found / n_pairs,
        "n_scored": correlation.n,
        "n_skipped": int((~usable_N).sum()),
        "rho": correlation.r,
        **{key: getattr(correlation, key) for key in ("low", "high", "level", "n_resamples")},
        "reason": correlation.reason and f"{correlation.reason}; {n_found} of {n_pairs} pairs found",
    }


def _cosines(embedding_VD: NDArray[np.floating[Any]], rows_N2: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the cosine [N] of the two word vectors of each pair, with the published shift of 1e-6.

    `rows_N2` holds, for each pair, the rows of its two words in `embedding_VD`. The cosine is nan if one of the vectors
    is zero, nan or infinite.
    """
    used, place_N2 = np.unique(rows_N2, return_inverse=True)
    vectors = embedding_VD[used].astype(np.float64)
    unsound = ~np.isfinite(vectors).all(1)
    vectors[unsound] = 0.0
    vectors /= np.maximum(np.abs(vectors).max(1, initial=0.0, keepdims=True), np.finfo(np.float64).tiny)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unsound |= norms[:, 0] == 0
    shifted = vectors / np.where(norms == 0, 1.0, norms) + SHIFT
    unit = shifted / np.linalg.norm(shifted, axis=1, keepdims=True)
    unit[unsound] = np.nan
    first, second = unit[place_N2.reshape(-1, 2).T]
    return np.asarray(np.einsum("nd,nd->n", first, second))


# --- the step ---------------------------------------------------------------------------------------------------------
def wordsim(study: Study, run: Run, _: Mapping[str, Any]) -> Computed:
    """Compare the word vectors of a trained run with the word-similarity benchmarks of its dataset.

    The word vectors are the rows of the body's input embedding, which may be tied to the decoder. The benchmark of a
    synthetic language has the exact similarities of its words instead of human scores. The third argument, which all
    measuring steps get, is not used.

    Returns:
        A `Computed`, whose `files` has the content of wordsim.json: {"benchmarks": {label: scores}}. The caller writes
        the file. A label is the benchmark's name in tables. The scores are a dict with rho, its interval and the
        numbers of pairs, from `evaluate`.

    Raises:
        DataError: the weights are missing or damaged, or a benchmark file is missing or malformed.
    """
    words = corpus.load_for(study, run).words
    weights = artefacts.checked(study.store.run_folder(run.path) / "model.safetensors")
    with safe_open(weights, framework="numpy") as file:
        untied = "body.embedding.weight" in file.keys()  # noqa: SIM118  # a file, not a mapping
        vectors = file.get_tensor("body.embedding.weight" if untied else "head.decoder.weight")
    benchmarks = {label: read_benchmark(path) for label, path in benchmark_files(study, run).items()}
    scores = {label: evaluate(vectors, words, benchmark) for label, benchmark in benchmarks.items()}
    return Computed({"wordsim.json": {"benchmarks": scores}}, {}, f"{len(scores)} word-similarity benchmarks")


def benchmark_files(study: Study, run: Run) -> dict[str, Path]:
    """Return {label: file} of the word-similarity benchmarks of a run's dataset; empty if the dataset declares none.

    The label is the name of the benchmark in tables. It comes from the benchmark dataset's YAML file, under the key
    `label` of the benchmark file; without this key, the label is the file's name. A synthetic language may have a
    single benchmark from its own distribution, with the label `known truth`.
    """
    named = study.datasets[run.dataset].wordsim
    if named is None:
        return {}
    if named == OWN_BENCHMARK:
        return {"known truth": study.store.corpus_folder(run.dataset) / SIMILARITY_FILE}
    files = study.dataset(named).files
    return {entry.get("label", name): study.store.corpus_folder(named) / name for name, entry in files.items()}
