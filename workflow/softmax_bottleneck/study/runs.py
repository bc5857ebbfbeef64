"""A training run as a frozen value: head, body, schedule, seed; its run_id says what it depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from softmax_bottleneck.heads.registry import module_path
from softmax_bottleneck.heads.registry import options as complete_options
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.fingerprint import STEPS, step_code
from softmax_bottleneck.study import kinds
from softmax_bottleneck.study.validation import read


@dataclass(frozen=True)
class Head:
    """An output head and its options (every option present, defaults filled in)."""

    name: str
    options: Mapping[str, Any] = kinds.EMPTY

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules below the package that compute this head; a mixture also needs those of its parts."""
        names = {self.name, *(str(self.options[part]) for part in ("pointwise", "prior") if part in self.options)}
        return tuple(sorted(f"heads.{module_path(name).stem}" for name in names))

    @property
    def is_mixture(self) -> bool:
        """Whether it mixes several components (Yang et al. 2018)."""
        return "components" in self.options

    @classmethod
    def of(cls, options: Mapping[str, Any], where: str) -> Head:
        """The head with this `name` and these options (UserError for one that it does not have, or not so)."""
        given = dict(options)
        name = given.pop("name")
        try:
            complete = complete_options(name, given)
            if "pointwise" in complete:
                complete_options(complete["pointwise"], complete.get("pointwise_options", {}))
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        return cls(name, complete)


@kinds.declared
class Body:
    """The network below the head and how it meets it. Sizes in units, dropouts as probabilities.

    Attributes:
        kind: architecture: `awd-lstm`, LSTM layers; or `transformer`, a causal encoder that carries nothing from chunk
            to chunk.
        embedding_size: width of word vectors and of the output matrix (emsize); of everything in a transformer.
        hidden_size: width of the inner LSTM layers (nhid), or of a transformer's feed-forward layers.
        context_size: width of the last layer (nhidlast); in a study null means embedding_size.
        layers: number of LSTM or encoder layers (nlayers).
        dropout_input: on embeddings (dropouti); locked, in a transformer plain.
        dropout_hidden: between layers (dropouth), locked; in a transformer inside its layers, plain.
        dropout_output: on the last layer (dropout); locked, in a transformer plain.
        dropout_embedding: of whole word types (dropoute).
        dropout_weight: DropConnect on hidden-to-hidden weights (wdrop).
        embedding_noise: standard deviation of noise added to embeddings in training.
        published_padding: the dictionary's last word gets no gradient as an input, as in the AWD-LSTM's own code, which
            takes it for padding; as an output it does.
        attention_heads: of a transformer's self-attention; 0 for other bodies.
        tied: whether word vectors are also the output matrix (tied).
        initialisation: `own`, each layer's own law; `xavier`, Xavier's uniform one for every matrix of the model.
    """

    kind: Literal["awd-lstm", "transformer"] = "awd-lstm"
    embedding_size: kinds.Width
    hidden_size: kinds.Width
    context_size: kinds.Width
    layers: Annotated[kinds.Integer, Field(ge=1, le=64)]
    dropout_input: kinds.Probability
    dropout_hidden: kinds.Probability
    dropout_output: kinds.Probability
    dropout_embedding: kinds.Probability
    dropout_weight: kinds.Probability
    embedding_noise: Annotated[kinds.Number, Field(ge=0, le=10)] = 0.0
    published_padding: kinds.Flag = False
    attention_heads: Annotated[kinds.Integer, Field(ge=0, le=1024)] = 0
    tied: kinds.Flag = True
    initialisation: Literal["own", "xavier"] = "own"

    @property
    def module(self) -> str:
        """The module below the package that computes this body."""
        return f"bodies.{self.kind.replace('-', '_')}"


