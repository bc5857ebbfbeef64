"""Word similarity: rank correlation of the cosines of word vectors with human scores, on the field's benchmarks.

The protocol is that of Parthiban et al. 2021 (Figure 4, SM Tables 3 and 13), quirks included and named:
benchmark words are lower-cased but the vocabulary is not; rows of the word matrix are L2-normalised and 1e-6 is added
to every component before the cosine; a pair is dropped when either word is missing; of an ordered pair that occurs
twice the last score counts. Spearman's rho with tied ranks averaged. How many pairs were found always stands beside
the coefficient.

Suffixes: V vocabulary, D word-vector width, N scored pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from softmax_bottleneck.corpora import corpus
from softmax_bottleneck.corpora.language import SIMILARITY_FILE
from softmax_bottleneck.measuring.measure import made_by
from softmax_bottleneck.measuring.statistics import RESAMPLES, spearman
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.store.seeds import derive
from softmax_bottleneck.study import Run, Study, load_dataset
from softmax_bottleneck.study.datasets import OWN_BENCHMARK
from softmax_bottleneck.training.run_record import run_and_record, write_unusable

SHIFT = 1e-6  # added to every component of a normalised word vector, as published


@dataclass(frozen=True)
class Benchmark:
    """Word pairs with human scores, in the order of the file; words lower-cased."""

    name: str
    rows: tuple[tuple[str, str, float], ...]

    def scores(self) -> dict[tuple[str, str], float]:
        """Ordered pair -> score; of a pair that occurs twice the last score counts."""
        return {(first, second): score for first, second, score in self.rows}


def read_benchmark(path: Path, name: str | None = None) -> Benchmark:
    """Read `word1 word2 score` lines, separated by tabs or spaces; blank lines are skipped.

    Args:
        path: a UTF-8 text file, with any line ends.
        name: what to call the benchmark; the file's stem when left out.

    Raises:
        DataError: the file is missing, not UTF-8 or empty, or a line is malformed; file and line are named.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path} is missing: run the download step, or name a mirror folder that has it") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    lines = enumerate(text.split("\n"), start=1)
    rows = tuple(_parse(line, f"{path}:{number}") for number, line in lines if line.strip())
    if not rows:
        raise DataError(f"{path} holds no word pairs: expected lines of `word1 word2 score`")
    return Benchmark(name or path.stem, rows)


def _parse(line: str, place: str) -> tuple[str, str, float]:
    fields = line.split()
    if len(fields) != 3:
        raise DataError(f"{place}: {len(fields)} fields, expected 3 separated by tabs or spaces: word1 word2 score")
    try:
        score = float(fields[2])
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{place}: the score {fields[2]!r} is not a finite number")
    return fields[0].lower(), fields[1].lower(), score


@dataclass(frozen=True)
class WordSimResult:
    """One benchmark on one word matrix.

    Attributes:
        benchmark: its name.
        n_pairs: rows of the file.
        n_found: rows with both words in the vocabulary; n_pairs - n_found are the missing ones of SM Table 13.
        n_scored: distinct ordered pairs among these with usable vectors; the n of the coefficient.
        n_skipped: distinct ordered pairs left out because a vector is zero, nan or infinite.
        rho: Spearman's rho; None when there is none.
        low, high: bootstrap percentile interval over pairs at `level`; None when there is none.
        level, n_resamples: of the interval.
        reason: why there is no rho, in words with the coverage; empty otherwise.
    """

    benchmark: str
    n_pairs: int
    n_found: int
    n_scored: int
    n_skipped: int
    rho: float | None
    low: float | None
    high: float | None
    level: float
    n_resamples: int
    reason: str

    @property
    def coverage(self) -> float:
        """Share of the benchmark's rows that were found."""
        return self.n_found / self.n_pairs

    def to_json(self) -> dict[str, Any]:
        """A flat JSON object of everything."""
        return {**asdict(self), "coverage": self.coverage}


