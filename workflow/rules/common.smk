# What the rules share: the study, the names of its files, and how a step is called.
import sys
from pathlib import Path

WORKFLOW = Path(workflow.current_basedir).parent
sys.path.insert(0, str(WORKFLOW))

from snakemake.exceptions import WorkflowError

from softmax_bottleneck import study as settings
from softmax_bottleneck.jobs import project_lock
from softmax_bottleneck.jobs.processes import export_workflow
from softmax_bottleneck.records import evidence, records
from softmax_bottleneck.report import captions
from softmax_bottleneck.store.paths import Store
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


def take_the_project():
    """One workflow at a time; a second one leaves with the exit code that says so."""
    try:
        project_lock.acquire()
    except (BusyError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


onstart:
    take_the_project()


# Snakemake calls `onstart` of the main Snakefile alone: a module takes the project when it is read.
if (
    not workflow.modifier.is_main_snakefile()
    and workflow.is_main_process
    and not project_lock.is_read_only_call(sys.argv)
):
    take_the_project()

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
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
TRAINED = rf"{NAME}/{NAME}/[0-9]+-[0-9a-f]{{12}}"
FINETUNED = rf"{TRAINED}/finetune-[0-9a-f]{{12}}"


wildcard_constraints:
    dataset=NAME,
    own_model=NAME,
    job=rf"{NAME}/{NAME}/[0-9]+([+][0-9]+)*-[0-9a-f]{{12}}",
    run=rf"{TRAINED}|{FINETUNED}",
    evaluation=rf"(?:{TRAINED}|{FINETUNED})/dynamic-[0-9a-f]{{12}}",


def run_file(name):
    """Pattern of a file in a run's folder."""
    return STORE.run_folder("{run}").joinpath(name).as_posix()


def files_of_runs(name):
    """One file of every run the study needs."""
    return [STORE.run_folder(path).joinpath(name).as_posix() for path in RUNS]


def every_run():
    """All that the runs of the study leave, declared."""
    results = [files_of_runs(name) for name in ("measure.json", "topk.json", "rank.json", "wordsim.json")]
    done = dict.fromkeys(trained(run) for run in RUNS)
    return [*done, *(file for files in results for file in files), *files_after_training()]


def fits_file(unit):
    """What says that the fits of a unit are done, and holds their numbers."""
    return STORE.fits_folder(unit).joinpath("done.json").as_posix()


def files_after_training():
    """Results of the runs that are finetuned or evaluated dynamically, because some experiment shows it."""
    names = ("done.json", "measure.json", "rank.json")
    finetuned = [STORE.run_folder(run.path).joinpath(name) for run in STUDY.finetuned for name in names]
    evaluated = [STORE.run_folder(path).joinpath("dynamic.json") for path in EVALUATIONS]
    return [path.as_posix() for path in (*finetuned, *evaluated)]


def done_before(wildcards):
    """What says that the run is trained (or finetuned) that this stage starts from."""
    if "evaluation" in wildcards.keys():
        return trained(EVALUATIONS[wildcards.evaluation].run.path)
    return trained(MODELS[wildcards.run].start)


def trained_by_job():
    """What a training job declares: the done.json of its run, or, of several runs, that it is through.

    Their done.json lie beside that undeclared: one that is finished stays when another fails. The declared file goes as
    soon as it was used; what counts afterwards are the done.json.
    """
    if STUDY.replicas_per_job == 1:
        return STORE.run_folder("{job}").joinpath("done.json").as_posix()
    return temp(STORE.job_file("{job}").as_posix())


def trained(run):
    """What says that a run is trained (or finetuned)."""
    done = STORE.run_folder(run).joinpath("done.json")
    alone = STUDY.replicas_per_job == 1 or run not in JOB_OF
    return done.as_posix() if alone or done.exists() else STORE.job_file(JOB_OF[run]).as_posix()


def trained_run(wildcards):
    return trained(wildcards.run)


def tokens_of(dataset):
    """What says that a corpus is tokenised and checked."""
    return STORE.tokens_folder(dataset).joinpath("corpus.json").as_posix()


def corpus_files(wildcards):
    """A corpus cut from another needs that one's tokens, any other its own files."""
    dataset = settings.load_dataset(wildcards.dataset, STUDY_FILE.resolve().parent)
    if dataset.base:
        return [tokens_of(dataset.base)]
    return [STORE.corpus_folder(dataset.name).joinpath("files.json").as_posix()]


def tokens_until(name):
    """The tokens of a run's corpus, until `name` is there: its run_id says on which tokens it was made, so that newer
    files of the same tokens must not make it again. (`ancient` would do, but hides jobs whose own outputs are missing.)
    """

    def inputs(wildcards):
        finished = STORE.run_folder(wildcards.run).joinpath(name).exists()
        return [] if finished else [tokens_of(MODELS[wildcards.run].dataset)]

    return inputs


def needed_by_job(wildcards):
    """Tokens, and that every configured run was built once, without memory; nothing when all runs are finished."""
    runs = JOBS[wildcards.job]
    if all(STORE.run_folder(run.path).joinpath("done.json").exists() for run in runs):
        return []
    return [tokens_of(runs[0].dataset), f"{RESULTS}/check.json"]


def benchmarks_of(wildcards):
    """What says that the benchmarks of this run's dataset are there; a language derives its own."""
    named = STUDY.datasets[RUNS[wildcards.run].dataset].wordsim
    return [] if named in {None, "self"} else [STORE.corpus_folder(named).joinpath("files.json").as_posix()]


def study_files(names):
    """Files of the study by their names in its folder."""
    return [f"{RESULTS}/{name}" for name in names]


def of_workflow(*patterns):
    """Files of the workflow, by names that tell no place when it lies in the working directory."""
    home = WORKFLOW.parent
    below = home.relative_to(Path.cwd()) if home.is_relative_to(Path.cwd()) else home
    return [(below / path.relative_to(home)).as_posix() for one in patterns for path in sorted(home.glob(one))]


def shown(experiment, suffix):
    """A file of a table or figure, and where Snakemake's own report shows it, under which names."""
    labels = {"in the paper": experiment.artefact, "title": experiment.title, "as": suffix}
    return report(
        f"{RESULTS}/{experiment.kind}s/{experiment.id}.{suffix}",
        caption="../../report/captions/experiment.rst",
        category=f"{experiment.kind.capitalize()}s",
        subcategory=captions.label(experiment.source),
        labels={name: captions.label(words) for name, words in labels.items()},
    )


def own_config(wildcards):
    """The YAML of somebody's own model, in the working directory's config/ or the workflow's."""
    name = f"config/{wildcards.own_model}.yaml"
    return name if Path(name).exists() else WORKFLOW.parent.joinpath(name).as_posix()


def own_files(wildcards):
    """The arrays that YAML names: changed ones are analysed again."""
    from softmax_bottleneck.own_model.question import read_question

    try:
        return read_question(Path(own_config(wildcards))).files()
    except UserError as error:
        raise WorkflowError(str(error)) from None
