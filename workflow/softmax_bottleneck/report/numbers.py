"""Functions that format numbers for tables, figures, claims and sentences, and labels for Snakemake's own report."""

import math
from collections.abc import Iterable, Sequence

DASH = "—"
MINUS = "−"  # the true minus sign
SMALLEST_DECIMAL_P = 0.001  # below it decimals would show nothing
SMALLEST_P = 1e-300  # a smaller p-value is printed as `< 1.00e−300`
MOST_DECIMALS = 8  # a smaller number shows fewer significant digits, or zero
SEEDS_NAMED = 4  # in a cell; more are counted
ANGLES = str.maketrans("<>", "‹›")  # `</script>` in a label would end an inline script


def true_minus(text: str) -> str:
    """Return the text of a number with every hyphen replaced by a true minus sign."""
    return text.replace("-", MINUS)


def number(value: float | None, digits: int = 2, *, signed: bool = False) -> str:
    """Return a number as text with `digits` decimals: `57.08`, `−0.20` or, if `signed` is true, `+0.20`.

    A number that rounds to zero has no sign. The text for None and nan is a dash, `—`.
    """
    if value is None or math.isnan(value):
        return DASH
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    return true_minus(text.lstrip("+-") if float(text) == 0 else text)


def decimals(value: float, minimum: int) -> int:
    """Return the number of decimals that a value needs to show two significant digits: 3 for 0.012.

    The result is never below `minimum`. It is never above MOST_DECIMALS, unless `minimum` itself is larger.
    """
    needed = 1 - math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return max(minimum, min(needed, MOST_DECIMALS))


def spread(mean: float | None, sd: float | None, digits: int = 2) -> str:
    """Return mean and standard deviation with `digits` decimals, as `57.08 ± 0.10`; only the mean if `sd` is None."""
    return number(mean, digits) if sd is None else f"{number(mean, digits)} ± {number(sd, digits)}"


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """Return an interval as text with `digits` decimals, `−0.12 to +0.30`; an empty string if an end is None."""
    ends = (number(end, digits, signed=True) for end in (low, high))
    return "" if low is None or high is None else " to ".join(ends)


def span(values: Sequence[float], digits: int = 1, *, signed: bool = False) -> str:
    """Return the lowest and highest value, without nan, such as `2.3 to 3.2`, or one if they are equal; else a dash."""
    known = [value for value in values if not math.isnan(value)]
    ends = [number(end(known), digits, signed=signed) for end in (min, max)] if known else [DASH]
    return " to ".join(dict.fromkeys(ends))


def percent(share: float) -> str:
    """Return a share as a percentage without decimals: `−3 %` for −0.03."""
    return f"{number(100 * share, 0)} %"


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
    """Return numbers of runs as text: `n = 3` for [3], `n = 3 each` for [3, 3], and `n = 3 and 4` for [3, 4]."""
    if len(numbers) > 1 and len(set(numbers)) == 1:
        return f"n = {numbers[0]:,} each"
    return f"n = {' and '.join(f'{number:,}' for number in numbers)}"


def seeds(numbers: Sequence[int]) -> str:
    """Return a list of seeds as text: `seed 3`, `seeds 4, 5` or, for more than SEEDS_NAMED seeds, `12 seeds`."""
    if len(numbers) > SEEDS_NAMED:
        return f"{len(numbers)} seeds"
    return f"seed{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def label(text: str) -> str:
    """Return a text as one line, with `<` and `>` replaced by `‹` and `›`.

    Snakemake's report writes labels into a script without escaping them. A `</script>` in a label would end the script.
    """
    return " ".join(text.split()).translate(ANGLES)


def listed(texts: Iterable[str]) -> str:
    """Return texts as a list in a sentence: `a`, `a and b`, or `a, b and c`."""
    *first, last = [*texts] or [""]
    return f"{', '.join(first)} and {last}" if first else last
