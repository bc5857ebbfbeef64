"""`make bench`: A, B and ours on this CPU, printed and written to benchmarks/results/cpu.json.

python benchmarks/cpu.py                  # everything, some 25 minutes on two quiet cores
python benchmarks/cpu.py --quick          # everything in small, to see that it runs (nothing is written)
python benchmarks/cpu.py --only heads     # some parts: heads steps rank demo tuned
python benchmarks/cpu.py --full-rank      # also ranks of 82,429 x 10,000 (15 minutes, 16 GiB)

benchmarks/README.md says what each number means. Parts that are not measured keep their values in the file.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import demo_sizes
import rank_engine
import torch
import tuned
from cases import Case, cases, head_contenders, our_step, plain_step, shrunk
from softmax_bottleneck.jobs import out_of_memory
from timing import Served, elsewhere, floor_s, peak_mib, provenance, race, race_of, serve, show, square_rate

RESULTS = Path(__file__).parent / "results" / "cpu.json"
README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- tables: written by cpu.py -->", "<!-- end of tables -->"
REPETITIONS = 5


def chosen(quick: bool) -> dict[str, Case]:
    """Return the cases by name, small ones for `--quick`."""
    return {name: shrunk(case) if quick else case for name, case in cases().items()}


# --- heads and steps ------------------------------------------------------------------------------------------------
def heads_part(quick: bool) -> list[dict[str, Any]]:
    """Measure loss and gradients of every head on both corpora: time, memory, and the products' share of the time."""
    rows: list[dict[str, Any]] = []
    for name, case in chosen(quick).items():
        timings = race(head_contenders(case), 2 if quick else REPETITIONS)
        floor = sum(floor_s(*shape) for shape in case.products())
        for variant, timing in timings.items():
            row = {"corpus": case.corpus, "head": case.head, "variant": variant, **timing.row()}
            if variant != "A":  # A needs what B needs
                row["peak_mib"] = elsewhere("cpu.py", "--peak", name, variant, *(["--quick"] if quick else []))
            rows.append(row | {"of_products": round(floor / timing.median, 3)})
            show(rows[-1])
    return rows


def steps_part(quick: bool) -> list[dict[str, Any]]:
    """Measure whole training steps at the published settings on Penn Treebank, each variant in its own process."""
    rate = max(square_rate().values())
    rows: list[dict[str, Any]] = []
    for name, case in chosen(quick).items():
        if case.corpus != "ptb":
            continue
        flags = ["--quick"] if quick else []
        timers = {variant: Served("cpu.py", "--serve", name, variant, *flags) for variant in STEPS}
        try:
            timings = race_of(timers, 2 if quick else REPETITIONS)
        finally:
            for timer in timers.values():
                timer.close()
        for variant, timing in timings.items():
            row = {"corpus": case.corpus, "head": case.head, "variant": variant, **timing.row()}
            rows.append(row | {"of_rate": round(case.step_flops() / timing.median / (1e9 * rate), 3)})
            show(rows[-1])
    return rows


STEPS: dict[str, Callable[[Case], Callable[[], object]]] = {
    "A": lambda case: plain_step(case, habits=True),
    "B": lambda case: plain_step(case, habits=False),
    "ours": lambda case: (out_of_memory.keep_freed(), our_step(case))[1],  # as the steps of the workflow do
}


def peak_of(case: Case, variant: str) -> float:
    """Return the peak MiB of one loss with gradients, not counting contexts, parameters and their gradients."""
    torch.manual_seed(1)
    contender = head_contenders(case)[variant]
    closed = [cell.cell_contents for cell in contender.__closure__ or ()]  # type: ignore[attr-defined]
    module = next(one for one in closed if isinstance(one, torch.nn.Module))
    gradients = 4 * sum(parameter.numel() for parameter in module.parameters()) + 4 * case.tokens * case.context
    return round(peak_mib(contender, gradients), 1)


# --- tables ---------------------------------------------------------------------------------------------------------
def tables(found: dict[str, Any]) -> str:
    """Return what the README shows: the machine, heads and steps, ranks, demonstration sizes, tuned models."""
    parts = [hardware(found), gains_table(found), rank_table(found.get("rank", []) + found.get("full_rank", []))]
    parts += [demo_table(found.get("demo", [])), tuned.table(found.get("tuned", []))]
    return "\n\n".join(part for part in parts if part)


