"""Training runs, and finetuning and dynamic evaluation that may follow, as immutable objects.

The run_id of a run is a hash of everything that the result depends on: settings, corpus, seed and code.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.dataclasses import dataclass

from softmax_bottleneck.heads import registry
from softmax_bottleneck.store import schema
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.fingerprint import STEPS, step_code

# The longest chunk of finetuning is bptt plus this in the AWD-LSTM's code; mixtures keep the value of training.
FINETUNE_LENGTH_DELTA = 10
RATE_LIMIT = 0.0005  # step sizes of dynamic evaluation are below it with scaling `mean`, above it with `sum`
UpTo1000 = Annotated[schema.Number, Field(ge=0, le=1000)]


def _check_head(head: schema.Options) -> schema.Options:
    if not isinstance(head.get("name"), str):
        raise ValueError("expected the name of a head, or a mapping with `name` and options")
    return head


HeadEntry = Annotated[  # a head in YAML: a name, or a mapping of its name and options
    schema.Options,
    BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value),
    AfterValidator(_check_head),
]


@dataclass(frozen=True)
class Head:
    """An output head: its name and all of its options, including options with default values."""

    name: str
    options: Mapping[str, Any] = schema.EMPTY

    @property
    def names(self) -> tuple[str, ...]:
        """The name of this head, and of the heads that its options `pointwise` and `prior` name, sorted."""
        named = (self.options[part] for part in ("pointwise", "prior") if part in self.options)
        return tuple(sorted({self.name, *named}))

    @property
    def modules(self) -> tuple[str | Path, ...]:
        """The modules and files with the code of these heads, sorted, such as `("heads.mos", "heads.softmax")`."""
        return tuple(sorted({part for name in self.names for part in registry.find(name).code}, key=str))

    @classmethod
    def of(cls, options: Mapping[str, Any], where: str) -> Self:
        """Return the head for a mapping of its name and options, such as `{"name": "mos", "components": 3}`.

        Absent options get their defaults. `where` is the location of the mapping, for error messages.

        Raises:
            UserError: the head or an option is unknown, or a value is not allowed.
        """
        given = dict(options)
        name = given.pop("name")
        try:
            complete = registry.options(name, given)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        return cls(name, complete)


@schema.section
class Body:
    """The network below the head, and whether its word vectors are also the head's output matrix.

    Dropouts are probabilities. The LSTM uses locked dropout, with one mask for all positions of a chunk; the
    transformer uses plain dropout. Names in brackets are those of the AWD-LSTM code.

    Attributes:
        kind: architecture: `awd-lstm`, LSTM layers; or `transformer`, a causal encoder without state between chunks.
        embedding_size: width of the word vectors and the output matrix (emsize); in a transformer, also of all layers.
        hidden_size: width of the inner LSTM layers (nhid), or of a transformer's feed-forward layers.
        context_size: width of the last layer, whose output the head reads (nhidlast). If a study's YAML gives null or
            nothing, it is embedding_size; a transformer allows no other value.
        layers: number of LSTM or encoder layers (nlayers).
        dropout_input: dropout on embeddings (dropouti).
        dropout_hidden: dropout between LSTM layers (dropouth), or inside a transformer's layers.
        dropout_output: dropout on the output of the last layer (dropout).
        dropout_embedding: dropout of the vectors of whole word types (dropoute).
        dropout_weight: DropConnect on hidden-to-hidden weights (wdrop).
        embedding_noise: standard deviation of the noise that is added to embeddings in training.
        published_padding: true to treat the last word of the vocabulary as padding, as the original AWD-LSTM code does:
            the word's vector gets no gradient as an input, but still gets one as an output.
        attention_heads: number of heads of a transformer's self-attention; 0 for other bodies.
        tied: true if the word vectors are also the output matrix (tied).
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
        """The name of the module that computes this body, `bodies.awd_lstm` or `bodies.transformer`."""
        return f"bodies.{self.kind.replace('-', '_')}"


