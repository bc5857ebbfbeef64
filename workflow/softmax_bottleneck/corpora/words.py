"""The words of text files, and the dictionary and token ids that follow from them.

Words are separated by ASCII spaces and tabs. Lines end with LF or CR LF, and `<eos>` is added to the end of every line.
The published data reader (AWD-LSTM, Merity et al. 2018, data.py) does the same, except that Unicode spaces separate
words there, too. Text that is not plain UTF-8 raises a DataError that names the file and the line.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import IO

import numpy as np

from softmax_bottleneck.corpora.corpus import EOS, SPLITS, UNK, Corpus
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.study import Dataset

MAX_LINE_BYTES = 64 << 20
WORD_BREAK = re.compile("[ \t]+")


def check_contexts(dataset: Dataset, test_tokens: int) -> None:
    """Raise UserError if the dataset requests ranks over more contexts than the test text has."""
    there = test_tokens - 1
    if (dataset.rank_contexts or 0) > there:
        raise UserError(
            f"{dataset.folder / dataset.name}.yaml: rank_contexts: {dataset.rank_contexts} are asked for,"
            f" and the test text has {there}; ask for so many or fewer"
        )


# --- words ----------------------------------------------------------------------------------------------------------
def read_corpus(name: str, folder: Path) -> Corpus:
    """Read the corpus of a folder with train.txt, valid.txt and test.txt.

    Raises:
        DataError: a file is missing or not plain UTF-8 text (`read_split` has the rules), a text has no words, two
            texts are equal, or valid or test has a word that train lacks although train has no `<unk>`.
    """
    return from_words(name, {split: read_split(folder / f"{split}.txt") for split in SPLITS})


def read_split(path: Path, max_line_bytes: int = MAX_LINE_BYTES) -> list[str]:
    """Return the words of a text file in order, with `<eos>` after every line (an empty line is one `<eos>`).

    Unicode spaces are part of words. A missing newline at the end of the file changes nothing.

    Raises:
        DataError: the file is missing or not UTF-8, or contains a byte-order mark, a NUL, a carriage return within a
            line, `<eos>`, or a line of more than `max_line_bytes` bytes.
    """
    try:
        with path.open("rb") as file:
            return words_of(file, str(path), max_line_bytes)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected a text file") from None


def words_of(file: IO[bytes], name: str, max_line_bytes: int = MAX_LINE_BYTES) -> list[str]:
    """Return the words of an open binary file in order, with `<eos>` after every line (an empty line is one `<eos>`).

    `name` is the file's name in error messages.

    Raises:
        DataError: the text is not UTF-8, or contains a byte-order mark, a NUL, a carriage return within a line,
            `<eos>`, or a line of more than `max_line_bytes` bytes.
    """
    words: list[str] = []
    # Two bytes more than the limit: for the line end, or to notice that the line is too long.
    for number, line in enumerate(iter(lambda: file.readline(max_line_bytes + 2), b""), start=1):
        content = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(content) > max_line_bytes:
            raise DataError(f"{name}:{number}: line is longer than {max_line_bytes} bytes; break the text into lines")
        found = [word for word in WORD_BREAK.split(decode_line(content, f"{name}:{number}")) if word]
        if EOS in found:
            raise DataError(
                f"{name}:{number}: the text holds {EOS}, which the reader adds itself; remove it from the text"
            )
        words += [*found, EOS]
    return words


def decode_line(line: bytes, where: str) -> str:
    """Return a line of a UTF-8 text; `where` is its file and number in error messages.

    Raises:
        DataError: the line is not UTF-8, begins with a byte-order mark, or contains a NUL or a carriage return.
    """
    if line.startswith(b"\xef\xbb\xbf"):
        raise DataError(f"{where}: begins with a byte-order mark; save the file as UTF-8 without BOM")
    for byte, words in ((0, "a NUL byte; save the file as UTF-8 text"), (13, r"a lone \r; end lines with \n")):
        if byte in line:
            raise DataError(f"{where}:{line.index(byte) + 1}: holds {words}")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}:{error.start + 1}: byte 0x{line[error.start]:02x} is not UTF-8; convert the file"
        ) from None


# --- dictionary -----------------------------------------------------------------------------------------------------
def from_words(name: str, splits: Mapping[str, Sequence[str]]) -> Corpus:
    """Return a corpus; word ids follow the order of first appearance in train.

    A word of valid or test that train lacks becomes `<unk>`. In the published corpora, train has all words of valid and
    test. Their ids are therefore those of the published data reader (Merity et al. 2018, data.py, class Dictionary).

    Args:
        name: name of the corpus.
        splits: for each of the keys "train", "valid" and "test" the words in order, with `<eos>` after every line.

    Raises:
        DataError: a split has no words, two splits are equal, or a word is not in train and train has no `<unk>`.
    """
    for split in SPLITS:
        if all(word == EOS for word in splits[split]):
            raise DataError(f"{name}: {split} holds no words; a corpus needs text in all of {', '.join(SPLITS)}")
    for split, other in combinations(SPLITS, 2):
        if splits[split] == splits[other]:
            raise DataError(f"{name}: {split} and {other} are the same text; give three different files")
    ids = {word: index for index, word in enumerate(dict.fromkeys(splits["train"]))}
    for split in ("valid", "test"):
        unknown = list(dict.fromkeys(word for word in splits[split] if word not in ids))
        if unknown and UNK not in ids:
            raise DataError(
                f"{name}: {split} holds {len(unknown)} words that train does not hold: {', '.join(unknown[:5])}; "
                f"replace rare words of all three files by {UNK}"
            )
    unk = ids.get(UNK, -1)
    streams = {
        split: np.fromiter((ids.get(word, unk) for word in splits[split]), np.int32, len(splits[split]))
        for split in SPLITS
    }
    return Corpus(name, tuple(ids), **streams)


def restrict(whole: Corpus, vocabulary_size: int, train_tokens: int, name: str = "") -> Corpus:
    """Return a corpus with a smaller dictionary and a shorter train split; valid and test keep their length.

    The most frequent words are kept, and all others become `<unk>`. Frequencies are counted in the whole train split,
    so that the dictionary does not depend on `train_tokens`. The shortened train may lack a few of the kept words.
    Among equally frequent words, the one that appears first stays. Ids are assigned anew, by first appearance in the
    whole train split.

    Args:
        whole: the corpus to reduce.
        vocabulary_size: number of words to keep, `<eos>` and `<unk>` included.
        train_tokens: number of tokens to keep at the start of train.
        name: name of the new corpus (default: that of `whole`).

    Raises:
        DataError: `train_tokens` is less than 2 or more than `whole` has, or `vocabulary_size` is less than 3 or more
            than `whole` has.
    """
    for key, value, least, most in (
        ("train_tokens", train_tokens, 2, len(whole.train)),
        ("vocabulary_size", vocabulary_size, 3, whole.vocabulary_size),
    ):
        if not least <= value <= most:
            raise DataError(f"{whole.name}: {key}: {value} is not between {least} and {most}")
    count_V = np.bincount(whole.train, minlength=whole.vocabulary_size)
    count_V[[whole.words.index(word) for word in (EOS, UNK) if word in whole.words]] = 0
    kept = np.argsort(-count_V, kind="stable")[: vocabulary_size - 2]  # ids are in order of first appearance
    keep = {whole.words[i] for i in kept} | {EOS}
    replaced = np.array([word if word in keep else UNK for word in whole.words], dtype=object)
    cut = from_words(name or whole.name, {split: replaced[ids].tolist() for split, ids in whole.splits.items()})
    return replace(cut, train=cut.train[:train_tokens])
