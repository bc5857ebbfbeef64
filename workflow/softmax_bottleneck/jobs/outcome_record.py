"""The record of a finished run or other job: a JSON file with its results and provenance, kept in two equal copies.

One copy, called the result, is the output of the job's Snakemake rule: `done.json` or `dynamic.json`. Snakemake deletes
the result before a job and after a failed job. The other copy, `outcome.json`, is unknown to Snakemake and therefore
never deleted. The result is restored from this copy, so that the computation is not repeated. Only the result exists if
nothing was computed: finetuning and dynamic evaluation of a diverged run.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softmax_bottleneck.store import artefacts, errors

OUTCOME_FILE = "outcome.json"


def paths(folder: Path, result: str) -> tuple[Path, Path]:
    """Return the paths of both copies of a run's record: outcome.json, then the result.

    `folder` is the folder of the run. `result` is the file name of the result, `done.json` or `dynamic.json`.
    """
    return folder / OUTCOME_FILE, folder / result


def restore(folder: Path, result: str) -> None:
    """Rewrite a missing or damaged copy of the record from the intact copy; do nothing if neither is intact.

    A copy is intact if it matches the hash file beside it. The new file gets the modification time of the intact one.
    Files made from the record therefore do not look outdated to Snakemake. `folder` is the folder of the run. `result`
    is the file name of the result, such as `done.json`.
    """
    copies = paths(folder, result)
    sound = [path for path in copies if artefacts.is_sound(path)]
    for path in copies:
        if sound and path not in sound:
            artefacts.write_bytes(path, artefacts.read_bytes(sound[0]))
            os.utime(path, ns=(sound[0].stat().st_mtime_ns,) * 2)


def refuse_foreign(path: Path, stored: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise UserError if a record or resume state belongs to another run.

    Args:
        path: file of the record or resume state, for the error message.
        stored: ids that the file contains.
        here: ids of this run. The file belongs to this run only if `stored` equals `here`.
    """
    for key in sorted({*stored, *here}):
        ours, theirs = here.get(key, "absent"), stored.get(key, "absent")
        if ours != theirs:
            raise errors.UserError(f"{path}: belongs to another run: {key} is {theirs!r} there and {ours!r} here; "
                            "move the folder away, or start this run over with --restart")  # fmt: skip
