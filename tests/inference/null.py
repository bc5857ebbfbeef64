"""A simulation of studies whose heads do not differ: how often would the rules decide that one does?"""

from collections.abc import Sequence

import numpy as np
from softmax_bottleneck.statistics.intervals import ALPHA, welch_p
from softmax_bottleneck.statistics.pooled import choose, holm, per_seed


def wrong_families(
    rng: np.random.Generator,
    families: int,
    *,
    settings: int = 3,
    rates: Sequence[int] = (2, 1, 2, 2),
    studies: int = 3,
    seeds: int = 3,
    spread: float = 0.014,
    rerun: float = 0.005,
) -> float:
    """Return the share of families in which at least one contrast is decided although all heads are equal.

    A family has a contrast of every head with the baseline in every setting. Each study repeats all runs of a setting;
    its even studies rerun the seeds of the first one on another machine, its odd ones have seeds of their own.

    Args:
        rng: the generator of all numbers.
        families: how many families to simulate.
        settings: settings of a family.
        rates: how many learning rates were tried for the baseline and for every head; all are equally good.
        studies: studies of each setting.
        seeds: seeds of each study.
        spread: standard deviation of a log perplexity over seeds; validation and test share nine tenths of its square.
        rerun: standard deviation over machines at equal seed.
    """
    wrong = 0
    for _ in range(families):
        p_values = []
        for _ in range(settings):
            baseline, *heads = (_tuned(rng, tried, studies, seeds, spread, rerun) for tried in rates)
            p_values += [welch_p(head, baseline) for head in heads]
        wrong += min(holm(p_values)) < ALPHA
    return wrong / families


def _tuned(rng: np.random.Generator, tried: int, studies: int, seeds: int, spread: float, rerun: float) -> list[float]:
    """Return the pooled log perplexities of one head at its chosen rate; the true mean is 0 at every rate."""
    valid: dict[float, dict[int, float]] = {}
    test: dict[float, dict[int, float]] = {}
    for rate in range(tried):
        runs = []
        for study in range(studies):
            first = seeds * study * (study % 2)
            runs += [(first + seed, str(study)) for seed in range(seeds)]
        shared = {seed: rng.normal(0, spread * np.sqrt(0.9)) for seed, _ in runs}
        own = {key: rng.normal(0, spread * np.sqrt(0.1), 2) for key in shared}
        noise = rng.normal(0, rerun, (len(runs), 2))
        for side, losses in enumerate((valid, test)):
            values = [
                (seed, machine, shared[seed] + own[seed][side] + noise[i, side])
                for i, (seed, machine) in enumerate(runs)
            ]
            losses[float(rate)] = per_seed(values)
    choice = choose(valid)
    return [test[choice.value][seed] for seed in choice.compared(test[choice.value])]
