"""The commands that run one computing step of the workflow (train, measure, fit, ...) by calling its function."""

import argparse
import sys
from importlib import import_module

from softmax_bottleneck.jobs.devices import train_together
from softmax_bottleneck.measuring import measure as measuring
from softmax_bottleneck.store import artefacts, errors, fingerprint, progress
from softmax_bottleneck.study import Study, plan


def run_step(study: Study, options: argparse.Namespace, say: progress.Say) -> None:
    """Call the function of the step `options.step`, such as `fit` in training/fit.py.

    The function works on the run, dataset, unit (of fits) or truth that `--run`, `--dataset`, `--unit` or `--truth`
    names, or on the round of a search that `--choice` names. The step `synthetic` has none of these options.

    Raises:
        DivergedResultError: the run diverged, and `--diverged-ok` is not given.
    """
    function = getattr(import_module(f"softmax_bottleneck.{fingerprint.STEPS[options.step][0]}"), options.step)
    subjects = [vars(options)[key] for key in ("run", "dataset", "unit", "truth", "choice") if key in options]
    restart = {"restart": options.restart} if "restart" in options else {}
    done = function(study, *subjects, say, **restart)
    if done and done["status"] == "diverged" and not options.diverged_ok:
        advice = "this is recorded as its result, and a repetition would diverge again"
        raise errors.DivergedResultError(f"{options.run}: diverged: {done['reason']}; {advice}")


def train(study: Study, options: argparse.Namespace, say: progress.Say) -> None:
    """Train one run, or all runs of a training job; `--run` is the path of the run or the name of the job.

    A job trains several seeds of a model in parallel, one process per run. The job's name is for example
    `ptb/mos/1+2-<hash>` for the seeds 1 and 2 (see `study.plan.jobs`). If the study's `replicas_per_job`, the number of
    seeds per job, is above 1, jobs/<job>.json is written at the end. This file marks the job as finished and holds the
    hash of each run's done.json.
    """
    runs = plan.jobs(study).get(options.run, ())
    if len(runs) > 1:
        command = [sys.executable, "-m", "softmax_bottleneck", *options.arguments]  # the last --run counts
        train_together(command, [run.path for run in runs], runs[0].device, say)
    else:
        run_step(study, options, say)
    if study.replicas_per_job > 1 and runs:
        files = {run.path: artefacts.checked(study.store.run_folder(run.path) / "done.json") for run in runs}
        hashes = {path: artefacts.sha256_file(file) for path, file in files.items()}
        artefacts.write_json(study.store.job_file(options.run), {"done": hashes})


def measure(study: Study, options: argparse.Namespace, say: progress.Say) -> None:
    """Take those measurements of the run `--run` that are missing or out of date.

    If `options.step` is `evaluate`, `spectrum` or `wordsim`, do only this step, even if its results are up to date.
    """
    measuring.measure(study, options.run, say, only="" if options.step == "measure" else options.step)
