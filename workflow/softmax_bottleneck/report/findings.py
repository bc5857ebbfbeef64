"""The findings at the top of the report and of the README: each a sentence, a number with its interval, and a figure.

A finding reads the records of all studies, this one and the archived ones, and is left out where they have nothing to
say. Texts are in report/findings.yaml: a criterion here decides which of two sentences is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pandas as pd
import yaml
from matplotlib.ticker import LogLocator, MaxNLocator

from softmax_bottleneck.records.metrics import EFFECTIVE_RANK, PRESS_RANK, TEST_PPL
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.data import CorpusData
from softmax_bottleneck.report.claims.verdict import CEILING
from softmax_bottleneck.report.templates import environment
from softmax_bottleneck.store.paths import ROOT

TEXTS: Mapping[str, Any] = yaml.safe_load((ROOT / "report" / "findings.yaml").read_bytes())
FAMILIES = {  # of heads, by the names of models
    "Softmax": "softmax*|transformer|kanai-softmax*|ganea-softmax",
    "MoC": "moc*",
    "SigSoftmax": "ss*|kanai-ss*|transformer-ss",
    "GSS": "gss*",
    "LMS-PLIF": "lms-plif*|ganea-lms-plif",
    "MoS": "mos*|transformer-mos*|kanai-mos*|ganea-mos",
}
LOG_LINEAR = ("Softmax", "MoC")
FIXED = {"ss": "SigSoftmax", "gss": "GSS"}  # fixed pointwise heads
LEARNED = {"lms": "LMS", "lms-plif": "LMS-PLIF"}
LITTLE = 5.0  # percent: a smaller gain in perplexity, or share of the KL gap, is little
SAME_RANK = (0.8, 1.25)  # ratios of ranks between which they are the same
HALF = 0.5  # of a gain is much of it
MOST_ROWS = 8  # of a figure
WIDTH, ROW, MARGIN, FOOT = 400, 36, 8, 52  # pixels
RANK_RATIO = r.interval_rule(r.rank_against(), (0, 0), (0, 0))  # only its number is used


@dataclass(frozen=True)
class Row:
    """A value of a figure with its interval or range; `is_second` draws it in another colour."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    unit: str = ""
    is_second: bool = False

    @property
    def text(self) -> str:
        """`−7.8 % (−11.7 to −3.8)`, `18 (17 to 18)`."""

        def printed(number: float | None) -> str:
            digits = 1 if self.unit == "%" else numbers.decimals(number, 0) if number and number < 10 else 0
            return numbers.number(number, digits, signed=self.unit == "%")

        value, low, high = map(printed, (self.value, self.low, self.high))
        unit = self.unit and f"\u00a0{self.unit}"
        return f"{value}{unit}" if self.low is None or low == high else f"{value}{unit} ({low} to {high})"


