"""A study of one's own texts: from a folder of plain files to a corpus and a small study that `plan` accepts.

Words are lower-cased and parted from punctuation, a paragraph is a line, and what is rare becomes `<unk>`. A text that
holds `<unk>` already is taken as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from softmax_bottleneck.corpora.corpus import SPLITS, UNK
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import load_study, schema
from softmax_bottleneck.training import check

WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "dev"), "test": ("test",)}
HELD_OUT = 10  # valid and test: a part each of so many of every file, the last ones
LEAST_COUNT, MOST_WORDS = 3, 10_000  # of the words that are kept
LARGEST_BATCH, BPTT, UPDATES = 20, 35, 100  # a batch is smaller where an epoch would have fewer updates
Lines = list[list[str]]

DATASET = """# Written by `make new-study`: {about}.
name: {name}
kind: corpus
title: {title}
files:
  train.txt: {{path: {name}/train.txt}}
  valid.txt: {{path: {name}/valid.txt}}
  test.txt: {{path: {name}/test.txt}}
"""
STUDY = """# Written by `make new-study`; every key is explained in config/README.md.
study: {name}
title: The softmax bottleneck on {title}
datasets: [{name}]
seeds: [1, 2, 3]  # with fewer no comparison can be decided
settings:
  - body:
      embedding_size: 32
      hidden_size: 128
      layers: 2
      dropout_input: 0.2
      dropout_hidden: 0.1
      dropout_output: 0.2
      dropout_embedding: 0
      dropout_weight: 0.2
    schedule:
      optimizer: et-asgd
      switch_after_epoch: 9
      learning_rate: 20
      batch_size: {batch_size}
      bptt: {bptt}
      max_length_delta: 20
      clip: 0.25
      weight_decay: 0.0000012
      activation_penalty: 2
      temporal_penalty: 1
      epochs: 15
      pieces: 1  # 4: an epoch reads a quarter of the text, for a first look in a quarter of the time
  - when: {{model: mos}}
    head: {{components: 4, dropout_latent: 0.1}}
models:
  softmax: {{head: softmax}}
  gss: {{head: {{name: gss, c: -1.5, k: 2.5}}}}
  mos: {{head: mos}}  # of Softmax's size, within some percent
experiments:
  parthiban2021-table2: {{models: all}}
  parthiban2021-figure7: {{models: all, seeds: all}}
  parthiban2021-rank-perplexity: {{models: all}}
  parthiban2021-learning-curves: {{models: all}}