@schema.section
class Schedule:
    """The settings of training. Names in brackets are those of the AWD-LSTM code.

    Attributes:
        optimizer: `sgd`; `et-asgd`, SGD that averages weights after a fixed epoch; `nt-asgd`, SGD that averages weights
            once the validation loss stalls; `asgd`, SGD that averages weights from the first update; or `plateau-sgd`,
            SGD whose step size falls when the validation loss stalls.
        learning_rate: step size for a chunk of `bptt` tokens (lr).
        batch_size: number of parallel streams of text (batch_size).
        bptt: nominal chunk length in tokens (bptt).
        variable_length: true for random chunk lengths; the step size is then proportional to the length of the chunk.
        max_length_delta: difference of the longest chunk length and `bptt` (max_seq_len_delta).
        clip: largest global norm of the gradient (clip).
        weight_decay: L2 penalty inside the optimiser (wdecay).
        activation_penalty: weight of activation regularisation (AR), the penalty on the squared outputs of the last
            layer after dropout (alpha).
        temporal_penalty: weight of temporal activation regularisation (TAR), the penalty on the squared differences of
            successive outputs of the last layer (beta).
        epochs: number of passes over the training text (epochs).
        switch_after_epoch: for `et-asgd`, the last epoch of plain SGD.
        nonmonotone_window: `nt-asgd` starts to average weights, and finetuning ends, after an epoch whose validation
            loss exceeds the lowest one of all epochs more than this number before it (nonmono).
        eval_batch_size: number of streams of the validation text.
        test_batch_size: number of streams of the test text; ranks and predicted words always use one stream.
        plateau_factor: for `plateau-sgd`, the divisor of the step size after every epoch without improvement.
        tested_weights: `best`, the weights of the best validation epoch; or `last`, those of the last epoch.
        loss_divisor: number by which the summed loss of a validation or test stream is divided. A stream of L tokens
            has L - 1 predicted tokens. `length` means L, as in the AWD-LSTM code; `targets` means L - 1.
        pieces: number of consecutive pieces of the training text; each epoch reads the next piece. With as many pieces
            as epochs, no text is read twice.
        precision: precision of the matrix products in training: `fp32`, or `tf32` for all products on a GPU. The values
            `tf32x3` and `bf16` concern only the products over the vocabulary. `tf32x3` computes each as three TF32
            products, with errors close to fp32. `bf16` rounds the factors to bfloat16. `tf32-bf16` is `bf16` for these
            products and `tf32` for all others.
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
    precision: Literal["fp32", "tf32", "tf32x3", "bf16", "tf32-bf16"] = "fp32"


@schema.section
class Dynamic:
    """The settings of dynamic evaluation, which updates the weights on a text while the text is scored.

    Names in brackets are options of Krause's code.

    Attributes:
        segment: number of tokens between two updates (bptt).
        statistics_batch_size: number of streams of the training text when gradient statistics are computed
            (batch_size).
        scaling: gradient statistics: `mean`, the root of the mean of squared gradients (Krause's code); or `sum`, the
            root of their sum (Yang's code).
        learning_rates: step sizes tried on the validation text, each with every decay (lr).
        decays: rates of decay towards the trained weights, tried with every step size (lamb).
        epsilon: constant added to the gradient statistics in the denominator of an update (epsilon).
        tune_tokens: number of validation tokens used to choose step size and decay; all when null.
    """

    segment: schema.Width = 5
    statistics_batch_size: schema.Width = 100
    scaling: Literal["mean", "sum"] = "mean"
    learning_rates: Annotated[schema.NonEmpty[UpTo1000], Field(max_length=100)] = (0.00005,)
    decays: Annotated[schema.NonEmpty[Annotated[schema.Number, Field(ge=0, le=1)]], Field(max_length=100)] = (0.002,)
    epsilon: Annotated[schema.Number, Field(gt=0, le=1000)] = 0.00002
    tune_tokens: Annotated[schema.Integer, Field(ge=2, le=2**31 - 1)] | None = None

    @property
    def unsuitable_rates(self) -> str:
        """A message if the step sizes are those of the other scaling, else "".

        With `sum` the statistics, and so the step sizes for equal steps, are larger by the root of the number of
        batches: by 43 on Penn Treebank. Krause's step sizes are 0.00003 to 0.0001 (`mean`), Yang's is 0.002 (`sum`).
        """
        is_sum = self.scaling == "sum"
        wrong = [rate for rate in self.learning_rates if rate and (rate < RATE_LIMIT) == is_sum and rate != RATE_LIMIT]
        if not wrong:
            return ""
        wanted = f"at {'least' if is_sum else 'most'} {RATE_LIMIT:g} with scaling {self.scaling}"
        fix = "set scaling and learning_rates in the same line of settings"
        return f"dynamic.learning_rates: steps for the other scaling (got {wrong[0]:g}). Expected {wanted}. Fix: {fix}."


# Dicts in a layer of settings, which may set some keys of a section.
BodyPart = Annotated[schema.Options, schema.PartOf(Body, nullable=("context_size",))]
SchedulePart = Annotated[schema.Options, schema.PartOf(Schedule)]
DynamicPart = Annotated[schema.Options, schema.PartOf(Dynamic)]


@dataclass(frozen=True)
class Run:
    """A training run, given by a dataset, a body, a head, a schedule and a seed.

    Attributes:
        data_identity: hash of the corpus; a part of the run_id.
        threads, device, deterministic, graphs: number of CPU threads, device, whether equal bits are required, and
            whether CUDA graphs are used on a GPU (details in `StudyFile`). They are not part of the run_id.
        duplicate_of: name of an earlier model of the study whose run has the same corpus and run_id; empty if there is
            none. Such equal runs are trained once, under the name of the earlier model.
        start: path of the run whose weights a finetuned run starts from; empty if initial weights are sampled.
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

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that affect the result, apart from the seed and the code.

        The keys are `head`, `body` and `schedule` (a dict each), `data_identity` and, for a finetuned run, `start`.
        """
        parts = {key: dataclasses.asdict(getattr(self, key)) for key in ("head", "body", "schedule")}
        return parts | {"data_identity": self.data_identity} | ({"start": self.start} if self.start else {})

    @cached_property
    def code(self) -> str:
        """The fingerprint of the modules that tokenise the corpus and train the model."""
        step = "finetune" if self.start else "train"
        return step_code(step, STEPS["tokenise"], self.body.module, *self.head.modules)

    @cached_property
    def run_id(self) -> str:
        """The first 12 hex digits of the sha256 of settings, seed and code."""
        return digest({**self.settings, "seed": self.seed, "code": self.code})[:12]

    @property
    def path(self) -> str:
        """The path of the run's folder below results/runs.

        The path is `<dataset>/<model>/<seed>-<run_id>`, where <model> is `duplicate_of` if that is set. For a finetuned
        run, the path is `<start>/finetune-<run_id>`, where <start> is the path of the trained run.
        """
        if self.start:
            return f"{self.start}/finetune-{self.run_id}"
        return f"{self.dataset}/{self.duplicate_of or self.model}/{self.seed}-{self.run_id}"

    def value(self, setting: str) -> Any:
        """Return the value of a setting such as `schedule.learning_rate`; of an option of the head, None if absent."""
        part, _, key = setting.partition(".")
        return self.head.options.get(key) if part == "head" else getattr(getattr(self, part), key)

    def to_json(self) -> dict[str, Any]:
        """Return the content of run.json: all attributes, the run_id and the fingerprint of the code."""
        return dataclasses.asdict(self) | {"run_id": self.run_id, "code": self.code}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str = "run.json") -> Self:
        """Return the run that a run.json describes.

        The run_id in the file is ignored, and the returned run computes its own from the current code. The two run_ids
        differ if the code has changed since the file was written.

        Args:
            value: the content of run.json.
            where: location of `value` for error messages.

        Raises:
            UserError: a setting of the body or the schedule is unknown, a setting is missing, or a value is not
                allowed.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        return schema.read(cls, {key: given for key, given in value.items() if key in known}, where)


@dataclass(frozen=True)
class Stages:
    """The settings of finetuning and dynamic evaluation, which may follow the training of a model on a corpus.

    Attributes:
        finetune: schedule of finetuning.
        dynamic: settings of dynamic evaluation.
    """

    finetune: Schedule
    dynamic: Dynamic

    @classmethod
    def of(cls, head: Head, schedule: Schedule, finetune: Mapping[str, Any], dynamic: Mapping[str, Any]) -> Self:
        """Return the settings of the two stages that follow training: finetuning and dynamic evaluation.

        Args:
            head: the head of the model.
            schedule: the schedule of training. Finetuning has the same schedule with two changes. `optimizer` is
                `asgd`, which averages weights from the first update. For heads that are not mixtures,
                `max_length_delta` is FINETUNE_LENGTH_DELTA, so that the longest chunk has `bptt` + 10 tokens.
            finetune: settings that replace those of this finetuning schedule, such as `{"epochs": 100}`.
            dynamic: settings that replace the defaults of `Dynamic`, such as `{"segment": 10}`.
        """
        is_mixture = "components" in head.options
        delta = schedule.max_length_delta if is_mixture else FINETUNE_LENGTH_DELTA
        changes = {"optimizer": "asgd", "max_length_delta": delta, **finetune}
        return cls(dataclasses.replace(schedule, **changes), Dynamic(**dynamic))


@dataclass(frozen=True)
class Evaluation:
    """A dynamic evaluation of `run`, a trained or finetuned run, with the given settings."""

    run: Run
    settings: Dynamic

    @cached_property
    def code(self) -> str:
        """The fingerprint of the modules that compute the dynamic evaluation."""
        return step_code("dynamic", self.run.body.module, *self.run.head.modules)

    @cached_property
    def path(self) -> str:
        """The path of the result below results/runs: `<path of the run>/dynamic-<id>`.

        The id is the first 12 hex digits of a hash of the run, the settings and the code.
        """
        facts = {"run": self.run.run_id, "settings": dataclasses.asdict(self.settings), "code": self.code}
        return f"{self.run.path}/dynamic-{digest(facts)[:12]}"


def canonical_json(value: object) -> str:
    """Return a value as JSON with sorted keys and no spaces, in which 1.0 is written as 1.

    Raises:
        ValueError: the value contains NaN or infinity.
    """
    return json.dumps(_plain_numbers(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain_numbers(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain_numbers(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(child) for child in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def digest(value: object) -> str:
    """Return the sha256 of a value's canonical JSON as 64 hex digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
