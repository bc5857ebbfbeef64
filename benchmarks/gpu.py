"""The first half hour on an NVIDIA GPU: three commands of at most nine minutes each, results as JSON in one folder.

export CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONPATH=workflow
python benchmarks/gpu.py --part 1 --out FOLDER   # pieces not in the file yet, most telling first; call it again
python benchmarks/gpu.py --part 2 --out FOLDER   # Benka's Transformers on Penn Treebank, six heads side by side
python benchmarks/gpu.py --part 3 --out FOLDER   # the same with MoS and LMS-PLIF

--list shows the pieces of part 1 and which are done, --only NAME makes those whose name begins so, --dry does all of it
in small on the CPU (part 1 writes nothing then). A piece is written as soon as it is measured; one that fails leaves a
word, and the next begins. Parts 2 and 3 work in results/ of the folder they are called in, and go on there.

Needed besides torch: annotated-types numpy psutil pydantic pydantic-core pyyaml safetensors scipy typing-extensions
typing-inspection. Where there is no network, bring wheels (for Python 3.12: pip download --only-binary=:all:
--python-version 3.12 --dest wheels ...) and the tokens of `ptb` (results/tokens and results/corpora, made elsewhere).
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_runs
import kernels
import numpy as np
import torch
from cases import Case, cases, endless, head_contenders, our_step, plain_step, shrunk, trainer
from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.heads import row_nll
from softmax_bottleneck.heads.matmul import tf32
from softmax_bottleneck.jobs.numerics import numerics
from softmax_bottleneck.ranks import DeviceGram
from softmax_bottleneck.training.trainer import Trainer
from timing import MIB, Timing, finish, provenance, race, start

RESULTS = Path(__file__).parent / "results"
REPETITIONS = 7
BLOCK = 20  # updates between two looks at the clock: the host must be able to run ahead of the device
UPDATES_PER_EPOCH = {"ptb/softmax": 680, "ptb/mos": 1135, "wikitext-2/softmax": 383, "wikitext-2/lms-plif": 383,
                     "wikitext-2/mos": 2040}  # expected, at the published chunk lengths  # fmt: skip
PROCESSES = (1, 2, 4, 8)
STREAM_SECONDS = 20.0
WIDTHS = (8_192, 16_384, 24_576, 33_278)  # of symmetric matrices; the last is the vocabulary of WikiText-2
SEEDS = (1, 2, 3)
PRECISIONS = ("fp32", "tf32", "tf32x3", "bf16")
LOSS_UPDATES = 400  # of the comparison of precisions
TRAINING_SHARE = 0.8  # of the minutes of parts 2 and 3; the rest is for measuring
LOSS_TAIL = 100  # updates at its end whose loss is averaged


# --- where it runs --------------------------------------------------------------------------------------------------
class Place:
    """The device, what waits for it, and whether everything is in small."""

    def __init__(self, dry: bool) -> None:
        self.dry, self.device = dry, "cpu" if dry else "cuda"
        self.repetitions = 2 if dry else REPETITIONS
        self.precisions = tuple(one for one in PRECISIONS if one != "tf32" or not dry)  # which a CPU has not

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def as_shipped(self, run: Callable[[], object]) -> Callable[[], None]:
        """A block of calls in the mode of a training step."""

        def block() -> None:
            with numerics(Shipped(torch.get_num_threads()), torch.device(self.device)):
                plain_block()

        plain_block = self.block(run)
        return block

    def block(self, run: Callable[[], object]) -> Callable[[], None]:
        """So many calls."""

        def block() -> None:
            for _ in range(2 if self.dry else BLOCK):
                run()

        return block

    def race(self, blocks: dict[str, Callable[[], None]], repetitions: int) -> dict[str, Timing]:
        """Times of one call each."""
        calls = 2 if self.dry else BLOCK
        return {
            name: Timing(t.median / calls, t.low / calls, t.high / calls, t.repetitions)
            for name, t in race(blocks, repetitions, self.wait).items()
        }

    def case(self, name: str) -> Case:
        return shrunk(cases()[name]) if self.dry else cases()[name]

    def peak_mib(self, run: Callable[[], object]) -> float | None:
        """Largest memory that tensors hold during a call, above what they held before."""
        if self.device != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        self.wait()
        return round((torch.cuda.max_memory_allocated() - before) / MIB, 1)


@dataclass(frozen=True)
class Shipped:
    """What a run's settings say of numerics."""

    threads: int
    deterministic: bool = True


