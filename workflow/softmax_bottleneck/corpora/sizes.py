"""The size of a corpus: its number of tokens per split and its vocabulary size.

Before the corpus is tokenised, the size comes from the dataset's YAML or from the words of local files. Afterwards, it
comes from the counts that the step `tokenise` has stored.
"""

from softmax_bottleneck.corpora import archives
from softmax_bottleneck.corpora.corpus import SPLITS, check_expected
from softmax_bottleneck.corpora.words import from_words, read_split, words_of
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Dataset, load_dataset
from softmax_bottleneck.study.plan import Size, declared_size


def size_of(store: Store, dataset: Dataset) -> Size:
    """Return the size of a corpus from the first of these sources that exists.

    1. The counts that the step `tokenise` has stored.
    2. The size declared in the dataset's YAML, if no file of the dataset is local (given by a `path`).
    3. For an excerpt of a base corpus: the number of training tokens and the vocabulary size that the excerpt's YAML
       gives, and the numbers of validation and test tokens of the base corpus.
    4. The words counted in the local files. Counts and a hash that the YAML declares must agree with them.

    Raises:
        UserError: none of the sources exists, or an excerpt is larger than its base corpus.
        DataError: a local file is not valid text, or its counts or hash are not the declared ones.
    """
    marker = store.tokens_folder(dataset.name) / "corpus.json"
    if marker.exists():
        facts = artefacts.read_json(marker)
        return Size(facts["tokens"], facts["vocabulary_size"])
    declared = declared_size(dataset)
    if declared and not any("path" in entry for entry in dataset.files.values()):
        return declared
    if dataset.base:
        whole = size_of(store, load_dataset(dataset.base, dataset.folder))
        for key, there in (("train_tokens", whole.tokens["train"]), ("vocabulary_size", whole.vocabulary_size)):
            if dataset.cut[key] > there:
                raise UserError(f"{dataset.folder / dataset.name}.yaml: {key}: {dataset.cut[key]} is more than the "
                                f"{there} of {dataset.base}")  # fmt: skip
        return Size(whole.tokens | {"train": dataset.cut["train_tokens"]}, dataset.cut["vocabulary_size"])
    made = from_words(dataset.name, {split: _words_of(dataset, f"{split}.txt") for split in SPLITS})
    check_expected(made, dataset.expected)
    return Size({split: len(ids) for split, ids in made.splits.items()}, made.vocabulary_size)


def _words_of(dataset: Dataset, name: str) -> list[str]:
    """Return the words of a local text, with `<eos>` after every line; `name` is train.txt, valid.txt or test.txt.

    If the text is a member of an archive, its words are read without unpacking the archive.

    Raises:
        UserError: the dataset's YAML gives no `path` for this text.
        DataError: the file is missing or not plain UTF-8 text (`read_split` has the rules), or the archive is damaged.
    """
    where = dataset.folder / f"{dataset.name}.yaml"
    entry = dataset.files.get(name, {})
    if "path" not in entry:
        raise UserError(f"{where}: files.{name}: give a `path`, or `expected` with tokens and vocabulary_size")
    path = dataset.folder / entry["path"]
    if "member" not in entry:
        return read_split(path)
    member = archives.Member.of(name, entry)
    with archives.opened(path, [member]) as open_member, open_member(member) as file:
        return words_of(file, f"{path}:{member.path}")
