"""Training runs and the stages that may follow them, as frozen values.

The run_id of a run says what its result depends on: settings, corpus, seed and code.
"""

from __future__ import annotations

import dataclasses
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
from softmax_bottleneck.study import schema

# The longest chunk of finetuning is bptt plus this in the AWD-LSTM's code; mixtures keep the value of training.
FINETUNE_LENGTH_DELTA = 10
UpTo1000 = Annotated[schema.Number, Field(ge=0, le=1000)]


@dataclass(frozen=True)
class Head:
    """An output head and its options (every option present, defaults filled in)."""

    name: str
    options: Mapping[str, Any] = schema.EMPTY

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules below the package that compute this head; a mixture also needs those of its parts."""
        names = {self.name, *(str(self.options[part]) for part in ("pointwise", "prior") if part in self.options)}
        return tuple(sorted(f"heads.{module_path(name).stem}" for name in names))

    @classmethod
    def of(cls, options: Mapping[str, Any], where: str) -> Head:
        """Return the head with this `name` and these options (UserError for an unknown head, option or bad value)."""
        given = dict(options)
        name = given.pop("name")
        try:
            complete = complete_options(name, given)
            if "pointwise" in complete:
                complete_options(complete["pointwise"], complete.get("pointwise_options", {}))
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        return cls(name, complete)


@schema.section
class Body:
    """The network below the head, and how it meets the head. Sizes in units, dropouts as probabilities.

    Attributes:
        kind: architecture: `awd-lstm`, LSTM layers; or `transformer`, a causal encoder without state between chunks.
        embedding_size: width of word vectors and of the output matrix (emsize); of everything in a transformer.
        hidden_size: width of the inner LSTM layers (nhid), or of a transformer's feed-forward layers.
        context_size: width of the last layer (nhidlast); in a study null means embedding_size.
        layers: number of LSTM or encoder layers (nlayers).
        dropout_input: dropout on embeddings (dropouti); locked, in a transformer plain.
        dropout_hidden: dropout between layers (dropouth), locked; in a transformer inside its layers, plain.
        dropout_output: dropout on the last layer (dropout); locked, in a transformer plain.
        dropout_embedding: dropout of whole word types (dropoute).
        dropout_weight: DropConnect on hidden-to-hidden weights (wdrop).
        embedding_noise: standard deviation of noise added to embeddings in training.
        published_padding: the last word of the vocabulary gets no gradient as an input, because the original AWD-LSTM
            code treats it as padding; as an output it does.
        attention_heads: heads of a transformer's self-attention; 0 for other bodies.
        tied: whether word vectors are also the output matrix (tied).
        initialisation: `own`, the default of each layer; `xavier`, Xavier uniform for every matrix of the model.
    """

    kind: Literal["awd-lstm", "transformer"] = "awd-lstm"
    embedding_size: schema.Width
    hidden_size: schema.Width
    context_size: schema.Width
    layers: Annotated[schema.Integer, Field(ge=1, le=64)]
    dropout_input: schema.Probability
    dropout_hidden: schema.Probability
    dropout_output: schema.Probability
    dropout_embedding: schema.Probability
    dropout_weight: schema.Probability
    embedding_noise: Annotated[schema.Number, Field(ge=0, le=10)] = 0.0
    published_padding: schema.Flag = False
    attention_heads: Annotated[schema.Integer, Field(ge=0, le=1024)] = 0
    tied: schema.Flag = True
    initialisation: Literal["own", "xavier"] = "own"

    @property
    def module(self) -> str:
        """The module below the package that computes this body."""
        return f"bodies.{self.kind.replace('-', '_')}"


@schema.section
class Schedule:
    """How a model is trained.

    Attributes:
        optimizer: `sgd`; `et-asgd`, averaging after a fixed epoch; `nt-asgd`, averaging when validation stalls; `asgd`,
            averaging from the first update; `plateau-sgd`, SGD whose step size falls when validation stalls.
        learning_rate: step size at a chunk of `bptt` tokens (lr).
        batch_size: parallel streams of text (batch_size).
        bptt: nominal chunk length in tokens (bptt).
        variable_length: random chunk lengths, with a proportional step size.
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
        test_batch_size: streams when testing; ranks and predicted words always use one.
        plateau_factor: `plateau-sgd`: divisor of the step size after every epoch that does not improve.
        tested_weights: `best`, those of the best validation epoch; or `last`, of the last epoch.
        loss_divisor: divisor of a loss over L tokens with L - 1 predictions: L (`length`, as in the AWD-LSTM code) or
            L - 1 (`targets`).
        pieces: number of consecutive pieces of the training text; each epoch reads the next piece. With as many pieces
            as epochs, no text is read twice.
        precision: precision of the matrix products in training; another precision is another run. `fp32`; `tf32`, for
            all products on a GPU; for the products over the vocabulary only, `tf32x3` (three TF32 products each, with
            errors close to fp32) or `bf16` (factors rounded to bfloat16).
    """

    optimizer: Literal["sgd", "et-asgd", "nt-asgd", "asgd", "plateau-sgd"]
    learning_rate: Annotated[schema.Number, Field(gt=0, le=1000)]
    batch_size: schema.Width
    bptt: schema.Width
    variable_length: schema.Flag = True
    max_length_delta: Annotated[schema.Integer, Field(ge=0, le=65_536)] = 40
    clip: Annotated[schema.Number, Field(gt=0, le=1_000_000)]
    weight_decay: Annotated[schema.Number, Field(ge=0, le=1)]
    activation_penalty: UpTo1000
    temporal_penalty: UpTo1000
    epochs: schema.Count
    switch_after_epoch: schema.Count = 200
    nonmonotone_window: Annotated[schema.Integer, Field(ge=1, le=1000)] = 5
    eval_batch_size: Annotated[schema.Integer, Field(ge=1, le=4096)] = 10
    test_batch_size: Annotated[schema.Integer, Field(ge=1, le=4096)] = 1
    plateau_factor: Annotated[schema.Number, Field(gt=1, le=1000)] = 1.75
    tested_weights: Literal["best", "last"] = "best"
    loss_divisor: Literal["length", "targets"] = "length"
    pieces: schema.Count = 1
    precision: Literal["fp32", "tf32", "tf32x3", "bf16"] = "fp32"


@schema.section
class Dynamic:
    """Settings of dynamic evaluation: how the weights follow a text while it is scored.

    Attributes:
        segment: tokens between two updates (bptt).
        statistics_batch_size: streams of the training text when gradient statistics are gathered (batch_size).
        scaling: `mean`, root of the mean of squared gradients (Krause's code); or `sum`, root of their sum (Yang's).
        learning_rates: step sizes tried on the validation text, each with every decay (lr).
        decays: rates of decay towards the trained weights, all tried (lamb).
        epsilon: added to the gradient statistics in the denominator of an update (epsilon).
        tune_tokens: tokens of the validation text used to choose settings; all when null.
    """

    segment: schema.Width = 5
    statistics_batch_size: schema.Width = 100
    scaling: Literal["mean", "sum"] = "mean"
    learning_rates: Annotated[schema.NonEmpty[UpTo1000], Field(max_length=100)] = (0.00005,)
    decays: Annotated[schema.NonEmpty[Annotated[schema.Number, Field(ge=0, le=1)]], Field(max_length=100)] = (0.002,)
    epsilon: Annotated[schema.Number, Field(gt=0, le=1000)] = 0.00002
    tune_tokens: Annotated[schema.Integer, Field(ge=2, le=2**31 - 1)] | None = None


# Some keys of a section, as a layer of settings gives them.
BodyPart = Annotated[schema.Options, schema.PartOf(Body, context_size=schema.Width | None)]
SchedulePart = Annotated[schema.Options, schema.PartOf(Schedule)]
DynamicPart = Annotated[schema.Options, schema.PartOf(Dynamic)]


@dataclass(frozen=True)
class Run:
    """One training run: dataset x body x head x schedule x seed.

    Attributes:
        data_identity: hash of the corpus; a part of the run_id.
        duplicate_of: the model under whose name an equal run is trained; empty for a run that is trained itself.
        start: path of the run that a finetuned one starts from; empty for initial weights sampled with its seed.
    """

    dataset: schema.Name
    model: schema.Name
    head: Head
    body: Body
    schedule: Schedule
    seed: schema.Seed
    data_identity: str
    threads: schema.Integer = 1
    device: str = "auto"
    deterministic: schema.Flag = True
    graphs: schema.Flag = True
    duplicate_of: str = ""
    start: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that affect the result, apart from the seed and the code."""
        parts = {key: asdict(getattr(self, key)) for key in ("head", "body", "schedule")}
        return parts | {"data_identity": self.data_identity} | ({"start": self.start} if self.start else {})

    @cached_property
    def code(self) -> str:
        """Fingerprint of the modules that tokenise its corpus and compute this run."""
        step = "finetune" if self.start else "train"
        return step_code(step, *STEPS["tokenise"], self.body.module, *self.head.modules)

    @cached_property
    def run_id(self) -> str:
        """12 hex digits of the sha256 of settings, seed and code."""
        return digest({**self.settings, "seed": self.seed, "code": self.code})[:12]

    @property
    def path(self) -> str:
        """`<dataset>/<model>/<seed>-<run_id>`, of the run it is a duplicate of; finetuned: `<start>/finetune-<id>`."""
        if self.start:
            return f"{self.start}/finetune-{self.run_id}"
        return f"{self.dataset}/{self.duplicate_of or self.model}/{self.seed}-{self.run_id}"

    def to_json(self) -> dict[str, Any]:
        """Return the content of run.json."""
        return asdict(self) | {"run_id": self.run_id, "code": self.code}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str = "run.json") -> Run:
        """Return the run in a run.json; the run_id in the file's path stays, whatever the code is now.

        Raises:
            UserError: naming an unknown setting or a value that is not allowed.
        """
        known = {field.name for field in fields(cls)}
        return schema.read(cls, {key: given for key, given in value.items() if key in known}, where)


