"""The claims ledger: what Parthiban et al. 2021 conclude, each as a rule over the records of a study.

A claim is judged per corpus, at the scale of the study, never across corpora; what a verdict takes is in `judging`.
A new claim is one entry of CLAIMS.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from softmax_bottleneck.measuring import wordsim
from softmax_bottleneck.measuring.statistics import Summary
from softmax_bottleneck.ranks.robustness import TRUE_RANK
from softmax_bottleneck.records import records
from softmax_bottleneck.records.records import Records, groups
from softmax_bottleneck.report import consistency, judging
from softmax_bottleneck.report.judging import (
    ALPHA,
    COMPONENTS,
    DROPOUT,
    EFFECTIVE,
    EFFECTIVE_SHARE,
    GRID,
    HEADS,
    MARGIN,
    MIN_BENCHMARKS,
    MIN_POINTS,
    NOT_ENOUGH,
    NOT_REPRODUCED,
    PPL,
    RANK,
    RANK_RATIO,
    REPRODUCED,
    STRONG_CORRELATION,
    VERDICTS,
    Fact,
    Judgement,
    Trend,
    View,
    all_of,
    along,
    any_of,
    gap,
    judge_gaps,
    larger,
    mean_fact,
    metric,
    no_larger,
    p_text,
    signed,
    train_to_test,
    weakly_correlated,
    why,
)
from softmax_bottleneck.store import provenance
from softmax_bottleneck.study import Study


@dataclass(frozen=True)
class Claim:
    """A conclusion of the paper.

    Attributes:
        id: of the entry, stable.
        statement: the conclusion in our words.
        source: where the paper draws it.
        criterion: the rule in words.
        needs: shell patterns of model labels (`|`: either); each must have at least one finished run.
        judge: the rule.
    """

    id: str
    statement: str
    source: str
    criterion: str
    needs: tuple[str, ...]
    judge: Callable[[View], Judgement]


@dataclass(frozen=True)
class Entry:
    """A claim judged on one corpus; `left_out` says which planned runs are not in the numbers, and why."""

    claim: Claim
    dataset: str
    judgement: Judgement
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object with everything but the rule."""
        claim, judgement = self.claim, self.judgement
        return {
            **{key: getattr(claim, key) for key in ("id", "statement", "source", "criterion")},
            "needs": list(claim.needs),
            "dataset": self.dataset,
            "verdict": judgement.verdict,
            "reason": judgement.reason,
            "facts": [{"what": f.what, "text": f.text, **f.values} for f in judgement.facts],
            "left_out": list(self.left_out),
        }


def to_csv(entries: Iterable[Entry]) -> str:
    """One line per claim and corpus: verdict, reason, numbers in words."""
    lines = [
        {**entry.to_json(), "facts": "; ".join(f"{f.what}: {f.text}" for f in entry.judgement.facts)}
        for entry in entries
    ]
    columns = ["id", "dataset", "verdict", "statement", "source", "criterion", "reason", "facts", "left_out"]
    frame = pd.DataFrame(lines, columns=columns)
    return records.to_csv(frame.assign(left_out=frame["left_out"].map("; ".join)))


# --- the ledger -----------------------------------------------------------------------------------------------------
def ledger(found: Records, asked: Sequence[Claim] | None = None) -> list[Entry]:
    """Every claim (or those `asked`) on every corpus of the records, corpora in the plan's order."""
    datasets = dict.fromkeys(found.states["dataset"])
    return [_entry(View(found, dataset), claim) for dataset in datasets for claim in asked or CLAIMS]


def counts(entries: Iterable[Entry]) -> dict[str, int]:
    """Number of entries of each verdict."""
    by_verdict = Counter(entry.judgement.verdict for entry in entries)
    return {verdict: by_verdict[verdict] for verdict in VERDICTS}


def _entry(view: View, claim: Claim) -> Entry:
    lacking = _lacking(view, claim)
    judgement = Judgement(NOT_ENOUGH, lacking) if lacking else claim.judge(view)
    return Entry(claim, view.dataset, judgement, tuple(_left_out(view, claim)))


def _lacking(view: View, claim: Claim) -> str:
    """What is missing before the rule can be asked, in words."""
    for pattern in claim.needs:
        planned = view.matching(pattern)
        if not planned:
            names = pattern.split("|")
            return f"{'none' if len(names) > 1 else 'no run'} of {', '.join(names)} in this study"
        if not view.with_runs(planned, PPL):
            return f"no finished run of {', '.join(view.label(model) for model in planned)}"
    return ""


