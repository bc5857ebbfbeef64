"""Verification and repair of a study: its runs, its records, and everything that was made from them.

`verify` lists files that are damaged, missing or outdated, or that belong to another run or study. `repair` removes
these files with the few that `_with_what_rests_on_it` lists, and the study's records and report. Other files that were
made from a removed one stay. `make reproduce` repeats their steps where an input has changed: `measure` compares hashes
(`steps.measure.is_fresh`), Snakemake the times of files.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from softmax_bottleneck.jobs import outcome_record
from softmax_bottleneck.records import collection, integrity, records
from softmax_bottleneck.store import artefacts, paths
from softmax_bottleneck.study import Study

MADE_FROM_RECORDS = ("claims.json", "page.json", "report/index.html")
STUDY_PARTS = (*records.FILES, "verify.json", *MADE_FROM_RECORDS, "tables", "figures", "report", "partial")
NOTHING_TO_REMOVE = ("diverged", "failed")  # these are results
# If one of these files of a run is damaged, `repair` removes it and measured.json, and `measure` writes both again.
# If any other file of the run is damaged, the run is trained again.
MEASURED = (
    *("measure.json", "topk.json", "hidden.npz", "rank.json", "spectrum.npz", "epochs_rank.json", "wordsim.json"),
    "measured.json",
)


def verify(study: Study) -> integrity.Verification:
    """Check all files of a study (runs, corpora, fits, records and report); write nothing.

    A step of the workflow writes all of its files, or none. So a missing file in the study's folder is a problem only
    if another file of the same step exists.

    Returns:
        A `Verification`: the numbers of runs in each state, the number of files checked, and the problems found.
    """
    facts = collection.collect(study).verification
    findings = [integrity.Finding(**finding) for finding in facts["findings"]]
    home, files = study.store.study_folder(study.name), list[Path]()
    shown = [f"{one.kind}s/{one.id}.{suffix}" for one in study.experiments for suffix in one.suffixes]
    shown += paths.OVERVIEW
    for names in (("check.json",), ("synthetic.json",), records.FILES, ("verify.json", *shown, *MADE_FROM_RECORDS)):
        if any((home / name).exists() for name in names):
            files += [home / name for name in names]
    others = (path for folder in ("tables", "figures") for path in sorted((home / folder).glob("*")))
    planned = {home / name for name in shown}
    files += [path for path in others if path not in planned and artefacts.sidecar(path).exists()]
    files += [file for file in map(study.choice_file, study.rounds) if file.exists()]
    findings += [finding for path in files for finding in integrity.damage(study.store, path)]
    for name in (file.relative_to(study.store.root).as_posix() for file in study.unchosen if not file.exists()):
        findings.append(integrity.Finding("missing", name, "not chosen yet; run the workflow to end the search"))
    return integrity.Verification(facts["study"], facts["counts"], facts["files"] + len(files), tuple(findings))


def repair(study: Study) -> tuple[integrity.Verification, list[Path]]:
    """Remove files that are damaged, outdated or of another run or study, and what must be recomputed with them.

    The outcome of a run is stored twice: in outcome.json, and in done.json (dynamic.json for a dynamic evaluation).
    Before anything is removed, a missing or damaged copy is rewritten from the intact one, if there is one.

    Returns:
        A tuple of what `verify` returned before the removal, and the removed paths, relative to results/.
    """
    runs = {run.path: "done.json" for run in (*study.needed, *study.finetuned)}
    runs |= {evaluation.path: "dynamic.json" for evaluation in study.evaluations}
    for run_path, name in runs.items():
        folder = study.store.run_folder(run_path)
        for record in outcome_record.paths(folder, name):
            if record.is_dir():
                _remove(record)
        outcome_record.restore(folder, name)
    found, root = verify(study), study.store.root
    wrong = [Path(finding.file) for finding in found.findings if finding.kind not in NOTHING_TO_REMOVE]
    doomed = [path for file in wrong for path in _with_what_rests_on_it(study, file, runs) if (root / path).exists()]
    if doomed:
        parts = [Path(study.name, name) for name in STUDY_PARTS]
        doomed = list(dict.fromkeys([*doomed, *(path for path in parts if (root / path).exists())]))
    for path in doomed:
        _remove(root / path)
    return found, doomed


def _with_what_rests_on_it(study: Study, file: Path, runs: dict[str, str]) -> Iterator[Path]:
    """Yield the paths below results/ to remove for one problem: its file, and files that are useless without it.

    * For a file of a corpus: the folder of the corpus. Runs on it stay.
    * For a file of a fit: the file, and the done.json of each unit of fits that uses it.
    * For a file of a natural distribution: its folder, and the done.json of each unit of fits to it.
    * For the folder of a run: nothing. Such a problem means that the run is unfinished, and the workflow resumes it.
    * For a file that `measure` wrote (MEASURED): the file and measured.json.
    * For any other file of a run: the folder of the run, so that the run is trained again.

    Args:
        study: the study, which names its units of fits.
        file: the path of the problem below results/, as in `Finding.file`.
        runs: the keys are the folders of the study's runs below results/runs; the values are not used.
    """
    room, folder = file.parts[0], file.parent
    if room in ("corpora", "tokens"):
        yield Path(*file.parts[:2])
    elif room != "runs":
        yield folder if file.match("fits/truths/*/*/*") else file
        for unit in study.units if room == "fits" else ():
            truth = Path("fits", "truths", unit.truth.path if unit.truth else "none")
            if {Path("fits", "laws", unit.law_path), Path("fits", unit.path), truth} & set(file.parents):
                yield Path("fits", unit.path, "done.json")
    elif file.relative_to("runs").as_posix() in runs:
        return  # a run that is not finished: nothing of it is damaged, and the workflow resumes it
    elif file.name in MEASURED and not folder.name.startswith("dynamic-"):
        yield from (file, folder / "measured.json")
    else:
        yield folder.parent if folder.name == "snapshots" else folder


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    artefacts.remove(path)
