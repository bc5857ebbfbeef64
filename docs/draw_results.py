"""Write the findings of README.md, and the tables of docs/results.md and docs/evidence.md, from the archived studies.

python docs/draw_results.py
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

from softmax_bottleneck.heads.registry import declaration  # noqa: E402
from softmax_bottleneck.records.records import DYNAMIC, FINETUNED, Records  # noqa: E402
from softmax_bottleneck.report import archive, cells, compare, contrasts, findings, head_table, numbers, source, summary  # noqa: E402
from softmax_bottleneck.report.archive import ArchivedRun, FinishedStudy  # noqa: E402
from softmax_bottleneck.report.claims import both_sides, natural  # noqa: E402
from softmax_bottleneck.report.claims.rules import CANNOT, NOT_REPRODUCED, REPRODUCED, SYNTHETIC, UNDECIDED  # noqa: E402
from softmax_bottleneck.report.claims.verdict import TEXTS  # noqa: E402
from softmax_bottleneck.report.page import environment  # noqa: E402
from softmax_bottleneck.report.samples import VALID_PPL, model_of, pick, pool_runs, settings_of  # noqa: E402

README, PAGE, EVIDENCE = ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "evidence.md"
FIGURES = ROOT / "docs" / "findings"
MERITY = ROOT / "report" / "published" / "smerity2017_rank_demo.csv"
PICTURED = "demo"
MODELS = ("softmax", "ss", "gss", "gss-c1.5", "lms-plif", "lms-plif-frozen", "moc", "moc-equal", "mos", "mos-equal")
STEPS = (  # from the softmax to MoS
    "",
    "the layer: one tanh layer against Softmax",
    "mixing contexts: MoC against the layer",
    "mixing probabilities: MoS against MoC",
)
VARIED = (
    "softmax-own",
    "mos-own",
    "moc-k1",
    "moc-k2",
    "moc-k15",
    "moc-dropout",
    "mos-k2",
    "mos-k15",
    "mos-dropout",
    *(f"{model}-r10" for model in ("softmax", "moc-k1", "moc", "mos")),
)  # of rank-or-mixture
# Of the demonstration: Softmax, the same with the extra layer of MoS (K = 1), and MoS with K = 4.
LAYERS = ("softmax-nt", "mos-nt-components1", "mos-nt-components4")
DECIDED = (REPRODUCED, NOT_REPRODUCED)
READING = "benka-mixture"  # the study of both heads in the best reading
BOTH = ("transformer", "transformer-mos")  # its models
MIXTURES = (READING, f"{READING}-50")  # and with all epochs
READINGS = ("benka-readings", "paper")  # studies of Benka's Transformer with a softmax
TRANSFORMER = ("transformer", "softmax")  # body and head of a reading
READ_EPOCH = 15  # the epoch after which readings are compared
SHORT = {"ptb": "PTB", "ptb-small": "PTB", "wt2-small": "WT2"}  # names of corpora in tables
METRICS = {
    "parameters": ("parameters", 0),
    "test_ppl": ("test perplexity", 2),
    "rank_press": ("Press rank", 0),
    "rank_eff_1e-3": ("effective rank, ε = 0.001", 0),
    "kl_truth_nats": ("KL from the true distribution, nats", 3),
}
CLAIM_SOURCES = {
    "parthiban2021": "Parthiban 2021",
    "kanai2018": "Kanai 2018",
    "ganea2019": "Ganea 2019",
    "merity2017": "Merity 2017",
    "benka2021": "Benka 2021",
    "both-sides": "both sides of 2026",
    "natural": "natural distributions",
    "known-truth": "known distributions",
    "gradient": "preserved gradient",
    "rank-or-mixture": "rank or mixture",
}
KNOWN = (SYNTHETIC, "truth")  # beginnings of the names of corpora of known distribution
STAGES = ("", FINETUNED, DYNAMIC)
KANAI = ("softmax", "relu", "sigmoid", "ss", "mos", "moss")  # heads of Kanai et al. 2018
WIDTHS = {"32": "-32", "64": "", "100": "-100"}  # width: end of the names of the archived runs of ptb-words
WORDS = ("softmax", "ss", "gss", "lms-plif", "lms-plif-frozen", "moc", "mos", "mos-equal")
FITTED = ("softmax", "mos", "lms")  # heads of Ganea et al. 2019, section 5.1
ALL = "#every-head-in-every-setting"
END = "<!-- end of results -->"


def begin(name: str) -> str:
    """Return the marker line before the results `name` on a page."""
    return f"<!-- results of {name}: written by docs/draw_results.py -->"


def between(name: str, lines: Sequence[str], text: str) -> str:
    """Return a page's text with `lines` between the markers of `name`; raise ValueError if it lacks the first."""
    start = begin(name)
    if start not in text:
        raise ValueError(f"the page has no line {start}")
    pattern = re.compile(re.escape(start) + r"\n.*?" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: "\n".join([start, *lines, END]), text, count=1)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, the first row as its head."""
    cells = [[cell.replace("— ×", "—") for cell in row] for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]
    return [f"| {' | '.join(row)} |" for row in cells]


# --- README ---------------------------------------------------------------------------------------------------------
def answer(studies: Sequence[FinishedStudy]) -> tuple[list[str], dict[Path, str]]:
    """Return the lines of README.md with the answer, its figure and the first findings, and {path: SVG}."""
    found = summary.answer(studies)
    picture, count = found["picture"], found["counts"]
    about = f"From {count['archives']} archives ({count['studies']} studies, {count['runs']} pooled runs)."
    whole = summary.picture(pool_runs(studies))
    lines = [
        "",
        f"**{found['answer']}** {found['more']}".strip(),
        "",
        f"![{whole.alt}](docs/findings/answer.svg)",
        "",
        picture["caption"],
        about,
        "",
    ]
    for finding in found["findings"][: summary.TOP]:
        name = finding["title"] + (" (exploratory)" if finding["kind"] == "exploratory" else "")
        sentences = " ".join(filter(None, [finding["short"], finding["caveat"]]))
        lines.append(f"* **{name}.** {sentences} [Evidence](docs/evidence.md#{finding['id']})")
    figures = {FIGURES / f"{one['id']}.svg": one["svg"] for one in found["findings"]}
    return [*lines, "", found["not_shown"], ""], figures | {FIGURES / "answer.svg": whole.svg()}


def _change(contrast: contrasts.Contrast | None) -> str:
    """Return a change with its interval, and the ratio of the sizes where they differ; a dash for None."""
    if contrast is None:
        return "—"
    size = "" if contrast.is_equal_size else f", {numbers.number(contrast.size)} × parameters"
    return contrast.short_text + size


def estimates(studies: Sequence[FinishedStudy]) -> list[str]:
    """Return the table of MoC and MoS against the softmax, for every setting in which MoS has an interval."""
    evidence = findings.Evidence.from_studies(studies)
    moc, mos = ({one.setting: one for one in evidence.against(label) if one.ends} for label in ("MoC", "MoS"))
    rows = [["setting", "MoC", "MoS", "share of MoC", "time of MoS"]]
    for setting, one in mos.items():
        part = moc.get(setting)
        share = contrasts.share_text(part, one) if part else "—"
        rows.append([setting.label, _change(part), _change(one), share, f"{one.time} ×"])
    rest = [one.change for one in evidence.against("MoS") if not one.ends]
    ends = " to ".join(f"{numbers.number(end(rest), 0, signed=True)}" for end in (min, max))
    lead = (
        f"These settings have three seeds or more. In [{len(rest)} others]({ALL}), MoS changes perplexity by {ends} %."
    )
    return ["", lead, "", *table(rows), ""]


def evidence(studies: Sequence[FinishedStudy]) -> list[str]:
    """Return the lines of docs/evidence.md with all numbers of every finding."""
    lines = []
    for finding in summary.answer(studies)["findings"]:
        kind = f"{finding['kind'] or 'named before most runs'}.".capitalize()
        studies_used = f"Archives: {', '.join(finding['studies'])}"
        overturned = f"Overturned by: {finding['overturn']}"
        items = [f"* {text}" for text in (finding["number"], overturned, *finding["details"], studies_used)]
        image = f'<img src="findings/{finding["id"]}.svg" width="330" alt="{finding["alt"]}">'
        title = f'<a id="{finding["id"]}"></a>**{finding["title"]}.** {finding["sentence"]} {kind}'
        lines += ["", title, "", image, "", *items]
    return [*lines, ""]


def advice(heads: Mapping[str, Any]) -> list[str]:
    """Return the table of heads with exploratory estimates and costs, without perplexities."""
    recommendation = environment().get_template("claims.html.j2").module.recommendation
    rows = [["head", "at equal size", "against a wider LSTM", "parameters", "time", "memory", "Press rank"]]
    for row in heads["rows"]:
        costs = [f"{value} ×" for value in (row["costs"]["size"], row["costs"]["time"], row["memory"])]
        estimates = [str(recommendation(row)).strip(), row["at_time"]]
        rows.append([row["label"], *estimates, *costs, row["costs"]["press"]])
    family = f"Holm’s correction: {heads['tests']} contrasts, of any size and search."
    fair = f"*Borderline*: significant only over the {heads['fair']} at equal size and search."
    return ["", *table(rows), "", f"{family} {fair}", ""]


# --- docs/results.md and docs/evidence.md -----------------------------------------------------------------------------
def all_heads(heads: Mapping[str, Any]) -> list[str]:
    """Return the table of every contrast of a head with the softmax: a row per setting and head."""
    rows = [["setting", "head", "change", "n", "parameters", "time", "learning rates"]]
    softmax, *others = heads["rows"]
    for index, setting in enumerate(heads["columns"]):
        base = f"{setting} (softmax: {softmax['cells'][index]['value']})"
        for row in (row for row in others if row["cells"][index]):
            cell = row["cells"][index]
            change = cell["value"] + (f" ({cell['interval']})" if cell["interval"] else "")
            costs = (f"{cell[name]} ×" for name in ("size", "time"))
            rows.append([base, row["label"], change, cell["n"].removeprefix("n = "), *costs, cell["rates"]])
            base = ""
    return ["", *table(rows), ""]


def verdict_counts(archives: Sequence[FinishedStudy]) -> list[str]:
    """Return the number of conclusions per verdict of a study's first archive, and how many are alike in the others."""
    first, *others = archives
    found = [entry["verdict"] for entry in first.claims]
    counts = ((found.count(name), name) for name in compare.OVERALL)
    tally = ", ".join(f"{count} {name}" for count, name in counts if count)
    lines = ["", f"Verdicts of this study on the conclusions of all papers: {tally}."]
    return [*lines, *(line for other in others for line in agreement(first, other)), ""]