"""


def new_study(texts: Path, into: Path, name: str | None, say: Say) -> Path:
    """Write `<name>.yaml`, `datasets/<name>.yaml` and its three texts into a folder of studies; the study's file.

    Raises:
        UserError: no texts, a text that is none, too little of it, a name that is taken or that no study may have.
    """
    name = name or re.sub(r"[^a-z0-9._-]+", "-", texts.resolve().name.lower()).strip("-._") or "texts"
    if not re.fullmatch(schema.NAME, name):
        raise UserError(
            f"NAME={name}: expected letters, digits, dots, dashes and underscores, as in NAME=war-and-peace"
        )
    study, corpus = into / f"{name}.yaml", into / "datasets" / name
    for path in (study, corpus.with_name(f"{name}.yaml"), corpus):
        if path.exists():
            raise UserError(f"{path}: is there already; choose another NAME=<word>")
    splits, about = _splits(texts)
    title, tokens = name.replace("-", " "), sum(len(line) + 1 for line in splits["train"])
    batch_size = max(1, min(LARGEST_BATCH, tokens // (BPTT * UPDATES)))
    files = {corpus / f"{split}.txt": "".join(f"{' '.join(line)}\n" for line in splits[split]) for split in SPLITS}
    files[corpus.with_name(f"{name}.yaml")] = DATASET.format(name=name, title=title, about=about)
    files[study] = STUDY.format(name=name, title=title, batch_size=batch_size, bptt=BPTT)
    corpus.mkdir(parents=True)
    try:
        for path, text in files.items():
            path.write_text(text, encoding="utf-8", newline="\n")
        _refuse_unfit(study)
    except BaseException as error:
        for path in files:
            path.unlink(missing_ok=True)
        corpus.rmdir()
        if isinstance(error, UserError):  # which names files that are gone
            words = re.sub(r"^\S*/", "", str(error)).removeprefix(f"{study.name}: ")
            raise UserError(f"FROM={texts}: {words}; nothing was written") from None
        raise
    say(f"wrote {study} and {corpus}.yaml: {about}")
    return study


def _refuse_unfit(file: Path) -> None:
    """All that `plan` and `check` refuse (UserError)."""
    study = load_study(file)
    check.check_limits(study, check.costs(study))
    check.check_lengths(study)


# --- texts ----------------------------------------------------------------------------------------------------------
def _splits(folder: Path) -> tuple[dict[str, Lines], str]:
    """Lines of words of train, valid and test, and how they came about."""
    files = sorted(folder.glob("*.txt"))
    if not files:
        found = "no .txt files in it" if folder.is_dir() else "no such folder"
        raise UserError(f"FROM={folder}: {found}; say FROM=<folder of plain texts in UTF-8>")
    texts = {path: _text(path) for path in files}
    named = {split: [path for path in files if _is_named(path, split)] for split in SPLITS}
    if all(len(paths) == 1 for paths in named.values()):
        splits = {split: _lines(texts[path]) for split, (path,) in named.items()}
        about = f"{', '.join(path.name for (path,) in named.values())} of {folder.name}"
    elif sum(map(bool, named.values())) == 2:
        lacks = next(split for split, paths in named.items() if not paths)
        raise UserError(
            f"FROM={folder}: no file named {lacks}, but the other two; add it, or rename them to have all cut"
        )
    else:
        splits = _cut([_lines(text) for text in texts.values()])
        about = f"the last two tenths of every file of {folder.name} are valid and test"
        if not splits["test"]:
            raise UserError(f"FROM={folder}: too little text: no file has {HELD_OUT} lines or paragraphs")
    if any(UNK in text for text in texts.values()):
        return splits, f"{about}; words as they were"
    kept = _vocabulary(splits)
    cut = {part: [[w if w in kept else UNK for w in line] for line in lines] for part, lines in splits.items()}
    words = f"{len(kept)} different words, <unk> for those that train holds less than {LEAST_COUNT} times"
    return cut, f"{about}; {words}"


def _is_named(path: Path, split: str) -> bool:
    return any(re.search(rf"(^|[^a-z]){word}", path.stem.lower()) for word in SPLIT_NAMES[split])


def _text(path: Path) -> str:
    """UTF-8 with or without its mark, lines of any kind."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; convert the file") from None


def _lines(text: str) -> Lines:
    """Paragraphs, where empty lines part them, else lines, as words; those without words are left out."""
    text = "\n".join(text.splitlines())
    blocks = re.split(r"\n\s*\n", text.strip()) if re.search(r"\n\s*\n", text.strip()) else text.split("\n")
    if UNK in text:
        found = [block.split() for block in text.split("\n")]
    else:
        found = [[word for word in WORD.findall(block.lower()) if word.isprintable()] for block in blocks]
    return [words for words in found if words]


def _cut(texts: Sequence[Lines]) -> dict[str, Lines]:
    """The first tenths of every text to train on, the last two for validation and test."""
    splits: dict[str, Lines] = {split: [] for split in SPLITS}
    for lines in texts:
        part = len(lines) // HELD_OUT
        bounds = {"train": (0, len(lines) - 2 * part), "valid": (-2 * part, -part), "test": (-part, None)}
        for split, (start, end) in bounds.items():
            splits[split] += lines[start:end] if part or split == "train" else []
    return splits


def _vocabulary(splits: Mapping[str, Lines]) -> set[str]:
    """The words that train holds often enough, so that it holds `<unk>` for the others."""
    counts = Counter(word for line in splits["train"] for word in line)
    ranked = [word for word, count in counts.most_common(MOST_WORDS) if count >= LEAST_COUNT]
    is_whole = len(ranked) == len(counts)
    return set(ranked[:-1] if is_whole else ranked)  # else a new word of valid or test would have no place
