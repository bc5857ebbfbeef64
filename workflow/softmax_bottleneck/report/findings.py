"""The findings at the top of the report and of the README: each is a sentence, a number with an interval, and a figure.

Each finding is computed from the records of this study and of all archived studies, and is omitted if they hold no
evidence. report/findings.yaml has a sentence for each state of a finding (holds, open, fails); the functions here
decide which applies. The Press rank is the number of singular values of the log-probability matrix above the threshold
of Press et al. 2007. MoS is a mixture of softmaxes, MoC a softmax of a mixture of context vectors. SigSoftmax and GSS
apply a fixed function to each logit.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import yaml
from matplotlib.ticker import LogLocator, MaxNLocator

from softmax_bottleneck.records.metrics import PRESS_RANK, TEST_PPL
from softmax_bottleneck.report import numbers, report
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.verdict import ceiling
from softmax_bottleneck.store.paths import ROOT

TEXTS: Mapping[str, Any] = yaml.safe_load((ROOT / "report" / "findings.yaml").read_bytes())
FAMILIES = {  # of heads, by the names of models
    "Softmax": "softmax*|transformer|reading*|kanai-softmax*|ganea-softmax",
    "MoC": "moc*",
    "SigSoftmax": "ss*|kanai-ss*|transformer-ss",
    "GSS": "gss*",
    "LMS-PLIF": "lms-plif*|ganea-lms-plif",
    "MoS": "mos*|transformer-mos*|kanai-mos*|ganea-mos",
}
LOG_LINEAR = ("Softmax", "MoC")
FIXED = {"ss": "SigSoftmax", "gss": "GSS", "gss-c1.5": "GSS, c = 1.5"}  # fixed pointwise heads
LEARNED = {"lms": "LMS", "lms-plif": "LMS-PLIF"}
CLOSING = ("truth-closes-gap", "truth-rank-is-not-enough")  # claims on the KL gap that heads close
LITTLE = 5.0  # percent: a smaller share of the KL gap is little
SAME_RANK = (0.8, 1.25)  # two ranks with a ratio in this range count as equal
HALF = 0.5  # the least share of MoS's gain for which the finding on MoC holds
QUARTER = 0.25  # pointwise heads with this share of MoS's gain or more overturn the finding on them
BOUNDS = {  # for placeholders of report/findings.yaml
    "little": f"{LITTLE:g}",
    "quarter": f"{100 * QUARTER:g}",
    "factor": f"{SAME_RANK[1]:g}",
}
MOST_ROWS = 10  # of a figure; further rows are not drawn
PAGE, ROW, MARGIN, FOOT = 400, 36, 8, 52  # pixels of a figure: its width, a row, the margins, the axis
SMALLEST = 1e-9  # the smallest value on a log axis
CHANGE = "change in test perplexity against Softmax, %"  # an axis
BETTER = r.better()
SOFTMAXES = "softmax|softmax-r[0-9]*"  # -r: at another learning rate
EQUAL_MOS = "mos-equal|mos"  # in order of preference; `comparisons` skips those of another size than the softmax
RANK_RATIO = r.interval_rule(r.rank_against(), (0, 0))  # only its number is used
PAIRED_RANKS = r.interval_rule(r.paired(PRESS_RANK, "×"), (0, 0))  # for runs of a seed with the same initial slopes


# --- figures ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Row:
    """A row of a figure: a labelled value with an interval, or with the range of several runs.

    Attributes:
        label: the label of the row.
        value: the value.
        low, high: the ends of the interval or range; both equal `value` if there is none.
        is_second: True to draw the row in the figure's second colour. This sets a group of rows apart, such as
            Transformers from LSTMs.
    """

    label: str
    value: float
    low: float
    high: float
    is_second: bool = False


@dataclass(frozen=True)
class DotPlot:
    """A figure of rows on one axis.

    Attributes:
        rows: the rows.
        axis: the label of the axis.
        is_log: True for ratios or counts on a log axis, False for changes in percent on a linear axis.
        reference: the value at which a dashed line is drawn.
    """

    rows: Sequence[Row]
    axis: str
    is_log: bool = False
    reference: float = 0.0

    def text(self, row: Row) -> str:
        """Return the value of a row with its interval as text.

        The text is `−7.8 % (−11.7 to −3.8)` on a linear axis and `18 (17 to 18)` on a log axis.
        """
        texts = []
        for end in (row.value, row.low, row.high):
            digits = 1 if not self.is_log else numbers.decimals(end, 0) if end < 10 else 0
            texts.append(numbers.number(end, digits, signed=not self.is_log))
        value, low, high = texts
        unit = "" if self.is_log else "\u00a0%"
        return f"{value}{unit}" if low == high else f"{value}{unit} ({low} to {high})"

    def svg(self) -> str:
        """Return the figure as SVG."""
        ends = [self.reference, *(end for row in self.rows for end in (row.value, row.low, row.high))]
        first, last = min(ends), max(ends)

        def x(value: float) -> float:  # in pixels
            left, here, right = (math.log10(max(v, SMALLEST)) if self.is_log else v for v in (first, value, last))
            pixels_per_unit = (PAGE - 2 * MARGIN) / ((right - left) or 1.0)
            return round(MARGIN + pixels_per_unit * (here - left), 1)

        locator = LogLocator() if self.is_log else MaxNLocator(5, steps=[1, 2, 5, 10])
        ticks = [float(tick) for tick in locator.tick_values(first, last) if first <= tick <= last]
        rows = [
            {"label": row.label, "text": self.text(row), "kind": "second" if row.is_second else "first"}
            | {"y": 18 + ROW * index, "x": x(row.value), "low": x(row.low), "high": x(row.high)}
            for index, row in enumerate(self.rows)
        ]
        shown = [(x(tick), numbers.true_minus(f"{tick:,.6g}")) for tick in ticks]
        facts = {"zero": x(self.reference), "axis": self.axis, "width": PAGE, "height": ROW * len(rows) + FOOT}
        return report.environment().get_template("finding.svg.j2").render(rows=rows, ticks=shown, **facts)


# --- evidence --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Finding:
    """A finding with its evidence.

    The state of the finding is `holds` if `holds` is true, else `open` if `is_open` is true, and else `fails`.

    Attributes:
        holds: True if the evidence supports the finding.
        number: the main number with its interval, as text.
        figure: the figure.
        studies: the names of the studies that provide the evidence; they may repeat.
        facts: {placeholder: value} for the sentences of the finding in report/findings.yaml.
        details: further numbers, one text each.
        is_open: True if the interval is too wide for a decision.
    """

    holds: bool
    number: str
    figure: DotPlot
    studies: Iterable[str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    details: Sequence[str] = ()
    is_open: bool = False


@dataclass(frozen=True)
class Comparison:
    """The comparison of a model with a baseline on one corpus of a study; every seed of a model is one data point.

    Attributes:
        study: the name of the study.
        place: the title of the corpus.
        data: the study's records of the corpus.
        models: (name of the model, name of the baseline).
        number: the result with its interval, such as the change in test perplexity in percent.
    """

    study: str
    place: str
    data: r.CorpusData
    models: tuple[str, str]
    number: r.Number

    def setting(self) -> tuple[str, ...]:
        """Return what identifies the setting (see `_setting`); gains in different settings are not comparable."""
        return _setting(self.place, self.data, self.models[1])

    def width(self) -> float:
        """Return the width of the confidence interval in the unit of `number`; infinite if there is no interval."""
        low, high = self.number.low, self.number.high
        return math.inf if low is None or high is None else high - low

    def quoted_first(self) -> tuple[bool, float]:
        """Return a sort key (is the corpus synthetic, width of the interval) for choosing a finding's main number.

        The comparison with the smallest key is chosen: natural text before synthetic languages, then the narrowest
        interval.
        """
        return bool(self.data.truth), self.width()

    def is_below(self, bound: float) -> bool:
        """Return True if the whole interval lies below a bound."""
        return self.number.high is not None and self.number.high < bound

    def gain(self) -> float:
        """Return the decrease of log test perplexity in nats; `number` must be a change of perplexity in percent."""
        return -math.log1p((self.number.value or 0.0) / 100)

    def row(self, label: str, is_second: bool = False) -> Row:
        """Return the comparison as a row of a figure with the label `label`; `is_second` is an attribute of `Row`.

        Without an interval, `low` and `high` of the row equal its value, and the numbers of runs of the model and of
        the baseline are appended to the label.
        """
        value = self.number.value or 0.0
        label += "" if math.isfinite(self.width()) else f", {numbers.counts(self.number.n)}"
        low, high = (value if end is None else end for end in (self.number.low, self.number.high))
        return Row(label, value, low, high, is_second)

    def text(self) -> str:
        """Return the number, the labels of both models, the corpus and the study as text."""
        return f"{self.number.text} ({self.number.what.partition(', ')[2]}; {self.place}; study {self.study})"


def _setting(place: str, data: r.CorpusData, baseline: str) -> tuple[str, ...]:
    """Return the title of the corpus and the baseline's mean numbers of parameters and epochs, as texts."""
    return (place, *(f"{data.mean(baseline, metric):g}" for metric in ("parameters", "epochs")))


