"""Conclusions across studies: the verdict of this study and of every archived study, and an overall verdict.

`overall` is the rule by which several verdicts make one. It was stated before any study was evaluated by it.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.claims.rules import CANNOT, CONFOUNDED, NOT_REPRODUCED, REPRODUCED, SYNTHETIC, UNDECIDED

MIXED = "mixed"
OVERALL = (REPRODUCED, NOT_REPRODUCED, MIXED, UNDECIDED, CONFOUNDED, CANNOT)
SOUND = (REPRODUCED, NOT_REPRODUCED, UNDECIDED)  # verdicts of studies whose premises hold

Entry = Mapping[str, Any]  # a conclusion as claims.json has it


def overall(entries: Sequence[Entry]) -> str:
    """Return the verdict of several studies on one conclusion.

    1. Only studies whose premises hold count: they reproduce it, refute it or are undecided.
    2. The best-powered of them decide: those with at least half as many units as the one with the most.
    3. If those that are decided agree, theirs is the overall verdict. If two disagree, it is mixed. If none is decided,
       it is undecided.
    4. If no study's premises hold, the conclusion is confounded if one study says so, and cannot be tested otherwise.
    """
    sound = [entry for entry in entries if entry["verdict"] in SOUND]
    most = max(map(units, sound), default=0)
    decided = {entry["verdict"] for entry in sound if 2 * units(entry) >= most} - {UNDECIDED}
    if decided:
        return MIXED if len(decided) > 1 else decided.pop()
    if sound:
        return UNDECIDED
    return CONFOUNDED if any(entry["verdict"] == CONFOUNDED for entry in entries) else CANNOT


def units(entry: Entry) -> int:
    """Return the number of units (runs, models, contexts, ...) of an entry's smallest side."""
    return min((min(number["n"], default=0) for number in entry["numbers"]), default=0)


def matrix(studies: Sequence[FinishedStudy], titles: Mapping[str, str]) -> dict[str, Any]:
    """Return the conclusions of the first study as rows, and studies as columns.

    A study has a column for each corpus on which it can test a conclusion; what needs no corpus spans them. `titles`
    are those of sources.
    """
    own = studies[0]
    names = dict.fromkeys(entry["id"] for entry in own.claims)
    columns = [(study, _places(study, names, study is own)) for study in studies]
    parts: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        cells = [cell for study, places in columns for cell in _cells(study, places, name, study is own)]
        entries = [cell["entry"] for cell in cells if cell["entry"]]
        facts = {key: entries[0][key] for key in ("id", "statement", "where", "limits", "criterion")}
        row = facts | {"cells": cells, "overall": overall(entries)}
        parts.setdefault(titles.get(entries[0]["source"], entries[0]["source"]), []).append(row)
    counted = Counter(row["overall"] for rows in parts.values() for row in rows)
    groups = [
        {key: getattr(study, key) for key in ("name", "study", "title", "hardware")}
        | {"places": [study.corpora.get(place, "") for place in places]}
        for study, places in columns
        if places
    ]
    return {
        "groups": groups,
        "parts": [{"title": title, "rows": rows} for title, rows in parts.items()],
        "counts": [(verdict, counted[verdict]) for verdict in OVERALL if counted[verdict]],
    }


def _places(study: FinishedStudy, names: Container[str], is_own: bool) -> list[str]:
    """Return the corpora of a study's columns; a study of fits alone has one column, SYNTHETIC."""
    tested = {entry["dataset"] for entry in study.claims if entry["id"] in names and entry["verdict"] != CANNOT}
    return [place for place in study.datasets if is_own or place in tested] or [SYNTHETIC] * (SYNTHETIC in tested)


def _cells(study: FinishedStudy, places: Sequence[str], name: str, is_own: bool) -> Iterator[dict[str, Any]]:
    """Yield the cells of a study in the row of a conclusion."""
    entries = {entry["dataset"]: entry for entry in study.claims if entry["id"] == name}
    spans = {SYNTHETIC: len(places)} if SYNTHETIC in entries else dict.fromkeys(places, 1)
    for place, span in spans.items() if places else ():
        entry = entries.get(place)
        number = next((one for one in entry["numbers"][:1] if one["value"] is not None), None) if entry else None
        yield {
            "study": ", ".join(filter(None, (study.study, study.hardware, study.corpora.get(place, "")))),
            "span": span,
            "entry": entry,
            "number": f"{number['what']}: {number['text']}" if number else "",
            "is_own": is_own,
        }
