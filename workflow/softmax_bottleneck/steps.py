"""The steps of the workflow, called by rules and people alike: each reads artefacts, computes, and writes artefacts.

Torch is imported inside the steps that need it, so that the report's steps run where it is not installed.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softmax_bottleneck import artefacts, plan
from softmax_bottleneck.config import Dataset, Run, Study, load_dataset

if TYPE_CHECKING:
    from softmax_bottleneck.corpus import Corpus
    from softmax_bottleneck.model import LanguageModel

Say = Callable[[str], None]
OWN_BENCHMARK = "self"


def dataset_of(study: Study, name: str) -> Dataset:
    """A dataset by name, found beside the study's file first."""
    return load_dataset(name, study.file.resolve().parent)


# --- corpora --------------------------------------------------------------------------------------------------------
def download(study: Study, name: str, say: Say) -> None:
    """Bring the files of a dataset: from the mirror, its addresses or local paths; a language is sampled instead."""
    from softmax_bottleneck import corpus, language

    dataset = dataset_of(study, name)
    folder = artefacts.corpus_folder(name)
    if dataset.kind == "language":
        say(f"{name}: sampling the known-truth language")
        language.write_language(language.LanguageSettings.from_mapping(dataset.language), folder)
    else:
        mirror = study.mirror / dataset.mirror if study.mirror and dataset.mirror else None
        say(f"{name}: {len(dataset.files)} files, from {'the mirror folder first' if mirror else 'their addresses'}")
        corpus.download(corpus.source_files(dataset.files, dataset.folder), folder, mirror)
    files = sorted(path for path in folder.iterdir() if path.suffix == ".txt")
    hashes = {path.name: artefacts.sha256_file(path) for path in files}
    artefacts.write_json(folder / "files.json", {"files": hashes, "provenance": artefacts.provenance()})


def tokenise(study: Study, name: str, say: Say) -> None:
    """Token ids and vocabulary of a corpus, with its expected counts asserted."""
    from softmax_bottleneck import corpus

    dataset = dataset_of(study, name)
    if dataset.base:
        parent = artefacts.tokens_folder(dataset.base)
        whole = corpus.load(parent)
        found = corpus.restrict(whole, dataset.vocabulary_size, dataset.train_tokens, name)
        parents = {"vocabulary.json": artefacts.sha256_file(parent / "vocabulary.json")}
    else:
        folder = artefacts.corpus_folder(name)
        parents = artefacts.read_json(folder / "files.json")["files"]
        found = corpus.read_corpus(name, folder)
    corpus.check_expected(found, dataset.expected)
    corpus.save(found, artefacts.tokens_folder(name), parents)
    facts = corpus.counts(found)
    artefacts.write_json(artefacts.tokens_folder(name) / "corpus.json", facts | {"name": name})
    say(f"{name}: {facts['tokens']} tokens, {facts['vocabulary_size']} words")


# --- runs -----------------------------------------------------------------------------------------------------------
def check(study: Study, say: Say) -> None:
    """Build every configured model without memory: bad options are refused before the first job, costs are known."""
    facts = plan.facts(study) | {"provenance": artefacts.provenance()}
    artefacts.write_json(artefacts.study_folder(study.name) / "check.json", facts)
    hours = sum(one["cpu_h"] for path, one in facts["runs"].items())
    say(f"{study.name}: {len(facts['runs'])} runs can be built; about {hours:.1f} CPU core hours if none is done")


def train(study: Study, path: str, say: Say, restart: bool = False) -> None:
    """Train one run, going on where an earlier call stopped."""
    from softmax_bottleneck import corpus, progress
    from softmax_bottleneck import train as training

    run = study.run(path)
    tokens = corpus.load(artefacts.tokens_folder(run.dataset))
    show = progress.printer(_Lines(say))
    training.train(run, tokens, artefacts.run_folder(path), progress=show, restart=restart)


