"""The steps of the workflow, called by rules and people alike: each reads artefacts, computes, and writes artefacts.

Torch is imported inside the steps that need it, so that the report's steps run where it is not installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck.store import artefacts, paths, provenance
from softmax_bottleneck.study import Dataset, Run, Study, load_dataset
from softmax_bottleneck.training.run_record import run_and_record, write_unusable

if TYPE_CHECKING:
    from softmax_bottleneck.corpora.corpus import Corpus
    from softmax_bottleneck.corpora.language import Language
    from softmax_bottleneck.measuring import predictions as topk
    from softmax_bottleneck.ranks import Spectrum
    from softmax_bottleneck.training.model import LanguageModel

Say = Callable[[str], None]
OWN_BENCHMARK = "self"
PUBLISHED = paths.ROOT / "report" / "published"


def dataset_of(study: Study, name: str) -> Dataset:
    """A dataset by name, found beside the study's file first."""
    return load_dataset(name, study.file.resolve().parent)


# --- runs -----------------------------------------------------------------------------------------------------------
def _run_id(path: str) -> str:
    """The run_id a run was trained under, whatever the code is now."""
    return path.rpartition("-")[2]


def measure(study: Study, path: str, say: Say) -> None:
    """Perplexities and predicted words of a trained run, and the hidden states of the test text."""
    folder = study.store.run_folder(path)
    run, done = run_and_record(folder)
    parents = {"done.json": artefacts.sha256_file(folder / "done.json")}
    if done["status"] != "ok":
        for name in ("topk.json", "measure.json"):
            write_unusable(folder / name, done, parents)
        return
    from softmax_bottleneck.corpora import corpus
    from softmax_bottleneck.measuring import measure as measuring
    from softmax_bottleneck.measuring import predictions as topk
    from softmax_bottleneck.training.trained import loaded

    started = time.monotonic()
    tokens = corpus.load(study.store.tokens_folder(run.dataset))
    places, law = _places(study, run.dataset, tokens), _law_of(study, run, tokens)
    with loaded(run, folder) as model:
        contexts = measuring.hidden_states(model, tokens.test, run.schedule.bptt)
        found = measuring.predict(model, contexts, [place.index - 1 for place in places], law.kl_nats if law else None)
        metrics = measuring.perplexity_metrics(model, tokens, found.log_p_T, run.schedule)
        slopes, curves = _learned_function(run, model)
    metrics |= slopes | {"params_m": done["parameters"] / 1e6, "train_ppl": done["train_ppl"]}
    metrics["sec_per_epoch"] = done["timing"]["seconds_per_epoch"]
    metrics["ms_per_batch"] = 1000 * metrics["sec_per_epoch"] * done["epochs"] / done["steps"]
    metrics["train_minutes"] = done["timing"]["wall_s"] / 60
    metrics |= law.metrics(found.kl_T) if law and found.kl_T is not None else {}
    hidden = {"hidden_TD": contexts.hidden.cpu().numpy(), "targets_T": contexts.targets.cpu().numpy().astype(np.int32)}
    parents["hidden.npz"] = artefacts.write_npz(folder / "hidden.npz", **hidden)
    usual = {"status": "ok", "provenance": provenance.block(parents, run_id=_run_id(path))}
    shown = [topk.describe(place, found.top[place.index - 1], tokens) for place in places]
    artefacts.write_json(folder / "topk.json", usual | {"contexts": shown, "hits": topk.hit_rates(found.true_rank_T)})
    artefacts.write_json(folder / "measure.json", usual | {"metrics": metrics} | curves)
    say(f"{path}: test perplexity {metrics['test_ppl']:.2f} ({time.monotonic() - started:.0f} s)")


def _places(study: Study, name: str, tokens: Corpus) -> tuple[topk.Place, ...]:
    """The places whose most probable words are shown: the published ones of its text, or a sample."""
    from softmax_bottleneck.measuring import predictions as topk

    dataset = dataset_of(study, name)
    named = dataset.contexts or (dataset.base and dataset_of(study, dataset.base).contexts)
    if not named:
        return topk.sampled_places(tokens)
    places = topk.published_places(PUBLISHED / named)
    topk.check_places(places, tokens)
    return places


