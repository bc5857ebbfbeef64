"""Finished studies side by side: tables of verdicts and of means, as text for a terminal."""

from collections.abc import Mapping, Sequence

import pandas as pd

from softmax_bottleneck.records.metrics import TEST_PPL, find
from softmax_bottleneck.report import numbers
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.cells import mean_of
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.head_table import RANKS

HEAD_METRICS = (TEST_PPL, *RANKS.values())
WIDEST = 44  # characters of a column on a terminal

Tables = Mapping[str, pd.DataFrame]  # title -> table of texts with a column per study and corpus


def side_by_side(studies: Sequence[FinishedStudy]) -> Tables:
    """Return the tables {"Conclusions": frame, "Heads": frame}, each with a column per study and corpus.

    The first row of both tables names the hardware. The remaining rows of `Conclusions` are the claims that at least
    one study can test. A cell has the verdict and the first number behind the verdict. The remaining rows of `Heads`
    are the models. A cell has the means of HEAD_METRICS, and the numbers of finished and planned runs.
    """
    columns = {f"{study.name}: {corpus}": (study, corpus) for study in studies for corpus in study.datasets}
    hardware, verdicts, heads, tested = {}, {}, {}, set()
    statements: dict[str, str] = {}
    for name, (study, corpus) in columns.items():
        states = study.records.states
        kinds = sorted({*states["hardware"]} - {""})  # include the instruction sets, which change the last digits
        hardware[name] = {"Hardware": "; ".join(kinds) or study.hardware}
        tested |= {entry["id"] for entry in study.claims if entry["verdict"] != r.CANNOT}
        # The first statement counts: archives may have an older wording.
        statements = {entry["id"]: f"{entry['statement']} [{entry['id']}]" for entry in study.claims} | statements
        entries = [entry for entry in study.claims if entry["dataset"] in (corpus, r.SYNTHETIC)]
        first = {entry["id"]: [n["text"] for n in entry["numbers"][:1] if n["value"] is not None] for entry in entries}
        verdicts[name] = {entry["id"]: ": ".join([entry["verdict"], *first[entry["id"]]]) for entry in entries}
        heads[name] = dict[str, str]()
        for model, title in dict(zip(states["model"], states["label"], strict=True)).items():
            values = {m: study.records.values(corpus, model, m).values() for m in HEAD_METRICS}
            means = {m: mean for m, by_seed in values.items() if (mean := mean_of(by_seed))}
            texts = [numbers.spread(x.mean, x.sd if m == TEST_PPL else None, find(m).digits) for m, x in means.items()]
            planned, n = len(study.records.planned(corpus, model)), max((mean.n for mean in means.values()), default=0)
            if planned:
                row = title if title == model else f"{title} [{model}]"
                heads[name][row] = ", ".join([*texts, f"n = {n}/{planned}"])
    claims = pd.DataFrame(verdicts).fillna("not evaluated")
    tables = {
        "Conclusions": claims[claims.index.isin(tested)].rename(statements),
        "Heads": pd.DataFrame(heads).fillna("—"),
    }
    return {title: pd.concat([pd.DataFrame(hardware), table]).rename_axis("row") for title, table in tables.items()}


def as_text(tables: Tables, widest: int | None = WIDEST) -> str:
    """Return the tables as text; cells longer than `widest` characters are cut for a terminal (None: no cell is)."""
    metrics = ", ".join(find(metric).words for metric in HEAD_METRICS)
    titles = {"Heads": f"Heads: {metrics}, finished and planned runs"}
    parts = []
    for title, table in tables.items():
        rows = [("", *table.columns), *table.itertuples(name=None)]
        limit = widest or max(len(cell) for row in rows for cell in row)
        cut = pd.DataFrame([[c if len(c) <= limit else f"{c[: limit - 1]}…" for c in row] for row in rows])
        aligned = cut.apply(lambda column: column.str.ljust(column.str.len().max()))
        parts.append("\n".join([titles.get(title, title), *("  ".join(row).rstrip() for row in aligned.to_numpy())]))
    return "\n\n".join(parts)
