"""The rank of somebody's own model: from hidden states and an output layer, or from log-probabilities, in files.

Three ways to the singular values, all by the engine of `spectrum.py`:

* softmax: from the factors; the matrix never exists;
* any other head without weights of its own (gss, sigsoftmax, relu, sigmoid): the matrix is made block by block, by rows
  or by columns, whichever gives the smaller Gram matrix;
* log-probabilities in files: read by rows, and held in memory where there are fewer rows than columns.

Memory is known before anything is computed. Where it is short, random parts of the rows or columns are analysed. That
gives a bound and an estimate: by interlacing (Horn and Johnson, Topics in Matrix Analysis, corollary 3.1.3) no singular
value of a part exceeds that of the whole with the same index, so the whole has at least as many above its tolerance as
any part. Log-probabilities are normalised over all words also where only some columns are analysed.

Suffixes: N or m rows (contexts), V or n columns (words), D width of a hidden state, R x C a block.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from softmax_bottleneck import heads
from softmax_bottleneck import study as config
from softmax_bottleneck.own_model import shards
from softmax_bottleneck.own_model.matrix import Indices, Layer, LayerMatrix, Matrix, Pointwise, StoredMatrix
from softmax_bottleneck.own_model.shards import Floats, Shard
from softmax_bottleneck.ranks import spectra as spectrum
from softmax_bottleneck.ranks.spectra import RankReport, Spectrum
from softmax_bottleneck.store import progress
from softmax_bottleneck.store.errors import DataError, UserError

Say = Callable[[str], None]

UNITS = {"K": 1, "M": 2, "G": 3, "T": 4}
FREE_SHARE = 0.8  # of the free memory, when no limit is given
BASE_BYTES = 400 << 20  # Python with its libraries, and blocks on their way
TORCH_BYTES = 300 << 20  # with its own work arrays
LEAST_SIDE = 256  # a part with fewer rows or columns says nothing
CHECK_SIDE = 1024  # of the block that is written out to check the bound


# --- the question ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Question:
    """What is to be analysed: the keys of workflow/schemas/own-model.schema.yaml."""

    title: str
    hidden: tuple[str, ...]
    weight: tuple[str, ...]
    bias: str | None
    head: str
    log_probs: tuple[str, ...]
    width: int | None
    max_memory: str | None
    repeats: int
    seed: int

    def files(self) -> list[Path]:
        """All files that are read, each once."""
        named = {"hidden": self.hidden, "weight": self.weight, "log_probs": self.log_probs}
        named["bias"] = (self.bias,) if self.bias else ()
        found = [shard.path for what, patterns in named.items() for shard in shards.find(patterns, what)]
        return list(dict.fromkeys(found))


KEYS = frozenset(field.name for field in fields(Question))


def question(given: Mapping[str, Any], where: str) -> Question:
    """The question asked by a mapping; `where` (a file, the command line) stands in messages.

    Raises:
        UserError: an unknown key, a value that is not allowed, or neither a layer nor log-probabilities.
    """
    rules = config.schema("own-model")
    config.validate(given, rules, where)
    values: dict[str, Any] = {key: rule.get("default", []) for key, rule in rules["properties"].items()} | dict(given)
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    asked = Question(**values)
    if bool(asked.log_probs) == bool(asked.hidden) or bool(asked.hidden) != bool(asked.weight):
        raise UserError(f"{where}: give hidden and weight (with bias and head), or log_probs alone")
    if asked.log_probs and (asked.bias or asked.head != "softmax"):
        raise UserError(f"{where}: bias and head belong to hidden and weight; log_probs are what a head gave")
    return asked


def read_question(path: Path) -> Question:
    """The question of a YAML file; the files it names are relative to it."""
    given = config.load_yaml(path)
    config.validate(given, config.schema("own-model"), str(path))
    for key in ("hidden", "weight", "log_probs"):
        given[key] = [str(path.parent / name) for name in given.get(key, [])]
    if given.get("bias"):
        given["bias"] = str(path.parent / given["bias"])
    return question(given, str(path))


def parse_head(text: str) -> tuple[str, dict[str, Any]]:
    """`gss:c=-1.5,k=2.5` as the head's name and all its options, checked (UserError)."""
    name, _, rest = text.partition(":")
    given = {}
    for pair in filter(None, rest.split(",")):
        key, separator, value = pair.partition("=")
        if not separator:
            raise UserError(f"head {text}: expected NAME:OPTION=VALUE,OPTION=VALUE")
        given[key.strip()] = yaml.safe_load(value)
    return name, heads.options(name, given)


