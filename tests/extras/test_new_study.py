"""A study of one's own texts: written from plain files, and rejected by `plan` for whatever `tokenise` would reject."""

import io
import random
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import small
from hypothesis import given, settings
from hypothesis import strategies as st
from softmax_bottleneck import study as config
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.corpora.sizes import size_of
from softmax_bottleneck.corpora.words import words_of
from softmax_bottleneck.extras import new_study
from softmax_bottleneck.steps.download import download
from softmax_bottleneck.steps.tokenise import tokenise
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Study


def prose(seed: int, paragraphs: int = 60) -> str:
    """Wrapped paragraphs with capitals, commas and stops, between empty lines; some words occur once."""
    draw = random.Random(seed)
    words = [f"{first}{rest}" for first in "bcdfgklmnprst" for rest in ("ad", "en", "ill", "o", "us")]
    sentences = [" ".join(draw.choices(words, range(65, 0, -1), k=12)).capitalize() for _ in range(paragraphs)]
    return "\n\n".join(f"{text},\n“Once{seed}x{n}” {text.lower()}." for n, text in enumerate(sentences)) + "\n"


@pytest.fixture
def texts(place: Path) -> Path:
    """Three plain files, one of them from another system."""
    folder = Path("War & Peace")
    folder.mkdir()
    for number in range(3):
        (folder / f"book {number}.txt").write_text(prose(number), encoding="utf-8")
    (folder / "book 1.txt").write_bytes(b"\xef\xbb\xbf" + prose(1).replace("\n", "\r\n").encode())
    return folder


def prepared(file: Path, name: str) -> dict[str, Any]:
    """Return the tokens that the steps write for a corpus."""
    config.load_dataset.cache_clear()
    study = config.load_study(file)
    download(study, name, small.quiet)
    tokenise(study, name, small.quiet)
    facts: dict[str, Any] = artefacts.read_json(study.store.tokens_folder(name) / "corpus.json")
    return facts


