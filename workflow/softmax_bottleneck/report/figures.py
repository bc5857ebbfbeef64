"""What the figures of a study share: a look per model, a row of panels per corpus, titles, and which runs are drawn."""

import itertools
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import pandas as pd

from softmax_bottleneck.heads.registry import declarations
from softmax_bottleneck.report import plots
from softmax_bottleneck.report.source import Source, label
from softmax_bottleneck.study import Study

# Readable on white and on near-black, told apart with the common colour-vision deficiencies (after Okabe and Ito).
# Heads declare their colours; the two others are models of published tables that are a head with other options.
HEADS = sorted((head for head in declarations().values() if head.colour), key=lambda head: head.name != "softmax")
PALETTE: Mapping[str, str] = {head.published_as or head.name: str(head.colour) for head in HEADS} | {
    "lms-plif-frozen": "#82cfb3",
    "moss": "#d65fa8",
}
MARKERS = "osD^vpXh"
LONGEST_NAME = 30


# --- looks of models ------------------------------------------------------------------------------------------------
def styles(models: Iterable[str], study: Study) -> dict[str, plots.Style]:
    """Return {model: style} of some models, which look the same in every figure of a report on `study`.

    A model has its colour in PALETTE or, if it is the first of the study with a head that PALETTE shows under a name
    that the study lacks, this head's colour. The others have spare colours, chosen by `_spare_colour`.
    """
    shown = [[*e.models, *e.absent] for e in study.experiments if e.kind == "figure"]
    groups = sorted([*shown, *map(list, study.fit_labels.values()), list(study.labels)], key=len)
    colours = {**PALETTE, **_head_colours(study)}
    spare = [colour for colour in plots.SPARE if colour not in colours.values()] or plots.SPARE
    for model in dict.fromkeys(itertools.chain(*groups)):
        if model not in colours:
            colours[model] = _spare_colour(spare, colours, [group for group in groups if model in group])
    looks = {}
    for place, (model, colour) in enumerate(colours.items()):
        turn, marker = divmod(place, len(MARKERS))  # models with the colour and marker of others differ in the dash
        looks[model] = plots.Style(colour, MARKERS[marker], plots.DASHES[(place + turn) % len(plots.DASHES)])
    return {model: looks[model] for model in models}


def _spare_colour(spare: Sequence[str], colours: Mapping[str, str], groups: Sequence[Sequence[str]]) -> str:
    """Return the spare colour that the fewest models of the first group have; at a tie, of the next group.

    `colours` is {model: colour} so far. `groups` are the figures that show the model to colour, small ones first.
    """
    used = [Counter(colours.get(model) for model in group) for group in groups]
    return min(spare, key=lambda colour: [counts[colour] for counts in used])


def _head_colours(study: Study) -> dict[str, str]:
    """Return {model: colour of its head} of the first model of every head that PALETTE shows under another name."""
    first = {run.head.name: run.model for run in reversed(study.runs)}
    present, heads = {run.model for run in study.runs}, declarations().values()
    lacking = [head for head in heads if head.colour and (head.published_as or head.name) not in present]
    return {first[head.name]: str(head.colour) for head in lacking if head.name in first}


# --- a row of panels per corpus -------------------------------------------------------------------------------------
Size = tuple[int, float, float]  # the number of panels in a row, and the width and height of a panel in inches
DrawRow = Callable[[plots.AxesArray, str, pd.DataFrame], None]  # fills the panels of a corpus with its data


def by_corpus(source: Source, data: pd.DataFrame, size: Size, draw: DrawRow, note: str = "") -> plots.Drawing:
    """Return a drawing with a row of panels per corpus.

    A corpus without data has a row with the text `nothing to show yet` if the study has the corpus, and otherwise none.

    Args:
        source: the experiment and its records.
        data: the numbers to draw, with the columns `dataset` and `model`.
        size: number of panels per row, and width and height of a panel in inches.
        draw: function `draw(axes, corpus, of_corpus)` that fills the row of a corpus. `axes` is the array of the row's
            panels, `corpus` the corpus's name, and `of_corpus` the part of `data` on this corpus.
        note: the note of the drawing; by default a sentence on how many runs are drawn.
    """
    frames = {dataset: data[data["dataset"] == dataset] for dataset in source.corpora}
    frames = {dataset: part for dataset, part in frames.items() if dataset in source.datasets or len(part)}
    canvas, axes = plots.panels(len(frames), *size)
    for row, (dataset, of_corpus) in zip(axes, frames.items(), strict=True):
        if len(of_corpus):
            draw(row, dataset, of_corpus)
        else:
            plots.empty(row[0], f"{corpus_title(source, dataset)}: nothing to show yet")
    return plots.Drawing(canvas, data, note or count_note(source, data))


# --- which runs are drawn, in words ---------------------------------------------------------------------------------
def count_note(source: Source, drawn: pd.DataFrame) -> str:
    """Return a note such as `3 of 4 planned runs are in this figure.`

    Rows of `drawn` with the same dataset, model and, if there is such a column, seed are one run.
    """
    runs = len(drawn.filter(["dataset", "model", "seed"]).drop_duplicates())
    planned = sum(len(source.runs(dataset)) for dataset in source.datasets)
    return f"{runs} of {planned} planned runs are in this figure."


def corpus_title(source: Source, dataset: str) -> str:
    """Return the title of a corpus, shortened to at most 48 characters."""
    return textwrap.shorten(source.study.dataset(dataset).title, 48, placeholder="…") or dataset


def paper_title(source: Source, dataset: str, same: bool) -> str:
    """Return the title of a panel of published numbers, such as `Penn Treebank: published`.

    If `same` is False, the title ends with `, full size`. This tells readers that the study does not have the corpus
    or the settings of the published numbers.
    """
    return f"{source.published_title(dataset)}: published" + ("" if same else ", full size")


def short_name(study: Study, model: str) -> str:
    """Return the label of a model; if it is longer than LONGEST_NAME, `…` replaces its middle.

    The end of the label stays, because the labels of the models of one search differ only there.
    """
    text, half = label(study, model), LONGEST_NAME // 2
    return text if len(text) <= LONGEST_NAME else f"{text[: half - 1]}…{text[-half:]}"
