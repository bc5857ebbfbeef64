"""The declaration of a head: what studies, tables and figures need to know of it. This module never imports torch."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from softmax_bottleneck.store import schema

Components = Annotated[schema.Integer, Field(ge=1, le=4096)]
Positive = Annotated[schema.Number, Field(gt=0)]
NotNegative = Annotated[schema.Number, Field(ge=0)]


@schema.section
class NoOptions:
    """The options of a head without options."""


@schema.section
class Declaration:
    """The declaration of a head, which its file assigns to `HEAD`.

    Attributes:
        name: the head's name in studies.
        label: the head's name in tables. Without blanks and punctuation, it is the name of the head's class.
        family: `pointwise`, a fixed function of every logit before the softmax; `learned pointwise`, a learned one;
            `mixture`, several softmaxes, contexts or logits mixed; or `other`.
        options: the class of the head's options, made by `schema.section`.
        colour: colour in figures as a hex code; without one, figures choose a spare colour.
        published_as: name of the head's model in report/published, if it is another than `name`. A study's model with
            another name has the published numbers of this one if it is the only model with this head, at the published
            options. A dataset's `published_as` names a corpus there, a column's a metric.
        is_log_linear: true if log-probabilities are linear in a context vector as wide as the decoder, at the default
            options. Their rank is then at most that width plus two.
    """

    name: schema.Name
    label: schema.Label
    family: Literal["pointwise", "learned pointwise", "mixture", "other"]
    options: type[Any] = NoOptions
    colour: Annotated[str, Field(pattern="^#[0-9a-f]{6}$")] | None = None
    published_as: str = ""
    is_log_linear: schema.Flag = False

    def read(self, given: Mapping[str, Any]) -> Any:
        """Return the options of a head, an instance of `options`, with defaults for those that are not given.

        Raises:
            UserError: an option is unknown, or a value is not allowed.
        """
        return schema.read(self.options, dict(given), f"head {self.name}")

    @property
    def defaults(self) -> dict[str, Any]:
        """The default values of the options."""
        return dataclasses.asdict(self.options())


@schema.section
class MixtureOptions:
    """The options that mixtures of softmaxes and of contexts share.

    Attributes:
        components: number of softmaxes or context vectors that are mixed, K.
        dropout_latent: dropout of the latent context vectors (old name: dropoutl).
        locked_dropout: true to draw this dropout once per sequence, not at every time step.
        prior: how the mixture weights are normalised.
        pointwise: name of the head whose pointwise function is applied to the logits.
        pointwise_options: options of that head.
    """

    components: Components = 15
    dropout_latent: schema.Probability = 0.29
    locked_dropout: schema.Flag = True
    prior: Literal["softmax", "sigsoftmax"] = "softmax"
    pointwise: str = "softmax"
    pointwise_options: schema.Options = schema.EMPTY