def _learned_function(run: Run, model: LanguageModel) -> tuple[dict[str, float], dict[str, Any]]:
    """Slopes of a PLIF head after training and as its seed drew them, and both functions; empty for other heads."""
    from softmax_bottleneck.measuring import measure as measuring
    from softmax_bottleneck.training import model as models

    trained = measuring.piecewise_linear(model)
    if trained is None:
        return {}, {}
    initial = measuring.piecewise_linear(models.build(run, model.head.decoder.out_features))
    assert initial is not None  # the same head
    slopes = measuring.slope_metrics(trained) | measuring.slope_metrics(initial, "_init")
    return slopes, {"function": measuring.function_curves(trained, initial)}


@dataclass(frozen=True)
class _Law:
    """The law a test text was sampled from, and its state before every predicted word."""

    language: Language
    states_T: NDArray[np.integer[Any]]
    words: tuple[str, ...]

    def kl_nats(self, log_q_NV: NDArray[np.float32], start: int) -> NDArray[np.float64]:
        """KL(P* || Q) in nats of the contexts from `start` on."""
        return self.language.kl_nats(log_q_NV, self.states_T[start : start + len(log_q_NV)], self.words)

    def metrics(self, kl_T: NDArray[np.float64]) -> dict[str, float]:
        """Mean distance to the law, the best perplexity there can be, the true rank."""
        kl = float(kl_T.mean())
        bound = float(np.exp(self.language.context_entropy_nats(self.states_T).mean()))
        return {
            "kl_truth_nats": kl,
            "excess_ppl": float(np.exp(np.log(bound) + kl)) - bound,
            "entropy_ppl": bound,
            "entropy_rate_ppl": float(np.exp(self.language.entropy_nats)),
            "rank_truth": float(self.language.rank),
        }


def _law_of(study: Study, run: Run, tokens: Corpus) -> _Law | None:
    from softmax_bottleneck.corpora import language

    folder = study.store.corpus_folder(run.dataset)
    if not (folder / language.TRUTH_FILE).exists():
        return None
    truth = language.load_truth(folder)
    return _Law(truth.language, truth.states["test"][1:], tokens.words)


def spectrum(study: Study, path: str, say: Say) -> None:
    """Singular values and ranks of the test text's log-probability matrix.

    Where a dataset declares `rank_contexts`, the ranks are those of that many contexts, and `<rank>_all` of all.
    """
    folder = study.store.run_folder(path)
    run, done = run_and_record(folder)
    parents = {"measure.json": artefacts.sha256_file(folder / "measure.json")}
    if done["status"] != "ok":
        write_unusable(folder / "rank.json", done, parents)
        return
    from softmax_bottleneck.measuring import measure as measuring
    from softmax_bottleneck.training.trained import loaded

    started = time.monotonic()
    hidden_TD = artefacts.read_npz(folder / "hidden.npz")["hidden_TD"]
    with loaded(run, folder) as model:
        first, whole = measuring.spectra(model, hidden_TD, dataset_of(study, run.dataset).rank_contexts)
    sigma = {"singular_values": (first or whole).with_zeros()}
    facts = _rank_facts(first or whole)
    if first:
        sigma["singular_values_all"] = whole.with_zeros()
        facts["all"] = _rank_facts(whole)
        facts["metrics"] |= {f"{name}_all": rank for name, rank in facts["all"].pop("metrics").items()}
    parents["spectrum.npz"] = artefacts.write_npz(folder / "spectrum.npz", **sigma)
    block = provenance.block(parents, run_id=_run_id(path))
    artefacts.write_json(folder / "rank.json", facts | {"status": "ok", "provenance": block})
    took = f"{time.monotonic() - started:.0f} s"
    say(f"{path}: Press rank {facts['metrics']['rank_press']} of {whole.n} columns ({took})")
    _ranks_along_training(study, path, say)


def _rank_facts(found: Spectrum) -> dict[str, Any]:
    """Ranks as `metrics`, and what they depend on."""
    from softmax_bottleneck.ranks import rank_report

    report = rank_report(found)
    metrics = report.metrics()
    return {"metrics": metrics} | {key: value for key, value in report.to_json().items() if key not in metrics}


