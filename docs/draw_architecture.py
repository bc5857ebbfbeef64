"""Draw the figures and write the tables of docs/ that follow from the code: layers, rules, modules, metrics.

python docs/draw_architecture.py           # write the files
python docs/draw_architecture.py --check   # exit 1 if one of them differs from the code
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from html import escape
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

from softmax_bottleneck.records.metrics import Metric, catalogue  # noqa: E402

PACKAGE = ROOT / "workflow" / "softmax_bottleneck"
STUDY = ROOT / "config" / "paper.yaml"  # the study that needs most rules
BEGIN, END = "<!-- modules: written by draw_architecture.py -->", "<!-- end of modules -->"
STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#1f2430}.box{fill:#eef1f6;stroke:#6b7688}.row{fill:none;stroke:#c3cad6}
.note{fill:#5a6475}.line{fill:none;stroke:#6b7688;stroke-width:1.3}.head{fill:#6b7688}
@media (prefers-color-scheme:dark){text{fill:#e6e9ef}.box{fill:#2a3040;stroke:#8b96aa}.row{stroke:#434b5c}
.note{fill:#a7b0c0}.line{stroke:#8b96aa}.head{fill:#8b96aa}}
</style>"""
METRICS = """# Metrics

A metric has the same name in `records.csv`, in `report/published/` and in the columns of `config/experiments/`.
[`draw_architecture.py`](draw_architecture.py) writes this page from the catalogue,
[`report/metrics.yaml`](../report/metrics.yaml). `*` stands for a parameter.
`<metric>_gain_vs_<model>` is the mean of that model minus the mean of the row, and `<metric>_reduction_pct` is the same
in percent of the experiment's baseline.
"""
BOX_HEIGHT, GAP, CHARACTER = 28, 10, 8.2  # pixels
WIDTH = 860


# --- what the code says ---------------------------------------------------------------------------------------------
def modules() -> dict[str, str]:
    """Return {name: first paragraph of the docstring} of every subpackage and top-level module."""
    paths = [p for p in sorted(PACKAGE.glob("*.py")) if p.stem != "__init__"]
    found = {path.stem: _summary(path) for path in paths}
    return found | {path.parent.name: _summary(path) for path in sorted(PACKAGE.glob("*/__init__.py"))}