def pointwise_of(name: str, options: Mapping[str, Any]) -> Pointwise:
    """g of a head as a function of float arrays.

    Raises:
        UserError: the head has weights of its own (a mixture, a learned function), which hidden states and an output
            matrix do not hold; or torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise UserError(
            f"head {name}: needs torch, which is not installed; only softmax and log_probs do without"
        ) from None
    try:
        module = heads.build_pointwise(name, options)
    except UserError:
        module = None
    if module is None or module.state_dict():
        raise UserError(
            f"head {name}: has weights of its own; write its log-probabilities (head.log_probs) in shards and give"
            " those as log_probs"
        )

    @torch.inference_mode()
    def pointwise(logits_RC: Floats) -> Floats:
        scores: Floats = module(torch.from_numpy(logits_RC)).numpy()
        return scores

    return pointwise


# --- inputs ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Inputs:
    """The files of a question, found and of fitting shapes; nothing large is read yet.

    Attributes:
        m, n: size of the matrix of log-probabilities.
        width: D, or None where nobody said it.
        route: factors (softmax), blocks (another head) or stored (log-probabilities).
        head: name and options.
    """

    asked: Question
    hidden: list[Shard]
    weight: list[Shard]
    bias: list[Shard]
    stored: list[Shard]
    m: int
    n: int
    width: int | None
    route: str
    head: tuple[str, Mapping[str, Any]]

    @property
    def itemsize(self) -> int:
        """Bytes of one number in memory."""
        return shards.dtype_of([*self.hidden, *self.weight, *self.bias, *self.stored]).itemsize

    def halves(self) -> set[str]:
        """Half-precision types among stored log-probabilities, whose rounding is seen as rank."""
        return {shard.dtype for shard in self.stored} & {"float16", "bfloat16"}

    def layer(self) -> Layer:
        """The output layer, read; without a bias its bias is zero."""
        dtype = shards.dtype_of([*self.hidden, *self.weight, *self.bias])
        weight_VD = shards.load(self.weight).astype(dtype, copy=False)
        bias_V = shards.load(self.bias).ravel() if self.bias else np.zeros(self.n)
        return Layer(weight_VD, bias_V.astype(dtype))

    def hidden_states(self, rows: Indices | None) -> Floats:
        """Hidden states [N, D] of some rows or all."""
        dtype = shards.dtype_of([*self.hidden, *self.weight, *self.bias])
        return shards.load(self.hidden, rows).astype(dtype, copy=False)


def inputs(asked: Question) -> Inputs:
    """Find the files of a question and check their shapes.

    Raises:
        UserError, DataError: as `shards.find`; shapes that do not fit are both named.
    """
    if asked.log_probs:
        stored = shards.find(asked.log_probs, "log_probs")
        m, n = sum(shard.rows for shard in stored), stored[0].columns
        return Inputs(asked, [], [], [], stored, m, n, asked.width, "stored", ("log_probs", {}))
    head = parse_head(asked.head)
    hidden, weight = shards.find(asked.hidden, "hidden"), shards.find(asked.weight, "weight")
    bias = shards.find([asked.bias], "bias") if asked.bias else []
    m, n, width = sum(shard.rows for shard in hidden), sum(shard.rows for shard in weight), hidden[0].columns
    if weight[0].columns != width:
        hint = ": is it transposed?" if weight[0].shape[0] == width else ""
        raise DataError(
            f"hidden states of {hidden[0].label} have shape {hidden[0].shape} and the weight {weight[0].label}"
            f" {weight[0].shape}: expected weight [words, {width}]{hint}"
        )
    if bias and math.prod(bias[0].shape) != n:
        raise DataError(f"bias {bias[0].label} has shape {bias[0].shape} beside {n} words: expected ({n},)")
    route = "factors" if head[0] == "softmax" else "blocks"
    return Inputs(asked, hidden, weight, bias, [], m, n, width, route, head)


# --- memory ---------------------------------------------------------------------------------------------------------
def parse_bytes(text: str) -> int:
    """`4GB` (10^9) or `4GiB` (2^30) as bytes."""
    number, unit, binary = re.fullmatch(r"([0-9.]+) ?([KMGT])(i?)B", text).groups()  # type: ignore[union-attr]
    return int(float(number) * (1024 if binary else 1000) ** UNITS[unit])


def free_bytes() -> int:
    """Memory this machine can give now, in bytes; of a container, its limit at most."""
    known = []
    meminfo, limit = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if meminfo.exists():
        found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text(encoding="utf-8"))
        known += [int(found[1]) * 1024] if found else []
    if limit.exists() and (text := limit.read_text(encoding="utf-8").strip()).isdigit():
        known.append(int(text))
    return min(known) if known else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def bytes_needed(given: Inputs, rows: int, columns: int) -> int:
    """Peak memory of analysing a part of this size."""
    width, size = given.width or 0, given.itemsize
    factors = (rows + given.n) * width
    if given.route == "factors":
        # H and W; W in float64; both factors in float64 with two columns more.
        return BASE_BYTES + size * factors + 8 * given.n * width + 8 * (factors + 2 * (rows + given.n))
    side = min(rows, columns)
    # The Gram matrix; the rows held until the engine knows which one it needs, and as much lost between them.
    gram = 8 * side * side + size * side * side
    if given.route == "blocks":
        return BASE_BYTES + TORCH_BYTES + size * (factors + columns * width) + gram
    return BASE_BYTES + gram + (size * rows * columns if rows < columns else 0)


@dataclass(frozen=True)
class Plan:
    """Which part is analysed, and its memory: all of it unless that is short."""

    rows: int
    columns: int
    needed: int
    whole: int
    limit: int

    def sampled(self, given: Inputs) -> bool:
        """Whether it is a part only."""
        return (self.rows, self.columns) != (given.m, given.n)


def plan(given: Inputs) -> Plan:
    """The largest part that fits: all, else as much as fits of the side that costs, else of both sides.

    Raises:
        UserError: not even a small part fits; the message says what would.
    """
    asked = given.asked.max_memory
    limit = parse_bytes(asked) if asked else int(FREE_SHARE * free_bytes())
    whole = bytes_needed(given, given.m, given.n)
    by_row = given.route == "factors" or given.m < given.n

    def part(side: int, both: bool) -> tuple[int, int]:
        rows = min(side, given.m) if by_row or both else given.m
        return rows, min(side, given.n) if both or not by_row else given.n

    def largest(both: bool) -> int:
        return _largest(lambda side: bytes_needed(given, *part(side, both)) <= limit, max(given.m, given.n))

    for both in (False, True):
        side = largest(both)
        if side >= min(LEAST_SIDE, given.m, given.n):
            rows, columns = part(side, both)
            return Plan(rows, columns, bytes_needed(given, rows, columns), whole, limit)
    least = bytes_needed(given, min(LEAST_SIDE, given.m), min(LEAST_SIDE, given.n))
    raise UserError(f"max_memory: {gib(limit)} is too little even for a small part: at least {gib(least)} is needed")


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` for which a condition holds that large numbers break; 0 if none."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


# --- the analysis ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bound:
    """Rank at most D + 2, as of every softmax head (Yang et al. 2018), tried where the computation does not assume it.

    Attributes:
        limit: D + 2.
        rank: Press rank of `where`, or None where that is too small to exceed the limit, or too coarsely rounded.
    """

    limit: int
    rank: int | None
    where: str

    @property
    def holds(self) -> bool | None:
        """None where it was not checked."""
        return None if self.rank is None else self.rank <= self.limit


@dataclass(frozen=True)
class Sample:
    """What parts of a matrix say of the whole; see docs/own-model.md.

    Attributes:
        rows, columns: size of a part, of `m` x `n`.
        ranks: Press rank of each part, by its own tolerance.
        half_size, half_rank: the same of a part with half the sampled rows or columns.
        at_least: singular values of a part above the whole's tolerance (x 1.01): the whole has no fewer.
        at_most: what theory or size allow.
    """

    rows: int
    columns: int
    m: int
    n: int
    ranks: tuple[int, ...]
    half_size: tuple[int, int]
    half_rank: int
    at_least: int
    at_most: int

    @property
    def mean(self) -> float:
        """Mean Press rank of the parts."""
        return statistics.fmean(self.ranks)

    @property
    def deviation(self) -> float:
        """Sample standard deviation of the parts' ranks."""
        return statistics.stdev(self.ranks)

    @property
    def saturated(self) -> bool:
        """Whether twice the sample found less than one per cent more: then the whole has probably little more."""
        return self.mean <= 1.01 * self.half_rank


