"""How large a corpus is: tokens per split and word types, before and after it is tokenised."""

from __future__ import annotations

import tempfile
from pathlib import Path

from softmax_bottleneck.corpora import archives, corpus
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Dataset, load_dataset
from softmax_bottleneck.study.plan import Size, declared_size


def size_of(store: Store, dataset: Dataset) -> Size:
    """Size of a corpus: counted when it is tokenised, else as declared in its YAML."""
    marker = store.tokens_folder(dataset.name) / "corpus.json"
    if marker.exists():
        facts = artefacts.read_json(marker)
        return Size(facts["tokens"], facts["vocabulary_size"])
    if declared := declared_size(dataset):
        return declared
    if dataset.base:
        whole = size_of(store, load_dataset(dataset.base, dataset.folder))
        cut = {"train": int(dataset.train_tokens or whole.tokens["train"])}
        return Size(whole.tokens | cut, int(dataset.vocabulary_size or whole.vocabulary_size))
    return _size_of_files(dataset)


def _size_of_files(dataset: Dataset) -> Size:
    """A user's own corpus before it is tokenised: count its words.

    Raises:
        UserError: its size is neither declared nor to be counted yet.
    """
    splits = {}
    with tempfile.TemporaryDirectory() as scratch:
        for split in corpus.SPLITS:
            splits[split] = corpus.read_split(_text_of(dataset, f"{split}.txt", Path(scratch)))
    words = {word for tokens in splits.values() for word in tokens}
    return Size({split: len(tokens) for split, tokens in splits.items()}, len(words))


def _text_of(dataset: Dataset, name: str, scratch: Path) -> Path:
    """A text file of a corpus where it lies, or what an archive of it holds, in a scratch folder."""
    where = dataset.folder / f"{dataset.name}.yaml"
    entry = dataset.files.get(name, {})
    if "path" not in entry:
        raise UserError(f"{where}: files.{name}: give a `path`, or `expected` with tokens and vocabulary_size")
    path: Path = dataset.folder / entry["path"]
    if "member" not in entry:
        return path
    archives.extract(path, scratch, archives.by_archive({name: entry}, str(where))[path.name])
    return scratch / name


def check_contexts(dataset: Dataset, test_tokens: int) -> None:
    """Refuse ranks of more contexts than the test text has (UserError)."""
    there = test_tokens - 1
    if (dataset.rank_contexts or 0) > there:
        raise UserError(f"{dataset.folder / dataset.name}.yaml: rank_contexts: {dataset.rank_contexts} are asked for, "
                        f"and the test text has {there}; ask for so many or fewer")  # fmt: skip
