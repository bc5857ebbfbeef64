"""Fetching: a wrong file never gets the name of the right one, and a message says what to do."""

import hashlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from corpus_project import Project, error_of
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora import sources
from softmax_bottleneck.corpora.sources import Source, Transfer
from softmax_bottleneck.steps.download import download
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.study import load_dataset

DATASETS = Path(__file__).parents[2] / "config" / "datasets"
BODY = b"some text\nof two lines\n" * 50
SHA = hashlib.sha256(BODY).hexdigest()
HTML = b"<!DOCTYPE html><html><body>Please log in</body></html>"


class Server(BaseHTTPRequestHandler):
    """A server with every bad habit; `asked` records the paths."""

    asked: ClassVar[list[str]] = []
    over: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, body, length = {
            "/html": (200, HTML, len(HTML)), "/html-long": (200, HTML.ljust(len(BODY)), len(BODY)),
            "/short": (200, BODY[:100], len(BODY)), "/long": (200, BODY * 2, 2 * len(BODY)),
            "/wrong": (200, BODY[::-1], len(BODY)), "/redirect": (302, b"", 0), "/elsewhere": (302, b"", 0),
            "/loop": (302, b"", 0), "/flaky": (200 if self.asked.count("/flaky") > 1 else 503, BODY, len(BODY)),
            "/403": (403, HTML, len(HTML)), "/404": (404, HTML, len(HTML)), "/500": (500, b"", 0),
        }.get(self.path, (200, BODY, len(BODY)))  # fmt: skip
        if self.path == "/hang":
            self.over.wait(20)
            return
        if self.path == "/trickle":  # never silent for long, and never done with its headers
            for byte in itertools.chain(b"HTTP/1.1 200 OK\r\nX: ", itertools.repeat(120)):
                self.wfile.write(bytes([byte]))
                if self.over.wait(0.02):
                    return
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if status == 302:
            places = {"/redirect": "/good", "/loop": "/loop", "/elsewhere": "ftp://127.0.0.1/good"}
            self.send_header("Location", places[self.path])
        self.end_headers()
        step = 50 if self.path == "/slow" else len(body) or 1
        for start in range(0, len(body), step):
            self.wfile.write(body[start : start + step])
            if self.path == "/slow" and self.over.wait(0.1):
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


def fetch(folder: Path, *addresses: str, mirror: Path | None = None, scheme: str = "http") -> list[float]:
    """Fetch a.txt; return the pauses between attempts."""
    pauses: list[float] = []
    how = Transfer(schemes=(scheme,), time_limit_s=0.5, silence_limit_s=0.2, sleep=pauses.append)
    sources.fetch([Source("a.txt", SHA, len(BODY), addresses)], folder, mirror, how)
    return pauses


REASONS = {
    "/403": ("HTTP 403", 1), "/404": ("HTTP 404", 1), "/500": ("HTTP 500", 3), "/loop": ("HTTP 302", 1),
    "/hang": ("timed out", 3),
    "/slow": ("slower than the limit of 0.5 s", 1),  # a slow server does not become faster
    "/trickle": ("slower than the limit of 0.5 s", 1),
    "/html": (f"got {len(HTML)} of 1150 bytes (the server sent an HTML page)", 1),
    "/html-long": ("(the server sent an HTML page)", 1),
    "/short": ("got 100 of 1150 bytes", 3),
    "/long": ("longer than the declared 1150 bytes", 1),
    "/wrong": (f"sha256 is {hashlib.sha256(BODY[::-1]).hexdigest()}, expected {SHA}", 1),
    "/elsewhere": ("only http addresses are allowed", 1),
}  # fmt: skip