def _ranks_along_training(study: Study, path: str, say: Say) -> None:
    """Ranks untrained, at the epochs whose weights were kept, and at the best one; nothing where none were kept."""
    folder = study.store.run_folder(path)
    run, done = run_and_record(folder)
    parents = {"done.json": artefacts.sha256_file(folder / "done.json")}
    from softmax_bottleneck.corpora import corpus
    from softmax_bottleneck.jobs.devices import choose_device
    from softmax_bottleneck.jobs.numerics import numerics
    from softmax_bottleneck.measuring import measure as measuring
    from softmax_bottleneck.training import trained

    if not trained.snapshots(folder):
        return
    started, rows = time.monotonic(), []
    test_T = corpus.load(study.store.tokens_folder(run.dataset)).test
    limit = dataset_of(study, run.dataset).rank_contexts
    device = choose_device(run.device)
    with numerics(run, device):
        for row, model in trained.models_along_training(folder, device):
            contexts = measuring.hidden_states(model, test_T[: limit + 1 if limit else None], run.schedule.bptt)
            _, found = measuring.spectra(model, contexts.hidden.cpu().numpy())
            kept = {key: row.get(key) for key in ("epoch", "phase", "valid_ppl")}
            rows.append(kept | {"best": row["epoch"] == done["best_epoch"]} | _rank_facts(found)["metrics"])
    facts = {"status": "ok", "rows": rows}
    block = provenance.block(parents, run_id=_run_id(path))
    artefacts.write_json(folder / "epochs_rank.json", facts | {"provenance": block})
    say(f"{path}: ranks at {len(rows)} moments of training ({time.monotonic() - started:.0f} s)")


def wordsim(study: Study, path: str, say: Say) -> None:
    """Rank correlation of word-vector similarities with people's (or the language's own) judgements."""
    from safetensors import safe_open

    from softmax_bottleneck.corpora import corpus
    from softmax_bottleneck.measuring import wordsim as similarity

    folder = study.store.run_folder(path)
    run, done = run_and_record(folder)
    parents = {"done.json": artefacts.sha256_file(folder / "done.json")}
    if done["status"] != "ok":
        write_unusable(folder / "wordsim.json", done, parents)
        return
    words = corpus.load(study.store.tokens_folder(run.dataset)).words
    with safe_open(artefacts.checked(folder / "model.safetensors"), framework="numpy") as file:
        untied = "body.embedding.weight" in file.keys()  # noqa: SIM118  # a file, not a mapping
        vectors = file.get_tensor("body.embedding.weight" if untied else "head.decoder.weight")
    found = {}
    for label, file_path in _benchmarks(study, run):
        parents[file_path.name] = artefacts.sha256_file(file_path)
        found[label] = similarity.evaluate(vectors, words, similarity.read_benchmark(file_path)).to_json()
    facts = {"status": "ok", "benchmarks": found, "provenance": provenance.block(parents, run_id=_run_id(path))}
    artefacts.write_json(folder / "wordsim.json", facts)
    say(f"{path}: {len(found)} word-similarity benchmarks")


def _benchmarks(study: Study, run: Run) -> Iterator[tuple[str, Path]]:
    """Label and file of the benchmarks of a run's dataset."""
    from softmax_bottleneck.corpora.language import SIMILARITY_FILE

    named = study.datasets[run.dataset].wordsim
    if named == OWN_BENCHMARK:
        yield "known truth", study.store.corpus_folder(run.dataset) / SIMILARITY_FILE
    elif named:
        benchmarks = dataset_of(study, named)
        for name, entry in benchmarks.files.items():
            yield entry.get("label", name), study.store.corpus_folder(named) / name


# --- studies --------------------------------------------------------------------------------------------------------
def synthetic(study: Study, say: Say) -> None:
    """Numbers of the experiments that train no language model: untrained layers, noise and rounding, fits to laws."""
    from softmax_bottleneck.measuring import synthetic as drawing

    chosen = [experiment for experiment in study.experiments if "synthetic" in experiment.options]
    rows = [row for experiment in chosen for row in drawing.rows(experiment.options, say)]
    parents = {}
    for unit in study.units:
        path = study.store.fits_folder(unit.path) / "done.json"
        rows += artefacts.read_json(path)["rows"]
        parents[f"{unit.path}/{path.name}"] = artefacts.sha256_file(path)
    facts = {"status": "ok", "rows": rows, "provenance": provenance.block(parents)}
    artefacts.write_json(study.store.study_folder(study.name) / "synthetic.json", facts)
