"""Faults of data and download: wrong data never become tokens, and what is refused says what to do."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from softmax_bottleneck import __main__ as program
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora import archives, corpus, download, split_overlap, tokenise
from softmax_bottleneck.records import collect
from softmax_bottleneck.report import render
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError

NANO = Path(__file__).parents[1] / "nano.yaml"
HOST = "https://mirror.test"  # stands for the loopback server, which has no certificate
TEXTS = {
    "train": "the cat sat on the mat\nthe <unk> ran to a small house by the river\n\na dog and a cat ate fish\n" * 9,
    "valid": "the dog sat on the house\na small cat ran\n",
    "test": "a fish ate the river\nthe mat ran to the dog\n",
}
BODY = TEXTS["train"].encode()
SHA = hashlib.sha256(BODY).hexdigest()


# --- a project with one corpus --------------------------------------------------------------------------------------
class Project:
    """A folder with a study on the corpus `x`, whose YAML lies in datasets/."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "datasets").mkdir()
        text = NANO.read_text(encoding="utf-8").replace("[truth-nano]", "[x]")
        (folder / "study.yaml").write_text(
            text[: text.index("experiments:")] + "experiments: {known-truth: }\n", "utf-8"
        )

    def declare(self, files: Mapping[str, object], **more: object) -> None:
        values = {"name": "x", "kind": "corpus", "title": "X", "files": files, **more}
        (self.folder / "datasets" / "x.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
        config.load_dataset.cache_clear()

    def put(self, name: str, data: bytes | str) -> Path:
        path = self.folder / "datasets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def local(self, texts: Mapping[str, str | bytes], **more: object) -> None:
        """A corpus of three local files."""
        for split, text in texts.items():
            self.put(f"{split}.txt", text)
        self.declare({f"{split}.txt": {"path": f"{split}.txt"} for split in texts}, **more)

    def fetched(self, *addresses: str, name: str = "train.txt", **more: object) -> None:
        """A corpus whose one file is to be fetched."""
        self.declare({name: {"addresses": list(addresses), "sha256": SHA, "bytes": len(BODY), **more}})

    def call(self, step: str, *words: str) -> int:
        return program.main([step, "--study", str(self.folder / "study.yaml"), "--dataset", "x", *words])

    @property
    def corpora(self) -> Path:
        return self.folder / "results" / "corpora" / "x"

    @property
    def tokens(self) -> Path:
        return self.folder / "results" / "tokens" / "x"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    return Project(tmp_path / "project")


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of the error."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


# --- a server with every bad habit ----------------------------------------------------------------------------------
HTML = b"<!DOCTYPE html><html><body>Please log in</body></html>"


class Server(BaseHTTPRequestHandler):
    """Answers by path; `asked` records the paths."""

    asked: ClassVar[list[str]] = []
    over: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, body = {
            "/good": (200, BODY),
            "/html": (200, HTML),
            "/html-long": (200, HTML.ljust(len(BODY))),
            "/wrong": (200, BODY[::-1]),
            "/cut": (200, BODY[: len(BODY) // 2]),
            "/crawl": (200, BODY),
            "/late": (200, BODY),
            "/403": (403, HTML),
            "/500": (500, b""),
            "/loop": (302, b""),
        }.get(self.path, (404, HTML))
        if self.path == "/hang":
            self.over.wait(20)
            return
        if self.path == "/trickle":  # never silent for long, and never done with its headers
            for byte in itertools.chain(b"HTTP/1.1 200 OK\r\nX: ", itertools.repeat(120)):
                self.wfile.write(bytes([byte]))
                if self.over.wait(0.02):
                    return
        self.send_response(status)
        self.send_header("Content-Length", str(len(BODY) if self.path == "/cut" else len(body)))
        if status == 302:
            self.send_header("Location", "/loop")
        self.end_headers()
        for start in range(0, len(body), 20 if self.path in {"/crawl", "/late"} else len(body)):
            self.wfile.write(body[start : start + 20] if self.path in {"/crawl", "/late"} else body)
            if self.path in {"/crawl", "/late"} and self.over.wait(0.02 if self.path == "/crawl" else 0.1):
                return

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Server.asked.clear()
    Server.over.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        running.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        Server.over.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def online(server: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Addresses at HOST lead to the server; the pauses that were asked for."""
    pauses: list[float] = []
    original = download._blocks
    monkeypatch.setattr(download, "_blocks", lambda address, how: original(address.replace(HOST, server), how))
    limits = {"schemes": ("http",), "silence_limit_s": 0.2, "time_limit_s": 0.5, "sleep": pauses.append}
    monkeypatch.setattr(download, "Transfer", partial(download.Transfer, **limits))
    return pauses


# --- download -------------------------------------------------------------------------------------------------------
FIRST = {
    "/403": "HTTP 403",
    "/404": "HTTP 404",
    "/500": "HTTP 500",
    "/hang": "timed out",
    "/loop": "HTTP 302",
    "no host": "no connection",
}


@pytest.mark.fault("B1")
@pytest.mark.parametrize(("first", "reason"), FIRST.items())
def test_b1_the_next_address_is_tried(project, online, monkeypatch, capsys, first, reason):
    address = "https://no-such-host.invalid/x" if first == "no host" else HOST + first
    if first == "no host":
        lookup = socket.getaddrinfo

        def fails(host, *rest, **more):
            if host == "no-such-host.invalid":
                raise socket.gaierror(-2, "Name or service not known")
            return lookup(host, *rest, **more)

        monkeypatch.setattr(socket, "getaddrinfo", fails)
        monkeypatch.setattr(download, "_check_scheme", lambda *_: None)
    project.fetched(address, HOST + "/good")
    assert project.call("download") == 0
    assert (project.corpora / "train.txt").read_bytes() == BODY
    capsys.readouterr()
    project.fetched(address, HOST + "/gone", name="other.txt")
    assert project.call("download") == 2
    message = told(capsys)
    assert f"{address}: {reason}" in message and f"{HOST}/gone: HTTP 404" in message


@pytest.mark.fault("B2")
@pytest.mark.parametrize("path", ["/html", "/html-long"])
def test_b2_an_error_page_is_no_file(project, online, monkeypatch, capsys, path):
    """Also when it has the very length that is declared, and before any archive is opened."""
    monkeypatch.setattr(archives, "extract", lambda *_: pytest.fail("unpacked"))
    project.fetched(HOST + path, name="train.txt", member="train.txt")
    assert project.call("download") == 2
    assert "(the server sent an HTML page)" in told(capsys)
    assert list(project.corpora.iterdir()) == []


@pytest.mark.fault("B3")
@pytest.mark.parametrize(("path", "reason"), [("/cut", "got"), ("/hang", "timed out"), ("/crawl", "slower than")])
def test_b3_broken_transfers_are_tried_again_in_bounded_time(project, online, path, reason, capsys):
    began = time.monotonic()
    project.fetched(HOST + path, HOST + "/good")
    assert project.call("download") == 0
    assert (project.corpora / "train.txt").read_bytes() == BODY
    tries = Server.asked.count(path)
    assert tries == (1 if path == "/crawl" else 3)  # a slow server does not become faster
    assert online == [1.0, 2.0][: tries - 1]
    assert time.monotonic() - began < 10


@pytest.mark.fault("B22")
def test_b22_headers_that_trickle_in_end_with_the_time_limit(project, online, capsys):
    began = time.monotonic()
    project.fetched(HOST + "/trickle", HOST + "/trickle")
    assert project.call("download") == 2
    assert told(capsys).count(f"{HOST}/trickle: slower than the limit of 0.5 s") == 2
    assert time.monotonic() - began < 5
    assert list(project.corpora.iterdir()) == []


@pytest.mark.fault("B4")
def test_b4_nothing_of_a_wrong_file_is_kept(project, online, capsys):
    project.fetched(HOST + "/wrong", HOST + "/wrong")
    assert project.call("download") == 2
    message = told(capsys)
    assert message.count(f"sha256 is {hashlib.sha256(BODY[::-1]).hexdigest()}, expected {SHA}") == 2
    assert list(project.corpora.iterdir()) == []


@pytest.mark.fault("B10")
def test_b10_without_a_network(project, monkeypatch, capsys):
    def unreachable(*_: object, **__: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    monkeypatch.setattr(download, "Transfer", partial(download.Transfer, sleep=lambda _: None))
    project.fetched("https://example.org/train.txt")
    assert project.call("download") == 2
    message = told(capsys)
    for words in ("no connection", "By hand: put the file", f"{len(BODY)} bytes", SHA, "results/corpora/x/train.txt"):
        assert words in message
    (project.corpora / "train.txt").write_bytes(BODY)
    assert project.call("download") == 0


INTERRUPTED = """
import sys
from pathlib import Path
from softmax_bottleneck.corpora.download import SourceFile, Transfer, fetch
file = SourceFile("train.txt", sys.argv[3], int(sys.argv[4]), (sys.argv[1],))
fetch([file], Path(sys.argv[2]), None, Transfer(schemes=("http",)))
"""


@pytest.mark.fault("B11")
def test_b11_a_partial_file_never_takes_the_name(project, server, online):
    words = [server + "/late", str(project.corpora), SHA, str(len(BODY))]
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED, *words], stderr=subprocess.DEVNULL) as killed:
        deadline = time.monotonic() + 30
        while not list(project.corpora.glob(".*.tmp")) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
    assert [path.suffix for path in project.corpora.iterdir()] == [".tmp"]
    project.fetched(HOST + "/good")
    assert project.call("download") == 0
    assert (project.corpora / "train.txt").read_bytes() == BODY
    assert set(artefacts.read_json(project.corpora / "files.json")["files"]) == {"train.txt"}


# --- archives -------------------------------------------------------------------------------------------------------
def packed(members: Mapping[str, bytes], kind: str = "zip") -> bytes:
    """An archive of files: zip, tar, tar.gz or tar.xz."""
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
    """A tar with the right text and one odd member."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tape:
        good = tarfile.TarInfo("train.txt")
        good.size = len(BODY)
        tape.addfile(good, io.BytesIO(BODY))
        info = tarfile.TarInfo("odd")
        for key, value in facts.items():
            setattr(info, key, value)
        tape.addfile(info)
    return out.getvalue()


def zip_with_link() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("train.txt", BODY)
        link = zipfile.ZipInfo("odd")
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


EVIL: Mapping[str, Callable[[], bytes]] = {
    "zip up": lambda: packed({"train.txt": BODY, "../evil.txt": b"x"}),
    "zip absolute": lambda: packed({"train.txt": BODY, "/tmp/evil.txt": b"x"}),
    "zip drive": lambda: packed({"train.txt": BODY, "C:evil.txt": b"x"}),
    "zip backslash": lambda: packed({"train.txt": BODY, "..\\evil.txt": b"x"}),
    "zip link": zip_with_link,
    "zip twice": doubled_zip,
    "zip case": lambda: packed({"train.txt": BODY, "Train.TXT": b"x"}),
    "tar up": lambda: packed({"train.txt": BODY, "a/../../evil.txt": b"x"}, "tar.gz"),
    "tar absolute": lambda: packed({"train.txt": BODY, "/evil.txt": b"x"}, "tar"),
    "tar twice": lambda: packed({"train.txt": BODY, "./train.txt": b"x"}, "tar.xz"),
    "tar many": lambda: packed({"train.txt": BODY} | {f"{number}": b"" for number in range(10_000)}, "tar"),
    "tar link": lambda: odd_tar(type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "tar hard link": lambda: odd_tar(type=tarfile.LNKTYPE, linkname="train.txt"),
    "tar device": lambda: odd_tar(type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    "tar pipe": lambda: odd_tar(type=tarfile.FIFOTYPE),
}


@pytest.mark.fault("B7")
@pytest.mark.parametrize("archive", EVIL.values(), ids=EVIL.keys())
def test_b7_dangerous_archives_are_refused_as_a_whole(project, capsys, archive):
    around = set(project.folder.parent.rglob("*"))
    project.put("a.bin", archive())
    project.declare({"train.txt": {"path": "a.bin", "member": "train.txt"}})
    before = set(project.folder.parent.rglob("*"))
    assert project.call("download") == 2
    message = told(capsys)
    assert "a.bin: " in message and "refused" in message
    made = {path for path in project.folder.parent.rglob("*") if path not in before}
    assert all(path.is_relative_to(project.folder / "results") for path in made) and around
    assert not (project.corpora / "train.txt").exists()


@pytest.mark.fault("B7")
def test_b7_only_named_members_come_out_under_names_of_our_own(project):
    project.put("a.zip", packed({"deep/train.tokens": BODY, "deep/secret.txt": b"s", "readme": b"r"}))
    project.declare({"train.txt": {"path": "a.zip", "member": "deep/train.tokens"}})
    assert project.call("download") == 0
    assert {path.name for path in project.corpora.iterdir() if path.suffix != ".sha256"} == {
        "a.zip", "train.txt", "files.json"
    }  # fmt: skip
    assert (project.corpora / "train.txt").read_bytes() == BODY


@pytest.mark.fault("B7")
@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/evil.txt", "a/b.txt", ".hidden", "-rf"])
def test_b7_a_dataset_names_no_file_elsewhere(project, capsys, name):
    project.declare({name: {"path": "train.txt"}})
    assert project.call("download") == 2
    assert repr(name) in told(capsys)


MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(["train.txt", "a/b", "../up", "/abs", "A/B", "a\\b", "__MACOSX/._train.txt", "é", "x" * 90]),
        st.integers(0, 300),
        st.sampled_from([tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]),
    ),
    max_size=6,
)


@pytest.mark.fault("B7", "B8")
@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    members=MEMBERS, limit=st.integers(1, 250), noise=st.none() | st.tuples(st.integers(0, 5000), st.integers(1, 255))
)
def test_b7_no_archive_writes_elsewhere_or_more_than_its_limit(tmp_path_factory, members, limit, noise):
    folder = tmp_path_factory.mktemp("archive")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tape:
        for name, size, kind in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, size if kind == tarfile.REGTYPE else 0, "../../target"
            tape.addfile(info, io.BytesIO(b"w " * size))
    data = bytearray(out.getvalue())
    if noise:
        data[noise[0] % len(data)] ^= noise[1]
    (folder / "a.tgz").write_bytes(bytes(data))
    try:
        archives.extract(folder / "a.tgz", folder / "out", [archives.Wanted("t.txt", "train.txt", limit)])
    except UserError as error:
        assert "a.tgz: " in str(error)
        assert not (folder / "out" / "t.txt").exists()
    else:
        assert (folder / "out" / "t.txt").stat().st_size <= limit
    allowed = {folder / "a.tgz", folder / "out", folder / "out" / "t.txt", folder / "out" / "t.txt.sha256"}
    assert set(folder.rglob("*")) <= allowed


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    data=st.binary(max_size=300) | st.binary(max_size=200).map(lambda noise: packed({"train.txt": BODY})[:-40] + noise)
)
@pytest.mark.fault("B7")
def test_b7_any_bytes_are_an_archive_or_a_clear_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "a.bin").write_bytes(data)
    try:
        archives.extract(folder / "a.bin", folder, [archives.Wanted("t.txt", "train.txt")])
    except UserError as error:
        assert "a.bin: " in str(error)


@pytest.mark.fault("B8")
def test_b8_a_bomb_is_stopped_at_the_declared_size(project, capsys):
    """A gigabyte of zeros in four megabytes: the same compressed block over and over, which gzip allows."""
    info = tarfile.TarInfo("train.txt")
    info.size = 1 << 30
    zeros = gzip.compress(bytes(1 << 22), 6)
    project.put("a.tgz", gzip.compress(info.tobuf()) + zeros * 257)
    project.declare({"train.txt": {"path": "a.tgz", "member": "train.txt", "member_bytes": 1 << 20}})
    began = time.monotonic()
    assert project.call("download") == 2
    assert "is longer than 1048576 bytes" in told(capsys)
    assert time.monotonic() - began < 5
    assert not (project.corpora / "train.txt").exists()


@pytest.mark.fault("B8")
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_b8_unpacked_sizes_are_bounded_for_all_members_together(project, capsys, monkeypatch, kind):
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 1 << 20)
    project.put("a.bin", packed({"train.txt": BODY, "other": bytes(1 << 20)}, kind))
    project.declare({"train.txt": {"path": "a.bin", "member": "train.txt"}})
    assert project.call("download") == 2
    assert "refused" in told(capsys)


