"""The step `synthetic`: it measures untrained layers and noise, and gathers the results of all fits."""

from functools import partial

from softmax_bottleneck.measuring import synthetic_experiments as synthetics
from softmax_bottleneck.store import artefacts, progress, provenance
from softmax_bottleneck.study import Study


def synthetic(study: Study, say: progress.Say) -> None:
    """Write synthetic.json: the results of a study's synthetic experiments and of its fits to known distributions.

    A synthetic experiment computes the ranks of untrained layers, or of a trained model's truncated log-probability
    matrix after rounding errors or noise. The file has the keys `status` (always "ok"), `rows` and `provenance`
    (versions, hardware and hashes of the input files). A row is a dict with one number. The rows of the experiments
    come first, then those of all fits of the study, which are copied from the fits' done.json files.

    Raises:
        UserError: the option `synthetic` of an experiment has an unknown value.
        DataError: an input file is missing or damaged.
    """
    rows, parents = list[synthetics.Row](), dict[str, str]()
    for experiment in study.experiments:
        if "synthetic" in experiment.options:
            runs = study.read_by_synthetic(experiment)
            if experiment.options["synthetic"] == "top-m":
                rows += synthetics.top_tokens(study, runs)
            else:
                rows += synthetics.rows_of(experiment.options, partial(synthetics.truncated, study, runs), say)
            for run in runs:
                measured = study.store.run_folder(run.path) / "measure.json"
                parents[f"{run.path}/measure.json"] = artefacts.sha256_file(measured)
    for unit in study.units:
        path = study.store.fits_folder(unit.path) / "done.json"
        rows += artefacts.read_json(path)["rows"]
        parents[f"{unit.path}/{path.name}"] = artefacts.sha256_file(path)
    facts = {"status": "ok", "rows": rows, "provenance": provenance.block(parents)}
    artefacts.write_json(study.store.study_folder(study.name) / "synthetic.json", facts)