# --- comparisons ----------------------------------------------------------------------------------------------------
def comparisons(
    studies: Sequence[FinishedStudy], models: str, baseline: str, rule: r.Rule, most: float = r.SAME_SIZE
) -> list[Comparison]:
    """Return one comparison of a model with a baseline for each setting in which both have runs.

    If several different studies have runs in a setting (see `Comparison.setting`), the comparison with the narrowest
    interval is returned. If one study has results from several machines, only the first of these is used (see
    `_places`).

    Args:
        studies: the studies.
        models: names of the model in order of preference, separated by `|`, such as `mos-equal|mos`. On each corpus,
            the first model is used that has runs and about the size of the baseline (see `most`). Neither this model
            nor the baseline may have a run that failed to learn.
        baseline: the name of the baseline.
        rule: a rule on two models. Only the number that the rule computes is used, not the verdict.
        most: the largest allowed relative difference between the numbers of parameters of model and baseline.
    """
    best: dict[tuple[str, ...], Comparison] = {}
    for study, place, data in _places(studies):
        names = [name for name in models.split("|") if _are_alike(data, name, baseline, most=most)]
        for number in rule.judge(data, names[0], baseline).numbers if names else ():
            found = Comparison(study, place, data, (names[0], baseline), number)
            best[found.setting()] = min(best.get(found.setting(), found), found, key=Comparison.width)
    return list(best.values())