@dataclass(frozen=True)
class Result:
    """Spectrum and ranks of a model, of the first part where it was sampled."""

    given: Inputs
    plan: Plan
    spectrum: Spectrum
    ranks: RankReport
    bound: Bound | None
    sample: Sample | None
    seconds: float

    def notes(self) -> list[str]:
        """What a reader must know beside the numbers."""
        found = [self.ranks.note] if self.ranks.note else []
        halves = self.given.halves()
        if halves:
            found.append(
                f"the log-probabilities were stored as {' and '.join(sorted(halves))}: their rounding lies far above"
                " the tolerance and is counted as rank; export float32, or hidden states and weights (in any precision)"
            )
        if (
            self.sample is None
            and self.spectrum.sigma_max > 0
            and self.ranks.press.rank == min(self.spectrum.m, self.spectrum.n)
        ):
            found.append("full rank: more contexts (or words) might show a higher one")
        return found


def analyse(asked: Question, say: Say) -> Result:
    """Singular values and ranks of the model asked about.

    Raises:
        UserError, DataError: one line that names the file and what is wrong with it.
    """
    started = time.monotonic()
    given = inputs(asked)
    pointwise = pointwise_of(*given.head) if given.route == "blocks" else None
    chosen = plan(given)
    say(_announcement(given, chosen))
    if not chosen.sampled(given):
        found = _spectrum(given, None, None, pointwise, say)
        return _result(given, chosen, found, None, started)
    found, sample = _sampled(given, chosen, pointwise, say)
    return _result(given, chosen, found, sample, started)