def test_temporary_failures_are_retried_and_redirects_within_the_scheme_followed(server: str, tmp_path: Path) -> None:
    assert fetch(tmp_path / "a", server + "/flaky") == [1.0] and Server.asked == ["/flaky", "/flaky"]
    assert fetch(tmp_path / "b", server + "/redirect") == []
    with pytest.raises(DataError, match="only https addresses are allowed"):
        fetch(tmp_path / "c", server + "/good", scheme=Transfer().schemes[0])
    assert Server.asked[2:] == ["/redirect", "/good"]


@pytest.mark.fault("B1", "B2", "B3", "B4", "B22")
@pytest.mark.parametrize(("first", "reason", "tries"), [(path, *rest) for path, rest in REASONS.items()])
def test_the_next_address_is_tried_in_bounded_time(server: str, tmp_path, first: str, reason: str, tries: int) -> None:
    began = time.monotonic()
    pauses = fetch(tmp_path / "ok", server + first, server + "/good")
    assert (tmp_path / "ok" / "a.txt").read_bytes() == BODY and artefacts.is_sound(tmp_path / "ok" / "a.txt")
    assert pauses == [1.0, 2.0][: tries - 1]
    if first != "/loop":
        assert Server.asked.count(first) == tries
    with pytest.raises(DataError) as caught:
        fetch(tmp_path / "bad", server + first, server + "/404")
    message = str(caught.value)
    assert f"{server}{first}: " in message and reason in message and f"{server}/404: HTTP 404" in message
    assert f"By hand: put the file (1150 bytes, sha256 {SHA})" in message
    assert list((tmp_path / "bad").iterdir()) == []
    assert time.monotonic() - began < 20


@pytest.mark.fault("B1", "B10")
@pytest.mark.parametrize("error", [OSError(101, "Network is unreachable"), socket.gaierror(-2, "Name not known")])
def test_without_network_the_message_says_what_to_do_by_hand(project, monkeypatch, capsys, error: OSError) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", unreachable)
    monkeypatch.setattr(sources, "Transfer", partial(sources.Transfer, sleep=lambda _: None))
    project.declare({"train.txt": {"addresses": ["https://example.org/x"], "sha256": SHA, "bytes": len(BODY)}})
    assert project.call("download") == 2
    message = error_of(capsys)
    for part in ("no connection", "By hand", f"{len(BODY)} bytes", SHA, "results/corpora/x/train.txt"):
        assert part in message
    (project.corpora / "train.txt").write_bytes(BODY)
    assert project.call("download") == 0


def test_the_mirror_comes_first_and_is_checked_too(server: str, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "a.txt").write_bytes(BODY)
    fetch(tmp_path / "one", server + "/good", mirror=mirror)
    assert Server.asked == []
    (mirror / "a.txt").write_bytes(BODY[::-1])
    fetch(tmp_path / "two", server + "/good", mirror=mirror)
    assert Server.asked == ["/good"]
    assert (tmp_path / "two" / "a.txt").read_bytes() == BODY
    with pytest.raises(DataError, match=r"mirror/a\.txt: sha256 is"):
        fetch(tmp_path / "three", mirror=mirror)


def test_local_files_need_no_hash(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("a b\n", encoding="utf-8")
    file = Source("train.txt", path=mine)
    sources.fetch([file], tmp_path / "corpora")
    mine.write_text("c d\n", encoding="utf-8")
    sources.fetch([file], tmp_path / "corpora", mirror=tmp_path)
    assert (tmp_path / "corpora" / "train.txt").read_text(encoding="utf-8") == "c d\n"
    for wrong, message in (
        (Source("train.txt", "0" * 64, path=mine), "correct `path` or `sha256`"),
        (Source("train.txt", path=tmp_path / "gone.txt"), r"gone\.txt: No such file"),
    ):
        with pytest.raises(DataError, match=message):
            sources.fetch([wrong], tmp_path / "other")


INTERRUPTED = """
import sys
from pathlib import Path
from softmax_bottleneck.corpora.sources import Source, Transfer, fetch
file = Source("a.txt", sys.argv[3], int(sys.argv[4]), (sys.argv[1],))
fetch([file], Path(sys.argv[2]), None, Transfer(schemes=("http",)))
"""


@pytest.mark.fault("B11")
def test_a_partial_file_never_takes_the_name(server: str, tmp_path: Path) -> None:
    words = [server + "/slow", str(tmp_path / "x"), SHA, str(len(BODY))]
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED, *words], stderr=subprocess.DEVNULL) as killed:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "x").glob(".*.tmp")) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
    assert [path.suffix for path in (tmp_path / "x").iterdir()] == [".tmp"]
    fetch(tmp_path / "x", server + "/good")
    assert (tmp_path / "x" / "a.txt").read_bytes() == BODY


