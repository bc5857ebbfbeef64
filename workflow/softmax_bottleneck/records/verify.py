"""Whether everything a study shows rests on files that are whole: its runs, its records, and what was made of them."""

from __future__ import annotations

from dataclasses import replace

from softmax_bottleneck.records import records
from softmax_bottleneck.records.collect import collect
from softmax_bottleneck.records.inspection import Verification, damage
from softmax_bottleneck.study import Study

STUDY_FILES = ("check.json", "synthetic.json", *records.FILES, "verify.json", "claims.json", "page.json")
STUDY_FOLDERS = ("tables", "figures", "report")


def verify(study: Study) -> Verification:
    """Look at everything a study shows; nothing is written."""
    found = Verification.from_json(collect(study).verification)
    home = study.store.study_folder(study.name)
    inside = [path for folder in STUDY_FOLDERS for path in sorted((home / folder).glob("*"))]
    named = [path for name in STUDY_FILES if (path := home / name).exists()]
    paths = [path for path in (*named, *inside) if path.is_file() and path.suffix not in (".sha256", ".tmp")]
    findings = [finding for path in paths for finding in damage(study.store, path)]
    return replace(found, files=found.files + len(paths), findings=(*found.findings, *findings))
