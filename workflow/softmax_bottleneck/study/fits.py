"""The section `fits` of a study: which heads are fitted to which known distributions, and with which settings.

This module reads the section and plans the fits; `training.fitting` computes them. A fit trains a head and one free
vector per context.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from softmax_bottleneck.heads.registry import declaration
from softmax_bottleneck.store import schema
from softmax_bottleneck.store.fingerprint import fingerprint, step_code
from softmax_bottleneck.study import languages
from softmax_bottleneck.study.runs import Head, HeadEntry, digest
from softmax_bottleneck.study.truths import Source, Truth

# A fitted language is never sampled as a text, so these lengths are not used.
NO_TEXT = {"train_tokens": 100, "valid_tokens": 100, "test_tokens": 100}
NEEDED = {"dirichlet": ("alphas", "words"), "language": ("ranks",), "natural": ("truths", "words")}
RECIPE = ("sample", "bias", "updates", "learning_rate", "gradient")  # keys that a plan and its units share
Size = Annotated[schema.Integer, Field(ge=2, le=10**7)]
Alpha = Annotated[schema.Number, Field(ge=0.001, le=1000)]


@schema.section
class FittedModel:
    """A head to fit.

    Attributes:
        head: the head with its options, such as `{"name": "mos", "components": 3}`; in YAML, a name alone is enough.
        label: name in tables and figures (default: the label that the head's own file declares).
        equal_to: key of another entry under `models` of the same FitPlan, or None. With a key, the head gets the
            largest width with which it has at most as many parameters as that model.
        widths: those of the plan's widths at which the model is fitted (default: all).
        rates: those of the search's step sizes that are tried for the model (default: all).
    """

    head: HeadEntry
    label: schema.Label | None = None
    equal_to: str | None = None
    widths: schema.NonEmpty[schema.Width] | None = None
    rates: schema.NonEmpty[schema.Number] | None = None


@schema.section
class RateSearch:
    """A search for the initial step size of every model, for each true distribution.

    The chosen value has the smallest mean ln KL over `widths`.

    Attributes:
        rates: the values to try.
        seed: seed of the search, which is none of the plan's seeds.
        widths: those of the plan's widths at which the values are tried.
        check_updates: number of updates with which the fits of the search are repeated at the chosen values, to show
            whether they had converged; 0 for no repetition.
    """

    rates: Annotated[schema.Unique[schema.Number], Field(min_length=2)]
    seed: schema.Seed
    widths: schema.NonEmpty[schema.Width]
    check_updates: Annotated[schema.Integer, Field(ge=0, le=10**7)] = 0


@schema.section
class FitPlan:
    """A plan of fits, which is one entry under `fits` of a study's YAML.

    Attributes:
        kind: source of the distributions: `dirichlet`, sampled from a symmetric Dirichlet distribution (Ganea et al.
            2019, section 5.1); `language`, the contexts of a synthetic language; or `natural`, next-word distributions
            of natural text.
        words: for `dirichlet`, the numbers of words, M in figures. For `natural`, the numbers of most probable tokens
            that are kept.
        alphas: for `dirichlet`, the concentrations; a small one makes sparse distributions. Every concentration is
            combined with every number of words.
        contexts: for `dirichlet` and `natural`, the number of distributions sampled, N in figures (published: 1e5).
        truths: for `natural`, {name: source of the distributions}.
        language: for `language`, settings as in the file of a synthetic dataset, without rank, seed and token counts.
        ranks: for `language`, the ranks r of the true logits without the word biases, with one language per rank. The
            word biases and the normalisers of the contexts raise the rank of the log-probabilities to r + 2.
        sample: expected number of words that each update samples, summed over all contexts. With 0, no words are
            sampled, and the loss is computed from the exact distributions.
        widths: widths of the context and word vectors, D or d in figures; every model is fitted at each of them.
        models: {name of a model: the head to fit, with its label}.
        bias: true if every word has a bias; the published synthetic study has none (Ganea et al. 2019, eq. 1).
        seeds: seeds of the distributions, the sampled words and the initial values.
        updates: number of steps of Adam, each over all contexts; the step size falls to zero along a cosine.
        learning_rate: initial step size; absent if `search` is given.
        search: for `natural`, a search for the initial step size of every model.
        gradient: for `language`, true to measure the gradient share of each head (`training.gradient_flow`), early in
            the fit and at its end.
    """

    kind: Literal["dirichlet", "language", "natural"]
    words: schema.Unique[Size] = ()
    alphas: schema.Unique[Alpha] = ()
    contexts: Size = 2
    truths: Mapping[schema.Name, Source] = schema.EMPTY
    language: schema.Options = schema.EMPTY
    ranks: schema.Unique[Size] = ()
    sample: Annotated[schema.Integer, Field(ge=0, le=10**12)] = 0
    widths: schema.NonEmpty[schema.Width]
    models: Annotated[Mapping[schema.Name, FittedModel], Field(min_length=1)]
    bias: schema.Flag = True
    seeds: schema.NonEmpty[schema.Seed] = (1,)
    updates: Annotated[schema.Integer, Field(ge=1, le=10**7)]
    learning_rate: Annotated[schema.Number, Field(gt=0, le=100)] | None = None
    search: RateSearch | None = None
    gradient: schema.Flag = False

    def __post_init__(self) -> None:
        for key in NEEDED[self.kind]:
            if not getattr(self, key):
                raise ValueError(f"{key} is not set; fits of kind {self.kind} need at least one")
        if (self.learning_rate is None) == (self.search is None):
            raise ValueError("learning_rate, search: expected one of the two")
        if self.search:
            if self.kind != "natural":
                raise ValueError(f"search: needs fits of kind natural (got {self.kind})")
            if self.search.seed in self.seeds:
                raise ValueError(f"search.seed: {self.search.seed} is one of the plan's seeds. Expected another")
        if self.gradient and self.kind != "language":
            raise ValueError(f"gradient: true needs fits of kind language (got {self.kind})")
        for model, entry in self.models.items():
            if entry.equal_to is not None and entry.equal_to not in self.models:
                hint = schema.did_you_mean(entry.equal_to, self.models)
                raise ValueError(f"models.{model}.equal_to: unknown {entry.equal_to!r}{hint}")

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the models in figures, as {name of a model: label}."""
        return {name: model.label or declaration(model.head["name"]).label for name, model in self.models.items()}


@dataclass(frozen=True)
class Fit:
    """A fit of one head, either at a given width or with as many parameters as another head has at that width.

    Attributes:
        model: name of the model in the plan.
        head: the head to fit.
        width: the given width of the context and word vectors. It is the width of `head` if `equal_to` is None.
        equal_to: the other head, or None. If it is set, `width` is its width, and `head` gets the largest width at
            which `head` has no more parameters than `equal_to`.
    """

    model: str
    head: Head
    width: int
    equal_to: Head | None = None

    @cached_property
    def fit_id(self) -> str:
        """The first 12 hex digits of the sha256 of the fit's settings and code."""
        modules = {*self.head.modules, *(self.equal_to.modules if self.equal_to else ())}
        settings = {"head": asdict(self.head), "width": self.width, "equal_to": self.equal_to and asdict(self.equal_to)}
        return digest({**settings, "code": step_code("fit", *sorted(modules, key=str))})[:12]

    @property
    def file_name(self) -> str:
        """The name of the file with the results, `<head>-d<width>-<fit_id>.json`; its folder is `Unit.law_path`."""
        return f"{self.head.name}-d{self.width}-{self.fit_id}.json"

    @property
    def condition(self) -> str:
        """The fit's part of a condition in the records, such as `d=8;head=mos;equal=softmax`.

        It gives the width, the name of the head and, if `equal_to` is set, the name of that head. In the records, it
        follows the part that names the distributions (`Unit.condition`).
        """
        return f"d={self.width};head={self.head.name}" + (f";equal={self.equal_to.name}" if self.equal_to else "")


@dataclass(frozen=True)
class Unit:
    """A unit: the job that does all fits of a plan to the distributions of one setting and one seed.

    Attributes:
        plan: name of the plan, an entry under `fits` of the study.
        kind: source of the distributions: `dirichlet` (sampled from a Dirichlet distribution), `language` (the
            contexts of a synthetic language) or `natural` (natural text).
        name: name of the distributions within the plan, such as `alpha0.1-M100` or `rank32`.
        condition: first part of a condition in the records. It names the distributions: `alpha=0.1;M=100;N=1000`.
        law: settings of the known distributions, without the seed: `alpha`, `words` and `contexts` for `dirichlet`, or
            the settings of a synthetic language (fields of `LanguageSettings`) for `language`. For `natural`: the path
            of the truth, as `truth`.
        seed: seed of the distributions, the sampled words and the initial values.
        fits: the fits to do.
        sample, bias, updates, learning_rate, gradient: settings of the plan that hold for all fits: words sampled for
            one update (0: none), whether words have biases, number of Adam steps, initial step size, and whether
            gradient shares are measured (details in `FitPlan`).
        truth: for `natural`, the distributions, which a file holds.
        search: units that tried step sizes, if these decide the step sizes of this unit; `learning_rate` is then 0.
        device, threads, deterministic: settings of the study: device of the computation, CPU threads, and whether equal
            bits are required (details in `StudyFile`).
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
    truth: Truth | None = None
    search: tuple["Unit", ...] = ()
    device: str = "auto"
    threads: int = 1
    deterministic: bool = True

    @cached_property
    def law_id(self) -> str:
        """The first 12 hex digits of a hash of all that determines the fits, except their heads, widths and code.

        The hash covers the known distributions with their seed and the code that makes them. It also covers the
        settings that hold for all fits: `sample`, `bias`, `updates`, `learning_rate` and `gradient`. Units with the
        same `law_id` share the files of equal fits.
        """
        settings = {key: getattr(self, key) for key in ("kind", "law", "seed", *RECIPE)}
        settings |= {"search": [unit.unit_id for unit in self.search]} if self.search else {}
        return digest({**settings, "code": fingerprint("corpora.known_distributions")})[:12]

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (number of contexts, number of words) of the known distributions.

        A context of a language is a pair (topic, previous word). Pairs whose previous word is a marker of another topic
        are not counted, because they cannot occur.
        """
        if self.truth:
            return self.truth.contexts, self.truth.words
        if self.kind == "dirichlet":
            return self.law["contexts"], self.law["words"]
        topics, words = self.law["topics"], self.law["vocabulary_size"]
        return topics * (words - (topics - 1) * self.law["markers_per_topic"]), words

    @cached_property
    def unit_id(self) -> str:
        """The first 12 hex digits of a hash of the `law_id`, and of the model and `fit_id` of every fit."""
        return digest([self.law_id, [f"{fit.model} {fit.fit_id}" for fit in self.fits]])[:12]

    @property
    def path(self) -> str:
        """The path of the unit's own folder below results/fits: `<plan>/<name>/<seed>-<unit_id>`."""
        return f"{self.plan}/{self.name}/{self.seed}-{self.unit_id}"

    @property
    def law_path(self) -> str:
        """The path, below results/fits/laws, of the folder with the results of fits: `<name>/<seed>-<law_id>`.

        All units with the same `law_id` share this folder, so that equal fits are done once.
        """
        return f"{self.name}/{self.seed}-{self.law_id}"


def units_of(
    name: str, plan: FitPlan, execution: Mapping[str, Any], where: str, truths: Sequence[Truth] = ()
) -> tuple[Unit, ...]:
    """Return the units of a plan: one per seed and setting of the distributions, such as alpha.

    Args:
        name: name of the plan, an entry under `fits` of a study.
        plan: the plan.
        execution: {name: value} of the study's settings `device`, `threads` and `deterministic`.
        where: location of the plan, such as the study file and `fits.<name>`, for error messages.
        truths: the available sources of a plan of kind `natural`.

    Raises:
        UserError: a head or an option is unknown, or a value is not allowed.
    """
    heads = {model: Head.of(entry.head, f"{where}: models.{model}") for model, entry in plan.models.items()}
    fits = tuple(
        Fit(model, heads[model], width, heads[entry.equal_to] if entry.equal_to else None)
        for model, entry in plan.models.items()
        for width in plan.widths
        if width in (entry.widths or plan.widths)
    )
    shared = {"plan": name, "kind": plan.kind, "fits": fits} | {key: getattr(plan, key) for key in RECIPE}
    shared |= {"learning_rate": plan.learning_rate or 0.0, **execution}
    if plan.kind == "natural":
        return tuple(_natural_units(plan, truths, shared))
    return tuple(Unit(**law, seed=seed, **shared) for law, seed in itertools.product(_laws(plan, where), plan.seeds))


def _laws(plan: FitPlan, where: str) -> Iterator[dict[str, Any]]:
    """Yield `name`, `condition` and `law` of the units of each setting of a plan of kind `dirichlet` or `language`."""
    for alpha, words in itertools.product(plan.alphas, plan.words) if plan.kind == "dirichlet" else ():
        law = {"alpha": alpha, "words": words, "contexts": plan.contexts}
        condition = f"alpha={alpha:g};M={words};N={plan.contexts}"
        yield {"name": f"alpha{alpha:g}-M{words}", "condition": condition, "law": law}
    for rank in plan.ranks if plan.kind == "language" else ():
        given = {**plan.language, **NO_TEXT, "rank": rank, "seed": 0}
        law = asdict(schema.read(languages.LanguageSettings, given, f"{where}: language"))
        del law["seed"]
        yield {"name": f"rank{rank}", "condition": f"r={rank};V={law['vocabulary_size']}", "law": law}


def _natural_units(plan: FitPlan, truths: Sequence[Truth], shared: Mapping[str, Any]) -> Iterator[Unit]:
    """Yield the units of a plan of kind `natural`: for every truth those of its search, then one per seed.

    The search has a unit per step size and, with `check_updates`, one with more updates at the chosen step sizes.
    `shared` has the attributes that are the same for all units.
    """
    for source, words in itertools.product(truths, plan.words):
        condition = f"truth={source.name};N={plan.contexts};V={words}"
        truth = replace(source, contexts=plan.contexts, words=words)
        base = Unit(name=f"{source.name}-V{words}", condition=condition, law={}, seed=0, truth=truth, **shared)
        if tried := plan.search:
            part = tuple(fit for fit in base.fits if fit.width in tried.widths)
            rates = {model: entry.rates or tried.rates for model, entry in plan.models.items()}
            search = []
            for rate in tried.rates:
                fits = tuple(fit for fit in part if rate in rates[fit.model])
                search.append(_of_seed(base, tried.seed, f";rate={rate:g}", learning_rate=rate, fits=fits))
            yield from search
            base = replace(base, search=tuple(search))
            if longer := tried.check_updates:
                yield _of_seed(base, tried.seed, f";updates={longer}", updates=longer, fits=part)
        yield from (_of_seed(base, seed) for seed in plan.seeds)


def _of_seed(base: Unit, seed: int, suffix: str = "", **changes: Any) -> Unit:
    """Return a unit with another seed and its distributions; `suffix` is added to its condition in the records."""
    assert base.truth is not None
    truth, condition = replace(base.truth, seed=seed), base.condition + suffix
    return replace(base, seed=seed, truth=truth, law={"truth": truth.path}, condition=condition, **changes)
