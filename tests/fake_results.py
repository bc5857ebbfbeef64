"""Results folders as the training steps write them, with made-up but plausible numbers, without training anything."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collection, records
from softmax_bottleneck.report import contents
from softmax_bottleneck.report import page as html
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Run, Study

WIDTH, VOCABULARY, CONTEXTS = 16, 400, 4000
FLOAT32_EPS = 1.1920929e-7
BENCHMARKS = {"WS-353": (353, 237), "MC-30": (30, 9), "SimLex-999": (999, 575)}
# What each head gains in nats over softmax, and how many singular values it keeps, in this make-believe.
GAIN = {"softmax": 0.0, "ss": 0.02, "gss": 0.03, "lms-plif": 0.04, "mos": 0.10, "moc": 0.05}
RANK = {"softmax": 18, "ss": 150, "gss": 260, "lms-plif": 60, "mos": 398, "moc": 18}

STUDY = """
study: fake
title: A made-up study
description: Numbers that nobody measured.
datasets: [truth-demo]
seeds: [1, 2, 3]
settings:
  - body: {kind: awd-lstm, embedding_size: 16, hidden_size: 32, layers: 1, dropout_input: 0, dropout_hidden: 0,
           dropout_output: 0, dropout_embedding: 0, dropout_weight: 0}
    schedule: {optimizer: et-asgd, switch_after_epoch: 6, learning_rate: 10, batch_size: 20, bptt: 35, clip: 0.25,
               weight_decay: 0.0, activation_penalty: 0, temporal_penalty: 0, epochs: 10}
  - when: {model: [moc, mos]}
    head: {components: 4, dropout_latent: 0}
models:
  softmax: {head: softmax}
  ss: {head: sigsoftmax}
  gss: {head: {name: gss, c: -1.5, k: 2.5}}
  lms-plif: {head: {name: lms-plif, knots: 2000}}
  mos: {head: mos}
  moc: {head: moc}
experiments:
  known-truth: {models: all}
  parthiban2021-table1:
  parthiban2021-table2: {models: all}
  parthiban2021-table6: {models: all}
  parthiban2021-figure4: {models: all}
  parthiban2021-figure7: {models: all, seeds: all}
  parthiban2021-sm-table3: {models: all}
  merity2017-ranks:
"""


def showing(*experiments: str) -> str:
    """The study with these experiments alone, which takes less time to draw."""
    return STUDY[: STUDY.index("experiments:")] + "experiments:\n" + "".join(f"  {one}\n" for one in experiments)


def load(folder: Path, text: str = STUDY) -> Study:
    """A study from YAML text."""
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return config.load_study(path)


def experiment(study: Study, name: str) -> config.PlannedExperiment:
    return next(one for one in study.experiments if one.id == name)


def noise(*facts: object) -> float:
    """A number in [-1, 1) that depends on the facts alone."""
    digest = hashlib.sha256(repr(facts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**47 - 1


def perplexities(run: Run) -> dict[str, float]:
    level = 40.0 if run.dataset == "truth-demo" else 120.0
    test = level * np.exp(-GAIN.get(run.model, 0.01) + 0.004 * noise(run.model, run.seed, "ppl"))
    return {"test_ppl": float(test), "valid_ppl": float(test * 1.04), "train_ppl": float(test * 0.9)}


def ppls_of(study: Study, model: str, dataset: str = "") -> list[float]:
    """Return the test perplexities of a model's runs, perhaps on one corpus alone."""
    runs = [run for run in study.needed if run.model == model and dataset in ("", run.dataset)]
    return [perplexities(run)["test_ppl"] for run in runs]


def rank_of(run: Run) -> int:
    spread = 0 if run.model in ("softmax", "moc") else 6 * noise(run.model, run.seed, "rank")
    return min(VOCABULARY - 1, int(RANK.get(run.model, 100) + spread))


