"""Texts out of archives: only members that are asked for by name, out of archives that hold nothing dangerous.

Members are read and written under names of our own, never unpacked. An archive with a path that leads elsewhere, a
link, a device, two members of one name, or too many members is refused as a whole; companion files of operating systems
do no harm and are passed over. What a text is, its tokens decide, not the archive it came in.
"""

from __future__ import annotations

import errno
import re
import stat
import tarfile
import textwrap
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, cast
from urllib.parse import urlsplit

from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError

MAX_MEMBERS = 5000
MAX_MEMBER_BYTES = 1 << 28  # of a member whose entry declares no size
MAX_UNPACKED_BYTES = 1 << 32  # of all members, by their headers
BLOCK_BYTES = 1 << 16
NAMES_SHOWN = 5


@dataclass(frozen=True)
class Wanted:
    """A member and the file its text becomes.

    Attributes:
        name: of that file.
        member: its path in the archive.
        limit: how long it may be, in bytes.
        source: what the dataset's YAML says of the file, which is where the archive is had.
    """

    name: str
    member: str
    limit: int = MAX_MEMBER_BYTES
    source: Mapping[str, Any] = field(default_factory=dict)


def by_archive(files: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, list[Wanted]]:
    """Name of an archive -> what is wanted of it, for those `files` of a dataset's YAML that have a `member`.

    Raises:
        DataError: two different archives, or an archive and a text, have one name.
    """
    found: dict[str, list[Wanted]] = {}
    for name, entry in files.items():
        if "member" in entry:
            source = {key: entry[key] for key in ("addresses", "path", "sha256", "bytes") if key in entry}
            archive = PurePosixPath(
                urlsplit(entry["addresses"][0]).path if "addresses" in entry else entry["path"]
            ).name
            wanted = Wanted(
                name, str(PurePosixPath(entry["member"])), entry.get("member_bytes", MAX_MEMBER_BYTES), source
            )
            same = found.setdefault(archive, [wanted])[0].source == source
            if archive in files or not archive or not same:
                raise DataError(f"{where}: files.{name}: another file or archive is called {archive!r} too; rename one")
            if wanted not in found[archive]:
                found[archive].append(wanted)
    return found


@dataclass(frozen=True)
class _Member:
    """What an archive says of one of its members; `kind` is `file`, `folder`, or what else it is."""

    name: str
    kind: str
    size: int


Opener = Callable[[str], IO[bytes]]


def extract(archive: Path, folder: Path, wanted: Sequence[Wanted]) -> None:
    """Write members of a zip or tar archive (compressed or not) into a folder, under names of our own.

    Raises:
        DataError: no archive, a broken or dangerous one, a member that is not there or is longer than its limit;
            nothing is left under its file's name.
    """
    with _opened(archive, wanted) as opener:
        for one in wanted:
            with opener(one.member) as source:
                artefacts.write_with(folder / one.name, partial(_copy, archive, one, source))


@contextmanager
def open_member(archive: Path, wanted: Wanted) -> Iterator[IO[bytes]]:
    """A member, to be read where it lies (DataError as `extract`)."""
    with _opened(archive, [wanted]) as opener, opener(wanted.member) as source:
        yield source


@contextmanager
def _opened(archive: Path, wanted: Sequence[Wanted]) -> Iterator[Opener]:
    """How to open a wanted member, after the whole archive was looked at."""
    if not archive.is_file():
        raise DataError(f"{archive}: no such archive; correct `path`")
    with damage_refused(f"{archive}: no sound zip or tar archive", "fetch it again"), ExitStack() as stack:
        if zipfile.is_zipfile(archive):
            packed = stack.enter_context(zipfile.ZipFile(archive))
            opener: Callable[[str], IO[bytes] | None] = packed.open
            members = _zip_members(packed)
        else:
            tape = stack.enter_context(tarfile.open(archive))
            members, opener = _tar_members(tape), tape.extractfile  # None of what is no file, which is not in `files`
        files = _inspected(archive, members, {one.member: one.limit for one in wanted})
        for one in wanted:
            if one.member not in files:
                raise DataError(f"{archive}: {_absent(one.member, list(files))}")
        yield lambda member: cast(IO[bytes], opener(files[member]))


