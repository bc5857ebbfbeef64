"""The templates of report/."""

from __future__ import annotations

from functools import cache
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from softmax_bottleneck.store import paths

PLAIN = " !$()*+,-./:;=?@[]^_`{|}~<>'"  # need no escape in a data address, nor in an attribute in double quotes


@cache
def environment() -> jinja2.Environment:
    """The templates of report/: everything escaped, an undefined name is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(paths.ROOT / "report", encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def data_address(kind: str, text: str) -> str:
    """Text as a `data:` address for an attribute in double quotes: percent signs, since base64 takes a fifth more.

    It is safe there as it stands: double quotes and ampersands are percent signs too.
    """
    return Markup(f"data:{kind};charset=utf-8,{quote(text, safe=PLAIN)}")
