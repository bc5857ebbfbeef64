"""Natural next-word distributions, to which heads are fitted: their sources, as a study's YAML declares them.

The step `truth` (`steps.truth`) computes the distributions of one source and seed, and writes them to a file.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from softmax_bottleneck.store import artefacts, schema
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.fingerprint import step_code
from softmax_bottleneck.store.paths import ROOT
from softmax_bottleneck.study.datasets import Dataset
from softmax_bottleneck.study.runs import Run, digest

FILE, ARRAYS = "truth.json", "truth.npz"  # of a truth: facts with the hash of the arrays, and the arrays
NEEDS = {
    "model": {"corpus", "model"}, "n-gram": {"corpus"}, "mixture": {"corpus", "model"}, "run": {"run"},
    "sampled": {"components", "width"},
}  # fmt: skip


@schema.section
class Source:
    """A source of natural next-word distributions.

    Attributes:
        kind: `model`, a saved language model; `n-gram`, an interpolated Kneser-Ney model of a corpus' training text;
            `mixture`, both in equal parts, over the tokens of the saved model; `run`, a trained run of the study; or
            `sampled`, a mixture of softmaxes with random weights, which MoS of its width can equal: a control.
        corpus: dataset whose test text has the contexts. For `run`, it is the dataset of the run. `sampled` has none.
        model: Hugging Face folder or .gguf file, relative to the folder of this repository. If it is missing, the
            study leaves out the fits to this source.
        order: largest number n of words in an n-gram.
        run: name of a model of the study; its first run is the source.
        components, width: number of softmaxes that a sampled mixture has, and width of its context vectors.
    """

    kind: Literal["model", "n-gram", "mixture", "run", "sampled"]
    corpus: schema.Name | None = None
    model: schema.Line | None = None
    order: Annotated[schema.Integer, Field(ge=1, le=9)] = 4
    run: schema.Name | None = None
    components: schema.Positive | None = None
    width: schema.Width | None = None

    def __post_init__(self) -> None:
        given = {key for key in set().union(*NEEDS.values()) if getattr(self, key) is not None}
        if given != NEEDS[self.kind]:
            expected, got = (" and ".join(sorted(keys)) or "none" for keys in (NEEDS[self.kind], given))
            raise ValueError(f"kind: {self.kind} (got the keys {got}). Expected {expected}")

    @property
    def model_path(self) -> Path:
        """The path of the saved model."""
        assert self.model is not None
        return ROOT / self.model

    @property
    def is_available(self) -> bool:
        """True unless the source needs a saved model that is missing."""
        return self.model is None or self.model_path.exists()


@dataclass(frozen=True)
class Truth:
    """The distributions of one source in one sample of contexts, which one job of the step `truth` computes.

    Attributes:
        name: name of the source in its plan.
        source: the source.
        corpus: dataset whose test text has the contexts, or empty.
        contexts: number N of contexts.
        words: number V of the most probable tokens that are kept.
        seed: seed of the sample of contexts.
        inputs: {name: hash} of what the distributions are computed from: the corpus, and the saved model or the run.
        run: path of the run that is the source, or empty.
    """

    name: str
    source: Source
    corpus: str
    contexts: int
    words: int
    seed: int
    inputs: Mapping[str, str] = field(hash=False)
    run: str = ""

    @cached_property
    def truth_id(self) -> str:
        """The first 12 hex digits of a hash of all settings, the inputs and the code."""
        source = {key: value for key, value in asdict(self.source).items() if key != "model"}
        facts = [source, self.corpus, self.contexts, self.words, self.seed, dict(self.inputs), step_code("truth")]
        return digest(facts)[:12]

    @property
    def path(self) -> str:
        """The path of the folder with the distributions, below results/fits/truths: `<name>/<seed>-<truth_id>`."""
        return f"{self.name}/{self.seed}-{self.truth_id}"


def truth_of(name: str, source: Source, corpora: Mapping[str, Dataset], runs: Mapping[str, Run], where: str) -> Truth:
    """Return a `Truth` of a source, in which the numbers of contexts and words and the seed are still to be set.

    Args:
        name: name of the source in its plan.
        source: the source, which is available.
        corpora: the datasets of the study.
        runs: {name of a model: its first run}.
        where: place of the source in the study's file, for error messages.

    Raises:
        UserError: the study has no such dataset or model.
    """
    if source.run is not None and source.run not in runs:
        raise UserError(f"{where}.run: unknown model {source.run!r}{schema.did_you_mean(source.run, runs)}")
    run = runs[source.run] if source.run else None
    corpus = run.dataset if run else source.corpus or ""
    if corpus and corpus not in corpora:
        raise UserError(f"{where}.corpus: unknown dataset {corpus!r}{schema.did_you_mean(corpus, corpora)}")
    inputs = {"corpus": corpora[corpus].tokens_id} if corpus else {}
    inputs |= {"model": model_hash(source.model_path)} if source.model else {}
    inputs |= {"run": run.run_id} if run else {}
    return Truth(name, source, corpus, 0, 0, 0, inputs, run.path if run else "")


@cache
def model_hash(path: Path) -> str:
    """Return a hash of a saved model: of its file, or of the .json and .safetensors files of its folder."""
    files = [path] if path.is_file() else sorted([*path.glob("*.json"), *path.glob("*.safetensors")])
    return digest({file.name: artefacts.sha256_file(file) for file in files})