def _left_out(view: View, claim: Claim) -> list[str]:
    states = view.records.states
    models = {model for pattern in claim.needs for model in view.matching(pattern)}
    chosen = states[(states["dataset"] == view.dataset) & states["model"].isin(models) & (states["state"] != "ok")]
    unfinished = [
        f"{view.label(model)}: {state} with seed {', '.join(str(seed) for seed in sorted(part['seed']))}"
        for (model, state), part in groups(chosen, "model", "state")
    ]
    unlearned = [
        f"{view.label(model)}, seed {seed} (of correlations and trends): {remark}"
        for (dataset, model, seed), remark in view.records.unlearned.items()
        if dataset == view.dataset and model in models
    ]
    return sorted([*unfinished, *unlearned])


# --- ranks ----------------------------------------------------------------------------------------------------------
def rank_level(view: View, model: str, reference: str = "softmax") -> str:
    """`high`, `low`, or `mixed` when runs disagree; `unknown` without ranks."""
    ranks, bound = view.runs(model, RANK).values(), RANK_RATIO * view.mean(reference, RANK)
    if not ranks or math.isnan(bound):
        return "unknown"
    return "high" if min(ranks) >= bound else "low" if max(ranks) < bound else "mixed"


def _level_verdict(level: str, wanted: str) -> str:
    if level == wanted:
        return REPRODUCED
    return NOT_REPRODUCED if level in ("high", "low") else NOT_ENOUGH


def not_necessary(view: View) -> Judgement:
    """A head of low rank beats Softmax (Table 2: LMS-PLIF)."""
    level = rank_level(view, "lms-plif")
    gain = gap(view, "softmax", "lms-plif", PPL)
    ranks = [mean_fact(view, model, RANK, 0) for model in ("lms-plif", "softmax")]
    verdict = all_of([_level_verdict(level, "low"), larger(gain)])
    reason = why(verdict, [gain]) if level == "low" else f"the rank of {view.label('lms-plif')} is {level}"
    return Judgement(verdict, reason, (gain.fact, *ranks))


def not_sufficient(view: View) -> Judgement:
    """Some head of high rank does not beat Softmax by a margin that matters (Table 2: SS and GSS on PTB)."""
    models = view.with_runs(view.matching("ss|gss"), PPL, RANK)
    high = [model for model in models if rank_level(view, model) == "high"]
    ranks = [mean_fact(view, model, RANK, 0) for model in (*models, "softmax")]
    if not high:
        return Judgement(NOT_ENOUGH, "no head of this kind has a high rank here", tuple(ranks))
    gains = [gap(view, "softmax", model, PPL, tests=len(high)) for model in high]
    return judge_gaps(any_of([no_larger(gain) for gain in gains]), gains, ranks)


def press_overestimates(view: View) -> Judgement:
    """Of heads with a high Press rank the effective rank is at most half as large, in every run (Table 6)."""
    models = [m for m in view.with_runs(view.matching("|".join(HEADS)), RANK, EFFECTIVE) if m != "softmax"]
    high = [model for model in models if rank_level(view, model) == "high"]
    shares = {model: _shares(view, model) for model in high}
    facts = tuple(_share_fact(view, model, values) for model, values in shares.items())
    runs = [value for values in shares.values() for value in values]
    if len(runs) < 2:
        return Judgement(NOT_ENOUGH, f"{len(runs)} runs of heads with a high Press rank, at least 2 are needed", facts)
    below = sum(value <= EFFECTIVE_SHARE for value in runs)
    verdict = REPRODUCED if below == len(runs) else NOT_REPRODUCED
    return Judgement(verdict, f"at most half in {below} of {len(runs)} runs", facts)


def _shares(view: View, model: str) -> list[float]:
    ranks, effective = view.runs(model, RANK), view.runs(model, EFFECTIVE)
    return [effective[seed] / ranks[seed] for seed in ranks if seed in effective]


def _share_fact(view: View, model: str, values: Sequence[float]) -> Fact:
    text = f"{np.mean(values):.0%}, at most {max(values):.0%} (n {len(values)})"
    numbers = {"value": float(np.mean(values)), "high": max(values), "n": len(values)}
    return Fact(f"effective rank (ε = 1e−4) of the Press rank, {view.label(model)}", text, numbers)


NOISE = re.compile(r"(?:^|[; ])c=(?P<c>[^;]+)")


