"""The command `new-study`, which writes a corpus and a small study file from a folder of plain texts.

Texts are the *.txt files in the folder and in the folders below it, in natural order. Words are brought to Unicode's
normal form C, lower-cased and separated from punctuation, and a paragraph becomes a line. Rare words become `<unk>`:
words that occur in train fewer than 3 times, or are not among its 10,000 most frequent ones. But if any text contains
`<unk>`, the corpus counts as prepared: `tokenise` reads its lines and words, and nothing is changed.

Files or folders named train, valid and test (train.txt, wiki.train.txt, train/1.txt) are the splits. Without them:

* The last two tenths of the lines of a text become the validation and test sets.
* Texts with fewer than ten lines are documents. Of ten documents, the ninth is for validation, the tenth for testing.
* If there are fewer than ten documents, each is cut into ten lines of equal length, as a text on one line must be.
"""

import argparse
import codecs
import io
import re
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from softmax_bottleneck.corpora.corpus import EOS, SPLITS, UNK
from softmax_bottleneck.corpora.corpus_warnings import corpus_warnings, unknown_shares
from softmax_bottleneck.corpora.words import decode_line, from_words, words_of
from softmax_bottleneck.extras import plan
from softmax_bottleneck.store import errors, progress, schema
from softmax_bottleneck.store.paths import natural_order
from softmax_bottleneck.study import load_study
from softmax_bottleneck.training import feasibility

SOFT_HYPHEN, JOINERS = "\u00ad", "\u200c\u200d"
HELD_OUT = 10  # valid and test are a tenth each
NAMED = 3  # skipped files in a note
NEARLY_ALL = 0.8  # share of rare words above which a text is rejected; English text of 350 words has about 0.6
LEAST_COUNT, MOST_WORDS = 3, 10_000  # a word of the vocabulary occurs at least 3 times in train; at most 10,000 words
LARGEST_BATCH, BPTT, UPDATES = 20, 35, 100  # the batch is smaller if an epoch would have fewer updates
LEAST_CUT = HELD_OUT * BPTT  # words of a text that is cut into ten lines
Lines = list[list[str]]

