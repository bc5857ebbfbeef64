"""Progress messages of long steps: the type of the function that prints them, and the format of durations."""

from collections.abc import Callable

Say = Callable[[str], None]  # prints one line

LOG_INTERVAL_S = 60.0  # between progress messages in a log


def duration(seconds: float) -> str:
    """Return a duration as `0:41` (41 seconds), `12:05` or `3:07:00` (3 hours and 7 minutes)."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
