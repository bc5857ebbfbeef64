"""Texts become words and ids as in the published reader; whatever is no clean text is rejected with its place."""

import hashlib
import os

import numpy as np
import pytest
from corpus_project import TEXTS, error_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora import corpus, words
from softmax_bottleneck.corpora.corpus import EOS, UNK
from softmax_bottleneck.corpora.corpus_warnings import corpus_warnings
from softmax_bottleneck.store.errors import DataError
from test_archives import packed

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters=" \t\n\r\0\ufeff")
WORDS = st.text(LETTERS, min_size=1, max_size=5).filter(lambda word: word != EOS)
LINES = st.lists(st.lists(WORDS, max_size=6), min_size=1, max_size=8)


def stream(lines):
    return [word for line in lines for word in [*line, EOS]]


def small(train="the cat sat\nthe <unk> ran\n", valid="the cat\n", test="the ran sat\n"):
    texts = {"train": train, "valid": valid, "test": test}
    return words.from_words("small", {k: stream(x.split() for x in v.splitlines()) for k, v in texts.items()})


@pytest.mark.fault("B13", "B14")
@given(LINES, st.sampled_from(["\n", "\r\n"]), st.sampled_from([" ", "  ", "\t", " \t "]), st.booleans(), st.booleans())
@example([["a\u00a0b", "c\u2028d", "e\u0085f"]], "\n", " ", True, True)  # Unicode spaces and line ends are inside words
@example([["null", "nan", '"', "$", "true"]], "\n", " ", True, False)
@settings(max_examples=30, derandomize=True, deadline=None)
def test_every_way_to_write_a_text_gives_the_same_words(tmp_path_factory, lines, newline, gap, last_newline, trailing):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    ends = gap if trailing else ""
    text = newline.join(gap.join(line) + ends for line in lines) + newline
    if not last_newline and lines[-1]:
        text = text.removesuffix(newline)
    path.write_bytes(text.encode())
    assert words.read_split(path) == stream(lines)