@pytest.mark.fault("B9")
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_b9_companion_files_are_ignored(project, kind):
    """The archive of WikiText-2 that holds the published tokens has such a file, and not one in UTF-8."""
    junk = {"__MACOSX/w/._train.txt": b"\0\5\26\7\xff", "w/.DS_Store": b"\0\xff", "w/Thumbs.db": b"\xd0\xcf"}
    project.put("w.bin", packed({**junk, **{f"w/{split}.txt": text.encode() for split, text in TEXTS.items()}}, kind))
    project.declare({f"{split}.txt": {"path": "w.bin", "member": f"w/{split}.txt"} for split in TEXTS})
    assert project.call("download") == 0 and project.call("tokenise") == 0
    for name, junk_bytes in (("._train.txt", b"\0\xff"), (".DS_Store", b"\0"), ("Thumbs.db", b"\xd0")):
        (project.corpora / name).write_bytes(junk_bytes)
    before = (project.tokens / "train.npy").read_bytes()
    assert project.call("download") == 0 and project.call("tokenise") == 0
    assert (project.tokens / "train.npy").read_bytes() == before


# --- which text it is -----------------------------------------------------------------------------------------------
def published() -> dict[str, object]:
    """What a published corpus declares of its text."""
    lines = {
        split: [word for line in text.splitlines() for word in [*line.split(), "<eos>"]]
        for split, text in TEXTS.items()
    }
    stream = "".join(" ".join([*words, ""]) + "\n" for words in lines.values())
    return {
        "tokens": {split: len(words) for split, words in lines.items()},
        "vocabulary_size": len(set(lines["train"])),
        "token_sha256": hashlib.sha256(stream.encode()).hexdigest(),
    }


