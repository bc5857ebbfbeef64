"""Write the tables of docs/results.md from a finished study, and docs/overview.svg from the demonstration.

python docs/draw_results.py [config/demo.yaml]   # needs results/ of that study
python docs/draw_results.py heads                # the table of heads, from the archived studies
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

from softmax_bottleneck import study as config  # noqa: E402
from softmax_bottleneck.records import records  # noqa: E402
from softmax_bottleneck.records.records import Records  # noqa: E402
from softmax_bottleneck.report import archive, cells, claims, findings, source  # noqa: E402
from softmax_bottleneck.store import artefacts  # noqa: E402
from softmax_bottleneck.store.paths import Store  # noqa: E402
from softmax_bottleneck.study import Study  # noqa: E402

PAGE = ROOT / "docs" / "results.md"
PICTURED = "demo"
PICTURE = ROOT / "docs" / "overview.svg"
MODELS = ("softmax", "ss", "gss", "lms-plif", "lms-plif-frozen", "moc", "moc-equal", "mos", "mos-equal")
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


def begin(study: str) -> str:
    """Return the line of the page that precedes a study's results."""
    return f"<!-- results of {study}: written by docs/draw_results.py -->"


END = "<!-- end of results -->"


def between(start: str, body: str, text: str) -> str:
    """Return the page's text with a new body between the markers; raise ValueError if it has none."""
    if start not in text:
        raise ValueError(f"docs/results.md has no line {start}")
    pattern = re.compile(re.escape(start) + r"\n.*?" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: f"{start}\n{body}{END}", text, count=1)


def table_of_heads(text: str) -> str:
    """Return the page's text with every head relative to the softmax, in all archived studies."""
    found = findings.head_table(archive.load_all(), config.load_study(ROOT / "config" / "demo.yaml"))
    assert found is not None
    heads = [f"{one['corpus']} ({one['study']}, {one['hardware']})" for one in found["columns"]]
    rows = [["head", *heads], ["---"] * (len(heads) + 1)]
    for row in found["rows"]:
        rows.append([row["label"], *(" ".join(_parts(cell)) for cell in row["cells"])])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return between(begin("heads"), "\n".join(["", *lines, ""]), text)


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a cell: value, interval, n, and how many times the softmax's parameters it has."""
    if not cell:
        yield "not run"
        return
    yield cell["value"]
    if cell.get("interval"):
        yield f"({cell['interval']})"
    yield f"{cell['n']}{', ' + cell['size'] + ' × parameters' if cell.get('size') else ''}"


def results(study: Study, found: Records) -> list[str]:
    """Return, for every corpus, a heading sentence and a Markdown table of the main models."""
    lines: list[str] = []
    for dataset in study.datasets:
        models = [model for model in MODELS if found.values(dataset, model, "test_ppl")]
        metrics = [metric for metric in METRICS if any(found.values(dataset, model, metric) for model in models)]
        lines += ["", _heading(study, found, dataset, models), "", *_table(study, found, dataset, models, metrics)]
    return [*lines, ""]


def _heading(study: Study, found: Records, dataset: str, models: Sequence[str]) -> str:
    counts = sorted({len(found.values(dataset, model, "test_ppl")) for model in models})
    runs = f"{' or '.join(map(str, counts))} run{'' if counts == [1] else 's'} each"
    words = f"{study.datasets[dataset].title}: mean ± standard deviation over {runs}."
    bound, rank = (source.exact_value(found, dataset, metric) for metric in ("entropy_ppl", "rank_truth"))
    if bound is None or rank is None:
        return words
    return f"{words} The true distribution has perplexity {bound:.2f} and log-probabilities of rank {rank:.0f}."


def _table(study: Study, found: Records, dataset: str, models: Sequence[str], metrics: Sequence[str]) -> list[str]:
    rows = [["head", *(METRICS[metric][0] for metric in metrics)], ["---"] * (len(metrics) + 1)]
    for model in models:
        values = [found.values(dataset, model, metric).values() for metric in metrics]
        digits = [METRICS[metric][1] for metric in metrics]
        rows.append([study.labels[model], *(_cell(list(v), d) for v, d in zip(values, digits, strict=True))])
    return [f"| {' | '.join(row)} |" for row in rows]


def _cell(values: Sequence[float], digits: int) -> str:
    text = cells.Cell(measured=cells.mean_of(values), digits=digits).text
    return text.removesuffix(" ± 0")


def write(study: Study, found: Records, text: str) -> str:
    """Return the page's text with new results of the study between its markers; raise ValueError if it has none."""
    verdicts = claims.counts(claims.ledger(found, claims.of_study(study), study))
    tally = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items() if number)
    short = f"Verdicts of this study on the conclusions: {tally}."
    picture = ["", IMAGE] if study.name == PICTURED else []
    return between(begin(study.name), "\n".join(["", short, *picture, *results(study, found)]), text)


def main(arguments: Sequence[str]) -> None:
    """Write docs/results.md and, for the demonstration, docs/overview.svg."""
    if [*arguments] == ["heads"]:
        PAGE.write_text(table_of_heads(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    study = config.load_study(Path(arguments[0] if arguments else "config/demo.yaml"))
    folder = Store().study_folder(study.name)
    text = write(study, records.load(folder), PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    if study.name == PICTURED:
        PICTURE.write_text(artefacts.read_text(folder / "figures" / "overview.svg"), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
