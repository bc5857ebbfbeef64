"""The step `download`: the files of a dataset, each checked by its hash before it gets its name.

They come from a mirror folder, from addresses, or from a path beside the dataset's YAML; a known-truth language is
sampled instead.
"""

from __future__ import annotations

import hashlib
import queue
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO

from softmax_bottleneck.corpora import archives, language
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Dataset, Study, load_dataset

BLOCK_BYTES = 1 << 16
HTML_START = re.compile(rb"\s*<(!doctype html|html|head)", re.IGNORECASE)


def download(study: Study, name: str, say: Say) -> None:
    """Bring the files of a dataset: from the mirror, its addresses or local paths; a language is sampled instead.

    Raises:
        DataError: a file cannot be had, is another one, or lies in an archive that is not sound.
    """
    dataset = load_dataset(name, study.file.resolve().parent)
    folder = study.store.corpus_folder(name)
    artefacts.sweep(folder)
    if dataset.language:
        say(f"{name}: sampling the known-truth language")
        language.write_language(dataset.language, folder)
    else:
        mirror = study.mirror / dataset.mirror if study.mirror and dataset.mirror else None
        say(f"{name}: {len(dataset.files)} files, from {'the mirror folder first' if mirror else 'their addresses'}")
        sources, packed = sources_of(dataset)
        fetch(source_files(sources, dataset.folder), folder, mirror)
        for archive, members in packed.items():
            archives.extract(folder / archive, folder, members)
    texts = sorted(path for path in folder.iterdir() if path.suffix in (".txt", ".npz"))
    hashes = {path.name: artefacts.sha256_file(path) for path in texts}
    artefacts.write_json(folder / "files.json", {"files": hashes, "provenance": provenance.block()})


def sources_of(dataset: Dataset) -> tuple[dict[str, Mapping[str, Any]], dict[str, list[archives.Wanted]]]:
    """What is to be fetched, by file name, and what is wanted of which of these files, which are archives then."""
    plain = {name: entry for name, entry in dataset.files.items() if "member" not in entry}
    packed = archives.by_archive(dataset.files, str(dataset.folder / f"{dataset.name}.yaml"))
    return plain | {archive: members[0].source for archive, members in packed.items()}, packed


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
    """How to fetch: allowed address schemes (redirects too), seconds of silence and in all, attempts per address."""

    schemes: tuple[str, ...] = ("https",)
    silence_limit_s: float = 30.0
    time_limit_s: float = 900.0
    attempts: int = 3
    first_pause_s: float = 1.0
    sleep: Callable[[float], None] = time.sleep


class _RefusedError(Exception):
    """One attempt failed; `again` says whether the same address may do better."""

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


def fetch(files: Iterable[SourceFile], folder: Path, mirror: Path | None = None, how: Transfer | None = None) -> None:
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
    got, want = artefacts.sha256_file(target), file.sha256
    if want is None and file.path is not None and file.path.is_file():
        want = artefacts.sha256_file(file.path)
    if got == want and not artefacts.is_sound(target):  # put there by hand
        artefacts.write_bytes(target, target.read_bytes())
    return got == want


def _fetch(file: SourceFile, target: Path, mirror: Path | None, how: Transfer) -> None:
    places: list[str | Path] = [file.path] if file.path else list(file.addresses)
    if mirror and not file.path:
        places.insert(0, mirror / file.name)
    failures = []
    for place in places:
        for attempt in range(how.attempts):
            if attempt:
                how.sleep(how.first_pause_s * 2 ** (attempt - 1))
            try:
                artefacts.write_with(target, partial(_copy, place, file, how))
                return
            except _RefusedError as refusal:
                failures.append(f"{place}: {refusal}")
                if not refusal.again:
                    break
    tried = "; ".join(failures)
    if file.path:
        raise DataError(f"{file.name}: {tried}; correct `path` or `sha256` in the dataset's YAML")
    raise DataError(
        f"{file.name}: could not be fetched. Tried {tried}. By hand: put the file ({file.size} bytes, sha256"
        f" {file.sha256}) at {target}{'' if mirror else ' or name a mirror folder'}, then run the step again"
    )


