"""The step `choose`, which ends a round of a search: it names the best point, or further points to try.

The choice depends only on validation losses in the done.json of the search's runs. The test text is not read.
"""

import math
from collections.abc import Mapping
from typing import Any

from softmax_bottleneck.store import artefacts, errors, fingerprint, progress, provenance
from softmax_bottleneck.study import Study
from softmax_bottleneck.study.tuning import decide


def choose(study: Study, path: str, say: progress.Say) -> None:
    """Write the choice that ends the round of a search at `path` (`Round.path`), a JSON file with these keys.

    `dataset`, `model` and `by` say what was tuned. `curve` has a dict per trial: `point`, `runs` (their paths) and
    the measure `by`, null if a run diverged. `best` is the best point, and `interior` is true if all its neighbours
    were tried. `following` are the points of the next round; if there are none, `chosen` is the best point, else null.

    Raises:
        UserError: a run of every trial diverged.
        DataError: the done.json of a run is missing or damaged.
    """
    ended = study.round(path)
    tuning = study.tuning
    assert tuning is not None
    parents, losses = dict[str, str](), list[float]()
    for trial in ended.trials:
        of_seeds = []
        for run in trial.runs:
            file = artefacts.checked(study.store.run_folder(run.path) / "done.json")
            parents[f"{run.path}/done.json"] = artefacts.sha256_file(file)
            of_seeds.append(_loss(artefacts.read_json(file), tuning.by))
        losses.append(sum(of_seeds) / len(of_seeds))
    if not any(map(math.isfinite, losses)):
        problem = f"models.{ended.model}: all {len(losses)} points of the search diverged on {ended.dataset}"
        fix = "Expected one that does not. Fix: add smaller values to `tuning.grid`"
        raise errors.UserError(f"{study.file}: {problem}. {fix}")
    decision = decide(tuning, [trial.point for trial in ended.trials], losses)
    ppls = [math.exp(loss) if math.isfinite(loss) else None for loss in losses]
    curve: list[dict[str, Any]] = [
        {"point": dict(trial.point), "runs": [run.path for run in trial.runs], tuning.by: ppl}
        for trial, ppl in zip(ended.trials, ppls, strict=True)
    ]
    best = dict(ended.trials[decision.best].point)
    content: dict[str, Any] = {"status": "ok", "dataset": ended.dataset, "model": ended.model, "by": tuning.by}
    content |= {"curve": curve, "best": best, "interior": decision.interior}
    content |= {"chosen": None if decision.following else best, "following": list(map(dict, decision.following))}
    block = provenance.block(made_by=fingerprint.step_code("choose"), parents=parents)
    artefacts.write_json(study.choice_file(path), content | {"provenance": block})
    values = ", ".join(f"{setting} = {value}" for setting, value in best.items())
    ending = "chosen" if decision.interior else "chosen at the edge of what was tried"
    verdict = f"{len(decision.following)} more to try" if decision.following else ending
    say(f"{path}: {tuning.by} {ppls[decision.best]:.2f} at {values}, best of {len(losses)}: {verdict}")


def _loss(done: Mapping[str, Any], by: str) -> float:
    """Return the logarithm of a run's measure `Tuning.by`, infinite if the run diverged."""
    if done["status"] != "ok":
        return math.inf
    loss: float = done["best_valid_loss_nats"]
    return loss if by == "valid_ppl" else math.log(done["steps"] * (2.0 - done["accuracy"]))