def _summary(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def layers() -> list[list[str]]:
    """Return the modules in layers, the command line first, as the import contract of pyproject.toml orders them."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    contract = next(one for one in tool["importlinter"]["contracts"] if one["type"] == "layers")
    return [re.split(r"\s*[:|]\s*", layer) for layer in contract["layers"]]


def helpers() -> list[str]:
    """Return the modules outside the layers: small ones that several layers import."""
    ordered = {name for layer in layers() for name in layer}
    return [name for name in modules() if name not in ordered]


def rules() -> list[tuple[str, str]]:
    """Return the edges (rule, rule that needs it) of Snakemake's rule graph, except those that other edges imply."""
    with tempfile.TemporaryDirectory() as empty:
        words = ["--snakefile", str(ROOT / "Snakefile"), "--directory", empty, "--configfile", str(STUDY)]
        command = [sys.executable, "-m", "snakemake", *words, "--rulegraph", "--quiet", "all"]
        dot = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = dict(re.findall(r'(\d+)\[label = "([^"]+)"', dot))
    edges = [(names[a], names[b]) for a, b in re.findall(r"(\d+) -> (\d+)", dot)]
    return sorted(_direct({edge for edge in edges if "reproduce" not in edge}))


def _direct(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the edges without those whose ends are also connected through other rules (the transitive reduction)."""

    def reaches(start: str, end: str) -> bool:
        return any(after == end or reaches(after, end) for before, after in edges if before == start)

    return {
        (start, end)
        for start, end in edges
        if not any(reaches(middle, end) for before, middle in edges if before == start and middle != end)
    }


# --- drawings -------------------------------------------------------------------------------------------------------
def _box(x: float, y: float, width: float, text: str) -> str:
    middle = f'x="{x + width / 2:.0f}" y="{y + BOX_HEIGHT / 2 + 4.5:.0f}"'
    shape = f'<rect class="box" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="5"/>'
    return f'{shape}<text {middle} text-anchor="middle">{escape(text)}</text>'


def _svg(parts: Iterable[str], height: float, title: str) -> str:
    size = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(title)}</title>'
    return "\n".join([head, STYLE, *parts, "</svg>", ""])


def _breadth(name: str) -> float:
    return max(64.0, len(name) * CHARACTER + 18)


def draw_layers() -> str:
    """Return the drawing of the layers: a module imports only from the rows below its own."""
    parts, y = [], 10.0
    rows = [(row, "") for row in layers()] + [(helpers(), "outside the layers")]
    for row, note in rows:
        lines = _wrapped(row)
        height = len(lines) * (BOX_HEIGHT + GAP) + GAP + (18 if note else 0)
        parts.append(f'<rect class="row" x="10" y="{y:.0f}" width="{WIDTH - 20}" height="{height:.0f}" rx="8"/>')
        if note:
            parts.append(f'<text class="note" x="24" y="{y + 20:.0f}">{note}</text>')
        for index, line in enumerate(lines):
            x = (WIDTH - sum(map(_breadth, line)) - GAP * (len(line) - 1)) / 2
            for name in line:
                top = y + GAP + index * (BOX_HEIGHT + GAP) + (18 if note else 0)
                parts.append(_box(x, top, _breadth(name), name))
                x += _breadth(name) + GAP
        y += height + 8
    return _svg(parts, y + 2, "Modules in layers: each imports only from the rows below it")


def _wrapped(names: list[str]) -> list[list[str]]:
    lines: list[list[str]] = [[]]
    for name in names:
        if lines[-1] and sum(map(_breadth, [*lines[-1], name])) + GAP * len(lines[-1]) > WIDTH - 60:
            lines.append([])
        lines[-1].append(name)
    return lines


def _depths(edges: list[tuple[str, str]]) -> dict[str, int]:
    """Return the level of each rule: its longest path from the top; one that needs none is above its first user."""
    found = dict.fromkeys(sorted({name for edge in edges for name in edge}), 0)
    for _ in found:
        for before, after in edges:
            found[after] = max(found[after], found[before] + 1)
    sources = {before for before, _ in edges} - {after for _, after in edges}
    return found | {name: min(found[after] for before, after in edges if before == name) - 1 for name in sources}


def draw_rules() -> str:
    """Return the drawing of the rules, from the corpora at the top to the report at the bottom."""
    edges = rules()
    depth = _depths(edges)
    places: dict[str, tuple[float, float]] = {}
    for level in range(max(depth.values()) + 1):
        row = sorted((name for name in depth if depth[name] == level), key=lambda n: (_centre(n, edges, places), n))
        for index, name in enumerate(row):
            places[name] = (WIDTH * (index + 1) / (len(row) + 1), 16 + level * 74)
    lines = [_arrow(places[a], places[b], depth[b] - depth[a]) for a, b in edges]
    boxes = [_box(x - _breadth(name) / 2, y, _breadth(name), name) for name, (x, y) in places.items()]
    marker = '<marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    head = f'<defs>{marker}<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
    return _svg(
        [head, *lines, *boxes], 74 * (max(depth.values()) + 1) - 12, "Rules of the workflow, and what each needs"
    )


def _centre(name: str, edges: list[tuple[str, str]], places: dict[str, tuple[float, float]]) -> float:
    above = [places[before][0] for before, after in edges if after == name and before in places]
    return sum(above) / len(above) if above else WIDTH / 2


def _arrow(start: tuple[float, float], end: tuple[float, float], levels: int) -> str:
    """Return an arrow downwards; over several levels it bends outwards, around the boxes between."""
    (x1, y1), (x2, y2) = (start[0], start[1] + BOX_HEIGHT), end
    bend = 0 if levels == 1 else (1 if x1 + x2 >= WIDTH else -1) * (50 + 45 * levels)
    third = (y2 - y1) / 3
    curve = f"C{x1 + bend:.0f} {y1 + third:.0f} {x2 + bend:.0f} {y2 - third:.0f} {x2:.0f} {y2:.0f}"
    return f'<path class="line" marker-end="url(#a)" d="M{x1:.0f} {y1:.0f}{curve}"/>'


def listed(page: str) -> str:
    """Return the page with a new table of modules, in the order of the drawing."""
    about = modules()
    order = [name for row in [*layers(), helpers()] for name in row]
    rows = [f"| `{name}` | {about[name].replace('|', chr(92) + '|')} |" for name in order]
    table = "\n".join([BEGIN, "", "| module | what it is |", "|---|---|", *rows, "", END])
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: table, page, flags=re.DOTALL)


def metrics() -> str:
    """Return docs/metrics.md: the metrics of report/metrics.yaml, grouped by the step that writes them and its file."""
    parts = [METRICS]
    for (step, file), own in groupby(catalogue().values(), lambda metric: (metric.step, metric.file)):
        head = "| name | label | unit | decimals | better | definition |\n|---|---|---|---|---|---|"
        parts += [f"## `{step}`: {file}\n", head, "\n".join(map(_metric, own)) + "\n"]
    return "\n".join(parts)


def _metric(metric: Metric) -> str:
    label = metric.label.format("*")
    return f"| `{metric.name}` | {label} | {metric.unit} | {metric.digits} | {metric.better} | {metric.definition} |"


def main() -> int:
    """Write the files, or with --check print which ones are out of date."""
    page = ROOT / "docs" / "architecture.md"
    wanted = {
        ROOT / "docs" / "architecture.svg": draw_layers(),
        ROOT / "docs" / "rules.svg": draw_rules(),
        ROOT / "docs" / "metrics.md": metrics(),
        page: listed(page.read_text(encoding="utf-8")),
    }
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)}: not what the code says; run python docs/draw_architecture.py")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
