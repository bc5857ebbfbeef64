"""The commands that look up, compare, archive, verify or repair a study's results.

Each function is one command. `options` are the parsed arguments of the command line, and `say` prints a line of
progress.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from softmax_bottleneck.extras import interim
from softmax_bottleneck.jobs.locks import acquire_lock
from softmax_bottleneck.records import records, verify
from softmax_bottleneck.report import archive, claims, compare, contents
from softmax_bottleneck.report.side_by_side import as_text, side_by_side
from softmax_bottleneck.store import errors, paths, progress
from softmax_bottleneck.study import Study


def _records(study: Study) -> records.Records:
    """Return the records of a finished study, or those collected for the interim report of an unfinished study.

    Raises:
        UserError: the study has no results yet.
    """
    for folder in (study.store.study_folder(study.name), interim.interim_folder(study)):
        if (folder / records.REST_FILE).exists():
            return records.load(folder)
    fix = f"run `make reproduce CONFIG={study.file}`, or name another with --study"
    raise errors.UserError(f"study {study.name} has no results yet: {fix}")


def write_partial(study: Study, options: argparse.Namespace, say: progress.Say) -> None:
    """Write the interim report of an unfinished study; with `--reload N`, a browser reloads the report every N s."""
    say(f"wrote {interim.write_interim_report(study, options.reload)}")


def print_claims(study: Study, options: argparse.Namespace, say: progress.Say) -> None:
    """Print the verdict on every claim of the papers; with `--explain`, also premises and intervals.

    If `options.archived` lists names of archived studies, their verdicts are printed instead of those of `study`.
    """
    entries = [entry for name in options.archived for archived in archive.find(name) for entry in archived.claims]
    if not options.archived:
        entries = [entry.to_json() for entry in claims.ledger(_records(study), claims.of_study(study), study)]
    print("\n".join(claims.explain(entries, options.explain)))


def write_archive(study: Study, options: argparse.Namespace, say: progress.Say) -> None:
    """Pack a finished study, or with `--unfinished` its finished runs, into an archive without weights.

    The archive is a file in report/evidence/studies. With `--weights`, a second file beside it holds the weights.
    """
    path = archive.write(study, options.unfinished)
    missing = archive.load(path).missing
    if options.weights:
        from softmax_bottleneck.extras import archived_weights  # imports torch

        say(f"wrote {archived_weights.write(study, path)}")
    say(f"wrote {path}" + (f"; {len(missing)} parts have not finished, such as {missing[0]}" if missing else ""))


def print_number(study: Study, options: argparse.Namespace, say: progress.Say) -> None:
    """Print how a number of the report was measured; `options.number` names it as `<corpus>/<model>/<metric>`.

    Printed are the definition of the metric, mean and standard deviation, and for each run the seed, the value, and
    the result file with its sha256.
    """
    print("\n".join(contents.lookup(study, _records(study), options.number)))


def compare_studies(options: argparse.Namespace, say: progress.Say) -> None:
    """Print two or more finished studies side by side.

    Each entry of `options.studies` is the name of a study or archive, or a results folder.
    """
    tables = side_by_side(compare.find_studies(options.studies))
    print(as_text(tables) if sys.stdout.isatty() else as_text(tables, widest=None))


def verify_results(study: Study, options: argparse.Namespace, say: progress.Say) -> None:
    """Print all results of a study that are missing, damaged or outdated, and all archives that cannot be read.

    With `--archive FILE`, check only this archive of a study and print what it holds. With `--weights` as well, measure
    its runs again from the weights beside it.

    Raises:
        IncompleteError: a problem was printed, or a planned run diverged or failed.
        DataError: a number from the weights differs from the archived one.
        UserError: the archive cannot be read.
    """
    if options.archive:
        return _verify_archive(options.archive, study.store if options.weights else None)
    if options.weights:
        raise errors.UserError("verify: --weights: no archive is named. Expected --archive FILE as well")
    verification = verify.verify(study)
    verification = replace(verification, findings=(*verification.findings, *archive.findings()))
    print(json.dumps(verification.to_json(), indent=1) if options.json else verification.text())
    if not verification.complete:
        advice = "run `make repair`, then `make reproduce`"
        raise errors.IncompleteError(f"{study.name}: results are incomplete or damaged, see above; {advice}")


def _verify_archive(path: Path, store: paths.Store | None) -> None:
    """Check an archive and print what it holds; unless `store` is None, measure its runs again on the texts there."""
    study = archive.load(path)
    from softmax_bottleneck.extras import archived_weights  # imports torch

    archived_weights.check_parameters(study, path)
    counts = f"{len(study.records.rows)} numbers, {len(study.records.states)} runs, {len(study.claims)} verdicts"
    print(f"{path}: sound; {study.title} on {study.hardware}: {counts}")
    differing = []
    for run_path, numbers in archived_weights.measure_again(path, store) if store else ():
        for metric, (value, archived) in numbers.items():
            if not archived_weights.is_close(metric, value, archived):
                differing.append(f"{run_path}: {metric}: {value:g} from the weights (got {archived:g})")
        print(run_path, *(f"{metric} {value:.6g} ({archived:.6g})" for metric, (value, archived) in numbers.items()))
    if differing:
        raise errors.DataError(f"{path}: {differing[0]}; {len(differing)} numbers contradict the weights")


def repair_results(study: Study, options: argparse.Namespace, say: progress.Say) -> None:
    """Delete damaged and outdated results of a study, as `verify.repair` does; print what was deleted.

    A file in the folder of this study or of one of its runs is also deleted if it belongs to another run or study.

    Raises:
        BusyError: another workflow uses the results folder.
    """
    acquire_lock()
    verification, removed = verify.repair(study)
    for path in removed:
        say(f"removed {study.store.root / path}")
    runs = sum(path.parts[0] == "runs" and len(path.parts) == 4 for path in removed)  # whole folders of runs
    training = f", which includes the training of {runs} runs" if runs else ""
    say(f"{study.name}: findings: {len(verification.findings)}, removed: {len(removed)}")
    say(f"`make reproduce` recomputes what was removed{training}")
