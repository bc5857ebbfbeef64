# Shared by all rules: the study, the paths of its files, and the environment variables of the steps.
import sys
from pathlib import Path

WORKFLOW = Path(workflow.current_basedir).parent
sys.path.insert(0, str(WORKFLOW))

from snakemake.exceptions import WorkflowError

from softmax_bottleneck import study as settings
from softmax_bottleneck.jobs.locks import acquire_lock
from softmax_bottleneck.jobs.workflow import export_workflow
from softmax_bottleneck.measuring.computed import contexts_file
from softmax_bottleneck.records import records
from softmax_bottleneck.report import numbers
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.paths import OVERVIEW, Store
from softmax_bottleneck.store.errors import BusyError, UserError
from softmax_bottleneck.store.fingerprint import step_code
from softmax_bottleneck.study import plan

STORE = Store()
STUDY_FILE = WORKFLOW.parent / "config" / "demo.yaml"
if workflow.modifier.is_main_snakefile():
    STUDY_FILE, *others = [*map(Path, workflow.overwrite_configfiles)] or [STUDY_FILE]
    if others:
        advice = f"in {others[0]}, write `extends: {STUDY_FILE}`, and name only this file"
        raise WorkflowError(f"--configfile: {len(others) + 1} files (expected one study). Fix: {advice}")
    OVERRIDES = settings.typed(dict(workflow.config_settings.config))
else:  # a module of another workflow: its `config:` is a whole study, or keys that override the demonstration
    OVERRIDES = dict(config)
    if "models" in OVERRIDES:
        STUDY_FILE = Path(next(iter(workflow.configfiles), "config/config.yaml"))
    if workflow.modifier.modify_path("results") != "results":
        raise WorkflowError("softmax-bottleneck: a module's `prefix` is not supported; run it in a folder of its own")

try:
    STUDY = settings.load_study(STUDY_FILE, OVERRIDES)
except UserError as error:
    raise WorkflowError(str(error)) from None


onstart:  # only one workflow may run; a second one ends with exit code 75 (busy)
    try:
        acquire_lock()
    except (BusyError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


# Steps read the study from environment variables. If the study were a parameter of the rules, a run that two studies
# share would look changed. The settings that affect a result are in run_ids and in STUDY.digest.
settings.export(STUDY_FILE, OVERRIDES, WORKFLOW)
export_workflow()
RESULTS = STORE.study_folder(STUDY.name).as_posix()
UNITS = {unit.path: unit for unit in STUDY.units}
GPUS = 0 if STUDY.device == "cpu" else 1  # requested by a job
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
TRAINED = rf"{NAME}/{NAME}/[0-9]+-[0-9a-f]{{12}}"
FINETUNED = rf"{TRAINED}/finetune-[0-9a-f]{{12}}"


def plan_runs(study):
    """Set the names below, which say what the study plans now: every choice of a search plans further runs."""
    global STUDY, RUNS, JOBS, JOB_OF, MODELS, EVALUATIONS
    STUDY = study
    RUNS = {run.path: run for run in STUDY.needed}
    JOBS = plan.jobs(STUDY)  # training jobs by name: a run each, or several seeds of one model
    JOB_OF = {run.path: job for job, runs in JOBS.items() for run in runs}
    searched = {run.path for run in STUDY.searched}  # trained, but not measured
    trained = {path: run for path, run in RUNS.items() if path not in searched}
    MODELS = trained | {run.path: run for run in STUDY.finetuned}
    EVALUATIONS = {one.path: one for one in STUDY.evaluations}


plan_runs(STUDY)


wildcard_constraints:
    dataset=NAME,
    model=NAME,
    choice=rf"{NAME}/{NAME}-[0-9a-f]{{12}}",
    job=rf"{NAME}/{NAME}/[0-9]+([+][0-9]+)*-[0-9a-f]{{12}}",
    run=rf"{TRAINED}|{FINETUNED}",
    evaluation=rf"(?:{TRAINED}|{FINETUNED})/dynamic-[0-9a-f]{{12}}",


def run_file(name, run="{run}"):
    """Return the path of a run's file, or a pattern of such paths."""
    return STORE.run_folder(run).joinpath(name).as_posix()


def is_there(run, name):
    """Return True if the file `name` of a run exists. No other function looks for a run's files while jobs are planned.

    A run's id already identifies its tokens and code, so newer copies of the same tokens must not train it again
    (`ancient` would also hide jobs whose outputs are missing). If one job trains several runs and one of them fails,
    the finished ones stay finished.
    """
    return Path(run_file(name, run)).exists()


def done_file(run):
    """Return the file that marks a run as trained: its own, or that of the job that trains several runs."""
    alone = STUDY.replicas_per_job == 1 or run not in JOB_OF or is_there(run, "done.json")
    return run_file("done.json", run) if alone else STORE.job_file(JOB_OF[run]).as_posix()


def tokens_file(dataset):
    """Return the file that marks a corpus as tokenised and checked."""
    return STORE.tokens_folder(dataset).joinpath("corpus.json").as_posix()


def tokens_until(name):
    """Return an input function: it gives a run's tokens, or no input once the run's file `name` exists."""
    return lambda wildcards: [] if is_there(wildcards.run, name) else [tokens_file(MODELS[wildcards.run].dataset)]


def runs_of_synthetic():
    """Return the measured.json files of the runs that the step `synthetic` reads."""
    shown = [experiment for experiment in STUDY.experiments if "synthetic" in experiment.options]
    paths = dict.fromkeys(run.path for experiment in shown for run in STUDY.read_by_synthetic(experiment))
    return [STORE.run_folder(path).joinpath("measured.json").as_posix() for path in paths]


def fits_file(unit):
    """Return the file with the results of a unit of fits."""
    return STORE.fits_folder(unit).joinpath("done.json").as_posix()


def truth_file(path):
    """Return the file that describes natural distributions to which heads are fitted."""
    return STORE.fits_folder("truths").joinpath(path, "truth.json").as_posix()


def needed_by_truth(wildcards):
    """Return the input of `truth`, unless it is computed: the tokens of its corpus and the run that is its source."""
    truth = STUDY.truth(wildcards.truth)
    if Path(truth_file(truth.path)).exists():
        return []
    tokens = [tokens_file(truth.corpus)] if truth.corpus else []
    return [*tokens, *([run_file("measured.json", truth.run)] if truth.run else [])]


def needed_by_fit(wildcards):
    """Return the input of `fit`: for natural distributions their file, and the fits that choose the step sizes."""
    unit = UNITS[wildcards.unit]
    return [*([truth_file(unit.truth.path)] if unit.truth else []), *(fits_file(one.path) for one in unit.search)]


def study_files(names):
    """Return the paths of files in the study's folder."""
    return [f"{RESULTS}/{name}" for name in names]