@dataclass(frozen=True)
class Stages:
    """Settings of what follows the training of a model on a corpus."""

    finetune: Schedule
    dynamic: Dynamic

    @classmethod
    def of(cls, head: Head, schedule: Schedule, finetune: Mapping[str, Any], dynamic: Mapping[str, Any]) -> Stages:
        """Return the stages after training with this schedule; `finetune` and `dynamic` are the study's changes.

        Finetuning averages from the first update and equals training in all else, unless the study changes it.
        """
        is_mixture = "components" in head.options
        delta = schedule.max_length_delta if is_mixture else FINETUNE_LENGTH_DELTA
        changes = {"optimizer": "asgd", "max_length_delta": delta, **finetune}
        return cls(dataclasses.replace(schedule, **changes), Dynamic(**dynamic))

    def finetuned(self, run: Run) -> Run:
        """Return the run that continues `run` with the schedule of finetuning."""
        return dataclasses.replace(run, schedule=self.finetune, start=run.path)


@dataclass(frozen=True)
class Evaluation:
    """Dynamic evaluation of a trained or finetuned run."""

    run: Run
    settings: Dynamic

    @cached_property
    def code(self) -> str:
        """Fingerprint of the modules that compute it."""
        return step_code("dynamic", self.run.body.module, *self.run.head.modules)

    @cached_property
    def path(self) -> str:
        """`<path of the run>/dynamic-<id>`; the id is a hash of what the result depends on."""
        facts = {"run": self.run.run_id, "settings": dataclasses.asdict(self.settings), "code": self.code}
        return f"{self.run.path}/dynamic-{digest(facts)[:12]}"


def canonical_json(value: object) -> str:
    """Return JSON with sorted keys and no spaces; 1 and 1.0 are the same number."""
    return json.dumps(_plain_numbers(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain_numbers(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain_numbers(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(child) for child in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def digest(value: object) -> str:
    """Return 64 hex digits of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
