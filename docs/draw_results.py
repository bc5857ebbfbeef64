"""Write the findings of README.md with their figures, and the tables of docs/results.md, from the archived studies.

python docs/draw_results.py    # also docs/overview.svg, if results/ has the demonstration
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

from softmax_bottleneck import study as config  # noqa: E402
from softmax_bottleneck.records.records import Records  # noqa: E402
from softmax_bottleneck.report import archive, cells, compare, findings, source  # noqa: E402
from softmax_bottleneck.report.archive import ArchivedRun, FinishedStudy  # noqa: E402
from softmax_bottleneck.report.claims.rules import NOT_REPRODUCED, REPRODUCED, SYNTHETIC  # noqa: E402
from softmax_bottleneck.report.report import environment  # noqa: E402
from softmax_bottleneck.store import artefacts  # noqa: E402
from softmax_bottleneck.store.paths import Store  # noqa: E402

README, PAGE = ROOT / "README.md", ROOT / "docs" / "results.md"
FIGURES = ROOT / "docs" / "findings"
PICTURED = "demo"
PICTURE = ROOT / "docs" / "overview.svg"
STUDIES = "report/evidence/studies"
MOST_LINKS = 3  # of a finding; more studies are linked by their folder
MODELS = ("softmax", "ss", "gss", "gss-c1.5", "lms-plif", "lms-plif-frozen", "moc", "moc-equal", "mos", "mos-equal")
RATES = ("10", "5")  # learning rates at which MoC with K = 1 learns
STEPS = {  # from the softmax to MoS: {model without its rate: what it adds to the one before}
    "softmax": "",
    "moc-k1": "the layer: MoC with K = 1 against Softmax",
    "moc": "mixing contexts: MoC against MoC with K = 1",
    "mos": "mixing probabilities: MoS against MoC",
}
VARIED = (
    "moc-k1",
    "moc-k2",
    "moc-k15",
    "moc-dropout",
    "mos-k2",
    "mos-k15",
    "mos-dropout",
    *(f"{model}-r{RATES[0]}" for model in STEPS),
)  # of rank-or-mixture
# Of the demonstration: Softmax, the same with the extra layer of MoS (K = 1), and MoS with K = 4.
LAYERS = ("softmax-nt", "mos-nt-components1", "mos-nt-components4")
DECIDED = (REPRODUCED, NOT_REPRODUCED)
READING = "benka-mixture"  # the study of both heads in the best reading
BOTH = ("transformer", "transformer-mos")  # its models
MIXTURES = (READING, f"{READING}-50")  # and with all epochs
READINGS = ("benka-readings", "paper")  # studies of Benka's Transformer with a softmax
TRANSFORMER = ("transformer", "softmax")  # body and head of a reading
READ_EPOCH = 15  # the epoch after which readings are compared
METRICS = {
    "parameters": ("parameters", 0),
    "test_ppl": ("test perplexity", 2),
    "rank_press": ("Press rank", 0),
    "rank_eff_1e-3": ("effective rank, ε = 0.001", 0),
    "kl_truth_nats": ("KL from the true distribution, nats", 3),
}
IMAGE = (
    "![Test perplexity against parameters: a dot per head, coloured by effective rank; the true perplexity as a line]"
    "(overview.svg)"
)
END = "<!-- end of results -->"


def begin(name: str) -> str:
    """Return the marker line before the results `name` on a page."""
    return f"<!-- results of {name}: written by docs/draw_results.py -->"


def between(name: str, lines: Sequence[str], text: str) -> str:
    """Return a page's text with `lines` between the markers of `name`; raise ValueError if it lacks the first."""
    start = begin(name)
    if start not in text:
        raise ValueError(f"the page has no line {start}")
    pattern = re.compile(re.escape(start) + r"\n.*?" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: "\n".join([start, *lines, END]), text, count=1)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, the first row as its head."""
    return [f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]


# --- README ---------------------------------------------------------------------------------------------------------
def answer(studies: Sequence[FinishedStudy]) -> tuple[list[str], dict[Path, str]]:
    """Return the lines of README.md with the answer and the findings, and {path: SVG} of the figures."""
    found = findings.answer(studies)
    lines = ["", f"**{found['answer']}**"]
    for number, finding in enumerate(found["findings"], 1):
        links = [f"[{name}]({STUDIES}/{name}.json.gz)" for name in finding["studies"]]
        if len(links) > MOST_LINKS:
            links = [f"[{len(links)} archived studies]({STUDIES})"]
        image = f"docs/findings/{finding['id']}.svg"
        lines += [
            "",
            f"**{number}. {finding['title']}.** {finding['sentence']}",
            f"*Number:* {finding['number']}.",
            f"*Overturned by:* {finding['overturn']} *Evidence:* {', '.join(links)}.",
            "",
            f'<img src="{image}" width="400" alt="{finding["axis"]}">',
        ]
    return [*lines, ""], {FIGURES / f"{one['id']}.svg": one["svg"] for one in found["findings"]}


def advice(heads: Mapping[str, Any]) -> list[str]:
    """Return the table of heads with a recommendation, without perplexities."""
    recommendation = environment().get_template("claims.html.j2").module.recommendation
    rows = [["head", "recommendation", "parameters", "time", "memory", "Press rank"]]
    for row in heads["rows"]:
        first = row["first"]
        costs = [f"{value} ×" for value in (first["size"], first["time"], row["memory"])]
        rows.append([row["label"], str(recommendation(row, row is heads["rows"][0])).strip(), *costs, first["press"]])
    return ["", *table(rows), ""]


# --- docs/results.md ------------------------------------------------------------------------------------------------
def all_heads(heads: Mapping[str, Any]) -> list[str]:
    """Return the table of every head relative to the softmax: a row per corpus of each archived study."""
    rows = [["corpus (study)", *(row["label"] for row in heads["rows"])]]
    for index, column in enumerate(heads["columns"]):
        source = ", ".join(filter(None, (column["study"], column["hardware"])))
        changes = (" ".join(_parts(row["cells"][index])) for row in heads["rows"])
        rows.append([f"{column['corpus']} ({source})", *changes])
    return ["", *table(rows), ""]


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a cell: value, interval, n and, if they differ, the ratio of parameters to the softmax."""
    if not cell:
        yield "not run"
        return
    yield cell["value"]
    if cell.get("interval"):
        yield f"({cell['interval']})"
    yield f"{cell['n']}{', ' + cell['size'] + ' × parameters' if cell.get('size') else ''}"


