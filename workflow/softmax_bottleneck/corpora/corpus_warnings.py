"""Warnings about a corpus that looks wrong: its splits share lines, two files may be swapped, or words are unknown.

Such a corpus is not rejected, because its owner may know better; the report repeats the warning. Published corpora have
declared token counts and hashes, so that swapped or duplicate files of a published corpus are rejected earlier.
"""

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.corpora.corpus import EOS, UNK, Corpus

LINE_WORDS = 8  # shorter lines are not compared, because they recur in any text: headings, empty lines, a few words
SHARE = 0.1  # largest share of common lines without a warning; in Penn Treebank and WikiText-2 it is at most 0.016
UNKNOWN = 0.2  # largest share of <unk> without a warning; in Penn Treebank and WikiText-2 it is at most 0.063


def corpus_warnings(corpus: Corpus) -> list[str]:
    """Return warnings about suspicious splits of a corpus; the list is empty if no split is suspicious.

    A split is suspicious in three cases:

    * More than a SHARE of its lines also occur in another split: valid in train, test in train, or test in valid.
    * It is valid or test, and has more tokens than train.
    * More than UNKNOWN of its words are `<unk>`.
    """
    end = corpus.words.index(EOS)
    lines = {split: _lines(ids_T, end) for split, ids_T in corpus.splits.items()}
    warnings = [
        f"{share:.0%} of the lines of {split} with {LINE_WORDS} words or more also occur in {other}"
        for split, other in (("valid", "train"), ("test", "train"), ("test", "valid"))
        if (share := _share_within(lines[split], lines[other])) > SHARE
    ]
    for split in ("valid", "test"):
        if len(corpus.splits[split]) > len(corpus.train):
            warnings.append(f"{split} has more tokens than train: are two files swapped?")
    for split, share in unknown_shares(corpus).items():
        if share > UNKNOWN:
            kind = "" if split == "train" else " of another kind than train, or"
            warnings.append(f"{share:.0%} of the words of {split} are {UNK}: {split} may be{kind} too short")
    return warnings


def unknown_shares(corpus: Corpus) -> dict[str, float]:
    """Return {split: share of `<unk>` among its words}; the end of a line is not a word."""
    end, unknown = (corpus.words.index(word) if word in corpus.words else -1 for word in (EOS, UNK))
    return {split: float((ids == unknown).sum() / max((ids != end).sum(), 1)) for split, ids in corpus.splits.items()}


def _share_within(lines: list[bytes], others: list[bytes]) -> float:
    """Return the share of `lines` that are among `others`; 0 if there are no lines."""
    known = set(others)
    return sum(line in known for line in lines) / max(len(lines), 1)


def _lines(ids_T: NDArray[np.int32], end: int) -> list[bytes]:
    """Return each line of at least LINE_WORDS words, with its `<eos>`, as bytes."""
    lines = np.split(ids_T, np.flatnonzero(ids_T == end) + 1)[:-1]
    return [line.tobytes() for line in lines if len(line) > LINE_WORDS]
