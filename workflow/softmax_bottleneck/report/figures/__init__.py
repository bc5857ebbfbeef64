"""Figures: records, epoch logs and spectra as SVG with the data beside them.

A figure is an experiment's YAML and a function here that draws what `source.Source` knows. The same input gives the
same bytes; one palette serves every figure, and every SVG changes into dark colours by itself where the reader's
screen is dark.
"""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib as mpl
import pandas as pd

from softmax_bottleneck.records import records
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report.figures import (  # noqa: F401  they register
    fits,
    functions,
    overview,
    plots,
    published_size,
    runs,
    scatter,
    words,
)
from softmax_bottleneck.report.options import options_of
from softmax_bottleneck.report.registry import FIGURES
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.study import Experiment, Study

DIGITS = 8  # significant ones in the data beside a figure


@dataclass(frozen=True)
class Figure:
    """A finished figure; `svg` is a whole SVG document, `csv` the numbers drawn, `alone` what is published alone."""

    id: str
    source: str
    artefact: str
    title: str
    caption: str
    alt: str
    note: str
    alone: str
    svg: str
    csv: str


def build(study: Study, experiment: Experiment, found: Records) -> Figure:
    """The figure of an experiment (UserError for a view or an option there is not)."""
    options, make = options_of(study, experiment), FIGURES[experiment.view]
    source = Source.of(study, experiment, found)
    with mpl.rc_context(plots.rc_settings()):
        if experiment.is_void and not experiment.quotes:
            drawing = plots.words_alone(experiment.needs, pd.DataFrame({"needs": [experiment.needs]}))
        else:
            drawing = make(source, options)
        svg = plots.to_svg(drawing.canvas)
    texts = (experiment.id, experiment.source, experiment.artefact, experiment.title, source.caption)
    needs = experiment.needs * (drawing.alt != experiment.needs)
    note = " ".join(filter(None, [drawing.note, needs, source.absent_words]))
    return Figure(*texts, drawing.alt, note, source.absent_words, svg, csv=records.to_csv(drawing.data, digits=DIGITS))
