"""How numbers and labels are printed."""

import json
import math

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


def test_spreads_intervals_and_shares() -> None:
    assert numbers.spread(57.084, 0.104) == "57.08 ± 0.10" and numbers.spread(57.084, None) == "57.08"
    assert numbers.interval(-0.12, 0.3) == "−0.12 to +0.30" and numbers.interval(None, 1.0) == ""
    assert numbers.percent(-0.034, 1) == "−3.4 %"
    assert [numbers.seeds(s) for s in ([3], [4, 5], range(9))] == ["seed 3", "seeds 4, 5", "9 seeds"]


def test_counts_of_runs() -> None:
    assert [numbers.counts(n) for n in ([3], [3, 3], [3, 12])] == ["n = 3", "n = 3 each", "n = 3 and 12"]


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "a\u2028b\n\n.. raw:: html\n\n   <b>",
    "*a* `b` |c| d_ \\",
]


@pytest.mark.fault("G16")
@pytest.mark.parametrize("text", HOSTILE)
def test_a_label_cannot_leave_the_script_it_is_written_into(text: str) -> None:
    written = json.dumps({"title": numbers.label(text)}, ensure_ascii=False)
    assert "<" not in written and ">" not in written and len(written.splitlines()) == 1