@pytest.mark.fault("B13", "B15", "B16", "B21")
@pytest.mark.parametrize(("data", "message"), [
    (b"fine\nbad \xff here\n", ":2:5: byte 0xff is not UTF-8"),
    (b"\xef\xbb\xbfword\n", ":1: begins with a byte-order mark"),
    ("word\n".encode("utf-16"), ":1:4: holds a NUL"),
    (b"a\n\nb\0c\n", ":3:2: holds a NUL"),
    (b"\xed\xa0\x80\n", ":1:1: byte 0xed"),  # a lone surrogate
    (b"ok\none\rtwo\rthree\r", r":2:4: holds a lone \\r; end lines with \\n"),  # as Macs wrote until 2001
    (b"one\r\r\n", r":1:4: holds a lone \\r"),
    (b"a <eos> b\n", ":1: the text holds <eos>"),
    (b"ok\n" + b"x" * 101 + b"\n", ":2: line is longer than 100 bytes"),
])  # fmt: skip
def test_unsound_text_is_refused_with_its_place(tmp_path, data, message):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.txt" + message.replace("(", r"\(")):
        words.read_split(path, max_line_bytes=100)
    path.write_bytes(b"x" * 100 + b"\r\n" + b"y" * 100)  # lines of exactly the limit
    assert words.read_split(path, max_line_bytes=100) == ["x" * 100, EOS, "y" * 100, EOS]


@given(LINES, LINES, LINES)
@settings(max_examples=25, derandomize=True, deadline=None)
def test_ids_follow_first_appearance_as_in_the_published_reader(train, valid, test):
    texts = {"train": [*train, [UNK, "seen"]], "valid": [*valid, [UNK]], "test": [*test, ["seen"]]}
    known = set(stream(texts["train"]))
    texts |= {k: [[w if w in known else UNK for w in line] for line in texts[k]] for k in ("valid", "test")}
    if any(texts[a] == texts[b] for a, b in (("train", "valid"), ("train", "test"), ("valid", "test"))):
        return
    made = words.from_words("x", {split: stream(lines) for split, lines in texts.items()})
    ids: dict[str, int] = {}  # the published loop: one pass per split, a new word gets the next id
    for split in ("train", "valid", "test"):
        for line in texts[split]:
            for word in [*line, EOS]:
                ids.setdefault(word, len(ids))
        assert made.splits[split].tolist() == [ids[word] for word in stream(texts[split])]
        assert made.splits[split].dtype == np.int32
    assert made.words == tuple(ids)


@pytest.mark.fault("B12", "B16", "B17")
@pytest.mark.parametrize(("texts", "message"), [
    ({"train": "the cat sat\n", "test": "a dog a\n"}, "test holds 2 words that train does not hold: a, dog"),
    ({"train": ""}, "train holds no words"),
    ({"valid": "\n\n\n"}, "valid holds no words"),
    ({"valid": "the cat\n", "test": "the cat\n"}, "valid and test are the same text"),
    ({"train": "the cat\n"}, "train and valid are the same text"),
])  # fmt: skip
def test_corpora_that_cannot_be_studied_are_refused(texts, message):
    with pytest.raises(DataError, match=message):
        small(**texts)


@pytest.mark.fault("B18")
def test_restrict_keeps_the_frequent_words_and_numbers_them_anew():
    made = small(train="b b b a a c d <unk>\nc a b d\n", valid="d c b a\n", test="a d\n")
    cut = words.restrict(made, 4, 6, "cut")  # b, a and the two that are always kept
    assert cut.words == ("b", "a", UNK, EOS)
    assert [cut.words[i] for i in cut.train] == ["b", "b", "b", "a", "a", UNK]
    assert [cut.words[i] for i in cut.valid] == [UNK, UNK, "b", "a", EOS]
    tie = words.restrict(made, 5, 6)  # c and d are equally frequent: c comes first
    assert tie.words == ("b", "a", "c", UNK, EOS)
    for size, tokens in ((2, 6), (7, 6), (4, 1), (4, 100)):
        with pytest.raises(DataError, match=r"vocabulary_size: |train_tokens: "):
            words.restrict(made, size, tokens)


def published() -> dict[str, object]:
    """Return what a dataset file declares of a published text."""
    lines = {split: stream(line.split() for line in text.splitlines()) for split, text in TEXTS.items()}
    text = "".join(" ".join([*words, ""]) + "\n" for words in lines.values())
    return {"tokens": {split: len(words) for split, words in lines.items()},
        "vocabulary_size": len(set(lines["train"])),
        "token_sha256": hashlib.sha256(text.encode()).hexdigest()}  # fmt: skip


@pytest.mark.fault("B5")
@pytest.mark.parametrize("archive", [None, ("zip", "x-v1/"), ("tar.gz", "./data/a/b/")])
@pytest.mark.parametrize("change", [("\n", "\n"), ("\n", "\r\n"), (" ", " \t ")])
def test_the_published_text_is_known_by_its_tokens(project, archive, change):
    """Whatever archive it is in, and whatever its line ends and blanks."""
    texts = {split: text.replace(*change) for split, text in TEXTS.items()}
    if archive is None:
        project.local(texts, expected=published())
    else:
        kind, folder = archive
        project.put("a.bin", packed({f"{folder}{split}.tokens": text.encode() for split, text in texts.items()}, kind))
        files = {f"{split}.txt": {"path": "a.bin", "member": f"{folder}{split}.tokens"} for split in TEXTS}
        project.declare(files, expected=published())
    assert project.call("download") == 0 and project.call("tokenise") == 0
    assert corpus.counts_and_hash(corpus.load(project.tokens)) == published()
    assert config.load_dataset("x", project.folder).identity == published()["token_sha256"]  # and with it the run_ids


@pytest.mark.fault("B6")
@pytest.mark.parametrize("wrong", [
    {"train": TEXTS["train"].replace("a dog and a cat ate fish\n", "", 1)},
    {"test": TEXTS["test"].replace("fish", "dog", 1)},
    {"valid": TEXTS["test"], "test": TEXTS["valid"]},
    {"train": "<!DOCTYPE html><html>Please log in</html>\n"},
], ids=["a line is missing", "one word is another", "two files are swapped", "an error page"])  # fmt: skip
def test_a_plausible_other_text_never_becomes_tokens(project, capsys, wrong):
    project.local(TEXTS | wrong, expected=published())
    assert project.call("download") == 0
    assert project.call("tokenise") == 2
    assert error_of(capsys).startswith("error: x: ")
    assert not project.tokens.exists()


@pytest.mark.fault("B17")
def test_a_share_is_of_the_longer_lines():
    lines = {"train": ["a b c d e f g h", "a b", "h g f e d c b a"], "valid": ["a b", "h g f e d c b a", "c " * 9]}
    lines["test"] = ["a b"]
    made = words.from_words("x", {s: [w for line in ls for w in [*line.split(), "<eos>"]] for s, ls in lines.items()})
    shared = [line for line in corpus_warnings(made) if "lines" in line]
    assert shared == ["50% of the lines of valid with 8 words or more also occur in train"]


def test_only_valid_and_test_may_be_unlike_train():
    made = small(train="the cat <unk> <unk>\n", test="the <unk>\n")
    assert corpus_warnings(made) == [
        "50% of the words of train are <unk>: train may be too short",
        "50% of the words of test are <unk>: test may be of another kind than train, or too short",
    ]
    only_ends = np.zeros(3, np.int32)
    assert corpus_warnings(corpus.Corpus("ends", (EOS,), only_ends, only_ends, only_ends)) == []


@pytest.mark.fault("B19")
def test_an_edit_is_noticed_whatever_the_dates_say(project, capsys):
    project.local(TEXTS)
    assert project.call("download") == 0 and project.call("tokenise") == 0
    study = config.load_study(project.folder / "study.yaml")
    for path in (project.corpora / "train.txt", project.folder / "datasets" / "train.txt"):
        stat = path.stat()
        path.write_bytes(path.read_bytes().replace(b"cat", b"cow", 1))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert path.stat().st_size == stat.st_size
    assert project.call("tokenise") == 2
    assert "edited since it was brought here; run the download step again" in error_of(capsys)
    config.load_dataset.cache_clear()
    after = config.load_study(project.folder / "study.yaml")
    assert not {run.run_id for run in study.runs} & {run.run_id for run in after.runs}
    assert project.call("download") == 0 and project.call("tokenise") == 0
    assert "cow" in corpus.load(project.tokens).words


@pytest.mark.fault("B20")
def test_nothing_is_written_into_a_folder_of_data(project, tmp_path):
    """The data are behind a link, in a folder without the right to write."""
    data = tmp_path / "data"
    data.mkdir()
    for split, text in TEXTS.items():
        (data / f"{split}.txt").write_text(text, encoding="utf-8")
    data.chmod(0o555)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in data.iterdir()}
    (project.folder / "datasets" / "link").symlink_to(data)
    project.declare({f"{split}.txt": {"path": f"link/{split}.txt"} for split in TEXTS})
    assert project.call("download") == 0 and project.call("tokenise") == 0
    data.chmod(0o755)
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in data.iterdir()} == before
