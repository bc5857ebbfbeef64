"""Texts of a study as Snakemake's own report takes them: it writes labels into an inline script and escapes nothing."""

import re

ANGLES = str.maketrans("<>", "‹›")  # `</script>` in a title would end that script


def label(text: str) -> str:
    """One line that cannot leave a script."""
    return " ".join(text.split()).translate(ANGLES)


def restructured(text: str) -> str:
    """The same as reStructuredText, without markup."""
    return re.sub(r"([\\*`|_])", r"\\\1", label(text))
