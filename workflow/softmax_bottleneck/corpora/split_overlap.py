"""Warnings about a corpus that looks wrong: its splits overlap, its files may be swapped, or its words are unknown.

Such a corpus is not rejected, because its owner may know better; the report repeats the warning. Published corpora have
declared token counts and hashes, so that swapped or duplicate files of a published corpus are rejected earlier.
"""

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.corpora.corpus import EOS, UNK, Corpus

LINE_WORDS = 8  # shorter lines are not compared, because they recur in any text: headings, empty lines, a few words
SHARE = 0.1  # largest share of common lines without a warning; in Penn Treebank and WikiText-2 it is at most 0.016

UNKNOWN = 0.2  # largest share of <unk> without a warning; in Penn Treebank and WikiText-2 it is at most 0.063


def split_overlap_warnings(corpus: Corpus) -> list[str]:
    """Return warnings about suspicious splits of a corpus; the list is empty if no split is suspicious.

    A split is suspicious in three cases:

    * It shares lines with another split: `overlap` of (valid, train), (test, train) or (test, valid) exceeds SHARE.
    * It is valid or test, and has more tokens than train.
    * More than UNKNOWN of its words are `<unk>`.
    """
    warnings = [
        f"{share:.0%} of the lines of {split} with {LINE_WORDS} words or more also occur in {other}"
        for split, other in (("valid", "train"), ("test", "train"), ("test", "valid"))
        if (share := overlap(corpus, split, other)) > SHARE
    ]
    for split in ("valid", "test"):
        if len(corpus.splits[split]) > len(corpus.train):
            warnings.append(f"{split} has more tokens than train: are two files swapped?")
    return warnings + [
        f"{share:.0%} of the words of {split} are {UNK}: {split} may be of another kind than train, or too short"
        for split, share in unknown_shares(corpus).items()
        if share > UNKNOWN
    ]


def unknown_shares(corpus: Corpus) -> dict[str, float]:
    """Return {split: share of `<unk>` among its words}; the end of a line is not a word."""
    ids = {word: corpus.words.index(word) if word in corpus.words else -1 for word in (EOS, UNK)}
    return {
        split: float((ids_T == ids[UNK]).sum() / (ids_T != ids[EOS]).sum()) for split, ids_T in corpus.splits.items()
    }


def overlap(corpus: Corpus, split: str, other: str) -> float:
    """Return the share of the lines of `split` that occur word for word in the split `other`.

    Only lines of at least LINE_WORDS words count. The share is 0 if `split` has no such lines.
    """
    end = corpus.words.index(EOS)
    lines = _lines(corpus.splits[split], end)
    known = set(_lines(corpus.splits[other], end))
    return sum(line in known for line in lines) / len(lines) if lines else 0.0


def _lines(ids_T: NDArray[np.int32], end: int) -> list[bytes]:
    ends = np.flatnonzero(ids_T == end)
    starts = [0, *(ends[:-1] + 1)] if len(ends) else []
    bounds = zip(starts, ends, strict=True)
    return [ids_T[start:stop].tobytes() for start, stop in bounds if stop - start >= LINE_WORDS]