def noise_inflates(view: View) -> Judgement:
    """Noise too small to matter raises the Press rank of a matrix of known rank, not its effective ranks (SM 5.3).

    The matrix is drawn and not a corpus's, so that the judgement is the same on every corpus.
    """
    rows = view.records.synthetic
    facts, raised, kept = [], 0, 0
    for (condition,), part in groups(rows, "condition"):
        words, means = NOISE.search(condition), part.groupby("metric")["value"].mean()
        effective = means[means.index.str.startswith("rank_eff_")]
        if words is None or RANK not in means or effective.empty:
            continue
        inflated = means[RANK] >= RANK_RATIO * TRUE_RANK
        raised, kept = raised + inflated, kept + bool(inflated and effective.max() <= TRUE_RANK)
        facts.append(_noise_fact(words["c"], float(means[RANK]), float(effective.max())))
    if not facts:
        return Judgement(NOT_ENOUGH, "the noise experiment has not been run")
    verdict = REPRODUCED if raised and kept == raised else NOT_REPRODUCED
    return Judgement(verdict, f"raised by {raised} of {len(facts)} noise levels", tuple(facts))


def _noise_fact(c: str, press: float, effective: float) -> Fact:
    text = f"Press rank {press:.0f}, effective rank at most {effective:.0f}, true rank {TRUE_RANK}"
    return Fact(f"noise c = {c}", text, {"value": press, "high": effective})


def diverse_ranks(view: View) -> Judgement:
    """Members of the GSS family have ranks that differ by RANK_RATIO and more (Figure 2)."""
    means = [view.mean(model, RANK) for model in view.with_runs(view.learned(GRID), RANK)]
    if len(means) < MIN_POINTS:
        return Judgement(NOT_ENOUGH, f"{len(means)} members with a rank, at least {MIN_POINTS} needed")
    text = f"{min(means):.0f} to {max(means):.0f} (n {len(means)} models)"
    fact = Fact("Press rank", text, {"low": min(means), "high": max(means), "n": len(means)})
    verdict = REPRODUCED if max(means) >= RANK_RATIO * min(means) else NOT_REPRODUCED
    return Judgement(verdict, f"largest over smallest: {max(means) / min(means):.1f}", (fact,))


# --- pairs of models ------------------------------------------------------------------------------------------------
def beats(model: str, reference: str) -> Callable[[View], Judgement]:
    """Rule: `model` has a lower mean test perplexity than `reference`."""

    def judge(view: View) -> Judgement:
        gain = gap(view, reference, model, PPL)
        return judge_gaps(larger(gain), [gain])

    return judge


def no_worse(model: str, reference: str) -> Callable[[View], Judgement]:
    """Rule: `model` is not worse than `reference` by a margin that matters."""

    def judge(view: View) -> Judgement:
        loss = gap(view, model, reference, PPL)
        return judge_gaps(no_larger(loss), [loss])

    return judge


def trades_train_for_test(view: View) -> Judgement:
    """Frozen PLIF has the higher train and the lower test perplexity (Tables 2 and 3)."""
    train = gap(view, "lms-plif-frozen", "softmax", "train_ppl")
    test = gap(view, "softmax", "lms-plif-frozen", PPL)
    return judge_gaps(all_of([larger(train), larger(test)]), [train, test])


def embeddings_no_worse(view: View) -> Judgement:
    """MoC's word vectors win on at least half of the benchmarks; refuted by a sign test (Figure 4).

    Benchmarks overlap (WS-353 holds two of the others), so the test counts some evidence twice: a refutation is weaker
    than its p.
    """
    conditions = view.records.conditions("spearman", view.dataset)
    rhos = {
        model: {c: s.mean for c in conditions if (s := view.summary(model, "spearman", c)).mean is not None}
        for model in ("moc", "mos")
    }
    wins, losses = (wordsim.win_matrix(rhos)[a][b] for a, b in (("moc", "mos"), ("mos", "moc")))
    if wins.compared < MIN_BENCHMARKS:
        return Judgement(NOT_ENOUGH, f"benchmarks with both models: {wins.compared}, at least {MIN_BENCHMARKS} needed")
    decided = wins.wins + losses.wins
    p = float(stats.binomtest(losses.wins, decided).pvalue) if decided else 1.0
    refuted = losses.wins > wins.wins and p < ALPHA
    verdict = REPRODUCED if wins.wins >= losses.wins else NOT_REPRODUCED if refuted else NOT_ENOUGH
    text = f"{wins.wins} of {wins.compared}, sign test p = {p_text(p)}"
    fact = Fact("benchmarks won by MoC over MoS", text, {"value": wins.wins, "n": wins.compared, "p": p})
    return Judgement(verdict, f"{wins.wins} won, {losses.wins} lost", (fact,))


