"""The report: one self-contained HTML page per study, which embeds the tables and figures that `render` wrote.

The page needs no network and no other file: figures and downloads are embedded as `data:` addresses. The templates
escape all text. Figures are embedded as images, because browsers run no script inside an image. One script, report.js,
adds sorting and filters. The content security policy of the page allows no other script, and the page works without it.
"""

import base64
import hashlib
import re
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from softmax_bottleneck.report.cells import Table
from softmax_bottleneck.store import artefacts, paths

PLAIN = " !$()*+,-./:;=?@[]^_`{|}~<>'"  # need no escape in a data address, nor in an attribute in double quotes
PIXELS_PER_POINT = 4 / 3
BODY = re.compile("<!-- table -->(.*)<!-- end of table -->", re.DOTALL)  # the table within its own page
MOST_EMBEDDED = 500_000  # characters of a file for download; the page names the path of a larger one
PAGE_LINK = "../report/index.html"  # file to which the links in a table's own page lead


@cache
def environment() -> jinja2.Environment:
    """Return the Jinja environment of the templates, which escapes all text and rejects undefined names."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(paths.ROOT / "report", encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def fill(template: str, **values: object) -> str:
    """Return the text of a template in report/ with these values."""
    return environment().get_template(template).render(values)


def data_address(kind: str, text: str) -> str:
    """Return text as a `data:` address that may stand in an HTML attribute in double quotes without further escapes.

    `kind` is the MIME type, such as `text/csv`. The text is percent-encoded, which is a fifth shorter than base64.
    """
    return Markup(f"data:{kind};charset=utf-8,{quote(text, safe=PLAIN)}")


def csv_address(text: str) -> str:
    """Return the text of a CSV file as a `data:` address, or "" if it is too long to embed."""
    return data_address("text/csv", text) if len(text) <= MOST_EMBEDDED else ""


def table_page(table: Table, heads: Mapping[str, str] | None = None, study_file: str = "") -> str:
    """Return a small HTML page with only this table.

    Args:
        table: the table.
        heads: {model: label of its head}. With this mapping, a click on a number shows what it measures, and a link to
            its runs in the report's list, filtered by head. With None, numbers cannot be clicked.
        study_file: path of the study file, for the commands that the page prints to look up a number.
    """
    return fill("table-page.html.j2", table=table, heads=heads, study_file=study_file)


def write(folder: Path, reload_s: int | None = None, out: Path | None = None) -> Path:
    """Write the page index.html from the files that `render` wrote, and return its path.

    Args:
        folder: the study's folder, with the rendered tables and figures.
        reload_s: seconds after which browsers reload the page, for a study that is still running. The page then says
            that the study is running. None for a page that is not reloaded.
        out: the folder to write into; by default folder/report.

    Raises:
        DataError: one of the rendered files is damaged.
    """
    page = artefacts.read_json(folder / "page.json")
    for chapter in page["chapters"]:
        chapter["entries"] = [entry | _embedded(folder, entry["kind"], entry["id"]) for entry in chapter["entries"]]
    pictures = list(page["overview"]["panels"])
    page["overview"]["data"] = csv_address(artefacts.read_text(folder / "figures" / "overview.csv"))
    if page["answer"]:
        pictures += page["answer"]["picture"]["panels"] + page["answer"]["findings"]
    for picture in pictures:
        picture["image"] = data_address("image/svg+xml", picture["svg"])
    page["heads_image"] = data_address("image/svg+xml", fill("heads.svg.j2"))
    page["runs_csv"] = csv_address(page["runs_csv"])
    digest = base64.b64encode(hashlib.sha256(fill("report.js").encode("utf-8")).digest()).decode("ascii")
    page |= {"reload_s": reload_s, "written": time.strftime("%H:%M"), "script_hash": f"sha256-{digest}"}
    path = (out or folder / "report") / "index.html"
    artefacts.write_text(path, fill("template.html.j2", **page))
    return path


def _embedded(folder: Path, kind: str, name: str) -> dict[str, Any]:
    """Return the parts of a rendered table or figure that the page embeds, by the names of the template.

    `kind` is `table` or `figure`, and `name` the id of the experiment.
    """
    file = folder / f"{kind}s" / f"{name}.csv"
    parts = {"data": csv_address(artefacts.read_text(file)), "file": file.relative_to(folder).as_posix()}
    if kind == "table":
        body = BODY.search(artefacts.read_text(file.with_suffix(".html")))
        return parts | {"html": Markup(body[1].replace(PAGE_LINK, "") if body else "")}  # escaped
    svg = artefacts.read_text(file.with_suffix(".svg"))
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    width, height = (round(float(side) * PIXELS_PER_POINT) for side in size.groups()) if size else (0, 0)
    image = svg if "'" in svg else svg.replace('"', "'")  # a quote is three characters in an address
    return parts | {"image": data_address("image/svg+xml", image), "width": width, "height": height}
