"""What follows from the fits to known laws: the claims about them, each with its verdict and what it does not say."""

from __future__ import annotations

from collections.abc import Iterator

from softmax_bottleneck.report import claims
from softmax_bottleneck.report.cells import Cell, Part, crossed
from softmax_bottleneck.report.claims import known_distributions as known
from softmax_bottleneck.report.options import Fits
from softmax_bottleneck.report.registry import view
from softmax_bottleneck.report.source import Source

FOLLOWING = (*known.TRUTH_CLAIMS, known.THEOREM_1)
HEADS = ("Verdict", "Numbers", "Rule", "What it does not say")


@view("fit-conclusions", row="Statement")
def conclusions(source: Source, options: Fits) -> Iterator[Part]:
    """Every claim of the chapter about fits to languages, as the ledger has it."""
    asked = known.GRADIENT_CLAIMS if source.experiment.source == "gradient" else FOLLOWING
    entries = {entry.claim.id: entry for entry in claims.ledger(source.records, asked, source.study)}
    words = {
        name: (
            entry.verdict,
            "; ".join(n.text for n in entry.numbers) or str(entry.reason or ""),
            rule.text,
            entry.claim.limits,
        )
        for name, entry in entries.items()
        for rule in (entry.claim.rule,)
    }
    rows = {name: entry.claim.statement for name, entry in entries.items()}
    columns = dict(enumerate(HEADS))
    yield crossed("synthetic", "What the fits show", rows, columns, lambda row, n: Cell(words=words[row][n]))
