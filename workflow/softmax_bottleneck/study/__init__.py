"""Studies, runs, experiments and datasets as immutable objects, read from YAML and checked before anything runs.

This package never imports torch. A head declares its options as literals in its own file, and this package parses that
file without executing it.
"""

from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study.datasets import Dataset, load_dataset
from softmax_bottleneck.study.fits import Fit, Unit
from softmax_bottleneck.study.runs import Body, Dynamic, Evaluation, Head, Run, Schedule, Stages, canonical_json
from softmax_bottleneck.study.schema import did_you_mean, find_config, load_yaml, parse_yaml, read
from softmax_bottleneck.study.studies import Study, export, load_study, study_from_environment, typed
from softmax_bottleneck.study.study_file import (
    Column,
    Contrast,
    Contrasts,
    Experiment,
    Search,
    StudyFile,
    load_experiment,
)
from softmax_bottleneck.study.tuning import TunedModel
