"""Archives of strangers: only wanted members come out, under names of our own, never more than their limit."""

import gzip
import io
import resource
import tarfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from corpus_project import TEXTS, Project, error_of
from softmax_bottleneck.corpora import archives
from softmax_bottleneck.corpora.archives import Member
from softmax_bottleneck.store.errors import UserError

BODY = TEXTS["train"].encode()


def packed(members: Mapping[str, bytes], kind: str = "zip") -> bytes:
    """Return an archive of files: zip, tar, tar.gz or tar.bz2."""
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
            for name, data in members.items():
                file.writestr(name, data)
    else:
        with tarfile.open(fileobj=out, mode=f"w:{kind.partition('.')[2]}") as tape:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tape.addfile(info, io.BytesIO(data))
    return out.getvalue()


def odd_tar(**facts: object) -> bytes:
    """Return a tar whose train.txt is no plain file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tape:
        info = tarfile.TarInfo("train.txt")
        for key, value in facts.items():
            setattr(info, key, value)
        tape.addfile(info)
    return out.getvalue()


def zip_with_link() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        link = zipfile.ZipInfo("train.txt")
        link.external_attr = 0o120777 << 16
        file.writestr(link, "/etc/passwd")
    return out.getvalue()


def doubled_zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("train.txt", BODY)
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("train.txt", b"other\n")
    return out.getvalue()


REFUSED: Mapping[str, Callable[[], bytes]] = {
    "zip link": zip_with_link,
    "zip twice": doubled_zip,
    "tar twice": lambda: packed({"train.txt": BODY, "./train.txt": b"x"}, "tar.gz"),
    "tar many": lambda: packed({"train.txt": BODY} | {f"{number}": b"" for number in range(5001)}, "tar"),
    "tar link": lambda: odd_tar(type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "tar hard link": lambda: odd_tar(type=tarfile.LNKTYPE, linkname="other.txt"),
    "tar device": lambda: odd_tar(type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    "tar pipe": lambda: odd_tar(type=tarfile.FIFOTYPE),
}


@pytest.mark.fault("B7")
@pytest.mark.parametrize("archive", REFUSED.values(), ids=REFUSED.keys())
def test_members_that_are_no_plain_file_or_ambiguous_are_refused(project, capsys, archive: Callable[[], bytes]) -> None:
    project.put("a.bin", archive())
    project.declare({"train.txt": {"path": "a.bin", "member": "train.txt"}})
    assert project.call("download") == 2
    message = error_of(capsys)
    assert "a.bin: " in message and "refused" in message
    assert not (project.corpora / "train.txt").exists()


@pytest.mark.fault("B7", "B9")
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_only_wanted_members_come_out_under_names_of_our_own(project: Project, kind: str) -> None:
    """Members with paths that lead elsewhere, and files that operating systems leave behind, are not written."""
    odd = {"../evil.txt": b"x", "/evil.txt": b"x", "..\\evil.txt": b"x", "__MACOSX/w/._train.txt": b"\0\5\26\7\xff"}
    project.put("w.bin", packed({**odd, **{f"w/{split}.tok": text.encode() for split, text in TEXTS.items()}}, kind))
    project.declare({f"{split}.txt": {"path": "w.bin", "member": f"./w/{split}.tok"} for split in TEXTS})
    before = set(project.folder.parent.rglob("*"))
    assert project.call("download") == 0
    made = {path for path in project.folder.parent.rglob("*") if path not in before and path.suffix != ".sha256"}
    names = {"w.bin", "files.json", *(f"{split}.txt" for split in TEXTS)}
    assert {path for path in made if path.is_file()} == {project.corpora / name for name in names}
    assert (project.corpora / "train.txt").read_bytes() == BODY
    assert project.call("tokenise") == 0


@pytest.mark.fault("B7")
@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/evil.txt", "a/b.txt", ".hidden", "-rf"])
def test_a_dataset_names_no_file_elsewhere(project: Project, capsys: pytest.CaptureFixture[str], name: str) -> None:
    project.declare({name: {"path": "train.txt"}})
    assert project.call("download") == 2
    assert repr(name) in error_of(capsys)


@pytest.mark.fault("B8")
def test_a_bomb_is_stopped_at_the_declared_size(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """The archive holds a gigabyte of zeros in four megabytes: the same compressed block, which gzip allows."""
    info = tarfile.TarInfo("train.txt")
    info.size = 1 << 30
    zeros = gzip.compress(bytes(1 << 22), 6)
    project.put("a.tgz", gzip.compress(info.tobuf()) + zeros * 257)
    project.declare({"train.txt": {"path": "a.tgz", "member": "train.txt", "member_bytes": 1 << 20}})
    began = time.process_time()
    assert project.call("download") == 2
    assert "is longer than 1048576 bytes" in error_of(capsys)
    assert time.process_time() - began < 5
    assert not (project.corpora / "train.txt").exists()


def bz2_bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("train.txt", bytes(1 << 22))
    return out.getvalue()


def pax_header(size: int) -> bytes:
    """Return a tar whose first header is a pax header of `size` bytes: digits, which tarfile searches slowly."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, size
    member = tarfile.TarInfo("train.txt")
    return info.tobuf(tarfile.USTAR_FORMAT) + b"1" * size + bytes(-size % 512) + member.tobuf()