@dataclass(frozen=True)
class Finding:
    """What the records say: whether a finding holds, its number, and the rows of its figure.

    Attributes:
        facts: numbers of its sentence.
        details: further numbers.
        studies: that it rests on.
        reference: of the figure, drawn as a dashed line.
    """

    holds: bool
    number: str
    rows: Sequence[Row]
    studies: Sequence[str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    details: Sequence[str] = ()
    reference: float = 0.0
    is_log: bool = False


@dataclass(frozen=True)
class Comparison:
    """Two models of one corpus of a study, compared over seeds."""

    study: FinishedStudy
    data: CorpusData
    models: tuple[str, str]
    number: r.Number

    @property
    def place(self) -> str:
        """The title of the corpus."""
        return _place(self.study, self.data)

    @property
    def width(self) -> float:
        """The width of the interval; infinite without one."""
        low, high = self.number.low, self.number.high
        return math.inf if low is None or high is None else high - low

    def row(self, label: str, is_second: bool = False) -> Row:
        """Return the row of a figure."""
        value, unit = self.number.value or 0.0, "%" * (self.number.unit == "%")
        return Row(label, value, self.number.low, self.number.high, unit, is_second)

    def text(self) -> str:
        """Return the number with what is compared."""
        return f"{self.number.text} ({self.number.what.partition(', ')[2]}; {self.place})"


def summary(records: Records) -> str:
    """Return how much of the study has finished, in one sentence."""
    states = records.counts()
    if not states["planned"]:
        return "This study plans no training run."
    if (records.rows["run_id"] == "").all():
        return f"No run has finished yet; {states['planned']} are planned. The published numbers below stand alone."
    return f"{states['ok']} of {states['planned']} planned training runs finished and were measured."


# --- comparisons ----------------------------------------------------------------------------------------------------
def compare(
    studies: Sequence[FinishedStudy], models: str, baseline: str, rule: r.Rule, most: float = r.SAME_SIZE
) -> list[Comparison]:
    """Return, for each corpus, the comparison of the first of some models (separated by |) with a baseline.

    Their parameters differ by a share of `most` at most. Of one corpus in several studies, the comparison with the
    narrowest interval counts.
    """
    best: dict[str, Comparison] = {}
    for study, data in _places(studies):
        names = [name for name in models.split("|") if _are_alike(data, name, baseline, most=most)]
        for name in names[:1]:
            outcome = rule.judge(data, name, baseline)
            for number in outcome.numbers:
                found = Comparison(study, data, (name, baseline), number)
                best[found.place] = min(best.get(found.place, found), found, key=lambda one: one.width)
    return list(best.values())


def _place(study: FinishedStudy, data: CorpusData) -> str:
    title = study.corpora.get(data.dataset, data.dataset).removeprefix("The ")
    return title[:1].upper() + title[1:]


def _places(studies: Iterable[FinishedStudy]) -> Iterator[tuple[FinishedStudy, CorpusData]]:
    for study in studies:
        for dataset in dict.fromkeys(study.records.states["dataset"]):
            yield study, CorpusData(study.records, str(dataset))


def _are_alike(data: CorpusData, *models: str, most: float = r.SAME_SIZE) -> bool:
    """Return True if all models have runs, of which none failed to learn, and about the same number of parameters."""
    if not all(data.values(model, TEST_PPL) for model in models) or len(data.learned("|".join(models))) < len(models):
        return False
    sizes = [data.mean(model, "parameters") for model in models]
    return max(sizes) / min(sizes) - 1 <= most


def _decisive(comparisons: Sequence[Comparison]) -> Comparison:
    """Return the comparison with the narrowest interval."""
    return min(comparisons, key=lambda one: one.width)


def _names(comparisons: Iterable[Comparison]) -> list[str]:
    return list(dict.fromkeys(one.study.name for one in comparisons))


# --- the findings ---------------------------------------------------------------------------------------------------
def rank_bound(studies: Sequence[FinishedStudy]) -> Finding | None:
    """Compare the Press rank of every run with d + 2; one run of several studies counts once."""
    rows = pd.concat([study.records.rows for study in studies])
    rows = rows[rows["metric"].isin([PRESS_RANK, "embedding_size"]) & (rows["condition"] == "")]
    rows = rows[rows["run_id"] != ""]
    models = rows.groupby("run_id")["model"].first()
    runs = rows.pivot_table(index="run_id", columns="metric", values="value", aggfunc="first")
    runs = runs.reindex(columns=[PRESS_RANK, "embedding_size"]).dropna()
    ratios = {
        family: own[PRESS_RANK] / (own["embedding_size"] + 2)
        for family, patterns in FAMILIES.items()
        if len(own := runs[models.loc[runs.index].map(lambda name, p=patterns: _matches(name, p))])
    }
    bounded = [ratios[family].to_numpy() for family in LOG_LINEAR if family in ratios]
    if not bounded:
        return None
    exceeds_N = np.concatenate(bounded) > 1
    found = r.wilson([exceeds_N[None, :, None].astype(float)], r.ALPHA / 2)
    ends = (float(x_B[0]) for x_B in (found.value_B, found.low_B, found.high_B))
    value, low, high = (100 * end if math.isfinite(end) else None for end in ends)
    number = r.Number("runs above d + 2", "share", value, (), (), found.n, low, high).text.rpartition(", ")[0]
    exceeding = int(exceeds_N.sum())
    return Finding(
        holds=not exceeding,
        number=f"{exceeding} of {len(exceeds_N)} runs lie above d + 2: {number}",
        rows=[
            Row(family, own.median(), own.min(), own.max(), is_second=family not in LOG_LINEAR)
            for family, own in ratios.items()
        ],
        studies=[study.name for study in studies if (study.records.rows["metric"] == PRESS_RANK).any()],
        facts={"exceeding": exceeding, "runs": len(exceeds_N)},
        reference=1.0,
        is_log=True,
    )


def _matches(model: str, patterns: str) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in patterns.split("|"))


