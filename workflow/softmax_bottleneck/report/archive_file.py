"""The content of an archive file: its schema, and reading within limits on size, depth and numbers.

An archive may come from anyone. Everything that the report uses from it is checked here, before anything is computed,
so that a wrong archive ends in one line that names the file and the key.
"""

import gzip
import io
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, NotRequired, TypeVar

import pydantic
from pydantic import Field
from typing_extensions import TypedDict

from softmax_bottleneck.records.records import STATES
from softmax_bottleneck.report.claims.rules import VERDICTS
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.study import Contrasts, read, schema

ENDING = ".json.gz"
MAX_BYTES = 1 << 24  # of the JSON text; the largest archive of the repository has 3 MB
MAX_DEPTH, MAX_TEXT, MAX_INTEGER = 12, 10_000, 2**63 - 1
FIX = "Fix: write the archive again with `archive --study`, and do not edit it"
MAX_VALUE = 1e30  # of a measured number; sums of larger numbers overflow

Item = TypeVar("Item")
Column = Annotated[list[Item], pydantic.FailFast()]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Scalar = str | schema.Flag | schema.Integer | schema.Number | None
Count = Annotated[schema.Integer, Field(ge=0)] | Annotated[schema.Number, Field(ge=0)] | None
OPEN = pydantic.ConfigDict(extra="allow", allow_inf_nan=False)  # later versions may add keys


# --- tables ---------------------------------------------------------------------------------------------------------
@schema.section
class Columns:
    """The columns of a table, which have equal lengths."""

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in vars(self).items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns are no table: {', '.join(f'{name} has {n}' for name, n in lengths.items())}")


@schema.section
class Rows(Columns):
    """The columns of `Records.rows` except `source` and `std`; a value per measured number."""

    table: Column[Text]
    dataset: Column[Text]
    model: Column[Text]
    condition: Column[Text]
    metric: Column[Text]
    value: Column[Annotated[schema.Number, Field(ge=-MAX_VALUE, le=MAX_VALUE)]]
    n: Column[Annotated[schema.Integer, Field(ge=0)] | None]
    seed: Column[schema.Seed]
    run_id: Column[Text]


@schema.section
class States(Columns):
    """The columns of `Records.states`; a value per run."""

    dataset: Column[Text]
    model: Column[Text]
    label: Column[Text]
    seed: Column[schema.Seed]
    run_id: Column[Text]
    path: Column[Text]
    state: Column[Literal[STATES]]  # type: ignore[valid-type]  # the literals are in one place
    reason: Column[Text]
    epochs: Column[Count]
    planned_epochs: Column[Count]
    best_epoch: Column[Count]
    switch_epoch: Column[Count]
    wall_s: Column[Count]
    interruptions: Column[Count]
    hardware: Column[Text]
    mixed_hardware: Column[schema.Flag | None]


@schema.section
class Stages(States):
    """The columns of `Records.stages`; a value per finetuning, dynamic evaluation or run of a search."""

    stage: Column[Text]


# --- claims, environments, predictions ------------------------------------------------------------------------------
@pydantic.with_config(OPEN)
class Number(TypedDict):
    """A number behind a verdict: what it is, its text, the numbers of its units, its value and interval."""

    what: Text
    text: Text
    n: list[Annotated[schema.Integer, Field(ge=0)]]
    value: schema.Number | None
    low: schema.Number | None
    high: schema.Number | None


@pydantic.with_config(OPEN)
class Premise(TypedDict):
    """A premise of a verdict, and whether it holds."""

    code: Text
    text: Text
    holds: schema.Flag


@pydantic.with_config(OPEN)
class Claim(TypedDict):
    """The verdict on a claim for one corpus, as `Entry.to_json` returns it."""

    id: schema.Name
    source: Text
    statement: Text
    where: Text
    criterion: Text
    dataset: schema.Name
    verdict: Literal[VERDICTS]  # type: ignore[valid-type]  # the literals are in one place
    reason: Text
    numbers: list[Number]
    premises: list[Premise]


@pydantic.with_config(OPEN)
class Hardware(TypedDict, total=False):
    """The machine of a run."""

    cpu: Text


@pydantic.with_config(OPEN)
class Commit(TypedDict):
    """The git commit of the code."""

    commit: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]


@pydantic.with_config(OPEN)
class Environment(TypedDict):
    """The git commit, versions and hardware of some of the runs."""

    git: Commit
    versions: dict[str, Text]
    hardware: Hardware
    deterministic: NotRequired[schema.Flag]


@pydantic.with_config(OPEN)
class Prediction(TypedDict):
    """The words that a run predicts at a position of the test text."""

    context: schema.Integer
    group: Text
    target: Text
    text: NotRequired[Text]
    top: list[dict[str, Scalar]]


# --- searches -------------------------------------------------------------------------------------------------------
@pydantic.with_config(OPEN)
class ArchivedTrial(TypedDict):
    """A point of a search with what the search minimised (`Choice.by`); null if a run diverged."""

    point: dict[str, Scalar]
    valid_ppl: NotRequired[Annotated[schema.Number, Field(ge=1)] | None]
    steps: NotRequired[Annotated[schema.Number, Field(ge=1)] | None]


