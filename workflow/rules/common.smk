# What the rules share: the study, the names of its files, and how a step is called.
import sys
from pathlib import Path

WORKFLOW = Path(workflow.current_basedir).parent
sys.path.insert(0, str(WORKFLOW))

from snakemake.exceptions import WorkflowError

from softmax_bottleneck import artefacts, config as settings, plan
from softmax_bottleneck.errors import UserError
from softmax_bottleneck.fingerprint import fingerprint

STUDY_FILE = Path(next(iter(workflow.overwrite_configfiles), WORKFLOW.parent / "config" / "demo.yaml"))
OVERRIDES = {key: value for key, value in dict(workflow.config_settings.config).items()}

try:
    STUDY = settings.load_study(STUDY_FILE, OVERRIDES)
except UserError as error:
    raise WorkflowError(str(error)) from None

# Which study a step belongs to reaches it through the environment: as a parameter of the rule it would make a run that
# two studies share look changed. What matters of it is in run_ids and in STUDY.digest.
settings.export(STUDY_FILE, OVERRIDES, WORKFLOW)
RESULTS = artefacts.study_folder(STUDY.name).as_posix()
RUNS = {run.path: run for run in STUDY.needed}
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"


wildcard_constraints:
    dataset=NAME,
    experiment=NAME,
    own_model=NAME,
    run=rf"{NAME}/{NAME}/[0-9]+-[0-9a-f]{{12}}",


def run_file(name):
    """Pattern of a file in a run's folder."""
    return artefacts.run_folder("{run}").joinpath(name).as_posix()


def files_of_runs(name):
    """One file of every run the study needs."""
    return [artefacts.run_folder(path).joinpath(name).as_posix() for path in RUNS]


def ranks_along_training():
    """Of the runs that keep their weights on the way, because some experiment shows them."""
    return [artefacts.run_folder(run.path).joinpath("epochs_rank.json").as_posix() for run in plan.tracked(STUDY)]


def tokens_of(dataset):
    """What says that a corpus is tokenised and checked."""
    return artefacts.tokens_folder(dataset).joinpath("corpus.json").as_posix()


def code_of(*modules):
    """Fingerprint of a step's source: a changed one makes the step run again."""
    return fingerprint(*modules)


def corpus_files(wildcards):
    """A corpus cut from another needs that one's tokens, any other its own files."""
    dataset = settings.load_dataset(wildcards.dataset, STUDY_FILE.resolve().parent)
    if dataset.base:
        return [tokens_of(dataset.base)]
    return [artefacts.corpus_folder(dataset.name).joinpath("files.json").as_posix()]


def tokens_until(name):
    """The tokens of a run's corpus, until `name` is there: its run_id says on which tokens it was made, so that newer
    files of the same tokens must not make it again. (`ancient` would do, but hides jobs whose own outputs are missing.)
    """

    def inputs(wildcards):
        finished = artefacts.run_folder(wildcards.run).joinpath(name).exists()
        return [] if finished else [tokens_of(RUNS[wildcards.run].dataset)]

    return inputs


def check_until_done(wildcards):
    """Every configured run is built once, without memory, before the first is trained; a finished run needs nothing."""
    return [f"{RESULTS}/check.json"] if tokens_until("done.json")(wildcards) else []


def benchmarks_of(wildcards):
    """What says that the benchmarks of this run's dataset are there; a language derives its own."""
    named = STUDY.datasets[RUNS[wildcards.run].dataset].wordsim
    return [] if named in {None, "self"} else [artefacts.corpus_folder(named).joinpath("files.json").as_posix()]


def report_page():
    return f"{RESULTS}/report/index.html"


def published():
    """What is joined to the records besides a study's own words: published numbers, and the settings they belong to."""
    home = WORKFLOW.parent
    return [path.as_posix() for path in (home / "config" / "paper.yaml", *sorted(home.glob("report/published/*.csv")))]


def templates():
    """The page's sources."""
    return [path.as_posix() for path in sorted(WORKFLOW.parent.glob("report/*.*")) if path.suffix in {".j2", ".css"}]


def experiments_of(kind):
    return [experiment.id for experiment in STUDY.experiments if experiment.kind == kind]


def own_config(wildcards):
    """The YAML of somebody's own model, in the working directory's config/ or the workflow's."""
    name = f"config/{wildcards.own_model}.yaml"
    return name if Path(name).exists() else WORKFLOW.parent.joinpath(name).as_posix()


def own_files(wildcards):
    """The arrays that YAML names: changed ones are analysed again."""
    from softmax_bottleneck import own_model

    try:
        return own_model.read_question(Path(own_config(wildcards))).files()
    except UserError as error:
        raise WorkflowError(str(error)) from None