def provenance() -> dict[str, Any]:
    return {
        "schema": 1, "git": {"commit": "0" * 40, "dirty": False}, "versions": {"python": "3.12.1", "torch": "2.13.0"},
        "hardware": {"cpu": "Fake CPU", "cores": 2, "machine": "x86_64"},
        "sessions": [{"device": "cpu AVX512", "threads": 1, "from_update": 0}], "interruptions": 0,
        "deterministic": True,
    }  # fmt: skip


def write_done(run: Run, status: str = "ok", reason: str | None = None, epochs: int | None = None) -> None:
    epochs = epochs or run.schedule.epochs
    folder = Store().run_folder(run.path)
    done = {
        "status": status, "reason": reason, "run": run.to_json(), "parameters": 24_221_600, "epochs": epochs,
        "best_epoch": epochs, "switch_epoch": 6 if epochs > 6 else None,
        "timing": {"wall_s": 61.5, "seconds_per_epoch": 6.1}, "provenance": provenance(),
    }  # fmt: skip
    artefacts.write_json(folder / "done.json", done)
    write_epochs(run, epochs)


def write_epochs(run: Run, epochs: int) -> None:
    final = perplexities(run)["valid_ppl"]
    lines = []
    for epoch in range(1, epochs + 1):
        above = 2.0 * np.exp(-epoch / 1.6) + 0.004 * noise(run.path, epoch) if epoch < epochs else 0.0
        valid = final * (1 + above)
        row = {"epoch": epoch, "phase": "asgd" if epoch > 6 else "sgd", "train_ppl": valid * 0.9, "valid_ppl": valid}
        lines.append(json.dumps(row))
    path = Store().run_folder(run.path) / "epochs.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_measure(run: Run, **more: float) -> None:
    metrics: dict[str, float] = {"params_m": 24.2216, "sec_per_epoch": 6.1, **perplexities(run)}
    if run.head.name == "lms-plif":
        learned = 0.0 if run.head.options["frozen"] else 0.01
        metrics |= {"slope_mean_init": 1.107, "slope_mean": 1.107 + learned, "slope_std_init": 0.627}
        metrics |= {"slope_std": 0.627 + learned, "slope_min": 0.02, "slope_max": 5.1}
    if run.dataset == "truth-demo":
        kl = float(np.log(metrics["test_ppl"] / 29.0))
        metrics |= {"kl_truth_nats": kl, "entropy_ppl": 29.0, "excess_ppl": metrics["test_ppl"] - 29.0}
        metrics["rank_truth"] = 102
    facts = {"status": "ok", "metrics": metrics | more, "provenance": provenance()}
    artefacts.write_json(Store().run_folder(run.path) / "measure.json", facts)


def write_rank(run: Run) -> None:
    rank, tolerance = rank_of(run), 0.5 * np.sqrt(VOCABULARY + CONTEXTS + 1) * FLOAT32_EPS
    index = np.arange(VOCABULARY)
    sigma = np.where(index < rank, np.exp(-index * np.log(1 / (3 * tolerance)) / rank), tolerance / 40) * 900.0
    sigma = np.sort(sigma * (1 + 0.05 * np.abs([noise(run.path, i) for i in index])))[::-1]
    folder = Store().run_folder(run.path)
    artefacts.write_npz(folder / "spectrum.npz", singular_values=np.ascontiguousarray(sigma))
    metrics = {"rank_press": rank, "rank_press_low": rank - 1, "rank_press_high": rank + 1}
    metrics |= {"rank_eff_1e-3": 5, "rank_eff_1e-4": 8, "rank_eff_1e-5": 12}
    metrics |= {"rank_press_all": rank + 7} if run.dataset == "wikitext-2" else {}
    facts = {"m": CONTEXTS, "n": VOCABULARY, "tolerance": float(tolerance * sigma[0]), "sigma_max": float(sigma[0])}
    artefacts.write_json(folder / "rank.json", {"status": "ok", "metrics": metrics, **facts})


