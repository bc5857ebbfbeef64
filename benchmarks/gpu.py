"""Measure speed and correctness on an NVIDIA GPU in pieces of a few minutes; write one JSON file per kind of GPU.

export CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONPATH=workflow
python benchmarks/gpu.py --out FOLDER   # measures the pieces that are not in the file yet; repeat it to resume

--list shows the pieces and which are done. --only NAME keeps to the pieces whose names begin with NAME. --dry runs
them with small sizes on a CPU and writes dry.json, only with --out. A piece is written as soon as it is measured. A
piece that fails is written with its error message, and counts as done. The exit code is 1 if pieces are left or failed.

Needed besides torch: annotated-types numpy psutil pydantic pydantic-core pyyaml safetensors scipy typing-extensions
typing-inspection. Where there is no network, bring wheels (for Python 3.12: pip download --only-binary=:all:
--python-version 3.12 --dest wheels ...).
"""

import argparse
import functools
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from cases import Case, cases, endless, head_contenders, plain_step, shrunk, trainer
from softmax_bottleneck.heads.matmul import NEED_TF32, PRECISIONS, tf32
from softmax_bottleneck.jobs.numerics import numerics
from softmax_bottleneck.ranks import DeviceGram, gram_singular_values
from softmax_bottleneck.store import artefacts
from timing import MIB, Timing, provenance, race, show

RESULTS = Path(__file__).parent / "results"
REPETITIONS = 7
BLOCK = 20  # updates between two readings of the clock, so that the host can run ahead of the device
UPDATES_PER_EPOCH = {  # expected, at the published chunk lengths
    **dict.fromkeys(("ptb/softmax", "ptb/sigsoftmax", "ptb/gss", "ptb/lms-plif"), 680),
    **dict.fromkeys(("ptb/mos", "ptb/moc"), 1135),
    **dict.fromkeys(("wikitext-2/softmax", "wikitext-2/sigsoftmax", "wikitext-2/gss", "wikitext-2/lms-plif"), 383),
    **dict.fromkeys(("wikitext-2/mos", "wikitext-2/moc"), 2040),
}
SIZES = {"ptb": (82_429, 10_000), "wikitext-2": (33_320, 33_278)}  # contexts and words of the published matrices
DRY_SIZE = (9_000, 200)  # three chunks, and too many entries for an SVD in memory
SLICES = (1, 2, 5, 7)  # of a chunk
WIDTHS = (8_192, 16_384, 24_576, 33_278)  # of symmetric matrices; the last is the vocabulary of WikiText-2


# --- where it runs --------------------------------------------------------------------------------------------------
class Place:
    """The device, and whether everything is measured in small."""

    def __init__(self, dry: bool, quick: bool = False) -> None:
        self.dry, self.device = dry, "cpu" if dry else "cuda"
        self.calls = 1 if dry else 5 if quick else BLOCK
        self.repetitions = 1 if dry else 3 if quick else REPETITIONS
        self.precisions = tuple(one for one in PRECISIONS if not (dry and one in NEED_TF32))  # a CPU has no TF32

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def numerics(self) -> AbstractContextManager[object]:
        """Return the numerics settings of a training step as a context."""
        shipped = SimpleNamespace(threads=torch.get_num_threads(), deterministic=True)
        return numerics(shipped, torch.device(self.device))

    def block(self, run: Callable[[], object], shipped: bool = True) -> Callable[[], None]:
        """Return a function that makes `self.calls` calls, by default with a training step's numerics."""

        def block() -> None:
            with self.numerics() if shipped else nullcontext():
                for _ in range(self.calls):
                    run()

        return block

    def race(self, blocks: dict[str, Callable[[], None]], repetitions: int) -> dict[str, Timing]:
        """Time the blocks; the result is per call."""
        return {
            name: Timing(t.median / self.calls, t.low / self.calls, t.high / self.calls, t.repetitions)
            for name, t in race(blocks, repetitions, self.wait).items()
        }

    def case(self, name: str) -> Case:
        return shrunk(cases()[name]) if self.dry else cases()[name]

    def peak_mib(self, run: Callable[[], object]) -> float | None:
        """Return the peak of tensor memory during a call, above what was allocated before; None on a CPU."""
        if self.device != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        self.wait()
        return round((torch.cuda.max_memory_allocated() - before) / MIB, 1)


# --- pieces ---------------------------------------------------------------------------------------------------------
def head(place: Place, name: str) -> list[dict[str, Any]]:
    """Time loss and gradients of one head: A, B and ours, in float32 and with TF32."""
    rows = []
    for fast in (False, True):
        with tf32(fast):
            contenders = head_contenders(place.case(name), place.device)
            for variant, timing in race(contenders, place.repetitions, place.wait).items():
                peak = place.peak_mib(contenders[variant])
                rows.append({"case": name, "variant": variant, "tf32": fast, **timing.row(), "peak_mib": peak})
        del contenders
    return rows


