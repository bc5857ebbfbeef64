"""Settings of synthetic texts: a language with a known distribution (`corpora.language`), or repeated tokens."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field

from softmax_bottleneck.store.schema import Integer, Number, Positive, Seed, read, section

MAX_TABLE_BYTES = 1 << 29  # largest size of the float64 table [topics, words, words] of next-word probabilities
Tokens = Annotated[Integer, Field(ge=100, le=10**8)]  # sampling 10^8 words takes an hour and gigabytes of memory
AtLeastTwo = Annotated[Integer, Field(ge=2)]
Strength = Annotated[Number, Field(ge=0.01)]


@section
class LanguageSettings:
    """The settings of a synthetic language. Token counts are lower bounds, because a split ends at the end of a line.

    Attributes:
        vocabulary_size: number of words, including `<eos>`, which ends every line.
        rank: number r of columns of U [contexts, r] and B [words, r]. The logits are U B^T plus a bias per word, and
            the log-probabilities log P* have rank r + 2.
        topics: number of topics; a topic lasts until a marker word of another topic is sampled.
        classes: number of word classes; one of them contains only `<eos>`.
        markers_per_topic: number of marker words of a topic; sampling a marker starts its topic.
        seed: seed of the distribution and of the texts.
        train_tokens, valid_tokens, test_tokens: number of words of each split.
        zipf_exponent: exponent a of Zipf's law: in all contexts, the logit of word i includes -a ln(i + 2.7).
        topic_strength: mean number of nats that a topic adds to the logits of the words of its theme, a set of words
            that includes the topic's markers.
        class_strength: standard deviation, in nats, of the part of the logits that depends on word classes.
        affinity_strength: scale, in nats, of the part of the logits that depends on the affinities of words to
            contexts. The standard deviation of this part grows with the rank, to several times the scale.
        affinity_dimensions: dimension of the space with a point for every word and context; the affinity of a word to a
            context is high if their points are close.
        affinity_bandwidth: inverse of the width of the Gaussian kernel that turns the distance of two points into an
            affinity. Random Fourier features approximate this kernel. With a larger affinity_bandwidth, the singular
            values of log P* decay more slowly.
    """

    vocabulary_size: Annotated[Integer, Field(ge=10)]
    rank: Integer
    topics: AtLeastTwo
    classes: AtLeastTwo
    markers_per_topic: Positive
    seed: Seed
    train_tokens: Tokens
    valid_tokens: Tokens
    test_tokens: Tokens
    zipf_exponent: Strength = 0.9
    topic_strength: Strength = 2.5
    class_strength: Strength = 1.0
    affinity_strength: Strength = 1.0
    affinity_dimensions: Positive = 4
    affinity_bandwidth: Strength = 0.7

    def __post_init__(self) -> None:
        """Raise ValueError if a setting breaks a limit set by others, such as rank <= vocabulary_size - 2."""
        size, least_rank = self.vocabulary_size, self.topics + self.classes + 1
        if self.rank < least_rank:
            raise ValueError(f"rank: {self.rank} is not allowed (at least {least_rank})")
        limits = {"rank": size - 2, "markers_per_topic": (size - 1) // self.topics, "classes": size // 2}
        limits["topics"] = MAX_TABLE_BYTES // (8 * size * size)
        for key, most in limits.items():
            if getattr(self, key) > most:
                raise ValueError(f"{key}: {getattr(self, key)} is not allowed (at most {most} for {size} words)")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return settings from a mapping whose keys are attributes. A wrong key or value raises UserError."""
        return read(cls, values, "language")


@section
class RepeatSettings:
    """The settings of a text whose sequences repeat one token (`corpora.repeat`).

    Attributes:
        vocabulary_size: number of tokens V.
        sequence_length: length of every sequence.
        repetitions: number of sequences of every token in train, the same for each.
        held_out: number of tokens that never occur in train. Test has one sequence of each, and valid has one sequence
            of each of as many other tokens.
        seed: seed of the order of the sequences, and of the tokens that are held out.
    """

    vocabulary_size: Annotated[Integer, Field(ge=3)]
    sequence_length: AtLeastTwo
    repetitions: Positive
    held_out: Positive
    seed: Seed

    def __post_init__(self) -> None:
        """Raise ValueError if fewer tokens are trained than held out."""
        if 2 * self.held_out > self.vocabulary_size:
            raise ValueError(f"held_out: {self.held_out} is not allowed (at most {self.vocabulary_size // 2})")

    @property
    def tokens(self) -> dict[str, int]:
        """The number of tokens of each split."""
        trained = self.repetitions * (self.vocabulary_size - self.held_out)
        sequences = {"train": trained, "valid": self.held_out, "test": self.held_out}
        return {split: count * self.sequence_length for split, count in sequences.items()}