STUDY = Path(__file__).with_suffix(".yaml")
DATASET = """# Written by `make new-study` from {folder}.
name: "{name}"
kind: corpus
title: "{title}"
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
    splits = _splits(texts, say)
    title = name.replace("-", " ")
    try:
        streams = {split: [word for line in lines for word in (*line, EOS)] for split, lines in splits.items()}
        corpus = from_words(name, streams)
        batch_size = max(1, min(LARGEST_BATCH, len(corpus.train) // (BPTT * UPDATES)))
        yaml = STUDY.read_text(encoding="utf-8").format(name=name, title=title, batch_size=batch_size, bptt=BPTT)
        files = {
            f"datasets/{name}/{split}.txt": "".join(f"{' '.join(line)}\n" for line in splits[split]) for split in SPLITS
        }
        dataset = DATASET.format(name=name, title=title, folder=texts.name)
        files |= {f"datasets/{name}.yaml": dataset, f"{name}.yaml": yaml}
        with tempfile.TemporaryDirectory() as scratch:  # the study is checked before anything is written to `into`
            _write(Path(scratch), files)
            checked = load_study(Path(scratch, f"{name}.yaml"))
            feasibility.check_limits(checked, feasibility.costs(checked))
    except errors.UserError as error:
        message = re.sub(r"^\S*/", "", str(error)).removeprefix(f"{name}.yaml: ")
        raise errors.UserError(f"FROM={texts}: {message}; nothing was written") from None
    _write(into, files)
    study = load_study(into / f"{name}.yaml")
    shares = ", ".join(f"{split} {share:.1%}" for split, share in unknown_shares(corpus).items())
    say(f"{name}: {len(corpus.train)} tokens in train; share of {UNK}: {shares}")
    for warning in corpus_warnings(corpus):
        say(f"warning: {name}: {warning}")
    say(f"wrote {study.file} and {study.file.parent / 'datasets' / study.file.name}")
    print(f"{plan.text(study)}\n\nmake reproduce CONFIG={study.file}")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8", newline="\n")


# --- texts ----------------------------------------------------------------------------------------------------------
def _splits(folder: Path, say: progress.Say) -> dict[str, Lines]:
    """Return {split: lines} for train, valid and test, from the texts of a folder; a line is a list of words.

    Rare words become `<unk>`, unless a text contains `<unk>` already.

    Raises:
        UserError: there is no text, too little text, an incomplete set of splits, nearly all words are rare, or a file
            is not plain UTF-8 text.
    """
    texts = {name: (folder / name).read_bytes().removeprefix(codecs.BOM_UTF8) for name in _names(folder, say)}
    prepared = any(UNK.encode() in text for text in texts.values())
    if prepared:
        say(f"FROM={folder}: {UNK} is in the text, so that its lines and words stay as they are")
    read = _prepared_lines if prepared else _lines
    lines = {name: read(text, str(folder / name)) for name, text in texts.items()}
    named = {name: _split_name(Path(name)) for name in texts}
    if not any(named.values()):
        splits = _held_out([text for text in lines.values() if text])
    elif set(named.values()) == set(SPLITS):
        splits = {split: [line for name in texts if named[name] == split for line in lines[name]] for split in SPLITS}
    else:
        problem = "expected all of train.txt, valid.txt and test.txt and no other text, or none"
        raise errors.UserError(f"FROM={folder}: {problem}")
    if not splits["test"]:
        least = f"{HELD_OUT} lines or {LEAST_CUT} words, and there are fewer than {HELD_OUT} texts"
        raise errors.UserError(f"FROM={folder}: too little text: no text has {least}")
    return splits if prepared else _with_unk(splits, folder)


def _names(folder: Path, say: progress.Say) -> list[str]:
    """Return the names of the *.txt files in and below a folder in natural order; `say` names other files.

    Hidden files and folders are left out: `._a.txt` of macOS is no text.
    """
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    visible = sorted((name for name in names if "/." not in f"/{name}"), key=natural_order)
    texts = [name for name in visible if name.lower().endswith(".txt")]
    if skipped := [name for name in visible if not name.lower().endswith(".txt")]:
        say(f"note: FROM={folder}: only .txt files are read; skipped: {schema.few(skipped, NAMED)}")
    if not texts:
        problem = "no .txt files" if folder.is_dir() else "no such folder"
        raise errors.UserError(f"FROM={folder}: {problem}. Expected FROM=<folder of plain texts in UTF-8>")
    return texts


def _split_name(path: Path) -> str:
    """Return the split that a path names, or "": wiki.train.txt by its end, train/1.txt by its first folder."""
    return next((name for name in (path.stem.rpartition(".")[2], path.parts[0]) if name in SPLITS), "")


def _held_out(texts: list[Lines]) -> dict[str, Lines]:
    """Return {split: lines}, where valid and test are a tenth of the texts each (the module's docstring has the rules).

    A text with fewer than LEAST_CUT words that is not one of ten documents belongs to train.
    """
    splits: dict[str, Lines] = {split: [] for split in SPLITS}
    short = [lines for lines in texts if len(lines) < HELD_OUT]
    long = [lines for lines in texts if len(lines) >= HELD_OUT]
    if len(short) >= HELD_OUT:
        for number, lines in enumerate(short):
            splits[{HELD_OUT - 2: "valid", HELD_OUT - 1: "test"}.get(number % HELD_OUT, "train")] += lines
    else:
        long += map(_cut, short)
    for lines in long:
        part = len(lines) // HELD_OUT
        train = len(lines) - 2 * part
        splits["train"] += lines[:train]
        splits["valid"] += lines[train : train + part]
        splits["test"] += lines[train + part :]
    return splits


def _cut(lines: Lines) -> Lines:
    """Return a text as ten lines of equal length, or unchanged if it has fewer than LEAST_CUT words."""
    words = [word for line in lines for word in line]
    ends = [len(words) * part // HELD_OUT for part in range(HELD_OUT + 1)]
    return [words[start:end] for start, end in pairwise(ends)] if len(words) >= LEAST_CUT else lines


def _with_unk(splits: Mapping[str, Lines], folder: Path) -> dict[str, Lines]:
    """Return the splits with `<unk>` in place of rare words, as train counts them.

    Raises:
        UserError: nearly all words of train are rare, as in a language that does not write blanks between words.
    """
    counts = Counter(word for line in splits["train"] for word in line)
    words = Counter({word: count for word, count in counts.items() if word[0].isalnum()})
    rare = sum(count for count in words.values() if count < LEAST_COUNT)
    if rare > NEARLY_ALL * words.total():
        problem = f"{rare} of {words.total()} words of train occur fewer than {LEAST_COUNT} times"
        raise errors.UserError(f"FROM={folder}: {problem}. Expected words separated by blanks; are they? Or more text")
    ranked = [word for word, count in counts.most_common(MOST_WORDS) if count >= LEAST_COUNT]
    # If no word is rare, the rarest becomes <unk>; otherwise a new word of valid or test would have no index.
    kept = set(ranked[:-1] if len(ranked) == len(counts) else ranked)
    return {split: [[w if w in kept else UNK for w in line] for line in lines] for split, lines in splits.items()}


def _prepared_lines(text: bytes, path: str) -> Lines:
    """Return the words of a prepared text as one list for each line, as the step `tokenise` reads them.

    Raises:
        DataError: the text is not valid for this step (see `words_of`).
    """
    lines: Lines = [[]]
    for word in words_of(io.BytesIO(text), path):
        lines[-1].append(word) if word != EOS else lines.append([])
    return lines[:-1]


def _lines(text: bytes, path: str) -> Lines:
    """Return the words of a text as a list of lists: one list for each paragraph.

    Empty lines separate paragraphs; in a text without empty lines, each line is a paragraph. Words are in Unicode's
    normal form C, lower-cased, and separated from punctuation. Combining marks and joiners (U+200C, U+200D) belong to
    the word or sign before them, as Indic scripts, Arabic and Hebrew vowels, and Persian need.

    Raises:
        DataError: the text is not UTF-8, or has a NUL byte.
    """
    raw = text.replace(codecs.BOM_UTF8, b"").splitlines()  # joined files have a byte-order mark each
    whole = "\n".join(decode_line(line, f"{path}:{number}") for number, line in enumerate(raw, start=1)).strip()
    whole = unicodedata.normalize("NFC", whole).lower().replace(SOFT_HYPHEN, "")
    inner = "".join(sorted(c for c in set(whole) if unicodedata.category(c).startswith("M"))) + JOINERS
    word = re.compile(rf"\w[\w{inner}]*(?:['’-]\w[\w{inner}]*)*|[^\w\s][{inner}]*")
    blocks = re.split(r"\n\s*\n" if re.search(r"\n\s*\n", whole) else "\n", whole)
    lines = [[found for found in word.findall(block) if found[0].isprintable()] for block in blocks]
    return [words for words in lines if words]
