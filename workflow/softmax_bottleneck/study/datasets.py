"""Datasets as their YAML declares them: corpora, synthetic languages and word-similarity benchmarks."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, with_config
from typing_extensions import TypedDict

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.fingerprint import fingerprint, step_code
from softmax_bottleneck.study import schema
from softmax_bottleneck.study.languages import LanguageSettings
from softmax_bottleneck.study.runs import digest

OWN_BENCHMARK = "self"  # of a language: word pairs whose similarity it knows
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Address = Annotated[str, Field(pattern="^https://")]


@with_config(schema.STRICT)
class SourceEntry(TypedDict, total=False):
    """Where a file comes from and how it is verified. For a member of an archive, all but its name is the archive's.

    Attributes:
        addresses: tried in order; with `sha256` and `bytes`.
        path: a local file instead, relative to this YAML.
        sha256: hash of the whole file.
        bytes: its size, and the limit of a download.
        member: its name inside a zip or tar archive.
        member_bytes: largest size of a member (default: 256 MiB).
        pairs: for benchmarks, the number of rows.
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
            raise ValueError(f"{needed!r} is a dependency of {key!r}")
    if "addresses" not in entry and "path" not in entry:
        raise ValueError("'path' is a required property where there are no addresses")
    return entry


@with_config(schema.STRICT)
class Expected(TypedDict, total=False):
    """Facts that are asserted after tokenising.

    Attributes:
        tokens: number of tokens, `<eos>` included, per split.
        vocabulary_size: number of word types, `<eos>` included.
        token_sha256: hash of the canonical token stream.
    """

    tokens: Mapping[Literal["train", "valid", "test"], schema.Positive]
    vocabulary_size: Annotated[schema.Integer, Field(ge=2)]
    token_sha256: Sha256


@schema.section
class Dataset:
    """A corpus, a synthetic language with a known distribution, or a set of word-similarity benchmarks.

    Attributes:
        name: equal to the file's name.
        folder: the folder of its YAML, where local files lie.
        kind: text files, a synthetic language, or word-similarity benchmarks.
        title: its name in the report.
        published_as: its name in report/published (ptb, wt2).
        stands_for: published dataset that it is a proxy for.
        source: home page or paper.
        licence: what its owners allow.
        citation: how to cite it.
        mirror: its folder inside a mirror.
        files: file name -> where it comes from.
        expected: facts asserted after tokenising.
        base: corpus that this one is cut from.
        vocabulary_size: for a cut, the number of the most frequent words to keep; the rest becomes <unk>.
        train_tokens: for a cut, the number of training tokens to keep, from the first on.
        contexts: file of report/published with positions of its test text whose predictions are shown (default: random
            positions).
        rank_contexts: ranks are also computed over this many test contexts, the first ones.
        language: settings of the synthetic language.
        wordsim: dataset of benchmarks for its word vectors; `self` for a language that derives its own.
    """

    name: schema.Name
    folder: Path
    kind: Literal["corpus", "language", "benchmarks"]
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
    language: LanguageSettings | None = None
    wordsim: schema.Name | None = None

    def __post_init__(self) -> None:
        """Check the keys that belong together."""
        if len({self.base is None, self.vocabulary_size is None, self.train_tokens is None}) > 1:
            raise ValueError("base, vocabulary_size and train_tokens belong together: a corpus cut from another")
        if (self.kind == "language") != (self.language is not None):
            raise ValueError("a `language` is set where, and only where, kind is language")
        if self.wordsim == OWN_BENCHMARK and self.kind != "language":
            raise ValueError(f"wordsim: only a language derives its own benchmark ({OWN_BENCHMARK!r})")

    @property
    def cut(self) -> dict[str, int]:
        """The sizes that a corpus is cut to, `vocabulary_size` and `train_tokens`; empty for a whole one."""
        kept = {"vocabulary_size": self.vocabulary_size, "train_tokens": self.train_tokens}
        return {key: size for key, size in kept.items() if size is not None}

    @cached_property
    def identity(self) -> str:
        """Hash of the token stream if declared, or else of the files, or of a language's settings."""
        if self.language:
            return digest({"language": asdict(self.language), "code": fingerprint("corpora.language")})
        if "token_sha256" in self.expected:
            return self.expected["token_sha256"]
        if self.base:
            return digest({"base": load_dataset(self.base, self.folder).identity, **self.cut})
        return digest({name: self._file_sha256(name) for name in sorted(self.files)})

    def _file_sha256(self, name: str) -> str:
        entry = self.files[name]
        within = f"/{entry['member']}" if "member" in entry else ""  # the hash is the archive's
        if "sha256" in entry:
            return entry["sha256"] + within
        path = self.folder / entry["path"]
        if not path.is_file():
            raise UserError(f"{self.folder / self.name}.yaml: files.{name}.path: no file at {path}")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() + within

    @property
    def tokens_id(self) -> str:
        """Hash of the corpus and of the code that tokenises it."""
        return digest({"corpus": self.identity, "code": step_code("tokenise")})[:12]

    @property
    def corpus(self) -> str:
        """The published corpus that it is or stands for; empty for a text of one's own."""
        return self.published_as or self.stands_for or ""


@cache
def load_dataset(name: str, near: Path) -> Dataset:
    """Return a dataset by name.

    Raises:
        UserError: unknown name, bad key or value, or a `base` or `wordsim` of another kind.
    """
    dataset, path = _read(name, near), schema.find_config("datasets", name, near)
    for key, other, kind in (("base", dataset.base, "corpus"), ("wordsim", dataset.wordsim, "benchmarks")):
        if other not in (None, OWN_BENCHMARK) and _read(other, near).kind != kind:
            raise UserError(f"{path}: {key}: {other!r} is of kind {_read(other, near).kind}, not {kind}")
    return dataset


def _read(name: str, near: Path) -> Dataset:
    path = schema.find_config("datasets", name, near)
    dataset = schema.read(Dataset, schema.load_yaml(path) | {"folder": path.parent}, str(path))
    if dataset.name != path.stem:
        raise UserError(f"{path}: name: {dataset.name!r} must equal the file's name {path.stem!r}")
    return dataset
