"""The step `measure`: all measurements of a trained run, in one process that imports torch once.

The step takes three measurements. `evaluate` computes perplexities and predicted words; its result is measure.json.
`spectrum` computes singular values and ranks; its result is rank.json. `wordsim` computes word similarities; its result
is wordsim.json. A measurement is skipped if its files are undamaged and were made by the current code from the current
inputs. Editing wordsim.py therefore recomputes no spectrum.

measured.json holds no number. `measure` writes it after all three measurements, with the hashes of their results.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softmax_bottleneck.measuring import wordsim
from softmax_bottleneck.measuring.computed import Computed, contexts_file
from softmax_bottleneck.store import artefacts, fingerprint, progress, provenance
from softmax_bottleneck.study import Run, Study
from softmax_bottleneck.training import run_record

MEASURED_FILE = "measured.json"  # the only file of this step that Snakemake knows, so it deletes none of the others
# Measurement -> its result. Its provenance has the hashes of the files in `_inputs` and of the other files written.
MEASUREMENTS = {"evaluate": "measure.json", "spectrum": "rank.json", "wordsim": "wordsim.json"}


def measure(study: Study, path: str, say: progress.Say, only: str = "") -> None:
    """Bring all measurements of a trained or finetuned run up to date, then write measured.json.

    Args:
        study: the study.
        path: path of the run, such as `ptb/mos/141-<run_id>`.
        say: prints a line of progress.
        only: name of the one measurement to take (`evaluate`, `spectrum` or `wordsim`), even if its files are up to
            date. In this case, measured.json is rewritten only if it exists, because other results may be missing. By
            default, all measurements that are out of date are taken.

    Raises:
        DataError: a file that a measurement reads is missing or damaged.
    """
    folder = study.store.run_folder(path)
    run, _ = run_record.run_and_record(folder)
    for name in MEASUREMENTS:
        if name == only or not (only or is_fresh(study, run, folder, name)):
            _call(study, path, name, say)
    if not only or (folder / MEASURED_FILE).exists():  # its new mtime makes Snakemake run `collect` again
        hashes = {name: artefacts.sha256_file(artefacts.checked(folder / name)) for name in MEASUREMENTS.values()}
        artefacts.write_json(folder / MEASURED_FILE, {"files": hashes})


def _call(study: Study, path: str, measurement: str, say: progress.Say) -> None:
    """Compute one of the three measurements for the run at `path`, and write the JSON files of this measurement.

    Its result (measure.json, rank.json or wordsim.json) is written after its other JSON files. A diverged run has no
    numbers. For such a run, the files hold the status and the reason of the divergence.
    """
    started, folder = time.monotonic(), study.store.run_folder(path)
    run, done = run_record.run_and_record(folder)
    inputs, result = _inputs(study, run, folder, measurement), MEASUREMENTS[measurement]
    if done["status"] != "ok":  # divergence is a result, which the files record
        parents = {name: artefacts.sha256_file(file) for name, file in inputs.items() if file.parent == folder}
        for name in ("topk.json", result) if measurement == "evaluate" else (result,):
            run_record.write_unusable(folder / name, done, parents)
        return
    computed = _compute(measurement, study, run, done)
    parents = {name: artefacts.sha256_file(file) for name, file in inputs.items()} | dict(computed.arrays)
    block = provenance.block(run_id=path.rpartition("-")[2], made_by=made_by(measurement, study, run))
    for name, facts in computed.files.items():
        block["parents"] = dict(parents)
        parents[name] = artefacts.write_json(folder / name, {**facts, "status": "ok", "provenance": block})
    say(f"{path}: {computed.message} ({time.monotonic() - started:.0f} s)")


def _compute(measurement: str, study: Study, run: Run, done: Mapping[str, Any]) -> Computed:
    """Return the results of a measurement; `done` is the content of the run's done.json.

    `wordsim` does not import torch.
    """
    if measurement == "wordsim":
        return wordsim.wordsim(study, run, done)
    from softmax_bottleneck.measuring import evaluate, spectrum

    return evaluate.evaluate(study, run, done) if measurement == "evaluate" else spectrum.spectrum(study, run, done)


# --- freshness ------------------------------------------------------------------------------------------------------
def is_fresh(study: Study, run: Run, folder: Path, measurement: str) -> bool:
    """Return True if a measurement's files are undamaged and were made by the current code from the current inputs.

    `folder` is the run's folder. The files of a diverged run have no numbers, so they stay valid when the code changes.
    """
    if not artefacts.is_sound(folder / MEASUREMENTS[measurement]):
        return False
    record, inputs = artefacts.read_json(folder / MEASUREMENTS[measurement]), _inputs(study, run, folder, measurement)
    block, parents = record["provenance"], record["provenance"]["parents"]
    same_code = block.get("made_by") == made_by(measurement, study, run) and inputs.keys() <= parents.keys()
    if record["status"] == "ok" and not same_code:
        return False
    paths = {inputs.get(name, folder / name): digest for name, digest in parents.items()}
    return all(path.is_file() and artefacts.sha256_file(path) == digest for path, digest in paths.items())


def made_by(measurement: str, study: Study, run: Run) -> dict[str, Any]:
    """Return what determines a measurement's numbers for a run besides the input files: the code and a setting.

    The dict has the keys `step` (the name of the measurement), `code` (the fingerprint) and `setting`. `setting` is the
    value of a key of the run's dataset: `rank_contexts` for `spectrum` (a number of contexts) and `wordsim` for
    `wordsim` (the dataset with the benchmarks). It is None for `evaluate`, and if the key is not set.
    """
    dataset = study.dataset(run.dataset)
    setting = {"spectrum": dataset.rank_contexts, "wordsim": dataset.wordsim}.get(measurement)
    return {"step": measurement, "code": fingerprint.fingerprint(f"measuring.{measurement}"), "setting": setting}


def _inputs(study: Study, run: Run, folder: Path, measurement: str) -> dict[str, Path]:
    """Return {name: path} of the files whose hashes decide whether the results of a measurement are up to date.

    These are done.json and the file of published contexts (`contexts_file`) for `evaluate`, done.json and the files of
    the benchmarks for `wordsim`, and measure.json for `spectrum`. The weights and hidden.npz need no entry,
    because listed files hold their hashes: done.json has the hash of the weights, and measure.json has the hashes of
    done.json and hidden.npz. The provenance of the result stores the hashes of the listed files by these names.
    """
    if measurement == "spectrum":
        return {"measure.json": folder / "measure.json"}
    inputs = {run_record.DONE_FILE: folder / run_record.DONE_FILE}
    benchmarks = wordsim.benchmark_files(study, run).values() if measurement == "wordsim" else ()
    contexts = contexts_file(study, run.dataset) if measurement == "evaluate" else None
    return inputs | {path.name: path for path in (*benchmarks, contexts) if path}
