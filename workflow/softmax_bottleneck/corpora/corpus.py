"""A corpus (token ids of train, valid and test over one dictionary): saving, loading, batching and simple baselines.

Shapes: T tokens of a stream, L rows of a batched stream, B columns, V words.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.study import Run, Study

EOS = "<eos>"
UNK = "<unk>"
SPLITS = ("train", "valid", "test")
VOCABULARY_FILE = "vocabulary.json"


@dataclass(frozen=True, eq=False)
class Corpus:
    """The token ids of the three splits over one dictionary.

    Attributes:
        name: name of the corpus.
        words: the dictionary; `words[id]` is the word of an id.
        train, valid, test: token ids [T] of each split; `<eos>` ends every line.
    """

    name: str
    words: tuple[str, ...]
    train: NDArray[np.int32]
    valid: NDArray[np.int32]
    test: NDArray[np.int32]

    @property
    def vocabulary_size(self) -> int:
        """The number of words in the dictionary, which includes `<eos>` and may include `<unk>`."""
        return len(self.words)

    @property
    def splits(self) -> dict[str, NDArray[np.int32]]:
        """The three token streams by name, in the order train, valid, test."""
        return {split: getattr(self, split) for split in SPLITS}


def token_sha256(corpus: Corpus) -> str:
    """Return the hex sha256 of the words of all splits, which does not depend on file formats or token ids.

    The hash covers train, valid and test in this order: each word in UTF-8 followed by one space, each split ended by a
    newline. No word contains a space or a newline.
    """
    digest = hashlib.sha256()
    encoded = np.array([f"{word} ".encode() for word in corpus.words], dtype=object)
    for ids in corpus.splits.values():
        digest.update(b"".join(encoded[ids]) + b"\n")
    return digest.hexdigest()


def counts_and_hash(corpus: Corpus) -> dict[str, Any]:
    """Return token counts, vocabulary size and hash of a corpus.

    The keys are `tokens` ({split: number}), `vocabulary_size` and `token_sha256` (the hash of all words), as in the
    entry `expected` of a dataset's YAML.
    """
    return {
        "tokens": {split: len(ids) for split, ids in corpus.splits.items()},
        "vocabulary_size": corpus.vocabulary_size,
        "token_sha256": token_sha256(corpus),
    }


def check_expected(corpus: Corpus, expected: Mapping[str, Any]) -> None:
    """Compare a corpus with its declared counts and hash.

    `expected` has some or all of the keys `tokens` ({split: number}), `vocabulary_size` and `token_sha256`. What is
    missing is not checked.

    Raises:
        DataError: a value differs.
    """
    counted = counts_and_hash(corpus)
    pairs = [(f"{split} tokens", counted["tokens"][split], want) for split, want in expected.get("tokens", {}).items()]
    pairs += [(key, counted[key], expected[key]) for key in ("vocabulary_size", "token_sha256") if key in expected]
    for what, got, want in pairs:
        if got != want:
            raise DataError(f"{corpus.name}: {what}: expected {want}, got {got}; this is not the declared text")


# --- streams --------------------------------------------------------------------------------------------------------
def batchify(ids_T: NDArray[np.int32], batch_size: int) -> NDArray[np.int32]:
    """Lay out a stream as B columns that are read in parallel (awd-lstm utils.py, batchify).

    Args:
        ids_T: token ids.
        batch_size: B. The last T mod B tokens are dropped.

    Returns:
        ids_LB with L = T // B; ids_LB[:, b] is the b-th of B consecutive parts of the stream.

    Raises:
        DataError: there are fewer than two rows, i.e. one input and one target.
    """
    rows = len(ids_T) // batch_size
    if rows < 2:
        raise DataError(
            f"a corpus split of {len(ids_T)} tokens is too short: need >= {2 * batch_size} tokens "
            f"(batch size {batch_size} x 2); use a smaller batch or more text"
        )
    return np.ascontiguousarray(ids_T[: rows * batch_size].reshape(batch_size, rows).T)


# --- baselines ------------------------------------------------------------------------------------------------------
def unigram_perplexity(corpus: Corpus) -> float:
    """Return the test perplexity of a unigram model, P(w) = (c(w) + 1) / (T + V) (Laplace's rule).

    c(w) is the count of w among the T tokens of train, and V is the vocabulary size. The predicted tokens are all test
    tokens after the first, as for a model that reads the whole test text.
    """
    count_V = np.bincount(corpus.train, minlength=corpus.vocabulary_size) + 1.0
    law_V: NDArray[np.float64] = count_V / count_V.sum()
    return float(np.exp(-np.log(law_V[corpus.test[1:]]).mean()))


# --- artefacts ------------------------------------------------------------------------------------------------------
def save(corpus: Corpus, folder: Path, parents: Mapping[str, str] | None = None, tokens_id: str = "") -> None:
    """Write the token ids to {train,valid,test}.npy and the dictionary to vocabulary.json.

    The keys of vocabulary.json are `name`, `words` (the dictionary), `tokens_id`, `tokens` ({split: number}),
    `vocabulary_size`, `token_sha256`, and `provenance` (versions, hardware, and the hashes `parents`).

    Args:
        corpus: the corpus.
        folder: folder of the new files.
        parents: file name -> sha256 of each file from which the corpus was made (default: none).
        tokens_id: identifier of the dataset and the tokenising code, `Dataset.tokens_id` (default: none).
    """
    for split, ids in corpus.splits.items():
        artefacts.write_npy(folder / f"{split}.npy", ids)
    facts = {"name": corpus.name, "words": list(corpus.words), "tokens_id": tokens_id, **counts_and_hash(corpus)}
    artefacts.write_json(folder / VOCABULARY_FILE, facts | {"provenance": provenance.block(parents)})


def load_for(study: Study, run: Run) -> Corpus:
    """Load the corpus of a run.

    Raises:
        DataError: a file is missing or damaged, or the tokens were made from another version of the dataset or by
            another version of the tokenising code.
    """
    return load(study.store.tokens_folder(run.dataset), study.datasets[run.dataset].tokens_id)


def load(folder: Path, tokens_id: str | None = None) -> Corpus:
    """Load a corpus from {train,valid,test}.npy (memory-mapped token ids) and vocabulary.json in a folder.

    `tokens_id` is the expected identifier of the dataset and the tokenising code (None: any).

    Raises:
        DataError: a file is missing or damaged, an id is not in the dictionary, the counts or the hash of the tokens
            differ from those in vocabulary.json, or the saved identifier differs from `tokens_id`.
    """
    facts = artefacts.read_json(folder / VOCABULARY_FILE)
    streams = {split: artefacts.read_npy(folder / f"{split}.npy") for split in SPLITS}
    corpus = Corpus(facts["name"], tuple(facts["words"]), **streams)
    if (
        tokens_id not in (None, facts.get("tokens_id"))
        or any(((ids < 0) | (ids >= corpus.vocabulary_size)).any() for ids in streams.values())
        or facts != facts | counts_and_hash(corpus)
    ):
        raise DataError(f"{folder}: files of different texts or of other code; run the step tokenise again")
    return corpus
