"""Made-up records for which the answer of a rule is known: a claim holds, fails, or lacks a premise by construction."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping

import pandas as pd
from softmax_bottleneck.ranks.robustness import TRUE_RANK
from softmax_bottleneck.records import collection
from softmax_bottleneck.records.metrics import PRESS_RANK, SIGMA_10, SPEARMAN, TEST_PPL, TOP5_HIT, TRAIN_PPL
from softmax_bottleneck.records.records import CURVE_COLUMNS, DYNAMIC, FINETUNED, Records
from softmax_bottleneck.report.claims import Claim, ledger, of_study, to_json
from softmax_bottleneck.report.claims import known_distributions as known
from softmax_bottleneck.report.claims.rules import SYNTHETIC, TRUTH
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study import Study

Row = tuple[str, str, str, list[float]]  # model, metric, stage or condition, values of seeds 1, 2, ...
Example = Callable[..., list[Row]]  # (target, *models) -> rows in which the claim's number has the target
CORPUS = "made-up"
# Facts of a sound run of every made-up model besides the numbers that are judged.
FACTS = {"parameters": 1e6, "embedding_size": 200.0, "best_epoch": 10.0, "switch_epoch": 6.0, "rank_columns": 1e6}
STAGE_FACTS: Mapping[str, Mapping[str, float]] = {FINETUNED: FACTS, DYNAMIC: {}}
STATE = {"state": "ok", "reason": "", "planned_epochs": 10, "hardware": "made-up"}
COLUMNS = ("dataset", "model", "condition", "metric", "value", "seed", "run_id")
BASES = {TEST_PPL: 50.0, TRAIN_PPL: 45.0, PRESS_RANK: 300.0}
WOBBLES = (0.0, 6e-4, -6e-4, 3e-4, -3e-4)  # relative, of seeds


def records_of(rows: Iterable[Row], place: str = CORPUS, **facts: float) -> Records:
    """Return records with these numbers, as if of sound runs; `facts` (`<model> <metric>`) replace FACTS."""
    numbers = {row[:3]: list(row[3]) for row in rows}
    runs = {
        (model, stage if stage in STAGE_FACTS else ""): len(values) for (model, _, stage), values in numbers.items()
    }
    runs = {**{(model, ""): n for (model, _), n in runs.items()}, **runs} if place == CORPUS else {}
    for (model, stage), n in runs.items():
        for metric, value in STAGE_FACTS.get(stage, FACTS).items():
            numbers.setdefault((model, metric, stage), [facts.get(f"{model} {metric}", value)] * n)
    lines = [(place, model, stage, metric, value, seed, f"{model}-{seed}" * bool(runs))
        for (model, metric, stage), values in numbers.items() for seed, value in enumerate(values, 1)
        if not math.isnan(value)]  # fmt: skip
    states = [
        {"dataset": place, "model": model, "label": model, "seed": seed + 1, "stage": stage, **STATE}
        | {"run_id": f"{model}-{seed + 1}", "path": f"{model}/{seed + 1}"}
        for (model, stage), n in runs.items()
        for seed in range(n)
    ]
    frame = pd.DataFrame(states, columns=["dataset", "model", "label", "seed", "stage", "run_id", "path", *STATE])
    rows_of_runs = pd.DataFrame(lines, columns=list(COLUMNS)).assign(table=place)
    epochs = [(path, epoch, "sgd", 1.0, 50.0) for path in frame["path"].unique() for epoch in (1, 2)]
    curves = pd.DataFrame(epochs, columns=list(CURVE_COLUMNS))
    return Records(rows_of_runs, frame[frame["stage"] == ""], frame[frame["stage"] != ""], curves=curves)


def judged(study: Study) -> None:
    """Collect and judge a study that has run, without drawing anything."""
    folder = study.store.study_folder(study.name)
    records = collection.collect_to(study, folder)
    entries = ledger(records, of_study(study), study)
    artefacts.write_json(folder / "claims.json", to_json(study, records, entries))


def place(claim: Claim, corpus: str = CORPUS) -> str:
    """Return the corpus, or SYNTHETIC for a claim that needs none."""
    return SYNTHETIC if claim.corpora == SYNTHETIC else corpus


def made(claim: Claim, holds: bool) -> Records:
    """Return records in which a claim holds, or fails, by construction."""
    return records_of(example(claim, holds), place(claim))


def example(claim: Claim, holds: bool) -> list[Row]:
    """Return rows in which every part of a claim's rule holds, or all but the last."""
    parts = EXAMPLES[claim.id]
    ends = [yes if holds or part is not parts[-1] else no for part in parts for _, yes, no in (part,)]
    return [row for (build, *_), end in zip(parts, ends, strict=True) for row in build(end, *claim.models)]


