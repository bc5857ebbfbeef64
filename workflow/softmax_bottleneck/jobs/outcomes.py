"""How the steps of a workflow ended, for the command that started it: Snakemake tells of a failure, but not its code.

Every step appends a line when it begins and one when it ends to the file that an environment variable names; without
the variable nothing is written. A step without its second line was killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import BusyError

VARIABLE = "SOFTMAX_BOTTLENECK_OUTCOMES"
TRY_AGAIN = BusyError.exit_code
# What a person needs to know first: something to mend, a fault of the program, the disk, then what time may mend.
FIRST = (2, 1, 74, 10, TRY_AGAIN, 3)
KILLED = "was killed, as the system does where memory runs out"


def note(step: str, what: str, code: int | None = None, words: str = "") -> None:
    """Append that a step has begun, or, with its exit code, that it has ended; a log that fails stops no work."""
    path = os.environ.get(VARIABLE)
    if path:
        line = {"step": step, "what": what} | ({} if code is None else {"code": code, "words": words})
        with suppress(OSError):
            artefacts.append_line(Path(path), json.dumps(line))


def failures(path: Path) -> list[tuple[int, str]]:
    """Exit code and words of every step whose last attempt failed, what a person needs first ahead.

    Codes of signals count as "try again": somebody else than this workflow's owner stopped the step.
    """
    last = {(line["step"], line["what"]): line for line in _lines(path)}
    found = [_failure(line) for line in last.values() if line.get("code") != 0]
    return sorted(found, key=lambda failure: FIRST.index(failure[0]))


def _lines(path: Path) -> Iterable[Mapping[str, Any]]:
    """Whole lines; what a kill or a full disk cut short is passed over."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with suppress(ValueError):
            facts = json.loads(line)
            if isinstance(facts, dict) and {"step", "what"} <= facts.keys():
                yield facts


def _failure(line: Mapping[str, Any]) -> tuple[int, str]:
    code = line.get("code", TRY_AGAIN)
    words = f"{line['step']} {line['what']}".strip() + f": {line.get('words', KILLED)}"
    return code if code in FIRST else TRY_AGAIN, words