def _places(studies: Sequence[FinishedStudy]) -> Iterator[tuple[str, str, r.CorpusData]]:
    """Yield (study name, corpus title without a leading "The", records) for each corpus of each study.

    If the softmaxes of several studies have different widths on a corpus, the width is appended to its title. If
    `studies` holds results of the same study from several machines, only the first of these is used. To choose among
    machines by the width of the interval would bias the result.
    """
    first = {study.study: study for study in reversed(studies)}
    every = [(study, data) for study in studies if first[study.study] is study for data in study.views]
    titles = [study.title_of(data.dataset).removeprefix("The ") for study, data in every]
    found = [(data.matching(SOFTMAXES), data) for _, data in every]
    widths = [f"{data.mean(models[0], 'embedding_size'):g}" if models else "" for models, data in found]
    for (study, data), title, width in zip(every, titles, widths, strict=True):
        known = {other for same, other in zip(titles, widths, strict=True) if same == title and other}
        suffix = f", d = {width}" if width and len(known) > 1 else ""
        yield study.name, title[:1].upper() + title[1:] + suffix, data


def _are_alike(data: r.CorpusData, *models: str, most: float = r.SAME_SIZE) -> bool:
    """Return True if all models have runs, no run failed to learn, and the models have about the same size.

    `most` is the largest allowed relative difference of their numbers of parameters.
    """
    is_complete = all(model in data.learned(model) and data.values(model, TEST_PPL) for model in models)
    sizes = [data.mean(model, "parameters") for model in models]
    return is_complete and max(sizes) / min(sizes) - 1 <= most


