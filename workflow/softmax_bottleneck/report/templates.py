"""The templates of report/."""

from functools import cache
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from softmax_bottleneck.store import paths

PLAIN = " !$()*+,-./:;=?@[]^_`{|}~<>'"  # need no escape in a data address, nor in an attribute in double quotes


@cache
def environment() -> jinja2.Environment:
    """Return the environment of the templates: it escapes everything, and an undefined name is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(paths.ROOT / "report", encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def data_address(kind: str, text: str) -> str:
    """Return text as a `data:` address for an attribute in double quotes, which needs no further escapes.

    Percent-encoding is a fifth shorter than base64.
    """
    return Markup(f"data:{kind};charset=utf-8,{quote(text, safe=PLAIN)}")
