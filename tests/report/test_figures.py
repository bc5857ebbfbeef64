"""Looks of models: the same in every figure, and different within a figure."""

from types import SimpleNamespace
from typing import Any

import pytest
from softmax_bottleneck.report import figures, plots
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study import load_study

NEW = [f"new-{index}" for index in range(len(plots.SPARE))]


def study(absent: tuple[str, ...] = (), labels: tuple[str, ...] = (), **shown: list[str]) -> Any:
    """Return what `styles` reads of a study: figures with these models, and a run of softmax as the model `plain`."""
    runs = [SimpleNamespace(model="plain", head=SimpleNamespace(name="softmax"))]
    drawn = [SimpleNamespace(kind="figure", models=models, absent=absent) for models in shown.values()]
    return SimpleNamespace(runs=runs, experiments=drawn, fit_labels={}, labels=dict.fromkeys(labels, ""))


def test_a_model_looks_the_same_in_every_figure() -> None:
    planned = study(absent=("published",), labels=("in no figure",), all=["plain", *NEW, "x", "y"], few=["x", "y"])
    every = [*figures.PALETTE, "plain", *NEW, "x", "y", "published", "in no figure"]
    looks = figures.styles(every, planned)
    for models in (["mos"], ["published", "mos"], ["y", "x"], ["in no figure"], NEW):
        assert figures.styles(models, planned) == {model: looks[model] for model in models}
    assert looks["mos"].colour == figures.PALETTE["mos"] and looks["plain"].colour == figures.PALETTE["softmax"]
    assert len(set(looks.values())) == len(every)


def test_figures_repeat_a_colour_only_without_spare_ones() -> None:
    """Also the small figure, whose two models would have the last spare colour if the large ones came first."""
    other = [f"other-{index}" for index in range(len(plots.SPARE))]
    shown = {"one": [*NEW[1:], "x"], "two": [*other[1:], "y"], "both": ["x", "y"], "many": [*NEW, *other]}
    colours = {name: look.colour for name, look in figures.styles([*NEW, *other, "x", "y"], study(**shown)).items()}
    for name, models in shown.items():
        used = [colours[model] for model in models]
        assert max(map(used.count, used)) == (2 if name == "many" else 1), name


@pytest.mark.parametrize("name", ["truth", "tuned-small", "price", "benka-readings"])
def test_shipped_figures_of_few_models_repeat_no_colour(name: str) -> None:
    planned = load_study(ROOT / "config" / f"{name}.yaml")
    shown = [experiment.models for experiment in planned.experiments if experiment.kind == "figure"]
    for models in [*shown, *planned.fit_labels.values()]:
        assert len({look.colour for look in figures.styles(models, planned).values()}) == len(models)
