"""Corpora, known-truth languages and benchmarks, as their YAML declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from softmax_bottleneck.store.artefacts import sha256_file
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.fingerprint import fingerprint
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study.languages import LanguageSettings
from softmax_bottleneck.study.runs import digest
from softmax_bottleneck.study.schemas import did_you_mean, load_yaml, schema, validate


@dataclass(frozen=True)
class Dataset:
    """A corpus, a known-truth language or a set of benchmarks, as its YAML declares it."""

    name: str
    kind: str
    title: str
    folder: Path  # of the YAML, for local files
    values: Mapping[str, Any]

    def __getattr__(self, key: str) -> Any:
        """Declared values by key; absent ones are None (files, expected: empty)."""
        if key.startswith("__") or key == "values":
            raise AttributeError(key)
        return self.values.get(key, {} if key in {"files", "expected"} else None)

    @cached_property
    def identity(self) -> str:
        """Hash of what the corpus is: its token stream where declared, else its files, or the language's settings."""
        if self.kind == "language":
            return digest({"language": self.values["language"], "code": fingerprint("corpora.language")})
        if "token_sha256" in self.expected:
            return str(self.expected["token_sha256"])
        cut = {key: self.values.get(key) for key in ("vocabulary_size", "train_tokens")}
        if self.base:
            return digest({"base": load_dataset(self.base, self.folder).identity, **cut})
        return digest({name: self._file_sha256(name) for name in sorted(self.files)})

    @property
    def corpus(self) -> str:
        """The published corpus it is or stands for; empty when it is a text of its own."""
        return str(self.published_as or self.stands_for or "")

    def _file_sha256(self, name: str) -> str:
        entry = self.files[name]
        within = f"/{entry['member']}" if "member" in entry else ""  # the hash is that of the archive
        if "sha256" in entry:
            return str(entry["sha256"]) + within
        path = self.folder / entry["path"]
        if not path.is_file():
            raise UserError(f"{self.folder / self.name}.yaml: files.{name}.path: no file at {path}")
        return sha256_file(path) + within


def find_config(kind: str, name: str, near: Path) -> Path:
    """`<kind>/<name>.yaml` beside the study, else in the workflow's own config folder.

    Raises:
        UserError: listing the names there are.
    """
    folders = [near / kind, near, ROOT / "config" / kind]
    for folder in folders:
        if folder.name == kind and (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = {path.stem for folder in folders if folder.name == kind for path in folder.glob("*.yaml")}
    raise UserError(f"{kind}: no {name!r} ({kind}/{name}.yaml){did_you_mean(name, list(known))}")


@cache
def load_dataset(name: str, near: Path) -> Dataset:
    """A dataset by name.

    Raises:
        UserError: unknown name, bad key or value.
    """
    path = find_config("datasets", name, near)
    values = load_yaml(path)
    validate(values, schema("dataset"), str(path))
    if values["name"] != path.stem:
        raise UserError(f"{path}: name: {values['name']!r} must equal the file's name {path.stem!r}")
    if values["kind"] == "language":
        _check_language(values.get("language", {}), path)
    return Dataset(values["name"], values["kind"], values["title"], path.parent, values)


def _check_language(settings: Mapping[str, Any], path: Path) -> None:
    try:
        LanguageSettings.from_mapping(settings)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
