"""Text files -> dictionary -> token ids -> batches, and the fetching of the files.

What counts as a word follows the published data reader (AWD-LSTM, Merity et al. 2018, data.py), made strict: words are
separated by ASCII space or tab, lines end at `\\n` (or `\\r\\n`), every line ends with `<eos>`, and whatever is not
plain UTF-8 text is refused with file and line.

Shapes: T tokens of a stream, L rows of a batched stream, B columns, V words.
"""

from __future__ import annotations

import hashlib
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.errors import DataError

EOS = "<eos>"
UNK = "<unk>"
SPLITS = ("train", "valid", "test")
MAX_LINE_BYTES = 64 << 20
BLOCK_BYTES = 1 << 16
VOCABULARY_FILE = "vocabulary.json"

_WORD_BREAK = re.compile("[ \t]+")


@dataclass(frozen=True)
class Corpus:
    """Token ids of the three splits over one dictionary; `<eos>` ends every line. words[id] is the word."""

    name: str
    words: tuple[str, ...]
    train: NDArray[np.int32]
    valid: NDArray[np.int32]
    test: NDArray[np.int32]

    @property
    def vocabulary_size(self) -> int:
        """Number of words, `<eos>` and `<unk>` included."""
        return len(self.words)

    @property
    def splits(self) -> dict[str, NDArray[np.int32]]:
        """The three streams by name, in the order train, valid, test."""
        return {"train": self.train, "valid": self.valid, "test": self.test}


# --- reading --------------------------------------------------------------------------------------------------------
def read_split(path: Path, max_line_bytes: int = MAX_LINE_BYTES) -> list[str]:
    """Words of a text file in order, `<eos>` after every line (an empty line is one `<eos>`).

    Unicode spaces are part of words. A missing newline at the end of the file changes nothing.

    Raises:
        DataError: no such file, not UTF-8, a byte-order mark, a NUL, `<eos>` in the text, or a line that is too long.
    """
    words: list[str] = []
    for number, line in enumerate(_lines(path, max_line_bytes), start=1):
        found = [word for word in _WORD_BREAK.split(_text(line, f"{path}:{number}")) if word]
        if EOS in found:
            raise DataError(
                f"{path}:{number}: the text holds {EOS}, which the reader adds itself; remove it from the text"
            )
        words += found
        words.append(EOS)
    return words


def _lines(path: Path, max_line_bytes: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(
                max_line_bytes + 2
            ):  # room for the newline, and one more to notice a longer line
                number += 1
                content = line.removesuffix(b"\n").removesuffix(b"\r")
                if len(content) > max_line_bytes:
                    raise DataError(
                        f"{path}:{number}: line is longer than {max_line_bytes} bytes; break the text into lines"
                    )
                yield content
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected a text file") from None


def _text(line: bytes, where: str) -> str:
    if line.startswith(b"\xef\xbb\xbf"):
        raise DataError(f"{where}: begins with a byte-order mark; save the file as UTF-8 without BOM")
    if b"\0" in line:
        raise DataError(f"{where}:{line.index(0) + 1}: holds a NUL byte; save the file as UTF-8 text")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}:{error.start + 1}: byte 0x{line[error.start]:02x} is not UTF-8; convert the file"
        ) from None


# --- dictionary -----------------------------------------------------------------------------------------------------
def tokenise(name: str, splits: Mapping[str, Sequence[str]]) -> Corpus:
    """Give words their ids, in order of first appearance (Merity et al. 2018, data.py, class Dictionary).

    Words of valid or test that train does not hold become `<unk>` where train holds `<unk>`; the published corpora have
    no such words.

    Args:
        name: used in messages.
        splits: words of `train`, `valid` and `test` as read_split returns them.

    Raises:
        DataError: a split without words, two equal splits, or words unknown to train in a corpus without `<unk>`.
    """
    _refuse_empty_or_equal(name, splits)
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


def _refuse_empty_or_equal(name: str, splits: Mapping[str, Sequence[str]]) -> None:
    for split in SPLITS:
        if all(word == EOS for word in splits[split]):
            raise DataError(f"{name}: {split} holds no words; a corpus needs text in all of {', '.join(SPLITS)}")
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        if splits[one] == splits[other]:
            raise DataError(f"{name}: {one} and {other} are the same text; give three different files")


def read_corpus(name: str, folder: Path, max_line_bytes: int = MAX_LINE_BYTES) -> Corpus:
    """The corpus of a folder with train.txt, valid.txt and test.txt (DataError as read_split and tokenise)."""
    return tokenise(name, {split: read_split(folder / f"{split}.txt", max_line_bytes) for split in SPLITS})


