"""The price of the bottleneck on natural language: nats that heads of several widths lose on natural distributions."""

from collections.abc import Iterator

import pandas as pd

from softmax_bottleneck.records.metrics import KL
from softmax_bottleneck.report.cells import Cell, Section, mean_of, section
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.report.views.fits import Frames, levels


def price_table(source: Source, *, fits: str) -> Iterator[Section]:
    """Yield a section per true distribution, with a row per head, a column per width, and the mean KL over seeds.

    `fits` is the name of the plan, an entry under `fits` of the study.
    """
    frames = Frames.of(source, fits)
    own = frames.fits if KL in frames.fits else frames.fits.iloc[:0]
    for truth, part in own.groupby("truth", sort=False) if len(own) else ():

        def cell(model: str, width: float, part: pd.DataFrame = part) -> Cell:
            values = part[(part["model"] == model) & (part["d"] == width)][KL].dropna()
            return Cell(measured=mean_of(values), metric=KL, planned=part["seed"].nunique())

        widths = {width: f"d = {width:g}" for width in levels(part, "d")}
        yield section("synthetic", str(truth), frames.names, widths, cell)
