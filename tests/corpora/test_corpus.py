"""Reading, dictionary, streams, baselines and fetching of corpora."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from softmax_bottleneck.corpora import corpus, download, tokenise
from softmax_bottleneck.corpora.corpus import EOS, UNK
from softmax_bottleneck.corpora.download import SourceFile, Transfer
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.study import load_dataset

ROOT = Path(__file__).parents[2]
DATASETS = ROOT / "config" / "datasets"

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters=" \t\n\r\0\ufeff")
WORDS = st.text(LETTERS, min_size=1, max_size=5).filter(lambda word: word != EOS)
LINES = st.lists(st.lists(WORDS, max_size=6), min_size=1, max_size=8)


def stream(lines):
    return [word for line in lines for word in [*line, EOS]]


def small(train="the cat sat\nthe <unk> ran\n", valid="the cat\n", test="the ran sat\n"):
    return tokenise.from_words("small", {k: stream([x.split() for x in v.splitlines()]) for k, v in
                                     {"train": train, "valid": valid, "test": test}.items()})  # fmt: skip


# --- reading --------------------------------------------------------------------------------------------------------
@pytest.mark.fault("B13", "B14")
@given(LINES, st.sampled_from(["\n", "\r\n"]), st.sampled_from([" ", "  ", "\t", " \t "]), st.booleans(), st.booleans())
@example([["a\u00a0b", "c\u2028d", "e\u0085f"]], "\n", " ", True, True)  # Unicode spaces and line ends are inside words
@example([["null", "nan", '"', "$", "true"]], "\n", " ", True, False)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_every_way_to_write_a_text_gives_the_same_words(tmp_path_factory, lines, newline, gap, last_newline, trailing):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    ends = gap if trailing else ""
    text = newline.join(gap.join(line) + ends for line in lines) + newline
    if not last_newline and lines[-1]:
        text = text.removesuffix(newline)
    path.write_bytes(text.encode())
    assert tokenise.read_split(path) == stream(lines)


@pytest.mark.fault("B13")
@given(st.binary(max_size=200))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_any_bytes_are_read_or_refused_in_words(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "a.txt"
    path.write_bytes(data)
    try:
        words = tokenise.read_split(path)
    except UserError as error:
        assert str(path) in str(error)
    else:
        assert words.count(EOS) == data.count(b"\n") + (not data.endswith(b"\n") and data != b"")


@pytest.mark.fault("B13", "B15", "B16", "B21")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"fine\nbad \xff here\n", ":2:5: byte 0xff is not UTF-8"),
        (b"\xef\xbb\xbfword\n", ":1: begins with a byte-order mark"),
        ("word\n".encode("utf-16"), ":1:4: holds a NUL"),
        (b"a\n\nb\0c\n", ":3:2: holds a NUL"),
        (b"\xed\xa0\x80\n", ":1:1: byte 0xed"),  # a lone surrogate
        (b"ok\none\rtwo\rthree\r", r":2:4: holds a lone \\r; end lines with \\n"),  # as Macs wrote until 2001
        (b"one\r\r\n", r":1:4: holds a lone \\r"),
        (b"a <eos> b\n", ":1: the text holds <eos>"),
        (b"ok\n" + b"x" * 101 + b"\n", ":2: line is longer than 100 bytes"),
    ],
)
def test_unsound_text_is_refused_with_its_place(tmp_path, data, message):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.txt" + message.replace("(", r"\(")):
        tokenise.read_split(path, max_line_bytes=100)


def test_a_line_of_exactly_the_limit_is_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 100 + b"\r\n" + b"y" * 100 + b"\n" + b"z" * 100)
    assert tokenise.read_split(path, max_line_bytes=100) == ["x" * 100, EOS, "y" * 100, EOS, "z" * 100, EOS]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"valid\.txt: cannot be read"):
        tokenise.read_split(tmp_path / "valid.txt")


# --- dictionary -----------------------------------------------------------------------------------------------------
@given(LINES, LINES, LINES)
@settings(max_examples=40, derandomize=True, deadline=None)
def test_ids_follow_first_appearance_as_in_the_published_reader(train, valid, test):
    texts = {"train": [*train, [UNK, "seen"]], "valid": [*valid, [UNK]], "test": [*test, ["seen"]]}
    known = set(stream(texts["train"]))
    texts |= {k: [[w if w in known else UNK for w in line] for line in texts[k]] for k in ("valid", "test")}
    if any(texts[a] == texts[b] for a, b in (("train", "valid"), ("train", "test"), ("valid", "test"))):
        return
    made = tokenise.from_words("x", {split: stream(lines) for split, lines in texts.items()})
    ids: dict[str, int] = {}  # the published loop: one pass per split, a new word gets the next id
    for split in ("train", "valid", "test"):
        for line in texts[split]:
            for word in [*line, EOS]:
                ids.setdefault(word, len(ids))
        assert made.splits[split].tolist() == [ids[word] for word in stream(texts[split])]
        assert made.splits[split].dtype == np.int32
    assert made.words == tuple(ids)


@pytest.mark.fault("B16")
def test_unknown_words_become_unk_or_are_named():
    made = small(test="the dog sat\n")
    assert [made.words[i] for i in made.test] == ["the", UNK, "sat", EOS]
    with pytest.raises(DataError, match="test holds 2 words that train does not hold: dog, ate"):
        small(train="the cat sat\n", test="the dog ate dog\n")


@pytest.mark.fault("B12", "B17")
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"train": ""}, "train holds no words"),
        ({"valid": "\n\n\n"}, "valid holds no words"),
        ({"valid": "the cat\n", "test": "the cat\n"}, "valid and test are the same text"),
        ({"train": "the cat\n"}, "train and valid are the same text"),
    ],
)
def test_corpora_that_cannot_be_studied_are_refused(texts, message):
    with pytest.raises(DataError, match=message):
        small(**texts)


@pytest.mark.fault("B18")
def test_ids_do_not_depend_on_hash_seed_or_locale():
    code = (
        "from softmax_bottleneck.corpora import corpus as c, tokenise as t; w='Iı iİ b a c <unk>'.split();"
        "x=t.from_words('x',dict(train=w+['<eos>'],valid=['a','<eos>'],test=['b','<eos>']));print(ascii(x.words),c.token_sha256(x))"
    )
    places = [{"PYTHONHASHSEED": seed, "LC_ALL": name} for seed, name in (("0", "C"), ("1", "C.UTF-8"), ("7", "tr_TR"))]
    path = {"PYTHONPATH": str(ROOT / "workflow")}
    runs = [subprocess.run([sys.executable, "-c", code], env=os.environ | path | place, capture_output=True, check=True)
            for place in places]  # fmt: skip
    assert len({run.stdout for run in runs}) == 1


@pytest.mark.fault("B5")
def test_token_hash_is_of_the_words_not_of_the_ids():
    made = small()
    text = "the cat sat <eos> the <unk> ran <eos> \nthe cat <eos> \nthe ran sat <eos> \n"
    assert corpus.token_sha256(made) == hashlib.sha256(text.encode()).hexdigest()
    order = np.random.default_rng(0).permutation(made.vocabulary_size)
    back = np.argsort(order).astype(np.int32)
    again = corpus.Corpus("other", tuple(made.words[i] for i in order), *(back[ids] for ids in made.splits.values()))
    assert corpus.token_sha256(again) == corpus.token_sha256(made)
    assert corpus.token_sha256(small(test="the sat ran\n")) != corpus.token_sha256(made)


def test_expected_counts_name_what_differs():
    made = small()
    found = corpus.counts(made)
    corpus.check_expected(made, found)
    with pytest.raises(DataError, match="small: valid tokens: expected 4, got 3"):
        corpus.check_expected(made, {"tokens": {"train": 8, "valid": 4}})
    with pytest.raises(DataError, match="vocabulary_size: expected 7, got 6"):
        corpus.check_expected(made, {"vocabulary_size": 7})
    with pytest.raises(DataError, match=f"token_sha256: expected {'0' * 64}, got {found['token_sha256']}"):
        corpus.check_expected(made, {"token_sha256": "0" * 64})


# --- the real corpora -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module", params=["ptb", "wikitext-2"])
def real(request, mirror):
    dataset = load_dataset(request.param, DATASETS)
    return dataset, tokenise.read_corpus(dataset.name, mirror / dataset.mirror)


@pytest.mark.fault("B5")
@pytest.mark.corpora
def test_real_corpora_are_the_published_ones(real):
    dataset, found = real
    corpus.check_expected(found, dataset.expected)
    tokens, size, eos, lengths = {  # published counts; train rows per batch size
        "ptb": ((929_589, 73_760, 82_430), 10_000, 24, {20: 46_479, 12: 77_465}),
        "wikitext-2": ((2_088_628, 217_646, 245_569), 33_278, 0, {80: 26_107, 15: 139_241}),
    }[dataset.name]
    assert tuple(len(ids) for ids in found.splits.values()) == tokens
    assert (found.vocabulary_size, found.words[eos]) == (size, EOS)
    assert {batch: len(corpus.batchify(found.train, batch)) for batch in lengths} == lengths
    assert np.isin(found.test, found.train).all()
    assert np.isin(found.valid, found.train).all()


@pytest.mark.fault("B6")
@pytest.mark.corpora
def test_a_line_less_is_another_corpus(mirror, tmp_path):
    dataset = load_dataset("ptb", DATASETS)
    for split in corpus.SPLITS:
        lines = (mirror / "ptb" / f"{split}.txt").read_bytes().splitlines(keepends=True)
        (tmp_path / f"{split}.txt").write_bytes(b"".join(lines[:-1] if split == "test" else lines))
    with pytest.raises(DataError, match="ptb: test tokens: expected 82430, got"):
        corpus.check_expected(tokenise.read_corpus("ptb", tmp_path), dataset.expected)


@pytest.mark.corpora
def test_small_penn_treebank_is_as_declared(mirror):
    dataset = load_dataset("ptb-small", DATASETS)
    whole = tokenise.read_corpus("ptb", mirror / "ptb")
    found = tokenise.restrict(whole, dataset.vocabulary_size, dataset.train_tokens, dataset.name)
    corpus.check_expected(found, dataset.expected)
    # An earlier, independent program read 199 and 90 off these texts.
    assert round(corpus.unigram_perplexity(found)) == 199
    assert corpus.bigram_perplexity(found) == pytest.approx(90, abs=1)


# --- streams --------------------------------------------------------------------------------------------------------
@given(st.integers(1, 7), st.integers(0, 60))
@settings(derandomize=True, deadline=None)
def test_batches_are_stretches_side_by_side(batch_size, tokens):
    ids = np.arange(tokens, dtype=np.int32)
    rows = tokens // batch_size
    if rows < 2:
        with pytest.raises(DataError, match=f"need >= {2 * batch_size} tokens"):
            corpus.batchify(ids, batch_size)
        return
    laid = corpus.batchify(ids, batch_size)
    assert laid.tolist() == [[column * rows + row for column in range(batch_size)] for row in range(rows)]
    assert laid.flags.c_contiguous


@pytest.mark.fault("B18")
def test_restrict_keeps_the_frequent_words_and_numbers_them_anew():
    made = small(train="b b b a a c d <unk>\nc a b d\n", valid="d c b a\n", test="a d\n")
    cut = tokenise.restrict(made, 4, 6, "cut")  # b, a and the two that are always kept
    assert cut.words == ("b", "a", UNK, EOS)
    assert [cut.words[i] for i in cut.train] == ["b", "b", "b", "a", "a", UNK]
    assert [cut.words[i] for i in cut.valid] == [UNK, UNK, "b", "a", EOS]
    tie = tokenise.restrict(made, 5, 6)  # c and d are equally frequent: c comes first
    assert tie.words == ("b", "a", "c", UNK, EOS)
    for size, tokens in ((2, 6), (7, 6), (4, 1), (4, 100)):
        with pytest.raises(DataError, match=r"vocabulary_size: |train_tokens: "):
            tokenise.restrict(made, size, tokens)


# --- baselines ------------------------------------------------------------------------------------------------------
def test_baselines_against_plain_counting():
    rng = np.random.default_rng(3)
    train, test = rng.integers(0, 9, 400), rng.integers(0, 10, 80)  # word 9 is not in train
    text = corpus.Corpus("x", tuple("abcdefghij"), *(ids.astype(np.int32) for ids in (train, test, test)))
    count, pairs = Counter(train.tolist()), Counter(zip(train[:-1].tolist(), train[1:].tolist(), strict=True))
    unigram = {word: (count[word] + 1) / (400 + 10) for word in range(10)}
    one = [-math.log(unigram[word]) for word in test[1:].tolist()]
    assert corpus.unigram_perplexity(text) == pytest.approx(math.exp(math.fsum(one) / 79), rel=1e-12)
    two = []
    for before, word in zip(test[:-1].tolist(), test[1:].tolist(), strict=True):
        followers = {pair: c for pair, c in pairs.items() if pair[0] == before}
        total, types = sum(followers.values()), len(followers)
        seen = followers.get((before, word), 0) + types * unigram[word]
        two.append(-math.log(seen / (total + types) if total else unigram[word]))
    assert corpus.bigram_perplexity(text) == pytest.approx(math.exp(math.fsum(two) / 79), rel=1e-12)


# --- artefacts ------------------------------------------------------------------------------------------------------
def test_saved_corpora_come_back_and_damage_is_noticed(tmp_path):
    made = small(train='null nan " $x true\n<unk> é\n', valid="nan é\n", test="true\n")
    corpus.save(made, tmp_path, {"train.txt": "0" * 64})
    back = corpus.load(tmp_path)
    assert (back.name, back.words) == (made.name, made.words)
    assert all(np.array_equal(back.splits[split], made.splits[split]) for split in corpus.SPLITS)
    assert artefacts.read_json(tmp_path / "vocabulary.json")["provenance"]["parents"] == {"train.txt": "0" * 64}
    artefacts.write_npy(tmp_path / "test.npy", made.valid)  # sound, but another corpus'
    with pytest.raises(DataError, match="test tokens"):
        corpus.load(tmp_path)
    damaged = bytearray((tmp_path / "train.npy").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "train.npy").write_bytes(damaged)
    with pytest.raises(DataError, match=r"train\.npy: content does not match"):
        corpus.load(tmp_path)


# --- fetching -------------------------------------------------------------------------------------------------------
BODY = b"some text\nof two lines\n" * 50
SHA = hashlib.sha256(BODY).hexdigest()


class Server(BaseHTTPRequestHandler):
    """A server with every bad habit; `asked` records the paths."""

    asked: list[str] = []  # noqa: RUF012 - shared with the test on purpose

    def do_GET(self):
        self.asked.append(self.path)
        status, body, length = {
            "/good": (200, BODY, len(BODY)),
            "/html": (200, b"<!DOCTYPE html><p>Please log in</p>", 35),
            "/short": (200, BODY[:100], len(BODY)),
            "/long": (200, BODY * 2, 2 * len(BODY)),
            "/wrong": (200, BODY[::-1], len(BODY)),
            "/redirect": (302, b"", 0),
            "/elsewhere": (302, b"", 0),
            "/flaky": (200 if self.asked.count("/flaky") > 1 else 503, BODY, len(BODY)),
            "/slow": (200, BODY, len(BODY)),
        }.get(self.path, (404, b"", 0))
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if status == 302:
            self.send_header("Location", "/good" if self.path == "/redirect" else "ftp://127.0.0.1/good")
        self.end_headers()
        for start in range(0, len(body), 50):
            self.wfile.write(body[start : start + 50])
            if self.path == "/slow":
                self.wfile.flush()
                threading.Event().wait(0.02)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    Server.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def fetch(folder, *addresses, mirror=None, sha256=SHA, time_limit=5.0, schemes=("http",)):
    pauses: list[float] = []
    how = Transfer(schemes=schemes, time_limit_s=time_limit, silence_limit_s=2.0, sleep=pauses.append)
    download.fetch([SourceFile("a.txt", sha256, len(BODY), addresses)], folder, mirror, how)
    return pauses


@pytest.mark.fault("B1", "B2", "B4")
@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ("/missing", "HTTP 404"),
        ("/html", "got 35 of 1150 bytes (the server sent an HTML page)"),
        ("/short", "got 100 of 1150 bytes"),
        ("/long", "longer than the declared 1150 bytes"),
        ("/wrong", f"sha256 is {hashlib.sha256(BODY[::-1]).hexdigest()}, expected {SHA}"),
        ("/elsewhere", "only http addresses are allowed"),
    ],
)
def test_the_next_address_is_tried_and_every_attempt_is_told(server, tmp_path, first, reason):
    fetch(tmp_path / "ok", server + first, server + "/good")
    assert (tmp_path / "ok" / "a.txt").read_bytes() == BODY
    assert artefacts.is_sound(tmp_path / "ok" / "a.txt")
    with pytest.raises(DataError) as caught:
        fetch(tmp_path / "bad", server + first, server + "/gone")
    message = str(caught.value)
    assert f"{server}{first}: {reason}" in message
    assert f"{server}/gone: HTTP 404" in message
    assert f"By hand: put the file (1150 bytes, sha256 {SHA})" in message
    assert list((tmp_path / "bad").iterdir()) == []


@pytest.mark.fault("B3")
def test_a_passing_trouble_is_tried_again_after_a_pause(server, tmp_path):
    assert fetch(tmp_path, server + "/flaky") == [1.0]
    assert Server.asked == ["/flaky", "/flaky"]


def test_redirects_within_the_scheme_are_followed(server, tmp_path):
    fetch(tmp_path, server + "/redirect")
    assert (tmp_path / "a.txt").read_bytes() == BODY


@pytest.mark.fault("B3")
def test_slow_servers_meet_the_time_limit(server, tmp_path):
    with pytest.raises(DataError, match=r"slower than the limit of 0\.1 s"):
        fetch(tmp_path, server + "/slow", time_limit=0.1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("B10")
def test_without_network_the_advice_names_file_and_hash(tmp_path):
    with pytest.raises(DataError, match=rf"no connection .* sha256 {SHA}\) at .*a\.txt or name a mirror folder"):
        fetch(tmp_path, "http://127.0.0.1:1/a.txt")


def test_only_https_by_default(server, tmp_path):
    with pytest.raises(DataError, match="only https addresses are allowed"):
        fetch(tmp_path, server + "/good", schemes=Transfer().schemes)
    assert Server.asked == []


def test_the_mirror_comes_first_and_is_checked_too(server, tmp_path):
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


@pytest.mark.fault("B10", "B19")
def test_files_that_are_right_stay_and_others_are_replaced(server, tmp_path):
    target = tmp_path / "a.txt"
    target.write_bytes(BODY)  # put there by hand, no hash beside it
    fetch(tmp_path, server + "/good")
    assert Server.asked == []
    assert artefacts.is_sound(target)
    target.write_bytes(b"x" * len(BODY))  # same size, other content
    fetch(tmp_path, server + "/good")
    assert target.read_bytes() == BODY


def test_local_files_may_go_without_a_hash(tmp_path):
    (tmp_path / "mine.txt").write_text("a b\n", encoding="utf-8")
    files = download.source_files({"train.txt": {"path": "mine.txt"}}, tmp_path)
    download.fetch(files, tmp_path / "corpora")
    (tmp_path / "mine.txt").write_text("c d\n", encoding="utf-8")
    download.fetch(files, tmp_path / "corpora", mirror=tmp_path)
    assert (tmp_path / "corpora" / "train.txt").read_text(encoding="utf-8") == "c d\n"
    wrong = download.source_files({"train.txt": {"path": "mine.txt", "sha256": "0" * 64}}, tmp_path)
    with pytest.raises(DataError, match="correct `path` or `sha256`"):
        download.fetch(wrong, tmp_path / "corpora")
    gone = download.source_files({"train.txt": {"path": "gone.txt"}}, tmp_path)
    with pytest.raises(DataError, match=r"gone\.txt: No such file"):
        download.fetch(gone, tmp_path / "other")


# --- declarations ---------------------------------------------------------------------------------------------------
def test_every_fetched_file_is_declared_in_full():
    for path in sorted(DATASETS.glob("*.yaml")):
        dataset = load_dataset(path.stem, DATASETS)
        for name, entry in dataset.files.items():
            if "path" not in entry:
                assert entry["addresses"] and len(entry["sha256"]) == 64 and entry["bytes"] > 0, (path, name)
        if dataset.kind == "corpus":
            assert dataset.base or {f"{split}.txt" for split in corpus.SPLITS} == set(dataset.files), path


@pytest.mark.corpora
def test_the_mirror_holds_what_is_declared(mirror, tmp_path):
    dataset = load_dataset("word-sim", DATASETS)
    assert len(dataset.files) == 13
    download.fetch(download.source_files(dataset.files, DATASETS), tmp_path, mirror / dataset.mirror)
    for name, entry in dataset.files.items():
        rows = [row.split() for row in (tmp_path / name).read_text(encoding="utf-8").splitlines() if row.strip()]
        assert len(rows) == entry["pairs"]
        assert {len(row) for row in rows} == {3}
