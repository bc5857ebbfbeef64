# What the rules share: the study, the names of its files, and how a step is called.
import os
import sys
from pathlib import Path

WORKFLOW = Path(workflow.current_basedir).parent
sys.path.insert(0, str(WORKFLOW))

from snakemake.exceptions import WorkflowError

from softmax_bottleneck import artefacts, config as settings
from softmax_bottleneck.errors import UserError
from softmax_bottleneck.fingerprint import fingerprint

# Steps run in this interpreter's environment, from any working directory.
os.environ["PYTHONPATH"] = os.pathsep.join([str(WORKFLOW), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

STUDY_FILE = Path(next(iter(workflow.overwrite_configfiles), WORKFLOW.parent / "config" / "demo.yaml"))
OVERRIDES = {key: value for key, value in dict(workflow.config_settings.config).items()}

try:
    STUDY = settings.load_study(STUDY_FILE, OVERRIDES)
except UserError as error:
    raise WorkflowError(str(error)) from None

STEP = "python -m softmax_bottleneck"
STUDY_ARGS = settings.study_arguments(STUDY_FILE, OVERRIDES)
RESULTS = artefacts.study_folder(STUDY.name).as_posix()
RUNS = {run.path: run for run in STUDY.needed}
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"


wildcard_constraints:
    dataset=NAME,
    experiment=NAME,
    run=rf"{NAME}/{NAME}/[0-9]+-[0-9a-f]{{12}}",


def run_file(name):
    """Pattern of a file in a run's folder."""
    return artefacts.run_folder("{run}").joinpath(name).as_posix()


def files_of_runs(name):
    """One file of every run the study needs."""
    return [artefacts.run_folder(path).joinpath(name).as_posix() for path in RUNS]


def tokens_of(dataset):
    """What says that a corpus is tokenised and checked."""
    return artefacts.tokens_folder(dataset).joinpath("corpus.json").as_posix()


def code_of(*modules):
    """Fingerprint of a step's source: a changed one makes the step run again."""
    return fingerprint(*modules)
