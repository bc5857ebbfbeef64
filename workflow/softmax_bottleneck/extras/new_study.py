"""Write a corpus and a small study from a folder of plain texts.

Words are lower-cased and separated from punctuation, a paragraph becomes a line, and rare words become `<unk>`. A text
that contains `<unk>` already is not changed.
"""

import argparse
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from softmax_bottleneck.corpora.corpus import SPLITS, UNK
from softmax_bottleneck.extras import plan
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import load_dataset, load_study, schema
from softmax_bottleneck.training import check

WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
SPLIT_NAMES = {"train": "train", "valid": "valid|dev", "test": "test"}
HELD_OUT = 10  # valid and test are a tenth of every file each, at its end
LEAST_COUNT, MOST_WORDS = 3, 10_000  # of the words in the vocabulary
LARGEST_BATCH, BPTT, UPDATES = 20, 35, 100  # the batch is smaller if an epoch would have fewer updates
Lines = list[list[str]]

STUDY = Path(__file__).with_suffix(".yaml")
DATASET = """# Written by `make new-study`: {about}.
name: {name}
kind: corpus
title: {title}
files:
  train.txt: {{path: {name}/train.txt}}
  valid.txt: {{path: {name}/valid.txt}}
  test.txt: {{path: {name}/test.txt}}
"""


def new_study(options: argparse.Namespace, say: Say) -> None:
    """Write a study of the texts in a folder, and print its plan."""
    study = load_study(write_study(options.texts, options.into, options.name, say))
    print(f"{plan.text(study)}\n\nmake reproduce CONFIG={study.file}")


def write_study(texts: Path, into: Path, name: str | None, say: Say) -> Path:
    """Write `<name>.yaml`, `datasets/<name>.yaml` and its texts into a folder of studies; return the study's file.

    Raises:
        UserError: there are no texts, a text is invalid or too short, or the name is taken or invalid.
    """
    name = name or re.sub(r"[^a-z0-9._-]+", "-", texts.resolve().name.lower()).strip("-._") or "texts"
    if not re.fullmatch(schema.NAME, name):
        raise UserError(f"NAME={name}: expected letters, digits, dots, dashes, underscores, as in NAME=war-and-peace")
    for path in (into / f"{name}.yaml", into / "datasets" / f"{name}.yaml", into / "datasets" / name):
        if path.exists():
            raise UserError(f"{path}: exists already; choose another NAME=<word>")
    splits, about = _splits(texts)
    title, tokens = name.replace("-", " "), sum(len(line) + 1 for line in splits["train"])
    batch_size = max(1, min(LARGEST_BATCH, tokens // (BPTT * UPDATES)))
    template = STUDY.read_text(encoding="utf-8")
    files = {
        f"datasets/{name}/{split}.txt": "".join(f"{' '.join(line)}\n" for line in splits[split]) for split in SPLITS
    }
    files[f"datasets/{name}.yaml"] = DATASET.format(name=name, title=title, about=about)
    files[f"{name}.yaml"] = template.format(name=name, title=title, batch_size=batch_size, bptt=BPTT)
    with tempfile.TemporaryDirectory() as folder:  # nothing is written before it is checked
        for place, text in files.items():
            path = Path(folder, place)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        try:
            loaded = load_study(Path(folder, f"{name}.yaml"))
            check.check_limits(loaded, check.costs(loaded))
            check.check_lengths(loaded)
        except UserError as error:
            message = re.sub(r"^\S*/", "", str(error)).removeprefix(f"{name}.yaml: ")
            raise UserError(f"FROM={texts}: {message}; nothing was written") from None
        finally:
            load_dataset.cache_clear()
        shutil.copytree(folder, into, dirs_exist_ok=True)
    say(f"wrote {into / name}.yaml and {into / 'datasets' / name}.yaml: {about}")
    return into / f"{name}.yaml"


# --- texts ----------------------------------------------------------------------------------------------------------
def _splits(folder: Path) -> tuple[dict[str, Lines], str]:
    """Return the lines of words of train, valid and test, and a description of how they were made."""
    files = sorted(folder.glob("*.txt"))
    if not files:
        problem = "no .txt files" if folder.is_dir() else "no such folder"
        raise UserError(f"FROM={folder}: {problem}. Expected FROM=<folder of plain texts in UTF-8>")
    texts = {path: _text(path) for path in files}
    named = {split: [path for path in files if re.search(rf"(^|[^a-z])({words})", path.stem.lower())]
             for split, words in SPLIT_NAMES.items()}  # fmt: skip
    if all(len(paths) == 1 for paths in named.values()):
        splits = {split: _lines(texts[path]) for split, (path,) in named.items()}
        about = f"{', '.join(path.name for (path,) in named.values())} of {folder.name}"
    elif sum(map(bool, named.values())) == 2:
        lacks = next(split for split, paths in named.items() if not paths)
        raise UserError(f"FROM={folder}: no file named {lacks}, but the other two; add it, or rename these")
    else:
        splits = _cut([_lines(text) for text in texts.values()])
        about = f"the last two tenths of every file of {folder.name} are valid and test"
        if not splits["test"]:
            raise UserError(f"FROM={folder}: too little text: no file has {HELD_OUT} lines or paragraphs")
    if any(UNK in text for text in texts.values()):
        return splits, f"{about}; words unchanged"
    counts = Counter(word for line in splits["train"] for word in line)
    ranked = [word for word, count in counts.most_common(MOST_WORDS) if count >= LEAST_COUNT]
    # Without an <unk> in train, a new word of valid or test would have no index.
    kept = set(ranked[:-1] if len(ranked) == len(counts) else ranked)
    cut = {part: [[w if w in kept else UNK for w in line] for line in lines] for part, lines in splits.items()}
    words = f"{len(kept)} different words, <unk> for words that occur less than {LEAST_COUNT} times in train"
    return cut, f"{about}; {words}"


def _text(path: Path) -> str:
    """Return the text of a UTF-8 file, with or without a byte-order mark (UserError: the line that is not UTF-8)."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; convert the file") from None


def _lines(text: str) -> Lines:
    """Return the words of each paragraph, or of each line if no empty lines separate paragraphs."""
    text = "\n".join(text.splitlines())
    blocks = re.split(r"\n\s*\n", text.strip()) if re.search(r"\n\s*\n", text.strip()) else text.split("\n")
    if UNK in text:
        found = [block.split() for block in text.split("\n")]
    else:
        found = [[word for word in WORD.findall(block.lower()) if word.isprintable()] for block in blocks]
    return [words for words in found if words]


def _cut(texts: Sequence[Lines]) -> dict[str, Lines]:
    """Cut every text: the last two tenths are validation and test."""
    splits: dict[str, Lines] = {split: [] for split in SPLITS}
    for lines in texts:
        part = len(lines) // HELD_OUT
        bounds = {"train": (0, len(lines) - 2 * part), "valid": (-2 * part, -part), "test": (-part, None)}
        for split, (start, end) in bounds.items():
            splits[split] += lines[start:end] if part or split == "train" else []
    return splits
