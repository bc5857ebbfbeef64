"""Fits: output heads on free context vectors, fitted to laws that are known (`fits` of a study)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from softmax_bottleneck.heads import registry as heads
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.fingerprint import fingerprint, step_code
from softmax_bottleneck.study.languages import LanguageSettings
from softmax_bottleneck.study.models import head_entry
from softmax_bottleneck.study.runs import Head, digest
from softmax_bottleneck.study.schemas import did_you_mean, schema, validate, with_defaults

# A language that is fitted is not sampled as a text; these lengths are never used.
NO_TEXT = {"train_tokens": 100, "valid_tokens": 100, "test_tokens": 100}


@dataclass(frozen=True)
class Fit:
    """One head at one width.

    Attributes:
        model: label in tables.
        width: of context and word vectors; with `equal_to`, of the head it may not exceed in parameters.
        equal_to: the head, of that width, that it may not exceed; None where the width is its own.
    """

    model: str
    head: Head
    width: int
    equal_to: Head | None = None

    @property
    def fit_id(self) -> str:
        """12 hex digits of the sha256 of what is fitted and of the code that fits it."""
        modules = {*self.head.modules, *(self.equal_to.modules if self.equal_to else ())}
        facts = {"head": asdict(self.head), "width": self.width, "equal_to": self.equal_to and asdict(self.equal_to)}
        return digest({**facts, "code": step_code("fit", *sorted(modules))})[:12]

    @property
    def file_name(self) -> str:
        """Of its numbers, in the folder of its law."""
        return f"{self.head.name}-d{self.width}-{self.fit_id}.json"

    @property
    def condition(self) -> str:
        """What tells it from other fits of its model to the same law."""
        return f"d={self.width};head={self.head.name}" + (f";equal={self.equal_to.name}" if self.equal_to else "")


@dataclass(frozen=True)
class Unit:
    """Everything that is fitted to the laws of one draw.

    Attributes:
        plan: the entry of `fits` it belongs to.
        kind: `dirichlet` or `language`.
        name: of its laws among those of the plan, `alpha0.1-M100` or `rank32`.
        condition: the same as the records say it, `alpha=0.1;M=100;N=1000`.
        law: what the laws are made from.
        sample, bias, updates, learning_rate: see the schema.
        device, threads, deterministic: how it is computed, as in the study.
    """

    plan: str
    kind: str
    name: str
    condition: str
    law: Mapping[str, Any]
    seed: int
    sample: int
    bias: bool
    updates: int
    learning_rate: float
    fits: tuple[Fit, ...]
    device: str = "auto"
    threads: int = 1
    deterministic: bool = True

    @cached_property
    def law_id(self) -> str:
        """12 hex digits for all that the fits of a unit share."""
        facts = {key: getattr(self, key) for key in ("kind", "law", "seed", "sample", "bias", "updates")}
        code = fingerprint("corpora.known_distributions")
        return digest({**facts, "learning_rate": self.learning_rate, "code": code})[:12]

    @cached_property
    def unit_id(self) -> str:
        """12 hex digits for the unit with all its fits."""
        return digest([self.law_id, [f"{fit.model} {fit.fit_id}" for fit in self.fits]])[:12]

    @property
    def path(self) -> str:
        """`<plan>/<laws>/<seed>-<unit_id>`."""
        return f"{self.plan}/{self.name}/{self.seed}-{self.unit_id}"

    @property
    def law_path(self) -> str:
        """`<laws>/<seed>-<law_id>`: the folder that units with the same laws share."""
        return f"{self.name}/{self.seed}-{self.law_id}"


def units_of(study: Mapping[str, Any], where: str) -> dict[str, tuple[Unit, ...]]:
    """The units of every entry of a study's `fits`.

    Raises:
        UserError: naming the entry and the key.
    """
    execution = {key: study[key] for key in ("device", "threads", "deterministic") if key in study}
    fits = study.get("fits", {}).items()
    return {name: tuple(_units(name, entry, execution, f"{where}: fits.{name}")) for name, entry in fits}


def fit_labels(fits: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Names in figures of the models of every entry, by its name and their labels."""
    return {
        name: {model: one.get("label") or _declared(one) for model, one in entry["models"].items()}
        for name, entry in fits.items()
    }


def _declared(model: Mapping[str, Any]) -> str:
    return heads.declaration(str(head_entry(model)["name"])).label


def _units(name: str, given: Mapping[str, Any], execution: Mapping[str, Any], where: str) -> Iterator[Unit]:
    validate(given, schema("fits"), where)
    entry = with_defaults(given, schema("fits")["properties"], where)
    fits = tuple(_fits(entry, where))
    recipe = {key: entry[key] for key in ("sample", "bias", "updates", "learning_rate")}
    laws = list(LAWS[entry["kind"]](entry, where))
    for (law, condition, law_name), seed in itertools.product(laws, entry["seeds"]):
        yield Unit(name, entry["kind"], law_name, condition, law, seed, **recipe, fits=fits, **execution)


Law = tuple[dict[str, Any], str, str]


def _dirichlet(entry: Mapping[str, Any], where: str) -> Iterator[Law]:
    for key in ("alphas", "words"):
        if not entry[key]:
            raise UserError(f"{where}: {key} is not set; a dirichlet study needs at least one")
    for alpha, words in itertools.product(entry["alphas"], entry["words"]):
        condition = f"alpha={alpha:g};M={words};N={entry['contexts']}"
        law = {"alpha": alpha, "words": words, "contexts": entry["contexts"]}
        yield law, condition, f"alpha{alpha:g}-M{words}"


def _language(entry: Mapping[str, Any], where: str) -> Iterator[Law]:
    if not entry["ranks"]:
        raise UserError(f"{where}: ranks is not set; a study of languages needs at least one")
    for rank in entry["ranks"]:
        law = {**entry["language"], **NO_TEXT, "rank": rank}
        try:
            LanguageSettings.from_mapping({**law, "seed": 0})
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        yield law, f"r={rank};V={law['vocabulary_size']}", f"rank{rank}"


LAWS = {"dirichlet": _dirichlet, "language": _language}


def _fits(entry: Mapping[str, Any], where: str) -> Iterator[Fit]:
    found = {}
    for model, given in entry["models"].items():
        options = head_entry(given)
        try:
            found[model] = Head(name := options.pop("name"), heads.options(name, options))
        except UserError as error:
            raise UserError(f"{where}: models.{model}: {error}") from None
    for model, given in entry["models"].items():
        other = given.get("equal_to")
        if other is not None and other not in found:
            raise UserError(f"{where}: models.{model}.equal_to: unknown {other!r}{did_you_mean(other, list(found))}")
        for width in entry["widths"]:
            yield Fit(model, found[model], width, found[other] if other else None)
