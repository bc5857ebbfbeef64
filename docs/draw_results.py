"""Writes the results in README.md, and docs/report.png, from a finished study and its report.

python docs/draw_results.py [config/demo.yaml]   # needs results/ of that study; the picture needs a Chromium
"""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

from softmax_bottleneck import study as config  # noqa: E402
from softmax_bottleneck.records import records  # noqa: E402
from softmax_bottleneck.records.records import Records  # noqa: E402
from softmax_bottleneck.report import cells, claims, source  # noqa: E402
from softmax_bottleneck.report.claims import sentences  # noqa: E402
from softmax_bottleneck.store.paths import Store  # noqa: E402
from softmax_bottleneck.study import Study  # noqa: E402

README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "report.png"
MODELS = ("softmax", "ss", "gss", "lms-plif", "lms-plif-frozen", "moc", "mos")
METRICS = {
    "test_ppl": ("test perplexity", 2),
    "rank_press": ("Press rank", 0),
    "rank_eff_1e-3": ("effective rank, ε = 0.001", 0),
    "kl_truth_nats": ("KL from the law, nats", 3),
}
VIEW = {"width": 1240, "height": 1000}
PLACES = ("", "#known-truth")  # what the picture shows
GAP, SCALE = 12, 0.75  # pixels between the two, and what the picture is reduced to


def begin(study: str) -> str:
    """The line of README.md after which a study's results stand."""
    return f"<!-- results of {study}: written by docs/draw_results.py -->"


END = "<!-- end of results -->"


def results(study: Study, found: Records) -> list[str]:
    """For every corpus a sentence on what is known of it and a Markdown table of the main models."""
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
    known = f" The best possible perplexity is {bound:.2f}, and the true rank of log P* is {rank:.0f}."
    return words if bound is None or rank is None else f"{words}{known}"


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
    """README's text with the study's results between its markers (ValueError when it has none)."""
    start = begin(study.name)
    if start not in text:
        raise ValueError(f"README.md has no line {start}")
    pattern = re.compile(re.escape(start) + r"\n.*?" + re.escape(END), re.DOTALL)
    short = sentences.in_short(study, found, claims.ledger(found, claims.of_study(study)))[:1]
    body = "\n".join([*results(study, found), *short, ""])
    return pattern.sub(lambda _: f"{start}\n{body}{END}", text, count=1)


def photograph(page: Path, picture: Path) -> None:
    """The top of a report, and beside it a table and a figure, as a small PNG."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    views = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        opened = browser.new_page(viewport=VIEW, color_scheme="light")
        for place in PLACES:
            opened.goto(f"{page.resolve().as_uri()}{place}")
            views.append(Image.open(io.BytesIO(opened.screenshot())).convert("RGB"))
        browser.close()
    width, height = views[0].size
    both = Image.new("RGB", (width * len(views) + GAP, height), "#808489")
    for index, view in enumerate(views):
        both.paste(view, (index * (width + GAP), 0))
    small = both.resize((round(both.width * SCALE), round(both.height * SCALE)), Image.Resampling.LANCZOS)
    small.quantize(256, method=Image.Quantize.FASTOCTREE).save(picture, optimize=True)


def main(arguments: Sequence[str]) -> None:
    """Write README.md and docs/report.png."""
    study = config.load_study(Path(arguments[0] if arguments else "config/demo.yaml"))
    text = write(study, records.collect(study), README.read_text(encoding="utf-8"))
    README.write_text(text, encoding="utf-8")
    photograph(Store().study_folder(study.name) / "report" / "index.html", PICTURE)


if __name__ == "__main__":
    main(sys.argv[1:])