def step(place: Place, name: str) -> list[dict[str, Any]]:
    """Time whole training steps and derive seconds per epoch at the expected number of updates.

    A and B exist in float32 and TF32 only. The noise of a precision is the largest difference of its loss from that of
    float32 in six updates from one seed.
    """
    case, rows, losses = place.case(name), [], {}
    for precision in place.precisions:
        ours = trainer(case, place.device, precision)
        losses[precision] = losses_nats(place, ours)
        noise = {"largest_loss_difference_nats": largest_gap(losses[precision], losses["fp32"])}
        contenders = {"ours": place.block(endless(ours))}
        if precision in ("fp32", "tf32"):
            for variant in "AB":
                contenders[variant] = place.block(plain_step(case, variant == "A", place.device), shipped=False)
        with tf32(precision == "tf32"):
            timings = place.race(contenders, place.repetitions)
        for variant, timing in timings.items():
            row = {"case": name, "variant": variant, "precision": precision, **timing.row()}
            row |= noise if variant == "ours" else {}
            rows.append(row | {"s_per_epoch": round(timing.median * UPDATES_PER_EPOCH[name], 2)})
    return rows


def graph(place: Place, name: str) -> list[dict[str, Any]]:
    """Time updates without and with CUDA graphs, and compare the resulting weights bit for bit."""
    trainers = {
        key: trainer(place.case(name), place.device, graphs=key == "replayed") for key in ("called", "replayed")
    }
    blocks = {key: place.block(endless(one)) for key, one in trainers.items()}
    timings = place.race(blocks, 2 * place.repetitions)
    weights = [[parameter.detach() for parameter in one.model.parameters()] for one in trainers.values()]
    same = all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
    facts = {"recorded": bool(trainers["replayed"].replayed), "refused": trainers["replayed"].graphs_refused}
    return [{"case": name, "variant": key, **t.row(), "same_bits": same, **facts} for key, t in timings.items()]


def wavefront(place: Place, name: str) -> list[dict[str, Any]]:
    """Time updates with the chunk in 1 to 7 pieces, layer l on one while layer l + 1 is on the one before.

    The largest difference of the loss in six updates from one seed says whether the streams wait where they must.
    """
    rows: list[dict[str, Any]] = []
    for precision in ("fp32",) if place.dry else ("fp32", "tf32"):
        trainers, losses = {}, {}
        for slices in SLICES:
            ours = trainers[slices] = trainer(place.case(name), place.device, precision)
            ours.model.body.slices = slices
            losses[slices] = losses_nats(place, ours)
        timings = place.race({str(s): place.block(endless(ours)) for s, ours in trainers.items()}, place.repetitions)
        for slices, ours in trainers.items():
            gap = largest_gap(losses[slices], losses[1])
            facts = {"slices": slices, "precision": precision, "largest_loss_difference_nats": gap}
            rows.append({"case": name, **facts, "refused": ours.graphs_refused, **timings[str(slices)].row()})
    return rows


def losses_nats(place: Place, ours: Any, updates: int = 6) -> list[float]:
    """Do the first updates of a trainer and return their losses."""
    sums = [ours.tally.block_sum.item()]
    with place.numerics():
        for _ in range(updates):
            ours.update()
            sums.append(ours.tally.block_sum.item())
    return list(np.diff(sums))


def largest_gap(losses: list[float], baseline: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(losses, baseline, strict=True))


def refuse_cpu(_: object) -> Any:
    """Raise an error where the package would let the CPU compute the eigenvalues, which can take hours."""
    raise RuntimeError("the eigenvalues fail a check: trace, Frobenius norm or inertia")


def eigenvalues(place: Place, size: str) -> list[dict[str, Any]]:
    """Time a float64 Gram matrix (per 4,096 rows) and its eigenvalues, including the checks that they must pass."""
    n = 200 if place.dry else int(size)
    rows_RN = np.random.default_rng(1).standard_normal((4096, n), dtype=np.float32)
    gram, seconds = DeviceGram(n, refuse_cpu, torch=torch, device=place.device), {}
    for key, work in {
        "gram_s_per_4096_rows": lambda: gram.add(rows_RN),
        "eigenvalues_s": lambda: gram.spectrum(len(rows_RN), n, "gram-of-columns", "float32"),
    }.items():
        place.wait()
        began = time.perf_counter()
        work()
        place.wait()
        seconds[key] = round(time.perf_counter() - began, 3)
    return [{"n": n, **seconds}]


