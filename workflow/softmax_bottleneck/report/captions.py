"""Texts of a study as Snakemake's own report takes them: it writes labels into an inline script and escapes nothing."""

ANGLES = str.maketrans("<>", "‹›")  # `</script>` in a title would end that script


def label(text: str) -> str:
    """Return the text as one line that cannot end an inline script."""
    return " ".join(text.split()).translate(ANGLES)
