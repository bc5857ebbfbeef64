"""Functions that format numbers for tables, figures, claims and sentences, and labels for Snakemake's own report."""

import math
from collections.abc import Sequence

DASH = "—"
MINUS = "−"  # the true minus sign
SMALLEST_DECIMAL_P = 0.001  # below it decimals would show nothing
SMALLEST_P = 1e-300  # below it float64 has no digits left
MIN_POINTS = 8  # of a correlation; with fewer there is none
MOST_DECIMALS = 8  # a number that needs more is printed as zero
SEEDS_NAMED = 4  # in a cell; more are counted
ANGLES = str.maketrans("<>", "‹›")  # `</script>` in a label would end an inline script


def true_minus(text: str) -> str:
    """Return the text of a number with true minus signs instead of hyphens."""
    return text.replace("-", MINUS)


def number(value: float | None, digits: int = 2, *, signed: bool = False) -> str:
    """Return a number as text: `57.08`, `−0.20` or, if `signed`, `+0.20`. Zero has no sign; None or nan gives —."""
    if value is None or math.isnan(value):
        return DASH
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    return true_minus(text.lstrip("+-") if float(text) == 0 else text)


def decimals(value: float, minimum: int) -> int:
    """Return the number of decimals with which a value shows two significant digits.

    The result is at least `minimum` and otherwise at most MOST_DECIMALS.
    """
    needed = 1 - math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return max(minimum, min(needed, MOST_DECIMALS))


def spread(mean: float | None, sd: float | None, digits: int = 2) -> str:
    """Return mean and standard deviation as text, `57.08 ± 0.10`, or only the mean if `sd` is None."""
    return number(mean, digits) if sd is None else f"{number(mean, digits)} ± {number(sd, digits)}"


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """Return an interval as text, `−0.12 to +0.30`, or an empty string if an end is None."""
    ends = (number(end, digits, signed=True) for end in (low, high))
    return "" if low is None or high is None else " to ".join(ends)


def percent(share: float, digits: int = 0) -> str:
    """Return a share (1 is the whole) as a percentage, such as `−3 %`."""
    return f"{number(100 * share, digits)} %"


def p_value(p: float | None) -> str:
    """Return a p-value as text with two significant digits, such as `0.60` or `0.0012`.

    Below 0.001 the text is like `2.02e−15`, as the papers print p-values. None and nan give a dash.
    """
    if p is None or math.isnan(p):
        return DASH
    if p >= SMALLEST_DECIMAL_P:
        return f"{p:#.2g}".rstrip(".")
    mantissa, exponent = f"{max(p, SMALLEST_P):.2e}".split("e")
    return f"{'< ' if p < SMALLEST_P else ''}{mantissa}e{true_minus(str(int(exponent)))}"


def counts(numbers: Sequence[int]) -> str:
    """Return the numbers of runs on each side of a comparison as text: `n = 3`, `n = 3 each` or `n = 3 and 4`."""
    distinct = list(dict.fromkeys(numbers))
    if len(distinct) == 1:
        return f"n = {distinct[0]:,}" + " each" * (len(numbers) > 1)
    return f"n = {' and '.join(f'{number:,}' for number in numbers)}"


def seeds(numbers: Sequence[int]) -> str:
    """Return a list of seeds as text: `seed 3`, `seeds 4, 5` or, for more than SEEDS_NAMED seeds, `12 seeds`."""
    if len(numbers) > SEEDS_NAMED:
        return f"{len(numbers)} seeds"
    return f"seed{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def label(text: str) -> str:
    """Return a text as one line, with `<` and `>` replaced by `‹` and `›`.

    Snakemake's report writes labels unescaped into a script, which a `</script>` would end.
    """
    return " ".join(text.split()).translate(ANGLES)
