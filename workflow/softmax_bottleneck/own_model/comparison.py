"""Several models side by side: one table and one plot of the spectra, from what `rank` wrote about each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmax_bottleneck.own_model.page import filled, plot
from softmax_bottleneck.ranks import Spectrum
from softmax_bottleneck.store import artefacts, provenance
from softmax_bottleneck.store.errors import UserError

CAPTION = "Singular values, each model's relative to its own largest, against their index."


@dataclass(frozen=True)
class Found:
    """What `rank` found of one model: its rank.json, and the spectrum beside it."""

    name: str
    facts: dict[str, Any]
    spectrum: Spectrum
    digest: str


def read(paths: Sequence[Path]) -> list[Found]:
    """The findings of at least two rank.json; equal titles are told apart by a number.

    Raises:
        UserError: fewer than two, or a file that is no rank.json; DataError: a damaged one.
    """
    if len(paths) < 2:
        raise UserError("--compare: give the rank.json of two models or more")
    found: list[Found] = []
    for path in paths:
        facts = artefacts.read_json(path)
        if not {"title", "metrics", "contexts"} <= facts.keys():
            raise UserError(f"--compare: {path}: not a rank.json of `rank`; give results/own/<model>/rank.json")
        spectrum = Spectrum.from_arrays(artefacts.read_npz(path.with_name("spectrum.npz")))
        same = sum(other.facts["title"] == facts["title"] for other in found)
        name = facts["title"] + (f" ({same + 1})" if same else "")
        found.append(Found(name, facts, spectrum, artefacts.sha256_file(path)))
    return found


def table(found: Sequence[Found]) -> list[tuple[str, ...]]:
    """A line for every quantity that some model has: its name, then each model's value or a dash."""
    lines = [(name, *(_text(value, one.facts) for one in found)) for name, value in QUANTITIES.items()]
    return [line for line in lines if any(text != "–" for text in line[1:])]


def write(found: Sequence[Found], folder: Path) -> Path:
    """Write comparison.json, spectrum.svg and index.html to a folder; return the page."""
    picture = plot({one.name: one.spectrum for one in found}, {})
    names = [one.name for one in found]
    html = filled(
        title=", ".join(names),
        verdict=f"{len(found)} models side by side.",
        header=("Quantity", *names),
        lines=table(found),
        notes=[],
        picture=picture,
        alt=f"Falling curves of the singular values of {len(found)} models.",
        caption=CAPTION,
    )
    artefacts.write_text(folder / "spectrum.svg", picture)
    artefacts.write_text(folder / "index.html", html)
    parents = {f"{index} rank.json": one.digest for index, one in enumerate(found)}
    rows = {line[0]: list(line[1:]) for line in table(found)}
    artefacts.write_json(
        folder / "comparison.json", {"models": names, "table": rows, "provenance": provenance.block(parents)}
    )
    return folder / "index.html"


# --- quantities -----------------------------------------------------------------------------------------------------
def _text(value: Callable[[dict[str, Any]], Any], facts: dict[str, Any]) -> str:
    """A value in words; a dash where a model has none."""
    try:
        found = value(facts)
    except (KeyError, TypeError):  # was not measured
        return "–"
    if found is None:
        return "–"
    return f"{found:.4f}" if isinstance(found, float) else f"{found:,}" if isinstance(found, int) else str(found)


QUANTITIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "contexts": lambda facts: facts["contexts"],
    "words": lambda facts: facts["words"],
    "width d": lambda facts: facts["width"],
    "head": lambda facts: facts["head"]["name"],
    "part only": lambda facts: "yes" if facts["sample"] else None,
    "Press rank": lambda facts: facts["metrics"]["rank_press"],
    "effective rank at 0.001": lambda facts: facts["metrics"]["rank_eff_1e-3"],
    "at 0.001, contexts' means off": lambda facts: facts["centred"]["rows"]["rank_eff_1e-3"],
    "at 0.001, both means off": lambda facts: facts["centred"]["both"]["rank_eff_1e-3"],
    "width by the cliff": lambda facts: facts["bound"]["cliff"][0],
    "entropy of the output matrix": lambda facts: facts["saturation"]["weight"]["entropy"],
    "entropy of the hidden states": lambda facts: facts["saturation"]["hidden"]["entropy"],
    "mean cosine of word vectors": lambda facts: facts["saturation"]["weight"]["anisotropy"],
    "mean cosine of hidden states": lambda facts: facts["saturation"]["hidden"]["anisotropy"],
    "words that never win": lambda facts: len(facts["words_that_win"]["never"]),
    "of them unsettled": lambda facts: facts["words_that_win"]["unsettled"],
    "gradient that passes, norm": lambda facts: facts["gradient_share"]["norm_mean"],
    "gradient that passes, energy": lambda facts: facts["gradient_share"]["energy_mean"],
    "perplexity of a right diagonal": lambda facts: facts["multi_mode"]["diagonal"]["perplexity"],
    "perplexity of a right edge": lambda facts: facts["multi_mode"]["edge"]["perplexity"],
    "parallelogram defect": lambda facts: facts["multi_mode"]["defect"],
    "parallelogram defect, re-paired": lambda facts: facts["multi_mode"]["control"],
}
