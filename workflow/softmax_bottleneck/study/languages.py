"""What a known-truth language is made from; `corpora.language` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from softmax_bottleneck.study import kinds
from softmax_bottleneck.study.validation import read

MAX_LAW_BYTES = 1 << 29
Tokens = Annotated[
    kinds.Integer, Field(ge=100, le=10**8)
]  # a text of 10^8 words takes an hour to sample, and gigabytes
Strength = Annotated[kinds.Number, Field(ge=0.01)]


@kinds.declared
class LanguageSettings:
    """What a language is made from. Token counts are lower bounds: each split ends with the line it is in.

    Attributes:
        vocabulary_size: words, with `<eos>`.
        rank: r, columns of U and B; the rank of log P* is r + 2.
        topics: each lasts until a marker of another one falls.
        classes: of words, of which one is `<eos>` alone.
        markers_per_topic: words that set a topic.
        seed: of the law and of the texts.
        train_tokens, valid_tokens, test_tokens: words of each split.
        zipf_exponent: of the words' frequencies.
        topic_strength: nats that a topic adds to its own words.
        class_strength: standard deviation of what classes add, nats.
        affinity_strength: standard deviation of what affinities add, nats.
        affinity_dimensions: of the space in which words lie.
        affinity_bandwidth: standard deviation of the Fourier frequencies: larger is more wiggly and of higher rank.
    """

    vocabulary_size: Annotated[kinds.Integer, Field(ge=10)]
    rank: kinds.Integer
    topics: Annotated[kinds.Integer, Field(ge=2)]
    classes: Annotated[kinds.Integer, Field(ge=2)]
    markers_per_topic: Annotated[kinds.Integer, Field(ge=1)]
    seed: kinds.Seed
    train_tokens: Tokens
    valid_tokens: Tokens
    test_tokens: Tokens
    zipf_exponent: Strength = 0.9
    topic_strength: Strength = 2.5
    class_strength: Strength = 1.0
    affinity_strength: Strength = 1.0
    affinity_dimensions: Annotated[kinds.Integer, Field(ge=1)] = 4
    affinity_bandwidth: Strength = 0.7

    def __post_init__(self) -> None:
        size, least_rank = self.vocabulary_size, self.topics + self.classes + 1
        if self.rank < least_rank:
            raise ValueError(f"rank: {self.rank} is not allowed (at least {least_rank})")
        highest = {"rank": size - 2, "markers_per_topic": (size - 1) // self.topics, "classes": size // 2}
        highest |= {"topics": MAX_LAW_BYTES // (8 * size * size)}
        for key, most in highest.items():
            if getattr(self, key) > most:
                raise ValueError(f"{key}: {getattr(self, key)} is not allowed (at most {most} for {size} words)")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> LanguageSettings:
        """Settings from the `language` key of a dataset's YAML (UserError naming the key)."""
        return read(cls, values, "language")