def _copy(place: str | Path, file: SourceFile, how: Transfer, out: BinaryIO) -> None:
    """Copy from a path or an address into `out`, checking size and hash.

    Raises:
        _RefusedError: the attempt failed; nothing that was written may be used.
    """
    try:
        if isinstance(place, Path):
            with place.open("rb") as source:
                _copy_checked(iter(lambda: source.read(BLOCK_BYTES), b""), file, out)
        else:
            _copy_checked(_in_time(_blocks(place, how), how.time_limit_s), file, out)
    except urllib.error.HTTPError as error:
        raise _RefusedError(f"HTTP {error.code}", again=error.code >= 500 or error.code == 429) from None
    except urllib.error.URLError as error:
        raise _RefusedError(f"no connection ({error.reason})", again=True) from None
    except (OSError, HTTPException) as error:
        again = not isinstance(place, Path)
        raise _RefusedError(getattr(error, "strerror", None) or str(error) or type(error).__name__, again) from None


def _copy_checked(blocks: Iterable[bytes], file: SourceFile, out: BinaryIO) -> None:
    digest, size, page = hashlib.sha256(), 0, ""
    for block in blocks:
        if not size and HTML_START.match(block):
            page = " (the server sent an HTML page)"
        size += len(block)
        if file.size is not None and size > file.size:
            raise _RefusedError(f"longer than the declared {file.size} bytes{page}")
        digest.update(block)
        out.write(block)
    if file.size is not None and size < file.size:
        raise _RefusedError(f"got {size} of {file.size} bytes{page}", again=not page)
    if file.sha256 is not None and digest.hexdigest() != file.sha256:
        raise _RefusedError(f"sha256 is {digest.hexdigest()}, expected {file.sha256}{page}")


# --- addresses ------------------------------------------------------------------------------------------------------
def _blocks(address: str, how: Transfer) -> Iterator[bytes]:
    """The body of an address in blocks; a server may be silent for so long, redirects stay within the schemes."""
    _check_scheme(address, how.schemes)
    opener = urllib.request.build_opener(_StrictRedirects(how.schemes))
    request = urllib.request.Request(address, headers={"User-Agent": "softmax-bottleneck"})
    with opener.open(request, timeout=how.silence_limit_s) as response:
        yield from iter(partial(response.read1, BLOCK_BYTES), b"")


def _check_scheme(address: str, schemes: tuple[str, ...]) -> None:
    if address.partition("://")[0] not in schemes:
        raise _RefusedError(f"only {' or '.join(schemes)} addresses are allowed")


class _StrictRedirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, schemes: tuple[str, ...]) -> None:
        self._schemes = schemes

    def redirect_request(self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
                         ) -> urllib.request.Request | None:  # fmt: skip
        """What the standard handler does, after the check."""
        _check_scheme(newurl, self._schemes)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _in_time(blocks: Iterator[bytes], limit_s: float) -> Iterator[bytes]:
    """The same blocks, for so many seconds at most, whatever a server does meanwhile.

    They are made by a thread of their own, because a server that sends its headers a byte at a time is never silent for
    long, and the name service knows no limit. The thread dies with its connection, or with the process.
    """
    arrived: queue.Queue[bytes | Exception] = queue.Queue(maxsize=16)

    def pump() -> None:
        try:
            for block in blocks:
                arrived.put(block)
            arrived.put(b"")
        except Exception as error:  # raised again by the reader
            arrived.put(error)

    threading.Thread(target=pump, daemon=True).start()
    deadline = time.monotonic() + limit_s
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            block = arrived.get(timeout=left_s)
        except queue.Empty:
            break
        if isinstance(block, Exception):
            raise block
        if not block:
            return
        yield block
    raise _RefusedError(f"slower than the limit of {limit_s:g} s")
