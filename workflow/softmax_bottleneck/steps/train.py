"""The step `train`: it trains a run, or all runs of a training job; the loop is `training.loop.train_run`."""

import sys
from collections.abc import Sequence
from typing import Any

from softmax_bottleneck.corpora import corpus as corpora
from softmax_bottleneck.jobs.devices import train_together
from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.store import artefacts, progress
from softmax_bottleneck.study import Study, plan
from softmax_bottleneck.training import loop, repeat, trainer


def train(
    study: Study, path: str, say: progress.Say, restart: bool = False, arguments: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Train or resume the run or the job of this name; return the content of a single run's done.json, else None.

    A job trains several seeds of a model in parallel, one process per run. The job's name is for example
    `ptb/mos/1+2-<hash>` for the seeds 1 and 2 (see `study.plan.jobs`). If the study's `replicas_per_job`, the number of
    seeds per job, is above 1, jobs/<job>.json is written at the end. This file marks the job as finished and holds the
    hash of each run's done.json.

    Args:
        study: the study.
        path: the run's `Run.path`, or the name of the job.
        say: prints a line of progress.
        restart: True to discard earlier states and results.
        arguments: the words of this command line, which the process of every run of a job gets too.
    """
    runs = plan.jobs(study).get(path, ())
    if len(runs) > 1:
        done, command = None, [sys.executable, "-m", "softmax_bottleneck", *arguments]  # the last --run counts
        train_together(command, [run.path for run in runs], runs[0].device, say)
    else:
        run, folder = study.run(path), study.store.run_folder(path)
        keeps_snapshots = path in {tracked.path for tracked in plan.tracked(study)}
        options, corpus = Options.of(study, say, restart), corpora.load_for(study, run)
        make = repeat.Repeater if study.datasets[run.dataset].repeat else trainer.Trainer
        done = loop.train_run(run, corpus, folder, options, keeps_snapshots=keeps_snapshots, make=make)
    if study.replicas_per_job > 1 and runs:
        files = {run.path: artefacts.checked(study.store.run_folder(run.path) / "done.json") for run in runs}
        hashes = {path: artefacts.sha256_file(file) for path, file in files.items()}
        artefacts.write_json(study.store.job_file(path), {"done": hashes})
    return done