def as_files(change: Callable[[str], str] = str, **texts: str) -> Callable[[Project], None]:
    return lambda project: project.local(
        {s: change(text) for s, text in {**TEXTS, **texts}.items()}, expected=published()
    )


def in_archive(kind: str, folder: str, change: Callable[[str], str] = str) -> Callable[[Project], None]:
    def write(project: Project) -> None:
        members = {f"{folder}{split}.tokens": change(text).encode() for split, text in TEXTS.items()}
        project.put("a.bin", packed(members, kind))
        files = {f"{split}.txt": {"path": "a.bin", "member": f"{folder}{split}.tokens"} for split in TEXTS}
        project.declare(files, expected=published())

    return write


RIGHT = {
    "as it was published": as_files(),
    "other line ends": as_files(lambda text: text.replace("\n", "\r\n")),
    "blanks and tabs": as_files(lambda text: text.replace(" ", " \t ").replace("\n", "  \n")),
    "no last newline": as_files(lambda text: text.removesuffix("\n")),
    "in a zip": in_archive("zip", "x-v1/"),
    "in a tar.gz of another folder, with other line ends": in_archive(
        "tar.gz", "./data/a/b/", lambda text: text.replace("\n", "\r\n")
    ),
}
TRAIN = TEXTS["train"]
WRONG = {
    "a line is missing": as_files(train=TRAIN.replace("a dog and a cat ate fish\n", "", 1)),
    "in another order": as_files(train="\n".join(reversed(TRAIN.splitlines())) + "\n"),
    "one word is another": as_files(test=TEXTS["test"].replace("fish", "dog", 1)),
    "an article more": as_files(train=TRAIN * 2),
    "two files are swapped": as_files(valid=TEXTS["test"], test=TEXTS["valid"]),
    "without the <unk>": as_files(train=TRAIN.replace("<unk>", "hedgehog")),
    "lower case": as_files(train=TRAIN.replace("the", "The")),
    "no empty lines": as_files(train=TRAIN.replace("\n\n", "\n")),
    "cut off": as_files(train=TRAIN[: len(TRAIN) // 2]),
    "an error page": as_files(train=HTML.decode() + "\n"),
    "empty": as_files(valid=""),
    "in an archive, another text": in_archive("zip", "", lambda text: text.replace("cat", "dog", 1)),
}


@pytest.mark.fault("B5")
@pytest.mark.parametrize("variant", RIGHT.values(), ids=RIGHT.keys())
def test_b5_the_published_text_is_known_by_its_tokens(project, variant):
    variant(project)
    assert project.call("download") == 0 and project.call("tokenise") == 0
    assert corpus.counts(corpus.load(project.tokens)) == published()
    assert config.load_dataset("x", project.folder).identity == published()["token_sha256"]  # and with it the run_ids


@pytest.mark.fault("B6")
@pytest.mark.parametrize("variant", WRONG.values(), ids=WRONG.keys())
def test_b6_a_plausible_other_text_never_becomes_tokens(project, capsys, variant):
    variant(project)
    assert project.call("download") == 0
    assert project.call("tokenise") == 2
    assert told(capsys).startswith("error: x: ")
    assert not project.tokens.exists()


@pytest.mark.fault("B17")
def test_b17_equal_texts_are_refused_and_overlapping_ones_doubted(project, capsys):
    project.local({**TEXTS, "test": TEXTS["valid"]})
    project.call("download")
    assert project.call("tokenise") == 2
    assert "valid and test are the same text" in told(capsys)
    project.local({**TEXTS, "test": TEXTS["test"] + TRAIN[: TRAIN.index("\n\n")] + "\n"})
    project.call("download")
    capsys.readouterr()
    assert project.call("tokenise") == 0
    words = "100% of the lines of test with 8 words or more stand in train too"
    assert f"warning: x: {words}" in capsys.readouterr().err
    study = config.load_study(project.folder / "study.yaml")
    (line,) = (text for title, text in render.facts_of(study, collect.collect(study)) if title == "X")
    assert words in line and line.startswith("train 243, valid 12, test 31 tokens; 18 words; sha256 ")


@pytest.mark.fault("B17")
def test_b17_swapped_files_are_doubted(project, capsys):
    swapped = {"train": TEXTS["valid"] + "<unk>\n", "valid": TRAIN, "test": TEXTS["test"]}
    project.local(swapped)
    project.call("download")
    assert project.call("tokenise") == 0
    assert "valid has more tokens than train: are two files swapped?" in capsys.readouterr().err


@pytest.mark.fault("B17")
def test_b17_a_share_is_of_the_longer_lines():
    lines = {"train": ["a b c d e f g h", "a b", "h g f e d c b a"], "valid": ["a b", "h g f e d c b a", "c " * 9]}
    lines["test"] = ["a b"]
    made = tokenise.from_words(
        "x", {s: [w for line in ls for w in [*line.split(), "<eos>"]] for s, ls in lines.items()}
    )
    assert split_overlap.overlap(made, "valid", "train") == 0.5
    assert split_overlap.overlap(made, "test", "train") == 0.0


# --- what cannot be a corpus ----------------------------------------------------------------------------------------
SHORT = {
    "empty": ({"train": ""}, "tokenise", "train holds no words"),
    "blank lines": ({"train": "\n \n\t\n"}, "tokenise", "train holds no words"),
    "one token": ({"train": "the\n", "valid": "the the\n", "test": "the the the\n"}, "train", "need >= 16 tokens"),
    "shorter than a batch": ({"train": "the <unk>\n" * 5}, "train", "need >= 16 tokens"),
}


@pytest.mark.fault("B12")
@pytest.mark.parametrize(("texts", "step", "words"), SHORT.values(), ids=SHORT.keys())
def test_b12_too_little_text_says_how_much_is_needed(project, capsys, texts, step, words):
    project.local({**TEXTS, **texts})
    assert project.call("download") == 0
    if step == "train":
        pytest.importorskip("torch")
        assert project.call("tokenise") == 0
        path = config.load_study(project.folder / "study.yaml").runs[0].path
        code = program.main(["train", "--study", str(project.folder / "study.yaml"), "--run", path])
    else:
        code = project.call(step)
    assert code == 2
    assert words in told(capsys)


LONG_LINE = """
import resource, sys
from pathlib import Path
from softmax_bottleneck.corpora import tokenise
from softmax_bottleneck.store.errors import UserError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    tokenise.read_split(Path(sys.argv[1]))
except UserError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.fault("B15")
def test_b15_a_line_of_a_gigabyte_is_refused_in_bounded_memory(tmp_path):
    path = tmp_path / "train.txt"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    done = subprocess.run([sys.executable, "-c", LONG_LINE, str(path)], capture_output=True, text=True, timeout=60)
    message, grown = done.stdout.splitlines()
    assert message == f"{path}:1: line is longer than 67108864 bytes; break the text into lines"
    assert float(grown) < 300  # MiB


@pytest.mark.fault("B16")
def test_b16_unknown_words_without_unk_are_named(project, capsys):
    known = {split: text.replace("<unk>", "hedgehog") for split, text in TEXTS.items()}
    project.local({**known, "test": "one two three four five six\n"})
    project.call("download")
    assert project.call("tokenise") == 2
    message = told(capsys)
    assert "test holds 6 words that train does not hold: one, two, three, four, five;" in message and "<unk>" in message
    project.local({**TEXTS, "valid": "the <eos> cat\n"})
    project.call("download")
    assert project.call("tokenise") == 2
    assert "valid.txt:1: the text holds <eos>" in told(capsys)


# --- stale and foreign files ----------------------------------------------------------------------------------------
@pytest.mark.fault("B19")
def test_b19_an_edit_is_noticed_whatever_the_dates_say(project, capsys):
    project.local(TEXTS)
    assert project.call("download") == 0 and project.call("tokenise") == 0
    study = config.load_study(project.folder / "study.yaml")
    for path in (project.corpora / "train.txt", project.folder / "datasets" / "train.txt"):
        stat = path.stat()
        path.write_bytes(path.read_bytes().replace(b"cat", b"cow", 1))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert path.stat().st_size == stat.st_size
    assert project.call("tokenise") == 2
    assert "edited since it was brought here; run the download step again" in told(capsys)
    config.load_dataset.cache_clear()
    after = config.load_study(project.folder / "study.yaml")
    assert not {run.run_id for run in study.runs} & {run.run_id for run in after.runs}
    assert project.call("download") == 0 and project.call("tokenise") == 0
    assert "cow" in corpus.load(project.tokens).words


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files} | {
        str(folder): (folder.stat().st_mtime_ns, b"")
    }


@pytest.mark.fault("B20")
def test_b20_nothing_is_written_into_a_folder_of_data(project, tmp_path, monkeypatch):
    """The data on another file system where there is one, behind a link, and without the right to write."""
    shared = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    elsewhere = shared / f"faults-{os.getpid()}"
    elsewhere.mkdir()
    try:
        for split, text in TEXTS.items():
            (elsewhere / f"{split}.txt").write_text(text, encoding="utf-8")
            (elsewhere / f"{split}.txt").chmod(0o444)
        elsewhere.chmod(0o555)
        before = state_of(elsewhere)
        (project.folder / "datasets" / "link").symlink_to(elsewhere)
        project.declare({f"{split}.txt": {"path": f"link/{split}.txt"} for split in TEXTS})
        assert project.call("download") == 0 and project.call("tokenise") == 0
        (project.folder / "mirror").mkdir()
        (project.folder / "mirror" / "y").symlink_to(elsewhere)
        sums = {split: hashlib.sha256(text.encode()).hexdigest() for split, text in TEXTS.items()}
        hidden = {"addresses": ["https://example.org/x"], "bytes": 1}
        files = {f"{s}.txt": {**hidden, "sha256": sums[s], "bytes": len(TEXTS[s])} for s in TEXTS}
        project.declare(files, mirror="y")
        for path in project.corpora.iterdir():
            path.unlink()
        assert project.call("download", "--set", f"mirror={project.folder / 'mirror'}") == 0
        assert project.call("tokenise") == 0
        assert state_of(elsewhere) == before
    finally:
        elsewhere.chmod(0o755)
        for path in elsewhere.iterdir():
            path.unlink()
        elsewhere.rmdir()


# --- properties -----------------------------------------------------------------------------------------------------
WORD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" \t\n\r\0\ufeff"), min_size=1, max_size=4)
LINES = st.lists(st.lists(WORD.filter(lambda word: word != "<eos>"), max_size=5).map(" ".join), min_size=1, max_size=6)


@pytest.mark.fault("B14")
@settings(max_examples=60, derandomize=True, deadline=None)
@given(first=LINES, second=LINES)
def test_b14_streams_of_joined_files_are_joined_streams(tmp_path_factory, first, second):
    folder = tmp_path_factory.mktemp("joined")
    texts = ["".join(f"{line}\n" for line in lines) for lines in (first, second)]
    for name, text in (("a", texts[0]), ("b", texts[1]), ("ab", "".join(texts))):
        (folder / name).write_bytes(text.encode())
    streams = {name: tokenise.read_split(folder / name) for name in ("a", "b", "ab")}
    assert streams["ab"] == streams["a"] + streams["b"]
    if any(word != "<eos>" for word in streams["a"]) and streams["a"] != streams["b"] != streams["ab"]:
        splits = {"train": [*streams["ab"], "<unk>", "x", "<eos>"], "valid": [*streams["a"], "x"], "test": ["x"]}
        made = tokenise.from_words("x", splits)
        assert np.bincount(made.train).sum() == len(splits["train"]) == corpus.counts(made)["tokens"]["train"]


@pytest.mark.fault("B13", "G8")
@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    words=st.lists(
        WORD.filter(lambda w: w not in {"<eos>", "x", "y"}) | st.sampled_from(["null", "nan", '"', "$", "true"])
    )
)
def test_b13_vocabularies_come_back_as_they_were(tmp_path_factory, words):
    folder = tmp_path_factory.mktemp("vocabulary")
    made = tokenise.from_words(
        "x", {"train": [*words, "x", "y", "<eos>"], "valid": ["x", "<eos>"], "test": ["y", "<eos>"]}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artefacts.os, "fsync", lambda descriptor: None)
        corpus.save(made, folder)
    assert corpus.load(folder).words == made.words
    assert json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))["words"] == list(made.words)


def test_an_archive_that_is_not_there_or_named_twice_is_told(project, capsys):
    project.declare({"train.txt": {"path": "a.zip", "member": "t"}})
    assert project.call("download") == 2
    project.put("a.zip", packed({"w/train.txt": BODY}))
    project.put("b/a.zip", packed({"w/train.txt": BODY}))
    capsys.readouterr()
    assert project.call("download") == 2
    assert "no member 't'; it holds 'w/train.txt'" in told(capsys)
    project.declare({"train.txt": {"path": "a.zip", "member": "train.txt"}})
    assert project.call("download") == 2
    assert "did you mean 'w/train.txt'?" in told(capsys)
    files = {"train.txt": {"path": "a.zip", "member": "t"}, "test.txt": {"path": "b/a.zip", "member": "t"}}
    project.declare(files)
    assert project.call("download") == 2
    assert "files.train.txt: another file or archive is called 'a.zip' too" in told(capsys)
    with pytest.raises(DataError, match="another file or archive is called"):
        archives.by_archive({"train.txt": {"path": "train.txt", "member": "train.txt"}}, "x.yaml")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"addresses": ["https://example.org/x"]}, "'sha256' is a dependency of 'addresses'"),
        ({"path": "x", "member_bytes": 3}, "'member' is a dependency of 'member_bytes'"),
        ({"addresses": ["http://example.org/x"], "sha256": "0" * 64, "bytes": 1}, "must match ^https://"),
        ({"sha256": "0" * 64}, "'path' is a required property"),
    ],
)
def test_no_file_is_fetched_unchecked(project, capsys, entry, words):
    project.declare({"train.txt": entry})
    assert project.call("download") == 2
    assert words in told(capsys)
