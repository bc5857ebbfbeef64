"""How large a corpus is: tokens per split and word types, before and after it is tokenised."""

from __future__ import annotations

from softmax_bottleneck.corpora import archives
from softmax_bottleneck.corpora.corpus import SPLITS
from softmax_bottleneck.corpora.tokenise import read_split, words_of
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Dataset, load_dataset
from softmax_bottleneck.study.plan import Size, declared_size


def size_of(store: Store, dataset: Dataset) -> Size:
    """Size of a corpus: counted when it is tokenised, else as declared in its YAML, else its words counted now.

    Raises:
        UserError: its size is neither declared nor to be counted yet.
    """
    marker = store.tokens_folder(dataset.name) / "corpus.json"
    if marker.exists():
        facts = artefacts.read_json(marker)
        return Size(facts["tokens"], facts["vocabulary_size"])
    if declared := declared_size(dataset):
        return declared
    if dataset.base:
        whole = size_of(store, load_dataset(dataset.base, dataset.folder))
        return Size(whole.tokens | {"train": dataset.cut["train_tokens"]}, dataset.cut["vocabulary_size"])
    words = {split: _words_of(dataset, f"{split}.txt") for split in SPLITS}
    return Size({split: len(of_split) for split, of_split in words.items()}, len(set().union(*words.values())))


def _words_of(dataset: Dataset, name: str) -> list[str]:
    """Words of a text that lies beside the dataset's YAML, or in an archive there; nothing is unpacked."""
    where = dataset.folder / f"{dataset.name}.yaml"
    entry = dataset.files.get(name, {})
    if "path" not in entry:
        raise UserError(f"{where}: files.{name}: give a `path`, or `expected` with tokens and vocabulary_size")
    path = dataset.folder / entry["path"]
    if "member" not in entry:
        return read_split(path)
    (wanted,) = archives.by_archive({name: entry}, str(where))[path.name]
    with archives.open_member(path, wanted) as file:
        return words_of(file, f"{path}:{wanted.member}")
