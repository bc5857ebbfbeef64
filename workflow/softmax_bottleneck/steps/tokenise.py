"""The step `tokenise`: it turns the text files of a corpus into a dictionary and token ids."""

from collections.abc import Mapping
from pathlib import Path

from softmax_bottleneck.corpora import corpus, corpus_warnings, repeat, words
from softmax_bottleneck.store import artefacts, errors, progress
from softmax_bottleneck.study import Study, load_dataset


def tokenise(study: Study, name: str, say: progress.Say) -> None:
    """Check a corpus against its declared counts and hash; write its token ids, its vocabulary and corpus.json.

    The dataset's YAML file declares the counts and the hash under `expected`. If the YAML names another dataset as
    `base`, the corpus is that dataset with a smaller dictionary and a shorter train split (see `restrict`). Otherwise
    the corpus is read from text files. corpus.json has the keys `name`, `tokens` ({split: number}), `vocabulary_size`,
    `token_sha256`, and `doubts`: the warnings of `corpus_warnings`.

    Args:
        study: the study, which determines the folders.
        name: name of the dataset.
        say: prints the warnings and the counts.

    Raises:
        DataError: a text is invalid or was edited after the download, or its counts or hash are not the declared ones.
        UserError: the dataset requests ranks over more contexts than the test text has.
    """
    dataset = study.dataset(name)
    target = study.store.tokens_folder(name)
    if dataset.base:
        source = study.store.tokens_folder(dataset.base)
        parents = {corpus.VOCABULARY_FILE: artefacts.sha256_file(source / corpus.VOCABULARY_FILE)}
        whole = corpus.load(source, load_dataset(dataset.base, dataset.folder).tokens_id)
        tokens = words.restrict(whole, name=name, **dataset.cut)
    else:
        source = study.store.corpus_folder(name)
        parents = artefacts.read_json(source / "files.json")["files"]
        _refuse_edited(source, parents)
        tokens = repeat.repeated(dataset.repeat, name) if dataset.repeat else words.read_corpus(name, source)
    corpus.check_expected(tokens, dataset.expected)
    words.check_contexts(dataset, len(tokens.test))
    corpus.save(tokens, target, parents, dataset.tokens_id)
    warnings = corpus_warnings.corpus_warnings(tokens) if dataset.kind == "corpus" and not dataset.base else []
    counts = corpus.counts_and_hash(tokens)
    artefacts.write_json(target / "corpus.json", counts | {"name": name, "doubts": warnings})
    for warning in warnings:
        say(f"warning: {name}: {warning}")
    say(f"{name}: {counts['tokens']} tokens, {counts['vocabulary_size']} words")


def _refuse_edited(folder: Path, hashes: Mapping[str, str]) -> None:
    """Raise DataError if a text is missing or no longer has the sha256 that `hashes` gives for its file name."""
    for name, digest in hashes.items():
        path = folder / name
        if not path.is_file() or artefacts.sha256_file(path) != digest:
            raise errors.DataError(f"{path}: missing, or edited since it was brought here; run the download step again")
