"""Finished studies side by side: an overall verdict on every claim, the heads against the softmax, and tables of means.

The rule by which `overall` combines the verdicts of several studies was fixed before it was applied to any study.

`find_studies` reads results folders, with the files that the steps `collect` and `render` wrote, or archived studies.
The folders may be read-only and may come from another machine.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from softmax_bottleneck.heads.registry import declaration
from softmax_bottleneck.records import records
from softmax_bottleneck.records.metrics import EFFECTIVE_RANK, PRESS_RANK, TEST_PPL, find
from softmax_bottleneck.report import archive, contrasts, findings, numbers
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.cells import mean_of
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.contrasts import Contrast
from softmax_bottleneck.report.source import bundled_dataset
from softmax_bottleneck.statistics.intervals import ALPHA
from softmax_bottleneck.statistics.pooled import holm
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import ROOT, Store

RANKS = {"press": PRESS_RANK, "effective": f"{EFFECTIVE_RANK}1e-3"}
HEAD_METRICS = (TEST_PPL, *RANKS.values())
MIXED = "mixed"
OVERALL = (r.REPRODUCED, r.NOT_REPRODUCED, MIXED, r.UNDECIDED, r.CONFOUNDED, r.CANNOT)
SYNTHETIC_TEXTS = "Known distributions"  # a column of the table of verdicts
SOUND = (r.REPRODUCED, r.NOT_REPRODUCED, r.UNDECIDED)  # verdicts of studies whose premises hold
WIDEST = 44  # characters of a column on a terminal
BENCHMARKS = ROOT / "benchmarks" / "results" / "cpu.json"

Entry = Mapping[str, Any]  # the verdict on a conclusion on one corpus, as in claims.json
Tables = Mapping[str, pd.DataFrame]  # title -> table of texts with a column per study and corpus


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


# --- "Which head should I use?" --------------------------------------------------------------------------------------
def head_table(studies: Sequence[FinishedStudy]) -> dict[str, Any] | None:
    """Return the table of heads against the softmax, or None if no setting has a softmax and another head.

    The table has a row per head of report/findings.yaml or from outside the package. It has a column per setting,
    natural text and LSTMs first. All its contrasts are exploratory. Those of LSTMs on natural text with an
    interval are one family for Holm's correction; if there is no natural text, those on synthetic languages are.

    Returns:
        A dict with the keys `columns` (the labels of the settings), `rows`, `measured_in` (the label of the setting in
        which sizes and ranks are measured: the first of those with most heads), `tests` (the size of the family) and
        `fair` (the number of these that can speak, see the function `advice`). A row has these keys:

        * `label`, `family`: the label of the head and its family (`heads/declaration.py`).
        * `cells`: for each column None, or a dict of texts (see `_cell`).
        * `costs`: {`size`, `time`, `press`, `effective`: ratio to the softmax, or rank, as text} in `measured_in`, but
          `time` is the range over the family; empty if the head has no runs there.
        * `at_time`: changes against the best softmax that takes no more time, as text; a dash if none was timed.
        * `memory`: the head's peak memory relative to the softmax, from the function `memory`, as text.
        * `advice`, `lower`, `higher`, `gain`, `basis`, `by_family`: see the function `advice`.
    """
    samples = contrasts.samples(studies)
    baseline, heads = findings.TEXTS["baseline"], findings.heads()
    by_head = {label: contrasts.against_baseline(samples, label, head, baseline) for label, head in heads.items()}
    every = list(itertools.chain.from_iterable(by_head.values()))
    counts = Counter(contrast.setting for contrast in every)
    settings = [setting for setting in contrasts.settings_of(samples) if setting in counts]
    if not settings:
        return None
    natural = [contrast for contrast in every if not contrast.setting.is_synthetic]
    family = [contrast for contrast in natural or every if contrast.setting.is_lstm and contrast.ends]
    adjusted = _adjusted(family)
    among_fair = _adjusted(contrast for contrast in family if contrast.is_fair)
    most = max(settings, key=counts.__getitem__)
    softmax = {contrast.setting: contrast.baseline for contrast in every}
    rows: list[dict[str, Any]] = [
        {"label": "Softmax", "family": "baseline", "advice": "baseline", "memory": "1.0", "at_time": "the baseline"}
        | {"cells": [_softmax_cell(softmax[setting]) for setting in settings]}
        | {"costs": {"size": "1.00", "time": "1.0"} | _ranks(softmax[most])}
    ]
    for label, of_head in ((label, of_head) for label, of_head in by_head.items() if of_head):
        name, by_setting = heads[label]["name"], {contrast.setting: contrast for contrast in of_head}
        counted = [contrast for contrast in of_head if contrast in adjusted]
        costs = {}
        if at_most := by_setting.get(most):
            costs = {"size": numbers.number(at_most.size), "time": contrasts.time_range(counted)}
            costs |= _ranks(at_most.model)
        cells = [_cell(by_setting[setting]) if setting in by_setting else None for setting in settings]
        row = {"label": label, "family": declaration(name).family, "cells": cells, "costs": costs}
        row["at_time"] = _at_equal_time(samples, of_head)
        rows.append(row | {"memory": numbers.number(memory().get(name), 1)} | advice(counted, adjusted, among_fair))
    columns = [setting.label for setting in settings]
    tests = {"tests": len(family), "fair": len(among_fair)}
    return {"columns": columns, "rows": rows, "measured_in": most.label, **tests}


def _adjusted(family: Iterable[Contrast]) -> dict[Contrast, float]:
    """Return {contrast: p-value after Holm's correction} of one family."""
    contrasts_of = list(family)
    return dict(zip(contrasts_of, holm([contrast.p for contrast in contrasts_of]), strict=True))


def _at_equal_time(samples: Mapping[contrasts.Model, contrasts.Sample], of_head: Sequence[Contrast]) -> str:
    """Return a head's changes against the best softmax of any width that takes no more time (LSTMs, natural text)."""
    on_text = [contrast for contrast in of_head if contrast.setting.is_lstm and not contrast.setting.is_synthetic]
    equal = [contrast for contrast in on_text if contrast.is_equal_size]
    rivals = [rival for contrast in equal if (rival := contrasts.at_equal_time(samples, contrast))]
    costs = (f"({rival.single_time} × its time, n = {min(rival.n)})" for rival in rivals)
    texts = (f"{rival.short_text} on {rival.setting.label}" for rival in rivals)
    return "; ".join(map(" ".join, zip(texts, costs, strict=True))) or "—"


def _ranks(sample: contrasts.Sample) -> dict[str, str]:
    return {name: numbers.number(sample.mean(metric), 0) for name, metric in RANKS.items()}


def _softmax_cell(sample: contrasts.Sample) -> dict[str, Any]:
    return {"value": numbers.number(sample.ppl), "n": numbers.counts([len(sample.log_ppl)]), "sign": 0}


def _cell(contrast: Contrast) -> dict[str, Any]:
    """Return a contrast as a dict of texts for one cell of the table of heads.

    The keys are `value` and `interval` (the change in percent), `n`, `size` and `time` relative to the softmax, and
    `rates`; `sign` is -1 or 1 if the whole interval lies below or above zero, else 0; `diverged` is the number of
    diverged runs.
    """
    return {
        "value": contrast.change_text,
        "interval": numbers.interval(*contrast.ends, 1) if contrast.ends else "",
        "n": numbers.counts(contrast.n),
        "size": numbers.number(contrast.size),
        "time": contrast.time,
        "rates": contrast.rates,
        "sign": contrast.sign,
        "diverged": contrast.n_diverged,
    }


def advice(
    counted: Sequence[Contrast], adjusted: Mapping[Contrast, float], among_fair: Mapping[Contrast, float]
) -> dict[str, Any]:
    """Return what the exploratory contrasts of a head say of it.

    A contrast can speak for or against a head only if it is fair: both sides have the same number of parameters (within
    EQUAL_SIZE), and the same learning rates were tried for both.

    Args:
        counted: the head's contrasts in the family.
        adjusted, among_fair: p-values after Holm's correction over the whole family, and over its fair contrasts.

    Returns:
        A dict with these keys:

        * `advice`: `mixed`, `better` or `worse` if the perplexity is significantly lower, higher or both; `open` if no
          change is significant; `untested` if no contrast can speak.
        * `lower`, `higher`: the corpora with a significantly lower or higher perplexity, as text.
        * `gain`: the changes that can speak, lowest to highest, as text; `basis`: numbers of seeds, and of contrasts
          with bracketed rates.
        * `by_family`: the changes that are significant in the family of fair contrasts only, as text.
    """
    fair = [contrast for contrast in counted if contrast.is_fair]
    sure = [contrast for contrast in fair if adjusted[contrast] < ALPHA]
    lower, higher = ([contrast for contrast in sure if sign * contrast.change > 0] for sign in (-1, 1))
    if lower and higher:
        kind = "mixed"
    elif lower or higher:
        kind = "better" if lower else "worse"
    else:
        kind = "open" if fair else "untested"
    unsure = [contrast for contrast in fair if among_fair[contrast] < ALPHA <= adjusted[contrast]]
    return {
        "advice": kind,
        "lower": " and ".join(contrasts.corpora(lower)),
        "higher": " and ".join(contrasts.corpora(higher)),
        "gain": numbers.span([contrast.change for contrast in fair], signed=True),
        "basis": contrasts.basis(fair) if fair else "",
        "by_family": "; ".join(
            f"on {contrast.setting.labels[0]} {contrast.change_text} "
            f"(p = {numbers.p_value(among_fair[contrast])} or {numbers.p_value(adjusted[contrast])}, by family)"
            for contrast in unsure
        ),
    }


@cache
def memory() -> dict[str, float]:
    """Return the peak memory for the loss and gradients of each benchmarked head, relative to the softmax.

    The benchmark measures the memory at the published size of Penn Treebank. Without a benchmark file, return {}.
    """
    rows = json.loads(BENCHMARKS.read_text(encoding="utf-8"))["heads"] if BENCHMARKS.is_file() else []
    peaks = {row["head"]: row["peak_mib"] for row in rows if (row["corpus"], row["variant"]) == ("ptb", "ours")}
    return {head: peak / peaks["softmax"] for head, peak in peaks.items()}


# --- tables on a terminal ---------------------------------------------------------------------------------------------
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


# --- output ---------------------------------------------------------------------------------------------------------
def text(tables: Tables, widest: int | None = WIDEST) -> str:
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


def csv(tables: Tables) -> str:
    """Return the tables as CSV text with one line per cell; the columns are table, row, study and text."""
    cells = pd.concat(tables, names=["table"]).melt(ignore_index=False, var_name="study", value_name="text")
    return records.to_csv(cells.reset_index().sort_values("table", kind="stable"))