# --- the findings ---------------------------------------------------------------------------------------------------
def rank_bound(studies: Sequence[FinishedStudy]) -> Finding | None:
    """Return the finding that no run of a log-linear head has a Press rank above d + 2 (d: embedding size).

    Log-linear heads (LOG_LINEAR) have logits that are linear in a context vector of width d. A run with the same run_id
    and hardware in several studies counts once. Return None if no run of such a head has a rank.
    """
    frames = []
    for study in studies:
        frame = study.records.rows
        keys = zip(frame["dataset"], frame["model"], frame["seed"], strict=True)
        is_unlearned = [key in study.records.unlearned for key in keys]
        machines = dict(zip(study.records.states["run_id"], study.records.states["hardware"], strict=True))
        machine = [machines.get(run_id, "") for run_id in frame["run_id"]]
        frames.append(frame.assign(machine=machine, is_unlearned=is_unlearned))
    every = pd.concat(frames)
    run = ["run_id", "machine", "is_unlearned"]
    every = every[(every["condition"] == "") & (every["run_id"] != "")].drop_duplicates([*run, "metric"])
    runs = every.pivot(index=[*run, "model"], columns="metric", values="value")
    runs = runs.reindex(columns=[PRESS_RANK, "embedding_size"]).dropna()
    names = runs.index.get_level_values("model")
    by_family = {name: runs[[r.matches(model, own) for model in names]] for name, own in FAMILIES.items()}
    ratios = {name: own[PRESS_RANK] / (own["embedding_size"] + 2) for name, own in by_family.items() if len(own)}
    exceeds = [bool(ratio > 1) for family in LOG_LINEAR for ratio in ratios.get(family, ())]
    if not exceeds:
        return None
    number, n = sum(exceeds), len(exceeds)
    learned = {
        name: own[~own.index.get_level_values("is_unlearned").to_numpy(dtype=bool)] for name, own in ratios.items()
    }
    rows = [Row(name, own.median(), own.min(), own.max(), name not in LOG_LINEAR) for name, own in learned.items()]
    return Finding(
        holds=not number,
        number=f"{number} of {n} runs lie above d + 2",
        figure=DotPlot(rows, "Press rank over d + 2: median, lowest and highest run", is_log=True, reference=1.0),
        studies=[study.name for study in studies if len(study.records.states)],
        facts={"exceeding": number, "runs": n},
    )


