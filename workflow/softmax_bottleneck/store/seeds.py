"""Random seeds: each purpose has its own random stream, unaffected by how often the other streams are used."""

import hashlib


def derive(seed: int, *purpose: str | int) -> int:
    """Return a seed in [0, 2^63) for one purpose, derived from the run's seed by sha256.

    `purpose` is a sequence of words and numbers, as in `derive(141, "dropout", epoch, step)`. Different purposes have
    different seeds, so that their random streams are independent.
    """
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big") >> 1