def test_three_plain_files_become_a_study_that_can_be_run(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("config").mkdir(mode=0o755)
    assert main(["new-study", "--texts", str(texts)]) == 0
    assert Path("config").stat().st_mode & 0o777 == 0o755  # others can still read it
    out, err = capsys.readouterr()
    assert "make reproduce CONFIG=config/war-peace.yaml" in out and "config/datasets/war-peace.yaml" in err
    study = config.load_study(Path("config/war-peace.yaml"))
    counted = size_of(study.store, study.datasets["war-peace"])
    facts = prepared(study.file, "war-peace")
    assert (facts["tokens"], facts["vocabulary_size"]) == (counted.tokens, counted.vocabulary_size)
    train = Path("config/datasets/war-peace/train.txt").read_text(encoding="utf-8")
    words = Counter(train.split())
    assert len(train.splitlines()) == 3 * 48 and words["<unk>"] >= words[","] == 3 * 48
    assert train == train.lower() and min(words.values()) >= 3


@pytest.mark.parametrize("name", ["2024", "no", "1.5"])
def test_a_name_that_yaml_would_read_as_a_number_or_a_boolean_stays_text(texts: Path, name: str) -> None:
    assert main(["new-study", "--texts", str(texts), "--name", name]) == 0
    study = config.load_study(Path(f"config/{name}.yaml"))
    assert study.name == name and study.datasets[name].title == name


@pytest.mark.parametrize("prefix", ["", "wiki."])
def test_named_splits_and_words_with_unk_stay_as_they_are(texts: Path, prefix: str) -> None:
    for path in texts.iterdir():
        path.unlink()
    for split in ("train", "valid", "test"):
        lines = f"A b <unk> c-{split}\n" if split == "train" else f"b A {split}\n"
        (texts / f"{prefix}{split}.txt").write_text(lines * 200, encoding="utf-8")
    assert main(["new-study", "--texts", str(texts), "--name", "kept"]) == 0
    assert Path("config/datasets/kept/train.txt").read_text(encoding="utf-8") == "A b <unk> c-train\n" * 200
    assert prepared(Path("config/kept.yaml"), "kept")["tokens"] == {"train": 1000, "valid": 800, "test": 800}


@pytest.mark.fault("C17")
@pytest.mark.parametrize(("change", "message"), [
    ({"book 0.txt": b"\xff\xfe"}, "book 0.txt:1:1: byte 0xff is not UTF-8"),
    ({f"book {n}.txt": b"Few words.\n" for n in range(3)}, "too little text"),
    ({f"book {n}.txt": b"Few words.\n" * 12 for n in range(3)}, "valid and test are the same text"),
    ({"book 0.txt": b"A <unk> <eos> word.\n" * 40}, "book 0.txt:1: the text holds <eos>"),
    ({"book 0.txt": b"A word.\nA \0word.\n"}, "book 0.txt:2:3: holds a NUL byte"),
    ({f"book {n}.txt": f"{'花' * (n + 2)}。\n".encode() * 2 for n in range(3)}, "too little text"),
    ({f"book {n}.txt": "".join(f"花{n}{i}。\n" for i in range(300)).encode() for n in range(3)}, "720 of 720"),
    ({f"book {n}.txt": None for n in range(3)}, "no .txt files"),
    ({"train.txt": b"A word.\n", "test.txt": b"A word.\n"}, "expected all of train.txt"),
    ({f"{split}.txt": b"A word.\n" for split in ("train", "valid", "test")}, "and no other text"),
])  # fmt: skip
def test_bad_texts_give_one_line_and_leave_no_file(texts, change, message, capsys) -> None:
    for name, data in change.items():
        (texts / name).unlink() if data is None else (texts / name).write_bytes(data)
    assert main(["new-study", "--texts", str(texts)]) == 2
    err = capsys.readouterr().err
    assert message in err and "config/" not in err
    assert not [path for path in Path("config").rglob("*") if path.is_file()]


def lines_of(name: str, split: str) -> list[str]:
    return Path(f"config/datasets/{name}/{split}.txt").read_text(encoding="utf-8").split("\n")[:-1]


def written(folder: str, texts: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    """Write texts, run `new-study` on their folder, and return the messages."""
    for name, text in texts.items():
        (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_text(text, encoding="utf-8", newline="")
    assert main(["new-study", "--from", folder]) == 0
    return capsys.readouterr().err


WORDS = [f"w{n}" for n in range(20)]


def test_documents_in_folders_are_split_by_documents_in_natural_order(texts: Path, capsys: Any) -> None:
    documents = {f"{n // 100}/{n}.txt": f"d{n} <unk> {' '.join(WORDS)}" for n in range(800)}
    err = written("news", documents | {"9/notes.gz": "", "3/._1.txt": "\0", ".git/a.txt": "\0"}, capsys)
    assert "9/notes.gz" in err and ".git" not in err
    first = {split: [int(line.split()[0][1:]) for line in lines_of("news", split)] for split in SPLITS}
    assert first["valid"] == list(range(8, 800, 10)) and first["test"] == list(range(9, 800, 10))
    assert first["train"] == [n for n in range(800) if n % 10 < 8]


def test_a_text_on_one_line_is_split_by_words(texts: Path, capsys: Any) -> None:
    words = ["<unk>", *(WORDS[n * n % 17] for n in range(35_999))]
    written("one", {"text8.txt": " ".join(words)}, capsys)
    found = {split: [line.split() for line in lines_of("one", split)] for split in ("train", "valid", "test")}
    assert {split: len(lines) for split, lines in found.items()} == {"train": 8, "valid": 1, "test": 1}
    assert [word for lines in found.values() for line in lines for word in line] == words


def test_folders_may_name_the_splits(texts: Path, capsys: Any) -> None:
    text = {"train/b": "<unk> a 9\n", "train/a": "<unk> a 10\n", "valid": "a b\n", "test": "a\n"}
    written("imdb", {f"{place}/{n}.txt": line * 90 for place, line in text.items() for n in (10, 9)}, capsys)
    assert lines_of("imdb", "train") == ["<unk> a 10"] * 180 + ["<unk> a 9"] * 180
    assert (lines_of("imdb", "valid"), lines_of("imdb", "test")) == (["a b"] * 180, ["a"] * 180)


@pytest.mark.parametrize(("text", "words"), [
    ("हिन्दी में लिखी किताब।", ["हिन्दी", "में", "लिखी", "किताब", "।"]),
    ("বাংলা ভাষা, தமிழ் மொழி", ["বাংলা", "ভাষা", ",", "தமிழ்", "மொழி"]),
    ("قَالَ שָׁלוֹם", ["قَالَ", "שָׁלוֹם"]),
    ("می\u200cخواهم ක්\u200dෂ", ["می\u200cخواهم", "ක්\u200dෂ"]),
    ("Cafe\u0301, tie\u0302\u0301ng", ["caf\u00e9", ",", "ti\u1ebfng"]),
    ("co\u00adop it's well-known", ["coop", "it's", "well-known"]),
    ("İstanbul\u200bizmir \ufeffa", ["i\u0307stanbul", "izmir", "a"]),
])  # fmt: skip
def test_marks_and_joiners_belong_to_their_word(text: str, words: list[str]) -> None:
    for form in (text, unicodedata.normalize("NFD", text)):
        assert new_study._lines(form.encode(), "text") == [words]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.text(st.sampled_from("ab<> \t\n\x0c\x85\xa0\u2028é"), max_size=60))
def test_a_prepared_text_is_the_stream_of_tokenise(text: str) -> None:
    expected = words_of(io.BytesIO(text.encode()), "text")
    assert [w for line in new_study._prepared_lines(text.encode(), "text") for w in (*line, "<eos>")] == expected


def test_a_byte_order_mark_is_left_out_only_where_a_file_begins(texts: Path, capsys: Any) -> None:
    """WikiText-2's train text has U+FEFF as a word."""
    lines = [f"<unk> a \ufeff b{n % 3}" for n in range(100)]
    written("marked", {"a.txt": "\ufeff" + "\n".join(lines)}, capsys)
    assert lines_of("marked", "train") == lines[:80]


@pytest.mark.corpora
@pytest.mark.tier2
def test_wikitext_2_keeps_its_published_tokens(texts: Path, mirror: Path) -> None:
    """Merity et al. 2017, Table 1, with an <eos> for each line, empty ones included."""
    assert main(["new-study", "--from", str(mirror / "wikitext-2"), "--name", "wt2"]) == 0
    facts = prepared(Path("config/wt2.yaml"), "wt2")
    assert facts["tokens"] == {"train": 2_088_628, "valid": 217_646, "test": 245_569}
    assert facts["vocabulary_size"] == 33_278


def test_a_split_of_unknown_words_is_a_warning(texts: Path, capsys: Any) -> None:
    known = [" ".join(random.Random(n).choices(WORDS, k=9)) for n in range(90)]
    files = {"train.txt": known, "valid.txt": known[:20], "test.txt": [f"x{n} y{n}" for n in range(120)]}
    err = written("odd", {name: "\n".join(lines) for name, lines in files.items()}, capsys)
    assert "test 100.0%" in err and "100% of the words of test are <unk>" in err
    assert any(doubt.startswith("100%") for doubt in prepared(Path("config/odd.yaml"), "odd")["doubts"])


def test_existing_files_are_not_overwritten(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-study", "--texts", str(texts), "--name", "mine"]) == 0
    before = small.tree(Path("config"))
    assert main(["new-study", "--texts", str(texts), "--name", "mine"]) == 2
    assert main(["new-study", "--texts", str(texts), "--name", "../mine"]) == 2
    assert small.tree(Path("config")) == before and not Path("mine.yaml").exists()


def with_texts(folder: Path, texts: dict[str, str], **more: Any) -> Study:
    (folder / "datasets").mkdir(parents=True)
    for split, text in texts.items():
        (folder / "datasets" / f"{split}.txt").write_text(text, encoding="utf-8")
    files = {f"{split}.txt": {"path": f"{split}.txt"} for split in texts}
    dataset = {"name": "tiny", "kind": "corpus", "title": "T", "files": files, **more}
    return small.load(folder, small.values(experiments={"parthiban2021-table2": {"models": "all"}}), dataset)


SPLITS = {"train": "a b c\n" * 99, "valid": "a c\n" * 9, "test": "b a\n" * 9}


@pytest.mark.fault("C17")
@pytest.mark.parametrize(("texts", "more", "message"), [
    (SPLITS | {"test": "a new one\n" * 9}, {}, "test holds 2 words that train does not hold: new, one"),
    (SPLITS | {"test": SPLITS["valid"]}, {}, "valid and test are the same text"),
    (SPLITS | {"valid": "\n\n"}, {}, "valid holds no words"),
    (SPLITS, {"expected": {"tokens": {"train": 5}}}, "train tokens: expected 5, got 396"),
    (SPLITS, {"expected": {"tokens": {"train": 396, "valid": 27, "test": 27}, "vocabulary_size": 9}}, "expected 9"),
])  # fmt: skip
def test_plan_rejects_what_tokenise_rejects(place, capsys, texts, more, message) -> None:
    study = with_texts(place / "config", texts, **more)
    assert main(["plan", "--study", str(study.file)]) == 2
    assert message in capsys.readouterr().err
    download(study, "tiny", small.quiet)
    with pytest.raises(UserError, match=message):
        tokenise(study, "tiny", small.quiet)