def results(archives: Sequence[FinishedStudy]) -> list[str]:
    """Return a table of the main models for every corpus of a study.

    `archives` are those of the study, one per machine. The first archive that has a model gives its numbers.
    """
    archived = archives[0]
    lines: list[str] = []
    shown = MODELS + {PICTURED: LAYERS, READING: BOTH}.get(archived.study, VARIED)
    for dataset, title in archived.corpora.items():
        having = {m: [one for one in archives if one.records.values(dataset, m, "test_ppl")] for m in shown}
        first = {model: studies[0] for model, studies in having.items() if studies}
        if not first:
            continue  # no run on this corpus
        found = {model: one.records for model, one in first.items()}
        metrics = [key for key in METRICS if any(own.values(dataset, model, key) for model, own in found.items())]
        rows = [["head", *(METRICS[metric][0] for metric in metrics)]]
        for model, own in found.items():
            place = "" if first[model] is archived else f" (on {first[model].hardware})"
            values = [(own.values(dataset, model, metric).values(), METRICS[metric][1]) for metric in metrics]
            label = own.planned(dataset, model)["label"].iloc[0]
            rows.append([label + place, *(_cell(list(all_), digits) for all_, digits in values)])
        lines += ["", _heading(title, found, dataset), "", *table(rows)]
    return [*lines, ""]


