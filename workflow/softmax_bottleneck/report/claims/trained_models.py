"""Claims on trained language models: the premises, quantities and rules that report/claims.yaml names.

All functions read `data`, the records of one corpus. Models are named by shell patterns, separated by `|`, such as
`ss|gss-grid-*`. The Press rank is the number of singular values of the log-probability matrix above the threshold of
Press et al. 2007.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial

from softmax_bottleneck.records.metrics import PRESS_RANK, SIGMA_10, SPEARMAN, TEST_PPL, TOP5_HIT, TRAIN_PPL
from softmax_bottleneck.records.records import FINETUNED
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.claims.verdict import Claim, Code, Premise
from softmax_bottleneck.statistics.intervals import INF, MIN_POINTS, smallest, student, wilson
from softmax_bottleneck.statistics.samples import Summary


# --- premises of single claims --------------------------------------------------------------------------------------
def averaged(data: r.CorpusData, claim: Claim, epochs: int) -> Premise:
    """Return the premise that in every run averaged SGD began to average some epochs before the best epoch.

    The runs are those of the claim's models. The premise is broken if one of these runs never began to average, or if
    none of them is finished. `epochs` is the smallest number of epochs.
    """
    models = data.matching("|".join(claim.models))
    best, switch = ([data.values(model, metric) for model in models] for metric in ("best_epoch", "switch_epoch"))
    both = zip(best, switch, strict=True)
    runs = [end - starts.get(seed, math.inf) >= epochs for ends, starts in both for seed, end in ends.items()]
    return Premise(Code.AVERAGED, {"averaged": sum(runs), "runs": len(runs)}, bool(runs) and all(runs))


def spread_above_noise(data: r.CorpusData, claim: Claim, seed_share: float) -> Premise | None:
    """Return the premise that test perplexities differ more between models than between the seeds of one model.

    The models are those that match a pattern of the claim and did not fail to learn. The variance over the seeds of the
    model `gss` must be less than the share `seed_share` of the variance of the models' mean perplexities. An estimate
    above one is shown as one. Return None for fewer than two seeds, or for fewer than MIN_POINTS models, from which the
    rule computes no correlation.
    """
    seeds = list(data.values("gss", TEST_PPL).values())
    means = [data.mean(model, TEST_PPL) for pattern in claim.models for model in data.learned(pattern)]
    points = [mean for mean in means if not math.isnan(mean)]
    if len(seeds) < 2 or len(points) < MIN_POINTS:
        return None
    noise, total = ((Summary.of(sample).sd or 0.0) ** 2 for sample in (seeds, points))
    share = min(noise / total, 1.0) if total else 1.0
    return Premise(Code.SEED_NOISE, {"share": share, "limit": seed_share}, share < seed_share)


def ranks_apart(data: r.CorpusData, claim: Claim, times: float) -> Premise | None:
    """Return the premise that any high-rank run has `times` the Press rank of every run of a low-rank model.

    The claim has two patterns of models, those of low and those of high rank. Return None if one of the two has no runs
    with a rank.
    """
    low, high = ([k for m in data.matching(p) for k in data.values(m, PRESS_RANK).values()] for p in claim.models)
    if not low or not high:
        return None
    facts = {"low": max(low), "high": min(high), "times": times}
    return Premise(Code.RANKS_APART, facts, times * max(low) < min(high))


def enough_benchmarks(data: r.CorpusData, claim: Claim, benchmarks: int) -> Premise:
    """Return the premise that enough word-similarity benchmarks have results of both models.

    Benchmarks overlap: two of the published thirteen are parts of WS-353. `claim.models` are names, not patterns.
    """
    n = len(list(vector_gaps.collect(data, *claim.models)))
    return Premise(Code.BENCHMARKS, {"benchmarks": n, "limit": benchmarks}, n >= benchmarks)


def enough_runs(data: r.CorpusData, claim: Claim, runs: int) -> Premise:
    """Return the premise that each of the claim's models (names, not patterns) has enough finished runs.

    The premise is for claims whose unit is not a run but, for example, a benchmark.
    """
    finished = [len(data.values(model, TEST_PPL)) for model in claim.models]
    facts = {"runs": " and ".join(map(str, finished)), "limit": runs}
    return Premise(Code.RUNS, facts, min(finished) >= runs, becomes=r.UNDECIDED)


# --- quantities: each function below becomes the quantity whose numbers it collects ----------------------------------
@partial(r.Quantity, estimate=student, what="mean distance of log rank from its mean", unit="×",
         metrics=(PRESS_RANK,), units="models")  # fmt: skip
def spread(data: r.CorpusData, pattern: str) -> list[float]:
    """Return, for each model, the absolute difference of its log rank from the mean log rank of all models.

    The models are those that match the pattern, did not fail to learn and have a rank. The rank of a model is the mean
    Press rank of its runs. The list is empty for fewer than MIN_POINTS models.
    """
    logs = [math.log(data.mean(model, PRESS_RANK)) for model in data.learned(pattern) if data.values(model, PRESS_RANK)]
    return [abs(log - math.fsum(logs) / len(logs)) for log in logs] if len(logs) >= MIN_POINTS else []


@partial(r.Quantity, estimate=student, what="test perplexity of NT against ET, mean over heads", unit="%",
         metrics=(TEST_PPL,), units="heads")  # fmt: skip
def nt_losses(data: r.CorpusData, heads: str, _: str) -> Iterator[float]:
    """Yield, for each head, the log test perplexity of NT minus that of ET, in nats, averaged over the seeds of both.

    NT and ET are two ways to train with averaged SGD: NT starts to average when progress stops, ET at a fixed epoch. A
    positive number means that ET is better. A head without a seed for which both NT and ET have a run is left out.

    `heads` is a pattern of ET models. The NT model of the ET model `mos` is `mos-nt`, and so on. The last argument, the
    pattern of the NT models, is therefore not used.
    """
    for head in data.matching(heads):
        et, nt = data.values(head, TEST_PPL), data.values(f"{head}-nt", TEST_PPL)
        if losses := [math.log(nt[seed] / ppl) for seed, ppl in et.items() if seed in nt]:
            yield math.fsum(losses) / len(losses)


@partial(r.Quantity, estimate=student, what="Spearman’s ρ of word similarity", metrics=(TEST_PPL,),
         units="benchmarks", names="{0} less {1}")  # fmt: skip
def vector_gaps(data: r.CorpusData, *models: str) -> Iterator[float]:
    """Yield, for each word-similarity benchmark, the mean Spearman correlation of the first model minus the second's.

    The correlation is between the benchmark's scores of word pairs and the cosines of a run's word vectors; its mean is
    over the runs of a model. `models` are two names, not patterns. A benchmark without a result of both is left out.
    """
    for condition in sorted(data.records.conditions(SPEARMAN, data.dataset)):
        means = [data.mean(model, SPEARMAN, condition) for model in models]
        if not any(map(math.isnan, means)):
            yield means[0] - means[1]


@partial(r.Quantity, estimate=wilson, what="share of a high-rank head’s hits that a low-rank head has too",
         unit="share", metrics=(TEST_PPL,), units="contexts")  # fmt: skip
def hits(data: r.CorpusData, low: str, high: str) -> Iterator[float]:
    """Yield a number for each context in which at least one high-rank model is right.

    The number is 1 if at least one low-rank model is right in this context, too, and otherwise 0. A model is right if
    at least half of its runs have the true word among the five most probable words. `low` and `high` are the patterns
    of the low-rank and of the high-rank models.
    """
    for condition in sorted(data.records.conditions(TOP5_HIT, data.dataset)):
        right = [any(data.mean(model, TOP5_HIT, condition) >= 0.5 for model in data.matching(p)) for p in (low, high)]
        if right[1]:
            yield float(right[0])


@partial(r.Quantity, estimate=smallest, what="d + 2 less the Press rank, smallest over runs",
         metrics=(PRESS_RANK,), units="runs")  # fmt: skip
def below_limit(data: r.CorpusData, pattern: str) -> Iterator[float]:
    """Yield d + 2 minus the Press rank, for every run of the models that match the pattern.

    The rank of a log-linear head of embedding size d is at most d + 2. The true distribution (pattern `law`) has no
    embedding; its d is that of the softmax model.
    """
    for model in data.matching(pattern):
        as_wide = next(iter(data.matching("softmax|transformer")), model) if model == r.TRUTH else model
        width = data.mean(as_wide, "embedding_size")
        yield from (width + 2 - rank for rank in data.values(model, PRESS_RANK).values() if not math.isnan(width))


CORRELATION = "Pearson’s r of perplexity and rank"
over_family, over_heads = (r.correlation(f"{CORRELATION} over {what}") for what in ("the family", "heads"))
share_of_press = r.within_run("rank_eff_1e-4", PRESS_RANK, "effective rank (ε = 1e−4) over Press rank", "×")
first_contexts = r.within_run(
    PRESS_RANK, "rank_press_all", "Press rank of the first contexts over that of all contexts"
)
slope_growth = r.within_run(
    "slope_std", "slope_std_init", "standard deviation of the learned slopes over that at random"
)
rank_along, ppl_along, gap_along = r.along(PRESS_RANK), r.along(TEST_PPL), r.along(TEST_PPL, TRAIN_PPL)
ppl_along_ten = r.along(TEST_PPL, within=(1, 10))
tenth_value = r.against(SIGMA_10, "", log=False)


# --- rules: their arguments are in report/claims.yaml -----------------------------------------------------------------
def windowed(weak: float, windows: Mapping[str, r.Ends]) -> r.Rule:
    """Return the rule that the correlation over models in the paper's window of perplexities is weak."""
    return r.weak(r.correlation(f"{CORRELATION} in the paper’s window of perplexities", windows), weak)