# --- rows of common quantities --------------------------------------------------------------------------------------
def seeds(level: float) -> list[float]:
    """Return five seeds close to a level."""
    return [level * (1 + wobble) for wobble in WOBBLES]


def against(metric: str = TEST_PPL, stage: str = "", log: bool = True) -> Example:
    def rows(target: float, pattern: str, second: str) -> list[Row]:
        base = BASES.get(metric, 1.0)
        level = base * math.exp(target) if log else base + target
        heads = pattern.split("|")
        return [(second, metric, stage, seeds(base)), *((head, metric, stage, seeds(level)) for head in heads)]

    return rows


def within_run(first: str, second: str) -> Example:
    def rows(target: float, pattern: str) -> list[Row]:
        base = BASES.get(second, 100.0)
        level = base * math.exp(target)
        return [row for m in pattern.split("|") for row in ((m, second, "", [base] * 5), (m, first, "", seeds(level)))]

    return rows


def along(metric: str, below: str = "") -> Example:
    def rows(target: float, pattern: str) -> list[Row]:
        models = [(f"{pattern.rstrip('*')}{s:g}", 0.1 * target * s) for s in (1, 2, 3)]
        power = -1 if below else 1  # what is divided falls, and the divisor twice as fast
        found = [(model, metric, "", seeds(BASES[metric] * math.exp(power * effect))[:3]) for model, effect in models]
        pairs = models if below else []
        return found + [(model, below, "", [BASES[below] * math.exp(-2 * effect)] * 3) for model, effect in pairs]

    return rows


def correlation(target: float, *patterns: str) -> list[Row]:
    """Return forty models whose ranks are those that the settings in their names cause."""
    stem = patterns[-1].split("|")[-1].rstrip("*")
    rows: list[Row] = []
    for i in range(40):
        x, z = math.sin(math.pi * i / 20), math.cos(math.pi * i / 20)
        y = target * x + math.sqrt(1 - target**2) * z
        name = f"{stem}c{i}-k{y:.6f}" if i else patterns[0].replace("*", f"c0-k{y:.6f}")
        rows += [(name, TEST_PPL, "", [57 + 0.1 * x]), (name, PRESS_RANK, "", [300 + 100 * y])]
    return rows


# --- rows of single claims ------------------------------------------------------------------------------------------
def spread(target: float, pattern: str) -> list[Row]:
    signs = [(i, 1 - 2 * (i % 3 > 0)) for i in range(12)]  # four of one, eight of the other
    return [
        (pattern.replace("*", f"c{i}-k{sign}"), PRESS_RANK, "", [300 * math.exp(target * sign)]) for i, sign in signs
    ]


def switches(target: float, heads: str, windows: str) -> list[Row]:
    levels = [*((head, 50.0) for head in heads.split("|")), *((nt, 50 * math.exp(target)) for nt in windows.split("|"))]
    return [(model, TEST_PPL, "", seeds(level)) for model, level in levels]


def vectors(target: float, *models: str) -> list[Row]:
    rhos = [(m, SPEARMAN, f"benchmark={i}", [0.4 + target * (m == models[0])] * 3) for m in models for i in range(13)]
    return [*rhos, *((model, TEST_PPL, "", [50.0] * 3) for model in models)]


def hits(target: float, low: str, high: str) -> list[Row]:
    shares = dict.fromkeys(low.split("|"), target) | dict.fromkeys(high.split("|"), 1.0)
    right = [low.split("|")[0], high.split("|")[0]]  # in two runs of three; all others in one of three
    rows = [(m, TOP5_HIT, f"context={i}", [1.0, float(m in right and i < 18 * share), 0.0])
        for m, share in shares.items() for i in range(18)]  # fmt: skip
    return rows + [(model, TEST_PPL, "", [50.0] * 3) for model in shares]


def noise(target: float) -> list[Row]:
    numbers = {PRESS_RANK: 900.0, "rank_eff_1e-3": 7.0, "rank_eff_1e-5": TRUE_RANK - target}
    return [("mos-nt", metric, f"c=1e-{i};size=1000", [x]) for i in (21, 22, 23) for metric, x in numbers.items()]


def rebuilt(target: float) -> list[Row]:
    return [("mos-nt", PRESS_RANK, f"iteration={i};size=400", [TRUE_RANK + target]) for i in range(1, 11)]


def room(target: float, pattern: str) -> list[Row]:
    numbers = {PRESS_RANK: 18.0 - target, "embedding_size": 16.0}
    return [(model, metric, "", [value] * 3) for model in pattern.split("|") for metric, value in numbers.items()]


def layers(model: str, ranks: dict[int, float]) -> list[Row]:
    where = "K={};H=32;V=1000;S=2048;untrained;equal mixing"
    return [(model, "rank", where.format(k), [rank] * 5) for k, rank in ranks.items()]


