"""The page of `rank`: one file without scripts that loads nothing, to send to a colleague."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jinja2


def page(title: str, rows: Iterable[tuple[str, str]], notes: Sequence[str], files: Mapping[str, str], svg: str) -> str:
    """Return a self-contained HTML page of the results of one model; all text in it is escaped.

    Args:
        title: name of the model.
        rows: pairs of a name and a value, as `rank` prints them.
        notes: caveats of the values.
        files: name -> sha256 of every file that was read or written.
        svg: plot of the singular values, embedded as an image.
    """
    loader = jinja2.FileSystemLoader(Path(__file__).parent, encoding="utf-8")
    templates = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    image = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode('utf-8')).decode('ascii')}"
    html = templates.get_template("page.html.j2").render(title=title, rows=rows, notes=notes, files=files, image=image)
    return html.encode("utf-8", "backslashreplace").decode("utf-8")  # a file name may contain any bytes
