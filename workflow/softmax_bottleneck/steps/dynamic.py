"""The step `dynamic`: dynamic evaluation of a trained or finetuned run.

The weights are updated after every scored segment of a text (see `training.dynamic_evaluation`).
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softmax_bottleneck.corpora.corpus import Corpus, load_for
from softmax_bottleneck.jobs.numerics import numerics
from softmax_bottleneck.jobs.resumable import DEFAULTS, Job, Options, Outcome, Session, Work, run_to_end
from softmax_bottleneck.store import artefacts, errors, progress
from softmax_bottleneck.study import Dynamic, Evaluation, Study
from softmax_bottleneck.training import run_record, trained
from softmax_bottleneck.training.dynamic_evaluation import Evaluator
from softmax_bottleneck.training.model import LanguageModel


def dynamic(study: Study, path: str, say: progress.Say, restart: bool = False) -> None:
    """Evaluate a trained or finetuned run dynamically, or resume the evaluation, and write dynamic.json.

    If the run has diverged, nothing is evaluated, and dynamic.json says so: it has a status, a reason and no numbers.

    Args:
        study: the study.
        path: path of the dynamic evaluation below results/runs: `<path of the run>/dynamic-<12 hex digits>`.
        say: function that prints a line of progress.
        restart: True to discard earlier states and results.
    """
    evaluation = study.dynamic_evaluation(path)
    start, folder = study.store.run_folder(evaluation.run.path), study.store.run_folder(path)
    _, before = run_record.run_and_record(start)
    parents = {"start/done.json": artefacts.sha256_file(start / run_record.DONE_FILE)}
    if before["status"] != "ok":
        run_record.write_unusable(folder / "dynamic.json", before, parents)
        return
    corpus = load_for(study, evaluation.run)
    with trained.loaded(evaluation.run, start) as model:
        record = evaluate(evaluation, model, corpus, folder, parents=parents, options=Options.of(study, say, restart))
    static, after = (record["metrics"][f"test_ppl{ending}"] for ending in ("_static", ""))
    say(f"{path}: test perplexity {static:.2f} -> {after:.2f} ({record['wall_s']:.0f} s)")


def evaluate(
    evaluation: Evaluation,
    model: LanguageModel,
    corpus: Corpus,
    folder: Path,
    *,
    parents: Mapping[str, str],
    options: Options = DEFAULTS,
) -> dict[str, Any]:
    """Do a dynamic evaluation to its end in `folder`, and return the content of dynamic.json.

    Args:
        evaluation: the run and the settings of the evaluation.
        model: the trained model. The evaluation updates its weights, and restores the trained ones after each text.
        corpus: token ids of the run's corpus.
        folder: folder of the evaluation's files, created if missing; a lease admits one process at a time.
        parents: {name: sha256} of the files that the weights come from, for the provenance.
        options: progress output, time limit and restart of this call, see `Options`.

    Raises:
        UserError: the body carries no state from segment to segment; or for a reason that `run_to_end` lists, such as
            damage to all resume states.
        StoppedError: a signal or the time limit stopped the evaluation; the state is saved.
        DataError, BusyError, MemoryExhaustedError, OSError: see `run_to_end`.
    """
    run = evaluation.run
    if not model.body.carries_state:
        problem = f"it needs a body that carries what came before; {run.body.kind} does not"
        raise errors.UserError(f"dynamic evaluation reads a few words at a time, so {problem}")
    ids = {"run_id": run.run_id, "evaluation_id": evaluation.path.rpartition("-")[2]}
    settings = {key: str(value) for key, value in dataclasses.asdict(evaluation.settings).items()}
    identity = {"run_id": run.run_id, "code": evaluation.code, **settings}
    device = model.head.decoder.weight.device
    job = Job(name=f"{run.model}/{run.seed}", folder=folder, result="dynamic.json", ids=ids, identity=identity,
              device=device, numerics=numerics(run, device))  # fmt: skip
    return run_to_end(job, lambda: DynamicEvaluation(model, corpus, evaluation.settings, parents), options)


class DynamicEvaluation(Evaluator, Work):
    """A dynamic evaluation that can be resumed (see `Work`).

    `step` reads one segment of a text, and returns True at the end of this text.

    Args:
        model: the trained model.
        corpus: token ids of the run's corpus.
        settings: the settings of the evaluation.
        parents: {name: sha256} of the files that the weights come from.
    """

    def __init__(self, model: LanguageModel, corpus: Corpus, settings: Dynamic, parents: Mapping[str, str]) -> None:
        super().__init__(model, corpus, settings)
        self.parents = dict(parents)

    @property
    def where(self) -> str:
        """The current position, such as `text 2 of 9, 31% of all`."""
        return f"text {min(self.done + 1, len(self.texts))} of {len(self.texts)}, {self.share:.0%} of all"

    def progress(self, wall_s: float) -> tuple[float, str]:
        """Return the finished share of all texts (0 to 1), and a line with the position; `wall_s` is not used."""
        return self.share, f"dynamic evaluation, {self.where}"

    def outcome(self, session: Session) -> Outcome:
        """Return (content of dynamic.json, `parents`, {}); the empty dict means no further entries in the provenance.

        The content has the keys `status` ("ok"), `settings`, `wall_s` (wall time of all sessions in seconds), and the
        keys of `Evaluator.results`, with the perplexities and losses.
        """
        settings, wall_s = dataclasses.asdict(self.settings), round(session.wall_s(), 3)
        return {"status": "ok", "settings": settings, "wall_s": wall_s} | self.results(), self.parents, {}
