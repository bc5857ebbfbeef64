"""Claims and figures about repeated tokens and about top tokens, on records whose answer is known."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from claim_examples import COLUMNS
from softmax_bottleneck.records.records import COLUMNS as ALL_COLUMNS
from softmax_bottleneck.records.records import STATE_COLUMNS, Records
from softmax_bottleneck.report.claims import CLAIMS, both_sides
from softmax_bottleneck.report.claims.rules import CANNOT, NOT_REPRODUCED, REPRODUCED, SYNTHETIC, CorpusData
from softmax_bottleneck.report.claims.verdict import judge
from softmax_bottleneck.report.source import Source
from softmax_bottleneck.report.views import both_sides as views
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study import load_study

BY_ID = {claim.id: claim for claim in CLAIMS}
WOBBLE = (0.98, 1.0, 1.03)


def runs(accuracy: float = 1.0, late: str = "", held_out: float = 0.0, **updates: float) -> Records:
    """Return records of three seeds per model; names are `<k>_<model>`, and `late` is one that did not learn."""
    lines = []
    for name, level in updates.items():
        size, _, model = name.partition("_")
        for seed, wobble in enumerate(WOBBLE, 2):
            own = {"steps": level * wobble, "accuracy": 0.5 if name == late else accuracy}
            own["accuracy_held_out"] = held_out if model.startswith("tied") else 0.0
            place = (f"repeat-{size[1:]}k", model.replace("_", "-"), "")
            lines += [(*place, metric, value, seed, f"{name}-{seed}") for metric, value in own.items()]
    return Records(pd.DataFrame(lines, columns=list(COLUMNS)), pd.DataFrame(columns=list(STATE_COLUMNS)))


def verdict(claim: str, records: Records) -> str:
    return judge(CorpusData(records, SYNTHETIC), BY_ID[claim]).verdict


@pytest.mark.parametrize(
    ("claim", "records", "expected"),
    [
        # 7,800 and 800 trained tokens: 9.75 times the updates are the same coverage
        ("coverage-d16", runs(V8_softmax_d16=9.75 * 3 * 100, V1_softmax_d16=100), REPRODUCED),
        ("coverage-d16", runs(V8_softmax_d16=9.75 * 100, V1_softmax_d16=100), NOT_REPRODUCED),
        ("coverage-d64", runs(V8_softmax_d64=9.75 * 100, V1_softmax_d64=100, late="V8_softmax_d64"), CANNOT),
        ("coverage-d64", runs(V8_softmax_d64=9.75 * 300, V1_softmax_d64=100, late="V8_softmax_d64"), REPRODUCED),
        ("coverage-d64", runs(V8_softmax_d64=9.75 * 300, V1_softmax_d64=100, late="V1_softmax_d64"), CANNOT),
        ("small-rank-slow", runs(V8_low_rank_d64=300, V8_softmax_d64=100), REPRODUCED),
        ("high-rank-fast", runs(V1_mos_d16=50, V1_softmax_d16=100), REPRODUCED),
        ("high-rank-fast", runs(V1_mos_d16=200, V1_softmax_d16=100, late="V1_mos_d16"), NOT_REPRODUCED),
        ("high-rank-fast", runs(V1_mos_d16=50, V1_softmax_d16=100, late="V1_mos_d16"), CANNOT),
        ("unseen-rows", runs(V8_tied_d64=50, V8_softmax_d64=100, held_out=0.9), REPRODUCED),
        ("unseen-rows", runs(V8_tied_d64=50, V8_softmax_d64=100, held_out=0.1), NOT_REPRODUCED),
        ("unseen-rows", runs(V1_tied_d64=50), CANNOT),
    ],
)
def test_claims_compare_coverage(claim: str, records: Records, expected: str) -> None:
    assert verdict(claim, records) == expected


def tops(*matrices: tuple[str, str, int, int, int], more: str = "") -> Records:
    """Return 80 draws per matrix (dataset, model, seed, d, level), at V = 2,000, spread around a level."""
    shape = {"source": "measured", "table": "top tokens", "metric": "top_m", "std": np.nan, "n": 1, "run_id": ""}
    rows = [
        (dataset, model, seed, f"V=2000;d={d}{more}", level + number // 10)
        for dataset, model, seed, d, level in matrices
        for number in range(80)
    ]
    frame = pd.DataFrame(rows, columns=["dataset", "model", "seed", "condition", "value"]).assign(**shape)
    return Records(frame[list(ALL_COLUMNS)], pd.DataFrame(columns=list(STATE_COLUMNS)))


RANDOM = ("synthetic", "random", 0)


def test_top_tokens_are_order_statistics_of_the_draws() -> None:
    (row,) = both_sides.top_sizes(tops((*RANDOM, 64, 7))).to_dict("records")
    assert (row["V"], row["d"], row["draws"]) == (2000, 64, 80)
    assert (row["top_m"], row["low"], row["high"], row["median"]) == (7, 7, 7, 11)  # 1st, 5th and 9th of 80: all 7


def test_undecided_draws_widen_the_interval_and_leave_the_claim() -> None:
    records = tops((*RANDOM, 32, 7), ("ptb-small", "softmax", 1, 32, 9), more=";undecided=5")
    row = both_sides.top_sizes(records).iloc[-1]
    assert (row["draws"], row["undecided"], row["top_m"], row["low"], row["high"]) == (85, 5, 0, 0, 9)
    assert verdict("top-m-trained", records) == CANNOT


@pytest.mark.parametrize(("level", "expected"), [(7, REPRODUCED), (2, NOT_REPRODUCED)])
def test_claims_about_top_tokens(level: int, expected: str) -> None:
    assert verdict("top-m-random", tops((*RANDOM, 64, level))) == expected
    trained = [("ptb-small", "softmax", seed, 32, level - 3) for seed in (1, 2, 3)]
    control = [("ptb-small", "softmax-random-directions", seed, 32, level + 9) for seed in (1, 2, 3)]
    assert verdict("top-m-trained", tops((*RANDOM, 32, level), *trained, *control)) == NOT_REPRODUCED


def test_a_row_per_run_has_its_coverage_and_ratio() -> None:
    study = load_study(ROOT / "config" / "repeat.yaml")
    records = runs(V8_softmax_d16=3120, V1_softmax_d16=96)
    own = {"head": SimpleNamespace(name="softmax"), "schedule": SimpleNamespace(batch_size=25), "seed": 3}
    body = SimpleNamespace(kind="transformer", tied=False, embedding_size=16)
    planned = [SimpleNamespace(dataset=f"repeat-{k}k", model="softmax-d16", body=body, **own) for k in (1, 8)]
    found = views.repeated_runs(study, records, planned)
    assert list(found["coverage"]) == pytest.approx([96 * 25 / 800, 3120 * 25 / 7800])
    assert list(found["ratio"]) == [62.5, 500.0] and set(found["body"]) == {"transformer, untied"}


def test_a_line_of_repeated_tokens_is_a_mean_over_seeds() -> None:
    """Two models with one head, width and body have a line each."""
    body = SimpleNamespace(kind="transformer", tied=False, embedding_size=16)
    own = {"head": SimpleNamespace(name="mos"), "body": body, "schedule": SimpleNamespace(batch_size=25)}
    planned = [SimpleNamespace(dataset="repeat-1k", model=m, seed=s, **own) for m in ("few", "many") for s in (2, 3, 4)]
    looks = {"runs": planned, "experiments": (), "fit_labels": {}, "labels": dict.fromkeys(("few", "many"), "")}
    datasets = load_study(ROOT / "config" / "repeat.yaml").datasets
    study = SimpleNamespace(datasets=datasets, runs_of=lambda _: planned, **looks)
    records = runs(V1_few=96, V1_many=192)
    source = SimpleNamespace(study=study, records=records, experiment=None)
    axes = views.repeat_figure(source).canvas.axes[0]  # type: ignore[arg-type]
    means = [float(line.get_ydata()[0]) for line in axes.lines if line.get_linestyle() != "None"]
    assert means == pytest.approx([steps * 25 / 800 * sum(WOBBLE) / 3 for steps in (96, 192)])


def test_figures_are_drawn_from_the_records() -> None:
    study = load_study(ROOT / "config" / "top-m.yaml")
    records = tops((*RANDOM, 32, 5), ("ptb-small", "softmax", 1, 32, 4))
    drawing = views.top_m_figure(Source(study, study.experiments[0], records), synthetic="top-m")
    assert sorted(drawing.data["top_m"]) == [4, 5]
    repeat = load_study(ROOT / "config" / "repeat.yaml")
    assert views.repeat_figure(Source(repeat, repeat.experiments[0], runs(V1_softmax_d16=96))).data.empty  # not chosen