def tests_of(studies: Sequence[FinishedStudy], source_name: str) -> dict[str, list[tuple[FinishedStudy, Any]]]:
    """Return {claim: its archived verdicts} for the claims of one source, without those that a study cannot test."""
    found: dict[str, list[tuple[FinishedStudy, Any]]] = {}
    for study in studies:
        for entry in study.claims:
            if entry["source"] == source_name and entry["id"] in TEXTS and entry["verdict"] != CANNOT:
                found.setdefault(entry["id"], []).append((study, entry))
    return {name: found[name] for name in TEXTS if name in found}


def verdicts(studies: Sequence[FinishedStudy], source_name: str) -> list[str]:
    """Return a table of the overall verdicts on one source's conclusions, on natural text and on known distributions.

    Conclusions that no test decides have no row. A line below the table counts them.
    """
    rows, n_undecided = [["conclusion", "natural text", "known distribution"]], 0
    for name, tests in tests_of(studies, source_name).items():
        places: tuple[list[Any], list[Any]] = ([], [])
        for _, entry in tests:
            places[entry["dataset"].startswith(KNOWN)].append(entry)
        overall = [compare.overall(entries) if entries else "—" for entries in places]
        if set(overall) <= {UNDECIDED, "—"}:
            n_undecided += 1
        else:
            counts = [_decided(entries) for entries in places]
            rows.append([TEXTS[name]["statement"], *map("".join, zip(overall, counts, strict=True))])
    shown = [index for index, column in enumerate(zip(*rows, strict=True)) if set(column[1:]) != {"—"}]
    lines = ["", *table([[row[index] for index in shown] for row in rows]), ""]
    if n_undecided:
        anchor = f"verdicts-{CLAIM_SOURCES[source_name].lower().replace(' ', '-')}"
        lines += [f"Undecided in every test: {n_undecided} more ([numbers](evidence.md#{anchor})).", ""]
    return lines


