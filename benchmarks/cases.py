"""The measured cases: the six heads of the main paper at its sizes on both corpora.

Each is built in our form and in the plain form of `plain.py`, with the same weights.
"""

import dataclasses
import gc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from plain import HEADS, Dropouts, PlainHead, PlainModel, PlainStep
from softmax_bottleneck import heads
from softmax_bottleneck.corpora.corpus import Corpus
from softmax_bottleneck.heads.base import Head as OurHead
from softmax_bottleneck.study import Body, Head, Run, Schedule, read
from softmax_bottleneck.training.trainer import Trainer
from torch import Tensor

UPDATES = 40  # chunks of text in a case's corpus
WT2_GSS = {"c": -1.5, "k": 3.0}


@dataclass(frozen=True)
class Case:
    """A head on a corpus, with the published sizes, learning rate and dropouts (see `plain.Dropouts`)."""

    corpus: str
    head: str
    words: int
    batch: int
    bptt: int
    embedding: int
    hidden: int
    context: int
    layers: int
    learning_rate: float
    dropouts: Dropouts
    options: tuple[tuple[str, Any], ...] = ()
    components: int = 1

    @property
    def is_mixture(self) -> bool:
        return self.head in ("moc", "mos")

    @property
    def name(self) -> str:
        return f"{self.corpus}/{self.head}"

    @property
    def tokens(self) -> int:
        return self.batch * self.bptt

    @property
    def widths(self) -> list[int]:
        """Widths of the word vectors and of each layer's output."""
        return [self.embedding, *[self.hidden] * (self.layers - 1), self.context]

    def products(self) -> list[tuple[int, int, int]]:
        """Return the head's forward matrix products as (rows, width, columns); the gradients need two more for each."""
        rows = self.tokens * (self.components if self.head == "mos" else 1)
        found = [(rows, self.embedding, self.words)]
        if self.is_mixture:
            found.append((self.tokens, self.context, self.components * self.embedding))
        return found

    def head_flops(self) -> float:
        return 3.0 * sum(2.0 * rows * width * columns for rows, width, columns in self.products())

    def step_flops(self) -> float:
        """Return the FLOPs of the head and the LSTMs, forward and backward, without element-wise work."""
        pairs = pairwise(self.widths)
        return self.head_flops() + 3.0 * sum(8.0 * self.tokens * above * (below + above) for below, above in pairs)


def cases() -> dict[str, Case]:
    """Return all cases by name, `ptb/softmax` to `wikitext-2/mos`."""
    ptb, wt2 = Dropouts(0.1, 0.4, 0.3, 0.4, 0.5), Dropouts(0.1, 0.65, 0.2, 0.4, 0.5)
    ptb_mixture, wt2_mixture = Dropouts(0.1, 0.4, 0.225, 0.4, 0.5), Dropouts(0.1, 0.55, 0.2, 0.4, 0.5)
    found = []
    for head in HEADS:
        if head in ("moc", "mos"):
            found.append(Case("ptb", head, 10_000, 12, 70, 280, 960, 620, 3, 20.0, ptb_mixture, components=15))
            found.append(Case("wikitext-2", head, 33_278, 15, 70, 300, 1150, 650, 3, 15.0, wt2_mixture, components=15))
        else:
            gss = tuple(WT2_GSS.items()) if head == "gss" else ()
            found.append(Case("ptb", head, 10_000, 20, 70, 400, 1150, 400, 3, 20.0, ptb))
            found.append(Case("wikitext-2", head, 33_278, 80, 70, 400, 1150, 400, 3, 30.0, wt2, options=gss))
    return {case.name: case for case in sorted(found, key=lambda one: one.corpus)}


