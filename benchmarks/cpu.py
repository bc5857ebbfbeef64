"""`make bench`: A, B and ours on this CPU, printed and written to benchmarks/results/cpu.json.

python benchmarks/cpu.py                  # everything, some 30 minutes on two quiet cores
python benchmarks/cpu.py --quick          # everything in small, to see that it runs (nothing is written)
python benchmarks/cpu.py --only heads     # some parts: heads steps rank small scaling dag
python benchmarks/cpu.py --busy           # one thread, CPU seconds: for a machine that others use (nothing is written)
python benchmarks/cpu.py --full-rank      # also ranks of 82,429 x 10,000 (15 minutes, 16 GiB)
python benchmarks/cpu.py --only --full-rank ours      # nothing but some of these

What each number means is in benchmarks/README.md. Parts that were not asked for keep the values of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aims
import dag
import figures
import rank_engine
import small_sizes
import torch
from cases import Case, cases, head_contenders, our_step, plain_step, shrunk
from softmax_bottleneck.jobs import out_of_memory
from timing import (
    CLOCK,
    Served,
    Timing,
    busy_machine,
    elsewhere,
    floor_s,
    peak_mib,
    provenance,
    race,
    race_of,
    serve,
    square_rate,
)

RESULTS = Path(__file__).parent / "results" / "cpu.json"
README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- tables: written by cpu.py -->", "<!-- end of tables -->"
REPETITIONS = 5
PARTS = ("heads", "steps", "rank", "small", "scaling", "dag")
# Scaling: one size at a time around these.
SCALED = {"head": "gss", "tokens": (350, 700, 1400, 2800), "words": (5000, 10_000, 20_000, 40_000)}
SCALED_COMPONENTS = (1, 4, 8, 15)


# --- heads and steps ------------------------------------------------------------------------------------------------
def heads_part(quick: bool) -> list[dict[str, Any]]:
    """Loss and gradients of every head on both corpora: time, memory, share of the rate of its products."""
    rows: list[dict[str, Any]] = []
    for name, case in chosen(quick).items():
        timings = race(head_contenders(case), 2 if quick else REPETITIONS)
        floor = sum(floor_s(*shape) for shape in case.products())
        for variant, timing in timings.items():
            row = {"corpus": case.corpus, "head": case.head, "variant": variant, **timing.row()}
            if variant != "A":  # as B
                row["peak_mib"] = elsewhere("cpu.py", "--peak", name, variant, *(["--quick"] if quick else []))
            row["of_products"] = round(floor / timing.median, 3)
            rows.append(row)
            show(row)
        show_gain(rows[-3:], "B")
    return rows


def steps_part(quick: bool) -> list[dict[str, Any]]:
    """Whole training steps at the published settings on Penn Treebank: A, B and ours, each in a process of its own."""
    rate = max(square_rate().values())
    rows: list[dict[str, Any]] = []
    for name, case in chosen(quick).items():
        if case.corpus != "ptb":
            continue
        for variant, timing in race_steps(name, quick).items():
            row = {"corpus": case.corpus, "head": case.head, "variant": variant, **timing.row()}
            row["of_rate"] = round(case.step_flops() / timing.median / (1e9 * rate), 3)
            rows.append(row)
            show(row)
        show_gain(rows[-3:], "A")
    return rows


def race_steps(name: str, quick: bool) -> dict[str, Timing]:
    flags = ["--quick"] * quick + ["--busy"] * (CLOCK["now"] is time.process_time)
    timers = {variant: Served("cpu.py", "--serve", name, variant, *flags) for variant in STEPS}
    try:
        return race_of(timers, 2 if quick else REPETITIONS)
    finally:
        for timer in timers.values():
            timer.close()


def our_process_step(case: Case) -> Callable[[], object]:
    """Ours with the memory management of the workflow's steps."""
    out_of_memory.keep_freed()
    return our_step(case)


STEPS: dict[str, Callable[[Case], Callable[[], object]]] = {
    "A": lambda case: plain_step(case, habits=True),
    "B": lambda case: plain_step(case, habits=False),
    "ours": our_process_step,
}


def chosen(quick: bool) -> dict[str, Case]:
    """The cases by name, small ones where it only has to run."""
    return {name: shrunk(case) if quick else case for name, case in cases().items()}


