"""Both sides of 2026: the probabilities that a softmax can give to the top tokens, and the learning of repeated tokens.

The first is Basri and Jacobs 2026 (`ranks.top_tokens`), the second Godey and Artzi 2026 (`training.repeat`).
"""

from typing import Any, Literal

import pandas as pd

from softmax_bottleneck.corpora.repeat import LEARNED
from softmax_bottleneck.records.metrics import ACCURACY, ACCURACY_HELD_OUT, STEPS, TOP_M
from softmax_bottleneck.records.records import Records, groups
from softmax_bottleneck.report import figures, plots
from softmax_bottleneck.report.claims.both_sides import coverage, top_sizes
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.study import Run, Study

MEASURED, TIED = (STEPS, ACCURACY, ACCURACY_HELD_OUT), {True: "tied", False: "untied"}
RUNS = ("dataset", "model", "seed", "head", "body", "d", "V", "ratio", "coverage", *MEASURED)
AXES = {"coverage": "sequences of each token", ACCURACY_HELD_OUT: "accuracy, held-out tokens"}


def repeated_runs(study: Study, records: Records, runs: tuple[Run, ...]) -> pd.DataFrame:
    """Return a row per finished run on repeated tokens, with its sizes, updates and accuracies (columns RUNS).

    `ratio` is V / d. `coverage` is the number of sequences of every trained token that were read when training ended,
    which is when the accuracy was at least LEARNED, or when all sequences had been read.
    """
    rows = []
    for run in runs:
        text, body, d = study.datasets[run.dataset].repeat, run.body, run.body.embedding_size
        steps, *shares = (records.values(run.dataset, run.model, metric).get(run.seed) for metric in MEASURED)
        if text and steps is not None:
            names = (run.dataset, run.model, run.seed, run.head.name, f"{body.kind}, {TIED[body.tied]}")
            read, words = coverage(text, steps, run.schedule.batch_size), text.vocabulary_size
            rows.append((*names, d, words, words / d, read, steps, *shares))
    return pd.DataFrame(rows, columns=list(RUNS))


def repeat_figure(source: Source) -> plots.Drawing:
    """Draw the coverage at which repeated tokens are learned, and the accuracy on held-out tokens, against V / d.

    There is a row of panels per body. A line joins the means over seeds of a model, in the look of the first model with
    its head. A run that did not learn its tokens is a cross at the coverage of the whole text.
    """
    runs = source.study.runs_of(source.experiment)
    data = repeated_runs(source.study, source.records, runs)
    if data.empty:
        return plots.only_text("No run on repeated tokens has finished.", data)
    first = {run.head.name: run.model for run in reversed(runs)}
    looks = dict(zip(first, figures.styles(first.values(), source.study).values(), strict=True))

    def draw(panel: Any, body: str, column: str) -> None:
        of_body = data[data["body"] == body]
        for (head, width, _), line in groups(of_body, "head", "d", "model"):
            style, means = looks[head], line.groupby("ratio")[column].mean()
            panel.plot(means.index, means, color=style.colour, linestyle=style.dash)
            panel.annotate(f" d = {width}", (means.index[-1], means.iloc[-1]), color=style.colour, fontsize=9)
            for learned, points in line.groupby(line[ACCURACY] >= LEARNED):
                panel.plot(points["ratio"], points[column], **style.dot | ({} if learned else {"marker": "x"}))
        plots.log_x(panel, sorted({round(ratio, 1) for ratio in of_body["ratio"]}))
        most = 1.0 if column == ACCURACY_HELD_OUT else data[column].max()
        panel.set(title=body, xlabel="V / d", ylabel=AXES[column], ylim=(-0.04 * most, 1.1 * most))

    canvas = plots.crossed(list(dict.fromkeys(data["body"])), list(AXES), 4.6, 3.2, draw)
    plots.legend(canvas, {head: head for head in sorted(set(data["head"]))}, looks)
    count = f"{(data[ACCURACY] >= LEARNED).sum()} of {len(data)} finished runs learned their tokens"
    return plots.Drawing(canvas, data, f"{count}; {len(runs)} are planned.")


def top_m_figure(source: Source, *, synthetic: Literal["top-m"]) -> plots.Drawing:
    """Draw the number of top tokens of any probabilities against the width d, with intervals, by size of vocabulary.

    Lines are random matrices. Diamonds are trained ones and their controls, drawn side by side. `synthetic` tells the
    step `synthetic` what to compute.
    """
    data = top_sizes(source.records)
    if data.empty:
        return plots.only_text("Top tokens are not computed yet.", data)
    canvas, ((panel,),) = plots.panels(1, 1, 8.6, 4.2)
    for number, ((dataset, model, words), sizes) in enumerate(groups(data.sort_values("d"), "dataset", "model", "V")):
        trained = dataset != "synthetic"
        name = f"{source.study.dataset(dataset).title}, {model}" if trained else model
        look = {"color": plots.SPARE[number % len(plots.SPARE)], "label": f"{name}, V = {int(words):,}", "capsize": 3}
        error = [sizes[TOP_M] - sizes["low"], sizes["high"] - sizes[TOP_M]]
        place = sizes["d"] * (1 + 0.02 * number) if trained else sizes["d"]
        panel.errorbar(place, sizes[TOP_M], yerr=error, fmt="D" if trained else "o-", **look)
    panel.set(xlabel="width d", ylabel="tokens m of any probabilities")
    plots.log_x(panel, sorted(set(data["d"])))
    panel.legend()
    note = f"{data['draws'].sum():,} draws over {len(data)} output matrices, {data['undecided'].sum()} undecided."
    return plots.Drawing(canvas, data, note)
