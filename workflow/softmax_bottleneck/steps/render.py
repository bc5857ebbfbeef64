"""The step `render`: it writes all parts of a study's report: tables, figures, claims.json and page.json."""

from softmax_bottleneck.report import archive, contents
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Study


def render(study: Study, say: Say) -> None:
    """Write the tables and figures of a study, and the verdicts on the claims; name archives that were left out."""
    contents.write(study, study.store.study_folder(study.name))
    for finding in () if study.is_of_own_texts else archive.findings():
        say(f"warning: an archived study is left out: {finding.words}")
    say(f"{study.name}: {len(study.experiments)} tables and figures")