@pytest.mark.fault("B24")
@pytest.mark.parametrize("form", [
    BODY.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + BODY, BODY[:-1],
    b"\xef\xbb\xbf" + BODY.replace(b"\n", b"\r\n")[:-2],
])  # fmt: skip
def test_a_copy_with_other_line_ends_becomes_the_declared_text(tmp_path: Path, form: bytes) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "a.txt").write_bytes(form)
    assert fetch(tmp_path, mirror=tmp_path / "mirror") == []
    assert artefacts.read_bytes(tmp_path / "a.txt") == BODY
    (tmp_path / "mirror" / "a.txt").write_bytes(form + b"more\n")
    wrong = Source("b.txt", SHA, len(BODY), path=tmp_path / "mirror" / "a.txt")
    with pytest.raises(DataError, match=r"a\.txt: "):
        sources.fetch([wrong], tmp_path)


@pytest.mark.fault("B24")
@pytest.mark.parametrize("data", [BODY[:-30], BODY[::-1], None])
def test_a_wrong_local_file_is_read_once(tmp_path: Path, data: bytes | None) -> None:
    if data is not None:
        (tmp_path / "local.txt").write_bytes(data)
    pauses: list[float] = []
    file = Source("a.txt", SHA, len(BODY), path=tmp_path / "local.txt")
    with pytest.raises(DataError) as refused:
        sources.fetch([file], tmp_path / "corpora", how=Transfer(sleep=pauses.append))
    assert pauses == [] and str(refused.value).count("local.txt") == 1


@pytest.mark.fault("B24")
@pytest.mark.parametrize("named", ["~/no-such-mirror", "no-such-mirror"])
def test_a_mirror_folder_that_does_not_exist_is_named(project: Project, capsys, monkeypatch, named: str) -> None:
    monkeypatch.setenv("HOME", str(project.folder))
    project.declare({"train.txt": {"addresses": ["https://127.0.0.1:9/a.txt"], "sha256": SHA, "bytes": 9}}, mirror="x")
    monkeypatch.setattr(sources, "Transfer", partial(Transfer, attempts=1))
    assert project.call("download", "--set", f"mirror={named}") == 2
    folder = f"{project.folder}/no-such-mirror/x" if named.startswith("~") else f"{named}/x"
    note, *_, error = capsys.readouterr().err.splitlines()
    assert f"no folder {folder}" in note and f"{folder}/train.txt: No such file" in error


@pytest.mark.corpora
def test_the_mirror_holds_what_is_declared(mirror: Path, tmp_path: Path) -> None:
    dataset = load_dataset("word-sim", DATASETS)
    sources.fetch(sources.sources(dataset), tmp_path, mirror / dataset.mirror)
    for name, entry in dataset.files.items():
        rows = [row.split() for row in (tmp_path / name).read_text(encoding="utf-8").splitlines() if row.strip()]
        assert len(rows) == entry["pairs"]
        assert {len(row) for row in rows} == {3}


def test_a_corpus_that_is_cut_from_another_names_it() -> None:
    study = config.load_study(DATASETS.parent / "ptb-cpu.yaml")
    with pytest.raises(UserError, match=r"ptb-small: .*download ptb"):
        download(study, "ptb-small", print)