def spectrum(place: Place, corpus: str) -> list[dict[str, Any]]:
    """Time the spectrum of a matrix of log-probabilities of published size, as `measure` computes it."""
    m, n = DRY_SIZE if place.dry else SIZES[corpus]
    head_VD = torch.randn(n, 16, device=place.device)

    def chunks() -> Iterator[torch.Tensor]:
        for start in range(0, m, 4096):
            h_RD = torch.randn(min(4096, m - start), 16, device=place.device)
            yield torch.log_softmax(h_RD @ head_VD.T, 1).sigmoid()  # of full rank

    began = time.perf_counter()
    make = functools.partial(DeviceGram, solver=refuse_cpu, torch=torch, device=place.device)
    found = gram_singular_values(chunks(), n, make_gram=make)
    place.wait()
    seconds = time.perf_counter() - began
    return [{"corpus": corpus, "m": m, "n": n, "s": round(seconds, 2), "method": found.method}]


def waits(place: Place, name: str) -> list[dict[str, Any]]:
    """Run an update in which waiting for the device is an error; repeat this, and compare the weights bit for bit."""
    results = []
    for _ in range(2):
        ours = trainer(place.case(name), place.device, graphs=False)
        with place.numerics():
            ours.update()
            if place.device == "cuda":
                torch.cuda.set_sync_debug_mode("error")
            try:
                ours.update()
            finally:
                if place.device == "cuda":
                    torch.cuda.set_sync_debug_mode("default")
        results.append([parameter.detach().clone() for parameter in ours.model.parameters()])
    same = all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    return [{"case": name, "waits": False, "same_bits_twice": same}]


Piece = Callable[[Place], list[dict[str, Any]]]


def pieces() -> dict[str, Piece]:
    """Return all pieces by name, the most informative first."""
    found: dict[str, Piece] = {
        f"waits {name}": functools.partial(waits, name=name) for name in cases() if name.startswith("ptb/")
    }
    found |= {f"graph {name}": functools.partial(graph, name=name) for name in ("ptb/softmax", "wikitext-2/mos")}
    found |= {f"wavefront {name}": functools.partial(wavefront, name=name) for name in ("ptb/softmax", "ptb/mos")}
    found |= {f"step {name}": functools.partial(step, name=name) for name in UPDATES_PER_EPOCH}
    found |= {f"spectrum {corpus}": functools.partial(spectrum, corpus=corpus) for corpus in SIZES}
    found |= {f"eigenvalues {n}": functools.partial(eigenvalues, size=str(n)) for n in WIDTHS}
    return found | {f"head {name}": functools.partial(head, name=name) for name in cases()}


# --- the file -------------------------------------------------------------------------------------------------------
def measured(piece: Piece, place: Place) -> dict[str, Any]:
    """Return the rows of a piece, or the error that it raised."""
    began = time.perf_counter()
    try:
        rows, problem = piece(place), None
    except (RuntimeError, ValueError) as error:  # out of memory, a solver's limits, an operation without a kernel
        rows, problem = [], f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if place.device == "cuda":
        torch.cuda.empty_cache()
    return {"rows": rows, "problem": problem, "s": round(time.perf_counter() - began, 1)}


def work(options: argparse.Namespace, place: Place) -> bool:
    """Measure piece after piece while there is time; return True if pieces are left or have failed."""
    gpu = "dry" if place.dry else torch.cuda.get_device_name()
    folder = options.out or (None if place.dry else RESULTS)
    path = folder and folder / f"{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {"pieces": {}}
    wanted = {name: piece for name, piece in pieces().items() if name.startswith(options.only)}
    left = [name for name in wanted if name not in found["pieces"]]
    if options.list:
        print("\n".join(f"{'    ' if name in left else 'done'}  {name}" for name in wanted))
        return False
    began = time.monotonic()
    while left and time.monotonic() - began < 60 * options.minutes:
        name = left.pop(0)
        result = found["pieces"][name] = measured(wanted[name], place)
        for row in result["rows"]:
            show({"piece": name} | row)
        print(f"{name}: {result['problem'] or 'done'} ({result['s']} s)", flush=True)
        if path:
            artefacts.write_json(path, found | {"provenance": provenance(gpu=gpu, cuda=torch.version.cuda)})
    failed = [name for name in wanted if found["pieces"].get(name, {}).get("problem")]
    print(f"{len(left)} pieces left, {len(failed)} failed", flush=True)
    return bool(left or failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="in small on the CPU")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--list", action="store_true", help="the pieces, and which are done")
    parser.add_argument("--only", default="", metavar="NAME", help="pieces whose name begins so")
    parser.add_argument("--minutes", type=float, default=9.0, help="no piece begins later than this")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the file is and goes (default: results here)")
    options = parser.parse_args()
    if not options.dry and not torch.cuda.is_available():
        sys.exit("gpu.py: PyTorch sees no GPU here; --dry runs every piece in small on the CPU")
    sys.exit(work(options, Place(options.dry, options.quick)))


if __name__ == "__main__":
    main()
