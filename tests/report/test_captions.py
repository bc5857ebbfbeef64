"""Texts of a study cannot end the script of Snakemake's own report."""

from __future__ import annotations

import json

import pytest
from softmax_bottleneck.report import captions

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "a\u2028b\n\n.. raw:: html\n\n   <b>",
    "*a* `b` |c| d_ \\",
]


@pytest.mark.fault("G16")
@pytest.mark.parametrize("text", HOSTILE)
def test_a_label_cannot_leave_the_script_it_is_written_into(text: str) -> None:
    written = json.dumps({"title": captions.label(text)}, ensure_ascii=False)
    assert "<" not in written and ">" not in written and len(written.splitlines()) == 1
