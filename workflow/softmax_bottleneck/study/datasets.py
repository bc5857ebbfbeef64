"""Corpora, known-truth languages and benchmarks, as their YAML declares them."""

from __future__ import annotations

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
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study import kinds
from softmax_bottleneck.study.languages import LanguageSettings
from softmax_bottleneck.study.reading import load_yaml
from softmax_bottleneck.study.runs import digest
from softmax_bottleneck.study.validation import did_you_mean, read

OWN_BENCHMARK = "self"  # of a language: word pairs whose similarity it knows
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@with_config(kinds.STRICT)
class SourceEntry(TypedDict, total=False):
    """Where a file is fetched and what it must be; of a member of an archive, all but its name is the archive's.

    Attributes:
        addresses: tried in order; with `sha256` and `bytes`.
        path: a local file instead, relative to this YAML.
        sha256: of the whole file.
        bytes: its size, and the cap of a download.
        member: its name inside a zip or tar archive.
        member_bytes: how long a member may be (256 MiB).
        pairs: of benchmarks: rows in the file.
        label: of benchmarks: its name in tables.
        citation: of benchmarks: the paper.
    """

    addresses: Annotated[tuple[Annotated[str, Field(pattern="^https://")], ...], Field(min_length=1)]
    path: str
    sha256: Sha256
    bytes: kinds.Positive
    member: Annotated[str, Field(min_length=1)]
    member_bytes: kinds.Positive
    pairs: kinds.Positive
    label: str
    citation: str


def _checked_source(entry: SourceEntry) -> SourceEntry:
    for key, needed in (("addresses", "sha256"), ("addresses", "bytes"), ("member_bytes", "member")):
        if key in entry and needed not in entry:
            raise ValueError(f"{needed!r} is a dependency of {key!r}")
    if "addresses" not in entry and "path" not in entry:
        raise ValueError("'path' is a required property where there are no addresses")
    return entry


@with_config(kinds.STRICT)
class Splits(TypedDict, total=False):
    """Tokens with <eos> of each part of a corpus."""

    train: kinds.Positive
    valid: kinds.Positive
    test: kinds.Positive


@with_config(kinds.STRICT)
class Expected(TypedDict, total=False):
    """What is asserted after tokenising.

    Attributes:
        tokens: with <eos>, per split.
        vocabulary_size: word types with <eos>.
        token_sha256: hash of the canonical token stream.
    """

    tokens: Splits
    vocabulary_size: Annotated[kinds.Integer, Field(ge=2)]
    token_sha256: Sha256


@kinds.declared
class DatasetFile:
    """What the YAML of a corpus, a known-truth language or a set of benchmarks says.

    Attributes:
        name: equal to the file's name.
        kind: text files, the known-truth language, or word-similarity benchmarks.
        title: name in the report.
        published_as: its name in report/published (ptb, wt2).
        stands_for: published dataset shown, muted, beside this one.
        source: home page or paper.
        licence: what its owners allow.
        citation: how to cite it.
        mirror: its folder inside a mirror.
        files: file name -> where it is fetched and what it must be.
        expected: asserted after tokenising.
        base: corpus this one is cut from.
        vocabulary_size: cut: keep so many of the most frequent words, <unk> for the rest.
        train_tokens: cut: keep the first so many training tokens.
        contexts: file of report/published with places of its test text whose predictions are shown; without it places
            are drawn.
        rank_contexts: ranks are those of so many test contexts, the first ones; of all of them besides.
        language: settings of the known-truth language.
        wordsim: dataset of benchmarks for its word vectors; `self` when it derives its own.
    """

    name: kinds.Name
    kind: Literal["corpus", "language", "benchmarks"]
    title: str
    published_as: str | None = None
    stands_for: str | None = None
    source: str | None = None
    licence: str | None = None
    citation: str | None = None
    mirror: str | None = None
    files: Mapping[kinds.Name, Annotated[SourceEntry, AfterValidator(_checked_source)]] = kinds.EMPTY
    expected: Expected = kinds.EMPTY
    base: kinds.Name | None = None
    vocabulary_size: Annotated[kinds.Integer, Field(ge=3)] | None = None
    train_tokens: Annotated[kinds.Integer, Field(ge=10)] | None = None
    contexts: Annotated[str, Field(pattern=r"^[a-z0-9_]+_contexts\.csv$")] | None = None
    rank_contexts: kinds.Positive | None = None
    language: LanguageSettings | None = None
    wordsim: kinds.Name | None = None

    def __post_init__(self) -> None:
        if (self.base is None) != (self.vocabulary_size is None) or (self.base is None) != (self.train_tokens is None):
            raise ValueError("base, vocabulary_size and train_tokens belong together: a corpus cut from another")
        if (self.kind == "language") != (self.language is not None):
            raise ValueError("a `language` is set where, and only where, kind is language")
        if self.wordsim == OWN_BENCHMARK and self.kind != "language":
            raise ValueError(f"wordsim: only a language derives its own benchmark ({OWN_BENCHMARK!r})")