@pydantic.with_config(OPEN)
class Choice(TypedDict):
    """The choice that ended the last round of a search (`steps.choose`)."""

    dataset: schema.Name
    model: schema.Name
    by: Text
    curve: list[ArchivedTrial]
    best: dict[str, Scalar]
    interior: schema.Flag
    chosen: dict[str, Scalar] | None


# --- the file -------------------------------------------------------------------------------------------------------
@schema.section
class StoredRun:
    """A run on a published corpus, as an archive file stores it.

    Attributes:
        name: the study with model and seed, such as `demo-mos-1`; unique among the archive's runs on one corpus.
        run: the settings and the run_id, as in the run's run.json.
        history: the log, one entry per epoch.
        epoch_ranks: one entry per epoch at which ranks were measured; epoch 0 is before training.
        spectrum: pairs (index from 1, singular value) of the log-probability matrix, for a subset of the indices.
        provenance: commit, versions and hardware of the run, if these are known.
    """

    name: schema.Name
    run: schema.Options
    history: tuple[dict[str, Scalar], ...] = ()
    epoch_ranks: tuple[dict[str, Scalar], ...] = ()
    spectrum: tuple[tuple[schema.Positive, Annotated[schema.Number, Field(ge=0)]], ...] = ()
    provenance: schema.Options = schema.EMPTY

    def __post_init__(self) -> None:
        if self.spectrum and self.spectrum[0][1] <= 0:
            raise ValueError("spectrum: the largest singular value is 0. Expected a positive number")


@schema.section
class ArchiveFile:
    """The content of report/evidence/studies/<study>-<hardware>.json.gz.

    Attributes:
        study: the name of the study.
        title: the title of the study.
        hardware: the GPUs and processors of the runs as text, such as `AMD EPYC (AVX2)`.
        digest: the hash of the study's settings.
        command: the shell command that recomputes the study in a checkout of the git commit in `environments`.
        corpora: {name of a corpus: its title}.
        environments: the git commits, versions and hardware of the runs.
        rows: the measured numbers.
        states: the runs.
        stages: the finetunings, dynamic evaluations and runs of searches.
        claims: the list `claims` of claims.json: a dict per claim and corpus, with the verdict.
        runs: the runs on published corpora.
        settings: {corpus: {model: content of run.json of its first run}}; empty in older archives.
        predictions: {path of a run: the words that the run predicts at the positions that the papers show}.
        tuned: the last choice for each corpus and model that the study tunes.
        contrasts: the comparisons that the study names beforehand.
        missing: what has not finished, in an archive of an unfinished study: paths of runs, stages and choices.
    """

    study: schema.Name
    title: schema.Line
    hardware: schema.Line
    digest: Annotated[str, Field(pattern="^[0-9a-f]{12,64}$")]
    command: schema.Line
    corpora: dict[str, str]
    environments: Annotated[list[Environment], Field(min_length=1)]
    rows: Rows
    states: States
    stages: Stages
    claims: list[Claim]
    runs: tuple[StoredRun, ...] = ()
    settings: dict[str, dict[str, schema.Options]] = schema.EMPTY
    predictions: dict[str, list[Prediction]] = schema.EMPTY
    tuned: tuple[Choice, ...] = ()
    contrasts: Contrasts | None = None
    missing: tuple[Text, ...] = ()


def parse(content: object, where: str) -> ArchiveFile:
    """Return the content of an archive, checked; `where` names the file in messages.

    Raises:
        UserError: a key is missing or unknown, or a value is not allowed.
    """
    if fault := _limit_exceeded(content):
        raise UserError(f"{where}: {fault.lstrip('.')}. {FIX}")
    try:
        return read(ArchiveFile, content, where)
    except UserError as error:
        raise UserError(f"{error}. {FIX}") from None


def load(path: Path) -> ArchiveFile:
    """Return the content of an archive file, checked.

    Raises:
        DataError: the file or its hash file is missing or damaged, or the content is no JSON or too large.
        UserError: the content does not fit the format of `ArchiveFile`.
    """
    if not path.name.endswith(ENDING) or not path.is_file() or not artefacts.sidecar(path).is_file():
        known = f"an archive {path.name} with its hash file {artefacts.sidecar(path).name}"
        advice = "copy both from where `archive --study` wrote them"
        raise DataError(f"{path}: the file or its hash file is missing. Expected {known}. Fix: {advice}")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
        with gzip.GzipFile(fileobj=io.BytesIO(artefacts.read_bytes(path))) as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES >> 20} MiB when unpacked")
        content = json.loads(text, parse_constant=_refuse)
    except (OSError, EOFError, ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{path}: no archive of a study ({reason:.200}). {FIX}") from None
    return parse(content, str(path))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _limit_exceeded(value: object, depth: int = 0) -> str:
    """Return ".<key>.<key>: <limit>" for the first value that exceeds a limit, or an empty text."""
    if isinstance(value, str):
        return f": a text of {len(value)} characters, at most {MAX_TEXT} are allowed" if len(value) > MAX_TEXT else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f": {value} is not a finite number"
    if isinstance(value, int):
        return f": an integer beyond {MAX_INTEGER}" if abs(value) > MAX_INTEGER else ""
    if not isinstance(value, dict | list | tuple):
        return ""
    if depth == MAX_DEPTH:
        return f": nested deeper than {MAX_DEPTH} levels"
    children: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    faults = ((key, _limit_exceeded(child, depth + 1)) for key, child in children)
    return next((f".{key!s:.60}{fault}" for key, fault in faults if fault), "")