@kinds.declared
class Schedule:
    """How a model is trained.

    Attributes:
        optimizer: `sgd`; `et-asgd`, averaging after a fixed epoch; `nt-asgd`, averaging when validation stalls; `asgd`,
            averaging from the first update; `plateau-sgd`, SGD whose step size falls when validation stalls.
        learning_rate: step size at a chunk of `bptt` tokens (lr).
        batch_size: parallel streams of text (batch_size).
        bptt: nominal chunk length in tokens (bptt).
        variable_length: draw each chunk's length at random, the step size in proportion.
        max_length_delta: the longest chunk is bptt plus this (max_seq_len_delta).
        clip: largest global norm of the gradient (clip).
        weight_decay: L2 penalty inside the optimiser (wdecay).
        activation_penalty: AR, on dropped outputs of the last layer (alpha).
        temporal_penalty: TAR, on differences of successive outputs (beta).
        epochs: passes over the training text (epochs).
        switch_after_epoch: `et-asgd`: last epoch of plain SGD.
        nonmonotone_window: `nt-asgd`: epochs without improvement before the switch; finetuning: before the end
            (nonmono).
        eval_batch_size: streams when validating.
        test_batch_size: streams when testing; ranks and predicted words are always of one.
        plateau_factor: `plateau-sgd`: divides the step size after every epoch that is not the best so far.
        tested_weights: `best`, those of the best epoch on validation; or `last`, of the last epoch.
        loss_divisor: a loss over L tokens, of which L - 1 are predicted, is divided by L (`length`, as in AWD-LSTM's
            code) or L - 1 (`targets`).
        pieces: the training text is cut into so many consecutive pieces, and an epoch is one of them in turn; with as
            many pieces as epochs no text is read twice.
        precision: of the matrix products of training; other results, another run. `fp32`; `tf32`, all products of a GPU
            in TF32; the products over the vocabulary alone: `tf32x3`, three products in TF32 each, with errors near
            those of fp32; `bf16`, of factors rounded to bfloat16.
    """

    optimizer: Literal["sgd", "et-asgd", "nt-asgd", "asgd", "plateau-sgd"]
    learning_rate: Annotated[kinds.Number, Field(gt=0, le=1000)]
    batch_size: kinds.Width
    bptt: kinds.Width
    variable_length: kinds.Flag = True
    max_length_delta: Annotated[kinds.Integer, Field(ge=0, le=65_536)] = 40
    clip: Annotated[kinds.Number, Field(gt=0, le=1_000_000)]
    weight_decay: Annotated[kinds.Number, Field(ge=0, le=1)]
    activation_penalty: Annotated[kinds.Number, Field(ge=0, le=1000)]
    temporal_penalty: Annotated[kinds.Number, Field(ge=0, le=1000)]
    epochs: kinds.Count
    switch_after_epoch: kinds.Count = 200
    nonmonotone_window: Annotated[kinds.Integer, Field(ge=1, le=1000)] = 5
    eval_batch_size: Annotated[kinds.Integer, Field(ge=1, le=4096)] = 10
    test_batch_size: Annotated[kinds.Integer, Field(ge=1, le=4096)] = 1
    plateau_factor: Annotated[kinds.Number, Field(gt=1, le=1000)] = 1.75
    tested_weights: Literal["best", "last"] = "best"
    loss_divisor: Literal["length", "targets"] = "length"
    pieces: kinds.Count = 1
    precision: Literal["fp32", "tf32", "tf32x3", "bf16"] = "fp32"


BodyPart = Annotated[kinds.Options, kinds.PartOf(Body, context_size=kinds.Width | None)]
SchedulePart = Annotated[kinds.Options, kinds.PartOf(Schedule)]


@dataclass(frozen=True)
class Run:
    """One training run: dataset x body x head x schedule x seed.

    Attributes:
        data_identity: hash that decides what the corpus is; a part of the run_id.
        duplicate_of: the model under whose name a run with the same run_id is trained; empty for one that is trained
            itself.
        start: path of the run that a finetuned one goes on from; empty for a run that begins with weights drawn by its
            seed.
    """

    dataset: kinds.Name
    model: kinds.Name
    head: Head
    body: Body
    schedule: Schedule
    seed: kinds.Seed
    data_identity: str
    threads: kinds.Integer = 1
    device: str = "auto"
    deterministic: kinds.Flag = True
    graphs: kinds.Flag = True
    duplicate_of: str = ""
    start: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """What affects the result, apart from the seed and the code."""
        parts = {key: asdict(getattr(self, key)) for key in ("head", "body", "schedule")}
        return parts | {"data_identity": self.data_identity} | ({"start": self.start} if self.start else {})

    @cached_property
    def code(self) -> str:
        """Fingerprint of the modules that make its tokens and compute this run."""
        step = "finetune" if self.start else "train"
        return step_code(step, *STEPS["tokenise"], self.body.module, *self.head.modules)

    @cached_property
    def run_id(self) -> str:
        """12 hex digits of the sha256 of settings, seed and code."""
        return digest({**self.settings, "seed": self.seed, "code": self.code})[:12]

    @property
    def path(self) -> str:
        """`<dataset>/<model>/<seed>-<run_id>`, of what it is a duplicate of; finetuned: `<start>/finetune-<id>`."""
        if self.start:
            return f"{self.start}/finetune-{self.run_id}"
        return f"{self.dataset}/{self.duplicate_of or self.model}/{self.seed}-{self.run_id}"

    def to_json(self) -> dict[str, Any]:
        """What run.json holds."""
        return asdict(self) | {"run_id": self.run_id, "code": self.code}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str = "run.json") -> Run:
        """The run that a run.json holds; its run_id stays in the file's path, whatever the code is now.

        Raises:
            UserError: naming the setting that no run has, or whose value is not allowed.
        """
        return read(cls, {key: value[key] for key in (field.name for field in fields(cls)) if key in value}, where)


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces; 1 and 1.0 are the same number."""
    return json.dumps(_plain_numbers(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain_numbers(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain_numbers(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(child) for child in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def digest(value: object) -> str:
    """64 hex digits of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
