"""What a known-truth language is made from; `corpora.language` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from softmax_bottleneck.store.errors import UserError

MAX_LAW_BYTES = 1 << 29


@dataclass(frozen=True)
class LanguageSettings:
    """What a language is made from. Token counts are lower bounds: each split ends with the line it is in."""

    vocabulary_size: int
    rank: int  # r: columns of U and B; the rank of log P* is r + 2
    topics: int
    classes: int
    markers_per_topic: int
    seed: int
    train_tokens: int
    valid_tokens: int
    test_tokens: int
    zipf_exponent: float = 0.9
    topic_strength: float = 2.5  # nats that a topic adds to its own words
    class_strength: float = 1.0  # standard deviation, nats
    affinity_strength: float = 1.0  # standard deviation, nats
    affinity_dimensions: int = 4
    affinity_bandwidth: float = (
        0.7  # standard deviation of the Fourier frequencies: larger is more wiggly and of higher rank
    )

    def __post_init__(self) -> None:
        lowest = dict.fromkeys((field.name for field in fields(self) if field.type == "float"), 0.01)
        lowest |= {"vocabulary_size": 10, "topics": 2, "classes": 2, "markers_per_topic": 1, "affinity_dimensions": 1}
        lowest |= {"train_tokens": 100, "valid_tokens": 100, "test_tokens": 100, "rank": self.topics + self.classes + 1}
        for key, least in lowest.items():
            if getattr(self, key) < least:
                raise UserError(f"language: {key}: {getattr(self, key)} is not allowed (at least {least})")
        size = self.vocabulary_size
        highest = {"rank": size - 2, "markers_per_topic": (size - 1) // self.topics, "classes": size // 2}
        highest |= {"topics": MAX_LAW_BYTES // (8 * size * size)}
        for key, most in highest.items():
            if getattr(self, key) > most:
                raise UserError(
                    f"language: {key}: {getattr(self, key)} is not allowed (at most {most} for {size} words)"
                )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> LanguageSettings:
        """Settings from the `language` key of a dataset's YAML.

        Raises:
            UserError: unknown or missing key, a value of the wrong type or out of range.
        """
        types = {field.name: float if field.type == "float" else int for field in fields(cls)}
        for key, value in values.items():
            if key not in types:
                raise UserError(f"language: unknown key {key!r}; allowed are {', '.join(types)}")
            if isinstance(value, bool) or not isinstance(value, int | types[key]):
                raise UserError(f"language: {key}: {value!r} must be of type {types[key].__name__}")
        missing = [field.name for field in fields(cls) if field.default is MISSING and field.name not in values]
        if missing:
            raise UserError(f"language: {missing[0]} is not set; write `{missing[0]}: ...` under `language`")
        return cls(**values)