# --- pieces ---------------------------------------------------------------------------------------------------------
def head(place: Place, name: str) -> list[dict[str, Any]]:
    """Loss and gradients of one head: A, B, ours, in float32 and with TF32."""
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
    """Whole training steps and, from them, seconds per epoch at the expected number of updates.

    A and B know float32 and TF32 alone.
    """
    case, rows = place.case(name), []
    for precision in place.precisions:
        contenders = {"ours": place.as_shipped(our_step(case, place.device, precision))}
        if precision in ("fp32", "tf32"):
            for variant in "AB":
                contenders[variant] = place.block(plain_step(case, variant == "A", place.device))
        with tf32(precision == "tf32"):
            timings = place.race(contenders, place.repetitions)
        for variant, timing in timings.items():
            row = {"case": name, "variant": variant, "precision": precision, **timing.row()}
            rows.append(row | {"s_per_epoch": round(timing.median * UPDATES_PER_EPOCH[name], 2)})
    return rows


def graph(place: Place, name: str) -> list[dict[str, Any]]:
    """Updates called, and replayed as CUDA graphs; whether they are recorded, and whether their bits are the same."""
    trainers = {
        key: trainer(place.case(name), place.device, graphs=key == "replayed") for key in ("called", "replayed")
    }
    blocks = {key: place.as_shipped(endless(one)) for key, one in trainers.items()}
    timings = place.race(blocks, 2 * place.repetitions)
    weights = [[parameter.detach() for parameter in one.model.parameters()] for one in trainers.values()]
    same = all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
    facts = {"recorded": bool(trainers["replayed"].replayed), "refused": trainers["replayed"].graphs_refused}
    return [{"case": name, "variant": key, **t.row(), "same_bits": same, **facts} for key, t in timings.items()]


