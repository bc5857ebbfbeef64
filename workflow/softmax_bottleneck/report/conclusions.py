"""Conclusions across studies: the verdict of this study and of every archived study, and an overall verdict.

`overall` is the rule that combines several verdicts into one. The rule was fixed before it was applied to any study.
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
    """Return the overall verdict on one conclusion from the verdicts of several studies.

    1. A study counts only if its premises hold; its verdict is then reproduced, not reproduced or undecided.
    2. Among these studies the best-powered ones decide: those with at least half as many units as the largest.
    3. If all decided verdicts of the best-powered studies agree, the overall verdict is the same. If two disagree, the
       overall verdict is mixed. If none is decided, the overall verdict is undecided.
    4. If no study's premises hold, the overall verdict is confounded if one study's verdict is confounded; otherwise
       the conclusion cannot be tested.
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
    """Return the sample size of a verdict: the number of units (runs, models, contexts, ...) in the smallest sample."""
    return min((min(number["n"], default=0) for number in entry["numbers"]), default=0)


def matrix(studies: Sequence[FinishedStudy], titles: Mapping[str, str]) -> dict[str, Any]:
    """Return the table of verdicts: a row per conclusion of the first study, and one or more columns per study.

    A study has a column for each corpus on which it can test a conclusion. A conclusion that needs no corpus has one
    cell that spans these columns. `titles` maps the key of a paper to the paper's title.
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
    """Return the corpora with a column in the table of verdicts, or [SYNTHETIC] if a study only fits distributions."""
    tested = {entry["dataset"] for entry in study.claims if entry["id"] in names and entry["verdict"] != CANNOT}
    return [place for place in study.datasets if is_own or place in tested] or [SYNTHETIC] * (SYNTHETIC in tested)


def _cells(study: FinishedStudy, places: Sequence[str], name: str, is_own: bool) -> Iterator[dict[str, Any]]:
    """Yield the cells of a study in the row of the conclusion `name`: one per corpus, or one that spans all corpora."""
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