def _decided(entries: Sequence[Any]) -> str:
    """Return the number of decided tests of a conclusion, and of all tests if some but not all are decided."""
    decided, tests = sum(entry["verdict"] in DECIDED for entry in entries), len(entries)
    return f" ({decided}/{tests})" if 0 < decided < tests else f" ({tests})" if tests else ""


def all_verdicts(studies: Sequence[FinishedStudy]) -> list[str]:
    """Return a list of every archived verdict with its numbers, by source and conclusion."""
    lines = []
    for source_name, title in CLAIM_SOURCES.items():
        lines += ["", f"### Verdicts: {title}"]
        for name, tests in tests_of(studies, source_name).items():
            where = TEXTS[name].get("where", tests[0][1]["where"])
            lines += ["", f"**{TEXTS[name]['statement']}** ({where})", ""]
            for study, entry in tests:
                place = "" if entry["dataset"] == SYNTHETIC else f", {entry['dataset']}"
                texts = "; ".join(number["text"] for number in entry["numbers"])
                lines.append(f"* {study.name}{place}: {entry['verdict']}" + (f" ({texts})" if texts else ""))
    return [*lines, ""]


def stages(archives: Sequence[FinishedStudy]) -> list[str]:
    """Return a table of test perplexities after training, finetuning and dynamic evaluation, by corpus and head.

    The numbers of a corpus are those of the first archive that has it.
    """
    rows = [["corpus", "head", "Press rank", "trained", "finetuned", "dynamic evaluation (n)"]]
    first_with = {dataset: one for one in reversed(archives) for dataset in one.corpora}
    for dataset, archived in first_with.items():
        first = f"{archived.corpora[dataset]} (`{archived.study}`)"
        for model in (f"kanai-{head}" for head in KANAI):
            rank, *ppl = (
                [*archived.records.values(dataset, model, metric, condition).values()]
                for metric, condition in (("rank_press", ""), *(("test_ppl", stage) for stage in STAGES))
            )
            if ppl[0]:
                label = archived.records.planned(dataset, model)["label"].iloc[0]
                last = f"{_cell(ppl[2], 2)} ({len(ppl[2])})" if ppl[2] else "—"
                rows.append([first, label, _cell(rank, 0), _cell(ppl[0], 2), _cell(ppl[1], 2) if ppl[1] else "—", last])
                first = ""
    return ["", *table(rows), ""]


def price_of_width(studies: Sequence[FinishedStudy], width: int = 16) -> list[str]:
    """Return a table of the share of the context-free KL that every head of a width loses on every natural truth."""
    prices = [price for price in natural.prices_of(*(one.records for one in studies)) if price.width == width]
    shares = {(price.truth, price.head): f"{100 * price.share.value:.2f} %" for price in prices}
    truths = [truth for truth in natural.TRUTHS if any(price.truth == truth for price in prices)]
    heads = list(dict.fromkeys(head for _, head in shares))
    rows = [[declaration(head).label, *(shares.get((truth, head), "—") for truth in truths)] for head in heads]
    return ["", *table([[f"share lost, d = {width}", *truths], *rows]), ""]


def price_parts(studies: Sequence[FinishedStudy], width: int = 16) -> list[str]:
    """Return a table of the parts of KL that are due to the most probable tokens, for every study, truth and head."""
    parts = ["kl_top_1", "kl_top_10", "kl_top_100", "kl_nats"]
    rows = [["study", "distribution", "head", "top 1", "top 10", "top 100", "all"]]
    for archived in studies:
        fits, truths = natural.fits_of(archived.records)
        if fits.empty:
            continue
        free = truths.drop_duplicates(["truth", "seed"])[["truth", "seed", "kl_no_context_nats"]]
        natural_fits = natural.compared(fits).query(f"d == {width} and truth in {natural.TRUTHS}")
        fits = natural_fits.merge(free, on=["truth", "seed"])
        shares = fits[parts].div(fits["kl_no_context_nats"], axis=0).assign(truth=fits["truth"], head=fits["head"])
        means = shares.groupby(["truth", "head"], sort=False).mean()
        for (truth, head), part in means.sort_index(level="truth", sort_remaining=False).iterrows():
            numbers = [f"{100 * part[name]:.3f} %" for name in parts]
            rows.append([archived.study, truth, declaration(head).label, *numbers])
    return ["", *table(rows), ""]


