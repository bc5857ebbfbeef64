"""Whether everything a study shows rests on files that are whole: its runs, its records, and what was made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from softmax_bottleneck.records import records
from softmax_bottleneck.records.collect import collect
from softmax_bottleneck.records.inspection import Verification, damage
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study import Study

MADE_FROM_RECORDS = ("claims.json", "page.json", "report/index.html")


def verify(study: Study) -> Verification:
    """Look at everything a study shows, its page too; nothing is written."""
    found = Verification.from_json(collect(study).verification)
    paths = list(own_files(study))
    findings = [finding for path in paths for finding in damage(study.store, path)]
    return replace(found, files=found.files + len(paths), findings=(*found.findings, *findings))


def own_files(study: Study) -> Iterator[Path]:
    """What lies in the study's own folder by now: a step that has run left all of its files."""
    home = study.store.study_folder(study.name)
    shown = [f"{one.kind}s/{one.id}.{suffix}" for one in study.experiments for suffix in one.suffixes]
    for names in (("check.json",), ("synthetic.json",), records.FILES, ("verify.json", *shown, *MADE_FROM_RECORDS)):
        if any((home / name).exists() for name in names):
            yield from (home / name for name in names)
    planned = {home / name for name in shown}
    for folder in ("tables", "figures"):
        others = sorted(path for path in (home / folder).glob("*") if path not in planned)
        yield from (path for path in others if artefacts.sidecar(path).exists())
