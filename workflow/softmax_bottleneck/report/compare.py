"""Finished studies: how to find them, and an overall verdict on every claim from all of them.

The rule by which `overall` combines the verdicts of several studies was fixed before it was applied to any study.

`find_studies` reads results folders, with the files that the steps `collect` and `render` wrote, or archived studies.
The folders may be read-only and may come from another machine.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from softmax_bottleneck.report import archive
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.source import bundled_dataset
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store

MIXED = "mixed"
OVERALL = (r.REPRODUCED, r.NOT_REPRODUCED, MIXED, r.UNDECIDED, r.CONFOUNDED, r.CANNOT)
SYNTHETIC_TEXTS = "Known distributions"  # a column of the table of verdicts
SOUND = (r.REPRODUCED, r.NOT_REPRODUCED, r.UNDECIDED)  # verdicts of studies whose premises hold

Entry = Mapping[str, Any]  # the verdict on a conclusion on one corpus, as in claims.json


def find_studies(names: Sequence[str]) -> list[FinishedStudy]:
    """Return the finished studies that `names` refer to, in the order of `names`.

    Args:
        names: each is the name of a study, the path of its results folder, or the path of a folder with several results
            folders. A name without a results folder is looked up in the archives. An archive's name, such as
            `demo-amd-epyc`, gives one study. A study's name, such as `demo`, gives all archives of the study.

    Raises:
        UserError: a name has no finished study, or fewer than two studies are found in all.
        DataError: a file is damaged.
    """
    studies: list[FinishedStudy] = []
    for name in names:
        folders = [f for f in (Store().study_folder(name), Path(name)) if (f / archive.CLAIMS_FILE).is_file()]
        inside = [path.parent for path in sorted(Path(name).glob(f"*/{archive.CLAIMS_FILE}"))]
        places = [(folders[0], name)] if folders else [(folder, str(folder)) for folder in inside]
        studies += [archive.from_results(*place) for place in places] or archive.find(name)
    if len(studies) < 2:
        raise UserError(f"compare: {len(studies)} finished study; name two or more, or a folder that holds them")
    return studies


# --- the conclusions on the page -------------------------------------------------------------------------------------
def overall(entries: Sequence[Entry]) -> str:
    """Return the overall verdict on one claim, one of OVERALL, from the verdicts of several studies.

    1. Verdicts of invalid tests (*confounded* and *cannot be tested here*) are dropped. If no verdict is left, the
       result is *confounded* if a dropped verdict is *confounded*, otherwise *cannot be tested here*.
    2. Verdicts from small samples are dropped: those with less than half as many units as the verdict with the most.
       A verdict has as many units (runs, models, contexts or others, depending on the claim) as the smallest sample
       behind its numbers, or 0 if there is no sample.
    3. If both *reproduced* and *not reproduced* are left, the result is *mixed*. If only one of these two is left, that
       verdict is the result, whether or not there are *undecided* ones. Otherwise the result is *undecided*.

    Args:
        entries: the claim's entries of claims.json, one per study and corpus.
    """
    sound = [entry for entry in entries if entry["verdict"] in SOUND]
    units = [min((min(number["n"], default=0) for number in entry["numbers"]), default=0) for entry in sound]
    decided = {entry["verdict"] for entry, n in zip(sound, units, strict=True) if 2 * n >= max(units)} - {r.UNDECIDED}
    if sound:
        return MIXED if len(decided) > 1 else next(iter(decided), r.UNDECIDED)
    return r.CONFOUNDED if any(entry["verdict"] == r.CONFOUNDED for entry in entries) else r.CANNOT


def matrix(studies: Sequence[FinishedStudy], titles: Mapping[str, str]) -> dict[str, Any]:
    """Return the table of verdicts, with a row for each claim in the first study's claims.json.

    The first column is of the first study. The others are of all other studies that can test one of the claims, a
    column per corpus; synthetic languages and fits to known distributions share one.

    Args:
        studies: the studies; the first one is the study whose report is made.
        titles: the title of each paper, by the key of the paper.

    Returns:
        A dict with three keys:

        * `columns`: the titles of the columns.
        * `parts`: the papers, each a dict with `title` and `rows`. A row has the keys `id`, `statement`, `where`
          (place in the paper), `limits` (what the evidence does not show), `criterion` (the rule as text), `overall`
          (the overall verdict), `cells` (the overall verdict of each column, or "") and `evidence` (a list of dicts
          with the verdicts of single studies, as returned by `_evidence`).
        * `counts`: a list of pairs (overall verdict, number of rows).
    """
    this_study = studies[0]
    names = dict.fromkeys(entry["id"] for entry in this_study.claims)
    tested: dict[str, dict[str, list[tuple[FinishedStudy, Entry]]]] = {"": {}}
    for study in studies:
        for entry in study.claims:
            if entry["id"] in names and (study is this_study or entry["verdict"] != r.CANNOT):
                column = "" if study is this_study else _column(study, entry["dataset"])
                tested.setdefault(column, {}).setdefault(entry["id"], []).append((study, entry))
    columns = sorted(tested, key=lambda column: (column != "", column == SYNTHETIC_TEXTS, column))
    parts: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        by_column = [tested[column].get(name, []) for column in columns]
        pairs = list(itertools.chain(*by_column))
        claim = pairs[0][1]
        row = {key: claim[key] for key in ("id", "statement", "where", "limits", "criterion")} | {
            "overall": overall([entry for _, entry in pairs]),
            "cells": [overall([entry for _, entry in judged]) if judged else "" for judged in by_column],
            "evidence": [_evidence(study, entry, study is this_study) for study, entry in pairs],
        }
        parts.setdefault(titles.get(claim["source"], claim["source"]), []).append(row)
    counted = Counter(row["overall"] for rows in parts.values() for row in rows)
    return {
        "columns": ["This study", *columns[1:]],
        "parts": [{"title": title, "rows": rows} for title, rows in parts.items()],
        "counts": [(verdict, counted[verdict]) for verdict in OVERALL if counted[verdict]],
    }


def _column(study: FinishedStudy, dataset: str) -> str:
    """Return the title of a corpus, or SYNTHETIC_TEXTS for synthetic languages and fits."""
    known = bundled_dataset(dataset)
    is_synthetic = dataset == r.SYNTHETIC or (known is not None and known.kind == "language")
    return SYNTHETIC_TEXTS if is_synthetic else study.title_of(dataset)


def _evidence(study: FinishedStudy, entry: Entry, is_own: bool) -> dict[str, Any]:
    """Return the verdict of one study on one corpus as a dict.

    The keys are `study` (title of the study, hardware and corpus as one text), `entry` (the entry of claims.json),
    `number` (name and value of its first number as text; empty if there is no value) and `is_own`.
    """
    number = next((number for number in entry["numbers"][:1] if number["value"] is not None), None)
    return {
        "study": ", ".join(filter(None, (study.title, study.hardware, study.corpora.get(entry["dataset"], "")))),
        "entry": entry,
        "number": f"{number['what']}: {number['text']}" if number else "",
        "is_own": is_own,
    }
