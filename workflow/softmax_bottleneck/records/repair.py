"""What is damaged goes, with everything that was made from it, so that the workflow makes exactly that again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from softmax_bottleneck.jobs import outcome_record
from softmax_bottleneck.records import records
from softmax_bottleneck.records.inspection import Verification
from softmax_bottleneck.records.verify import MADE_FROM_RECORDS, verify
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study import Study

NOTHING_TO_REMOVE = ("diverged", "failed", "duplicate")  # results, and what only a person can tell
# Files that the step `measure` makes again, with all that it made from them, once measured.json is gone too. Damage to
# any other file in the folder of a run means training it again.
MEASURED = (
    *("measure.json", "topk.json", "hidden.npz", "rank.json", "spectrum.npz", "epochs_rank.json", "wordsim.json"),
    "measured.json",
)
STUDY_PARTS = (*records.FILES, "verify.json", *MADE_FROM_RECORDS, "tables", "figures", "report", "partial")


def repair(study: Study) -> tuple[Verification, list[Path]]:
    """Remove damage and what rests on it; what was found before, and the removed paths below results/.

    A record of a finished run that was lost is restored from its twin first, and costs nothing.
    """
    records_of = {run.path: "done.json" for run in (*study.needed, *study.finetuned)}
    records_of |= {evaluation.path: "dynamic.json" for evaluation in study.evaluations}
    for run_path, name in records_of.items():
        folder = study.store.run_folder(run_path)
        for record in outcome_record.paths(folder, name):
            if record.is_dir():
                _remove(record)
        outcome_record.restore(folder, name)
    found = verify(study)
    wrong = [Path(finding.file) for finding in found.findings if finding.kind not in NOTHING_TO_REMOVE]
    doomed = dict.fromkeys(path for file in wrong for path in _with_what_rests_on_it(study, file))
    there = [path for path in doomed if (study.store.root / path).exists()]
    if there:
        there += [path for name in STUDY_PARTS if (study.store.root / (path := Path(study.name, name))).exists()]
    for path in dict.fromkeys(there):
        _remove(study.store.root / path)
    return found, list(dict.fromkeys(there))


def _with_what_rests_on_it(study: Study, file: Path) -> Iterator[Path]:
    """A damaged file below results/ and what was made from it, as paths below results/."""
    room = file.parts[0]
    if room == "runs":
        yield from _of_run(study, file)
    elif room in ("corpora", "tokens"):
        yield Path(*file.parts[:2])
    elif room == "fits":
        yield file
        for unit in study.units:
            if Path("fits", "laws", unit.law_path) in file.parents or Path("fits", unit.path) in file.parents:
                yield Path("fits", unit.path, "done.json")
    else:
        yield file


def _of_run(study: Study, file: Path) -> Iterator[Path]:
    runs = {run.path for run in (*study.needed, *study.finetuned)} | {one.path for one in study.evaluations}
    if file.relative_to("runs").as_posix() in runs:
        return  # a run without numbers, begun or not: nothing of it is damaged, the workflow goes on with it
    folder = file.parent
    if file.name in MEASURED and not folder.name.startswith("dynamic-"):
        yield from (file, folder / "measured.json")
    else:
        yield folder.parent if folder.name == "snapshots" else folder


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    artefacts.sidecar(path).unlink(missing_ok=True)