def epoch_trigger_better(view: View) -> Judgement:
    """On average over heads, ET-ASGD ends lower than NT-ASGD, seed by seed (SM Tables 10 and 11)."""
    losses = {model: _twin_loss(view, model) for model in HEADS if f"{model}-nt" in view.models}
    known = {model: loss for model, loss in losses.items() if loss is not None}
    facts = [
        Fact(f"NT over ET, {view.label(model)}", f"{signed(loss * 100)} %", {"value": loss})
        for model, loss in known.items()
    ]
    one = Summary.of(known.values())
    if one.mean is None or not one.sd:
        reason = f"{one.n} heads with both switches and a common seed, at least 2 needed"
        return Judgement(NOT_ENOUGH, reason, tuple(facts))
    half = float(stats.t.ppf(1 - ALPHA / 2, one.n - 1)) * one.sd / math.sqrt(one.n)
    low, high = one.mean - half, one.mean + half
    verdict = REPRODUCED if low > 0 else NOT_REPRODUCED if high < MARGIN else NOT_ENOUGH
    text = f"{signed(one.mean * 100)} %, interval {signed(low * 100)} to {signed(high * 100)} (n {one.n} heads)"
    mean = Fact("NT over ET, mean over heads", text, {"value": one.mean, "low": low, "high": high, "n": one.n})
    better = sum(loss > 0 for loss in known.values())
    return Judgement(verdict, f"ET is better for {better} of {one.n} heads", (mean, *facts))


def _twin_loss(view: View, model: str) -> float | None:
    """Mean over common seeds of NT's test perplexity relative to ET's, minus one."""
    epoch, window = (view.runs(name, PPL) for name in (model, f"{model}-nt"))
    ratios = [window[seed] / epoch[seed] - 1 for seed in sorted(epoch) if seed in window]
    return float(np.mean(ratios)) if ratios else None


