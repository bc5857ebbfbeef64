"""The step `collect`: it turns finished runs into records; the steps of the report read no run folders."""

from softmax_bottleneck.records import collection
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Study


def collect(study: Study, say: Say) -> None:
    """Collect the records of all runs and write them to the study's folder; warn if runs mix kinds of hardware."""
    results = collection.collect_to(study, study.store.study_folder(study.name))
    for warning in results.hardware_warnings():
        say(f"warning: {warning}")
    counts = ", ".join(f"{state} {number}" for state, number in results.counts().items())
    say(f"{study.name}: {len(results.rows)} records; runs: {counts}")
