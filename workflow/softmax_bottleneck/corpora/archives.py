"""Reading texts from zip and tar archives; a dataset's YAML gives the path of each member and the file to write.

Archives are never unpacked as a whole, so that no archive decides where a file is written. Archives are rejected if
they are damaged or too large when unpacked, or if a requested member occurs twice or is not a plain file.

Sizes alone do not bound memory and time. Therefore zip members must be stored or deflated, and a tar plain or
compressed by gzip: Python unpacks these in small blocks. The headers of a tar are read within limits (`_Tape`).
"""

from __future__ import annotations

import errno
import gzip
import stat
import tarfile
import textwrap
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, cast

from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError

MAX_MEMBERS = 5000
MAX_MEMBER_BYTES = 1 << 28  # default limit of a member
MAX_UNPACKED_BYTES = 1 << 32  # limit for the sum of the sizes that the headers of all members state
BLOCK_BYTES = 1 << 16
NAMES_SHOWN = 5
METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
MAX_HEADER_BYTES = 1 << 13  # of one tar header: a path is shorter than 4 KiB
# Sum of the squares of the lengths of all tar headers: tarfile searches a pax header in quadratic time (CVE-2024-6232).
MAX_HEADER_WORK = 1 << 33
GZIP_START = b"\x1f\x8b"


@dataclass(frozen=True)
class Member:
    """A requested member of an archive.

    Attributes:
        path: path of the member in the archive.
        name: name of the file to write.
        limit: largest size allowed, in bytes.
    """

    path: str
    name: str
    limit: int = MAX_MEMBER_BYTES

    @classmethod
    def of(cls, name: str, entry: Mapping[str, Any]) -> Member:
        """Return the member that a dataset's YAML declares.

        Args:
            name: name of the file to write, a key of `files` in the YAML.
            entry: value of this key, a mapping. Its key `member` gives the path in the archive. Its optional key
                `member_bytes` gives the largest size allowed, in bytes (default: MAX_MEMBER_BYTES, 256 MiB).
        """
        return cls(str(PurePosixPath(entry["member"])), name, entry.get("member_bytes", MAX_MEMBER_BYTES))


def extract(archive: Path, folder: Path, members: Sequence[Member]) -> None:
    """Write the requested members of a zip or tar archive (compressed or not) into a folder.

    Raises:
        DataError: the archive is missing, damaged or too large; or a member is missing, occurs twice, is too long or is
            not a plain file. No incomplete file is left under its final name.
    """
    with opened(archive, members) as open_member:
        for member in members:
            with open_member(member) as source:
                artefacts.write_with(folder / member.name, partial(_copy, archive, member, source))


@contextmanager
def opened(archive: Path, members: Sequence[Member]) -> Iterator[Callable[[Member], IO[bytes]]]:
    """Check an archive and yield a function that opens a requested member for reading.

    Raises:
        DataError: the archive is missing, damaged or too large; or a member is missing, occurs twice, is too long or is
            not a plain file. Damage may also be found later, when a member is read.
    """
    if not archive.is_file():
        raise DataError(f"{archive}: no such archive; correct `path`")
    with damage_refused(f"{archive}: no sound zip or tar archive", "fetch it again"), ExitStack() as stack:
        entries: Iterator[tuple[str, bool, int]]
        open_name: Any  # returns None for a tar member that is no plain file
        limited: _Tape | None = None
        if zipfile.is_zipfile(archive):
            packed = stack.enter_context(zipfile.ZipFile(archive))
            if any(info.compress_type not in METHODS for info in packed.infolist()):
                raise DataError(f"{archive}: a member is neither stored nor deflated; repack it as .zip or .tar.gz")
            entries = ((info.orig_filename, _is_plain(info), info.file_size) for info in packed.infolist())
            open_name = packed.open
        else:
            plain = stack.enter_context(archive.open("rb"))
            is_gzip = plain.read(len(GZIP_START)) == GZIP_START
            plain.seek(0)
            limited = _Tape(gzip.GzipFile(fileobj=plain) if is_gzip else plain)
            tape = stack.enter_context(tarfile.open(fileobj=cast(BinaryIO, limited), mode="r:"))
            entries = ((info.name, info.isreg(), info.size) for info in tape)
            open_name = tape.extractfile
        names = _checked(archive, entries, members)
        if limited is not None:
            limited.work_left = None  # only contents are read from here on
        yield lambda member: open_name(names[member.path])