def _announcement(given: Inputs, chosen: Plan) -> str:
    whole = f"{given.m} x {given.n} log-probabilities need {gib(chosen.whole)} of memory"
    if not chosen.sampled(given):
        return f"{whole}; the limit is {gib(chosen.limit)}"
    part = f"{given.asked.repeats} random parts of {chosen.rows} x {chosen.columns} in {gib(chosen.needed)}"
    return f"{whole}, more than the limit of {gib(chosen.limit)}: {part} instead"


def _result(given: Inputs, chosen: Plan, found: Spectrum, sample: Sample | None, started: float) -> Result:
    ranks = spectrum.rank_report(found)
    return Result(given, chosen, found, ranks, _bound(given, ranks), sample, time.monotonic() - started)


def _spectrum(
    given: Inputs, rows: Indices | None, columns: Indices | None, pointwise: Pointwise | None, say: Say
) -> Spectrum:
    """The spectrum of a part (None: all) by the route of its head."""
    if given.route == "stored":
        return gram_spectrum(StoredMatrix(given.stored, rows, columns), say)
    hidden_ND, layer = given.hidden_states(rows), given.layer()
    if given.route == "blocks":
        tell = Meter(say, "log Z of rows", len(hidden_ND))
        return gram_spectrum(LayerMatrix(hidden_ND, layer, pointwise, columns, tell), say)
    log_z_N = spectrum.log_normalisers(hidden_ND, layer.weight_VD, layer.bias_V)
    if columns is not None:
        layer = Layer(layer.weight_VD[columns], layer.bias_V[columns])
    return spectrum.factored_singular_values(hidden_ND, layer.weight_VD, layer.bias_V, log_z_N)


def gram_spectrum(matrix: Matrix, say: Say) -> Spectrum:
    """Singular values by the smaller of the two Gram matrices."""
    m, n = matrix.shape
    turned = m < n
    side, length = min(m, n), max(m, n)
    tell = Meter(say, "Gram matrix, columns" if turned else "Gram matrix, rows", length)

    def told(blocks: Iterator[Floats]) -> Iterator[Floats]:
        yield from blocks
        if side > CHECK_SIDE:
            say(f"eigenvalues of a {side} x {side} matrix; this may take longer than the Gram matrix did")

    # The engine makes the Gram matrix of the columns it is given: of the transpose where rows are fewer.
    found = spectrum.gram_singular_values(
        told(matrix.by_columns() if turned else matrix.by_rows()), side, progress=tell
    )
    if not turned:
        return found
    return replace(found, m=m, n=n, method=found.method.replace("gram-of-columns", "gram-of-rows"))