def searched(studies: Sequence[FinishedStudy], archives: Sequence[FinishedStudy]) -> list[str]:
    """Return the table of the models of a searched study, each at its best learning rate, from all compared runs.

    Seconds are the lowest of at least TIMED runs, on the machine where most models have them. They and ranks are of the
    first corpus.
    """
    pool = pool_runs(studies)
    samples = {key: pool[model_of(run)] for one in archives for key, run in one.settings.items()}
    labels = {row.model: row.label for one in archives for row in one.records.states.itertuples()}
    names = {dataset: SHORT.get(dataset, dataset) for one in archives for dataset in one.datasets}
    first, *_ = names
    timed = {model: {on: lowest for on, (lowest, *rest) in samples[first, model].seconds.items()
                     if len(rest) + 1 >= contrasts.TIMED} for model in labels}  # fmt: skip
    machines = Counter(chain.from_iterable(timed.values()))
    common = min(machines, key=lambda name: (-machines[name], name), default="")
    columns = [text for name in names.values() for text in (f"rate, {name}", f"perplexity, {name}")]
    rows = []
    for model, label in labels.items():
        own = [samples[dataset, model] for dataset in names]
        cells = [label, str(own[0].model.setting.width), _cell([own[0].mean("parameters")], 0)]
        for sample in own:
            values = [math.exp(value) for value in sample.log_ppl.values()]
            cells += [f"{sample.choice.value:g}", _cell(values, 2)]
        seconds = f"{timed[model][common]:.1f}" if common in timed[model] else numbers.DASH
        rows.append([*cells, seconds, f"{own[0].mean('rank_press'):.0f}"])
    rows.sort(key=lambda row: float(row[4].split()[0]), reverse=True)
    return ["", *table([["model", "d", "parameters", *columns, "s per epoch", "Press rank"], *rows]), ""]


def _with_second(studies: Sequence[FinishedStudy], name: str) -> list[FinishedStudy]:
    """Return the archives of a searched study and of those with its second-best rates."""
    return [one for one in studies if one.study == name or one.study.startswith(f"{name}-second")]


def second_rates(studies: Sequence[FinishedStudy]) -> list[str]:
    """Return the table of searches whose second-best rate was tried with other seeds, by these studies' runs alone.

    Validation perplexities are geometric means over the seeds that both rates have, without those of the search.
    """
    rows = [["corpus", "model", "search, seed 1", "best", "second-best", "seeds", "second-best against best"]]
    for name in ("tuned", "tuned-small"):
        for model, sample in pool_runs(_with_second(studies, name)).items():
            losses = {rate: statistics.fmean(of_rate.values()) for rate, of_rate in sample.searched.items()}
            by_rate = {rate: sample.logs(VALID_PPL, rate, sample.search_seeds) for rate in losses}
            trained = sorted((rate for rate in losses if by_rate[rate]), key=losses.__getitem__)
            if len(trained) < 2 or not (seeds := {*by_rate[trained[0]]} & {*by_rate[trained[1]]}):
                continue
            best, second = trained[:2]
            means = [statistics.fmean(by_rate[rate][seed] for seed in seeds) for rate in (best, second)]
            curve = ", ".join(f"{rate:g}: {math.exp(loss):.2f}" for rate, loss in sorted(losses.items()))
            ppls = [f"{rate:g}: {math.exp(mean):.2f}" for rate, mean in zip((best, second), means, strict=True)]
            change = numbers.number(100 * math.expm1(means[1] - means[0]), 2, signed=True)
            label = "tanh layer" if '"components":1,' in model.options else declaration(model.head).label
            label += f", d = {model.setting.width}"
            cells = [model.setting.title, label, curve, *ppls, str(len(seeds)), f"{change} %"]
            rows.append([cell.replace("inf", "diverged") for cell in cells])
    return ["", *table(rows), ""]


def declared(studies: Sequence[FinishedStudy], name: str) -> list[str]:
    """Return the table of the contrasts that a study declared.

    They are from all archived runs, from those of the study and of its second-best rates, and from the study's own, at
    the rates that its searches chose.
    """
    sources = {
        "all archived runs": studies,
        "runs of these studies": _with_second(studies, name),
        "first choices": [one for one in studies if one.study == name],
    }
    found = [findings.Evidence.from_studies(some).named for some in sources.values()]
    rows = [["contrast", *(head for source in sources for head in (source, "p (Holm)"))]]
    for same in zip(*([one for one in named if one.study == name] for named in found), strict=True):
        texts = ((f"{one.short_text}, {numbers.counts(one.n)}", numbers.p_value(one.adjusted_p)) for one in same)
        rows.append([same[0].label, *chain.from_iterable(texts)])
    return ["", *table(rows), ""]


