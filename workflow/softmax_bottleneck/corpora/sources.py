"""The files of a dataset: their sources, and their download; a file without the declared hash is rejected.

A file with `path`, relative to the dataset's YAML, has this one source. Any other file comes from a mirror folder or
from one of its web addresses, in this order: if the hash is wrong, the next source is tried. The hashes of results are
checked by `store.artefacts`.
"""

import hashlib
import io
import re
import threading
import time
import urllib.error
import urllib.request
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO
from urllib.parse import urlsplit

from softmax_bottleneck.corpora import archives
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.study import Dataset

BLOCK_BYTES = 1 << 16
HTML_START = re.compile(rb"\s*<(!doctype html|html|head)", re.IGNORECASE)


# --- what to fetch --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Source:
    """A file to fetch, which is a text or an archive of texts.

    Attributes:
        name: name of the file in the folder of the corpus.
        sha256: declared hash; None only for a local file.
        size: declared size in bytes; None only for a local file.
        addresses: URLs of the file, tried in this order; empty for a local file.
        path: path of a local file; None for a file with addresses.
        members: the members to extract if the file is an archive; empty for a text.
    """

    name: str
    sha256: str | None = None
    size: int | None = None
    addresses: tuple[str, ...] = ()
    path: Path | None = None
    members: tuple[archives.Member, ...] = ()


def sources(dataset: Dataset) -> list[Source]:
    """Return the files to fetch for a dataset: every plain file, and every archive that holds files of the dataset.

    Raises:
        DataError: two archives, or an archive and a file, have the same name.
    """
    by_name: dict[str, Source] = {}
    for name, entry in dataset.files.items():
        addresses = tuple(entry.get("addresses", ()))
        path = dataset.folder / entry["path"] if "path" in entry else None
        source = Source(name, entry.get("sha256"), entry.get("bytes"), addresses, path)
        if "member" in entry:
            location = urlsplit(addresses[0]).path if addresses else entry["path"]
            source = replace(source, name=PurePosixPath(location).name)
            known = by_name.get(source.name, source)
            if source.name in dataset.files or not source.name or replace(known, members=()) != source:
                where = dataset.folder / f"{dataset.name}.yaml"
                raise DataError(
                    f"{where}: files.{name}: another file or archive is called {source.name!r} too; rename one"
                )
            source = replace(known, members=(*known.members, archives.Member.of(name, entry)))
        by_name[source.name] = source
    return list(by_name.values())


# --- fetching -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Transfer:
    """The limits of a transfer.

    Attributes:
        schemes: allowed URL schemes, including those of redirects.
        silence_limit_s: longest time without received data.
        time_limit_s: longest total time of an attempt.
        attempts: number of attempts per address.
        first_pause_s: pause before the second attempt; every further pause is twice as long.
        sleep: function that waits (replaced in tests).
    """

    schemes: tuple[str, ...] = ("https",)
    silence_limit_s: float = 30.0
    time_limit_s: float = 900.0
    attempts: int = 3
    first_pause_s: float = 1.0
    sleep: Callable[[float], None] = time.sleep


