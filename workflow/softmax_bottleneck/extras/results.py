"""The commands that look up, compare, archive, verify or repair a study's results.

Each function is one command. `options` are the parsed arguments of the command line, and `say` prints a line of
progress.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from softmax_bottleneck.extras import interim
from softmax_bottleneck.jobs.locks import acquire_lock
from softmax_bottleneck.records import metrics, records, verify
from softmax_bottleneck.report import archive, claims, compare
from softmax_bottleneck.report.numbers import spread
from softmax_bottleneck.report.side_by_side import as_text, side_by_side
from softmax_bottleneck.statistics.samples import Summary
from softmax_bottleneck.store import errors, paths, progress
from softmax_bottleneck.study import PlannedExperiment, Study, did_you_mean


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


def print_claims(study: Study, options: argparse.Namespace) -> None:
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


def print_number(study: Study, options: argparse.Namespace) -> None:
    """Print how a number of the report was measured, or all numbers of a table.

    `options.number` names the number as `<corpus>/<model>/<metric>`, such as `ptb/mos/test_ppl`, or the table as
    `Table 3` or `parthiban2021-table3`.

    Raises:
        UserError: the records have no number and the study no table of this name.
    """
    results, name = _records(study), options.number
    tables = [e for e in study.experiments if name.lower() in (e.id, *e.artefact.lower().split(" and "))]
    lines = [line for table in tables for line in _numbers_of(table, study, results)]
    print("\n".join(lines or _runs_behind(name, study, results)))


def _numbers_of(table: PlannedExperiment, study: Study, results: records.Records) -> Iterator[str]:
    """Yield a table's title, then a line with mean, standard deviation and n per model, metric and condition."""
    yield f"{table.id}: {table.title}: results/{study.name}/{table.kind}s/{table.id}.csv"
    rows = results.rows[(results.rows["run_id"] != "") & results.rows["model"].isin(table.models)]
    for metric in dict.fromkeys(column.metric for column in table.columns):
        of_metric = rows[rows["dataset"].isin(table.datasets) & (rows["metric"] == metric)]
        for (*keys, condition), group in records.groups(of_metric, "dataset", "model", "metric", "condition"):
            yield f"  {'/'.join(keys)} {condition}".rstrip() + f": {_mean_text(group['value'], metric)}"


def _runs_behind(name: str, study: Study, results: records.Records) -> Iterator[str]:
    """Yield the definition of a metric, then the mean and the runs behind it, for every condition.

    The line of a run has its seed, the value, the result file and the file's sha256.
    """
    rows, metric = results.rows[results.rows["run_id"] != ""], name.rpartition("/")[2]
    names = rows["dataset"] + "/" + rows["model"] + "/" + rows["metric"]
    if name not in set(names):
        raise errors.UserError(f"{name}: {study.name} has no such number{did_you_mean(name, names.unique())}")
    yield f"{name}: {metrics.find(metric).definition}"
    folders = results.all_stages.set_index(["run_id", "stage"])["path"].to_dict()
    for (condition,), group in records.groups(rows[names == name].sort_values("seed"), "condition"):
        yield f"{condition or 'mean'}: {_mean_text(group['value'], metric)}"
        for seed, run_id, value in zip(group["seed"], group["run_id"], group["value"], strict=True):
            stage = condition if (run_id, condition) in folders else ""
            file = f"{folders[run_id, stage]}/{metrics.find(metric, stage).file}"
            digest = results.parents.get(file, "")
            yield f"  seed {seed}: {value!r}  results/runs/{file}" + (f"  sha256 {digest}" if digest else "")


def _mean_text(values: Iterable[float], metric: str) -> str:
    summary = Summary.of(values)
    return f"{spread(summary.mean, summary.sd, metrics.find(metric).digits)} (n = {summary.n})"


def compare_studies(options: argparse.Namespace) -> None:
    """Print two or more finished studies side by side.

    Each entry of `options.studies` is the name of a study or archive, or a results folder.
    """
    tables = side_by_side(compare.find_studies(options.studies))
    print(as_text(tables) if sys.stdout.isatty() else as_text(tables, widest=None))


def verify_results(study: Study, options: argparse.Namespace) -> None:
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


def repair_results(study: Study, say: progress.Say) -> None:
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
