"""The step `report`: it writes the page that embeds the tables and figures of `render`."""

from pathlib import Path

from softmax_bottleneck.report import page
from softmax_bottleneck.store import artefacts, errors, progress
from softmax_bottleneck.study import Study


def report(study: Study, say: progress.Say, out: Path | None = None) -> None:
    """Write the report of a study, index.html, to results/<study>/report or to the folder `out`.

    Raises:
        IncompleteError: none of the planned runs has results. The report is written before the error is raised.
    """
    folder = study.store.study_folder(study.name)
    say(f"wrote {page.write(folder, out=out)}")
    counts = dict(artefacts.read_json(folder / "page.json")["counts"])
    if counts["planned"] and counts["missing"] == counts["planned"]:
        raise errors.IncompleteError(f"{study.name}: none of the {counts['planned']} planned runs has results")
