"""The results of a measuring step, as the step `measure`, which calls them all, takes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmax_bottleneck.store.paths import PUBLISHED
from softmax_bottleneck.study import Study


@dataclass(frozen=True)
class Computed:
    """The results of one of the steps `evaluate`, `spectrum` and `wordsim`.

    Attributes:
        files: {file name: content} of the JSON files that are still to be written, in this order. The last is the
            step's result, such as rank.json.
        arrays: {file name: sha256} of the .npz files that the step has already written.
        message: the outcome in a few words, for the progress line.
    """

    files: Mapping[str, Mapping[str, Any]]
    arrays: Mapping[str, str]
    message: str


def contexts_file(study: Study, name: str) -> Path | None:
    """Return the file in report/published that lists contexts of the test text of the dataset `name`.

    `evaluate` stores the predicted words at these contexts. A dataset without a file uses the file of its `base`, the
    dataset that it is an excerpt of. The result is None if neither has a file.
    """
    dataset = study.dataset(name)
    named = dataset.contexts or (study.dataset(dataset.base).contexts if dataset.base else None)
    return PUBLISHED / named if named else None