def results(archives: Sequence[FinishedStudy]) -> list[str]:
    """Return the verdicts of a study and, for every corpus, a heading sentence and a table of the main models.

    `archives` are those of the study, one per machine. The first archive that has a model gives its numbers.
    """
    archived, *again = archives
    verdicts = [entry["verdict"] for entry in archived.claims]
    tally = ", ".join(f"{verdicts.count(name)} {name}" for name in compare.OVERALL if name in verdicts)
    is_judged = len(set(verdicts)) > 1  # a study that varies one head can test no conclusion
    lines = ["", f"Verdicts of this study on the conclusions of all papers: {tally}."] if is_judged else []
    lines += [line for other in again for line in agreement(archived, other)]
    lines += ["", IMAGE] if archived.study == PICTURED else []
    shown = MODELS + {PICTURED: LAYERS, READING: BOTH}.get(archived.study, VARIED)
    for dataset, title in archived.corpora.items():
        having = {m: [one for one in archives if one.records.values(dataset, m, "test_ppl")] for m in shown}
        first = {model: studies[0] for model, studies in having.items() if studies}
        if not first:
            continue  # no run on this corpus
        found = {model: one.records for model, one in first.items()}
        metrics = [key for key in METRICS if any(own.values(dataset, model, key) for model, own in found.items())]
        rows = [["head", *(METRICS[metric][0] for metric in metrics)]]
        for model, own in found.items():
            place = "" if first[model] is archived else f" (on {first[model].hardware})"
            values = [(own.values(dataset, model, metric).values(), METRICS[metric][1]) for metric in metrics]
            label = own.planned(dataset, model)["label"].iloc[0]
            rows.append([label + place, *(_cell(list(all_), digits) for all_, digits in values)])
        lines += ["", _heading(title, found, dataset), "", *table(rows)]
    return [*lines, ""]


