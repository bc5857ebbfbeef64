"""The step `finetune`: it trains a trained run further; `training.finetuner` has the procedure."""

from functools import partial
from typing import Any

from softmax_bottleneck.corpora.corpus import load_for
from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.store import artefacts, progress, provenance
from softmax_bottleneck.study import Study
from softmax_bottleneck.training import finetuner, loop, run_record, trained


def finetune(study: Study, path: str, say: progress.Say, restart: bool = False) -> dict[str, Any]:
    """Finetune a trained run from its stored weights, or resume finetuning; return the content of the new done.json.

    `path` is the path of the finetuned run; `Run.start` is the path of the trained run. If the trained run has
    diverged, nothing is computed, and done.json has the status and the reason of the trained run. `restart` discards
    earlier states and results.
    """
    run = study.run(path)
    start, folder = study.store.run_folder(run.start), study.store.run_folder(path)
    _, before = run_record.run_and_record(start)
    parents = {"start/done.json": artefacts.sha256_file(start / run_record.DONE_FILE)}
    if before["status"] != "ok":
        block = provenance.block(parents, run_id=run.run_id)
        reason = f"the run it goes on from: {before['reason']}"
        record = before | {"run": run.to_json(), "model_sha256": None, "reason": reason, "provenance": block}
        artefacts.write_json(folder / run_record.RUN_FILE, run.to_json())
        artefacts.write_json(folder / run_record.DONE_FILE, record)
        return record
    corpus, options = load_for(study, run), Options.of(study, say, restart)
    make = partial(finetuner.Finetuner, weights=trained.load_weights(start))
    return loop.train_run(run, corpus, folder, options, make=make, parents=parents)
