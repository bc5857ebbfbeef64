"""What the implementation should reach, beside what the last results say it does, and what no implementation could."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

HEADS = ("softmax", "sigsoftmax", "gss", "lms-plif", "moc", "mos")
# Times B, a loss with its gradients; times A, a whole step; tokens/s times the plain loop, seed by seed.
HEAD_GAINS = {
    "ptb": dict(zip(HEADS, (1.8, 3.5, 3.5, 3.0, 1.6, 2.5), strict=True)),
    "wikitext-2": {"softmax": 1.7, "sigsoftmax": 3.0, "gss": 3.0, "lms-plif": 2.6, "mos": 2.0},
}
STEP_GAINS = dict(zip(HEADS, (1.4, 1.7, 1.7, 1.7, 1.5, 2.2), strict=True))
STEP_SHARES = {"softmax": 0.55, "mos": 0.50}  # of the machine's rate
MEMORY_GAINS = dict.fromkeys(("sigsoftmax", "gss", "lms-plif", "mos"), 10.0)  # WikiText-2 heads, B / ours
SMALL_GAINS = dict.fromkeys(HEADS, 3.0)
# Full size; other method / ours. Of factored heads: beside numpy's SVD of a matrix of the same size.
RANK_GAINS = {"seconds, numpy / ours": 4.0, "seconds, torch / ours": 1.7, "memory, numpy / ours": 7.0}
FACTORED_GAIN = 40.0


def aims_table(found: Mapping[str, Any]) -> str:
    """A row per kind of number, a column per head; and a sentence on ranks, where they were measured at full size."""
    lines = [f"| measured / aim / limit | {' | '.join(HEADS)} |", "|" + "---|" * (len(HEADS) + 1)]
    for name, cells in _rows(found):
        lines.append(f"| {name} | {' | '.join(cells.get(head, '') for head in HEADS)} |")
    ranks = rank_sentence(found.get("full_rank", []))
    return "\n".join(lines) + (f"\n\n{ranks}" if ranks else "")


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    heads, steps = by_head(found.get("heads", [])), by_head(found.get("steps", []))
    for corpus, gains in HEAD_GAINS.items():
        of = {head: heads[corpus, head] for head in gains if (corpus, head) in heads}
        yield f"head, {corpus}, x B", {head: _gain(of[head], "B", gains[head], "of_products") for head in of}
    of = {head: heads["wikitext-2", head] for head in MEMORY_GAINS if ("wikitext-2", head) in heads}
    memory = {head: of[head]["B"]["peak_mib"] / max(1.0, of[head]["ours"]["peak_mib"]) for head in of}
    yield "head, wikitext-2, memory of B / ours", {head: _cell(memory[head], MEMORY_GAINS[head]) for head in of}
    of = {head: steps["ptb", head] for head in STEP_GAINS if ("ptb", head) in steps}
    yield "step, ptb, x A", {head: _gain(of[head], "A", STEP_GAINS[head], "of_rate") for head in of}
    shares = {head: _cell(of[head]["ours"]["of_rate"], aim, 1.0) for head, aim in STEP_SHARES.items() if head in of}
    yield "step, ptb, share of the rate", shares
    small = by_head([{"corpus": "demo", **row} for row in found.get("small", []) if "variant" in row])
    speed = {head: of["ours"]["tokens_per_s"] / of["plain"]["tokens_per_s"] for (_, head), of in small.items()}
    yield "demo sizes, tokens/s x plain", {head: _cell(speed[head], SMALL_GAINS[head]) for head in speed}


def by_head(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """(corpus, head) -> variant -> its row."""
    by: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        by.setdefault((row["corpus"], row["head"]), {})[row["variant"]] = row
    return by


def _gain(of: Mapping[str, Mapping[str, float]], beside: str, aim: float, share: str) -> str:
    """Times faster; the limit is that of a time in which matrix products alone run, at the rate measured here."""
    gain = of[beside]["ms"] / of["ours"]["ms"]
    return _cell(gain, aim, gain / of["ours"][share])


def _cell(measured: float, aim: float, limit: float | None = None) -> str:
    mark = "**" if round(measured, 2) >= aim else ""
    return f"{mark}{measured:.2f}{mark} / {aim:g}" + (f" / {limit:.2f}" if limit else "")


def rank_sentence(rows: list[dict[str, Any]]) -> str:
    """The gains of the rank engine at full size, beside their aims."""
    by = {row["method"]: row for row in rows}
    if not {"ours", "numpy", "torch", "factors"} <= by.keys():
        return ""
    ours, numpy, torch, factors = (by[name] for name in ("ours", "numpy", "torch", "factors"))
    gains = (numpy["ms"] / ours["ms"], torch["ms"] / ours["ms"], numpy["peak_mib"] / ours["peak_mib"])
    size = f"{ours['m']:,} x {ours['n']:,}"
    parts = [f"{name} {_cell(gain, aim)}" for (name, aim), gain in zip(RANK_GAINS.items(), gains, strict=True)]
    parts.append(f"softmax by factors, seconds, numpy / ours {_cell(numpy['ms'] / factors['ms'], FACTORED_GAIN)}")
    return f"Ranks of {size} (measured / aim): {'; '.join(parts)}, in {factors['peak_mib']:.0f} MiB."