@kinds.declared
class Dataset(DatasetFile):
    """A dataset and the folder of its YAML, where its local files lie."""

    folder: Path

    @property
    def cut(self) -> dict[str, int]:
        """What is kept of the corpus it is cut from: `vocabulary_size` and `train_tokens`; empty where it is whole."""
        kept = {"vocabulary_size": self.vocabulary_size, "train_tokens": self.train_tokens}
        return {key: size for key, size in kept.items() if size is not None}

    @cached_property
    def identity(self) -> str:
        """Hash of what the corpus is: its token stream where declared, else its files, or the language's settings."""
        if self.language:
            return digest({"language": asdict(self.language), "code": fingerprint("corpora.language")})
        if "token_sha256" in self.expected:
            return self.expected["token_sha256"]
        if self.base:
            return digest({"base": load_dataset(self.base, self.folder).identity, **self.cut})
        return digest({name: self._file_sha256(name) for name in sorted(self.files)})

    @property
    def tokens_id(self) -> str:
        """Hash of what its tokens are: of the corpus, and of the code that makes tokens of it."""
        return digest({"corpus": self.identity, "code": step_code("tokenise")})[:12]

    @property
    def corpus(self) -> str:
        """The published corpus it is or stands for; empty when it is a text of its own."""
        return self.published_as or self.stands_for or ""

    def _file_sha256(self, name: str) -> str:
        entry = self.files[name]
        within = f"/{entry['member']}" if "member" in entry else ""  # the hash is that of the archive
        if "sha256" in entry:
            return entry["sha256"] + within
        path = self.folder / entry["path"]
        if not path.is_file():
            raise UserError(f"{self.folder / self.name}.yaml: files.{name}.path: no file at {path}")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() + within


def find_config(kind: str, name: str, near: Path, asked_by: str = "") -> Path:
    """`<kind>/<name>.yaml` beside the study, else in the workflow's own config folder.

    Raises:
        UserError: naming the file that asks for it, if given, and the names there are.
    """
    folders = [near / kind, near, ROOT / "config" / kind]
    for folder in folders:
        if folder.name == kind and (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = {path.stem for folder in folders if folder.name == kind for path in folder.glob("*.yaml")}
    where = f"{asked_by}: {kind}" if asked_by else kind
    raise UserError(f"{where}: no {name!r:.90} ({kind}/{name:.90}.yaml){did_you_mean(name, known)}")


@cache
def load_dataset(name: str, near: Path) -> Dataset:
    """A dataset by name.

    Raises:
        UserError: unknown name, bad key or value; a corpus it is cut from, or its benchmarks, are none.
    """
    dataset, path = _read(name, near), find_config("datasets", name, near)
    above = [name]
    while (base := _read(above[-1], near).base) is not None:
        if base in above:
            raise UserError(f"{path}: base: goes round in a circle ({' -> '.join([*above, base])})")
        above.append(base)
    for key, other in (("base", dataset.base), ("wordsim", dataset.wordsim)):
        kind = "benchmarks" if key == "wordsim" else "corpus"
        if other not in (None, OWN_BENCHMARK) and _read(other, near).kind != kind:
            raise UserError(f"{path}: {key}: {other!r} is of kind {_read(other, near).kind}, not {kind}")
    return dataset


def _read(name: str, near: Path) -> Dataset:
    path = find_config("datasets", name, near)
    declared = read(DatasetFile, load_yaml(path), str(path))
    if declared.name != path.stem:
        raise UserError(f"{path}: name: {declared.name!r} must equal the file's name {path.stem!r}")
    return Dataset(**vars(declared), folder=path.parent)