def rank_demonstration(archived: FinishedStudy) -> list[str]:
    """Return a table of the ranks of untrained layers by number of components, with the published ranks."""
    found, printed = archived.records.synthetic, pd.read_csv(MERITY)
    found = found[(found["table"] == "rank table") & (found["metric"] == "rank")]
    parts = found["condition"].str.extract(r"^K=(?P<K>\d+);.*equal mixing;?(?P<reading>.*)$")
    means = found.assign(**parts).groupby(["model", "reading", "K"])["value"].mean().unstack()
    readings = {"tanh": "", "no tanh": "tanh=False", "no tanh, inputs scaled by 0.9": "input_scale=0.9;tanh=False"}
    ranks: dict[str, list[str]] = {}
    for model, name in (("softmax", "Softmax"), ("moc", "MoC"), ("mos", "MoS")):
        ranks[f"{name}, published"] = [f"{x:.0f}" for x in printed[printed["model"] == model]["value"]]
        for label, reading in readings.items() if model == "mos" else [("here", "")]:
            ranks[f"{name}, {label}"] = [f"{x:.0f}" for x in means.loc[(model, reading)]]
    mixtures = {label: row for label, row in ranks.items() if label.startswith("MoS")}
    bounded = [row for label, row in ranks.items() if label not in mixtures]
    if all(row == bounded[0] for row in bounded):  # one row says it
        ranks = {"Softmax and MoC, published and here": bounded[0]} | mixtures
    head = ["layer", *(f"K = {k}" for k in means.columns)]
    return ["", *table([head, *([label, *row] for label, row in ranks.items())]), ""]


def top_tokens(archived: FinishedStudy) -> list[str]:
    """Return the tables of top tokens: of random output matrices, and of trained ones with their controls."""
    rows = [["random matrix", "m, 95 % of draws", "half of the draws", "d / (2 ln(V / d))"]]
    head = ["trained matrix", *(f"{kind}: m; half of the draws" for kind in ("trained", "random directions"))]
    trained = dict[str, list[str]]()
    sizes = both_sides.top_sizes(archived.records).sort_values(["V", "d", "model", "dataset", "seed"])
    for top in sizes.itertuples():  # of a trained matrix before its control
        size, m = f"V = {top.V:,}, d = {top.d}", f"{top.top_m} ({top.low} to {top.high})"
        if top.dataset == SYNTHETIC:
            rows.append([size, m, str(top.median), f"{top.d / (2 * math.log(top.V / top.d)):.1f}"])
        else:
            name = f"{archived.corpora[top.dataset]}, seed {top.seed}, {size}"
            trained.setdefault(name, [name]).append(f"{m}; {top.median}")
    return ["", *table(rows), "", *table([head, *trained.values()]), ""]


def dirichlet(archived: FinishedStudy) -> list[str]:
    """Return a table of the KL of fits to Dirichlet distributions: a row per distribution and width, in nats."""
    found = archived.records.synthetic
    parts = found["condition"].str.extract(r"^alpha=(?P<alpha>[^;]+);M=(?P<M>\d+);N=\d+;d=(?P<d>\d+);")
    found = found.assign(**parts)[(found["metric"] == "kl_nats") & parts["d"].notna()]
    kl = found.groupby(["alpha", "M", "d", "model"])["value"].mean().unstack()
    rows = [["α", "M", "d", "Softmax", "MoS", "LMS", "lowest KL"]]
    for alpha, words, width in sorted(kl.index, key=lambda key: [float(part) for part in key]):
        own = kl.loc[(alpha, words, width)]
        best = {"softmax": "Softmax", "mos": "MoS", "lms": "LMS"}[str(own.idxmin())]
        if int(width) < int(words):  # with d >= M every head can be exact
            rows.append([alpha, words, width, *(f"{own[model]:.3f}" for model in FITTED), best])
    return ["", *table(rows), ""]


def words_of_ptb(archived: FinishedStudy) -> list[str]:
    """Return a table of the runs of width 64 on all words of Penn Treebank: size, perplexity, ranks along training."""
    rows = [["head", "parameters, millions", "test perplexity", "Press rank after one epoch", "at the end"]]
    for run in (_run(archived, name) for name in WORDS):
        ranks = {line["epoch"]: line["rank_press"] for line in run.epoch_ranks}
        ppl = (f"{run.values[key]:.2f}" for key in ("params_m", "test_ppl"))
        rows.append([run.label, *ppl, f"{ranks[1]:,}", f"{ranks[len(run.history)]:,}"])
    return ["", *table(rows), ""]