def rank_is_not_the_lever(studies: Sequence[FinishedStudy]) -> Finding | None:
    """Compare the perplexity and rank of fixed pointwise heads with those of the softmax."""
    found = {model: compare(studies, model, "softmax", r.better()) for model in FIXED}
    every = [one for own in found.values() for one in own]
    ratios = [one.number.value for model in FIXED for one in compare(studies, model, "softmax", RANK_RATIO)]
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return None
    closed = _closed(studies)
    gains = [one.number.high is not None and one.number.high < -LITTLE for one in every]
    closes = [(closed[model]["low"] or 0) > LITTLE for model in FIXED if model in closed]
    return Finding(
        holds=not any(gains) and not any(closes),
        number=_decisive(every).text(),
        rows=[one.row(f"{FIXED[model]}, {one.place}") for model, own in found.items() for one in own],
        studies=_names(every),
        facts={"least": f"{min(known):.0f}", "most": f"{max(known):.0f}"},
        details=[
            f"KL gap to the true distribution that {label} closes: {closed[model]['text']}"
            for model, label in (FIXED | LEARNED).items()
            if model in closed
        ],
    )


def _closed(studies: Sequence[FinishedStudy]) -> dict[str, Mapping[str, Any]]:
    """Return the fraction of the KL gap that heads close, from the claims of the study with the most fits."""
    ids = ("truth-closes-gap", "truth-rank-is-not-enough")
    largest = max(studies, key=lambda study: len(study.records.synthetic))
    entries = [entry for entry in largest.claims if entry["id"] in ids]
    return {number["what"].rpartition(", ")[2]: number for entry in entries for number in entry["numbers"]}


def mixtures_are(studies: Sequence[FinishedStudy]) -> Finding | None:
    """Compare MoS with a softmax of its size, on LSTMs; Transformers are shown besides."""
    lstms = compare(studies, "mos-equal|mos", "softmax", r.better())
    others = compare(studies, "transformer-mos", "transformer", r.better())
    if not lstms:
        return None
    lower = sum(one.number.high is not None and one.number.high < 0 for one in lstms)
    higher = sum(one.number.low is not None and one.number.low > 0 for one in lstms)
    return Finding(
        holds=bool(lower) and not higher,
        number=_decisive(lstms).text(),
        rows=[
            *(one.row(one.place) for one in lstms),
            *(one.row(f"Transformer, {one.place}", is_second=True) for one in others),
        ],
        studies=_names([*lstms, *others]),
        facts={"lower": lower, "higher": higher, "compared": len(lstms)},
        details=[f"Transformers: {one.text()}" for one in others],
    )


def rank_or_mixture(studies: Sequence[FinishedStudy]) -> Finding | None:
    """Compare MoC and MoS with a softmax of their size and learning rate; MoC at the best of its rates decides."""
    pairs: dict[str, list[tuple[Comparison, Comparison]]] = {}
    failed: dict[str, list[str]] = {}
    for study, data in _places(studies):
        for softmax in data.matching("softmax|softmax-r[0-9]*"):
            models = [softmax.replace("softmax", head) for head in ("moc", "mos")]
            if _are_alike(data, softmax, *models):
                numbers_ = (r.better().judge(data, model, softmax).numbers[0] for model in models)
                moc, mos = (Comparison(study, data, (m, softmax), n) for m, n in zip(models, numbers_, strict=True))
                pairs.setdefault(moc.place, []).append((moc, mos))
            elif n := sum(run[:2] == (data.dataset, models[0]) for run in data.records.unlearned):
                text = f"{data.label(models[0])} in {study.study}: {n} of {len(data.values(models[0], TEST_PPL))}"
                failed.setdefault(_place(study, data), []).append(f"{text} runs are no better than a unigram model")
    if not pairs:
        return None
    place, chosen = max(pairs.items(), key=lambda item: len(item[1]))
    moc, mos = min(chosen, key=lambda pair: pair[0].data.mean(pair[0].models[0], TEST_PPL))
    gains = [-math.log1p((one.number.value or 0.0) / 100) for one in (moc, mos)]
    share = gains[0] / gains[1] if gains[1] > 0 else math.nan
    rows = [
        one.row(one.data.label(one.models[0]), is_second=one is not pair[0])
        for pair in sorted(chosen, key=lambda pair: pair[0].models[0])
        for one in pair
    ]
    is_decided = moc.number.high is not None and moc.number.high < 0
    return Finding(
        holds=is_decided and share >= HALF,
        number=moc.text(),
        rows=rows,
        studies=_names(one for pair in chosen for one in pair),
        facts={"share": numbers.percent(share)},
        details=[f"MoS at the same rate: {mos.number.text}", *failed.get(place, [])],
    )