def averaging(archived: FinishedStudy) -> list[str]:
    """Return a table of perplexities in the last epoch before averaging (ET-ASGD) and in the last epoch, by model."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for run in archived.runs:
        before = [epoch for epoch in run.history if epoch["phase"] == "sgd"][-1]
        values = (before["train_ppl"], before["valid_ppl"], run.history[-1]["valid_ppl"])
        found.setdefault(run.label, []).append(values)
    head = ["model", "n", "training, before averaging", "validation, before averaging", "validation, at the end"]
    rows = [
        [label, str(len(own)), *(_cell(column, 1) for column in zip(*own, strict=True))] for label, own in found.items()
    ]
    return ["", *table([head, *rows]), ""]


def steps(archived: FinishedStudy) -> list[str]:
    """Return a table of what each of STEPS changes, with its share of the whole gain in log perplexity."""
    rows = [["rate", "step", "change in test perplexity", "share of the gain of MoS"]]
    for rate in RATES:
        pairs = [(f"{model}-r{rate}", f"{before}-r{rate}", STEPS[model]) for before, model in pairwise(STEPS)]
        found = [(findings.comparisons([archived], *pair, findings.BETTER), label) for *pair, label in pairs]
        on = {one.place for one in found[0][0]}  # MoC with K = 1 ran on one corpus at most
        changes = [one.row(label) for every, label in found for one in every if one.place in on]
        gains = [math.log1p(row.value / 100) for row in changes]
        plot = findings.DotPlot(changes, axis="")
        shares = [f"{gain / sum(gains):.0%}".replace("%", " %") for gain in gains]
        rows += [[rate, row.label, plot.text(row), share] for row, share in zip(changes, shares, strict=True)]
    return ["", *table(rows), ""]


def readings(studies: Sequence[FinishedStudy]) -> list[str]:
    """Return a table of Benka's Transformer with a softmax in every reading, after READ_EPOCH epochs and at the end."""
    every = [run for study in studies if study.study in READINGS for run in study.runs]
    runs = [run for run in every if (run.run.body.kind, run.run.head.name) == TRANSFORMER]
    runs = sorted(
        (run for run in runs if len(run.history) >= READ_EPOCH),
        key=lambda run: run.history[READ_EPOCH - 1]["valid_ppl"],
    )
    head = ["reading", "machine", "falls of the rate", "training", "validation"]
    rows = [[*head, "epochs", "validation, at the end", "test, at the end"]]
    for run in runs:
        early = (run.history[READ_EPOCH - 1][key] for key in ("train_ppl", "valid_ppl"))
        end = (run.values[key] for key in ("valid_ppl", "test_ppl"))
        label = "As in config/paper.yaml" if run.run.model == "transformer" else run.label
        numbers = [*(f"{x:.1f}" for x in early), str(len(run.history)), *(f"{x:.1f}" for x in end)]
        rows.append([label, archive.machine(run.hardware), falls(run, READ_EPOCH), *numbers])
    return ["", *table(rows), ""]


def mixture_runs(studies: Sequence[FinishedStudy]) -> list[str]:
    """Return a table of every run of MIXTURES, with the number of times that its learning rate has fallen."""
    rows = []
    for run in (run for study in studies if study.study in MIXTURES for run in study.runs):
        epochs, ends = len(run.history), (f"{run.values[key]:.2f}" for key in ("valid_ppl", "test_ppl"))
        rows.append(
            [str(epochs), run.label, archive.machine(run.hardware), str(run.run.seed), falls(run, epochs), *ends]
        )
    head = ["epochs", "head", "machine", "seed", "falls of the rate", "validation", "test"]
    return ["", *table([head, *sorted(rows, key=lambda row: (int(row[0]), row[1] != "Softmax", row[4], row[3]))]), ""]