def widths(archived: FinishedStudy) -> list[str]:
    """Return a table of test perplexity and Press rank at three widths on all words of Penn Treebank."""
    rows = [["head", *(f"d = {width}" for width in WIDTHS)]]
    for name in ("softmax", "gss", "lms-plif", "mos-equal"):
        runs = [_run(archived, name + end) for end in WIDTHS.values()]
        label = _run(archived, name).label
        rows.append([label, *(f"{r.values['test_ppl']:.2f}, {r.values['rank_press']:,.0f}" for r in runs)])
    return ["", *table(rows), ""]


def _run(archived: FinishedStudy, name: str) -> ArchivedRun:
    return next(run for run in archived.runs if run.name.endswith(f"/{archived.study}-{name}"))


def averaging(archived: FinishedStudy) -> list[str]:
    """Return a table of perplexities in the last epoch before averaging (ET-ASGD) and in the last epoch, by model."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for run in archived.runs:
        before = [epoch for epoch in run.history if epoch["phase"] == "sgd"][-1]
        values = (before["train_ppl"], before["valid_ppl"], run.history[-1]["valid_ppl"])
        found.setdefault(run.label, []).append(values)
    head = ["model", "n", "training, before averaging", "validation, before averaging", "validation, at the end"]
    rows = [
        [label, str(len(own)), *(_cell(column, 1) for column in zip(*own, strict=True))] for label, own in found.items()
    ]
    return ["", *table([head, *rows]), ""]


def steps(studies: Sequence[FinishedStudy]) -> list[str]:
    """Return a table of what each of STEPS changes, with its share of the gain of MoS in log perplexity.

    A row has all archived runs of both heads. Settings without all of STEPS are left out.
    """
    rows = [["setting", "step", "change in perplexity", "share of the gain of MoS", "learning rates"]]
    found, mixtures = pool_runs(studies), findings.TEXTS["heads"]
    heads = (contrasts.BASELINE, findings.TEXTS["layer"], mixtures["MoC"], mixtures["MoS"])
    for setting in settings_of(found):
        base = pick(found, setting, heads[0])
        size = base.mean("parameters") if base else 0.0
        chain = [base, *(pick(found, setting, head, size) for head in heads[1:])]
        known = [sample for sample in chain if sample]
        if len(known) == len(STEPS) and not any(sample.n_diverged for sample in known):
            pairs = zip(STEPS[1:], pairwise(known), strict=True)
            own = [contrasts.Contrast(name, two, one) for name, (one, two) in pairs]
            whole = sum(one.interval.value for one in own)
            for one in own:
                share = numbers.percent(one.interval.value / whole)
                rows.append([setting.label, one.label, one.value_text, share, one.rates])
    return ["", *table(rows), ""]


def readings(studies: Sequence[FinishedStudy]) -> list[str]:
    """Return a table of Benka's Transformer with a softmax in every reading, after READ_EPOCH epochs and at the end."""
    every = [run for study in studies if study.study in READINGS for run in study.runs]
    runs = [run for run in every if (run.run.body.kind, run.run.head.name) == TRANSFORMER]
    runs = sorted(
        (run for run in runs if len(run.history) >= READ_EPOCH),
        key=lambda run: run.history[READ_EPOCH - 1]["valid_ppl"],
    )
    head = ["reading", "machine", "falls of the rate", "training", "validation"]
    rows = [[*head, "epochs", "validation, at the end", "test, at the end"]]
    for run in runs:
        early = (run.history[READ_EPOCH - 1][key] for key in ("train_ppl", "valid_ppl"))
        end = (run.values[key] for key in ("valid_ppl", "test_ppl"))
        label = "As in config/paper.yaml" if run.run.model == "transformer" else run.label
        numbers = [*(f"{x:.1f}" for x in early), str(len(run.history)), *(f"{x:.1f}" for x in end)]
        rows.append([label, archive.machine(run.hardware), falls(run, READ_EPOCH), *numbers])
    return ["", *table(rows), ""]


def mixture_runs(studies: Sequence[FinishedStudy]) -> list[str]:
    """Return a table of every run of MIXTURES, with the number of times that its learning rate has fallen."""
    rows = []
    for run in (run for study in studies if study.study in MIXTURES for run in study.runs):
        epochs, ends = len(run.history), (f"{run.values[key]:.2f}" for key in ("valid_ppl", "test_ppl"))
        rows.append(
            [str(epochs), run.label, archive.machine(run.hardware), str(run.run.seed), falls(run, epochs), *ends]
        )
    head = ["epochs", "head", "machine", "seed", "falls of the rate", "validation", "test"]
    return ["", *table([head, *sorted(rows, key=lambda row: (int(row[0]), row[1] != "Softmax", row[4], row[3]))]), ""]


