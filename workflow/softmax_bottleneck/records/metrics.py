"""The catalogue of metrics, report/metrics.yaml: the label and definition of each metric, and the step that writes it.

The name of a metric in the records may end in a parameter: the epsilon 1e-3 in `rank_eff_1e-3`, or the model softmax in
`test_ppl_gain_vs_softmax`. `find` returns the definition that belongs to a name with its parameter.
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

        A label that begins with a name (Press, Spearman, KL) is not changed.
        """
        kept = self.label.startswith(("Press", "Spearman", "KL"))
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


# Metrics that compare the means of another metric: part of the name, words of the label, words of the definition.
_DERIVED = (
    (GAIN, "gain", "how much smaller the mean is than that of"),
    (REDUCTION, "reduction (%)", "by how many percent the mean is smaller than that of"),
)


@cache
def find(name: str, stage: str = "") -> Metric:
    """Return the metric with this name; `*` and `{}` in its name and label are replaced by the parameter.

    `<metric>_gain_vs_<model>` compares a model's mean with that of `<model>`, and `<metric>_reduction_pct` with that of
    the table's baseline. Neither is in the catalogue; their definitions are made from that of `<metric>`.

    Args:
        name: name of the metric with its parameter, such as `rank_eff_1e-3`.
        stage: stage of the number. After dynamic evaluation (`dynamic`), a metric of the file measure.json is returned
            with the step `dynamic` and the file dynamic.json. No other stage changes the metric.

    Raises:
        UserError: no metric has this name; the message suggests the most similar name.
    """
    for sign, label, words in _DERIVED:
        base, is_derived, model = name.partition(sign)
        if is_derived:
            of = find(base, stage)
            words = f"{words} {model or 'the baseline'}; {of.words}: {of.definition}"
            made = {"label": f"{of.label}, {label}", "definition": words, "step": "render", "file": "tables/"}
            return Metric(name=name, **made, digits=of.digits, better="larger")
    metric = next((metric for pattern, metric in catalogue().items() if fnmatchcase(name, pattern)), None)
    if metric is None:
        raise UserError(f"unknown metric {name!r}{did_you_mean(name, list(catalogue()))}")
    parameter = name.removeprefix(metric.name.rstrip("*"))
    if parameter.startswith("1e"):
        parameter = f"10{parameter.removeprefix('1e').translate(SUPERSCRIPT)}"
    metric = replace(metric, name=name, label=metric.label.format(parameter))
    is_dynamic = stage == "dynamic" and metric.file == "measure.json"
    return replace(metric, step="dynamic", file="dynamic.json") if is_dynamic else metric
