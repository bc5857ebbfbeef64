"""Finished studies side by side: an overall verdict on every claim, the heads against the softmax, and tables of means.

The rule by which `overall` combines the verdicts of several studies was fixed before it was applied to any study.

`find_studies` reads results folders, with the files that the steps `collect` and `render` wrote, or archived studies.
The folders may be read-only and may come from another machine.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from softmax_bottleneck.records import records
from softmax_bottleneck.records.metrics import EFFECTIVE_RANK, PRESS_RANK, TEST_PPL, find
from softmax_bottleneck.report import archive, numbers
from softmax_bottleneck.report.archive import FinishedStudy
from softmax_bottleneck.report.cells import mean_of
from softmax_bottleneck.report.claims import rules as r
from softmax_bottleneck.report.source import label
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import ROOT, Store
from softmax_bottleneck.study import Study

HEAD_METRICS = (TEST_PPL, PRESS_RANK, f"{EFFECTIVE_RANK}1e-3")
MIXED = "mixed"
OVERALL = (r.REPRODUCED, r.NOT_REPRODUCED, MIXED, r.UNDECIDED, r.CONFOUNDED, r.CANNOT)
SOUND = (r.REPRODUCED, r.NOT_REPRODUCED, r.UNDECIDED)  # verdicts of studies whose premises hold
WIDEST = 44  # characters of a column on a terminal
SOFTMAX = "softmax"
# Models of each head, in order of preference: a model with about the size of the softmax (`-equal`) comes first.
HEADS = (("ss",), ("gss",), ("lms-plif",), ("lms-plif-frozen",), ("moc-equal", "moc"), ("mos-equal", "mos"))
BENCHMARKS = ROOT / "benchmarks" / "results" / "cpu.json"
BENCHMARKED = {"ss": "sigsoftmax", "lms-plif-frozen": "lms-plif"}  # model -> its name in BENCHMARKS, if it differs
RANKS = {"press": PRESS_RANK, "effective": f"{EFFECTIVE_RANK}1e-3"}
TIME = r.interval_rule(r.against("sec_per_epoch", "×"), (0, 0))  # only its number is used

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
    if decided:
        return MIXED if len(decided) > 1 else decided.pop()
    if sound:
        return r.UNDECIDED
    return r.CONFOUNDED if any(entry["verdict"] == r.CONFOUNDED for entry in entries) else r.CANNOT


def matrix(studies: Sequence[FinishedStudy], titles: Mapping[str, str]) -> dict[str, Any]:
    """Return the table of verdicts, with a row for each claim in the first study's claims.json.

    The first study has a column for each of its corpora. Any other study has a column for each corpus on which it can
    test one of the claims. If there is no such corpus, the study has one column for the claims that need no corpus, or
    none if it cannot test these either. A claim that needs no corpus has one cell per study, which spans all columns of
    the study.

    Args:
        studies: the studies; the first one is the study whose report is made.
        titles: the title of each paper, by the key of the paper.

    Returns:
        A dict with three keys:

        * `groups`: the studies that have columns, each a dict with the keys `name`, `study`, `title` and `hardware`
          (the attributes of `FinishedStudy`), and `places` (the titles of its columns).
        * `parts`: the papers, each a dict with `title` and `rows`. A row has the keys `id`, `statement`, `where`
          (place in the paper), `limits` (what the evidence does not show), `criterion` (the rule as text), `overall`
          (the overall verdict) and `cells` (a list of dicts with a study's verdict and number, as yielded by `_cells`).
        * `counts`: a list of pairs (overall verdict, number of rows).
    """
    own = studies[0]
    names = dict.fromkeys(entry["id"] for entry in own.claims)
    columns = []
    for study in studies:
        tested = {one["dataset"] for one in study.claims if one["id"] in names and one["verdict"] != r.CANNOT}
        places = [place for place in study.datasets if study is own or place in tested]
        # A study that only fits known distributions has one column.
        columns.append((study, places or [r.SYNTHETIC] * (r.SYNTHETIC in tested)))
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


def _cells(study: FinishedStudy, places: Sequence[str], name: str, is_own: bool) -> Iterator[dict[str, Any]]:
    """Yield the cells of one study in the row of one claim: one per corpus, or one that spans all corpora.

    Args:
        study: the study.
        places: the corpora that are columns of the study.
        name: the id of the claim.
        is_own: True if the report is made for this study.

    Yields:
        A dict per cell, with these keys:

        * `study`: name of the study, hardware and corpus as one text.
        * `span`: the number of columns that the cell spans.
        * `entry`: the claim's entry of claims.json; None if the claim was not evaluated.
        * `number`: name and value of the entry's first number as text; empty if there is no value.
        * `is_own`: the argument `is_own`.
    """
    entries = {entry["dataset"]: entry for entry in study.claims if entry["id"] == name}
    spans = {r.SYNTHETIC: len(places)} if r.SYNTHETIC in entries else dict.fromkeys(places, 1)
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


# --- "Which head should I use?" --------------------------------------------------------------------------------------
def head_table(studies: Sequence[FinishedStudy], study: Study) -> dict[str, Any] | None:
    """Return the table of heads relative to the softmax, or None if no study has runs of a softmax and of another head.

    The table has a row per head, and a column for each corpus of each study that has runs of a softmax and of another
    head, natural text first. If there is natural text, synthetic languages are not counted. A corpus with several
    columns is counted once, for example as lower if the perplexity is significantly lower in any of its columns.

    Args:
        studies: the studies whose runs are compared.
        study: the study from which the labels of the heads are taken.

    Returns:
        A dict with the keys `columns`, `rows` and `measured_in`. A column is a dict of texts with the keys `study`,
        `corpus` and `hardware` (see `_headings`). `measured_in` is a text such as `ptb-words (Penn Treebank)`: the
        study and the corpus from which `first` below is taken. They are the first of `studies` that has a column, and
        its first corpus that has one, even if that is a synthetic language. A row has these keys:

        * `label`: the label of the head.
        * `cells`: a dict per column with the change in perplexity against the softmax (keys: see `_against_softmax`);
          empty if the head or the softmax has no test perplexity.
        * `compared`: the number of corpora that count and on which the head is compared with the softmax.
        * `lower`, `higher`: on how many of the compared corpora the perplexity is significantly lower or higher.
        * `gain`: by how many percent the perplexity is significantly lower, as text such as `7.5 to 9.5`.
        * `text`: the words ` on natural text` if synthetic languages are left out of the counts, otherwise empty.
        * `unlearned`: the number of runs hardly better than a unigram model, in all columns of corpora that count.
        * `first`: {name: number as text} for the names `size`, `time`, `least_time`, `press` and `effective` (see
          `_sizes`) on the corpus of `measured_in`; empty if the head has no runs there. There is no mean over the
          columns, because they differ in width or machine.
        * `memory`: the head's peak memory relative to the softmax, from the function `memory`, as text.
        * `advice`: the recommendation, such as `better` (see the function `advice`).
    """
    columns = [(one, data) for one in studies for data in one.views if any(_model(data, models) for models in HEADS)]
    measured_in = columns[:1]
    columns.sort(key=lambda column: bool(column[1].truth))  # natural text first
    counted = {data.dataset for _, data in columns if not data.truth} or {data.dataset for _, data in columns}
    rows = []
    for models in ((SOFTMAX,), *HEADS) if columns else ():
        cells = [_against_softmax(data, _model(data, models)) for _, data in columns]
        compared = [(data.dataset, cell) for (_, data), cell in zip(columns, cells, strict=True) if cell]
        natural = [(corpus, cell) for corpus, cell in compared if corpus in counted]
        lower, higher = (len({corpus for corpus, cell in natural if cell["sign"] == sign}) for sign in (-1, 1))
        counts = {"lower": lower, "higher": higher, "compared": len({corpus for corpus, _ in natural})}
        counts["unlearned"] = sum(cell.get("unlearned", 0) for _, cell in natural)
        gains = sorted(-cell["change"] for _, cell in natural if cell["sign"] < 0)
        sizes = _sizes(measured_in[0][1], _model(measured_in[0][1], models))
        facts = {
            "label": label(study, models[-1]),
            "cells": cells,
            "gain": " to ".join(dict.fromkeys(numbers.number(gain, 1) for gain in gains[:1] + gains[-1:])),
            "text": " on natural text" if len(natural) < len(compared) else "",
            "memory": numbers.number(memory().get(models[-1]), 1),
            "first": {name: numbers.number(value, 0 if name in RANKS else 2) for name, value in sizes.items()},
            "advice": advice(counts, sizes | {"memory": memory().get(models[-1])}),
        }
        rows += [facts | counts] * bool(compared)
    measured = ", ".join(f"{one.study} ({one.title_of(data.dataset)})" for one, data in measured_in)
    return {"columns": _headings(columns), "rows": rows, "measured_in": measured} if columns else None


def _headings(columns: Sequence[tuple[FinishedStudy, r.CorpusData]]) -> list[dict[str, str]]:
    """Return the headings of the table of heads: for each column a dict of the texts `study`, `corpus` and `hardware`.

    `study` is the name of the study, and `corpus` the title of the corpus, or its name if it has no title. `hardware`
    is empty if all columns of this study have the same hardware. Each item of the argument `columns` is a study with
    its records of one corpus.
    """
    machines = {one.study: {other.hardware for other, _ in columns if other.study == one.study} for one, _ in columns}
    return [
        {
            "study": one.study,
            "hardware": one.hardware if len(machines[one.study]) > 1 else "",
            "corpus": one.title_of(data.dataset),
        }
        for one, data in columns
    ]


def _model(data: r.CorpusData, models: Sequence[str]) -> str:
    """Return the first of `models` (the models of one head) that has a test perplexity on a corpus.

    The result is "" if no model has a test perplexity, or if the softmax has none.
    """
    return next((model for model in models if all(data.values(own, TEST_PPL) for own in (model, SOFTMAX))), "")


def _against_softmax(data: r.CorpusData, model: str) -> dict[str, Any]:
    """Return the cell of a model: the change of its test perplexity on one corpus relative to the softmax.

    Returns:
        A dict, empty if `model` is "", with these keys:

        * `change`, `value`: the change in percent, as a number and as text.
        * `n`: the numbers of runs as text, such as `n = 3 and 4`.
        * `sign`: -1 or 1 if the whole interval of the change lies below or above zero, else 0.
        * `interval`: the interval of the change as text.
        * `size`: the number of parameters relative to the softmax as text; empty if it is about the same.
        * `unlearned`: the number of runs that failed to learn.

        For the softmax itself the dict has only `value` (the mean test perplexity), `n` and `sign` (0).
    """
    if not model:
        return {}
    if model == SOFTMAX and (mean := mean_of(data.values(model, TEST_PPL).values())):
        return {"value": numbers.spread(mean.mean, mean.sd), "n": numbers.counts([mean.n]), "sign": 0}
    number = r.better().judge(data, model, SOFTMAX).numbers[0]
    size = data.mean(model, "parameters") / data.mean(SOFTMAX, "parameters")
    low, high = (0.0 if end is None else end for end in (number.low, number.high))
    return {
        "change": number.value,
        "value": f"{numbers.number(number.value, 1, signed=True)}\u00a0%",
        "interval": numbers.interval(number.low, number.high, 1),
        "n": numbers.counts(number.n),
        "sign": -1 if high < 0 else int(low > 0),
        "size": numbers.number(size, 2) if abs(size - 1) > r.SAME_SIZE else "",
        "unlearned": sum(key[:2] == (data.dataset, model) for key in data.records.unlearned),
    }


def _sizes(data: r.CorpusData, model: str) -> dict[str, float | None]:
    """Return the size, time and ranks of a model on one corpus.

    Returns:
        A dict, empty if `model` is "", with these keys. `size` and `time` are the number of parameters and the time per
        epoch, each divided by the softmax's. `least_time` is the lower end of the interval of `time`. `press` and
        `effective` are the Press rank and the effective rank, averaged over runs. An unknown number is None or nan.
    """
    if not model:
        return {}
    size = data.mean(model, "parameters") / data.mean(SOFTMAX, "parameters")
    times = [(number.value, number.low) for number in TIME.judge(data, model, SOFTMAX).numbers] or [(None, None)]
    facts = {"size": size, "time": times[0][0], "least_time": times[0][1]}
    return {name: data.mean(model, metric) for name, metric in RANKS.items()} | facts


def advice(counts: Mapping[str, int], sizes: Mapping[str, float | None]) -> str:
    """Return the recommendation for a head: the first of these keys whose condition is true.

    * `mixed`: the perplexity is significantly lower than the softmax's on a corpus and significantly higher on another.
    * `better`: the perplexity is significantly lower on a corpus.
    * `fragile`: a run failed to learn, which says more about the training than about the head.
    * `worse`: the perplexity is significantly higher on a corpus.
    * `unproven`: the head has more parameters or needs more memory, or its time per epoch is significantly longer.
    * `free`: none of the above.

    Args:
        counts: the numbers of corpora with a significantly lower perplexity (`lower`) and a significantly higher one
            (`higher`), and of runs that failed to learn (`unlearned`).
        sizes: the head's number of parameters (`size`), peak memory (`memory`) and lower end of the interval of time
            per epoch (`least_time`), each divided by the softmax's. An unknown number counts as equal to the softmax's.
    """
    if counts["lower"] and counts["higher"]:
        return "mixed"
    if counts["lower"]:
        return "better"
    if counts["unlearned"]:
        return "fragile"
    if counts["higher"]:
        return "worse"
    costs_more = any((sizes.get(name) or 1) > 1 + r.SAME_SIZE for name in ("size", "memory"))
    costs_more = costs_more or (sizes.get("least_time") or 0) > 1
    return "unproven" if costs_more else "free"


@cache
def memory() -> dict[str, float]:
    """Return the peak memory for the loss and gradients of each benchmarked head, relative to the softmax.

    The benchmark measures the memory at the published size of Penn Treebank. Without a benchmark file, return {}.
    """
    rows = json.loads(BENCHMARKS.read_text(encoding="utf-8"))["heads"] if BENCHMARKS.is_file() else []
    peaks = {row["head"]: row["peak_mib"] for row in rows if (row["corpus"], row["variant"]) == ("ptb", "ours")}
    peaks |= {model: peaks[head] for model, head in BENCHMARKED.items() if head in peaks}
    return {head: peak / peaks[SOFTMAX] for head, peak in peaks.items()}


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
        own = [entry for entry in study.claims if entry["dataset"] in (corpus, r.SYNTHETIC)]
        first = {entry["id"]: [n["text"] for n in entry["numbers"][:1] if n["value"] is not None] for entry in own}
        verdicts[name] = {entry["id"]: ": ".join([entry["verdict"], *first[entry["id"]]]) for entry in own}
        heads[name] = dict[str, str]()
        for model, title in dict(zip(states["model"], states["label"], strict=True)).items():
            values = {m: study.records.values(corpus, model, m).values() for m in HEAD_METRICS}
            means = {m: mean for m, own in values.items() if (mean := mean_of(own))}
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
    """Return the tables as CSV text with one line per cell; the columns are table, row, study and text."""
    cells = pd.concat(tables, names=["table"]).melt(ignore_index=False, var_name="study", value_name="text")
    return records.to_csv(cells.reset_index().sort_values("table", kind="stable"))