@contextmanager
def damage_refused(fault: str, advice: str) -> Iterator[None]:
    """Whatever a reader of foreign bytes stumbles over as one line, `FAULT (what it said); ADVICE`.

    Raises:
        DataError: the bytes are not what they claim to be.
        OSError, MemoryError: the disk failed, or there is too little memory.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # zipfile, tarfile, numpy and json raise some twenty kinds: no list of them is whole
        # An OSError without a number is a decompressor's, EINVAL a seek to where a damaged header leads.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        words = textwrap.shorten(str(error), 200) or type(error).__name__
        raise DataError(f"{fault} ({words}); {advice}") from None


def _zip_members(file: zipfile.ZipFile) -> Iterator[_Member]:
    for info in file.infolist():
        mode = info.external_attr >> 16
        plain = stat.S_IFMT(mode) in (0, stat.S_IFREG, stat.S_IFDIR)
        kind = ("folder" if info.is_dir() else "file") if plain else "link" if stat.S_ISLNK(mode) else "device"
        yield _Member(info.orig_filename, kind, info.file_size)


def _tar_members(file: tarfile.TarFile) -> Iterator[_Member]:
    for info in file:
        linked = "link" if info.issym() or info.islnk() else "device"
        kind = "file" if info.isreg() else "folder" if info.isdir() else linked
        yield _Member(info.name, kind, info.size)


def _inspected(archive: Path, members: Iterator[_Member], limits: Mapping[str, int]) -> dict[str, str]:
    """Plain path -> name as stored, of every file but companion files.

    `limits` are those of wanted members; what comes after one that is too long is not even looked at.

    Raises:
        DataError: a member that no honest archive of texts has or that is too long, or too many of them.
    """
    found: dict[str, str] = {}
    folded: set[str] = set()
    size = 0
    for number, member in enumerate(members, start=1):
        size += member.size
        if number > MAX_MEMBERS or size > MAX_UNPACKED_BYTES:
            raise DataError(f"{archive}: more than {MAX_MEMBERS} members or {MAX_UNPACKED_BYTES >> 30} GiB; refused")
        path = str(PurePosixPath(member.name))
        reason = _danger(member) or ("has the name of another, but for case" if path.casefold() in folded else "")
        if reason:
            raise DataError(f"{archive}: member {member.name!r} {reason}; the archive is refused")
        if member.size > limits.get(path, member.size):
            raise _too_long(archive, path, limits[path])
        if member.kind == "file":
            folded.add(path.casefold())
            if not is_companion(path):
                found[path] = member.name
    return found


def _danger(member: _Member) -> str:
    """Why no archive of texts would have such a member; empty when it may."""
    if re.search(r"^/|^[A-Za-z]:|\\|\0|(^|/)\.\.(/|$)", member.name):
        return "leads out of its folder"
    return "" if member.kind in ("file", "folder") else f"is a {member.kind}"


def is_companion(name: str) -> bool:
    """Whether a file is one that operating systems leave beside others."""
    path = PurePosixPath(name)
    return "__MACOSX" in path.parts or path.name.startswith("._") or path.name in {".DS_Store", "Thumbs.db"}


def _absent(member: str, files: Sequence[str]) -> str:
    near = [name for name in files if PurePosixPath(name).name == PurePosixPath(member).name]
    near += get_close_matches(member, files, n=1)
    if near:
        return f"no member {member!r}; did you mean {near[0]!r}?"
    more = f" and {len(files) - NAMES_SHOWN} more" if len(files) > NAMES_SHOWN else ""
    return f"no member {member!r}; it holds {', '.join(map(repr, files[:NAMES_SHOWN])) or 'no file'}{more}"


def _copy(archive: Path, wanted: Wanted, source: IO[bytes], out: BinaryIO) -> None:
    """Copy a member, never more than its limit, whatever its header says."""
    left = wanted.limit
    while block := source.read(min(BLOCK_BYTES, left + 1)):
        left -= len(block)
        if left < 0:
            raise _too_long(archive, wanted.member, wanted.limit)
        out.write(block)


def _too_long(archive: Path, member: str, limit: int) -> DataError:
    return DataError(f"{archive}: member {member!r} is longer than {limit} bytes; if that is right, declare "
                     "`member_bytes` in the dataset's YAML")  # fmt: skip