def rank_is_not_the_lever(studies: Sequence[FinishedStudy]) -> Finding | None:
    """Return the finding that SigSoftmax and GSS, which have higher ranks than the softmax, gain little over it.

    The gain is the decrease of log test perplexity. Only natural text counts, if there is any. The finding holds unless
    SigSoftmax or GSS gains in one of these ways:

    * On a corpus on which MoS gains significantly, the gain is QUARTER of that of MoS or more.
    * On another corpus, the test perplexity is significantly lower: the whole interval of the change lies below zero.
    * In fits to known distributions, the KL is lower: the whole interval of the relative decrease lies above LITTLE
      percent.

    Return None if no study compares the rank of SigSoftmax or GSS with that of the softmax.
    """
    found = [(label, one) for model, label in FIXED.items() for one in comparisons(studies, model, "softmax", BETTER)]
    ratios = [one.number.value for model in FIXED for one in comparisons(studies, model, "softmax", RANK_RATIO)]
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return None
    fitted = max(studies, key=lambda study: len(study.records.synthetic))  # the study with the most fits
    entries = [entry for entry in fitted.claims if entry["id"] in CLOSING]
    closed = {number["what"].rpartition(", ")[2]: number for entry in entries for number in entry["numbers"]}
    closes = [(closed[model]["low"] or 0) > LITTLE for model in FIXED if model in closed]
    counted = [one for _, one in found if not one.data.truth] or [one for _, one in found]  # natural text, if any
    ends = [one.number.low for one in counted if one.number.low is not None]
    mos = {one.setting(): one for one in comparisons(studies, EQUAL_MOS, "softmax", BETTER) if one.is_below(0)}
    shared = [(one, mos[one.setting()]) for one in counted if one.setting() in mos and math.isfinite(one.width())]
    shares = [one.gain() / other.gain() for one, other in shared]
    gaining = [one for one in counted if one.is_below(0)]
    is_large = max(shares, default=0.0) >= QUARTER or any(one.setting() not in mos for one in gaining)
    return Finding(
        holds=not is_large and not any(closes),
        number=min(gaining or [one for _, one in found], key=Comparison.quoted_first).text(),
        figure=DotPlot([one.row(f"{label}, {one.place}") for label, one in found], CHANGE),
        studies=[*(one.study for _, one in [*found, *shared]), *[fitted.name] * bool(closed)],
        facts={"lowest": f"{min(known):.0f}", "highest": f"{max(known):.0f}"}
        | {"reach": numbers.number(min(ends, default=None), 1)}
        | {"most": numbers.number(max((100 * share for share in shares), default=None), 0)},
        details=[
            *(f"{label}: {one.text()}" for label, one in found if one.is_below(0)),
            *(
                f"KL gap to the true distribution that {label} closes: {closed[model]['text']}"
                for model, label in (FIXED | LEARNED).items()
                if model in closed
            ),
        ],
    )


def mixtures_are(studies: Sequence[FinishedStudy]) -> Finding | None:
    """Return the finding that MoS on LSTMs has a lower perplexity than a softmax of the same size.

    The finding holds if the perplexity is significantly lower on at least one corpus, and significantly higher on none.
    Only natural text counts, if there is any; the figure also shows synthetic languages and Transformers. Return None
    if no study compares MoS with the softmax on LSTMs.
    """
    lstms = comparisons(studies, EQUAL_MOS, "softmax", BETTER)
    others = comparisons(studies, "transformer-mos", "transformer", BETTER)
    if not lstms:
        return None
    counted = [one for one in lstms if not one.data.truth] or lstms  # natural text, if there is any
    lower = sum(one.is_below(0) for one in counted)
    higher = sum((one.number.low or 0) > 0 for one in counted)
    rows = [one.row(one.place) for one in lstms] + [one.row(f"Transformer, {one.place}", True) for one in others]
    return Finding(
        holds=bool(lower) and not higher,
        number=min(lstms, key=Comparison.quoted_first).text(),
        figure=DotPlot(rows, "change against Softmax, % (orange: Transformers)"),
        studies=(one.study for one in [*lstms, *others]),
        facts={"lower": lower, "higher": higher, "compared": len(counted)},
        details=[f"Transformers: {one.text()}" for one in others],
    )


@dataclass(frozen=True)
class Mixtures:
    """Two comparisons on one corpus and at one learning rate: of MoC (`moc`) and of MoS (`mos`) with the softmax.

    All three heads have the same size.
    """

    moc: Comparison
    mos: Comparison


def _share(moc: float, mos: float) -> float:
    """Return the gain `moc` as a share of the gain `mos`, or 0 if `mos` is not positive."""
    return moc / mos if mos > 0 else 0.0