def _bound(given: Inputs, ranks: RankReport) -> Bound | None:
    if given.width is None or given.route == "blocks":
        return None
    limit = given.width + 2
    if given.route == "stored":
        checkable, where = (
            min(ranks.m, ranks.n) > limit and not given.halves(),
            f"the {ranks.m} x {ranks.n} log-probabilities read",
        )
        return Bound(limit, ranks.press.rank if checkable else None, where)
    rows, words = min(given.m, CHECK_SIDE), min(given.n, CHECK_SIDE)
    where = f"{rows} x {words} log-probabilities written out, by SVD"
    if limit >= min(rows, words):
        return Bound(limit, None, where)
    some = np.linspace(0, given.m - 1, rows).astype(np.intp)
    layer, columns = given.layer(), np.linspace(0, given.n - 1, words).astype(np.intp)
    matrix = LayerMatrix(given.hidden_states(some), layer, None, columns, lambda count: None)
    found = spectrum.dense_singular_values(matrix.block(slice(None), slice(None)))
    return Bound(limit, spectrum.rank_report(found).press.rank, where)


# --- parts of a matrix ----------------------------------------------------------------------------------------------
def _sampled(given: Inputs, chosen: Plan, pointwise: Pointwise | None, say: Say) -> tuple[Spectrum, Sample]:
    rng = np.random.default_rng(given.asked.seed)
    size = (chosen.rows, chosen.columns)
    half = tuple(part if part == whole else part // 2 for part, whole in zip(size, (given.m, given.n), strict=True))

    def part(rows: int, columns: int, name: str) -> Spectrum:
        say(f"{name}: {rows} x {columns}")
        chosen_rows, chosen_columns = _draw(rng, given.m, rows), _draw(rng, given.n, columns)
        return _spectrum(given, chosen_rows, chosen_columns, pointwise, say)

    parts = [part(*size, f"part {index + 1} of {given.asked.repeats}") for index in range(given.asked.repeats)]
    smaller = part(half[0], half[1], "half the part, to see whether the rank still grows")
    sample = Sample(
        *size,
        m=given.m,
        n=given.n,
        ranks=tuple(_press(found) for found in parts),
        half_size=(half[0], half[1]),
        half_rank=_press(smaller),
        at_least=max(lower_bound(found, given.m, given.n) for found in parts),
        at_most=min(given.m, given.n, (given.width or 0) + 2 if given.route == "factors" else given.n),
    )
    return parts[0], sample


def _draw(rng: np.random.Generator, whole: int, part: int) -> Indices | None:
    return None if part == whole else np.sort(rng.choice(whole, part, replace=False)).astype(np.intp)


def _press(found: Spectrum) -> int:
    return spectrum.press_rank(found.sigma, found.m, found.n).rank


def lower_bound(part: Spectrum, m: int, n: int) -> int:
    """How many singular values of the whole m x n matrix are above its Press tolerance, at least.

    Interlacing makes the part's singular values lower bounds of the whole's. The whole's tolerance needs its largest
    singular value: estimated as the part's, scaled by the square root of the share of the entries (the direction that
    carries it, the mean log-probability of each word, is spread over all of them), with one per cent to spare.
    """
    sigma_max = part.sigma_max * math.sqrt(m * n / (part.m * part.n))
    tolerance = spectrum.press_rank([sigma_max], m, n).tolerance
    return int((part.sigma > tolerance * (1 + spectrum.SENSITIVITY)).sum())


# --- progress -------------------------------------------------------------------------------------------------------
class Meter:
    """Progress of one pass: in place on a terminal, else a line now and then through `say`."""

    def __init__(self, say: Say, what: str, total: int) -> None:
        self._say = say
        self._what = what
        self._total = total
        self._started = self._last = time.monotonic()
        self._watched = sys.stderr.isatty()

    def __call__(self, count: int) -> None:
        """`count` of the total are done."""
        now = time.monotonic()
        left = (now - self._started) * (self._total - count) / count
        text = (
            f"{self._what}: {count} of {self._total} ({100 * count // self._total} %), {progress.duration(left)} left"
        )
        if self._watched:
            print(f"\r\x1b[K{text}", end="\n" if count >= self._total else "", file=sys.stderr, flush=True)
        elif now - self._last >= progress.LOG_INTERVAL_S:
            self._last = now
            self._say(text)