def swept(sign: float) -> list[Row]:
    """Return ranks of mixtures that need more softmaxes for full rank, or fewer, the more words per dimension."""
    where = "K={};H={};V={};S=2000;untrained;equal mixing;sweep"
    rows = []
    for width, words in itertools.product((8, 16, 32), (125, 250, 500)):
        needed = 4 + sign * math.log2(words / width / 16)  # 2 to 6
        ranks = {k: words if k >= needed else words // 2 for k in range(1, 7)}
        rows += [("mos", "rank", where.format(k, width, words), [rank]) for k, rank in ranks.items()]
    return rows


def dirichlet(
    lms: float = 0.6, grows: float = 1.0, width: float = 1.0, exact: float = 1e-4, **heads: float
) -> list[Row]:
    """Return fits in which LMS has a share of Softmax's KL, the less the larger M / D if that `grows`.

    With D = M every head has the KL `exact`, and heads named in `heads` another one.
    """
    wheres = [f"alpha={alpha:g};M={words};N=1000" for alpha in (0.03, 0.1, 1.0) for words in (20, 60, 200)]
    rows: list[Row] = [(TRUTH, "kl_no_context_nats", where, [2.0]) for where in wheres]
    for alpha, words, d in itertools.product((0.03, 0.1, 1.0), (20, 60, 200), (2, 5, 10, 20)):
        softmax = 0.5 * d ** (-0.5 * width)
        kl = {"softmax": softmax, "mos": 0.7 * softmax, "lms": lms * softmax - 0.02 * grows * math.log(words / d)}
        kl = {head: heads.get(head, exact) if d == words else y for head, y in kl.items()}
        where = f"alpha={alpha:g};M={words};N=1000;d={d}"
        for head, y in kl.items():
            rows += [(head, "kl_nats", where, [y]), (head, "mode_match", where, [1 - y])]
    return rows


def world(**changed: float) -> list[Row]:
    """Return fits in which every conclusion holds, except for what is changed.

    lost: nats a softmax loses per doubling of r / d; floor: nats every head is off; steps: sign of growth with r / d;
    a head's name: its share of the softmax's loss; tells: how far distance falls with rank; error: of a softmax's
    squares above their bound.
    """
    shares = {"softmax": 1.0, "ss": 1.3, "gss": 1.0, "mos": 0.6, "lms": 0.7, "plif": 0.5, "big": 0.5} | changed
    given = {"lost": 0.2, "floor": 0.001, "steps": 1.0, "tells": 0.0, "error": 0.1} | changed
    ranks = {"softmax": 0.0, "ss": 150.0, "gss": 260.0, "mos": 380.0, "lms": 60.0, "plif": 40.0, "big": 90.0}
    rows: list[Row] = []
    for columns in (8, 32, 128):
        law = {"kl_no_context_nats": 4.0, **{f"squared_error_bound_d{d}": 1.0 for d in (8, 16, 32)}}
        rows += [(TRUTH, metric, f"r={columns};V=400", [value] * 3) for metric, value in law.items()]
        for d in (8, 16, 32):
            doublings = max(0.0, math.log2(columns / d))
            loss = given["lost"] * (doublings if given["steps"] > 0 else 1 / (1 + doublings)) * (doublings > 0)
            for model, own in ranks.items():
                rank = own or min(d, columns) + 2.0
                kl = loss * shares[model] ** (1 - given["tells"]) * (rank / 10) ** -given["tells"] + given["floor"]
                size = d * (120.0 if model == "big" and d > 8 else 100.0)
                numbers = {"rank_press": rank, "parameters": size, "width": d, "squared_error": 1 + given["error"]}
                where = f"r={columns};V=400;d={d}"
                rows += [(model, metric, where, [value] * 3) for metric, value in numbers.items()]
                rows.append((model, "kl_nats", where, [kl, kl * 1.001, kl * 1.002]))
    return rows


def gradients(tells: bool = True, passed: float = 0.02, left: float = 0.001) -> list[Row]:
    """Return fits in which the preserved gradient, and the rank, predicts the loss or is unrelated to it."""
    rows = [row for row in world() if row[1] not in ("kl_nats", PRESS_RANK)]
    places = [(model, where) for model, metric, where, _ in rows if metric == "parameters"]
    for number, (model, where) in enumerate(places):
        near, other = 1.0 + (7 * number) % 11, 1.0 + (5 * number) % 7
        told = near if tells else other
        told *= 1e3 if model == "big" and not where.endswith("d=8") else 1.0  # does not count: it is too large
        numbers = {"kl_nats": 1 / near, "kl_nats_early": 1 / near}
        numbers |= {known.EARLY: passed * told, known.LATE: left}
        numbers |= dict.fromkeys(("gradient_cosine_early", "gradient_words", PRESS_RANK), told)
        rows += [(model, metric, where, [value * k for k in (1, 1.001, 1.002)]) for metric, value in numbers.items()]
    return rows


def changing(build: Callable[..., list[Row]], **fails: float) -> list[tuple[Example, float, float]]:
    """Return the example whose rows fail the claim by these changes."""
    return [(lambda target, *_: build(**(fails if target else {})), 0, 1)]


Parts = list[tuple[Example, float, float]]
RANK, TUNED_RANK = against(PRESS_RANK), against(PRESS_RANK, FINETUNED)
BETTER, NO_GAIN = [(against(), -0.05, 0.03)], [(against(), 0.0, -0.05)]
# One claim of every rule, for claims with the same rule differ in their models alone.
EXAMPLES: dict[str, Parts] = {
    "grid-correlation": [(correlation, 0.1, 0.97)],
    "all-correlation": [(correlation, 0.1, 0.97)],
    "diverse-ranks": [(spread, 0.8, 0.125)],
    "not-necessary": [(RANK, math.log(1.2), 0.0), *BETTER],
    "not-sufficient": [(RANK, math.log(5), 0.0), *NO_GAIN],
    "rank-order": [(RANK, -1.6, 0.0), *BETTER],
    **dict.fromkeys(("mos-better", "moc-better", "mos-beats-moc"), BETTER),
    "no-gain": NO_GAIN,
    "minimal-gain": [(against(), -0.005, 0.03)],
    "low-rank-hits": [(hits, 1.0, 0.3)],
    "moc-embeddings": [(vectors, 0.03, -0.08)],
    "frozen-plif": [(against(), -0.01, 0.05)],
    "plif-regularises": [(against(TRAIN_PPL), 0.05, 0.0), *BETTER],
    "rank-grows-with-k": [(along(PRESS_RANK), 1, -1)],
    "k-overfits": [(along(TEST_PPL, TRAIN_PPL), 1, -1)],
    "rank-without-gain": [(along(PRESS_RANK), -1, 0), (along(TEST_PPL), -1, 1)],
    "narrow-softmax": [(against(), 0.05, -0.03)],
    "press-overestimates": [(within_run("rank_eff_1e-4", PRESS_RANK), -2.3, -0.1)],
    "spectra-alike": [(against(SIGMA_10, log=False), 0.0, 0.1)],
    "fewer-contexts": [(within_run(PRESS_RANK, "rank_press_all"), -0.1, 0.1)],
    "et-better": [(switches, 0.02, -0.02)],
    "noise-inflates": [(noise, 0, -500)],
    "rebuilding": [(rebuilt, 0, 3)],
    "kanai-ss-better": [(against(stage=DYNAMIC), -0.05, 0.03)],
    "kanai-softmax-limited": [(room, 0, -5)],
    "kanai-ss-breaks": [(TUNED_RANK, math.log(5), 0.0), (against("rank_press_low", FINETUNED), math.log(5), 0)],
    "kanai-relu-rank": [(TUNED_RANK, 0.2, -0.2)],
    "ganea-learned-shape": [(within_run("slope_std", "slope_std_init"), 0.5, 0)],
    **dict.fromkeys(("ganea-lms-kl", "ganea-lms-modes"), changing(dirichlet, lms=1.5)),
    "ganea-lms-low-d": changing(dirichlet, grows=-1, width=0),
    "ganea-width-helps": changing(dirichlet, width=-1),
    "ganea-theorem-1": changing(world, error=-0.9),
    "merity-softmax-limited": [(lambda x: layers("softmax", dict.fromkeys((1, 2, 3), 34.0 - x)), 0, -5)],
    "merity-mos-grows": [(lambda x: layers("mos", {k: 300 * (1 + x * k / 5) for k in (1, 2, 3, 4)}), 1, -1)],
    "merity-mos-full": [(lambda x: layers("mos", dict.fromkeys((3, 4), 1000 * x)), 0.97, 0.6)],
    "merity-softmaxes-needed": [(swept, 1, -1)],
    "truth-closes": changing(world, floor=0.4),
    "truth-loses": changing(world, lost=0.02),
    **dict.fromkeys(("truth-grows", "truth-width-tells"), changing(world, steps=-1)),
    "truth-rank-is-not-enough": changing(world, gss=0.5, ss=0.5),
    "truth-rank-does-not-tell": changing(world, tells=1),
    "truth-closes-gap": changing(world, mos=1, lms=1, plif=1),
    "gradient-suppressed": changing(gradients, passed=0.2),
    "gradient-spent": changing(gradients, left=0.5),
    **dict.fromkeys(
        ("gradient-speed", "gradient-direction", "gradient-explains", "gradient-words", "gradient-rank"),
        changing(gradients, tells=False),
    ),
}
