"""Two small plans of fits, to Dirichlet draws and to a synthetic language, and the units that a plan makes."""

from typing import Any

from softmax_bottleneck import study as config
from softmax_bottleneck.study import Unit
from softmax_bottleneck.study.fits import FitPlan, units_of

LAW = {"vocabulary_size": 24, "topics": 2, "classes": 3, "markers_per_topic": 2, "affinity_bandwidth": 3.0}
DIRICHLET = {
    "kind": "dirichlet", "alphas": [0.5], "words": [8], "contexts": 30, "widths": [2],
    "models": {"softmax": {"head": "softmax"}, "mos": {"head": {"name": "mos", "components": 2}}}, "bias": False,
    "updates": 20, "learning_rate": 0.1,
}  # fmt: skip
LANGUAGE = {
    "kind": "language", "language": LAW, "ranks": [6, 14], "sample": 5000, "widths": [3, 8],
    "models": {
        "softmax": {"head": "softmax"},
        "mos": {"head": {"name": "mos", "components": 2}},
        "mos-equal": {"head": {"name": "mos", "components": 2}, "label": "MoS, equal", "equal_to": "softmax"},
    },
    "seeds": [1, 2], "updates": 12, "learning_rate": 0.05,
}  # fmt: skip


def units(entry: dict[str, Any], **changes: Any) -> tuple[Unit, ...]:
    return units_of("toy", config.read(FitPlan, entry | changes, "fits.toy"), {"device": "cpu"}, "fits.toy")
