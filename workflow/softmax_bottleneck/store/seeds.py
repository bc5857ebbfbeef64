"""One random stream per purpose, each from the run's seed, so that none depends on how often another was used."""

from __future__ import annotations

import hashlib


def derive(seed: int, *purpose: str | int) -> int:
    """A seed in [0, 2^63) for one purpose: the sha256 of the run's seed and the purpose's words and numbers.

    Example: `derive(141, "dropout", epoch, step)`.
    """
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big") >> 1
