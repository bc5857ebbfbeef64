"""Consistency of an archive: limits of its numbers, numbers that follow from others, and the identity of its runs.

Every archive that `archive` writes obeys these rules. They find values that were mistyped, damaged or edited one by
one. They cannot find a change of all numbers that depend on each other; only the weights of a run can (`--weights`).
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from softmax_bottleneck.heads import registry
from softmax_bottleneck.records import metrics
from softmax_bottleneck.records.records import DYNAMIC
from softmax_bottleneck.report.archive_file import FIX, ArchiveFile
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study.runs import digest

CLOSE = 1e-9  # relative difference of two numbers that are equal by definition
TRACED = 1e-6  # the same for a model that was loaded again: its last epoch may be of another machine
EPS = 2.0**-23  # of float32, in the tolerance of the Press rank

Numbers = Mapping[str, float]
# (pattern of a metric, smallest value, largest value, whether values are whole); the first match counts.
LIMITS = tuple((re.compile(pattern), low, high, whole) for pattern, low, high, whole in (
    (r"excess_ppl|.*_gain|slope_.*", -math.inf, math.inf, False),
    (r".*_ppl(_.*)?", 1, math.inf, False),
    (r"hit_rate_.*|top5_hit|accuracy.*|mode_match|gradient_(energy|words).*", 0, 1, False),
    (r"spearman.*|gradient_cosine.*", -1, 1, False),
    (r"rank_tolerance", 0, math.inf, False),
    (r"(law_)?rank.*|parameters|epochs|steps|embedding_size|width", 1, math.inf, True),
    (r"n_pairs.*|top_m|(best|switch)_epoch", 0, math.inf, True),
    (r".*", 0, math.inf, False),
))  # fmt: skip
ASCENDING = (  # metrics, none of which is above the next
    *("rank_press_low rank_press rank_press_high rank_columns", "rank_press_high rank_rows"),
    *("rank_eff_1e-3 rank_eff_1e-4 rank_eff_1e-5 rank_columns", "best_epoch epochs steps", "switch_epoch epochs"),
    *("hit_rate_1 hit_rate_5 hit_rate_10", "n_pairs_not_in_vocab n_pairs", "slope_min slope_mean slope_max"),
    *("test_ppl test_ppl_sound", "valid_ppl valid_ppl_sound"),
    *(f"{name}_low {name} {name}_high" for name in ("spearman", "hit_rate_1", "hit_rate_5", "hit_rate_10")),
)
DEFINED: Mapping[str, Callable[[Numbers], float]] = {  # metric -> its formula of other metrics of the same run
    "params_m": lambda run: run["parameters"] / 1e6,
    "train_minutes": lambda run: run["wall_s"] / 60,
    "ms_per_batch": lambda run: 1000 * run["sec_per_epoch"] * run["epochs"] / run["steps"],
    "rank_tolerance": lambda run: math.sqrt(run["rank_rows"] + run["rank_columns"] + 1) * run["sigma_max"] * EPS / 2,
    "rank_truth": lambda run: run["law_rank_press"],
    "excess_ppl": lambda run: run["entropy_ppl"] * math.expm1(run["kl_truth_nats"]),
    "test_gain": lambda run: run["test_ppl_static"] - run["test_ppl"],
    "valid_gain": lambda run: run["valid_ppl_static"] - run["valid_ppl"],
}
REQUIRED = ("parameters", "test_ppl", "rank_press")  # of a run in the state `ok`
IN_BOTH = ("epochs", "best_epoch", "switch_epoch", "wall_s")  # in states and in rows
UNIQUE = ("test_ppl_sound", "valid_ppl_sound", "train_ppl")  # all equal only for a copy of a run


@dataclass(frozen=True)
class Fault:
    """A contradiction: the key, the problem, the value, and what is expected instead."""

    key: str
    problem: str
    got: object
    expected: str


@dataclass(frozen=True)
class Archive:
    """The content of an archive file, and {corpus: {model: content of run.json}} of the models with known settings."""

    stored: ArchiveFile
    settings: Mapping[str, Mapping[str, Mapping[str, Any]]]

    @cached_property
    def runs(self) -> list[dict[str, Any]]:
        """The rows of `states` and `stages` as dicts."""
        tables = (vars(self.stored.states), vars(self.stored.stages))
        return [dict(zip(table, row, strict=True)) for table in tables for row in zip(*table.values(), strict=True)]

    @cached_property
    def numbers(self) -> dict[tuple[Any, ...], dict[str, float]]:
        """{(dataset, model, seed, run_id, condition): {metric: value}} of the rows that belong to a run."""
        rows, numbers = self.stored.rows, dict[tuple[Any, ...], dict[str, float]]()
        groups = zip(rows.dataset, rows.model, rows.seed, rows.run_id, rows.condition, strict=True)
        for group, metric, value in zip(groups, rows.metric, rows.value, strict=True):
            if group[3]:
                numbers.setdefault(group, {})[metric] = value
        return numbers

    @cached_property
    def contexts(self) -> dict[str, int | None]:
        """{run_id: number of predicted tokens of the test text}."""
        columns = zip(self.stored.rows.metric, self.stored.rows.run_id, self.stored.rows.n, strict=True)
        return {run_id: n for metric, run_id, n in columns if metric == "hit_rate_1"}

    @cached_property
    def by_id(self) -> dict[str, dict[str, float]]:
        """{run_id: {metric: value}} of the rows without a condition."""
        return {group[3]: numbers for group, numbers in self.numbers.items() if not group[4]}

    def of(self, run: Mapping[str, Any]) -> dict[str, float]:
        """Return {metric: value} of a row of `states` or `stages`."""
        key = (run["dataset"], run["model"], run["seed"], run["run_id"], run.get("stage", ""))
        return self.numbers.get(key, {})

    def setting(self, dataset: str, model: str) -> Mapping[str, Any]:
        """Return the content of run.json of a model; empty if its settings are not known."""
        return self.settings.get(dataset, {}).get(model, {})


def check(archive: Archive, where: str) -> None:
    """Raise UserError for the first contradiction in an archive; `where` names its file."""
    try:
        fault = next((fault for rule in RULES for fault in rule(archive)), None)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"{where}: a value is missing or of a wrong type ({error!r:.100}). {FIX}") from None
    if fault:
        message = f"{where}: {fault.key}: {fault.problem} (got {fault.got!s:.60}). Expected {fault.expected}"
        raise UserError(f"{message}. {FIX}")


def _name(dataset: str, model: str, seed: int, *more: str) -> str:
    return "/".join([dataset, model, str(seed), *more[1:]]).rstrip("/")


# --- rules: (archive) -> its contradictions -------------------------------------------------------------------------
def limits(archive: Archive) -> Iterator[Fault]:
    """Yield unknown metrics, and numbers beyond the limits of their metric."""
    rows = archive.stored.rows
    known = {}
    for metric in dict.fromkeys(rows.metric):
        try:
            metrics.find(metric)
        except UserError as error:
            yield Fault("rows.metric", str(error), metric, "a metric of docs/metrics.md")
        known[metric] = next(limit[1:] for limit in LIMITS if limit[0].fullmatch(metric))
    for index, (metric, value) in enumerate(zip(rows.metric, rows.value, strict=True)):
        low, high, whole = known[metric]
        if not low <= value <= high + CLOSE:
            limit = f"at least {low:g}" if high == math.inf else f"a number from {low:g} to {high:g}"
            yield Fault(f"rows.value.{index}", f"{metric} is impossible", value, limit)
        if whole and value != int(value):
            yield Fault(f"rows.value.{index}", f"{metric} is no whole number", value, "a whole number")


def repetitions(archive: Archive) -> Iterator[Fault]:
    """Yield numbers, runs and claims that occur twice, and runs with the perplexities of another seed."""
    rows = archive.stored.rows
    keys = zip(rows.dataset, rows.model, rows.seed, rows.run_id, rows.condition, rows.metric, strict=True)
    tables: dict[str, list[Any]] = {
        "rows": [key for key in keys if key[3]],
        "states": [(run["path"], run["model"], run["seed"]) for run in archive.runs],
        "claims": [(claim["id"], claim["dataset"]) for claim in archive.stored.claims],
        "perplexities": [
            (*group[:2], group[4], *(numbers[metric] for metric in UNIQUE))
            for group, numbers in archive.numbers.items()
            if all(metric in numbers for metric in UNIQUE)
        ],
    }
    for name, table in tables.items():
        for key in (key for key, count in Counter(table).items() if count > 1):
            yield Fault(name, "occurs twice", "/".join(map(str, key)), "each once; a copy is no further run")


def identities(archive: Archive) -> Iterator[Fault]:
    """Yield rows of no run, and paths and run_ids that contradict seed or settings."""
    known = {(run["dataset"], run["model"], run["seed"], run["run_id"]) for run in archive.runs}
    for group in archive.numbers:
        if group[:4] not in known:
            yield Fault("rows.run_id", "no such run in states", "/".join(map(str, group[:4])), "a run of states")
    for run in archive.runs:
        dataset, seed, run_id, path = (run[key] for key in ("dataset", "seed", "run_id", "path"))
        if not re.match(f"{re.escape(dataset)}/[^/]+/{seed}-", path) or run_id not in path:
            yield Fault("states.path", f"not the path of seed {seed}, run_id {run_id}", path, "the path of this run")
        settings = archive.setting(dataset, run["model"])
        if "stage" not in run and ("code" in settings or archive.stored.settings):
            yield from _other_id("states.run_id", settings, seed, run_id)
    for one in archive.stored.runs:
        yield from _other_id(f"runs.{one.name}.run_id", one.run, one.run["seed"], one.run["run_id"])
        if (one.run["seed"], one.run["run_id"]) not in {key[2:] for key in known}:
            yield Fault(f"runs.{one.name}.seed", "not the seed in states", one.run["seed"], "the seed of this run_id")


def _other_id(key: str, settings: Mapping[str, Any], seed: int, run_id: str) -> Iterator[Fault]:
    """Yield a fault if `run_id` is not that of these settings (content of run.json) and seed (see `Run.run_id`)."""
    parts = {name: settings[name] for name in ("head", "body", "schedule", "data_identity", "code")}
    parts |= {"start": settings["start"]} if settings.get("start") else {}
    if (expected := digest(parts | {"seed": seed})[:12]) != run_id:
        yield Fault(key, "of another seed or other settings", run_id, f"{expected}, the hash of both")


def states(archive: Archive) -> Iterator[Fault]:
    """Yield runs whose state contradicts their numbers or settings."""
    for run in archive.runs:
        numbers, settings, is_stage = archive.of(run), archive.setting(run["dataset"], run["model"]), "stage" in run
        pairs: list[tuple[str, Any, Any]] = []
        if numbers and run.get("stage") != DYNAMIC:
            pairs += [(key, run[key], numbers.get(key)) for key in IN_BOTH]
        if settings and not is_stage:
            pairs += [("planned_epochs", run["planned_epochs"], settings["schedule"]["epochs"])]
            width = settings["body"]["embedding_size"]
            pairs += [("embedding_size", numbers.get("embedding_size", width), width)]
        if run["state"] == "ok" and not is_stage:
            pairs += [(metric, None, "a number") for metric in REQUIRED if metric not in numbers]
            pairs += [] if archive.settings else [("settings", None, "those of the model, under `settings`")]
        for low, high in (("best_epoch", "epochs"), ("epochs", "planned_epochs")):
            if None not in (run[low], run[high]):
                pairs += [(f"{low} above {high}", max(run[low], run[high]), run[high])]
        for key, value, expected in pairs:
            if value != expected:
                problem = "contradicts the rows or settings of the run"
                yield Fault(f"states: {run['path']}: {key}", problem, value, str(expected))


def relations(archive: Archive) -> Iterator[Fault]:
    """Yield numbers that contradict other numbers of the same run."""
    for group, numbers in archive.numbers.items():
        name = f"rows: {_name(*group)}"
        for chain in ASCENDING:
            for low, high in pairwise(metric for metric in chain.split() if metric in numbers):
                if numbers[low] > numbers[high] * (1 + CLOSE * (numbers[high] > 0)) + CLOSE:
                    yield Fault(f"{name}: {low}", f"above {high}", numbers[low], f"at most {numbers[high]:g}")
        for metric, formula in DEFINED.items():
            if metric in numbers:
                try:
                    expected = formula(numbers)
                except (KeyError, ArithmeticError):
                    continue
                if not math.isclose(numbers[metric], expected, rel_tol=CLOSE, abs_tol=CLOSE):
                    yield Fault(f"{name}: {metric}", "contradicts other numbers", numbers[metric], f"{expected:.10g}")
        yield from _divisors(archive, group, numbers)


def _divisors(archive: Archive, group: tuple[Any, ...], numbers: Numbers) -> Iterator[Fault]:
    """Yield perplexities whose published and exact values do not differ by the divisor of the same loss.

    The published value of a text in streams of L tokens is the exact one to the power (L - 1) / L, or equal to it.
    """
    for split in ("test", "valid"):
        published = numbers.get(f"{split}_ppl", 1.0)
        sound = numbers.get(f"{split}_ppl_sound", published)
        if published == sound or published <= 1:
            continue
        steps = 1 / (math.log(sound) / math.log(published) - 1)  # L - 1
        schedule = archive.setting(group[0], group[1]).get("schedule", {})
        is_whole = abs(steps - round(steps)) <= max(1e-3, TRACED * steps)
        if split == "test" and schedule.get("test_batch_size", 1) == 1:
            is_whole = math.isclose(steps, archive.contexts.get(group[3]) or steps, rel_tol=TRACED)
        if not is_whole or schedule.get("loss_divisor") == "targets":
            problem = f"contradicts {split}_ppl_sound"
            yield Fault(f"rows: {_name(*group)}: {split}_ppl", problem, published, "two values of the same loss")


def histories(archive: Archive) -> Iterator[Fault]:
    """Yield logs that lack an epoch, or contradict themselves or the numbers of their run."""
    for one in archive.stored.runs:
        log: Any = one.history
        key, numbers = f"runs.{one.name}.history", archive.by_id.get(one.run["run_id"], {})
        if log and numbers and [line["epoch"] for line in log] != list(range(1, int(numbers["epochs"]) + 1)):
            yield Fault(key, "not one line per epoch", len(log), f"{numbers['epochs']:g} lines")
        for line in log:
            ppl, valid = line["valid_ppl"], numbers.get("valid_ppl")
            if line["epoch"] == numbers.get("best_epoch") and not math.isclose(ppl, valid or ppl, rel_tol=TRACED):
                yield Fault(key, "the best epoch contradicts rows", ppl, f"{valid:g}, its validation perplexity")
            if "valid_loss_nats" in line and not math.isclose(math.log(ppl), line["valid_loss_nats"], rel_tol=CLOSE):
                yield Fault(key, "perplexity and loss differ", ppl, f"{math.exp(line['valid_loss_nats']):g}")


def spectra(archive: Archive) -> Iterator[Fault]:
    """Yield singular values that do not fall, or contradict the largest one or the Press rank of their run."""
    for one in (one for one in archive.stored.runs if one.spectrum):
        key, numbers = f"runs.{one.name}.spectrum", archive.by_id.get(one.run["run_id"], {})
        is_falling = all(i < j and a >= b for (i, a), (j, b) in pairwise(one.spectrum))
        largest = one.spectrum[0][1]
        if not is_falling or largest != numbers.get("sigma_max", largest):
            yield Fault(key, "does not fall from sigma_max", largest, "singular values in order")
        above = max((index for index, sigma in one.spectrum if sigma > numbers.get("rank_tolerance", 0)), default=0)
        if "rank_press" in numbers and above != numbers["rank_press"]:
            yield Fault(key, "last above the tolerance", above, f"{numbers['rank_press']:g}, the Press rank")


def predictions(archive: Archive) -> Iterator[Fault]:
    """Yield predicted words that contradict top5_hit."""
    hits = {(group[3], group[4]): numbers.get("top5_hit") for group, numbers in archive.numbers.items()}
    for path, places in archive.stored.predictions.items():
        for place in places:
            hit = hits.get((path.rpartition("-")[2], f"group={place['group']};context={place['context']}"))
            expected = place["target"] in [word["word"] for word in place["top"]]
            if hit not in (None, expected):
                yield Fault(f"predictions.{path}", f"context {place['context']}: top5_hit", hit, f"{expected:d}")


def fits(archive: Archive) -> Iterator[Fault]:
    """Yield ranks above the number of words, which the condition of a fit or of an untrained layer names."""
    rows = archive.stored.rows
    for index, (condition, metric, value) in enumerate(zip(rows.condition, rows.metric, rows.value, strict=True)):
        words = re.search(r"(?:^|;)[MV]=(\d+)", condition)
        if words and re.fullmatch(r"rank(_press|_eff.*)?", metric) and value > int(words[1]):
            yield Fault(f"rows.value.{index}", f"{metric} exceeds the number of words", value, f"at most {words[1]}")


def heads(archive: Archive) -> Iterator[Fault]:
    """Yield heads that are not declared here."""
    runs = {f"settings.{corpus}.{name}": run for corpus, of in archive.settings.items() for name, run in of.items()}
    for key, run in (runs | {f"runs.{one.name}": one.run for one in archive.stored.runs}).items():
        if run["head"]["name"] not in registry.names():
            yield Fault(f"{key}.head", "unknown head", run["head"]["name"], "a head of docs/heads.md or of --study")


RULES = (heads, limits, repetitions, identities, states, relations, histories, spectra, predictions, fits)
