"""Summaries of a handful of runs, and t-tests of two means.

The published tests are unpaired two-sided Student t-tests with pooled variance over ten seeds (Parthiban et al. 2021,
SM Table 1 and Table 4: all ten p-values follow from the printed means and standard deviations). This module also has
Welch's test, which does not assume equal variances. If a test cannot be computed, its numbers are None and its
attribute `reason` says why. A nan or infinite number raises NotFiniteError, so callers must leave out diverged runs.
"""

from __future__ import annotations

import math
import statistics as exact  # of the standard library: exact sums of fractions, so the order of runs changes no bit
from collections.abc import Iterable
from dataclasses import dataclass


class NotFiniteError(ValueError):
    """The error for a nan or infinite number among values that are summarised."""


# --- summaries ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Summary:
    """A summary of values: their number n, their mean, and their sample standard deviation sd, which divides by n - 1.

    `mean` is None without values; `sd` is None for fewer than two values.
    """

    n: int
    mean: float | None
    sd: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary:
        """Return the summary of values; the same values in another order give a bitwise equal summary.

        Raises:
            NotFiniteError: a value is nan or infinite.
        """
        numbers = [float(value) for value in values]
        for number in numbers:
            if not math.isfinite(number):
                raise NotFiniteError(
                    f"{number} among {len(numbers)} values: a mean needs finite numbers, leave out none in silence"
                )
        return cls(
            n=len(numbers),
            mean=exact.mean(numbers) if numbers else None,
            sd=exact.stdev(numbers) if len(numbers) > 1 else None,
        )


# --- t-tests --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TestResult:
    """The result of an unpaired two-sided t-test of two means.

    A test needs two values per sample, and two different values in at least one sample.

    Attributes:
        t, df, p: statistic, degrees of freedom and p-value; None if the test cannot be computed.
        reason: why the test cannot be computed; empty otherwise.
    """

    __test__ = False  # pytest would collect a class of this name as a test case

    t: float | None = None
    df: float | None = None
    p: float | None = None
    reason: str = ""


Sample = Summary | Iterable[float]


def student_t(first: Sample, second: Sample) -> TestResult:
    """Return the result of Student's t-test, which pools the variances; df = n1 + n2 - 2.

    Each sample is given by its values or its `Summary` (n, mean and sd). A positive t means that the first mean is
    larger. The published p-values are those of this test.

    Raises:
        NotFiniteError: a value is nan or infinite.
    """
    return _t_test(first, second, equal_variances=True)


def welch_t(first: Sample, second: Sample) -> TestResult:
    """Return the result of Welch's t-test, which does not pool the variances; df is Satterthwaite's.

    Each sample is given by its values or its `Summary` (n, mean and sd). A positive t means that the first mean is
    larger.

    Raises:
        NotFiniteError: a value is nan or infinite.
    """
    return _t_test(first, second, equal_variances=False)


def satterthwaite(errors: Iterable[float], n: Iterable[int]) -> float:
    """Return Satterthwaite's degrees of freedom of a sum of means (Biometrics Bull. 2, 1946).

    Args:
        errors: the squared standard error of each mean. If all are 0, the result is inf.
        n: the number of units of each mean.
    """
    pairs = [(float(error), size) for error, size in zip(errors, n, strict=True)]
    below = sum(error**2 / (size - 1) for error, size in pairs if error)
    return sum(error for error, _ in pairs) ** 2 / below if below else math.inf


def _t_test(*samples: Sample, equal_variances: bool) -> TestResult:
    from scipy import special  # most steps do not need it

    first, second = (one if isinstance(one, Summary) else Summary.of(one) for one in samples)
    reason = ""
    if first.mean is None or second.mean is None:
        reason = "not computable: no values on one side"
    elif first.sd is None or second.sd is None:
        reason = f"not computable: n = {first.n} and {second.n}, at least 2 on each side are needed"
    elif first.sd == 0 and second.sd == 0:
        reason = "not computable: zero variance on both sides"
    else:
        scale = max(first.sd, second.sd)  # after division by it, squares of deviations neither overflow nor underflow
        n, variances = (first.n, second.n), ((first.sd / scale) ** 2, (second.sd / scale) ** 2)
        errors = [variance / size for variance, size in zip(variances, n, strict=True)]
        df, squared_error = satterthwaite(errors, n), sum(errors)
        if equal_variances:
            df = float(sum(n) - 2)
            pooled = sum(variance * (size - 1) for variance, size in zip(variances, n, strict=True)) / df
            squared_error = pooled * sum(1 / size for size in n)
        t = (first.mean - second.mean) / scale / math.sqrt(squared_error)
        return TestResult(t, df, float(2 * special.stdtr(df, -abs(t))))
    return TestResult(reason=reason)
