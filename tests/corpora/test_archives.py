"""Archives of strangers: only wanted members come out, under names of our own, never more than their limit."""

import gzip
import io
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
    """Return an archive of files: zip, tar, tar.gz or tar.xz."""
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
    "tar twice": lambda: packed({"train.txt": BODY, "./train.txt": b"x"}, "tar.xz"),
    "tar many": lambda: packed({"train.txt": BODY} | {f"{number}": b"" for number in range(5001)}, "tar"),
    "tar link": lambda: odd_tar(type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "tar hard link": lambda: odd_tar(type=tarfile.LNKTYPE, linkname="other.txt"),
    "tar device": lambda: odd_tar(type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    "tar pipe": lambda: odd_tar(type=tarfile.FIFOTYPE),
}


@pytest.mark.fault("B7")
@pytest.mark.parametrize("archive", REFUSED.values(), ids=REFUSED.keys())
def test_members_that_are_no_plain_file_or_ambiguous_are_refused(
    project: Project, capsys: pytest.CaptureFixture[str], archive: Callable[[], bytes]
) -> None:
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


@pytest.mark.fault("B8")
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_unpacked_sizes_are_bounded_for_all_members_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 1 << 20)
    (tmp_path / "a.bin").write_bytes(packed({"train.txt": BODY, "other": bytes(1 << 20)}, kind))
    with pytest.raises(UserError, match="refused"):
        archives.extract(tmp_path / "a.bin", tmp_path, [Member("train.txt", "t.txt")])


def test_a_missing_member_or_a_name_used_twice_is_reported(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
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