def diverse(times: float) -> r.Rule:
    """Return the rule that ranks vary at least as much as ranks spread evenly over a factor of `times`."""
    return r.interval_rule(spread, (math.log(times) / 4, INF))


def better_at_low_rank(times: float, margin: float) -> r.Rule:
    """Return the rule that the first model has less than `times` the rank of the second and a lower perplexity."""
    return r.every(r.below(r.rank_against(), times), r.better(margin))


def rank_without_gain(times: float, margin: float) -> r.Rule:
    """Return the rule that some head of high rank gains less than `margin`."""
    return r.heads(r.every(r.higher_rank(times), r.no_gain(margin)), all_=False)


def both_fall() -> r.Rule:
    """Return the rule that rank and perplexity fall with the setting in the models' names."""
    return r.every(r.below(rank_along, 0), r.below(ppl_along, 0))


def breaks_clearly(times: float) -> r.Rule:
    """Return the rule that the first model has `times` the rank of the second, also at 101 % of the tolerance."""
    return r.every(r.higher_rank(times, FINETUNED), r.above(r.against("rank_press_low", "×", FINETUNED), times))


def minimal_gain(small: float) -> r.Rule:
    """Return the rule that the first model gains, but less than `small` nats."""
    return r.on_perplexity((-small, 0), (-small, 0), +1, None)


def regularises(margin: float) -> r.Rule:
    """Return the rule that the first model has a higher train and a lower test perplexity."""
    return r.every(r.above(r.against(TRAIN_PPL), 0, margin), r.better(margin))
