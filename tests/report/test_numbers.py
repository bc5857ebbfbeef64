"""The formats of printed numbers and labels."""

import json
import math
import re

import pytest
from softmax_bottleneck.report import numbers


@pytest.mark.parametrize(
    "p, text",
    [(0.6, "0.60"), (0.0461, "0.046"), (1.0, "1.0"), (0.00123, "0.0012"), (0.001, "0.0010"), (0.000999, "9.99e−4"),
     (2.02e-15, "2.02e−15"), (0.0, "< 1.00e−300"), (None, "—"), (math.nan, "—")],
)  # fmt: skip
def test_p_values_are_decimals_until_they_would_show_nothing(p, text) -> None:
    assert numbers.p_value(p) == text


@pytest.mark.parametrize(
    "value, digits, signed, text",
    [(57.084, 2, False, "57.08"), (-0.2, 2, False, "−0.20"), (0.2, 2, True, "+0.20"), (-0.001, 2, True, "0.00"),
     (12345.6, 0, False, "12346"), (None, 2, False, "—"), (math.nan, 2, True, "—")],
)  # fmt: skip
def test_numbers_have_their_decimals_and_a_true_minus_sign(value, digits, signed, text) -> None:
    assert numbers.number(value, digits, signed=signed) == text
    assert numbers.percent(-0.03) == "−3 %"


def test_a_span_leaves_out_nan() -> None:
    assert (numbers.span([math.nan, 2.0, 1.0]), numbers.span([math.nan])) == ("1.0 to 2.0", "—")


@pytest.mark.parametrize("texts", ["", "a", "a and b", "a, b and c"])
def test_a_list_in_a_sentence_has_one_and(texts: str) -> None:
    assert numbers.listed(re.findall(r"\b(?!and)\w+", texts)) == texts


HOSTILE = [
    "</script><script>alert(1)</script>", "<!--<script>", "a\u2028b\n\n.. raw:: html\n\n   <b>", "*a* `b` |c| d_ \\",
]  # fmt: skip


@pytest.mark.fault("G16")
@pytest.mark.parametrize("text", HOSTILE)
def test_a_label_cannot_leave_the_script_it_is_written_into(text: str) -> None:
    written = json.dumps({"title": numbers.label(text)}, ensure_ascii=False)
    assert "<" not in written and ">" not in written and len(written.splitlines()) == 1