def falls(run: ArchivedRun, epochs: int) -> str:
    """Return how often the learning rate of `plateau-sgd` has fallen before the last of the first `epochs` epochs."""
    valid = [epoch["valid_ppl"] for epoch in run.history[: epochs - 1]]
    return str(sum(now >= min(valid[:epoch]) for epoch, now in enumerate(valid) if epoch))


def agreement(first: FinishedStudy, other: FinishedStudy) -> list[str]:
    """Return a sentence on how many decided conclusions on trained models are decided alike on another machine.

    The result is the lines of a paragraph; there is none if no conclusion is decided.
    """
    verdicts = [
        {(e["dataset"], e["id"]): e["verdict"] for e in one.claims if e["dataset"] != SYNTHETIC}
        for one in (first, other)
    ]
    decided = [(verdict, verdicts[1].get(key)) for key, verdict in verdicts[0].items() if verdict in DECIDED]
    alike, opposite = (sum(two in DECIDED and (one == two) is same for one, two in decided) for same in (True, False))
    sentence = (
        f"Of {len(decided)} decided conclusions on trained models, {other.hardware} gives the same verdict on {alike} "
        f"and the opposite one on {opposite}; it leaves {len(decided) - alike - opposite} undecided."
    )
    return ["", sentence] if decided else []


def _heading(title: str, found: Mapping[str, Records], dataset: str) -> str:
    counts = sorted({len(own.values(dataset, model, "test_ppl")) for model, own in found.items()})
    runs = f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} run{'' if counts == [1] else 's'} each"
    words = f"{title}: mean ± standard deviation over {runs}."
    first = next(iter(found.values()))
    bound, rank = (source.exact_value(first, dataset, metric) for metric in ("entropy_ppl", "rank_truth"))
    if bound is None or rank is None:
        return words
    return f"{words} The true distribution has perplexity {bound:.2f} and log-probabilities of rank {rank:.0f}."


def _cell(values: Sequence[float], digits: int) -> str:
    return cells.Cell(measured=cells.mean_of(values), digits=digits).text.removesuffix(" ± 0")


# --- files ----------------------------------------------------------------------------------------------------------
def written(studies: Sequence[FinishedStudy]) -> dict[Path, str]:
    """Return {path: new text} of every file that is written from the archived studies."""
    heads = head_table.head_table(studies)
    assert heads is not None
    lines, figures = answer(studies)
    by_study: dict[str, list[FinishedStudy]] = {}
    for one in studies:
        by_study.setdefault(one.study, []).append(one)
    blocks: dict[str, Callable[[], list[str]]] = {}
    for name, archives in by_study.items():
        blocks[name] = partial(results, archives)
        blocks[f"searched rates in {name}"] = partial(searched, studies, archives)
        blocks[f"contrasts of {name}"] = partial(declared, studies, name)
        blocks[f"averaging in {name}"] = partial(averaging, archives[0])
    for name in CLAIM_SOURCES:
        blocks[f"verdicts on {name}"] = partial(verdicts, studies, name)
    blocks |= {
        "findings": lambda: lines,
        "estimates": partial(estimates, studies),
        "heads": partial(advice, heads),
        "verdict counts": partial(verdict_counts, by_study[PICTURED]),
        "all numbers": partial(evidence, studies),
        "all heads": partial(all_heads, heads),
        "all verdicts": partial(all_verdicts, studies),
        "steps": partial(steps, studies),
        "second-best rates": partial(second_rates, studies),
        "readings": partial(readings, studies),
        "mixture runs": partial(mixture_runs, studies),
        "Kanai's stages": partial(stages, [by_study["kanai-small"][0], by_study["ptb-cpu"][0]]),
        "Merity's ranks": partial(rank_demonstration, by_study[PICTURED][0]),
        "prices": partial(price_of_width, studies),
        "parts of prices": partial(price_parts, studies),
        "top tokens": partial(top_tokens, by_study["top-m"][0]),
        "Dirichlet fits": partial(dirichlet, by_study["dirichlet"][0]),
        "words of ptb": partial(words_of_ptb, by_study["ptb-words"][0]),
        "widths": partial(widths, by_study["ptb-words"][0]),
    }
    texts = {path: path.read_text(encoding="utf-8") for path in (README, PAGE, EVIDENCE)}
    for path, text in texts.items():
        for name in re.findall(re.escape(begin("|")).replace(r"\|", "(.*?)"), text):
            texts[path] = between(name, blocks[name](), texts[path])
    return texts | figures


def main() -> None:
    """Write the files."""
    FIGURES.mkdir(exist_ok=True)
    for path, text in written(archive.load_all()).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