def token_sha256(corpus: Corpus) -> str:
    """Canonical hash of the token stream: what the corpus says, whatever files it came in.

    Hex sha256 over train, valid and test in this order; each word in UTF-8 followed by one space, each split ended by a
    newline (neither can be inside a word).
    """
    digest = hashlib.sha256()
    encoded = np.array([f"{word} ".encode() for word in corpus.words], dtype=object)
    for ids in corpus.splits.values():
        digest.update(b"".join(encoded[ids]) + b"\n")
    return digest.hexdigest()


def counts(corpus: Corpus) -> dict[str, Any]:
    """What identifies a corpus, as the datasets' YAML declares it under `expected`."""
    return {
        "tokens": {split: len(ids) for split, ids in corpus.splits.items()},
        "vocabulary_size": corpus.vocabulary_size,
        "token_sha256": token_sha256(corpus),
    }


def check_expected(corpus: Corpus, expected: Mapping[str, Any]) -> None:
    """Compare with the declared counts; keys that are not declared are not checked.

    Raises:
        DataError: naming the first value that differs.
    """
    found = counts(corpus)
    pairs = [(f"{split} tokens", found["tokens"][split], want) for split, want in expected.get("tokens", {}).items()]
    pairs += [(key, found[key], expected[key]) for key in ("vocabulary_size", "token_sha256") if key in expected]
    for what, got, want in pairs:
        if got != want:
            raise DataError(
                f"{corpus.name}: {what}: expected {want}, got {got}; this is another text than the declared one"
            )


# --- streams --------------------------------------------------------------------------------------------------------
def batchify(ids_T: NDArray[np.int32], batch_size: int, min_rows: int = 2) -> NDArray[np.int32]:
    """Lay a stream out as columns that are read side by side (awd-lstm utils.py, batchify).

    Args:
        ids_T: token ids.
        batch_size: B; the remainder of T / B tokens is dropped.
        min_rows: fewest rows that make sense, at least one input and one target.

    Returns:
        ids_LB with L = T // B; ids_LB[:, b] is the b-th stretch of the stream.

    Raises:
        DataError: too few tokens.
    """
    rows = len(ids_T) // batch_size
    if rows < min_rows:
        raise DataError(
            f"a corpus split of {len(ids_T)} tokens is too short: need >= {min_rows * batch_size} tokens "
            f"(batch size {batch_size} x {min_rows}); use a smaller batch or more text"
        )
    return np.ascontiguousarray(ids_T[: rows * batch_size].reshape(batch_size, rows).T)


def restrict(corpus: Corpus, vocabulary_size: int, train_tokens: int, name: str = "") -> Corpus:
    """A smaller corpus: the most frequent words of train, `<unk>` for every other word, and the first tokens of train.

    Frequencies are those of the whole of train, so that the dictionary does not change with train_tokens; a few kept
    words may then be missing from the shortened train. `<eos>` and `<unk>` are always kept and count as words; ties go
    to the word that appears first. Ids are given anew, by first appearance in the whole of train. Valid and test keep
    their length.

    Raises:
        DataError: fewer tokens or words than asked for.
    """
    if not 2 <= train_tokens <= len(corpus.train):
        raise DataError(f"{corpus.name}: train_tokens: {train_tokens} is not between 2 and train's {len(corpus.train)}")
    special = [word for word in (EOS, UNK) if word in corpus.words]
    if not 3 <= vocabulary_size <= corpus.vocabulary_size:
        raise DataError(
            f"{corpus.name}: vocabulary_size: {vocabulary_size} is not between 3 and {corpus.vocabulary_size}"
        )
    count_V = np.bincount(corpus.train, minlength=corpus.vocabulary_size)
    count_V[[corpus.words.index(word) for word in special]] = 0
    kept = np.argsort(-count_V, kind="stable")[: vocabulary_size - 2]  # ids are in order of first appearance
    keep = {corpus.words[i] for i in kept} | {EOS}
    replaced = np.array([word if word in keep else UNK for word in corpus.words], dtype=object)
    whole = tokenise(name or corpus.name, {split: replaced[ids].tolist() for split, ids in corpus.splits.items()})
    return replace(whole, train=whole.train[:train_tokens])


# --- baselines ------------------------------------------------------------------------------------------------------
def unigram_perplexity(corpus: Corpus) -> float:
    """Test perplexity of the train frequencies: P(w) = (c(w) + 1) / (T + V), Laplace's rule.

    Targets are test's tokens after the first, as for a model that reads the whole of test.
    """
    return float(np.exp(-np.log(_unigram_law(corpus)[corpus.test[1:]]).mean()))