def rates(place: Place, name: str) -> list[dict[str, Any]]:
    """TFLOP/s of the head's products and of a layer's gates at our shapes, as they are and padded to whole 16 bytes."""
    case, rows = place.case(name), []
    for precision in ("fp32", *(() if place.dry else ("tf32",))):
        for m, k, n in [*case.products(), (case.tokens, case.hidden, 4 * case.hidden)]:
            for multiple in (1, 8):
                k_padded, n_padded = (-(-size // multiple) * multiple for size in (k, n))
                x_MK, y_KN = (
                    torch.randn(shape, device=place.device) for shape in ((m, k_padded), (k_padded, n_padded))
                )
                with tf32(precision == "tf32"):
                    block = place.block(functools.partial(torch.mm, x_MK, y_KN))
                    timing = place.race({"product": block}, place.repetitions)["product"]
                row = {"shape": [m, k, n], "multiple": multiple, "precision": precision}
                rows.append(row | {"tflops": round(2e-12 * m * k * n / timing.median, 3)})
    return rows


def exact(place: Place, name: str) -> list[dict[str, Any]]:
    """Loss and gradients of a head against float64 at awkward shapes, by the plain sweep and by the row kernels."""
    found = {"sweep": kernels.differences(name, place.device, False)}
    if not place.dry:
        found["kernels"] = kernels.differences(name, place.device, True)
    return [{"head": name, "by": by, **apart} for by, apart in found.items() if apart]


def profile(place: Place, name: str) -> list[dict[str, Any]]:
    """The operations of ten called updates that take most of the device's time, milliseconds an update."""
    once = our_step(place.case(name), place.device, graphs=False)
    once()
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [] if place.dry else [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as seen:
        for _ in range(2 if place.dry else 10):
            once()
        place.wait()
    key = "self_cpu_time_total" if place.dry else "self_device_time_total"
    most = sorted(seen.key_averages(), key=lambda event: -getattr(event, key))[:25]
    return [{"operation": e.key[:90], "calls": e.count, "ms": round(getattr(e, key) / 1e4, 4)} for e in most]


def streams(place: Place, name: str) -> list[dict[str, Any]]:
    """Tokens per second of several runs at once on one GPU, a process each."""
    rows = []
    for count in PROCESSES[:2] if place.dry else PROCESSES:
        flags = ["--stream", name, *(["--dry"] if place.dry else [])]
        at_work = [start("gpu.py", *flags, threads=1) for _ in range(count)]
        rates = [finish(process) for process in at_work]
        rows.append({"case": name, "processes": count, "tokens_per_s": round(sum(rates))})
    return rows


def stream(place: Place, name: str) -> float:
    """One such process: tokens per second after a warm-up."""
    case = place.case(name)
    once, seconds = our_step(case, place.device), 0.2 if place.dry else STREAM_SECONDS
    for share in (0.25, 1.0):
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < share * seconds:
            once()
            place.wait()
            count += 1
    return case.tokens * count / (time.perf_counter() - began)


def eigenvalues(place: Place, size: str) -> list[dict[str, Any]]:
    """Seconds of a float64 Gram matrix (per 4,096 rows) and of its eigenvalues with the checks that they must pass."""

    def refuse(_: object) -> Any:
        raise RuntimeError("the eigenvalues fail a check: trace, Frobenius norm or inertia")

    n = 200 if place.dry else int(size)
    rows_RN = np.random.default_rng(1).standard_normal((4096, n), dtype=np.float32)
    gram, seconds = DeviceGram(n, refuse, torch=torch, device=place.device), {}
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


def rows(place: Place, name: str) -> list[dict[str, Any]]:
    """Loss and gradients of one head by the row kernels and by the plain sweep, and how far apart their numbers are."""
    case, devices = place.case(name), row_nll.KERNEL_DEVICES
    torch.manual_seed(1)
    run = head_contenders(case, place.device)["ours"]
    losses, blocks = {}, {}
    for variant, allowed in {"kernels": devices, "plain": set[str]()}.items():

        def with_devices(allowed: set[str] = allowed) -> object:
            row_nll.KERNEL_DEVICES = allowed
            return run()

        losses[variant], blocks[variant] = with_devices(), place.as_shipped(with_devices)
    timings = place.race(blocks, place.repetitions)
    row_nll.KERNEL_DEVICES = devices
    apart = abs(float(losses["kernels"] / losses["plain"]) - 1)  # type: ignore[operator]
    return [{"case": name, "variant": key, **t.row(), "loss_apart": apart} for key, t in timings.items()]


def waits(place: Place, name: str) -> list[dict[str, Any]]:
    """An update in which waiting for the device is an error; and whether the same update gives the same bits twice."""
    results = []
    for _ in range(2):
        ours = trainer(place.case(name), place.device, graphs=False)
        with numerics(Shipped(torch.get_num_threads()), torch.device(place.device)):
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
    return [{"case": name, "waits": False, "same_bits_twice": same, "same_bits_resumed": resumed(place, name)}]


def resumed(place: Place, name: str) -> bool:
    """Whether six updates have the bits of three, a state as it is saved, and three more in another trainer."""
    with numerics(Shipped(torch.get_num_threads()), torch.device(place.device)):
        whole, cut, rest = (trainer(place.case(name), place.device) for _ in range(3))
        for _ in range(6):
            whole.update()
        for _ in range(3):
            cut.update()
        rest.load(copy.deepcopy(cut.state()))
        for _ in range(3):
            rest.update()
    pairs = zip(whole.model.parameters(), rest.model.parameters(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def precisions(place: Place, name: str) -> list[dict[str, Any]]:
    """Training loss after some hundred updates of the same runs in every precision, on text with structure."""
    rows = []
    updates = 6 if place.dry else LOSS_UPDATES
    for seed in SEEDS:
        for precision in place.precisions:
            loss = _tail_loss(place, name, seed, precision, updates)
            rows.append({"case": name, "seed": seed, "precision": precision, "loss_nats": round(loss, 5)})
    return rows


def _tail_loss(place: Place, name: str, seed: int, precision: str, updates: int) -> float:
    """Mean train loss of the last updates."""
    case = place.case(name)
    ours = trainer(case, place.device)
    run = dataclasses.replace(ours.run, seed=seed, schedule=dataclasses.replace(ours.schedule, precision=precision))
    words = tuple(map(str, range(case.words)))
    text = chained_text(case.words, (updates + 2) * case.tokens, seed)
    ours = Trainer(run, Corpus("chain", words, text, text[: 40 * case.batch], text[:100]), torch.device(place.device))
    once = endless(ours)
    for index in range(updates):
        if index == max(0, updates - LOSS_TAIL):
            ours.tally.close()
            ours.tally.means.clear()
        once()
    ours.tally.close()
    return float(np.mean(ours.tally.means))


def chained_text(words: int, tokens: int, seed: int) -> np.ndarray[Any, Any]:
    """Seven tokens of ten follow from the one before, the others are drawn by Zipf's law: something to learn."""
    rng = np.random.default_rng(seed)
    follower_V = np.random.default_rng(0).permutation(words)
    drawn = np.minimum(rng.zipf(1.2, tokens), words) - 1
    chained = rng.random(tokens) < 0.7
    for index in range(1, tokens):
        if chained[index]:
            drawn[index] = follower_V[drawn[index - 1]]
    return drawn.astype(np.int32)


Piece = Callable[[Place], list[dict[str, Any]]]


def pieces() -> dict[str, Piece]:
    """All pieces by name, the most telling first."""
    found: dict[str, Piece] = {"rates ptb/softmax": functools.partial(rates, name="ptb/softmax")}
    found["rates wikitext-2/mos"] = functools.partial(rates, name="wikitext-2/mos")
    found |= {f"exact {name}": functools.partial(exact, name=name) for name in kernels.variants()}
    found |= {f"waits {name}": functools.partial(waits, name=name) for name in cases() if name.startswith("ptb/")}
    found |= {f"graph {name}": functools.partial(graph, name=name) for name in ("ptb/softmax", "wikitext-2/mos")}
    found |= {f"step {name}": functools.partial(step, name=name) for name in UPDATES_PER_EPOCH}
    found |= {f"eigenvalues {n}": functools.partial(eigenvalues, size=str(n)) for n in WIDTHS}
    found["profile ptb/softmax"] = functools.partial(profile, name="ptb/softmax")
    found |= {
        f"precisions {name}": functools.partial(precisions, name=name) for name in ("ptb/softmax", "ptb/lms-plif")
    }
    found |= {f"streams {name}": functools.partial(streams, name=name) for name in ("ptb/softmax", "ptb/mos")}
    found |= {f"rows {name}": functools.partial(rows, name=name) for name in cases()}
    return found | {f"head {name}": functools.partial(head, name=name) for name in cases()}


# --- the file -------------------------------------------------------------------------------------------------------
def measured(piece: Piece, place: Place) -> dict[str, Any]:
    """Its rows, or why there are none."""
    began = time.perf_counter()
    try:
        rows, problem = piece(place), None
    except (RuntimeError, ValueError) as error:  # out of memory, a solver's limits, an operation without a kernel
        rows, problem = [], f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if place.device == "cuda":
        torch.cuda.empty_cache()
    return {"rows": rows, "problem": problem, "s": round(time.perf_counter() - began, 1)}


def results_file(folder: Path) -> Path:
    """One file per kind of GPU."""
    name = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")
    return folder / f"{name}.json"


def write(path: Path, found: dict[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def work(options: argparse.Namespace, place: Place) -> int:
    """Measure piece after piece while there is time; how many are left."""
    path = None if place.dry else results_file(options.out)
    found = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {"pieces": {}}
    wanted = {name: one for name, one in pieces().items() if not options.only or name.startswith(options.only)}
    left = [name for name in wanted if options.only or name not in found["pieces"]]
    if options.list:
        print("\n".join(f"{'done' if name in found['pieces'] else '    '}  {name}" for name in wanted))
        return 0
    began = time.monotonic()
    while left and time.monotonic() - began < 60 * options.minutes:
        name = left.pop(0)
        result = found["pieces"][name] = measured(wanted[name], place)
        for row in result["rows"]:
            print(name, " ", "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        print(f"{name}: {result['problem'] or 'done'} ({result['s']} s)", flush=True)
        if path:
            gpu = torch.cuda.get_device_name()
            write(path, found | {"provenance": provenance(gpu=gpu, cuda=torch.version.cuda)})
    print(f"{len(left)} pieces left", flush=True)
    return len(left)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="in small on the CPU; nothing is written")
    parser.add_argument("--list", action="store_true", help="the pieces, and which are done")
    parser.add_argument("--only", default="", metavar="NAME", help="pieces whose name begins so, done or not")
    parser.add_argument("--part", type=int, choices=(1, 2, 3), default=1, help="which of the three commands")
    parser.add_argument("--mirror", metavar="FOLDER", help="copies of the corpora, for parts 2 and 3")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="no piece begins, and no run trains, later than this"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where the file is and goes")
    parser.add_argument("--stream", help=argparse.SUPPRESS)  # one of several processes at once
    options = parser.parse_args()
    if not options.dry and not torch.cuda.is_available():
        sys.exit("gpu.py: PyTorch sees no GPU here; --dry runs every piece in small on the CPU")
    place = Place(options.dry)
    if options.part > 1:
        minutes = TRAINING_SHARE * options.minutes
        print(gpu_runs.summary(gpu_runs.work(options.part, options.out, minutes, options.mirror, options.dry)))
    elif options.stream:
        print(json.dumps(stream(place, options.stream)))
    else:
        work(options, place)


if __name__ == "__main__":
    main()
