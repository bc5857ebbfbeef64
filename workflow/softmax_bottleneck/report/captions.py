"""Labels for Snakemake's own report, which writes labels into an inline script without escaping them."""

ANGLES = str.maketrans("<>", "‹›")  # `</script>` in a title would end that script


def label(text: str) -> str:
    """Return the text as one line that cannot end an inline script."""
    return " ".join(text.split()).translate(ANGLES)
