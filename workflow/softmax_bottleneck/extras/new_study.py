"""The command `new-study`, which writes a corpus and a small study file from a folder of plain texts.

Words are lower-cased and separated from punctuation, and a paragraph becomes a line. Rare words become `<unk>`: words
that occur in train fewer than 3 times, or are not among its 10,000 most frequent ones. But a text that contains `<unk>`
counts as prepared: its lines and words stay as they are. If any text is prepared, rare words are kept in all texts.
Files train.txt, valid.txt and test.txt, or wiki.train.txt and so on, are the splits. Without these files, the last two
tenths of every file become the validation and test sets.
"""

import argparse
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from softmax_bottleneck.corpora.corpus import SPLITS, UNK
from softmax_bottleneck.extras import plan
from softmax_bottleneck.store import errors, progress
from softmax_bottleneck.study import load_study, schema
from softmax_bottleneck.training import check

WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
HELD_OUT = 10  # valid and test are a tenth of every file each, at its end
LEAST_COUNT, MOST_WORDS = 3, 10_000  # a word of the vocabulary occurs at least 3 times in train; at most 10,000 words
LARGEST_BATCH, BPTT, UPDATES = 20, 35, 100  # the batch is smaller if an epoch would have fewer updates
Lines = list[list[str]]

STUDY = Path(__file__).with_suffix(".yaml")
DATASET = """# Written by `make new-study` from {folder}.
name: {name}
kind: corpus
title: {title}
files:
  train.txt: {{path: {name}/train.txt}}
  valid.txt: {{path: {name}/valid.txt}}
  test.txt: {{path: {name}/test.txt}}
"""


def new_study(options: argparse.Namespace, say: progress.Say) -> None:
    """Write a study and its corpus to the folder `config`, and print the plan of the study.

    The files are `<name>.yaml`, `datasets/<name>.yaml` and the texts of the corpus in `datasets/<name>`.

    Args:
        options: the parsed command line. The attributes read are `texts`, a folder with plain texts (*.txt), and
            `name`, the name of the study and its corpus (None: the name of the folder `texts`).
        say: prints one line.

    Raises:
        UserError: there are no texts, a text is not UTF-8 or too short, the name is invalid or already used, or the
            study needs more memory or disk space than this machine has. Then nothing is written.
    """
    texts, into = options.texts, Path("config")
    name = options.name or re.sub(r"[^A-Za-z0-9._]+", "-", texts.resolve().name).strip("-._").lower()
    if not re.fullmatch(schema.NAME, name):
        raise errors.UserError(f"NAME={name}: expected letters, digits, dots, dashes and underscores")
    for path in (into / f"{name}.yaml", into / "datasets" / f"{name}.yaml", into / "datasets" / name):
        if path.exists():
            raise errors.UserError(f"{path}: exists already; choose another NAME=<word>")
    splits = _splits(texts)
    title, tokens = name.replace("-", " "), sum(len(line) + 1 for line in splits["train"])
    batch_size = max(1, min(LARGEST_BATCH, tokens // (BPTT * UPDATES)))
    yaml = STUDY.read_text(encoding="utf-8").format(name=name, title=title, batch_size=batch_size, bptt=BPTT)
    files = {
        f"datasets/{name}/{split}.txt": "".join(f"{' '.join(line)}\n" for line in splits[split]) for split in SPLITS
    }
    files |= {f"datasets/{name}.yaml": DATASET.format(name=name, title=title, folder=texts.name), f"{name}.yaml": yaml}
    with tempfile.TemporaryDirectory() as scratch:  # the study is checked before anything is written to `into`
        _write(Path(scratch), files)
        try:
            checked = load_study(Path(scratch, f"{name}.yaml"))
            check.check_limits(checked, check.costs(checked))
        except errors.UserError as error:
            message = re.sub(r"^\S*/", "", str(error)).removeprefix(f"{name}.yaml: ")
            raise errors.UserError(f"FROM={texts}: {message}; nothing was written") from None
    _write(into, files)
    study = load_study(into / f"{name}.yaml")
    say(f"wrote {study.file} and {study.file.parent / 'datasets' / study.file.name}")
    print(f"{plan.text(study)}\n\nmake reproduce CONFIG={study.file}")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8", newline="\n")


# --- texts ----------------------------------------------------------------------------------------------------------
def _splits(folder: Path) -> dict[str, Lines]:
    """Return {split: lines} for train, valid and test, from the *.txt files of a folder; a line is a list of words.

    Rare words become `<unk>`, unless a text contains `<unk>` already.

    Raises:
        UserError: there is no text, too little text, an incomplete set of splits, or a file that is not UTF-8.
    """
    paths = sorted(folder.glob("*.txt"))
    if not paths:
        problem = "no .txt files" if folder.is_dir() else "no such folder"
        raise errors.UserError(f"FROM={folder}: {problem}. Expected FROM=<folder of plain texts in UTF-8>")
    ends = [path.stem.rpartition(".")[2] for path in paths]  # `train` of wiki.train.txt
    texts = {end if end in SPLITS else path.name: _text(path) for path, end in zip(paths, ends, strict=True)}
    if texts.keys() == set(SPLITS) and len(paths) == len(texts):
        splits = {split: _lines(texts[split]) for split in SPLITS}
    elif set(SPLITS) & texts.keys():
        problem = "expected all of train.txt, valid.txt and test.txt and no other text, or none"
        raise errors.UserError(f"FROM={folder}: {problem}")
    else:
        splits = {split: [] for split in SPLITS}
        for lines in map(_lines, texts.values()):
            part = len(lines) // HELD_OUT
            train = len(lines) - 2 * part
            splits["train"] += lines[:train]
            splits["valid"] += lines[train : train + part]
            splits["test"] += lines[train + part :]
    if not splits["test"]:
        raise errors.UserError(f"FROM={folder}: too little text: no file has {HELD_OUT} lines or paragraphs")
    if any(UNK in text for text in texts.values()):
        return splits
    counts = Counter(word for line in splits["train"] for word in line)
    ranked = [word for word, count in counts.most_common(MOST_WORDS) if count >= LEAST_COUNT]
    # If no word is rare, the rarest becomes <unk>; otherwise a new word of valid or test would have no index.
    kept = set(ranked[:-1] if len(ranked) == len(counts) else ranked)
    return {split: [[w if w in kept else UNK for w in line] for line in lines] for split, lines in splits.items()}


def _text(path: Path) -> str:
    """Return the text of a UTF-8 file, with or without a byte-order mark.

    Raises:
        UserError: the file is not UTF-8.
    """
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        raise errors.UserError(f"{path}:{line}: byte 0x{byte:02x} is not UTF-8; convert the file") from None


def _lines(text: str) -> Lines:
    """Return the words of a text as a list of lists: one list for each paragraph.

    Empty lines separate paragraphs; in a text without empty lines, each line is a paragraph. Words are lower-cased and
    separated from punctuation. A text that contains `<unk>` is instead split into lines, and these at white space only.
    """
    text = "\n".join(text.splitlines())
    if UNK in text:
        lines = [line.split() for line in text.split("\n")]
    else:
        blocks = re.split(r"\n\s*\n" if re.search(r"\n\s*\n", text.strip()) else "\n", text.strip())
        lines = [[word for word in WORD.findall(block.lower()) if word.isprintable()] for block in blocks]
    return [words for words in lines if words]
