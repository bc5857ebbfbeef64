"""A whole study that takes a few seconds in one process: two heads, two seeds, a language of forty words."""

import contextlib
import copy
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_results as fake
import yaml
from softmax_bottleneck import study as config
from softmax_bottleneck.steps import check, download, measure, tokenise, train
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study import Study

DATASET: dict[str, Any] = {
    "name": "tiny", "kind": "language", "title": "A tiny language",
    "language": {
        **{"vocabulary_size": 40, "rank": 12, "topics": 2, "classes": 3, "markers_per_topic": 2, "seed": 3},
        **{"train_tokens": 1200, "valid_tokens": 300, "test_tokens": 300},
    },
    "wordsim": "self",
}  # fmt: skip
STUDY: dict[str, Any] = {
    "study": "small", "title": "A small study", "description": "Two heads on a tiny language.", "datasets": ["tiny"],
    "seeds": [1, 2], "device": "cpu",
    "settings": [
        {
            "body": {
                **{"embedding_size": 5, "hidden_size": 7, "layers": 1, "dropout_input": 0.1, "dropout_hidden": 0.1},
                **{"dropout_output": 0.1, "dropout_embedding": 0.1, "dropout_weight": 0.1},
            },
            "schedule": {
                **{"optimizer": "et-asgd", "switch_after_epoch": 2, "learning_rate": 5, "batch_size": 6, "bptt": 15},
                **{"clip": 0.25, "weight_decay": 0.00001, "activation_penalty": 1, "temporal_penalty": 1, "epochs": 3},
                **{"eval_batch_size": 2},
            },
        }
    ],
    "models": {
        "softmax": {"head": "softmax"},
        "mos": {"head": {"name": "mos", "components": 2, "dropout_latent": 0.1}},
    },
    "experiments": {"known-truth": {"models": "all"}},
}  # fmt: skip


def quiet(_: str) -> None:
    """Takes what a step says."""


def values(**changes: Any) -> dict[str, Any]:
    """The study's keys with others in their place."""
    return copy.deepcopy(STUDY) | changes


Place = tuple[str | int, ...]


def changed(study: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    """A copy with another value at one place."""
    whole = copy.deepcopy(study)
    inner: Any = whole
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return whole


def write(folder: Path, study: dict[str, Any] | None = None, dataset: dict[str, Any] | None = None) -> Path:
    """study.yaml and datasets/tiny.yaml in a folder; the path of the study."""
    (folder / "datasets").mkdir(parents=True, exist_ok=True)
    files = {"datasets/tiny.yaml": dataset or DATASET, "study.yaml": study or STUDY}
    for path, content in ((folder / name, content) for name, content in files.items()):
        path.write_text(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False), encoding="utf-8")
    return folder / "study.yaml"


def load(folder: Path, study: dict[str, Any] | None = None, dataset: dict[str, Any] | None = None) -> Study:
    """The study, written to a folder and read."""
    config.load_dataset.cache_clear()
    return config.load_study(write(folder, study, dataset))


def tokenised(folder: Path) -> Study:
    """The study in the working directory `folder`, its corpus ready."""
    study = load(folder)
    download.download(study, "tiny", quiet)
    tokenise.tokenise(study, "tiny", quiet)
    return study


STEPS = (train.train, measure.measure)


def finish(study: Study) -> None:
    """Every step of every run, the records and the page."""
    for run in study.needed:
        for step in STEPS:
            step(study, run.path, quiet)
    fake.build(study)


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """`folder` as the working directory, where results/ is."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def copied(folder: Path, to: Path) -> Study:
    """A finished study in a folder of its own, to be damaged."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    config.load_dataset.cache_clear()
    return config.load_study(to / "study.yaml")


def begun(folder: Path, to: Path, study: dict[str, Any] | None = None, dataset: dict[str, Any] | None = None) -> Study:
    """A study on the corpus of a finished one, with nothing trained."""
    for name in ("corpora", "tokens"):
        shutil.copytree(folder / "results" / name, to / "results" / name)
    return load(to, study, dataset)


def checked(folder: Path, to: Path, study: dict[str, Any] | None = None) -> Study:
    """The same where the study is checked as well, so that training is what Snakemake begins with."""
    begun_one = begun(folder, to, study)
    with inside(to):
        check.check(begun_one, quiet)
    return begun_one


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder by its hash."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): artefacts.sha256_file(path) for path in files}


def flip(path: Path) -> None:
    """Flip one bit in the middle; of an archive, of its largest member, for between members nothing can be damaged."""
    data, middle = bytearray(path.read_bytes()), 0
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            content = archive.read(max(archive.infolist(), key=lambda entry: entry.file_size))
        middle = data.index(content) + len(content) // 2 if content in data else 0  # it may be compressed
    data[middle or len(data) // 2] ^= 4
    path.write_bytes(data)
