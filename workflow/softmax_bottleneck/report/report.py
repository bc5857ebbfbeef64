"""The report: one self-contained page per study, which embeds what `render` wrote and draws nothing again.

It needs no network and no other file. The templates escape all text, figures are images, in which no script runs, and
downloads are data addresses. One optional script, report.js, adds sorting and filters; the page's policy allows only
its hash.
"""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from markupsafe import Markup

from softmax_bottleneck.report.templates import data_address, environment
from softmax_bottleneck.store import artefacts

PIXELS_PER_POINT = 4 / 3
BODY = re.compile("<!-- table -->(.*)<!-- end of table -->", re.DOTALL)  # of a table's own page
PAGE_LINK = "../report/index.html"  # of the links in a table's own page to the list of runs


def report(folder: Path, reload_s: int | None = None, out: Path | None = None) -> Path:
    """Write index.html from rendered tables and figures into `out` or report/; return its path.

    With `reload_s`, the page reports a running study, and browsers reload it after that many seconds.

    Raises:
        DataError: one of the rendered files is damaged.
    """
    page = artefacts.read_json(folder / "page.json")
    entries = [page["overview"], *(entry for chapter in page["chapters"] for entry in chapter["entries"])]
    for entry in entries:
        entry |= _embedded(entry, folder)
    for finding in page["answer"]["findings"] if page["answer"] else ():
        finding["image"] = data_address("image/svg+xml", finding["svg"])
    page |= {name: data_address("text/csv", page[name]) for name in ("runs_csv", "claims_csv")}
    template = environment().get_template("template.html.j2")
    path = (out or folder / "report") / "index.html"
    page |= {"reload_s": reload_s, "script_hash": script_hash()}
    artefacts.write_text(path, template.render(**page))
    return path


def _embedded(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a table's rows or a figure as a data address, with its CSV."""
    path = folder / f"{entry['kind']}s" / f"{entry['id']}.csv"
    data = {"data": data_address("text/csv", artefacts.read_text(path))}
    if entry["kind"] == "table":
        body = BODY.search(artefacts.read_text(path.with_suffix(".html")))
        return data | {"html": Markup(body.group(1).replace(PAGE_LINK, "") if body else "")}  # escaped
    svg = artefacts.read_text(path.with_suffix(".svg"))
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    width, height = (round(float(side) * PIXELS_PER_POINT) for side in size.groups()) if size else (0, 0)
    image = svg if "'" in svg else svg.replace('"', "'")  # a quote is three characters in an address
    return data | {"image": data_address("image/svg+xml", image), "width": width, "height": height}


def script_hash() -> str:
    """Return the hash of the page's script for its Content-Security-Policy."""
    script = environment().get_template("report.js").render()
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode('utf-8')).digest()).decode('ascii')}"