def peak_of(case: Case, variant: str) -> float:
    """MiB above contexts, parameters and their gradients that one loss with gradients needs."""
    torch.manual_seed(1)
    contender = head_contenders(case)[variant]
    closed = [cell.cell_contents for cell in contender.__closure__ or ()]  # type: ignore[attr-defined]
    module = next(one for one in closed if isinstance(one, torch.nn.Module))
    gradients = 4 * sum(parameter.numel() for parameter in module.parameters()) + 4 * case.tokens * case.context
    return round(peak_mib(contender, gradients), 1)


# --- scaling --------------------------------------------------------------------------------------------------------
def scaling_part(quick: bool) -> list[dict[str, Any]]:
    """Time and memory of B and ours against tokens, words and components."""
    rows: list[dict[str, Any]] = []
    for axis, value, case in scaled_cases(quick):
        contenders = {name: run for name, run in head_contenders(case).items() if name != "A"}
        for variant, timing in race(contenders, 2 if quick else 3).items():
            sizes = [str(size) for size in (case.tokens, case.words, case.components)]
            peak = elsewhere("cpu.py", "--peak", case.name, variant, "--sizes", *sizes)
            row = {"axis": axis, "value": value, "head": case.head, "variant": variant, **timing.row()}
            rows.append(row | {"peak_mib": peak})
            show(rows[-1])
    return rows


def scaled_cases(quick: bool) -> list[tuple[str, int, Case]]:
    base, mixture = cases()[f"ptb/{SCALED['head']}"], cases()["ptb/mos"]
    found = [("tokens", n, resized(base, n, base.words, 1)) for n in SCALED["tokens"] if isinstance(n, int)]
    found += [("words", v, resized(base, base.tokens, v, 1)) for v in SCALED["words"] if isinstance(v, int)]
    found += [("components", k, resized(mixture, mixture.tokens, mixture.words, k)) for k in SCALED_COMPONENTS]
    return found[:: len(found) - 1] if quick else found


def resized(case: Case, tokens: int, words: int, components: int) -> Case:
    """The case at other sizes, its tokens as one column."""
    values = {"words": words, "batch": 1, "bptt": tokens, "components": components}
    return Case(**{name: values.get(name, getattr(case, name)) for name in case.__dataclass_fields__})


# --- what is printed and kept ---------------------------------------------------------------------------------------
def show(row: dict[str, Any]) -> None:
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


def show_gain(rows: list[dict[str, Any]], beside: str) -> None:
    by = {row["variant"]: row for row in rows}
    words = [f"{by[beside]['ms'] / by['ours']['ms']:.2f} x {beside}"]
    if "peak_mib" in by["ours"]:
        words.append(f"memory 1/{by[beside]['peak_mib'] / max(1.0, by['ours']['peak_mib']):.1f}")
    print(f"    -> ours: {', '.join(words)}", flush=True)


def table(found: dict[str, Any]) -> str:
    """The gains in one table: heads against A and B, steps against A."""
    lines = [
        "| | A, ms | B, ms | ours, ms | x A | x B | memory, MiB (B -> ours) | of the products' rate |",
        "|" + "---|" * 8,
    ]
    for part, title in (("heads", "head"), ("steps", "step")):
        for (corpus, head), of in aims.by_head(found.get(part, [])).items():
            a, b, ours = (of[variant]["ms"] for variant in ("A", "B", "ours"))
            memory = f"{of['B']['peak_mib']:.0f} -> {of['ours']['peak_mib']:.0f}" if part == "heads" else ""
            share = of["ours"].get("of_products", of["ours"].get("of_rate"))
            cells = [f"{title}, {corpus}, {head}", f"{a:.0f}", f"{b:.0f}", f"{ours:.0f}", f"{a / ours:.2f}"]
            lines.append("| " + " | ".join([*cells, f"{b / ours:.2f}", memory, f"{share:.0%}"]) + " |")
    return "\n".join(lines)


def tables(found: dict[str, Any]) -> str:
    """What README shows: where, heads and steps, ranks, small sizes, and the aims beside them."""
    parts = [hardware(found), table(found), rank_table(found.get("rank", []) + found.get("full_rank", []))]
    parts += [small_table(found.get("small", [])), aims.aims_table(found)]
    return "\n\n".join(part for part in parts if part)