def bigram_perplexity(corpus: Corpus) -> float:
    """Test perplexity of a word-pair model: what one word of history is worth, without training.

    P(w|v) = (c(v,w) + t(v) P(w)) / (c(v) + t(v)), where t(v) counts the distinct followers of v and P(w) is the law of
    unigram_perplexity: Witten and Bell 1991, method C, interpolated.
    """
    size, unigram_V = corpus.vocabulary_size, _unigram_law(corpus)
    pairs, pair_counts = np.unique(_pair_keys(corpus.train, size), return_counts=True)
    types_V = np.bincount(pairs // size, minlength=size)
    total_V = np.bincount(corpus.train[:-1], minlength=size)
    alone_V = total_V == 0  # never followed by a word in train: the unigram law alone
    keys = _pair_keys(corpus.test, size)
    first, second = keys // size, keys % size
    place = np.minimum(np.searchsorted(pairs, keys), len(pairs) - 1)
    seen = np.where(pairs[place] == keys, pair_counts[place], 0)
    types, total = (types_V + alone_V)[first], total_V[first]
    return float(np.exp(-np.log((seen + types * unigram_V[second]) / (total + types)).mean()))


def _unigram_law(corpus: Corpus) -> NDArray[np.float64]:
    count_V = np.bincount(corpus.train, minlength=corpus.vocabulary_size) + 1.0
    law_V: NDArray[np.float64] = count_V / count_V.sum()
    return law_V


def _pair_keys(ids_T: NDArray[np.int32], size: int) -> NDArray[np.int64]:
    return ids_T[:-1].astype(np.int64) * size + ids_T[1:]


# --- artefacts ------------------------------------------------------------------------------------------------------
def save(corpus: Corpus, folder: Path, parents: Mapping[str, str] | None = None) -> None:
    """Write {train,valid,test}.npy and vocabulary.json (words, counts, provenance)."""
    for split, ids in corpus.splits.items():
        artefacts.write_npy(folder / f"{split}.npy", ids)
    facts = {"name": corpus.name, "words": list(corpus.words), **counts(corpus)}
    artefacts.write_json(folder / VOCABULARY_FILE, facts | {"provenance": provenance.block(parents)})


def load(folder: Path) -> Corpus:
    """Read what save wrote, streams memory-mapped.

    Raises:
        DataError: a file is missing, damaged, or belongs to another corpus.
    """
    facts = artefacts.read_json(folder / VOCABULARY_FILE)
    streams = {split: artefacts.read_npy(folder / f"{split}.npy") for split in SPLITS}
    corpus = Corpus(facts["name"], tuple(facts["words"]), **streams)
    check_expected(corpus, {key: facts[key] for key in ("tokens", "vocabulary_size", "token_sha256")})
    return corpus


# --- fetching -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SourceFile:
    """Where a file can be had and what it must be. Exactly one of `addresses` and `path` is given.

    `sha256` and `size` (bytes) may be None for a local file only.
    """

    name: str
    sha256: str | None
    size: int | None
    addresses: tuple[str, ...] = ()
    path: Path | None = None


@dataclass(frozen=True)
class Transfer:
    """How to fetch: allowed address schemes (redirects too), limits in seconds, attempts per address."""

    schemes: tuple[str, ...] = ("https",)
    silence_limit: float = 30.0
    time_limit: float = 900.0
    attempts: int = 3
    first_pause: float = 1.0
    sleep: Callable[[float], None] = time.sleep


class _RefusedError(Exception):
    """One attempt failed; `again` tells whether the same address may do better."""

    def __init__(self, reason: str, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


def source_files(files: Mapping[str, Mapping[str, Any]], near: Path) -> list[SourceFile]:
    """The `files` of a dataset's YAML; local paths are relative to `near`, the folder of the YAML."""
    return [
        SourceFile(
            name,
            entry.get("sha256"),
            entry.get("bytes"),
            tuple(entry.get("addresses", ())),
            near / entry["path"] if "path" in entry else None,
        )
        for name, entry in files.items()
    ]


def download(
    files: Iterable[SourceFile], folder: Path, mirror: Path | None = None, how: Transfer | None = None
) -> None:
    """Bring every file into `folder`, checked by sha256 before it gets its name. Files that are right already stay.

    Args:
        files: what to bring.
        folder: where to; made when missing.
        mirror: folder that holds the same file names; tried first.
        how: limits of the transfer.

    Raises:
        DataError: listing every attempt, what was expected, and how to do it by hand.
    """
    for file in files:
        if not _is_right(folder / file.name, file):
            _fetch(file, folder / file.name, mirror, how or Transfer())


def _is_right(target: Path, file: SourceFile) -> bool:
    """Whether the target is there, whole, and what is declared (for an undeclared local file: equal to it)."""
    if not target.is_file():
        return False
    got = artefacts.sha256_file(target)
    want = file.sha256
    if want is None and file.path is not None and file.path.is_file():
        want = artefacts.sha256_file(file.path)
    if got == want and not artefacts.is_sound(target):  # put there by hand
        artefacts.write_bytes(target, target.read_bytes())
    return got == want


def _fetch(file: SourceFile, target: Path, mirror: Path | None, how: Transfer) -> None:
    failures = []
    places: list[str | Path] = [file.path] if file.path is not None else list(file.addresses)
    if mirror is not None and file.path is None:
        places.insert(0, mirror / file.name)
    for place in places:
        for attempt in range(how.attempts):
            try:
                artefacts.write_with(target, lambda out, place=place: _copy(place, out, file, how))  # type: ignore[misc]
                return
            except _RefusedError as refusal:
                failures.append(f"{place}: {refusal}")
                if not refusal.again:
                    break
            if attempt + 1 < how.attempts:
                how.sleep(how.first_pause * 2**attempt)
    raise DataError(_advice(file, target, mirror, failures))


def _advice(file: SourceFile, target: Path, mirror: Path | None, failures: list[str]) -> str:
    tried = "; ".join(failures)
    if file.path is not None:
        return f"{file.name}: {tried}; correct `path` or `sha256` in the dataset's YAML"
    mirror_hint = "" if mirror else " or name a mirror folder"
    what = f"{file.size} bytes, sha256 {file.sha256}"
    return (
        f"{file.name}: could not be fetched. Tried {tried}. "
        f"By hand: put the file ({what}) at {target}{mirror_hint}, then run the step again"
    )


def _copy(place: str | Path, out: BinaryIO, file: SourceFile, how: Transfer) -> None:
    """Copy from a path or an address into `out`, checking size and hash.

    Raises:
        _RefusedError: the attempt failed; nothing that was written may be used.
    """
    try:
        if isinstance(place, Path):
            with place.open("rb") as source:
                _checked_copy(iter(lambda: source.read(BLOCK_BYTES), b""), out, file)
        else:
            _checked_copy(_blocks(place, how), out, file)
    except urllib.error.HTTPError as error:
        raise _RefusedError(f"HTTP {error.code}", again=error.code >= 500 or error.code == 429) from None
    except urllib.error.URLError as error:
        raise _RefusedError(f"no connection ({error.reason})", again=True) from None
    except (OSError, HTTPException) as error:
        again = not isinstance(place, Path)
        raise _RefusedError(getattr(error, "strerror", None) or str(error) or type(error).__name__, again) from None


def _blocks(address: str, how: Transfer) -> Iterator[bytes]:
    """The body of an address in blocks, within the time limit."""
    _check_scheme(address, how.schemes)
    deadline = time.monotonic() + how.time_limit
    opener = urllib.request.build_opener(_StrictRedirects(how.schemes))
    request = urllib.request.Request(address, headers={"User-Agent": "softmax-bottleneck"})
    with opener.open(request, timeout=how.silence_limit) as response:
        while block := response.read1(BLOCK_BYTES):
            yield block
            if time.monotonic() > deadline:
                raise _RefusedError(f"slower than the limit of {how.time_limit:g} s")


def _check_scheme(address: str, schemes: tuple[str, ...]) -> None:
    if address.partition("://")[0] not in schemes:
        raise _RefusedError(f"only {' or '.join(schemes)} addresses are allowed")


class _StrictRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects stay within the allowed schemes."""

    def __init__(self, schemes: tuple[str, ...]) -> None:
        self.schemes = schemes

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """As the standard handler, after the check."""
        _check_scheme(newurl, self.schemes)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _checked_copy(blocks: Iterable[bytes], out: BinaryIO, file: SourceFile) -> None:
    digest, size, start = hashlib.sha256(), 0, b""
    for block in blocks:
        size += len(block)
        start = start or block[:256]
        if file.size is not None and size > file.size:
            raise _RefusedError(f"longer than the declared {file.size} bytes{_html_hint(start)}")
        digest.update(block)
        out.write(block)
    if file.size is not None and size < file.size:
        raise _RefusedError(f"got {size} of {file.size} bytes{_html_hint(start)}", again=not _html_hint(start))
    if file.sha256 is not None and digest.hexdigest() != file.sha256:
        raise _RefusedError(f"sha256 is {digest.hexdigest()}, expected {file.sha256}{_html_hint(start)}")


def _html_hint(start: bytes) -> str:
    looks_like_html = re.match(rb"\s*<(!doctype html|html|head)", start, re.IGNORECASE)
    return " (the server sent an HTML page)" if looks_like_html else ""
