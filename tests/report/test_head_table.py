"""The table of heads relative to the softmax: of its size, with intervals, and a recommendation by a stated rule."""

from __future__ import annotations

from pathlib import Path

import claim_examples as examples
import fake_results as fake
import numpy as np
import pytest
from scipy import stats
from softmax_bottleneck.report import head_table
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.study import Study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return fake.load(tmp_path)


def finished(name: str, *rows: examples.Row) -> FinishedStudy:
    return FinishedStudy(name, name, name.title(), "CPU", {}, [], examples.records_of(rows))


def test_heads_are_compared_with_the_softmax_at_its_size_where_there_is_such_a_model(study: Study) -> None:
    levels = {"softmax": 50.0, "gss": 50.1, "mos": 40.0, "mos-equal": 45.0, "moc": 60.0}
    rows = [(model, "test_ppl", "", [x, 1.01 * x, 0.99 * x]) for model, x in levels.items()]
    rows += [(model, "parameters", "", [1.2e6 if model == "moc" else 1e6] * 3) for model in levels]
    rows += [(model, "unigram_ppl", "", [60.0] * 3) for model in levels]
    single = [(model, "test_ppl", "", [x]) for model, x in {"softmax": 80.0, "gss": 40.0}.items()]
    alone = finished("none", ("mos", "test_ppl", "", [50.0] * 3))
    table = head_table.head_table([finished("own", *rows), finished("one", *single), alone], study)
    assert [column["study"] for column in table["columns"]] == ["own", "one"]
    cells = {row["label"]: row["cells"] for row in table["rows"]}
    assert list(cells) == ["Softmax", "GSS", "MoC", "MoS"]
    assert cells["MoS"][0]["value"] == "−10.0\u00a0%" and cells["MoS"][0]["sign"] == -1 and not cells["MoS"][1]
    assert cells["MoC"][0]["sign"] == 1 and cells["MoC"][0]["size"] == "1.20" and cells["MoC"][0]["unlearned"] == 3
    assert cells["GSS"][0]["sign"] == 0 and cells["GSS"][1]["value"] == "−50.0\u00a0%"
    assert not cells["GSS"][1]["interval"] and cells["Softmax"][1]["value"] == "80.00"
    logs = np.log([[45, 45.45, 44.55], [50, 50.5, 49.5]])
    low, high = stats.ttest_ind(*logs, equal_var=False).confidence_interval()
    assert cells["MoS"][0]["interval"] == f"−{-100 * np.expm1(low):.1f} to −{-100 * np.expm1(high):.1f}"
    assert head_table.head_table([alone], study) is None
    twice = head_table.head_table([finished("own", *rows), finished("again", *rows)], study)  # on one corpus
    assert [row["compared"] for row in twice["rows"]] == [1] * 4 and twice["rows"][3]["lower"] == 1


@pytest.mark.parametrize(
    ("lower", "higher", "unlearned", "sizes", "expected"),
    [
        (2, 1, 0, {}, "mixed"),
        (1, 0, 1, {}, "better"),
        (0, 1, 0, {}, "worse"),
        (0, 0, 1, {}, "fragile"),
        (0, 1, 1, {}, "fragile"),  # a run that failed says more of its training than of the head
        (0, 0, 0, {"size": 1.04, "time": 1.6, "least_time": 0.9}, "free"),  # a time that may be the softmax's
        (0, 0, 0, {"size": 1.0, "time": 1.6, "least_time": 1.4}, "unproven"),
        (0, 0, 0, {"size": 1.2, "time": None, "least_time": None}, "unproven"),
    ],
)
def test_a_recommendation_follows_from_the_rule(lower, higher, unlearned, sizes, expected) -> None:
    assert head_table.advice({"lower": lower, "higher": higher, "unlearned": unlearned}, sizes) == expected


def test_memory_is_relative_to_the_benchmarked_softmax() -> None:
    memory = head_table.memory()
    assert memory["mos"] > memory["moc"] > memory["softmax"] == 1
    assert memory["lms-plif-frozen"] == memory["lms-plif"] and memory["ss"] == memory["sigsoftmax"]