# --- the claims -----------------------------------------------------------------------------------------------------
_PERCENT = f"{MARGIN:.1%}".replace("%", "\u00a0%")
_BEATS = f"the 95 % interval (Welch) of the gain is above zero; refuted when it excludes a gain of {_PERCENT}"
_EQUAL = f"the 95 % interval (Welch) excludes a loss of {_PERCENT}; refuted when it is above zero"
_WEAK = (
    f"the 95 % bootstrap interval of r is within ±{STRONG_CORRELATION}; refuted when it is wholly outside; "
    f"{MIN_POINTS} models or more"
)
_TREND = "Kendall’s τ over runs has the claimed sign with p < 0.05; refuted when it has the other"
_TWICE = f"{RANK_RATIO:.0f} times Softmax’s mean"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "grid-correlation",
        "Across the GSS family, rank and test perplexity are only weakly correlated.",
        "Figure 2",
        _WEAK,
        (GRID,),
        weakly_correlated(GRID),
    ),
    Claim(
        "all-correlation",
        "Across all models, rank and test perplexity are only weakly correlated.",
        "Abstract",
        _WEAK,
        ("softmax",),
        weakly_correlated("|".join((*HEADS, GRID))),
    ),
    Claim(
        "diverse-ranks",
        "Members of the GSS family differ widely in rank.",
        "Figure 2",
        f"the largest rank is at least {RANK_RATIO:.0f} times the smallest, over {MIN_POINTS} members or more",
        (GRID,),
        diverse_ranks,
    ),
    Claim(
        "not-necessary",
        "A high rank is not necessary: LMS-PLIF has a low rank and beats Softmax.",
        "Table 2",
        f"the rank of every LMS-PLIF run is below {_TWICE}, and {_BEATS}",
        ("softmax", "lms-plif"),
        not_necessary,
    ),
    Claim(
        "not-sufficient",
        "A high rank is not sufficient: SS or GSS have one and hardly beat Softmax.",
        "Table 2",
        f"for a head whose rank is at least {_TWICE} in every run, the 95 % interval excludes a gain of {_PERCENT}",
        ("softmax", "ss|gss"),
        not_sufficient,
    ),
    Claim("mos-better", "MoS beats Softmax.", "Table 2", _BEATS, ("softmax", "mos"), beats("mos", "softmax")),
    Claim(
        "frozen-plif",
        "Frozen random slopes are no worse than learned ones in LMS-PLIF.",
        "Table 4",
        _EQUAL,
        ("lms-plif", "lms-plif-frozen"),
        no_worse("lms-plif-frozen", "lms-plif"),
    ),
    Claim(
        "plif-regularises",
        "PLIF trades train for test perplexity, as a regulariser does.",
        "Tables 2 and 3",
        "frozen LMS-PLIF against Softmax: train perplexity is higher and test perplexity lower, both by 95 % intervals",
        ("softmax", "lms-plif-frozen"),
        trades_train_for_test,
    ),
    Claim(
        "moc-embeddings",
        "MoC, without a high rank, learns word vectors no worse than MoS’s.",
        "Figure 4",
        f"MoC wins at least half of {MIN_BENCHMARKS} or more benchmarks; refuted when a sign test says MoS wins more",
        ("moc", "mos"),
        embeddings_no_worse,
    ),
    Claim(
        "rank-grows-with-k",
        "The rank of MoS grows with its number of components.",
        "SM Tables 4 and 5",
        _TREND,
        (COMPONENTS.pattern,),
        along(COMPONENTS, Trend("rank", metric(RANK))),
    ),
    Claim(
        "k-helps",
        "More components lower the test perplexity of MoS.",
        "Figures 5 and 6",
        _TREND,
        (COMPONENTS.pattern,),
        along(COMPONENTS, Trend("test perplexity", metric(PPL), rises=False)),
    ),
    Claim(
        "k-overfits",
        "More components widen the gap between train and test perplexity.",
        "Figure 6",
        _TREND,
        (COMPONENTS.pattern,),
        along(COMPONENTS, Trend("test over train perplexity", train_to_test)),
    ),
    Claim(
        "rank-without-gain",
        "With less dropout in its mixture, MoS’s rank rises while its test perplexity gets worse.",
        "Figure 5, SM Table 12",
        f"both: {_TREND}",
        (DROPOUT.pattern,),
        along(DROPOUT, Trend("rank", metric(RANK)), Trend("test perplexity", metric(PPL))),
    ),
    Claim(
        "fair-softmax",
        "Compared fairly, Softmax is no worse than MoS.",
        "Table 5",
        _EQUAL,
        ("softmax-fair", "mos-fair"),
        no_worse("softmax-fair", "mos-fair"),
    ),
    Claim(
        "press-overestimates",
        "Press’s rank overestimates: the effective rank is far smaller.",
        "Table 6",
        f"effective rank at ε = 1e−4 at most {EFFECTIVE_SHARE:.0%} of the Press rank in every run of a high-rank head",
        ("softmax", "ss|gss|mos"),
        press_overestimates,
    ),
    Claim(
        "noise-inflates",
        "Tiny noise makes a matrix of low rank look full-rank to Press’s rank, but not to the effective rank.",
        "SM Tables 15 and 16",
        "some noise level doubles the Press rank, and no such level lifts an effective rank above the true one",
        (),
        noise_inflates,
    ),
    Claim(
        "et-better",
        "Switching to averaged SGD at a fixed epoch (ET) is better than on no progress (NT).",
        "SM Tables 10 and 11",
        f"the 95 % t interval over heads of NT’s relative loss is above zero; refuted when it excludes {_PERCENT}",
        ("|".join(HEADS), "|".join(f"{model}-nt" for model in HEADS)),
        epoch_trigger_better,
    ),
)


# --- file -----------------------------------------------------------------------------------------------------------
def to_json(study: Study, found: Records, entries: Sequence[Entry]) -> dict[str, Any]:
    """The ledger, and the published numbers' own consistency, as claims.json holds them."""
    return {
        "status": "ok",
        "study": study.name,
        "criteria": criteria(),
        "counts": counts(list(entries)),
        "claims": [entry.to_json() for entry in entries],
        "published": [check.to_json() for check in consistency.judge_published()],
        "provenance": provenance.block(found.parents),
    }


def criteria() -> dict[str, float | int | str]:
    """The constants that verdicts hang on."""
    names = ("ALPHA", "MARGIN", "RANK_RATIO", "STRONG_CORRELATION", "MIN_POINTS", "MIN_BENCHMARKS")
    return {name.lower(): getattr(judging, name) for name in (*names, "EFFECTIVE", "EFFECTIVE_SHARE")}