def hardware(found: dict[str, Any]) -> str:
    """One line per machine that parts were measured on."""
    lines: dict[str, list[str]] = {}
    for part, about in found.get("provenance", {}).items():
        rates = ", ".join(f"{library} {rate:.0f}" for library, rate in about["gflops"].items())
        chip = f"{about['cpu']} (family {about['family']}, model {about['model']}; {', '.join(about['instructions'])})"
        where = f"{chip}, {about['threads']} threads, torch {about['torch']}"
        lines.setdefault(where, []).append(f"{part}: square product {rates} GFLOP/s, load {about['load_average'][0]}")
    return "\n".join(f"Measured on {where}. {'; '.join(parts)}." for where, parts in lines.items())


def rank_table(rows: list[dict[str, Any]]) -> str:
    """Seconds, memory and counts of the rank engine and of the SVDs."""
    if not rows:
        return ""
    lines = ["| ranks: head | contexts x words | method | s | peak, MiB | Press rank |", "|" + "---|" * 6]
    for row in rows:
        cells = [row["head"], f"{row['m']:,} x {row['n']:,}", row["method"], f"{row['ms'] / 1e3:.1f}"]
        lines.append("| " + " | ".join([*cells, str(row.get("peak_mib", "")), str(row["rank"])]) + " |")
    return "\n".join(lines)


def small_table(rows: list[dict[str, Any]]) -> str:
    """Tokens per second at the demonstration's sizes, and where an update's time goes."""
    by: dict[str, dict[str, int]] = {}
    for row in rows:
        if "variant" in row:
            by.setdefault(row["head"], {})[row["variant"]] = row["tokens_per_s"]
    if not by:
        return ""
    names = list(next(iter(by.values())))
    lines = [f"| demo sizes, tokens/s | {' | '.join(names)} | ours x plain |", "|" + "---|" * (len(names) + 2)]
    for head, of in by.items():
        lines.append(f"| {head} | {' | '.join(f'{of[name]:,}' for name in names)} | {of['ours'] / of['plain']:.2f} |")
    shares = ", ".join(f"{row['part']} {row['ms']:.2f} ms" for row in rows if "part" in row)
    layers = ", ".join(f"{row['layers']} {row['ms']:.2f} ms" for row in rows if "layers" in row)
    sentences = [f"One update, one thread (softmax): {shares}."] * bool(shares)
    sentences += [f"The LSTM layers forward, one thread, a seed: {layers}."] * bool(layers)
    return "\n\n".join(["\n".join(lines), *sentences])


MEASURES: dict[str, Callable[[bool], Any]] = {
    "heads": heads_part,
    "steps": steps_part,
    "rank": rank_engine.measure,
    "small": small_sizes.measure,
    "scaling": scaling_part,
    "dag": dag.measure,
}


def main() -> None:
    options = arguments()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    if options.busy:
        busy_machine()
    if options.peak or options.serve:
        one_of(options)
        return
    began, found = time.monotonic(), json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for part in options.only:
        print(f"--- {part}", flush=True)
        about = provenance(gflops=square_rate())
        found[part] = MEASURES[part](options.quick)
        found.setdefault("provenance", {})[part] = about
    if options.full_rank is not None:
        found["full_rank"] = rank_engine.full(options.full_rank, found.get("full_rank", []))
    print(f"\n{tables(found)}\n\n{time.monotonic() - began:.0f} s", flush=True)
    if not options.quick and not options.busy:
        keep(found)


def one_of(options: argparse.Namespace) -> None:
    """What a process of its own is started for: a peak, or a step per line read."""
    name, variant = options.peak or options.serve
    case = chosen(options.quick)[name]
    if options.serve:
        serve(STEPS[variant](case))
    else:
        print(json.dumps(peak_of(resized(case, *options.sizes) if options.sizes else case, variant)))


def keep(found: dict[str, Any]) -> None:
    """As JSON, as tables in the README, as a figure."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    README.write_text(f"{before}{BEGIN}\n\n{tables(found)}\n\n{END}{after}", encoding="utf-8")
    if "scaling" in found and "dag" in found:
        figures.draw(found, RESULTS.with_name("scaling.svg"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="everything in small; nothing is written")
    parser.add_argument(
        "--busy", action="store_true", help="others work here too: one thread, CPU seconds, not written"
    )
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="parts to measure")
    parser.add_argument("--full-rank", nargs="*", metavar="METHOD", choices=tuple(rank_engine.METHODS),
                        help="also ranks at the paper's full size, by these methods or by all")  # fmt: skip
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)  # CASE VARIANT, in a process of its own
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs=3, type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
