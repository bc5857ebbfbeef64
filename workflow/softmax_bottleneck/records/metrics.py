"""The catalogue of metrics: what every number is called, what it means, and which step writes it into which file.

Tables, figures, claims and docs/metrics.md take names, digits and definitions from here, and nowhere else is a metric
spelt out. A name may carry a parameter at its end (`rank_eff_1e-3`, `test_ppl_gain_vs_softmax`): `find` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache

from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import did_you_mean

# Names that code refers to.
TEST_PPL, VALID_PPL, TRAIN_PPL = "test_ppl", "valid_ppl", "train_ppl"
UNIGRAM_PPL, ENTROPY_PPL, LAW_TEST_PPL = "unigram_ppl", "entropy_ppl", "law_test_ppl"
KL_TRUTH, EXCESS_PPL, RANK_TRUTH = "kl_truth_nats", "excess_ppl", "rank_truth"
PRESS_RANK, EFFECTIVE_RANK = "rank_press", "rank_eff_"
RANK_TOLERANCE, SIGMA_MAX, SIGMA_10 = "rank_tolerance", "sigma_max", "sigma_10"
PARAMETERS_MILLIONS = "params_m"
SPEARMAN, PAIRS, PAIRS_UNKNOWN, WINS = "spearman", "n_pairs", "n_pairs_not_in_vocab", "wordsim_wins"
HIT_RATE, TOP5_HIT = "hit_rate_", "top5_hit"
KL, MODE_MATCH, KL_NO_CONTEXT, KL_UNIFORM = "kl_nats", "mode_match", "kl_no_context_nats", "kl_uniform_nats"
SQUARED_ERROR, SQUARED_ERROR_BOUND, GAP_CLOSED = "squared_error", "squared_error_bound_d", "gap_closed"
RANK, RECONSTRUCTION_ERROR = "rank", "reconstruction_error"
RANK_PREDICTED, RANK_PREDICTED_PAPER = "rank_predicted", "rank_predicted_paper"
P_VALUE, P_VALUE_WELCH, PEARSON = "p_value", "p_value_welch", "pearson_r"
GAIN, REDUCTION = "_gain_vs_", "_reduction_pct"  # of another metric: `<metric>_gain_vs_<model>`

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SMALLER, LARGER, NEITHER = True, False, None  # which is better


@dataclass(frozen=True)
class Metric:
    """What a number is.

    Attributes:
        name: in the records, in report/published and in the columns of experiments; `*` stands for a parameter.
        label: as a column head; `{}` is the parameter.
        unit: empty for a plain number.
        digits: decimals that are printed.
        smaller_is_better: None where neither is.
        definition: how it is computed, with its source.
        step: rule and sub-command that makes it.
        file: where that step writes it, in the folder of the run or of the study.
    """

    name: str
    label: str
    unit: str
    digits: int
    smaller_is_better: bool | None
    definition: str
    step: str
    file: str

    @property
    def origin(self) -> str:
        """`measure, measure.json`: the step that makes it and the file it stands in."""
        return f"{self.step}, {self.file}"

    @property
    def words(self) -> str:
        """The label inside a sentence: names of people and measures keep their capital."""
        kept = self.label.startswith(("Press", "Spearman", "KL"))
        return self.label if kept else f"{self.label[0].lower()}{self.label[1:]}"


Entry = tuple[str, str, str, int, bool | None, str]


def _made_by(step: str, file: str, *entries: Entry) -> Iterator[Metric]:
    return (Metric(*entry, step, file) for entry in entries)


_WHOLE = "exp(sum of the losses of its L − 1 predicted words / L), or / (L − 1) where the schedule says so"
_EXACT = "exp(sum of losses / number of predicted words)"
_PRESS = "singular values of the log-probability matrix over test contexts above 0.5 √(m + n + 1) σ_max ε, float32’s ε"
_SLOPES = "of all slopes of the learned function (Ganea et al. 2019, Table 2)"
_BEFORE = "the same before training"
_EARLY = "the same after a twentieth of the updates"
_KRAUSE = "chosen on the validation text (Krause et al. 2018)"

_ALL = (
    *_made_by("train", "done.json",
        ("parameters", "Parameters", "", 0, NEITHER, "numbers that training changes, shared ones counted once"),
        ("epochs", "Epochs", "", 0, NEITHER, "epochs trained"),
        ("best_epoch", "Best epoch", "", 0, NEITHER, "epoch of the lowest validation perplexity, which is measured"),
        ("switch_epoch", "Averaged after", "", 0, NEITHER, "last epoch of plain SGD; none where averaging never began"),
        ("steps", "Updates", "", 0, NEITHER, "updates of the weights"),
        ("wall_s", "Wall time", "s", 1, SMALLER, "wall time of all sessions of the run"),
        ("embedding_size", "Width", "", 0, NEITHER, "length d of the word vectors, a setting of the run"),
    ),
    *_made_by("measure", "measure.json",
        (TEST_PPL, "Test perplexity", "", 2, SMALLER, f"of the test text in one stream: {_WHOLE}"),
        ("test_ppl_sound", "Test perplexity, exact", "", 2, SMALLER, f"of the test text: {_EXACT}"),
        (VALID_PPL, "Validation perplexity", "", 2, SMALLER, f"of the validation text in parallel streams: {_WHOLE}"),
        ("valid_ppl_sound", "Validation perplexity, exact", "", 2, SMALLER, f"of the validation text: {_EXACT}"),
        (TRAIN_PPL, "Training perplexity", "", 2, SMALLER,
         "exp of the mean loss during the best epoch, dropout on: mean over blocks of 200 updates of their means"),
        ("train_ppl_sound", "Training perplexity, exact", "", 2, SMALLER, f"of training text, dropout off: {_EXACT}"),
        (UNIGRAM_PPL, "Unigram perplexity", "", 2, SMALLER,
         "of the test text by the frequencies of the training text, (count + 1) / (T + V)"),
        (PARAMETERS_MILLIONS, "Parameters (millions)", "10⁶", 2, NEITHER, "parameters / 10⁶"),
        ("sec_per_epoch", "Seconds per epoch", "s", 1, SMALLER, "mean wall time of an epoch with its validation"),
        ("ms_per_batch", "Milliseconds per update", "ms", 2, SMALLER,
         "seconds per epoch over updates per epoch, validation included"),
        ("train_minutes", "Minutes of training", "min", 1, SMALLER, "wall time of all sessions of the run"),
        ("slope_mean", "Mean slope", "", 3, NEITHER, f"mean {_SLOPES}"),
        ("slope_std", "Spread of slopes", "", 3, NEITHER, f"population standard deviation {_SLOPES}"),
        ("slope_min", "Smallest slope", "", 3, NEITHER, f"smallest {_SLOPES}"),
        ("slope_max", "Largest slope", "", 3, NEITHER, f"largest {_SLOPES}"),
        ("slope_mean_init", "Mean slope at the start", "", 3, NEITHER, _BEFORE),
        ("slope_std_init", "Spread of slopes at the start", "", 3, NEITHER, _BEFORE),
        ("slope_min_init", "Smallest slope at the start", "", 3, NEITHER, _BEFORE),
        ("slope_max_init", "Largest slope at the start", "", 3, NEITHER, _BEFORE),
        (KL_TRUTH, "KL from the law (nats)", "nats", 4, SMALLER,
         "mean over test contexts of KL(P*‖Q), the language’s law against the prediction"),
        (ENTROPY_PPL, "Expected perplexity of the law", "", 2, NEITHER,
         "exp of the law’s mean entropy over the test contexts: the least expected perplexity that any model can have"),
        (EXCESS_PPL, "Excess over the bound", "", 2, SMALLER, "exp(entropy + KL) − exp(entropy), means over contexts"),
        ("entropy_rate_ppl", "Perplexity of the language", "", 2, NEITHER, "exp of the law’s entropy in the long run"),
        (RANK_TRUTH, "Rank of the law", "", 0, NEITHER, "exact rank of the law’s matrix of log-probabilities"),
        (LAW_TEST_PPL, "Perplexity of the law", "", 2, NEITHER,
         "of this very test text by the law it was sampled from: exp(sum of its losses / L)"),
        ("law_train_ppl", "Perplexity of the law, training text", "", 2, NEITHER, "the same of the training text"),
        ("law_rank_*", "Rank of the law in the test contexts", "", 0, NEITHER,
         "Press and effective ranks of the law’s log-probabilities over the test contexts, from its exact factors"),
    ),
    *_made_by("measure", "topk.json",
        (TOP5_HIT, "Hit", "", 0, LARGER, "1 if the true next word is among the first five"),
        (f"{HIT_RATE}*", "True word among the first {}", "", 4, LARGER,
         "share of test contexts whose true word is among the first 1, 5 or 10; `_low`, `_high`: 95 % Wilson interval"),
    ),
    *_made_by("dynamic", "dynamic.json",
        ("valid_ppl_static", "Validation perplexity, fixed weights", "", 2, SMALLER, f"in one stream: {_EXACT}"),
        ("test_ppl_static", "Test perplexity, fixed weights", "", 2, SMALLER, f"in one stream: {_EXACT}"),
        ("valid_gain", "Gain on validation", "", 2, LARGER, "validation perplexity with fixed less adapted weights"),
        ("test_gain", "Gain on test", "", 2, LARGER, "test perplexity with fixed less adapted weights"),
        ("dynamic_learning_rate", "Step size", "", 6, NEITHER, f"{_KRAUSE}; 0 where none helped"),
        ("dynamic_decay", "Decay", "", 6, NEITHER, _KRAUSE),
        ("dynamic_epsilon", "Epsilon", "", 6, NEITHER, "added to the gradients’ root mean square (Krause et al. 2018)"),
    ),
    *_made_by("spectrum", "rank.json",
        (PRESS_RANK, "Press rank", "", 0, NEITHER, f"{_PRESS} (Press et al. 2007)"),
        ("rank_press_low", "Press rank at 101 % of the tolerance", "", 0, NEITHER, f"{_PRESS}, times 1.01"),
        ("rank_press_high", "Press rank at 99 % of the tolerance", "", 0, NEITHER, f"{_PRESS}, times 0.99"),
        ("rank_press_all", "Press rank, all contexts", "", 0, NEITHER,
         "over all test contexts of a corpus whose published rank is of the first ones"),
        ("rank_rows", "Contexts", "", 0, NEITHER, "rows m of the matrix"),
        ("rank_columns", "Words", "", 0, NEITHER, "columns n of the matrix"),
        (RANK_TOLERANCE, "Press tolerance", "", 4, NEITHER, "0.5 √(m + n + 1) σ_max ε"),
        (SIGMA_10, "Tenth singular value", "", 4, NEITHER, "the tenth singular value over the largest"),
        (SIGMA_MAX, "Largest singular value", "", 2, NEITHER, "σ_max of the matrix of log-probabilities"),
        (f"{EFFECTIVE_RANK}*", "Effective rank, ε = {}", "", 0, NEITHER,
         "least number of singular values with 1 − ε of the sum of squares of all (Parthiban et al. 2021, section 6)"),
    ),
    *_made_by("spectrum", "epochs_rank.json",
        ("rank_centred", "Effective rank, centred", "", 0, NEITHER,
         "of log P without the means of its rows and columns, ε = 0.001; of log-linear heads"),
        ("weight_entropy", "Evenness of the word matrix", "", 3, NEITHER,
         "entropy of its singular values over their sum, as a share of ln d (Godey et al. 2024)"),
        ("hidden_anisotropy", "Anisotropy of hidden states", "", 3, NEITHER, "mean cosine of two (Ethayarajh 2019)"),
        ("gradient_passed", "Gradient that passes the head", "", 4, NEITHER,
         "share of the energy of the loss’ gradient by the logits in the word matrix’ columns; of log-linear heads"),
    ),
    *_made_by("wordsim", "wordsim.json",
        (SPEARMAN, "Spearman’s rho", "", 4, LARGER,
         "rank correlation of a benchmark’s scores and the cosines of word vectors, over pairs of known words"),
        ("spearman_low", "Spearman’s rho, low", "", 4, LARGER, "lower end of its 95 % bootstrap interval"),
        ("spearman_high", "Spearman’s rho, high", "", 4, LARGER, "upper end of its 95 % bootstrap interval"),
        (PAIRS, "Pairs", "", 0, NEITHER, "word pairs of a benchmark"),
        (PAIRS_UNKNOWN, "Not in the vocabulary", "", 0, NEITHER, "word pairs with a word the corpus does not have"),
    ),
    *_made_by("fit", "synthetic.json",
        (KL, "KL from the law (nats)", "nats", 4, SMALLER, "mean over contexts, by their weight, of KL(P*‖Q)"),
        (f"{KL}_early", "KL from the law, early (nats)", "nats", 4, SMALLER, _EARLY),
        ("gradient_energy", "Best gradient that passes", "", 4, LARGER,
         "share of the energy of g = Q − P* in the columns of J = ∂ log Q / ∂ context; weighted mean over contexts"),
        ("gradient_energy_early", "Best gradient that passes, early", "", 4, LARGER, _EARLY),
        ("gradient_words", "Words’ gradients that pass", "", 4, LARGER,
         "the same of the gradients Q − e_w of observed words w, mean over words by the law (Godey and Artzi 2026)"),
        ("gradient_words_early", "Words’ gradients that pass, early", "", 4, LARGER, _EARLY),
        ("gradient_cosine", "Cosine of step and gradient", "", 4, LARGER, "between J Jᵀ g, where a step leads, and g"),
        ("gradient_cosine_early", "Cosine of step and gradient, early", "", 4, LARGER, _EARLY),
        (MODE_MATCH, "Modes matched", "", 4, LARGER,
         "share of contexts whose most probable word is the law’s (Ganea et al. 2019, eq. 10)"),
        ("width", "Width", "", 0, NEITHER, "length d of the context vectors"),
        (SQUARED_ERROR, "Squared error", "", 4, SMALLER, "mean squared difference of log Q and log P*"),
        (KL_NO_CONTEXT, "KL without context (nats)", "nats", 4, NEITHER,
         "distance of the best model that sees no context: what there is to learn"),
        (KL_UNIFORM, "KL of the uniform distribution (nats)", "nats", 4, NEITHER,
         "its expected distance from a draw of the Dirichlet (Ganea et al. 2019, eq. 15)"),
        ("entropy_nats", "Entropy of the law (nats)", "nats", 4, NEITHER, "mean over contexts, by their weight"),
        (f"{SQUARED_ERROR_BOUND}*", "Least squared error, d = {}", "", 4, NEITHER,
         "least mean squared error of a softmax of that width (Ganea et al. 2019, theorem 1)"),
    ),
    *_made_by("synthetic", "synthetic.json",
        (RANK, "Rank", "", 0, NEITHER, "Press rank of ln P of an untrained layer (Merity 2017)"),
        ("rank_numpy", "Rank, numpy’s tolerance", "", 0, NEITHER, "singular values of ln P above σ_max max(m, n) ε"),
        ("rank_p", "Rank of P", "", 0, NEITHER, "Press rank of P itself"),
        ("rank_p_numpy", "Rank of P, numpy’s tolerance", "", 0, NEITHER, "those of P above σ_max max(m, n) ε"),
        (RANK_PREDICTED, "Predicted for this size", "", 0, NEITHER, "Press rank under noise by the quarter-circle law"),
        (RANK_PREDICTED_PAPER, "Predicted for 10,000", "", 0, NEITHER, "the same at the size of the paper’s matrix"),
        (RECONSTRUCTION_ERROR, "Squared error, relative", "", 2, SMALLER,
         "sum of squared errors of a matrix put together again over its own sum of squares"),
    ),
    *_made_by("render", "tables/",
        (P_VALUE, "p (Student)", "", 2, NEITHER, "two-sided unpaired t-test with pooled variance, the published test"),
        (P_VALUE_WELCH, "p (Welch)", "", 2, NEITHER, "two-sided unpaired t-test without equal variances"),
        (PEARSON, "Pearson’s r", "", 2, NEITHER, "linear correlation with a 95 % bootstrap interval"),
        (WINS, "Benchmarks won", "", 0, LARGER, "benchmarks on which the row’s mean rho is strictly larger"),
        (GAP_CLOSED, "Gap closed", "", 4, LARGER, "1 − KL / KL(Softmax) of the same law, width and seed"),
    ),
)  # fmt: skip
CATALOGUE: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}
# Of the means of another metric: sign in the name, words of the label, words of the definition.
_DERIVED = (
    (GAIN, "gain", "how much smaller the mean is than that of"),
    (REDUCTION, "reduction (%)", "by how many percent the mean is smaller than that of"),
)


@cache
def find(name: str, stage: str = "") -> Metric:
    """The metric of a name, its parameter read; after dynamic evaluation its file is that of the stage.

    Raises:
        UserError: there is no such metric, with the nearest one there is.
    """
    for sign, label, words in _DERIVED:
        base, is_derived, model = name.partition(sign)
        if is_derived:
            of = find(base, stage)
            words = f"{words} {model or 'the baseline'}; {of.words}: {of.definition}"
            return Metric(name, f"{of.label}, {label}", "", of.digits, LARGER, words, "render", "tables/")
    metric = next((metric for pattern, metric in CATALOGUE.items() if fnmatchcase(name, pattern)), None)
    if metric is None:
        raise UserError(f"unknown metric {name!r}{did_you_mean(name, list(CATALOGUE))}")
    parameter = name.removeprefix(metric.name.rstrip("*"))
    if parameter.startswith("1e"):
        parameter = f"10{parameter.removeprefix('1e').translate(SUPERSCRIPT)}"
    metric = replace(metric, name=name, label=metric.label.format(parameter))
    is_dynamic = stage == "dynamic" and metric.step == "measure"
    return replace(metric, step="dynamic", file="dynamic.json") if is_dynamic else metric