def hardware(found: dict[str, Any]) -> str:
    """Return one line per machine, with the parts that were measured on it."""
    lines: dict[str, list[str]] = {}
    for part, about in found.get("provenance", {}).items():
        rates = ", ".join(f"{library} {rate:.0f}" for library, rate in about["gflops"].items())
        chip = f"{about['cpu']} (family {about['family']}, model {about['model']}; {', '.join(about['instructions'])})"
        where = f"{chip}, {about['threads']} threads, torch {about['torch']}"
        lines.setdefault(where, []).append(f"{part}: square product {rates} GFLOP/s, load {about['load_average'][0]}")
    return "\n".join(f"Measured on {where}. {'; '.join(parts)}." for where, parts in lines.items())


def gains_table(found: dict[str, Any]) -> str:
    """Return the table of heads and steps: A, B and ours."""
    lines = [
        "| | A, ms | B, ms | ours, ms | x A | x B | memory, MiB (B -> ours) | of the products' rate |",
        "|" + "---|" * 8,
    ]
    for part, title in (("heads", "head"), ("steps", "step")):
        by: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        for row in found.get(part, []):
            by.setdefault((row["corpus"], row["head"]), {})[row["variant"]] = row
        for (corpus, head), of in by.items():
            a, b, ours = (of[variant]["ms"] for variant in ("A", "B", "ours"))
            memory = f"{of['B']['peak_mib']:.0f} -> {of['ours']['peak_mib']:.0f}" if part == "heads" else ""
            share = of["ours"].get("of_products", of["ours"].get("of_rate"))
            cells = [f"{title}, {corpus}, {head}", f"{a:.0f}", f"{b:.0f}", f"{ours:.0f}", f"{a / ours:.2f}"]
            lines.append("| " + " | ".join([*cells, f"{b / ours:.2f}", memory, f"{share:.0%}"]) + " |")
    return "\n".join(lines)


def rank_table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the rank engine and of the SVDs: seconds, memory, Press rank."""
    if not rows:
        return ""
    lines = ["| ranks: head | contexts x words | method | s | peak, MiB | Press rank |", "|" + "---|" * 6]
    for row in rows:
        cells = [row["head"], f"{row['m']:,} x {row['n']:,}", row["method"], f"{row['ms'] / 1e3:.1f}"]
        lines.append("| " + " | ".join([*cells, str(row.get("peak_mib", "")), str(row["rank"])]) + " |")
    return "\n".join(lines)


def demo_table(rows: list[dict[str, Any]]) -> str:
    """Return the table of tokens per second at the demonstration's sizes."""
    by: dict[str, dict[str, int]] = {}
    for row in rows:
        by.setdefault(row["head"], {})[row["variant"]] = row["tokens_per_s"]
    if not by:
        return ""
    names = list(next(iter(by.values())))
    lines = [f"| demo sizes, tokens/s | {' | '.join(names)} | ours x plain |", "|" + "---|" * (len(names) + 2)]
    for head, of in by.items():
        lines.append(f"| {head} | {' | '.join(f'{of[name]:,}' for name in names)} | {of['ours'] / of['plain']:.2f} |")
    return "\n".join(lines)


def keep(found: dict[str, Any]) -> None:
    """Write the results as JSON and as tables in the README."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n\n{tables(found)}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


# --- command line ---------------------------------------------------------------------------------------------------
PARTS: dict[str, Callable[[bool], Any]] = {
    "heads": heads_part,
    "steps": steps_part,
    "rank": rank_engine.measure,
    "demo": demo_sizes.measure,
    "tuned": tuned.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="everything in small; nothing is written")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="parts to measure")
    parser.add_argument("--full-rank", action="store_true", help="also ranks at the paper's full size")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)  # CASE VARIANT, in a process of its own
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    if options.serve:
        serve(STEPS[options.serve[1]](chosen(options.quick)[options.serve[0]]))
    elif options.peak:
        print(json.dumps(peak_of(chosen(options.quick)[options.peak[0]], options.peak[1])))
    else:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Measure the parts, print their tables and, without `--quick`, write them."""
    began, found = time.monotonic(), json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for part in options.only:
        print(f"--- {part}", flush=True)
        about = provenance(gflops=square_rate())
        found[part] = PARTS[part](options.quick)
        found.setdefault("provenance", {})[part] = about
    if options.full_rank:
        found["full_rank"] = rank_engine.full()
    print(f"\n{tables(found)}\n\n{time.monotonic() - began:.0f} s", flush=True)
    if not options.quick:
        keep(found)


if __name__ == "__main__":
    sys.exit(main())
