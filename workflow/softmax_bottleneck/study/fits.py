"""Fits: output heads on free context vectors, fitted to known distributions (`fits` of a study)."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from softmax_bottleneck.heads.registry import declaration
from softmax_bottleneck.store.fingerprint import fingerprint, step_code
from softmax_bottleneck.study import schema
from softmax_bottleneck.study.languages import LanguageSettings
from softmax_bottleneck.study.models import HeadEntry
from softmax_bottleneck.study.runs import Head, digest

# A language that is fitted is not sampled as a text; these lengths are never used.
NO_TEXT = {"train_tokens": 100, "valid_tokens": 100, "test_tokens": 100}
RECIPE = ("sample", "bias", "updates", "learning_rate", "gradient")  # keys that a plan and its units share
Size = Annotated[schema.Integer, Field(ge=2, le=10**7)]
Alpha = Annotated[schema.Number, Field(ge=0.001, le=1000)]


@schema.section
class FittedModel:
    """A head to fit.

    Attributes:
        head: name of a head, or its name and options.
        label: name in tables and figures (default: the head's own).
        equal_to: label of a model; the head gets the largest width that does not exceed its parameters.
    """

    head: HeadEntry
    label: schema.Label | None = None
    equal_to: str | None = None


@schema.section
class FitPlan:
    """One entry under `fits` of a study.

    Attributes:
        kind: source of the distributions: `dirichlet`, sampled from a symmetric Dirichlet distribution (Ganea et al.
            2019, section 5.1); or `language`, the contexts of a synthetic language.
        words: `dirichlet`: numbers of words M.
        alphas: `dirichlet`: concentrations, combined with every M; small ones make sparse distributions.
        contexts: `dirichlet`: distributions sampled, N (published: 1e5).
        language: `language`: its settings as in a dataset's file, without rank, seed and tokens.
        ranks: `language`: ranks r of the logits, one language each; its log-probabilities have rank r + 2.
        sample: mean number of words in the new sample of every update; 0: the exact distribution.
        widths: widths of context and word vectors, D or d.
        models: labels and their heads.
        bias: whether words have a bias; the published synthetic study has none (eq. 1).
        seeds: each seed samples distributions, samples and initial values.
        updates: steps of Adam, each over all contexts; the step size falls to zero along a cosine.
        learning_rate: initial step size.
        gradient: `language`: whether to measure, early and at the end, the gradient norm that each head preserves.
    """

    kind: Literal["dirichlet", "language"]
    words: schema.Unique[Size] = ()
    alphas: schema.Unique[Alpha] = ()
    contexts: Size = 2
    language: schema.Options = schema.EMPTY
    ranks: schema.Unique[Size] = ()
    sample: Annotated[schema.Integer, Field(ge=0, le=10**12)] = 0
    widths: schema.NonEmpty[schema.Width]
    models: Annotated[Mapping[schema.Name, FittedModel], Field(min_length=1)]
    bias: schema.Flag = True
    seeds: schema.NonEmpty[schema.Seed] = (1,)
    updates: Annotated[schema.Integer, Field(ge=1, le=10**7)]
    learning_rate: Annotated[schema.Number, Field(gt=0, le=100)]
    gradient: schema.Flag = False

    def __post_init__(self) -> None:
        for key in ("alphas", "words") if self.kind == "dirichlet" else ("ranks",):
            if not getattr(self, key):
                raise ValueError(f"{key} is not set; fits of kind {self.kind} need at least one")
        if self.gradient and self.kind != "language":
            raise ValueError("gradient is measured on fits of kind language alone")
        for model, entry in self.models.items():
            if entry.equal_to is not None and entry.equal_to not in self.models:
                hint = schema.did_you_mean(entry.equal_to, self.models)
                raise ValueError(f"models.{model}.equal_to: unknown {entry.equal_to!r}{hint}")

    @property
    def labels(self) -> dict[str, str]:
        """Names of the models in figures."""
        return {name: model.label or declaration(model.head["name"]).label for name, model in self.models.items()}


@dataclasses.dataclass(frozen=True)
class Fit:
    """One head at one width.

    Attributes:
        model: label in tables.
        width: width of context and word vectors; with `equal_to`, that of the other head.
        equal_to: a head of that width whose number of parameters is the limit; None where the width is the head's own.
    """

    model: str
    head: Head
    width: int
    equal_to: Head | None = None

    @cached_property
    def fit_id(self) -> str:
        """12 hex digits of the sha256 of the fit's settings and code."""
        modules = {*self.head.modules, *(self.equal_to.modules if self.equal_to else ())}
        facts = {"head": asdict(self.head), "width": self.width, "equal_to": self.equal_to and asdict(self.equal_to)}
        return digest({**facts, "code": step_code("fit", *sorted(modules))})[:12]

    @property
    def file_name(self) -> str:
        """Name of the file with its numbers, in the folder of its distributions."""
        return f"{self.head.name}-d{self.width}-{self.fit_id}.json"

    @property
    def condition(self) -> str:
        """The settings that distinguish it from other fits of its model to the same distributions."""
        return f"d={self.width};head={self.head.name}" + (f";equal={self.equal_to.name}" if self.equal_to else "")


@dataclasses.dataclass(frozen=True)
class Unit:
    """All fits to the distributions of one seed.

    Attributes:
        plan: the entry of `fits` it belongs to.
        kind: `dirichlet` or `language`.
        name: its distributions among those of the plan, `alpha0.1-M100` or `rank32`.
        condition: the same in the records, `alpha=0.1;M=100;N=1000`.
        law: settings that the distributions are made from.
        sample, bias, updates, learning_rate, gradient: see `FitPlan`.
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
    gradient: bool
    fits: tuple[Fit, ...]
    device: str = "auto"
    threads: int = 1
    deterministic: bool = True

    @cached_property
    def law_id(self) -> str:
        """12 hex digits for all that the fits of a unit share."""
        facts = {key: getattr(self, key) for key in ("kind", "law", "seed", *RECIPE)}
        return digest({**facts, "code": fingerprint("corpora.known_distributions")})[:12]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of contexts and words; a language's context is a topic and a word that is no other topic's marker."""
        if self.kind == "dirichlet":
            return self.law["contexts"], self.law["words"]
        topics, words = self.law["topics"], self.law["vocabulary_size"]
        return topics * (words - (topics - 1) * self.law["markers_per_topic"]), words

    @cached_property
    def unit_id(self) -> str:
        """12 hex digits for the unit with all its fits."""
        return digest([self.law_id, [f"{fit.model} {fit.fit_id}" for fit in self.fits]])[:12]

    @property
    def path(self) -> str:
        """`<plan>/<name>/<seed>-<unit_id>`."""
        return f"{self.plan}/{self.name}/{self.seed}-{self.unit_id}"

    @property
    def law_path(self) -> str:
        """`<name>/<seed>-<law_id>`: the folder that units with the same distributions share."""
        return f"{self.name}/{self.seed}-{self.law_id}"


def units_of(name: str, plan: FitPlan, execution: Mapping[str, Any], where: str) -> tuple[Unit, ...]:
    """Return the units of an entry of `fits`; `execution` has the device, threads and determinism.

    Raises:
        UserError: naming the key.
    """
    heads = {model: Head.of(entry.head, f"{where}: models.{model}") for model, entry in plan.models.items()}
    fits = tuple(
        Fit(model, heads[model], width, heads[entry.equal_to] if entry.equal_to else None)
        for model, entry in plan.models.items()
        for width in plan.widths
    )
    recipe = {key: getattr(plan, key) for key in RECIPE}
    return tuple(
        Unit(name, plan.kind, law_name, condition, law, seed, **recipe, fits=fits, **execution)
        for (law, condition, law_name), seed in itertools.product(list(_laws(plan, where)), plan.seeds)
    )


def _laws(plan: FitPlan, where: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield the settings, condition and name of each of a plan's families of distributions."""
    if plan.kind == "dirichlet":
        for alpha, words in itertools.product(plan.alphas, plan.words):
            law = {"alpha": alpha, "words": words, "contexts": plan.contexts}
            yield law, f"alpha={alpha:g};M={words};N={plan.contexts}", f"alpha{alpha:g}-M{words}"
        return
    for rank in plan.ranks:
        given = {**plan.language, **NO_TEXT, "rank": rank, "seed": 0}
        settings = schema.read(LanguageSettings, given, f"{where}: language")
        law = asdict(settings)
        del law["seed"]
        yield law, f"r={rank};V={settings.vocabulary_size}", f"rank{rank}"
