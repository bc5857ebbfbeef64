"""Facts about a study's plan: declared sizes of corpora, training jobs by name, and whether a run is done."""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from softmax_bottleneck.study import Dataset, Run, Study


@dataclass(frozen=True)
class Size:
    """The size of a corpus.

    Attributes:
        tokens: number of tokens per split, under the keys `train`, `valid` and `test`.
        vocabulary_size: number of word types, including `<eos>`, which ends every line.
    """

    tokens: dict[str, int]
    vocabulary_size: int


def declared_size(dataset: Dataset) -> Size | None:
    """Return the size that a dataset's YAML declares, or None if the YAML declares no complete size.

    The section `expected` of the YAML is preferred if it has the vocabulary size and the tokens of all splits; these
    numbers are exact, and so are those of the section `repeat`. Otherwise the section `language`, which only synthetic
    languages have, gives the size; its numbers of tokens are lower bounds.
    """
    tokens = cast(Mapping[str, int], dataset.expected.get("tokens", {}))
    if "vocabulary_size" in dataset.expected and tokens.keys() == {"train", "valid", "test"}:
        return Size(dict(tokens), dataset.expected["vocabulary_size"])
    if repeat := dataset.repeat:
        return Size(repeat.tokens, repeat.vocabulary_size)
    if law := dataset.language:
        tokens = {"train": law.train_tokens, "valid": law.valid_tokens, "test": law.test_tokens}
        return Size(tokens, law.vocabulary_size)
    return None


def tracked(study: Study) -> tuple[Run, ...]:
    """Return the runs that store their weights at some epochs: those of experiments with `snapshots: true`.

    `snapshots` is a key under `options` of an experiment's YAML.
    """
    asking = [experiment for experiment in study.experiments if experiment.options.get("snapshots")]
    paths = {run.path for experiment in asking for run in study.runs_of(experiment)}
    return tuple(run for run in study.needed if run.path in paths)


def jobs(study: Study) -> dict[str, tuple[Run, ...]]:
    """Return {name of a training job: its runs}; the runs of a job differ only in their seeds, or in a search's point.

    A job has at most `study.replicas_per_job` runs. A job with one run has the path of the run as its name. A job with
    several runs has the name `<dataset>/<model>/<seed>+<seed>...-<hash>`, with a hash of its runs' paths. Finished runs
    are included, so that a job keeps its name and its runs when some of them finish.
    """
    named: dict[str, tuple[Run, ...]] = {}
    searches = {run.path: (*tuned.key, "search") for tuned in study.shown_tuned for run in tuned.runs}
    by_model = itertools.groupby(study.needed, key=lambda run: searches.get(run.path, (run.dataset, run.model, "")))
    for (dataset, model, _), replicas in by_model:
        while runs := tuple(itertools.islice(replicas, study.replicas_per_job)):
            seeds = "+".join(str(run.seed) for run in runs)
            paths = hashlib.sha256(" ".join(run.path for run in runs).encode()).hexdigest()
            named[runs[0].path if len(runs) == 1 else f"{dataset}/{model}/{seeds}-{paths[:12]}"] = runs
    return named


def is_complete(study: Study, run: Run) -> bool:
    """Return True if nothing is left to do for a run: it is trained and, unless it belongs to a search, measured."""
    last = "done.json" if run in study.searched else "measured.json"
    return (study.store.run_folder(run.path) / last).exists()


def is_done(study: Study, run: Run) -> bool:
    """Return True if the training of a run has ended, normally or because the loss diverged."""
    return (study.store.run_folder(run.path) / "done.json").exists()