def _mixtures(studies: Sequence[FinishedStudy]) -> list[tuple[list[Mixtures], float]]:
    """Return the comparisons of MoC and MoS with the softmax, and the ratio of their gains.

    A head's gain is its decrease of log test perplexity against the softmax. Models that differ in size from the
    softmax and models with runs that failed to learn are left out.

    Returns:
        A pair for each setting (see `Comparison.setting`): a list with one `Mixtures` per study and learning rate; and
        MoC's gain divided by MoS's gain, with each head at its own best learning rate. The best rate of a head is the
        one with the lowest mean test perplexity.
    """
    found: dict[tuple[str, ...], list[Mixtures]] = {}
    lowest: dict[tuple[tuple[str, ...], str], float] = {}  # mean test perplexity by setting and head
    for study, place, data in _places(studies):
        for softmax in data.matching(SOFTMAXES):
            models = {head: softmax.replace("softmax", head) for head in ("softmax", "moc", "mos")}
            alike = {head: model for head, model in models.items() if _are_alike(data, softmax, model)}
            setting = _setting(place, data, softmax)
            for head, model in alike.items():
                lowest[setting, head] = min(lowest.get((setting, head), math.inf), data.mean(model, TEST_PPL))
            if len(alike) == len(models):
                sides = [(model, softmax) for model in (models["moc"], models["mos"])]
                both = (Comparison(study, place, data, own, BETTER.judge(data, *own).numbers[0]) for own in sides)
                found.setdefault(setting, []).append(Mixtures(*both))
    gains = {key: math.log(lowest[key[0], "softmax"] / ppl) for key, ppl in lowest.items()}
    return [(own, _share(gains[setting, "moc"], gains[setting, "mos"])) for setting, own in found.items()]


def rank_or_mixture(studies: Sequence[FinishedStudy]) -> Finding | None:
    """Return the finding that MoC, which has a low rank, has much of the gain of MoS over the softmax.

    MoC, MoS and the softmax have the same size. A head's gain is its decrease of log test perplexity against the
    softmax. The share is MoC's gain divided by MoS's gain. It is computed twice in each setting: with all heads at the
    best learning rate of MoC, and with each head at its own best learning rate.

    A setting (corpus, size and epochs) counts if the perplexities of MoC and the softmax differ significantly. If there
    is natural text, no synthetic language counts. `details` has the shares of the other settings, too. The finding
    holds if two conditions are met in every setting that counts:

    * MoC has a lower perplexity than the softmax.
    * Both shares are at least HALF.

    Return None if no setting counts.
    """
    found = _mixtures(studies)
    best = [(min(own, key=lambda one: one.moc.data.mean(one.moc.models[0], TEST_PPL)), share) for own, share in found]
    shown = [pair for pair in best if not pair[0].moc.data.truth] or best  # natural text, if there is any
    shown.sort(key=lambda pair: -pair[0].moc.data.mean(pair[0].moc.models[1], "parameters"))  # the largest models first
    shares = [(one, _share(one.moc.gain(), one.mos.gain()), own) for one, own in shown]
    decided = [pair for pair in shares if pair[0].moc.is_below(0) or (pair[0].moc.number.low or 0) > 0]
    if not decided:
        return None
    counted = [share for _, *pair in decided for share in pair]
    least, most = min(counted), max(counted)
    every = [one for own, _ in found for one in own]
    places = {one.moc.place for one in every}
    others = [one for one in comparisons(studies, "moc", "softmax", BETTER, most=math.inf) if one.place not in places]
    rows = [
        row
        for one, _ in shown
        for row in (one.moc.row(f"MoC, {one.moc.place}"), one.mos.row(f"MoS, {one.moc.place}", True))
    ]
    return Finding(
        holds=all(one.moc.is_below(0) for one, *_ in decided) and least >= HALF,
        number=decided[0][0].moc.text(),
        figure=DotPlot(rows, "change against Softmax, %, at MoC’s best tried rate"),
        studies=(one.study for one in [*(one.moc for one in every), *others]),
        facts={"lowest": f"{100 * least:.0f}", "highest": f"{100 * most:.0f}"}
        | {"decided": len(decided), "compared": len(shown)},
        details=[
            *(
                f"{one.moc.place}: MoC has {numbers.percent(same)} of the gain of MoS at the tried learning rate best "
                f"for MoC, {numbers.percent(own)} with each head at its best"
                for one, same, own in shares
            ),
            *(f"{side.data.label(side.models[0])}: {side.text()}" for one in every for side in (one.moc, one.mos)),
            *(f"MoC with another number of parameters: {one.text()}" for one in others),
        ],
    )


