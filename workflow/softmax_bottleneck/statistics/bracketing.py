"""The rule by which a search has bracketed its best value."""

from collections.abc import Collection


def is_interior(value: float, tried: Collection[float]) -> bool:
    """Return True if a smaller and a larger value than `value` were tried."""
    return min(tried) < value < max(tried)