def sparse_map(blocks: int) -> bytes:
    """Return a tar with a GNU sparse member whose map has so many blocks."""
    info = tarfile.TarInfo("train.txt")
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[482] = 1
    header[148:156] = f"{sum(header[:148]) + 8 * 32 + sum(header[156:512]):06o}\0 ".encode()
    return bytes(header) + (bytes(504) + b"\1" + bytes(7)) * blocks


GREEDY: Mapping[str, Callable[[], bytes]] = {
    "zip bz2": bz2_bomb,
    "tar bz2": lambda: packed({"train.txt": BODY}, "tar.bz2"),
    "long pax header": lambda: pax_header(1 << 24),
    "many pax headers": lambda: pax_header(8192) * 4096,
    "gzipped pax header": lambda: gzip.compress(pax_header(1 << 28)[: 1 << 20]) + gzip.compress(bytes(1 << 22)) * 64,
    "sparse map": lambda: gzip.compress(sparse_map(1 << 13), 1),
}


@pytest.mark.fault("B23")
@pytest.mark.parametrize("name", GREEDY)
def test_small_archives_that_would_take_memory_or_time_are_refused(project, capsys, monkeypatch, name: str) -> None:
    monkeypatch.setattr(archives, "MAX_HEADER_WORK", 1 << 28)  # less than a second
    project.put("a.bin", GREEDY[name]())
    project.declare({"train.txt": {"path": "a.bin", "member": "train.txt"}})
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    assert project.call("download") == 2
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    assert "a.bin: " in error_of(capsys) and not (project.corpora / "train.txt").exists()


@pytest.mark.fault("B8")
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_unpacked_sizes_are_bounded_for_all_members_together(tmp_path: Path, monkeypatch, kind: str) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 1 << 20)
    (tmp_path / "a.bin").write_bytes(packed({"train.txt": BODY, "other": bytes(1 << 20)}, kind))
    with pytest.raises(UserError, match="refused"):
        archives.extract(tmp_path / "a.bin", tmp_path, [Member("train.txt", "t.txt")])


def test_a_missing_member_or_a_name_used_twice_is_reported(project: Project, capsys) -> None:
    project.put("a.zip", packed({"w/train.txt": BODY}))
    project.put("b/a.zip", packed({"w/train.txt": BODY}))
    one, other = {"path": "a.zip", "member": "t"}, {"path": "b/a.zip", "member": "t"}
    for files, message in (
        ({"train.txt": {"path": "gone.zip", "member": "t"}}, "gone.zip"),
        ({"train.txt": one}, "no member 't'; it holds 'w/train.txt'"),
        ({"train.txt": {"path": "a.zip", "member": "train.txt"}}, "did you mean 'w/train.txt'?"),
        ({"train.txt": one, "test.txt": other}, "another file or archive is called 'a.zip' too"),
        ({"a.zip": {"path": "a.zip"}, "train.txt": other}, "another file or archive is called 'a.zip' too"),
    ):
        project.declare(files)
        assert project.call("download") == 2
        assert message in error_of(capsys)
