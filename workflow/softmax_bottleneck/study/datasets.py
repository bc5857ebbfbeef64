"""Datasets as their YAML declares them: corpora, synthetic languages and word-similarity benchmarks."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, with_config
from typing_extensions import TypedDict

from softmax_bottleneck.store import artefacts, schema
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.fingerprint import fingerprint, step_code
from softmax_bottleneck.store.paths import PUBLISHED
from softmax_bottleneck.study import languages, runs

OWN_BENCHMARK = "self"  # value of `wordsim`: the word pairs whose similarity follows from a language's distribution
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Address = Annotated[str, Field(pattern="^https://")]


@with_config(schema.STRICT)
class SourceEntry(TypedDict, total=False):
    """The origin of a file and the facts that verify it.

    If the file is a member of an archive, `addresses`, `path`, `sha256` and `bytes` are those of the archive.

    Attributes:
        addresses: addresses for download, tried in order; if they are given, `sha256` and `bytes` are required.
        path: path of a local file, relative to the folder of the dataset's YAML; given instead of `addresses`.
        sha256: hash of the whole file.
        bytes: size of the file, which is also the limit of a download.
        member: name of the file inside a zip or tar archive.
        member_bytes: largest allowed size of the member (default: 256 MiB).
        pairs: for benchmarks, the number of word pairs.
        label: for benchmarks, the name in tables.
        citation: for benchmarks, the paper.
    """

    addresses: Annotated[tuple[Address, ...], Field(min_length=1)]
    path: str
    sha256: Sha256
    bytes: schema.Positive
    member: schema.Line
    member_bytes: schema.Positive
    pairs: schema.Positive
    label: str
    citation: str


def _check_source(entry: SourceEntry) -> SourceEntry:
    for key, needed in (("addresses", "sha256"), ("addresses", "bytes"), ("member_bytes", "member")):
        if key in entry and needed not in entry:
            raise ValueError(f"{key!r} is set without {needed!r}. Expected both")
    if "addresses" not in entry and "path" not in entry:
        raise ValueError("expected 'path' (a local file) or 'addresses' (downloads)")
    return entry


@with_config(schema.STRICT)
class Expected(TypedDict, total=False):
    """The declared facts about a corpus, which the step `tokenise` compares with the tokenised corpus.

    Attributes:
        tokens: {split: number of tokens, including `<eos>` at the end of each line}.
        vocabulary_size: number of word types, `<eos>` included.
        token_sha256: hex sha256 of the words of all splits, the same for every file format and numbering of the words
            (definition in `corpora.corpus.token_sha256`).
    """

    tokens: Mapping[Literal["train", "valid", "test"], schema.Positive]
    vocabulary_size: Annotated[schema.Integer, Field(ge=2)]
    token_sha256: Sha256


@schema.section
class Dataset:
    """A corpus, a synthetic language with a known distribution, repeated tokens, or word-similarity benchmarks.

    Attributes:
        name: name of the dataset, equal to the file's name.
        folder: folder of the dataset's YAML, in which local files lie.
        kind: `corpus` (text files), `language` (a synthetic language), `repeat` (sequences that repeat one token) or
            `benchmarks` (word similarity).
        title: name in the report.
        published_as: name of the corpus in report/published (ptb, wt2), for a published corpus. A column's
            `published_as` names a metric there, a head's a model.
        stands_for: published corpus that this one is a proxy for.
        source: home page or paper.
        licence: terms of use.
        citation: how to cite the dataset.
        mirror: name of the dataset's own folder inside a mirror, which is a folder with copies of all corpora.
        files: file name -> origin of the file.
        expected: facts that are checked after tokenising.
        base: corpus of which this one is a smaller part.
        vocabulary_size: with `base`, the number of most frequent words to keep; all others become <unk>.
        train_tokens: with `base`, the number of training tokens to keep, counted from the first.
        contexts: name of a file in report/published, such as `ptb_contexts.csv`. The file lists the positions in the
            test text whose predictions are shown (default: random positions).
        rank_contexts: number of contexts, counted from the start of the test text, over which ranks are computed. Ranks
            over all test contexts are then recorded as separate metrics, whose names end in `_all`. When absent, ranks
            are computed over all test contexts only.
        language: settings of the synthetic language.
        repeat: settings of the repeated tokens.
        wordsim: name of the dataset with the word-similarity benchmarks on which word vectors are tested; `self` for a
            language, whose own distribution gives the benchmark.
    """

    name: schema.Name
    folder: Path
    kind: Literal["corpus", "language", "repeat", "benchmarks"]
    title: str
    published_as: str | None = None
    stands_for: str | None = None
    source: str | None = None
    licence: str | None = None
    citation: str | None = None
    mirror: str | None = None
    files: Mapping[schema.Name, Annotated[SourceEntry, AfterValidator(_check_source)]] = schema.EMPTY
    expected: Expected = schema.EMPTY
    base: schema.Name | None = None
    vocabulary_size: Annotated[schema.Integer, Field(ge=3)] | None = None
    train_tokens: Annotated[schema.Integer, Field(ge=10)] | None = None
    contexts: Annotated[str, Field(pattern=r"^[a-z0-9_]+_contexts\.csv$")] | None = None
    rank_contexts: schema.Positive | None = None
    language: languages.LanguageSettings | None = None
    repeat: languages.RepeatSettings | None = None
    wordsim: schema.Name | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if keys contradict each other, such as `base` without `train_tokens`."""
        if len({self.base is None, self.vocabulary_size is None, self.train_tokens is None}) > 1:
            raise ValueError("base, vocabulary_size, train_tokens: set all three (they cut a corpus from base) or none")
        if self.base == self.name:
            raise ValueError("base: a corpus cannot be cut from itself")
        if self.contexts and not (PUBLISHED / self.contexts).is_file():
            raise ValueError(f"contexts: no file {PUBLISHED / self.contexts}")
        for kind, settings in (("language", self.language), ("repeat", self.repeat)):
            if (self.kind == kind) != (settings is not None):
                raise ValueError(f"`{kind}` must be set if kind is {kind}, and left out otherwise")
        if self.wordsim == OWN_BENCHMARK and self.kind != "language":
            raise ValueError(f"wordsim: {OWN_BENCHMARK!r} needs kind language; name a dataset of kind benchmarks")

    @property
    def cut(self) -> dict[str, int]:
        """The settings `vocabulary_size` and `train_tokens` of a corpus with a `base`; empty for other corpora."""
        kept = {"vocabulary_size": self.vocabulary_size, "train_tokens": self.train_tokens}
        return {key: size for key, size in kept.items() if size is not None}

    @cached_property
    def identity(self) -> str:
        """The hash that identifies the corpus, as 64 hex digits.

        The first of these attributes that is set determines the hash:

        1. `language` or `repeat`: a hash of its settings and of the code that makes the text.
        2. `expected.token_sha256`: the value declared there.
        3. `base`: a hash of the base corpus's identity, of `vocabulary_size` and of `train_tokens`.
        4. `files`: a hash of the hashes of all files.

        Raises:
            UserError: a local file without a declared hash does not exist.
        """
        if self.language:
            return runs.digest({"language": asdict(self.language), "code": fingerprint("corpora.language")})
        if self.repeat:
            return runs.digest({"repeat": asdict(self.repeat), "code": fingerprint("corpora.repeat")})
        if "token_sha256" in self.expected:
            return self.expected["token_sha256"]
        if self.base:
            return runs.digest({"base": load_dataset(self.base, self.folder).identity, **self.cut})
        hashes = {}
        for name, entry in sorted(self.files.items()):
            if "sha256" in entry:
                hashes[name] = entry["sha256"]
            else:
                path = self.folder / entry["path"]
                if not path.is_file():
                    raise UserError(f"{self.folder / self.name}.yaml: files.{name}.path: no file at {path}")
                hashes[name] = artefacts.sha256_file(path)
            if "member" in entry:  # the hash is the archive's
                hashes[name] += f"/{entry['member']}"
        return runs.digest(hashes)

    @property
    def tokens_id(self) -> str:
        """The first 12 hex digits of a hash of the corpus and of the code that tokenises it."""
        return runs.digest({"corpus": self.identity, "code": step_code("tokenise")})[:12]

    @property
    def corpus(self) -> str:
        """The published corpus to compare with: `published_as` or, if unset, `stands_for`; empty if both are unset."""
        return self.published_as or self.stands_for or ""


@cache
def load_dataset(name: str, near: Path) -> Dataset:
    """Return the dataset with this name, read from datasets/<name>.yaml.

    This file is searched first in `near`, the folder of the study, and then in config/. If `near` is itself called
    `datasets`, the file may lie directly in `near`.

    Raises:
        UserError: the name is unknown, a key or value is not allowed, or `base` or `wordsim` names a dataset of the
            wrong kind.
    """
    path = schema.find_config("datasets", name, near)
    dataset = schema.read(Dataset, schema.load_yaml(path) | {"folder": path.parent}, str(path))
    if dataset.name != path.stem:
        raise UserError(f"{path}: name: {dataset.name!r} must equal the file's name {path.stem!r}")
    for key, other, kind in (("base", dataset.base, "corpus"), ("wordsim", dataset.wordsim, "benchmarks")):
        if other not in (None, OWN_BENCHMARK) and (found := load_dataset(other, near).kind) != kind:
            raise UserError(f"{path}: {key}: {other!r} is of kind {found}, not {kind}")
    return dataset
