"""The commands about a study's results: they collect, render, report, look up, compare, archive, verify and repair."""

import argparse
import json
from dataclasses import replace

from softmax_bottleneck.extras import status
from softmax_bottleneck.jobs.workflow import acquire_lock
from softmax_bottleneck.records import collect as collecting
from softmax_bottleneck.records import records
from softmax_bottleneck.records import verify as verification
from softmax_bottleneck.records.records import Records
from softmax_bottleneck.report import archive as archives
from softmax_bottleneck.report import claims as judging
from softmax_bottleneck.report import compare as comparison
from softmax_bottleneck.report import render as drawing
from softmax_bottleneck.report import report as page
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import IncompleteError, UserError
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Study


# --- steps of the workflow ------------------------------------------------------------------------------------------
def collect(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Collect the records of all runs and write them to the study's folder."""
    found = collecting.collect_to(study, study.store.study_folder(study.name))
    for warning in found.mixtures():
        say(f"warning: {warning}")
    say(f"{study.name}: {len(found.rows)} records, {found.counts()}")


def render(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Write the tables, figures and claims of a study."""
    drawing.render(study, study.store.study_folder(study.name))
    say(f"{study.name}: {len(study.experiments)} tables and figures")


def report(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Write the report (IncompleteError: no planned run has results)."""
    folder = study.store.study_folder(study.name)
    say(f"wrote {page.report(folder, out=options.out)}")
    counts = dict(artefacts.read_json(folder / "page.json")["counts"])
    if counts["planned"] and counts["missing"] == counts["planned"]:
        raise IncompleteError(f"{study.name}: none of the {counts['planned']} planned runs has results")


# --- for people -----------------------------------------------------------------------------------------------------
def _records(study: Study) -> Records:
    """Return the records of a study, or those of its interim report if the study is not finished.

    Raises:
        UserError: the study has no results yet.
    """
    for folder in (study.store.study_folder(study.name), status.interim_folder(study)):
        if (folder / records.REST_FILE).exists():
            return records.load(folder)
    raise UserError(
        f"study {study.name} has no results yet: run `make reproduce CONFIG={study.file}`, or name another with --study"
    )


def partial(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Write the interim report of an unfinished study."""
    say(f"wrote {status.write_interim_report(study, options.reload)}")


def claims(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Print the verdict on every claim of the papers, from the study's results or from archived studies."""
    entries = [entry for name in options.archived for found in archives.find(name) for entry in found.claims]
    if not options.archived:
        entries = [entry.to_json() for entry in judging.ledger(_records(study), judging.of_study(study), study)]
    print("\n".join(judging.explain(entries, options.explain)))


def archive(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Pack a finished study, without its weights, into an archive in the repository."""
    say(f"wrote {archives.write(study, options.unfinished)}")


def number(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Print one number of the report with its definition, seeds, files and hashes."""
    print("\n".join(drawing.lookup(study, _records(study), options.number)))


def compare(options: argparse.Namespace, say: Say) -> None:
    """Print finished studies side by side; with `--out`, also write compare.csv."""
    tables = comparison.side_by_side(comparison.find_studies(options.studies))
    print(comparison.text(tables))
    if options.out:
        artefacts.write_text(options.out / "compare.csv", comparison.csv(tables))
        say(f"wrote {options.out / 'compare.csv'}")


def verify(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Print all results that are missing, damaged, outdated or impossible (IncompleteError: there are such results)."""
    found = verification.verify(study)
    found = replace(found, findings=(*found.findings, *archives.findings()))
    print(json.dumps(found.to_json(), indent=1) if options.json else found.text())
    if not found.complete:
        raise IncompleteError(f"{study.name}: incomplete or damaged")


def repair(study: Study, options: argparse.Namespace, say: Say) -> None:
    """Delete damaged results and everything made from them."""
    acquire_lock()
    found, removed = verification.repair(study)
    for path in removed:
        say(f"removed {study.store.root / path}")
    runs = sum(path.parts[0] == "runs" and len(path.parts) == 4 for path in removed)  # folders: damaged weights
    training = f" and trains {runs} of the runs" if runs else ""
    say(f"{study.name}: findings: {len(found.findings)}, removed: {len(removed)}")
    say(f"`make reproduce` recomputes what was removed{training}")