class _Tape:
    """The file of a tar archive, which refuses to read long or very many headers.

    `work_left` is what is left of MAX_HEADER_WORK; None once all headers are read, for reads without a limit.
    """

    def __init__(self, file: Any) -> None:
        self.file = file
        self.work_left: int | None = MAX_HEADER_WORK
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes; raise ReadError if a limit is exceeded."""
        if self.work_left is not None:
            self.work_left -= size * size
            if size > MAX_HEADER_BYTES or self.work_left < 0:
                raise tarfile.ReadError(f"headers are longer than {MAX_HEADER_BYTES} bytes or too many")
        return cast(bytes, self.file.read(size))


def _is_plain(info: zipfile.ZipInfo) -> bool:
    return not info.is_dir() and stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)


@contextmanager
def damage_refused(fault: str, advice: str) -> Iterator[None]:
    """Raise a DataError in place of any error that a library raises in a `with` block, as it may on damaged input.

    The message is `<fault> (<the library's message>); <advice>`: `fault` says which file has which problem, and
    `advice` what the user can do. Three errors pass unchanged: a UserError, a MemoryError, and an OSError that the
    input did not cause, such as a full disk.

    Raises:
        DataError: the block raised any other error.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # zipfile, tarfile, numpy and json raise about twenty kinds of errors
        # An OSError without a number comes from a decompressor, EINVAL from a seek that a damaged header asks for.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        message = textwrap.shorten(str(error), 200) or type(error).__name__
        raise DataError(f"{fault} ({message}); {advice}") from None


def _checked(archive: Path, entries: Iterator[tuple[str, bool, int]], members: Sequence[Member]) -> dict[str, str]:
    """Check an archive and its requested members; return the names of the archive's plain files.

    Args:
        archive: path of the archive, for error messages.
        entries: a triple for every member of the archive: (name, True for a plain file, size in bytes).
        members: the requested members.

    Returns:
        {path: name in the archive}. The path is the name without redundant parts (`./a//b` becomes `a/b`).

    Raises:
        DataError: the archive has too many members or is too large when unpacked; or a requested member is missing,
            occurs twice, is too long or is not a plain file. `entries` is read no further than the first such problem.
    """
    wanted = {member.path: member for member in members}
    names: dict[str, str] = {}
    total = 0
    for number, (name, is_plain, size) in enumerate(entries, start=1):
        total += size
        if number > MAX_MEMBERS or total > MAX_UNPACKED_BYTES:
            raise DataError(f"{archive}: more than {MAX_MEMBERS} members or {MAX_UNPACKED_BYTES >> 30} GiB; refused")
        path = str(PurePosixPath(name))
        if path in wanted and (path in names or not is_plain):
            reason = "is there twice" if path in names else "is no plain file"
            raise DataError(f"{archive}: member {path!r} {reason}; the archive is refused")
        if path in wanted and size > wanted[path].limit:
            raise _too_long(archive, wanted[path])
        if is_plain:
            names[path] = name
    for path in wanted:
        if path not in names:
            near = [other for other in names if PurePosixPath(other).name == PurePosixPath(path).name]
            near += get_close_matches(path, names, n=1)
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            listed = f"it holds {', '.join(map(repr, list(names)[:NAMES_SHOWN])) or 'no file'}{more}"
            hint = f"did you mean {near[0]!r}?" if near else listed
            raise DataError(f"{archive}: no member {path!r}; {hint}")
    return names


def _copy(archive: Path, member: Member, source: IO[bytes], out: BinaryIO) -> None:
    """Copy the content of a member from `source` to `out`; `archive` is only named in the error message.

    Raises:
        DataError: the content is longer than `member.limit`, whatever size the archive states for this member.
    """
    left = member.limit
    while block := source.read(min(BLOCK_BYTES, left + 1)):
        left -= len(block)
        if left < 0:
            raise _too_long(archive, member)
        out.write(block)


def _too_long(archive: Path, member: Member) -> DataError:
    return DataError(
        f"{archive}: member {member.path!r} is longer than {member.limit} bytes; if that is right, declare"
        " `member_bytes` in the dataset's YAML"
    )
