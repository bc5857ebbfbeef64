"""Wilson's interval of a share, in a module that imports little, because the step `measure` needs no other one."""

import math

from scipy import special


def wilson_ends(share: float, n: int, tail: float = 0.025) -> tuple[float, float]:
    """Return the ends (low, high) of Wilson's score interval of a share among n units (J. Am. Stat. Assoc. 22, 1927).

    `tail` is the probability outside each end. SciPy's own interval takes half a second to import.

    Raises:
        ValueError: there are no units, or the share is not between 0 and 1.
    """
    if not (n > 0 and 0 <= share <= 1):
        raise ValueError(f"{share:g} of {n} units is no share: expected at least one unit and a share from 0 to 1")
    z = float(special.ndtri(1 - tail))
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)