def write_wordsim(run: Run, names: dict[str, tuple[int, int]] | None = None) -> None:
    found = {}
    for label, (pairs, known) in (names or BENCHMARKS).items():
        rho = 0.4 + 0.05 * noise(run.model, label) + 0.01 * noise(run.path, label)
        found[label] = {"rho": rho, "low": rho - 0.1, "high": rho + 0.1, "n_pairs": pairs, "n_found": known}
    artefacts.write_json(Store().run_folder(run.path) / "wordsim.json", {"status": "ok", "benchmarks": found})


def write_topk(run: Run) -> None:
    """Predictions at the published places: the true word always first, and four others."""
    if run.dataset == "ptb":
        rows = records.read_csv(config.ROOT / "report" / "published" / "parthiban2021_sm_table2_contexts.csv")
        places = list(zip(rows["group"], rows["context"].astype(int), rows["true_next_token"], strict=True))
    else:
        places = [("random", number, f"w{number}") for number in range(1, 19)]
    others = [{"word": word, "log_prob": p} for word, p in (("a", -3), ("b", -4), ("c", -5), ("d", -6))]
    contexts = [
        {
            "group": group, "context": number, "target": word,
            "published_target": word if run.dataset == "ptb" else None, "note": "", "hit": True,
            "top": [{"word": word, "log_prob": -0.1}, *others],
        }
        for group, number, word in places
    ]  # fmt: skip
    hits = {k: {"rate": rate, "low": rate - 0.01, "high": rate + 0.01, "n": 82429} for k, rate in HITS.items()}
    facts = {"status": "ok", "contexts": contexts, "hits": hits}
    artefacts.write_json(Store().run_folder(run.path) / "topk.json", facts)


HITS = {"1": 0.28, "5": 0.5, "10": 0.58}


def write_epoch_ranks(run: Run) -> None:
    rows = [{"epoch": e, "rank_press": 10 * e, "rank_eff_1e-3": e, "valid_ppl": 100.0 / e} for e in range(1, 6)]
    artefacts.write_json(Store().run_folder(run.path) / "epochs_rank.json", {"status": "ok", "rows": rows})


def write_run(run: Run) -> None:
    write_done(run)
    write_measure(run)
    write_rank(run)
    write_wordsim(run)


def write_synthetic(study: Study) -> None:
    published = {("softmax", k): 34 for k in range(1, 6)} | {("moc", k): 34 for k in range(1, 6)}
    published |= {("mos", k): min(1000, 34 + 400 * (k - 1)) for k in range(1, 6)}
    rows = [{"model": model, "condition": f"K={k}", "metric": "rank", "value": rank + draw, "seed": draw}
        for (model, k), rank in published.items() for draw in range(3)]  # fmt: skip
    artefacts.write_json(Store().study_folder(study.name) / "synthetic.json", {"status": "ok", "rows": rows})


def write_all(study: Study) -> None:
    for run in study.needed:
        write_run(run)
    write_synthetic(study)


def build(study: Study) -> Path:
    """The study's page, by the steps that make it."""
    folder = study.store.study_folder(study.name)
    collection.collect_to(study, folder)
    contents.write(study, folder)
    return html.write(folder)


def page(study: Study) -> str:
    return build(study).read_text(encoding="utf-8")


SPINE = ("table1", "table2", "table6", "figure4", "figure7", "sm-table3")


def paper_text(seeds: str = "[1001, 1002, 1003]", experiments: tuple[str, ...] = SPINE) -> str:
    """The study with the published settings, with fewer seeds: its runs may be compared with the published numbers.

    `experiments` are ids without `parthiban2021-`; none keeps all.
    """
    text = (config.ROOT / "config" / "paper.yaml").read_text(encoding="utf-8")
    if experiments:
        chosen = "".join(f"  parthiban2021-{name}:\n" for name in experiments)
        text = text[: text.index("\nexperiments:\n")] + f"\nexperiments:\n{chosen}  merity2017-ranks:\n"
    lines = ["seeds: " + seeds if line.startswith("seeds:") else line for line in text.splitlines()]
    return "\n".join("study: small-paper" if line.startswith("study:") else line for line in lines)
