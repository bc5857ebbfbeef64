"""One number of a study with its definition, seeds, runs, files and hashes."""

from collections.abc import Iterator

import pandas as pd

from softmax_bottleneck.records import metrics
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.cells import mean_of
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import Study, did_you_mean


def lookup(study: Study, results: Records, name: str) -> Iterator[str]:
    """Yield lines about `<corpus>/<model>/<metric>`, one block per condition.

    Raises:
        UserError: no run has such a number.
    """
    dataset, model, metric = (*name.split("/", 2), "", "")[:3]
    rows = results.rows[results.rows["run_id"] != ""]
    own = rows[(rows["dataset"] == dataset) & (rows["model"] == model) & (rows["metric"] == metric)]
    if own.empty:
        known = [
            f"{d}/{m}/{n}" for d, m, n in results.rows[["dataset", "model", "metric"]].drop_duplicates().to_numpy()
        ]
        raise UserError(f"{name}: {study.name} has no such number{did_you_mean(name, known)}")
    about = metrics.find(metric)
    yield f"{name}: {about.definition}"
    states = pd.concat([results.states.assign(stage=""), results.stages], ignore_index=True)
    paths = {(row["run_id"], row["stage"]): row["path"] for row in states.to_dict("records")}
    for condition in dict.fromkeys(own["condition"]):
        values = results.values(dataset, model, metric, condition)
        mean = mean_of(values.values())
        assert mean is not None  # there are rows
        yield f"{condition or 'mean'}: {numbers.spread(mean.mean, mean.sd, about.digits)} (n = {mean.n})"
        chosen = own[own["condition"] == condition]
        ids = dict(zip(chosen["seed"], chosen["run_id"], strict=True))
        for seed, value in values.items():
            stage = condition if (ids[seed], condition) in paths else ""
            file = f"{paths[ids[seed], stage]}/{metrics.find(metric, stage).file}"
            digest = results.parents.get(file, "")
            yield f"  seed {seed}: {value!r}  results/runs/{file}" + f"  sha256 {digest}" * bool(digest)