def falls(run: ArchivedRun, epochs: int) -> str:
    """Return how often the learning rate of `plateau-sgd` has fallen before the last of the first `epochs` epochs."""
    valid = [epoch["valid_ppl"] for epoch in run.history[: epochs - 1]]
    return str(sum(now >= min(valid[:epoch]) for epoch, now in enumerate(valid) if epoch))


def agreement(first: FinishedStudy, other: FinishedStudy) -> list[str]:
    """Return a sentence on how many decided conclusions on trained models are decided alike on another machine.

    The result is the lines of a paragraph; there is none if no conclusion is decided.
    """
    verdicts = [
        {(e["dataset"], e["id"]): e["verdict"] for e in one.claims if e["dataset"] != SYNTHETIC}
        for one in (first, other)
    ]
    decided = [(verdict, verdicts[1].get(key)) for key, verdict in verdicts[0].items() if verdict in DECIDED]
    alike, opposite = (sum(two in DECIDED and (one == two) is same for one, two in decided) for same in (True, False))
    sentence = (
        f"On {other.hardware} every run takes another course. Verdicts there on the {len(decided)} decided conclusions "
        f"on trained models: {alike} the same, {opposite} opposite, {len(decided) - alike - opposite} not decided."
    )
    return ["", sentence] if decided else []


def _heading(title: str, found: Mapping[str, Records], dataset: str) -> str:
    counts = sorted({len(own.values(dataset, model, "test_ppl")) for model, own in found.items()})
    runs = f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} run{'' if counts == [1] else 's'} each"
    words = f"{title}: mean ± standard deviation over {runs}."
    first = next(iter(found.values()))
    bound, rank = (source.exact_value(first, dataset, metric) for metric in ("entropy_ppl", "rank_truth"))
    if bound is None or rank is None:
        return words
    return f"{words} The true distribution has perplexity {bound:.2f} and log-probabilities of rank {rank:.0f}."


def _cell(values: Sequence[float], digits: int) -> str:
    return cells.Cell(measured=cells.mean_of(values), digits=digits).text.removesuffix(" ± 0")


# --- files ----------------------------------------------------------------------------------------------------------
def written(studies: Sequence[FinishedStudy]) -> dict[Path, str]:
    """Return {path: new text} of every file that is written from the archived studies."""
    demo = config.load_study(ROOT / "config" / "demo.yaml")
    heads = compare.head_table(studies, demo)
    assert heads is not None
    lines, figures = answer(studies)
    readme, page = (path.read_text(encoding="utf-8") for path in (README, PAGE))
    page = between("heads", all_heads(heads), page)
    for archived in reversed(studies):  # a later archive is overwritten: the first stays
        if begin(archived.study) in page:
            archives = [one for one in studies if one.study == archived.study]
            page = between(archived.study, results(archives), page)
        if begin(f"averaging in {archived.study}") in page:
            page = between(f"averaging in {archived.study}", averaging(archived), page)
        if begin(f"steps in {archived.study}") in page:
            page = between(f"steps in {archived.study}", steps(archived), page)
    page = between("readings", readings(studies), page)
    page = between("mixture runs", mixture_runs(studies), page)
    return {README: between("heads", advice(heads), between("findings", lines, readme)), PAGE: page, **figures}


def main() -> None:
    """Write the files."""
    FIGURES.mkdir(exist_ok=True)
    for path, text in written(archive.load_all()).items():
        path.write_text(text, encoding="utf-8")
    overview = Store().study_folder(PICTURED) / "figures" / "overview.svg"
    if overview.is_file():
        PICTURE.write_text(artefacts.read_text(overview), encoding="utf-8")


if __name__ == "__main__":
    main()