def evaluate(
    embedding_VD: NDArray[np.floating[Any]],
    words: Sequence[str],
    benchmark: Benchmark,
    *,
    seed: int = 0,
    n_resamples: int = RESAMPLES,
) -> WordSimResult:
    """Spearman's rho of cosines against a benchmark's scores, with coverage and a bootstrap interval.

    Args:
        embedding_VD: word vectors, one row per word of the vocabulary.
        words: the vocabulary, case kept.
        benchmark: pairs and scores.
        seed: of the bootstrap; every benchmark has its own random stream, so that none depends on the others.
        n_resamples: of the bootstrap.

    Raises:
        DataError: the number of rows is not the number of words.
    """
    if embedding_VD.ndim != 2 or len(embedding_VD) != len(words):
        raise DataError(
            f"word vectors have shape {embedding_VD.shape}, expected one row for each of {len(words)} words"
        )
    row_of = {word: row for row, word in enumerate(words)}
    found = {pair: score for pair, score in benchmark.scores().items() if row_of.keys() >= set(pair)}
    n_found = sum(row_of.keys() >= {first, second} for first, second, _ in benchmark.rows)
    rows_N2 = np.array([[row_of[first], row_of[second]] for first, second in found], dtype=np.int64).reshape(-1, 2)
    cosine_N = _cosines(embedding_VD, rows_N2)
    usable_N = np.isfinite(cosine_N)
    score_N = np.array(list(found.values()), dtype=np.float64)[usable_N]
    rng = np.random.default_rng(derive(seed, "bootstrap", benchmark.name))
    correlation = spearman(cosine_N[usable_N], score_N, rng, n_resamples)
    coverage = f"; {n_found} of {len(benchmark.rows)} pairs found"
    return WordSimResult(
        benchmark=benchmark.name,
        n_pairs=len(benchmark.rows),
        n_found=n_found,
        n_scored=correlation.n,
        n_skipped=int((~usable_N).sum()),
        rho=correlation.r,
        low=correlation.low,
        high=correlation.high,
        level=correlation.level,
        n_resamples=correlation.n_resamples,
        reason=correlation.reason and correlation.reason + coverage,
    )


def _cosines(embedding_VD: NDArray[np.floating[Any]], rows_N2: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cosine of each pair of rows, in float64 and as published; nan where a vector is zero, nan or infinite."""
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


# --- comparing models -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Wins:
    """On how many benchmarks one model's rho is strictly larger than another's, of how many where both have one."""

    wins: int
    compared: int


def win_matrix(rhos: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, Wins]]:
    """Wins of every model (outer key) over every other (inner key), Parthiban et al. 2021, Figure 4.

    A tie is a win for neither; a benchmark on which either model has no rho is not compared.
    """
    return {
        one: {other: _wins(mine, theirs) for other, theirs in rhos.items() if other != one}
        for one, mine in rhos.items()
    }


def _wins(mine: Mapping[str, float | None], theirs: Mapping[str, float | None]) -> Wins:
    pairs = [(rho, theirs.get(name)) for name, rho in mine.items()]
    both = [(left, right) for left, right in pairs if left is not None and right is not None]
    return Wins(wins=sum(left > right for left, right in both), compared=len(both))


# --- the step ---------------------------------------------------------------------------------------------------------
def wordsim(study: Study, path: str, say: Say) -> None:
    """Rank correlation of word-vector similarities with people's (or the language's own) judgements."""

    folder = study.store.run_folder(path)
    run, done = run_and_record(folder)
    parents = {"done.json": artefacts.sha256_file(folder / "done.json")}
    if done["status"] != "ok":
        write_unusable(folder / "wordsim.json", done, parents)
        return
    words = corpus.load_for(study, run).words
    with safe_open(artefacts.checked(folder / "model.safetensors"), framework="numpy") as file:
        untied = "body.embedding.weight" in file.keys()  # noqa: SIM118  # a file, not a mapping
        vectors = file.get_tensor("body.embedding.weight" if untied else "head.decoder.weight")
    found = {}
    for label, file_path in benchmark_files(study, run).items():
        parents[file_path.name] = artefacts.sha256_file(file_path)
        found[label] = evaluate(vectors, words, read_benchmark(file_path)).to_json()
    facts = {
        "status": "ok",
        "benchmarks": found,
        "provenance": provenance.block(parents, run_id=path.rpartition("-")[2], made_by=made_by("wordsim", study, run)),
    }
    artefacts.write_json(folder / "wordsim.json", facts)
    say(f"{path}: {len(found)} word-similarity benchmarks")


def benchmark_files(study: Study, run: Run) -> dict[str, Path]:
    """Return the word-similarity benchmarks of a run's dataset, label -> file."""
    named = study.datasets[run.dataset].wordsim
    if named is None:
        return {}
    if named == OWN_BENCHMARK:
        return {"known truth": study.store.corpus_folder(run.dataset) / SIMILARITY_FILE}
    files = load_dataset(named, study.file.resolve().parent).files
    return {entry.get("label", name): study.store.corpus_folder(named) / name for name, entry in files.items()}
