"""Studies, runs, experiments and datasets as immutable objects, read from YAML and checked before anything runs.

This package never imports torch: of a head's file, it executes the declaration of the head alone (`heads.registry`).
"""

from softmax_bottleneck.store import schema
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.store.schema import did_you_mean, find_config, load_yaml, parse_yaml, read
from softmax_bottleneck.study.datasets import Dataset, load_dataset
from softmax_bottleneck.study.fits import Fit, Unit
from softmax_bottleneck.study.runs import Body, Dynamic, Evaluation, Head, Run, Schedule, Stages, canonical_json
from softmax_bottleneck.study.studies import Study, export, load_study, study_from_environment, typed
from softmax_bottleneck.study.study_file import (
    Column,
    Contrast,
    Contrasts,
    Experiment,
    PlannedExperiment,
    Search,
    StudyFile,
    load_experiment,
)
from softmax_bottleneck.study.tuning import TunedModel
