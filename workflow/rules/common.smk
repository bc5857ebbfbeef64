# What the rules share: the study, the names of its files, and how a step is called.
import sys
from pathlib import Path

WORKFLOW = Path(workflow.current_basedir).parent
sys.path.insert(0, str(WORKFLOW))

from snakemake.exceptions import WorkflowError

from softmax_bottleneck import study as settings
from softmax_bottleneck.jobs import project_lock
from softmax_bottleneck.jobs.processes import export_workflow
from softmax_bottleneck.records import records
from softmax_bottleneck.report import captions
from softmax_bottleneck.store.paths import OVERVIEW, Store
from softmax_bottleneck.store.errors import BusyError, UserError
from softmax_bottleneck.store.fingerprint import step_code
from softmax_bottleneck.study import plan

STORE = Store()
STUDY_FILE = WORKFLOW.parent / "config" / "demo.yaml"
if workflow.modifier.is_main_snakefile():
    STUDY_FILE = Path(next(iter(workflow.overwrite_configfiles), STUDY_FILE))
    OVERRIDES = dict(workflow.config_settings.config)
else:  # a module of another workflow: its `config:` is a whole study, or keys instead of the demonstration's
    OVERRIDES = dict(config)
    if "models" in OVERRIDES:
        STUDY_FILE = Path(next(iter(workflow.configfiles), "config/config.yaml"))
    if workflow.modifier.modify_path("results") != "results":
        raise WorkflowError("softmax-bottleneck: a module's `prefix` is not supported; run it in a folder of its own")

try:
    STUDY = settings.load_study(STUDY_FILE, OVERRIDES)
except UserError as error:
    raise WorkflowError(str(error)) from None


onstart:  # one workflow at a time; a second one leaves with the exit code that says so
    try:
        project_lock.acquire()
    except (BusyError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


# Which study a step belongs to reaches it through the environment: as a parameter of the rule it would make a run that
# two studies share look changed. What matters of it is in run_ids and in STUDY.digest.
settings.export(STUDY_FILE, OVERRIDES, WORKFLOW)
export_workflow()
RESULTS = STORE.study_folder(STUDY.name).as_posix()
RUNS = {run.path: run for run in STUDY.needed}
JOBS = plan.jobs(STUDY)  # of training, by name: a run each, or several seeds of one model
JOB_OF = {run.path: job for job, runs in JOBS.items() for run in runs}
MODELS = RUNS | {run.path: run for run in STUDY.finetuned}
EVALUATIONS = {one.path: one for one in STUDY.evaluations}
UNITS = {unit.path: unit for unit in STUDY.units}
GPUS = 0 if STUDY.device == "cpu" else 1  # that a job asks for
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
TRAINED = rf"{NAME}/{NAME}/[0-9]+-[0-9a-f]{{12}}"
FINETUNED = rf"{TRAINED}/finetune-[0-9a-f]{{12}}"


wildcard_constraints:
    dataset=NAME,
    model=NAME,
    job=rf"{NAME}/{NAME}/[0-9]+([+][0-9]+)*-[0-9a-f]{{12}}",
    run=rf"{TRAINED}|{FINETUNED}",
    evaluation=rf"(?:{TRAINED}|{FINETUNED})/dynamic-[0-9a-f]{{12}}",


def run_file(name, run="{run}"):
    """A file of a run, or the pattern of such a file."""
    return STORE.run_folder(run).joinpath(name).as_posix()


def is_there(run, name):
    """Whether a step of a run has left its file: the only look at the disk while the graph is made, for two reasons.

    A run's id says on which tokens and by which code it was made: newer files of the same tokens must not make it again.
    (`ancient` would do, but hides jobs whose own outputs are missing.) And of several runs that one job trains, those
    that are finished stay so when another one fails.
    """
    return Path(run_file(name, run)).exists()


def done_file(run):
    """What says that a run is trained or finetuned: its own record, or that of the job that trains it with others."""
    alone = STUDY.replicas_per_job == 1 or run not in JOB_OF or is_there(run, "done.json")
    return run_file("done.json", run) if alone else STORE.job_file(JOB_OF[run]).as_posix()


def tokens_file(dataset):
    """What says that a corpus is tokenised and checked."""
    return STORE.tokens_folder(dataset).joinpath("corpus.json").as_posix()


def tokens_until(name):
    """The tokens of a run's corpus, until a file of the run is there."""
    return lambda wildcards: [] if is_there(wildcards.run, name) else [tokens_file(MODELS[wildcards.run].dataset)]


def runs_taken_apart():
    """Return what says that those runs are measured whose matrices get noise, or are taken apart and rebuilt."""
    shown = [experiment for experiment in STUDY.experiments if "synthetic" in experiment.options]
    paths = dict.fromkeys(run.path for experiment in shown for run in STUDY.runs_of(experiment))
    return [STORE.run_folder(path).joinpath("measured.json").as_posix() for path in paths]


def fits_file(unit):
    """What says that the fits of a unit are done, and holds their numbers."""
    return STORE.fits_folder(unit).joinpath("done.json").as_posix()


def study_files(names):
    """Files of the study by their names in its folder."""
    return [f"{RESULTS}/{name}" for name in names]