def rank_of_plif(studies: Sequence[FinishedStudy]) -> Finding | None:
    """Return the finding that LMS-PLIF has the same Press rank with frozen slopes as with learned slopes.

    LMS-PLIF applies a piecewise linear function to the logits. The slopes of this function are learned, or frozen at
    their initial values. The runs of one seed begin with the same slopes, on which the rank depends. So for each seed,
    the rank with frozen slopes is divided by the rank with learned slopes, and the ratios are averaged. The corpus with
    the narrowest interval of this average decides:

    * The finding holds if the interval lies inside the region SAME_RANK (0.8 to 1.25).
    * The finding fails if the interval lies outside this region.
    * The finding is open if the interval lies partly inside, or if no corpus has an interval.

    Corpora on which a rank is close to the size of the matrix are left out; return None if no corpus remains.
    """
    every = comparisons(studies, "lms-plif-frozen", "lms-plif", PAIRED_RANKS, most=math.inf)  # slopes are parameters
    every = [one for one in every if ceiling(one.data, one.models, PAIRED_RANKS).holds]
    if not every:
        return None
    best = min(every, key=Comparison.width)
    # Without an interval (fewer than MIN_RUNS runs), the finding is open.
    low, high = best.number.low or 0.0, best.number.high or math.inf
    return Finding(
        holds=low > SAME_RANK[0] and high < SAME_RANK[1],
        number=best.text(),
        figure=DotPlot([one.row(one.place) for one in every], "Press rank of frozen over learned slopes", True, 1.0),
        studies=(one.study for one in every),
        is_open=low < SAME_RANK[1] and high > SAME_RANK[0],
    )


IN_ORDER = (rank_bound, rank_is_not_the_lever, mixtures_are, rank_or_mixture, rank_of_plif)
FINDINGS = {find.__name__.replace("_", "-"): find for find in IN_ORDER}  # named as in report/findings.yaml
DECIDING = ("rank-is-not-the-lever", "rank-or-mixture")  # the findings that must hold for the answer


# --- what is shown --------------------------------------------------------------------------------------------------
def answer(studies: Sequence[FinishedStudy]) -> dict[str, Any]:
    """Return the question, its answer, and every finding that the studies have evidence for.

    Returns:
        A dict with the texts `question`, `answer` and `terms` (explanations of terms), and the list `findings`. Each
        finding is a dict with these keys:

        * `id`, `title`, `sentence`, `number`: texts; `number` is the main number with its interval.
        * `overturn`: the result that would refute the finding, as text.
        * `details`, `studies`, `claims`: lists of texts: further numbers, names of studies, and ids of related claims.
        * `svg`, `axis`, `alt`: the figure as SVG, the label of its axis, and its alternative text.
    """
    found = {name: finding for name, find in FINDINGS.items() if (finding := find(studies))}
    is_answered = all(name in found and found[name].holds for name in DECIDING)
    printed = []
    for name, finding in found.items():
        texts = TEXTS["findings"][name]
        state = "holds" if finding.holds else "open" if finding.is_open else "fails"
        figure = replace(finding.figure, rows=finding.figure.rows[:MOST_ROWS])
        rows = "; ".join(f"{row.label} {figure.text(row)}" for row in figure.rows)
        facts: dict[str, Any] = {"svg": figure.svg(), "axis": figure.axis, "alt": f"{figure.axis}: {rows}."}
        facts |= {"number": finding.number, "details": list(finding.details)}
        facts["studies"] = list(dict.fromkeys(finding.studies))
        facts |= {"title": texts["title"], "overturn": texts["overturn"].format(**BOUNDS), "claims": texts["claims"]}
        printed.append({"id": name, "sentence": texts[state].format(**BOUNDS, **finding.facts), **facts})
    return {
        "question": TEXTS["question"],
        "answer": TEXTS["answer" if is_answered else "open"].format(**BOUNDS),
        "terms": TEXTS["terms"],
        "findings": printed,
    }
