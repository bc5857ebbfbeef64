"""The catalogue of metrics, report/metrics.yaml: the label and definition of each metric, and the step that writes it.

The name of a metric may end in a parameter, such as the epsilon 1e-3 in `rank_eff_1e-3`. `find` returns the definition
that belongs to such a name. It also makes those of comparisons, such as `test_ppl_gain_vs_softmax`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache

import yaml

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study import did_you_mean

# Names that code refers to.
TEST_PPL, VALID_PPL, TRAIN_PPL, ENTROPY_PPL = "test_ppl", "valid_ppl", "train_ppl", "entropy_ppl"
KL_TRUTH, EXCESS_PPL, RANK_TRUTH, GAP_CLOSED = "kl_truth_nats", "excess_ppl", "rank_truth", "gap_closed"
PRESS_RANK, EFFECTIVE_RANK = "rank_press", "rank_eff_"
RANK_TOLERANCE, SIGMA_MAX, SIGMA_10 = "rank_tolerance", "sigma_max", "sigma_10"
PARAMETERS_MILLIONS = "params_m"
SPEARMAN, PAIRS, PAIRS_UNKNOWN, WINS = "spearman", "n_pairs", "n_pairs_not_in_vocab", "wordsim_wins"
KL, MODE_MATCH, KL_NO_CONTEXT, KL_UNIFORM = "kl_nats", "mode_match", "kl_no_context_nats", "kl_uniform_nats"
STEPS, ACCURACY, ACCURACY_HELD_OUT = "steps", "accuracy", "accuracy_held_out"
RANK, RECONSTRUCTION_ERROR, TOP_M, TOP5_HIT = "rank", "reconstruction_error", "top_m", "top5_hit"
RANK_PREDICTED, RANK_PREDICTED_PAPER = "rank_predicted", "rank_predicted_paper"
P_VALUE, P_VALUE_WELCH, PEARSON = "p_value", "p_value_welch", "pearson_r"
GAIN, REDUCTION = "_gain_vs_", "_reduction_pct"  # of another metric: `<metric>_gain_vs_<model>`

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Metric:
    """The definition of a metric.

    Attributes:
        name: name in the records, in report/published and in the columns of experiments. In the catalogue, `*` at its
            end stands for a parameter.
        label: heading of a column of a table. In the catalogue, `{}` stands for the parameter.
        definition: how the metric is computed, with its source.
        step: step that computes the metric, such as `measure`.
        file: name of the file to which the step writes the metric, in the folder of the run or of the study.
        unit: unit of the values; empty for a plain number.
        digits: number of decimals that are printed.
        better: `smaller` or `larger`; empty if neither smaller nor larger values are better.
    """

    name: str
    label: str
    definition: str
    step: str
    file: str
    unit: str = ""
    digits: int = 0
    better: str = ""

    @property
    def words(self) -> str:
        """The label for use within a sentence: its first letter is lower case, as in `test perplexity`.

        A label that begins with a name (Press, Spearman, Pearson, KL) is not changed.
        """
        kept = self.label.startswith(("Press", "Spearman", "Pearson", "KL"))
        return self.label if kept else f"{self.label[0].lower()}{self.label[1:]}"


@cache
def catalogue() -> Mapping[str, Metric]:
    """Return {name: metric} of all metrics of report/metrics.yaml; a name may end in `*` (see `Metric`)."""
    steps = yaml.safe_load((ROOT / "report" / "metrics.yaml").read_text(encoding="utf-8"))
    return {
        name: Metric(name=name, step=step["step"], file=step["file"], **entry)
        for step in steps
        for name, entry in step["metrics"].items()
    }


@dataclass(frozen=True)
class Comparison:
    """What a metric compares whose name is `<metric>_gain_vs_<model>` or `<metric>_reduction_pct`.

    Attributes:
        metric: the compared metric. A gain says how much smaller its mean is, a reduction by how many percent.
        other: the model with which a gain compares; empty for a reduction, which compares with a table's baseline.
    """

    metric: str
    other: str


def comparison(name: str) -> Comparison | None:
    """Return what the metric `name` compares, or None if it is no comparison.

    Raises:
        UserError: the name is that of a comparison, but has no metric or no model, or text after `_reduction_pct`, or
            compares a reduction.
    """
    metric, sign, other = name.partition(GAIN if GAIN in name else REDUCTION)
    if not sign:
        return None
    if not metric or REDUCTION in metric or bool(other) != (sign == GAIN):
        raise UserError(f"metric {name!r}: expected <metric>{GAIN}<model> or <metric>{REDUCTION}")
    return Comparison(metric, other)


@cache
def find(name: str, stage: str = "") -> Metric:
    """Return the definition of a metric of the catalogue, or of a comparison of one.

    Args:
        name: name of the metric with its parameter, such as `rank_eff_1e-3`.
        stage: stage of the number. After dynamic evaluation (`dynamic`), a metric of the file measure.json is returned
            with the step `dynamic` and the file dynamic.json. No other stage changes the metric.

    Raises:
        UserError: as in `comparison`, or no metric has this name; the message suggests the most similar name.
    """
    if compared := comparison(name):
        return _of_comparison(name, compared)
    metric = _of_catalogue(name)
    is_dynamic = stage == "dynamic" and metric.file == "measure.json"
    return replace(metric, step="dynamic", file="dynamic.json") if is_dynamic else metric


def _of_catalogue(name: str) -> Metric:
    """Return the entry of the catalogue for `name`; the parameter replaces `*` in its name and `{}` in its label."""
    # A parameter has at least one letter.
    metric = next((one for pattern, one in catalogue().items() if fnmatchcase(name, pattern.replace("*", "?*"))), None)
    if metric is None:
        raise UserError(f"unknown metric {name!r}{did_you_mean(name, list(catalogue()))}")
    parameter = name.removeprefix(metric.name.rstrip("*"))
    if parameter.startswith("1e"):
        parameter = f"10{parameter.removeprefix('1e').translate(SUPERSCRIPT)}"
    return replace(metric, name=name, label=metric.label.format(parameter))


def _of_comparison(name: str, compared: Comparison) -> Metric:
    """Return the definition of a comparison, made from that of the compared metric.

    A comparison is positive where the mean is smaller. So a larger gain is better only if a smaller mean is.
    """
    of = _of_catalogue(compared.metric)
    label, words, unit = "reduction (%)", "by how many percent the mean is smaller than that of the baseline", ""
    if compared.other:
        label, words, unit = "gain", f"how much smaller the mean is than that of {compared.other}", of.unit
    return replace(
        of, name=name, label=f"{of.label}, {label}", definition=f"{words}; {of.words}: {of.definition}", step="render",
        file="tables/", unit=unit, better={"smaller": "larger", "larger": "smaller"}.get(of.better, ""),
    )  # fmt: skip