class _RefusedError(Exception):
    """The error of a failed attempt to fetch a file; `again` is True if the same address may succeed later."""

    def __init__(self, reason: str, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


def fetch(files: Iterable[Source], folder: Path, mirror: Path | None = None, how: Transfer | None = None) -> None:
    """Fetch every file into `folder`; a fetched file with a wrong size or hash is discarded.

    A file that already exists with the right hash is not fetched again. One with a wrong hash is replaced, or stays if
    every source fails.

    Args:
        files: files to fetch.
        folder: destination; created if missing.
        mirror: folder with files of the same names, tried first for files that have addresses (default: no mirror).
        how: limits of the transfer (default: those of `Transfer`).

    Raises:
        DataError: every source of a file failed, or gave a file with another size or hash than declared.
    """
    for file in files:
        if not _is_right(folder / file.name, file):
            _fetch(file, folder / file.name, mirror, how or Transfer())


def _is_right(target: Path, file: Source) -> bool:
    """Return True if `target` exists and has the declared hash or, if no hash is declared, the hash of `file.path`.

    A fetched file has its hash beside it in a .sha256 file. A file that a user has copied to `target` by hand has none;
    if its content is right, this function writes the .sha256 file.
    """
    if not target.is_file():
        return False
    got, want = artefacts.sha256_file(target), file.sha256
    if want is None and file.path is not None and file.path.is_file():
        want = artefacts.sha256_file(file.path)
    if got == want and not artefacts.is_sound(target):  # a user has copied the file here
        artefacts.write_bytes(target, target.read_bytes())
    return got == want


def _fetch(file: Source, target: Path, mirror: Path | None, how: Transfer) -> None:
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
                if not refusal.again or isinstance(place, Path):
                    break
    tried = "; ".join(failures)
    if file.path:
        raise DataError(f"{file.name}: {tried}; correct `path` or `sha256` in the dataset's YAML")
    raise DataError(
        f"{file.name}: could not be fetched. Tried {tried}. By hand: put the file ({file.size} bytes, sha256"
        f" {file.sha256}) at {target}{'' if mirror else ' or name a mirror folder'}, then run the step again"
    )


def _copy(place: str | Path, file: Source, how: Transfer, out: BinaryIO) -> None:
    """Copy a file from `place`, a path or an address, into `out`, and check its size and hash.

    Raises:
        _RefusedError: the attempt failed, and `out` holds incomplete or wrong content.
    """
    try:
        if isinstance(place, Path):
            with place.open("rb") as source:
                _copy_checked((_as_declared(source, file) or source).read, file, out)
        else:
            _in_time(partial(_copy_from_address, place, file, how, out), how.time_limit_s)
    except urllib.error.HTTPError as error:
        raise _RefusedError(f"HTTP {error.code}", again=error.code >= 500 or error.code == 429) from None
    except urllib.error.URLError as error:
        raise _RefusedError(f"no connection ({error.reason})", again=True) from None
    except (OSError, HTTPException) as error:
        raise _RefusedError(getattr(error, "strerror", None) or str(error) or type(error).__name__, True) from None


def _as_declared(source: IO[bytes], file: Source) -> IO[bytes] | None:
    """Return a copy of a text with other line ends, a byte-order mark or no last newline, in its declared form.

    The result is None if no such change gives the declared hash, or if the file is an archive or has no declared hash.
    """
    if file.sha256 is None or file.size is None or file.members:
        return None
    data = source.read(2 * file.size + len(BOM_UTF8))  # every newline may be two bytes
    source.seek(0)
    plain = data.removeprefix(BOM_UTF8).replace(b"\r\n", b"\n")
    forms = (plain, plain + b"\n", plain.removesuffix(b"\n"))
    return next((io.BytesIO(form) for form in forms if hashlib.sha256(form).hexdigest() == file.sha256), None)


def _copy_checked(read: Callable[[int], bytes], file: Source, out: BinaryIO) -> None:
    digest, size, page = hashlib.sha256(), 0, ""
    while block := read(BLOCK_BYTES):
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


def _copy_from_address(address: str, file: Source, how: Transfer, out: BinaryIO) -> None:
    _check_scheme(address, how.schemes)
    opener = urllib.request.build_opener(_StrictRedirects(how.schemes))
    request = urllib.request.Request(address, headers={"User-Agent": "softmax-bottleneck"})
    with opener.open(request, timeout=how.silence_limit_s) as response:
        _copy_checked(response.read1, file, out)


def _check_scheme(address: str, schemes: tuple[str, ...]) -> None:
    if address.partition("://")[0] not in schemes:
        raise _RefusedError(f"only {' or '.join(schemes)} addresses are allowed")


class _StrictRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect handler that allows only redirects to the given URL schemes."""

    def __init__(self, schemes: tuple[str, ...]) -> None:
        self._schemes = schemes

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Follow the redirect as the standard handler does.

        Raises:
            _RefusedError: the scheme of the new address is not allowed.
        """
        _check_scheme(newurl, self._schemes)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _in_time(work: Callable[[], None], limit_s: float) -> None:
    """Run `work` in a thread of its own, and wait at most `limit_s` seconds for its end.

    A limit on silence is not enough: a server that sends its headers byte by byte is never silent for long, and name
    resolution has no time limit. If the limit passes, the thread keeps running until its connection or this process
    ends. The caller closes and removes the output file, so that the thread can no longer write to it.

    Raises:
        _RefusedError: the time limit has passed.
        Other errors: those that `work` raises.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # raised again below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise _RefusedError(f"slower than the limit of {limit_s:g} s")
    if errors:
        raise errors[0]
