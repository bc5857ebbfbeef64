"""A study of one's own texts: written from plain files, and rejected by `plan` for whatever `tokenise` would reject."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import small
from softmax_bottleneck import study as config
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.corpora.download import download
from softmax_bottleneck.corpora.sizes import size_of
from softmax_bottleneck.corpora.tokenise import tokenise
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
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three plain files, one of them from another system."""
    monkeypatch.chdir(tmp_path)
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
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"book 0.txt": b"\xff\xfe"}, "book 0.txt:1: byte 0xff is not UTF-8"),
        ({f"book {n}.txt": b"Few words.\n" for n in range(3)}, "too little text"),
        ({f"book {n}.txt": b"Few words.\n" * 12 for n in range(3)}, "valid and test are the same text"),
        ({"book 0.txt": b"A <unk> <eos> word.\n" * 40}, "& Peace: train.txt:1: the text holds <eos>"),
        ({f"book {n}.txt": None for n in range(3)}, "no .txt files"),
        ({"train.txt": b"A word.\n", "test.txt": b"A word.\n"}, "expected all of train.txt"),
    ],
)
def test_bad_texts_give_one_line_and_leave_no_file(
    texts: Path, change: dict[str, bytes | None], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in change.items():
        (texts / name).unlink() if data is None else (texts / name).write_bytes(data)
    assert main(["new-study", "--texts", str(texts)]) == 2
    err = capsys.readouterr().err
    assert message in err and "config/" not in err
    assert not [path for path in Path("config").rglob("*") if path.is_file()]


def test_existing_files_are_not_overwritten(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-study", "--texts", str(texts), "--name", "mine"]) == 0
    before = small.tree(Path("config"))
    assert main(["new-study", "--texts", str(texts), "--name", "mine"]) == 2
    assert main(["new-study", "--texts", str(texts), "--name", "../mine"]) == 2
    assert small.tree(Path("config")) == before and not Path("mine.yaml").exists()


# --- plan and tokenise -----------------------------------------------------------------------------------------------
def with_texts(folder: Path, texts: dict[str, str], **more: Any) -> Study:
    (folder / "datasets").mkdir(parents=True)
    for split, text in texts.items():
        (folder / "datasets" / f"{split}.txt").write_text(text, encoding="utf-8")
    files = {f"{split}.txt": {"path": f"{split}.txt"} for split in texts}
    dataset = {"name": "tiny", "kind": "corpus", "title": "T", "files": files, **more}
    return small.load(folder, small.values(experiments={"parthiban2021-table2": {"models": "all"}}), dataset)


WORDS = {"train": "a b c\n" * 99, "valid": "a c\n" * 9, "test": "b a\n" * 9}


@pytest.mark.fault("C17")
@pytest.mark.parametrize(
    ("texts", "more", "message"),
    [
        (WORDS | {"test": "a new one\n" * 9}, {}, "test holds 2 words that train does not hold: new, one"),
        (WORDS | {"test": WORDS["valid"]}, {}, "valid and test are the same text"),
        (WORDS | {"valid": "\n\n"}, {}, "valid holds no words"),
        (WORDS, {"expected": {"tokens": {"train": 5}}}, "train tokens: expected 5, got 396"),
        (WORDS, {"expected": {"tokens": {"train": 396, "valid": 27, "test": 27}, "vocabulary_size": 9}}, "expected 9"),
    ],
)
def test_plan_rejects_what_tokenise_rejects(
    tmp_path: Path, monkeypatch: Any, capsys: Any, texts: dict[str, str], more: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    study = with_texts(tmp_path / "config", texts, **more)
    assert main(["plan", "--study", str(study.file)]) == 2
    assert message in capsys.readouterr().err
    download(study, "tiny", small.quiet)
    with pytest.raises(UserError, match=message):
        tokenise(study, "tiny", small.quiet)
