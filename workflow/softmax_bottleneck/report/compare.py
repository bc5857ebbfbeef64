"""Finished studies side by side: the verdict of each on every claim, the means of every head, and the hardware.

The module reads the files that `collect` and `render` wrote to the folders of the studies, or archived studies. The
folders may be read-only and may come from another machine.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from softmax_bottleneck.records import records
from softmax_bottleneck.records.metrics import EFFECTIVE_RANK, PRESS_RANK, TEST_PPL, find
from softmax_bottleneck.report import archive
from softmax_bottleneck.report.archive import CLAIMS_FILE, FinishedStudy, from_results
from softmax_bottleneck.report.cells import mean_of
from softmax_bottleneck.report.claims.rules import CANNOT, SYNTHETIC
from softmax_bottleneck.report.numbers import spread
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store

HEAD_METRICS = (TEST_PPL, PRESS_RANK, f"{EFFECTIVE_RANK}1e-3")
WIDEST = 44  # characters of a column on a terminal

Tables = Mapping[str, pd.DataFrame]  # title -> texts, a column per study and corpus
Columns = Sequence[tuple[FinishedStudy, str]]


def find_studies(names: Sequence[str]) -> list[FinishedStudy]:
    """Return the finished studies that some names stand for.

    A name is that of a study, the folder of its results, or a folder that holds such folders. If there are no results,
    the archived studies of that name are returned.

    Raises:
        UserError: a name has no finished study, or fewer than two studies are found in all.
        DataError: a file is damaged.
    """
    studies: list[FinishedStudy] = []
    for name in names:
        folders = [f for f in (Store().study_folder(name), Path(name)) if (f / CLAIMS_FILE).is_file()]
        inside = [path.parent for path in sorted(Path(name).glob(f"*/{CLAIMS_FILE}"))]
        own = [from_results(folders[0], name)] if folders else [from_results(one, str(one)) for one in inside]
        studies += own or archive.find(name)
    if len(studies) < 2:
        raise UserError(f"compare: {len(studies)} finished study; name two or more, or a folder that holds them")
    return studies


# --- tables ---------------------------------------------------------------------------------------------------------
def side_by_side(studies: Sequence[FinishedStudy]) -> Tables:
    """Return the tables of claims and of heads, each with a column per study and corpus."""
    columns = {f"{study.name}: {corpus}": (study, corpus) for study in studies for corpus in study.datasets}
    hardware, tested = {}, set()
    statements: dict[str, str] = {}
    for name, (study, _) in columns.items():
        kinds = sorted({*study.records.states["hardware"]} - {""})  # with instruction sets, which move last digits
        hardware[name] = {"Hardware": "; ".join(kinds) or study.hardware}
        tested |= {entry["id"] for entry in study.claims if entry["verdict"] != CANNOT}
        # The first statement counts: archives may have an older wording.
        statements = {entry["id"]: f"{entry['statement']} [{entry['id']}]" for entry in study.claims} | statements
    claims = pd.DataFrame({name: _verdicts(*column) for name, column in columns.items()}).fillna("not evaluated")
    heads = pd.DataFrame({name: _heads(*column) for name, column in columns.items()}).fillna("—")
    tables = {"Conclusions": claims[claims.index.isin(tested)].rename(statements), "Heads": heads}
    return {title: pd.concat([pd.DataFrame(hardware), table]).rename_axis("row") for title, table in tables.items()}


def heads(study: FinishedStudy) -> str:
    """Return the table of the heads of one study as text for a terminal."""
    return text({"Heads": side_by_side([study])["Heads"]})


def _verdicts(study: FinishedStudy, corpus: str) -> dict[str, str]:
    """Return {id of a claim: verdict and first number, as text} for the claims of a study on a corpus."""
    entries = [entry for entry in study.claims if entry["dataset"] in (corpus, SYNTHETIC)]
    numbers = {entry["id"]: [n["text"] for n in entry["numbers"][:1] if n["value"] is not None] for entry in entries}
    return {entry["id"]: ": ".join([entry["verdict"], *numbers[entry["id"]]]) for entry in entries}


def _heads(study: FinishedStudy, corpus: str) -> dict[str, str]:
    """Return {label of a model: text} for the planned models of a corpus.

    The text has the means of HEAD_METRICS, and the numbers of finished and planned runs.
    """
    states, found = study.records.states, {}
    for model, label in dict(zip(states["model"], states["label"], strict=True)).items():
        values = {m: study.records.values(corpus, model, m).values() for m in HEAD_METRICS}
        known = {m: mean for m, own in values.items() if (mean := mean_of(own))}
        texts = [spread(x.mean, x.sd if m == TEST_PPL else None, find(m).digits) for m, x in known.items()]
        planned, n = len(study.records.planned(corpus, model)), max((mean.n for mean in known.values()), default=0)
        if planned:
            found[label if label == model else f"{label} [{model}]"] = ", ".join([*texts, f"n = {n}/{planned}"])
    return found


# --- output ---------------------------------------------------------------------------------------------------------
def text(tables: Tables) -> str:
    """Return the tables as text for a terminal; cells longer than WIDEST are cut."""
    metrics = ", ".join(find(metric).words for metric in HEAD_METRICS)
    titles = {"Heads": f"Heads: {metrics}, finished and planned runs"}
    parts = []
    for title, table in tables.items():
        rows = [("", *table.columns), *table.itertuples(name=None)]
        cut = pd.DataFrame([[c if len(c) <= WIDEST else f"{c[: WIDEST - 1]}…" for c in row] for row in rows])
        aligned = cut.apply(lambda column: column.str.ljust(column.str.len().max()))
        parts.append("\n".join([titles.get(title, title), *("  ".join(row).rstrip() for row in aligned.to_numpy())]))
    return "\n\n".join(parts)


def csv(tables: Tables) -> str:
    """Return the tables as CSV text with one line per cell."""
    cells = pd.concat(tables, names=["table"]).melt(ignore_index=False, var_name="study", value_name="text")
    return records.to_csv(cells.reset_index().sort_values("table", kind="stable"))