def rank_of_plif(studies: Sequence[FinishedStudy]) -> Finding | None:
    """Compare the Press rank of LMS-PLIF with frozen and with learned slopes, and ranks by number of knots."""
    every = compare(studies, "lms-plif-frozen", "lms-plif", RANK_RATIO, most=math.inf)  # slopes are parameters
    every = [one for one in every if not _is_full(one.data, *one.models)]
    if not every:
        return None
    best = _decisive(every)
    low, high = (best.number.value if end is None else end for end in (best.number.low, best.number.high))
    rows = [one.row(one.place) for one in every]
    axis, reference = "Press rank of frozen over learned slopes", 1.0
    for _, data in _places(studies):
        models = [*data.matching("lms-plif-[0-9]*"), "lms-plif", "lms-plif-frozen"]
        ranks = {model: [*data.values(model, f"{EFFECTIVE_RANK}1e-5").values()] for model in ("softmax", *models)}
        if len(models) > 2 and all(ranks.values()):
            rows = [Row(data.label(model), float(np.mean(own)), min(own), max(own)) for model, own in ranks.items()]
            axis, reference = "effective rank (ε = 1e−5), lowest to highest seed", rows[0].value
    return Finding(
        holds=bool(low and high and low > SAME_RANK[0] and high < SAME_RANK[1]),
        number=best.text(),
        rows=rows,
        studies=_names(every),
        facts={"axis": axis},
        reference=reference,
        is_log=True,
    )


def _is_full(data: CorpusData, *models: str) -> bool:
    """Return True if a model's rank is as high as the size of its matrix allows."""
    for model in models:
        size = np.fmin(data.mean(model, "rank_rows"), data.mean(model, "rank_columns"))
        if data.mean(model, PRESS_RANK) > CEILING * size:
            return True
    return False


FINDINGS: Mapping[str, Callable[[Sequence[FinishedStudy]], Finding | None]] = {
    "rank-bound": rank_bound,
    "rank-is-not-the-lever": rank_is_not_the_lever,
    "mixtures-are": mixtures_are,
    "rank-or-mixture": rank_or_mixture,
    "rank-of-plif": rank_of_plif,
}
DECIDING = ("rank-is-not-the-lever", "rank-or-mixture")  # of the answer


# --- what is shown --------------------------------------------------------------------------------------------------
def answer(studies: Sequence[FinishedStudy]) -> dict[str, Any]:
    """Return the question, its answer, and the findings that the studies have evidence for, ready to print."""
    found = {name: finding for name, find in FINDINGS.items() if (finding := find(studies))}
    is_answered = all(name in found and found[name].holds for name in DECIDING)
    return {
        "question": TEXTS["question"],
        "answer": TEXTS["answer" if is_answered else "open"],
        "findings": [_printed(name, finding) for name, finding in found.items()],
    }


def _printed(name: str, finding: Finding) -> dict[str, Any]:
    texts = TEXTS["findings"][name]
    axis = texts["axis"].format(**finding.facts)
    return {
        "id": name,
        "title": texts["title"],
        "sentence": texts["holds" if finding.holds else "fails"].format(**finding.facts),
        "holds": finding.holds,
        "number": finding.number,
        "details": list(finding.details),
        "overturn": texts["overturn"],
        "claims": texts["claims"],
        "studies": list(finding.studies),
        "axis": axis,
        "svg": dot_plot(finding, axis),
        "alt": f"{axis}: {'; '.join(f'{row.label} {row.text}' for row in finding.rows[:MOST_ROWS])}.",
    }


def dot_plot(finding: Finding, axis: str) -> str:
    """Return the SVG of a figure: a dot with its interval or range per row, and a dashed line at the reference."""
    rows = finding.rows[:MOST_ROWS]

    def scaled(value: float) -> float:
        return math.log10(max(value, 1e-9)) if finding.is_log else value

    ends = [finding.reference, *(end for row in rows for end in (row.value, row.low, row.high) if end is not None)]
    low, high = min(map(scaled, ends)), max(map(scaled, ends))

    def x(value: float | None, default: float = 0.0) -> float:
        place = scaled(default if value is None else value)
        return round(MARGIN + (WIDTH - 2 * MARGIN) * (place - low) / ((high - low) or 1.0), 1)

    locator = LogLocator() if finding.is_log else MaxNLocator(5, steps=[1, 2, 5, 10])
    ticks = [float(tick) for tick in locator.tick_values(min(ends), max(ends)) if min(ends) <= tick <= max(ends)]
    drawn = [
        {"label": row.label, "text": row.text, "kind": "second" if row.is_second else "first", "y": 18 + ROW * index}
        | {"x": x(row.value), "low": x(row.low, row.value), "high": x(row.high, row.value)}
        for index, row in enumerate(rows)
    ]
    return (
        environment()
        .get_template("finding.svg.j2")
        .render(
            rows=drawn,
            ticks=[(x(tick), numbers.true_minus(f"{tick:,.6g}")) for tick in ticks],
            zero=x(finding.reference),
            axis=axis,
            width=WIDTH,
            height=ROW * len(rows) + FOOT,
        )
    )