class _Lines(io.StringIO):
    """A stream for progress whose every line goes to `say`: several runs train at once, each on lines of its own."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say = say

    def write(self, text: str) -> int:
        self._say(text.rstrip("\n"))
        return len(text)


def _trained(path: str) -> tuple[Run, dict[str, Any]]:
    """The run as it was trained and its done.json."""
    folder = artefacts.run_folder(path)
    return Run.from_json(artefacts.read_json(folder / "run.json")), artefacts.read_json(folder / "done.json")


def _run_id(path: str) -> str:
    """The run_id a run was trained under, whatever the code is now."""
    return path.rpartition("-")[2]


def _load(run: Run, path: str) -> tuple[LanguageModel, Corpus]:
    import torch

    from softmax_bottleneck import corpus
    from softmax_bottleneck import train as training

    torch.set_num_threads(run.threads)
    model, _ = training.load_model(artefacts.run_folder(path))
    return model, corpus.load(artefacts.tokens_folder(run.dataset))


def measure(path: str, say: Say) -> None:
    """Perplexities of a trained run and the hidden states of the test text."""
    folder = artefacts.run_folder(path)
    run, done = _trained(path)
    parents = {"done.json": artefacts.sha256_file(folder / "done.json")}
    if done["status"] != "ok":
        _write_unusable(folder / "measure.json", done, parents)
        return
    from softmax_bottleneck import measure as measuring

    started = time.monotonic()
    model, tokens = _load(run, path)
    metrics, contexts = measuring.evaluate(model, tokens, run.schedule.eval_batch_size)
    metrics |= {"params_m": done["parameters"] / 1e6, "train_ppl": done["train_ppl"]}
    metrics["sec_per_epoch"] = done["timing"]["seconds_per_epoch"]
    metrics |= _truth_metrics(run, model, contexts, tokens.words)
    hidden = {"hidden_TD": contexts.hidden.cpu().numpy(), "targets_T": contexts.targets.cpu().numpy().astype(np.int32)}
    parents["hidden.npz"] = artefacts.write_npz(folder / "hidden.npz", **hidden)
    facts = {"status": "ok", "metrics": metrics, "provenance": artefacts.provenance(parents, run_id=_run_id(path))}
    artefacts.write_json(folder / "measure.json", facts)
    say(f"{path}: test perplexity {metrics['test_ppl']:.2f} ({time.monotonic() - started:.0f} s)")


def _truth_metrics(run: Run, model: LanguageModel, contexts: Any, words: tuple[str, ...]) -> dict[str, float]:
    """Distance to the law where it is known: KL(P*||Q), the best perplexity there can be, the true rank."""
    from softmax_bottleneck import language
    from softmax_bottleneck import measure as measuring

    folder = artefacts.corpus_folder(run.dataset)
    if not (folder / language.TRUTH_FILE).exists():
        return {}
    truth = language.load_truth(folder)
    states_T = truth.states["test"][1:]

    def kl_nats(log_q_NV: NDArray[np.float32], start: int) -> NDArray[np.float64]:
        return truth.language.kl_nats(log_q_NV, states_T[start : start + len(log_q_NV)], words)

    kl = measuring.distance_to_law(model, contexts.hidden, kl_nats)
    bound = float(np.exp(truth.language.context_entropy_nats(states_T).mean()))
    return {
        "kl_truth_nats": kl,
        "excess_ppl": float(np.exp(np.log(bound) + kl)) - bound,
        "entropy_ppl": bound,
        "entropy_rate_ppl": float(np.exp(truth.language.entropy_nats)),
        "rank_truth": float(truth.language.rank),
    }


def spectrum(path: str, say: Say) -> None:
    """Singular values and ranks of the test text's log-probability matrix."""
    folder = artefacts.run_folder(path)
    run, done = _trained(path)
    parents = {"measure.json": artefacts.sha256_file(folder / "measure.json")}
    if done["status"] != "ok":
        _write_unusable(folder / "rank.json", done, parents)
        return
    from softmax_bottleneck import measure as measuring
    from softmax_bottleneck import spectrum as spectra

    started = time.monotonic()
    model, _ = _load(run, path)
    hidden = artefacts.read_npz(folder / "hidden.npz")["hidden_TD"]
    found = measuring.spectrum(model, hidden)
    parents["spectrum.npz"] = artefacts.write_npz(folder / "spectrum.npz", singular_values=found.with_zeros())
    report = spectra.rank_report(found)
    metrics = report.metrics()
    facts = {"status": "ok", "metrics": metrics, **{k: v for k, v in report.to_json().items() if k not in metrics}}
    block = artefacts.provenance(parents, run_id=_run_id(path))
    artefacts.write_json(folder / "rank.json", facts | {"provenance": block})
    say(f"{path}: Press rank {report.press.rank} of {found.n} columns ({time.monotonic() - started:.0f} s)")


def wordsim(study: Study, path: str, say: Say) -> None:
    """Rank correlation of word-vector similarities with people's (or the language's own) judgements."""
    from safetensors import safe_open

    from softmax_bottleneck import corpus
    from softmax_bottleneck import wordsim as similarity

    folder = artefacts.run_folder(path)
    run, done = _trained(path)
    parents = {"done.json": artefacts.sha256_file(folder / "done.json")}
    if done["status"] != "ok":
        _write_unusable(folder / "wordsim.json", done, parents)
        return
    words = corpus.load(artefacts.tokens_folder(run.dataset)).words
    with safe_open(artefacts.checked(folder / "model.safetensors"), framework="numpy") as file:
        vectors = file.get_tensor("head.decoder.weight")
    found = {}
    for label, file_path in _benchmarks(study, run):
        parents[file_path.name] = artefacts.sha256_file(file_path)
        found[label] = similarity.evaluate(vectors, words, similarity.read_benchmark(file_path)).to_json()
    facts = {"status": "ok", "benchmarks": found, "provenance": artefacts.provenance(parents, run_id=_run_id(path))}
    artefacts.write_json(folder / "wordsim.json", facts)
    say(f"{path}: {len(found)} word-similarity benchmarks")


def _benchmarks(study: Study, run: Run) -> Iterator[tuple[str, Path]]:
    """Label and file of the benchmarks of a run's dataset."""
    from softmax_bottleneck.language import SIMILARITY_FILE

    named = study.datasets[run.dataset].wordsim
    if named == OWN_BENCHMARK:
        yield "known truth", artefacts.corpus_folder(run.dataset) / SIMILARITY_FILE
    elif named:
        benchmarks = dataset_of(study, named)
        for name, entry in benchmarks.files.items():
            yield entry.get("label", name), artefacts.corpus_folder(named) / name


def _write_unusable(path: Path, done: dict[str, Any], parents: dict[str, str]) -> None:
    """A run that diverged is a result: later steps say so instead of failing."""
    facts = {"status": done["status"], "reason": done["reason"], "metrics": {}, "benchmarks": {}}
    artefacts.write_json(path, facts | {"provenance": artefacts.provenance(parents)})


# --- studies --------------------------------------------------------------------------------------------------------
def synthetic(study: Study, say: Say) -> None:
    """Numbers of the experiments that train nothing on text: ranks of untrained models (Merity 2017)."""
    from softmax_bottleneck import synthetic as drawing

    chosen = [experiment for experiment in study.experiments if experiment.is_synthetic]
    rows = [row for experiment in chosen for row in drawing.rows(experiment.options["synthetic"], say)]
    facts = {"status": "ok", "rows": rows, "provenance": artefacts.provenance()}
    artefacts.write_json(artefacts.study_folder(study.name) / "synthetic.json", facts)
