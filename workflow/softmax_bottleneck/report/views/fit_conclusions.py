"""The table of claims about fits to known distributions, each with its verdict and what it does not say."""

from __future__ import annotations

from collections.abc import Iterator

from softmax_bottleneck.report import claims
from softmax_bottleneck.report.cells import Cell, Part, crossed
from softmax_bottleneck.report.options import Fits
from softmax_bottleneck.report.registry import view
from softmax_bottleneck.report.source import Source

COLUMNS = ("Verdict", "Numbers", "Rule", "What it does not say")


@view("fit-conclusions", row="Statement")
def conclusions(source: Source, options: Fits) -> Iterator[Part]:
    """Show every claim that has limits: those about gradients, or those about what fits lose."""
    gradients = source.experiment.source == "gradient"
    asked = [claim for claim in claims.CLAIMS if claim.limits and (claim.source == "gradient") == gradients]
    asked.sort(key=lambda claim: claim.source != "known-truth")
    rows, texts = {}, {}
    for entry in claims.ledger(source.records, asked, source.study):
        claim = entry.claim
        numbers = "; ".join(number.text for number in entry.numbers) or str(entry.reason or "")
        rows[claim.id] = claim.statement
        texts[claim.id] = (entry.verdict, numbers, claim.rule.text, claim.limits)
    columns = dict(enumerate(COLUMNS))
    yield crossed("synthetic", "What the fits show", rows, columns, lambda row, n: Cell(words=texts[row][n]))
