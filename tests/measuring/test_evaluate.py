"""Measurements of a model against naive float64 NumPy, and the steps against the weights they measure."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import small
import torch
from naive_heads import lms_plif
from softmax_bottleneck import heads
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora import corpus
from softmax_bottleneck.measuring import evaluate as evaluate_module
from softmax_bottleneck.measuring import perplexity, spectrum
from softmax_bottleneck.ranks import press_rank
from softmax_bottleneck.steps.measure import measure
from softmax_bottleneck.steps.train import train
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study import Run, plan
from softmax_bottleneck.training import feasibility, model, trained
from tiny_runs import CORPUS, make_run, transformer_run

HEADS = {
    "softmax": {}, "gss": {}, "lms-plif": {"knots": 50, "bound": 2.0}, "relu": {}, "moc": {"components": 2},
    "mos": {"components": 3},
}  # fmt: skip
EPSILON32 = 2.0**-23


@pytest.fixture(params=HEADS)
def built(request) -> tuple[Run, model.LanguageModel]:
    """An untrained model whose logits are large enough to tell words apart."""
    run = make_run(request.param, options=HEADS[request.param])
    language_model = model.build(run, CORPUS.vocabulary_size)
    with torch.no_grad():
        language_model.head.decoder.weight.mul_(20)
        language_model.head.decoder.bias.uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    return run, language_model


def token_by_token(language_model: model.LanguageModel, ids: np.ndarray) -> np.ndarray:
    """Log-probabilities [T - 1, V] after every token but the last, float64, one call per token."""
    language_model.eval()
    state, rows = language_model.initial_state(1), []
    with torch.no_grad():
        for token in ids[:-1].tolist():
            output = language_model(torch.tensor([[token]]), state)
            state = output.state
            rows.append(language_model.head.log_probs(output.dropped_TBD)[0].double().numpy())
    return np.array(rows)


def test_one_pass_gives_losses_ranks_top_words_and_distances(built, monkeypatch):
    """Chunks of a few rows equal one call per token and a sort of whole rows."""
    run, language_model = built
    atol = 1e-3 if run.head.name == "relu" else 2e-5  # the logarithm of a logit near zero magnifies its rounding
    monkeypatch.setattr(perplexity, "SEGMENT", 7)
    monkeypatch.setattr(perplexity, "_rows_at_once", lambda *_: 5)
    expected = token_by_token(language_model, CORPUS.test)
    targets = CORPUS.test[1:]
    contexts = perplexity.hidden_states(language_model, CORPUS.test, 12)
    seen: list[int] = []

    def first_columns(log_q: np.ndarray, start: int) -> np.ndarray:
        seen.append(start)
        return log_q[:, 0].astype(np.float64)

    found = perplexity.predict(language_model, contexts, [0, 4, 5, len(targets) - 1], first_columns)
    rows = np.arange(len(targets))
    np.testing.assert_allclose(found.log_p_T, expected[rows, targets], atol=atol)
    assert seen == list(range(0, len(targets), 5))
    np.testing.assert_allclose(found.kl_T, expected[:, 0], atol=atol)
    assert np.array_equal(contexts.targets.numpy(), targets)
    exact = np.concatenate(list(perplexity.chunks_of(language_model.eval().head, contexts.hidden)))
    for row in rows:  # the order of words by a stable sort of the same float32 numbers
        order = np.argsort(-exact[row], kind="stable")
        assert found.true_rank_T[row] == 1 + order.tolist().index(targets[row])
        if row in found.top:
            assert found.top[row].ids.tolist() == order[:5].tolist()
            np.testing.assert_array_equal(found.top[row].log_p, exact[row][order[:5]].astype(np.float64))
            assert found.top[row].true_rank == found.true_rank_T[row]
    assert sorted(found.top) == [0, 4, 5, len(targets) - 1]


def test_equally_probable_words_stand_in_the_order_of_their_ids():
    language_model = model.build(make_run(), CORPUS.vocabulary_size)
    with torch.no_grad():
        language_model.head.decoder.weight.zero_()
        language_model.head.decoder.bias.zero_()
    contexts = perplexity.hidden_states(language_model, CORPUS.test, 12)
    found = perplexity.predict(language_model, contexts, [3])
    assert np.array_equal(found.true_rank_T, CORPUS.test[1:] + 1)
    assert found.top[3].ids.tolist() == [0, 1, 2, 3, 4]
    assert found.kl_T is None


@pytest.mark.fault("D4")
def test_probabilities_that_do_not_sum_to_one_are_an_error(monkeypatch):
    language_model = model.build(make_run(), CORPUS.vocabulary_size)
    log_probs = language_model.head.log_probs
    monkeypatch.setattr(language_model.head, "log_probs", lambda h: log_probs(h) + 0.001)
    with pytest.raises(DataError, match="do not sum to one"):
        perplexity.predict(language_model, perplexity.hidden_states(language_model, CORPUS.test, 12))


@pytest.mark.parametrize(("built", "streams"), [("softmax", 1), ("mos", 3)], indirect=["built"])
def test_perplexities_of_all_splits(built, streams):
    run, language_model = built
    log_p = perplexity.predict(language_model, perplexity.hidden_states(language_model, CORPUS.test, 12)).log_p_T
    schedule = dataclasses.replace(run.schedule, eval_batch_size=streams)
    found = perplexity.perplexity_metrics(language_model, CORPUS, log_p, schedule)
    for split, ids in CORPUS.splits.items():
        columns = [ids] if split == "test" else np.array_split(ids[: len(ids) // streams * streams], streams)
        nats = [-token_by_token(language_model, column)[np.arange(len(column) - 1), column[1:]] for column in columns]
        total, count = math.fsum(np.concatenate(nats)), sum(map(len, nats))
        assert found[f"{split}_ppl_sound"] == pytest.approx(math.exp(total / count), rel=1e-5)
        if split != "train":  # as published, divided by the length of the text
            assert found[f"{split}_ppl"] == pytest.approx(math.exp(total / (count + len(columns))), rel=1e-5)


def test_a_body_without_memory_is_measured_in_blocks_as_it_was_trained():
    """Feed an untrained Transformer blocks of 12 tokens, one at a time, in any number of streams."""
    run = transformer_run()
    language_model = model.build(run, CORPUS.vocabulary_size).eval()
    schedule = dataclasses.replace(run.schedule, eval_batch_size=2, test_batch_size=3)

    def nats(ids: np.ndarray) -> list[float]:
        found = []
        for start in range(0, len(ids) - 1, 12):
            block = torch.from_numpy(ids[start : start + 13].astype(np.int64))
            hidden = language_model(block[:-1, None], ()).dropped_TBD
            log_p_NV = language_model.head.log_probs(hidden).double()
            found += (-log_p_NV.gather(1, block[1:, None])[:, 0]).tolist()
        return found

    contexts = perplexity.hidden_states(language_model, CORPUS.test, schedule.bptt)
    log_p = perplexity.predict(language_model, contexts).log_p_T
    np.testing.assert_allclose(-log_p, nats(CORPUS.test), rtol=1e-5)
    found = perplexity.perplexity_metrics(language_model, CORPUS, log_p, schedule)
    for split, streams in (("valid", 2), ("test", 3)):
        ids = getattr(CORPUS, split)
        columns = np.array_split(ids[: len(ids) // streams * streams], streams)
        expected = math.exp(np.mean(np.concatenate([nats(column) for column in columns])))
        assert found[f"{split}_ppl"] == found[f"{split}_ppl_sound"] == pytest.approx(expected, rel=1e-6)


def test_slopes_and_curves_of_a_piecewise_linear_head():
    options = HEADS["lms-plif"]
    heads = [model.build(make_run("lms-plif", seed, options), CORPUS.vocabulary_size) for seed in (1, 2)]
    one, other = (evaluate_module.piecewise_linear(head) for head in heads)
    raw = one.raw_slope.detach().double().numpy()
    slopes = np.log1p(np.exp(raw))
    found = evaluate_module.slope_metrics(one, "_init")
    expected = {"mean": slopes.mean(), "std": slopes.std(), "min": slopes.min(), "max": slopes.max()}
    assert found == pytest.approx({f"slope_{key}_init": value for key, value in expected.items()}, rel=1e-6)
    curves = evaluate_module.function_curves(one, other)
    assert len(curves["logit"]) == evaluate_module.GRID <= 400
    assert (curves["logit"][0], curves["logit"][-1]) == (-2.0, 2.0)
    value = np.log(lms_plif(np.array(curves["logit"]), options, {"pointwise.raw_slope": raw}))
    np.testing.assert_allclose(curves["trained"], value, atol=1e-4)
    assert curves["initial"] != curves["trained"]


@pytest.fixture
def study(ready: Path, place: Path) -> config.Study:
    """The small study with a PLIF head whose ranks are tracked along training, with nothing trained."""
    models = {"plif": {"head": {"name": "lms-plif", "knots": 60}}, "mos": small.STUDY["models"]["mos"]}
    shown = {"parthiban2021-table2": {"models": "all"}, "parthiban2021-rank-training": {"models": ["plif"]}}
    values = small.values(models=models, experiments=shown)
    return small.begun(ready, place, values, small.DATASET | {"rank_contexts": 100})


def read(run: Run, name: str) -> dict:
    return artefacts.read_json(Store().run_folder(run.path) / name)


def ranks_of(matrix: np.ndarray) -> int:
    sigma = np.linalg.svd(matrix, compute_uv=False)
    return int((sigma > 0.5 * math.sqrt(sum(matrix.shape) + 1) * sigma[0] * EPSILON32).sum())


def test_the_steps_of_a_run(study: config.Study):
    """Train and measure a run, and compare every file with what its stored weights give."""
    tracked = plan.tracked(study)
    assert [(run.model, run.seed) for run in tracked] == [("plif", 1)]
    run = tracked[0]
    disk = {path: (count, cost.disk_gb) for path, (count, cost) in feasibility.costs(study).items()}
    (count, kept), (_, plain) = disk[run.path], disk[study.needed[1].path]
    assert kept - plain == pytest.approx(8 * 4e-9 * count)  # eight copies in float32
    tokens = corpus.load(Store().tokens_folder("tiny"))
    for step in (train, measure):
        step(study, run.path, small.quiet)
    language_model = trained.load_model(Store().run_folder(run.path))
    matrix = token_by_token(language_model, tokens.test)

    measured = read(run, "measure.json")
    log_p = matrix[np.arange(len(matrix)), tokens.test[1:]]
    assert measured["metrics"]["test_ppl_sound"] == pytest.approx(math.exp(-log_p.mean()), rel=1e-5)
    assert measured["metrics"]["slope_mean"] != measured["metrics"]["slope_mean_init"]
    assert set(measured["function"]) == {"logit", "trained", "initial"}

    predicted = read(run, "topk.json")
    order = np.argsort(-matrix, axis=1)
    for k, rate in predicted["hits"].items():
        hits = (order[:, : int(k)] == tokens.test[1:, None]).any(1)
        assert rate["rate"] == pytest.approx(hits.mean(), abs=2 / len(hits))  # float32 may swap near ties
        assert rate["n"] == len(matrix)
    assert len(predicted["contexts"]) == 18
    one = predicted["contexts"][7]
    assert one["target"] == tokens.words[tokens.test[one["index"]]]
    assert one["top"][0]["log_prob"] == pytest.approx(matrix[one["index"] - 1].max(), abs=1e-5)

    rank = read(run, "rank.json")
    assert rank["metrics"]["rank_press"] == ranks_of(matrix[:100]) and rank["m"] == 100
    assert rank["metrics"]["rank_press_all"] == ranks_of(matrix) and rank["all"]["m"] == len(matrix)
    arrays = artefacts.read_npz(Store().run_folder(run.path) / "spectrum.npz")
    assert press_rank(arrays["singular_values_all"], *matrix.shape).rank == ranks_of(matrix)

    along = read(run, "epochs_rank.json")
    assert [row["epoch"] for row in along["rows"]] == [0, 1, 2, 3]
    assert [row["phase"] for row in along["rows"]] == ["untrained", "sgd", "sgd", "asgd"]
    best = [row for row in along["rows"] if row["best"]]
    assert [row["epoch"] for row in best] == [read(run, "done.json")["best_epoch"]]
    assert best[0]["rank_press"] == rank["metrics"]["rank_press"]  # of the same 100 contexts
    untrained = token_by_token(model.build(run, len(tokens.words)), tokens.test)[:100]
    assert along["rows"][0]["rank_press"] == ranks_of(untrained)


@pytest.mark.parametrize(("name", "options"), [("softmax", {}), ("moc", {"components": 3})])
def test_log_z_on_a_device_is_the_naive_sum_over_words(monkeypatch, name, options):
    monkeypatch.setattr(spectrum, "NORMALISED_AT_ONCE", 7)
    width = 6 if name == "softmax" else 5
    head = heads.build(name, vocabulary_size=31, context_size=6, embedding_size=width, **options).eval()
    hidden_TD = 3 * torch.randn(20, 6)
    with torch.no_grad():
        found_T = spectrum.device_log_normalisers(head, hidden_TD)
        weight_VD, bias_V = (tensor.double().numpy() for tensor in (head.decoder.weight, head.decoder.bias))
        contexts_ND = head.contexts(hidden_TD).double().numpy()
    logits_NV = contexts_ND @ weight_VD.T + bias_V
    assert np.allclose(found_T, np.log(np.exp(logits_NV).sum(1)), rtol=1e-13, atol=1e-13)