def shrunk(case: Case) -> Case:
    """Return a small version of a case, which shows that it runs but says nothing about speed."""
    smaller = {"words": case.words // 20, "batch": 4, "bptt": 10, "hidden": 48}
    widths = {"embedding": 24, "context": 40 if case.is_mixture else 24, "components": min(case.components, 3)}
    return dataclasses.replace(case, **smaller, **widths)


# --- heads ----------------------------------------------------------------------------------------------------------
def our_head(case: Case, weights_of: PlainHead | None = None) -> OurHead:
    """Return our head without latent dropout, with the weights of a plain head or, by default, new ones."""
    options = dict(case.options)
    if case.is_mixture:
        options |= {"components": case.components, "dropout_latent": 0.0}
    sizes = {"vocabulary_size": case.words, "context_size": case.context, "embedding_size": case.embedding}
    head = heads.build(case.head, **sizes, **options)
    if weights_of is not None:
        copied = {name.replace("raw_slope", "pointwise.raw_slope"): w for name, w in weights_of.state_dict().items()}
        head.load_state_dict(copied)
    return head


def plain_head(case: Case) -> PlainHead:
    options = dict(case.options) | ({"components": case.components} if case.is_mixture else {})
    return HEADS[case.head](case.words, case.context, case.embedding, **options)


def head_contenders(case: Case, device: str = "cpu") -> dict[str, Callable[[], object]]:
    """Return {"A", "B", "ours": function} that compute the loss of one batch and its gradients.

    The gradients are with respect to the context vectors and all parameters.
    """
    plain = plain_head(case).to(device)
    ours = our_head(case, plain).to(device)
    h_TBD = (torch.randn(case.bptt, case.batch, case.context) * 0.3).to(device).requires_grad_()
    target_N = torch.randint(case.words, (case.tokens,), device=device)

    def run(module: torch.nn.Module, loss: Callable[[], Tensor], habits: bool) -> Tensor:
        for tensor in (h_TBD, *module.parameters()):
            tensor.grad = None
        value = loss()
        value.backward()
        if habits:
            gc.collect()
        return value.detach()

    return {
        "A": lambda: run(plain, lambda: plain.loss(h_TBD, target_N, statistics=True), True),
        "B": lambda: run(plain, lambda: plain.loss(h_TBD, target_N, statistics=False), False),
        "ours": lambda: run(ours, lambda: ours.mean_nll(h_TBD, target_N), False),
    }


# --- whole steps ----------------------------------------------------------------------------------------------------
def plain_step(case: Case, habits: bool, device: str = "cpu") -> Callable[[], object]:
    """Return a function that does a training step on random text: A with `habits`, B without."""
    model = PlainModel(plain_head(case), case.widths, case.dropouts).to(device)
    step = PlainStep(model, case.learning_rate, habits)
    tokens_LB = torch.randint(case.words, (case.bptt + 1, case.batch), device=device)
    held = {"state": step.model.state(case.batch)}

    def once() -> None:
        held["state"] = step(tokens_LB, held["state"])

    return once


def trainer(case: Case, device: str = "cpu", precision: str = "fp32", *, graphs: bool = True) -> Trainer:
    """Return our trainer on random text, with chunks of equal length so that every update is the same work."""
    rng = np.random.default_rng(1)
    text = rng.integers(case.words, size=(UPDATES * case.bptt + 2) * case.batch).astype(np.int32)
    corpus = Corpus("bench", tuple(map(str, range(case.words))), text, text[: 20 * case.batch], text[:100])
    run = our_run(case)
    schedule = dataclasses.replace(run.schedule, precision=precision)
    return Trainer(dataclasses.replace(run, schedule=schedule, graphs=graphs), corpus, torch.device(device))


def our_run(case: Case) -> Run:
    drops = case.dropouts
    sizes = {"embedding_size": case.embedding, "hidden_size": case.hidden, "context_size": case.context}
    dropped = {"input": drops.inputs, "hidden": drops.hidden, "output": drops.output, "weight": drops.weights}
    dropouts = {f"dropout_{place}": probability for place, probability in dropped.items()}
    body = read(Body, {**sizes, **dropouts, "layers": case.layers, "dropout_embedding": drops.words}, "body")
    published = {"optimizer": "sgd", "clip": 0.25, "weight_decay": 1.2e-6, "epochs": 1000}
    published |= {"activation_penalty": 2.0, "temporal_penalty": 1.0}
    published |= {"learning_rate": case.learning_rate, "batch_size": case.batch, "bptt": case.bptt}
    schedule = read(Schedule, {**published, "variable_length": False, "max_length_delta": 0}, "schedule")
    declared = dict(case.options)
    if case.is_mixture:
        declared |= {"components": case.components, "dropout_latent": 0.0}  # the plain one has none
    return Run("bench", case.head, Head(case.head, heads.options(case.head, declared)), body, schedule, 1, "none")


def our_step(case: Case, device: str = "cpu", precision: str = "fp32", *, graphs: bool = True) -> Callable[[], object]:
    """Return a function that does one update of our trainer on random text."""
    return endless(trainer(case, device, precision, graphs=graphs))


def endless(ours: Trainer) -> Callable[[], object]:
    """Return a function that does one update of a trainer, and starts the text again at its end."""

    def once() -> None:
        if ours.place.chunk >= len(ours.chunks) - 1:  # the last chunk is shorter
            ours.place = dataclasses.replace(ours.place, chunk=0)
        ours.update()

    return once
