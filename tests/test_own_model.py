"""The rank of a stranger's model against plain float64 formulas and LAPACK; files of every form; clear refusals."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import tomllib
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from softmax_bottleneck import study as config
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.own_model import matrix as own_matrix
from softmax_bottleneck.own_model import page as own_report
from softmax_bottleneck.own_model import question as own_question
from softmax_bottleneck.own_model import rank as own_model
from softmax_bottleneck.own_model import shards
from softmax_bottleneck.ranks import spectra as spectrum
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.store.paths import Store

ROOT = Path(__file__).parents[1]
D = 6


def silent(line: str) -> None:
    pass


def layer(m: int, n: int, seed: int = 0):
    r = np.random.default_rng(seed)
    return [r.normal(size=shape).astype(np.float32) for shape in ((m, D), (n, D), (n,))]


def log_softmax(scores):
    scores = scores - scores.max(1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(1, keepdims=True))


def softmax_matrix(h, w, b):
    """By the plain formula in float64."""
    return log_softmax(h.astype(float) @ w.astype(float).T + b)


def gss_matrix(h, w, b, c=-1.5, k=2.5):
    """Parthiban 2021, eq. 5, literally."""
    x = h.astype(float) @ w.astype(float).T + b
    return log_softmax(k * (x - c) + c - (k - 1) * np.log(np.exp(x - c) + 1))


def press(matrix):
    """Numerical Recipes' rank with float32's epsilon, from numpy's SVD of the whole matrix."""
    sigma = np.linalg.svd(matrix, compute_uv=False)
    return int((sigma > 0.5 * np.sqrt(sum(matrix.shape) + 1) * sigma[0] * np.finfo(np.float32).eps).sum())


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A layer of 90 contexts and 70 words in files, in the working directory."""
    monkeypatch.chdir(tmp_path)
    h, w, b = layer(90, 70)
    np.save("h.npy", h), np.save("w.npy", w), np.save("b.npy", b)
    return h, w, b


def ask(**given):
    return own_question.question(given, "test")


def analyse(**given):
    return own_model.rank(ask(**given), silent)


LAYER = {"hidden": ["h.npy"], "weight": ["w.npy"], "bias": "b.npy"}


# --- files ----------------------------------------------------------------------------------------------------------
def test_every_format_gives_the_same_numbers(files):
    h, _, _ = files
    np.savez("plain.npz", other=h[:2], h=h)
    np.savez_compressed("small.npz", h=h.astype(">f8"))
    np.save("fortran.npy", np.asfortranarray(h))
    np.savez("fortran.npz", h=np.asfortranarray(h))
    np.save("deep.npy", h.reshape(9, 10, D))
    save_file({"a": torch.ones(3), "h": torch.from_numpy(h)}, "h.safetensors")
    named = ["h.npy", "plain.npz::h", "small.npz", "fortran.npy", "fortran.npz", "deep.npy", "h.safetensors::h"]
    for name in named:
        (shard,) = shards.find([name], "hidden")
        assert (shard.rows, shard.columns) == (90, D)
        np.testing.assert_array_equal(np.concatenate(list(shard.blocks(block_bytes=500))), h, err_msg=name)
    some = np.array([0, 7, 89])
    np.testing.assert_array_equal(shards.load(shards.find(["plain.npz::h"], "hidden"), some), h[some])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_is_read_as_torch_reads_it(tmp_path, dtype):
    values = torch.randn(50, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values[0] = torch.tensor([0.0, -0.0, 1e-7, -6e4, 3.14, 1e-40, 65504.0])  # subnormal numbers and the largest float16
    values = values.to(dtype)
    save_file({"x": values}, tmp_path / "x.safetensors")
    (found,) = shards.find([str(tmp_path / "x.safetensors")], "x")
    wide = shards.load([found])
    assert wide.dtype == (np.float64 if dtype == torch.float64 else np.float32)
    assert np.array_equal(wide, values.to(torch.float64).numpy())


def test_shards_are_in_natural_order(tmp_path):
    for part in (1, 2, 10, 11):
        np.save(tmp_path / f"part-{part}.npy", np.full((part, 2), part, np.float32))
    found = shards.load(shards.find([str(tmp_path / "part-*.npy")], "hidden"))
    assert found[:, 0].tolist() == [1.0] * 1 + [2.0] * 2 + [10.0] * 10 + [11.0] * 11


def broken_files(h):
    np.save("transposed.npy", np.zeros((D, 70), np.float32))
    np.save("whole.npy", np.arange(12).reshape(2, 6))
    np.save("short-bias.npy", np.zeros(69, np.float32))
    np.save("empty.npy", np.zeros((0, 6), np.float32))
    np.save("wide.npy", np.zeros((4, 7), np.float32))
    np.save("objects.npy", np.array([[{}]], dtype=object))
    np.savez("objects.npz", x=np.array([[{}]], dtype=object))
    np.savez("two.npz", here=h, there=h)
    Path("pickled.npy").write_bytes(pickle.dumps(h))
    Path("cut.npy").write_bytes(Path("h.npy").read_bytes()[:-8])
    Path("text.txt").write_text("1 2 3", encoding="utf-8")
    Path("junk.npz").write_bytes(b"PK junk")
    save_file({"x": torch.zeros(2, D, dtype=torch.int8)}, "int8.safetensors")
    save_file({"x": torch.zeros(2, D)}, "cut.safetensors")
    Path("cut.safetensors").write_bytes(Path("cut.safetensors").read_bytes()[:-4])
    Path("long.safetensors").write_bytes(b"\xff" * 16)
    damaged = h.copy()
    damaged[41, 2] = np.inf
    np.savez("inf.npz", rows=damaged)


REFUSALS = [
    ({"hidden": ["nowhere-*.npy"]}, r"hidden: nowhere-\*\.npy: no such file"),
    ({"hidden": ["text.txt"]}, r"text\.txt: expected a file that ends in \.npy, \.npz, \.safetensors"),
    ({"hidden": ["two.npz"]}, r"holds 2 arrays: say which by two\.npz::NAME; arrays: here, there"),
    ({"hidden": ["two.npz::her"]}, r"has no array 'her'; arrays: here, there"),
    ({"hidden": ["h.npy::x"]}, r"an \.npy file holds one array"),
    ({"hidden": ["h.npy", "wide.npy"]}, r"h\.npy has shape \(90, 6\) and wide\.npy \(4, 7\)"),
    ({"hidden": ["empty.npy"]}, r"empty\.npy has shape \(0, 6\)"),
    ({"hidden": ["whole.npy"]}, r"numbers are int64, expected one of bfloat16, float16"),
    ({"hidden": ["objects.npy"]}, r"numbers are object, expected"),
    ({"hidden": ["objects.npz"]}, r"numbers are object, expected"),
    ({"hidden": ["pickled.npy"]}, r"not a sound \.npy file"),
    ({"hidden": ["cut.npy"]}, r"cut\.npy: not a sound \.npy file"),
    ({"hidden": ["junk.npz"]}, r"not a sound \.npz file"),
    ({"hidden": ["int8.safetensors"]}, r"numbers are I8, expected one of F16, BF16, F32, F64"),
    ({"hidden": ["cut.safetensors"]}, r"x is not where the header says"),
    ({"hidden": ["long.safetensors"]}, r"longer than the file"),
    ({"hidden": ["inf.npz"]}, r"inf\.npz::rows: row 41, column 2 is inf"),
    ({"weight": ["transposed.npy"]}, r"\(90, 6\) and the weight transposed\.npy \(6, 70\).*is it transposed\?"),
    ({"bias": "short-bias.npy"}, r"bias short-bias\.npy has shape \(69,\) beside 70 words"),
    ({"head": "gss:c"}, r"expected NAME:OPTION=VALUE"),
    ({"head": "gss:k=-1"}, r"more than 0, got -1"),
    ({"head": "softmaxx"}, r'did you mean "softmax"'),
    ({"head": "mos"}, r"head mos: has weights of its own; write its log-probabilities"),
    ({"head": "lms-plif:frozen=true"}, r"has weights of its own"),
    ({"max_memory": "4 parsecs"}, r"max_memory"),
    ({"max_memory": "1MB"}, r"1 MB|too little even for a small part: at least \d+ MiB"),
    ({"log_probs": ["h.npy"]}, r"give hidden and weight \(with bias and head\), or log_probs alone, or model and text"),
    ({"weights": ["w.npy"]}, r"unknown key 'weights'; did you mean 'weight'\?"),
]


@pytest.mark.parametrize(("change", "message"), REFUSALS, ids=[str(change)[1:40] for change, _ in REFUSALS])
def test_bad_input_is_one_clear_line(files, change, message):
    broken_files(files[0])
    with pytest.raises(UserError, match=message) as caught:
        analyse(**(LAYER | change))
    assert "\n" not in str(caught.value)


def test_pickled_objects_never_run(tmp_path):
    class Canary:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "canary",))

    np.save(tmp_path / "x.npy", np.array([[Canary()]], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([[Canary()]], dtype=object))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(DataError):
            shards.load(shards.find([str(tmp_path / name)], "hidden"))
    assert not (tmp_path / "canary").exists()


# --- ranks ----------------------------------------------------------------------------------------------------------
@pytest.fixture(params=["chosen", "gram"])
def route(request, monkeypatch):
    """Small matrices as they are treated by choice (SVD), and forced through a Gram matrix."""
    if request.param == "gram":
        monkeypatch.setattr(spectrum, "DIRECT_ENTRIES", 0)


@pytest.mark.parametrize(("m", "n"), [(90, 70), (70, 90), (40, 200), (200, 40)])
def test_softmax_and_gss_layers_have_the_singular_values_of_the_plain_matrix(tmp_path, monkeypatch, route, m, n):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_matrix, "BLOCK_BYTES", 8 * 37 * max(m, n))  # several blocks
    h, w, b = layer(m, n)
    np.save("h.npy", h), np.save("w.npy", w), np.save("b.npy", b)
    for head, matrix in (("softmax", softmax_matrix(h, w, b)), ("gss:c=-1.5,k=2.5", gss_matrix(h, w, b))):
        found = analyse(**LAYER, head=head)
        expected = np.linalg.svd(matrix, compute_uv=False)
        assert (found.spectrum.m, found.spectrum.n) == (m, n)
        np.testing.assert_allclose(found.spectrum.with_zeros(), expected, atol=3e-6 * expected[0])
        assert found.ranks.press.rank == press(matrix)
    assert found.ranks.press.rank > D + 2


@pytest.mark.parametrize(("m", "n"), [(90, 70), (40, 200)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stored_log_probabilities(tmp_path, monkeypatch, route, m, n, dtype):
    monkeypatch.chdir(tmp_path)
    matrix = softmax_matrix(*layer(m, n))
    np.save("1.npy", matrix[:13].astype(dtype))
    np.savez("2.npz", rest=matrix[13:].astype(dtype))
    found = analyse(log_probs=["1.npy", "2.npz"], width=D)
    expected = np.linalg.svd(matrix, compute_uv=False)
    np.testing.assert_allclose(found.spectrum.sigma[: D + 2], expected[: D + 2], rtol=1e-5)
    assert (found.spectrum.m, found.spectrum.n) == (m, n)
    assert found.ranks.press.rank == press(matrix) == found.bound.rank == D + 2
    assert found.bound.holds
    assert not analyse(log_probs=["1.npy", "2.npz"], width=D - 2).bound.holds


def test_log_probabilities_must_be_some(files):
    h, w, b = files
    np.save("logits.npy", h @ w.T + b)
    with pytest.raises(DataError, match=r"row \d+ of logits\.npy.*expected 1; are these logits\?"):
        analyse(log_probs=["logits.npy"])
    np.save("huge.npy", np.full((2, 3), 1e4, np.float32))
    with pytest.raises(DataError, match="add up to"):
        analyse(log_probs=["huge.npy"])


def test_half_precision_log_probabilities_carry_a_warning(files):
    np.save("half.npy", softmax_matrix(*files).astype(np.float16))
    found = analyse(log_probs=["half.npy"], width=D)
    assert found.ranks.press.rank > D + 2  # rounding alone
    assert any("stored as float16" in note for note in found.notes())
    assert found.bound.rank is None and "too coarsely rounded" in own_report.bound_words(found.bound)


def test_the_softmax_bound_is_checked_on_a_written_out_block(files):
    bound = analyse(**LAYER).bound
    assert (bound.limit, bound.rank, bound.holds) == (D + 2, D + 2, True)
    np.save("few.npy", files[0][:5])
    few = analyse(**(LAYER | {"hidden": ["few.npy"]})).bound
    assert few.rank is None and few.holds is None


def test_zero_bias_is_the_default(files):
    h, w, _ = files
    found = analyse(hidden=["h.npy"], weight=["w.npy"])
    np.testing.assert_allclose(
        found.spectrum.sigma[:D], np.linalg.svd(softmax_matrix(h, w, 0), compute_uv=False)[:D], rtol=1e-5
    )


@pytest.mark.parametrize("model", ["softmax", "gss"])
def test_rank_equals_that_of_the_pipeline_for_an_own_run(tmp_path, monkeypatch, trained, model):
    """The files that `train` and `measure` left are given to `rank`, whose numbers are those of `spectrum`."""
    monkeypatch.chdir(trained)
    study = config.load_study(ROOT / "tests" / "nano.yaml")
    run = next(run for run in study.needed if run.model == model)
    folder = Store().run_folder(run.path)
    head = run.head.name + ":" + ",".join(f"{key}={value}" for key, value in run.head.options.items())
    weights = f"{folder}/model.safetensors::head.decoder."
    found = analyse(
        hidden=[f"{folder}/hidden.npz::hidden_TD"], weight=[f"{weights}weight"], bias=f"{weights}bias", head=head
    )
    pipeline = artefacts.read_json(folder / "rank.json")
    assert found.ranks.metrics().items() <= pipeline["metrics"].items()
    assert found.ranks.press.tolerance == pytest.approx(pipeline["tolerance"], rel=1e-6)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A softmax and a GSS run of the smallest study, trained and measured."""
    folder = tmp_path_factory.mktemp("runs")
    before = Path.cwd()
    os.chdir(folder)
    try:
        study = config.load_study(ROOT / "tests" / "nano.yaml")
        for model in ("softmax", "gss"):
            run = next(run for run in study.needed if run.model == model)
            named = {"download": ["--dataset", run.dataset], "tokenise": ["--dataset", run.dataset]}
            for step in ("download", "tokenise", "train", "measure", "spectrum"):
                which = named.get(step, ["--run", run.path])
                assert main([step, "--study", str(ROOT / "tests" / "nano.yaml"), *which]) == 0
    finally:
        os.chdir(before)
    return folder


# --- memory and parts -----------------------------------------------------------------------------------------------
@pytest.fixture
def only_arrays(monkeypatch):
    """Estimates without what the interpreter takes, so that small limits bite."""
    monkeypatch.setattr(own_matrix, "BASE_BYTES", 0)
    monkeypatch.setattr(own_matrix, "TORCH_BYTES", 0)
    monkeypatch.setattr(own_model, "LEAST_SIDE", 8)


def saved_layer(m, n):
    h, w, b = layer(m, n)
    np.save("h.npy", h), np.save("w.npy", w), np.save("b.npy", b)
    return h, w, b


@pytest.mark.parametrize(("m", "n"), [(900, 300), (300, 900)])
def test_parts_bound_the_rank_of_the_whole(tmp_path, monkeypatch, only_arrays, m, n):
    monkeypatch.chdir(tmp_path)
    truth = press(gss_matrix(*saved_layer(m, n)))
    found = analyse(**LAYER, head="gss:c=-1.5,k=2.5", max_memory="400KB", repeats=4)
    sample = found.sample
    assert min(sample.rows, sample.columns) < 300 and max(sample.rows, sample.columns) == 900
    assert found.plan.needed <= 400_000 < found.plan.whole
    assert len(sample.ranks) == 4
    assert sample.at_least <= truth <= sample.at_most
    assert sample.at_least > D + 2
    assert sample.mean == np.mean(sample.ranks)
    assert sample.deviation == pytest.approx(np.std(sample.ranks, ddof=1))
    again = analyse(**LAYER, head="gss:c=-1.5,k=2.5", max_memory="400KB", repeats=4)
    assert again.sample == sample, "the same seed draws the same parts"


def test_a_rank_that_parts_reach_is_called_saturated(tmp_path, monkeypatch, only_arrays):
    monkeypatch.chdir(tmp_path)
    matrix = softmax_matrix(*saved_layer(900, 300))
    np.save("p.npy", matrix.astype(np.float32))
    stored = analyse(log_probs=["p.npy"], width=D, max_memory="200KB").sample
    assert stored.saturated and stored.ranks == (D + 2,) * 3 and stored.half_rank == D + 2 == stored.at_least
    factored = analyse(**LAYER, max_memory="25KB").sample
    assert factored.columns == 300 and factored.rows < 900
    assert factored.at_least == factored.at_most == D + 2


def test_lower_bounds_never_exceed_the_rank(tmp_path):
    """On matrices of every decay, whatever rows and columns are drawn."""
    r = np.random.default_rng(5)
    for decay in (0.02, 0.1, 0.5):
        u, v = np.linalg.qr(r.normal(size=(120, 90)))[0], np.linalg.qr(r.normal(size=(90, 90)))[0]
        matrix = (u * np.exp(-decay * np.arange(90))) @ v.T - 5.0  # like log-probabilities: a large mean
        for _ in range(20):
            rows, columns = r.choice(120, 50, replace=False), r.choice(90, 40, replace=False)
            part = spectrum.dense_singular_values(matrix[np.ix_(rows, columns)])
            assert own_model.lower_bound(part, 120, 90) <= press(matrix)


@pytest.mark.parametrize(("head", "rows", "columns"), [("softmax", 1500, 550), ("gss", 3000, 1100)])
def test_the_memory_estimate_holds(tmp_path, monkeypatch, head, rows, columns):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_matrix, "BLOCK_BYTES", 1 << 20)
    monkeypatch.setattr(own_matrix, "BASE_BYTES", 8 << 20)  # of blocks
    monkeypatch.setattr(own_matrix, "TORCH_BYTES", 0)
    saved_layer(rows, columns)
    asked = ask(**LAYER, head=head)
    own_matrix.pointwise_of("gss", {"c": -1.5, "k": 2.5})  # torch is imported before, not within, the measurement
    tracemalloc.start()
    found = own_model.rank(asked, silent)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.sample is None
    if head == "gss":
        assert peak <= found.plan.needed
        assert peak >= found.plan.needed / 4, "an estimate far too high would make needless samples"


def test_sizes_in_words():
    assert own_question.parse_bytes("4GB") == 4_000_000_000
    assert own_question.parse_bytes("1.5 MiB") == 3 << 19
    assert own_model.gib(3 << 30) == "3.0 GiB"
    assert own_model.free_bytes() > 1 << 20


# --- what is written ------------------------------------------------------------------------------------------------
class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))


def test_the_command_writes_numbers_spectrum_plot_and_page(files, capsys):
    canary = '<script>alert(1)</script>"><img onerror=x> {{7*7}} $x_1$'
    arguments = ["rank", "--hidden", "h.npy", "--weight", "w.npy", "--bias", "b.npy", "--title", canary, "--out", "out"]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert re.search(rf"^Press rank +{D + 2} ", shown.out, re.MULTILINE)
    assert "MiB of memory; the limit is" in shown.err
    facts = artefacts.read_json(Path("out/rank.json"))
    assert facts["metrics"]["rank_press"] == D + 2 == facts["bound"]["limit"]
    assert (facts["contexts"], facts["words"], facts["width"], facts["status"]) == (90, 70, D, "ok")
    assert set(facts["provenance"]["parents"]) == {"spectrum.npz", "0 h.npy", "1 w.npy", "2 b.npy"}
    saved = spectrum.Spectrum.from_arrays(artefacts.read_npz(Path("out/spectrum.npz")))
    assert saved.sigma[0] == facts["sigma_max"]
    page = artefacts.read_text(Path("out/index.html"))
    parsed = Tags()
    parsed.feed(page)
    assert {"script", "link"}.isdisjoint(tag for tag, _ in parsed.tags)
    assert not any(key.startswith("on") for _, attributes in parsed.tags for key in attributes)
    (image,) = [attributes for tag, attributes in parsed.tags if tag == "img"]
    assert image["src"].startswith("data:image/svg+xml;base64,") and "above the tolerance" in image["alt"]
    assert "http" not in re.sub(r"<meta[^>]*>", "", page)
    assert str(Path.cwd()) not in page + json.dumps(facts)
    assert artefacts.read_text(Path("out/spectrum.svg")).startswith("<?xml")


def test_the_page_of_a_sample_says_so(files, only_arrays, capsys):
    arguments = ["rank", "--hidden", "h.npy", "--weight", "w.npy", "--head", "gss", "--max-memory", "20KB"]
    assert main([*arguments, "--out", "out"]) == 0
    facts = artefacts.read_json(Path("out/rank.json"))
    assert facts["status"] == "sampled"
    assert facts["sample"]["at_least"] <= facts["sample"]["at_most"] == 70
    assert "at least" in artefacts.read_text(Path("out/index.html"))
    assert "more than the limit" in capsys.readouterr().err


def test_errors_are_one_line_and_exit_code_2(files, capsys):
    assert main(["rank", "--hidden", "h.npy", "--weight", "h.npy::x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["rank"]) == 2
    assert "give hidden and weight" in capsys.readouterr().err
    Path("q.yaml").write_text("hidden: [h.npy]\nweight: [w.npy]\n", encoding="utf-8")
    assert main(["rank", "--config", "q.yaml", "--seed", "3"]) == 2
    assert "leave out seed" in capsys.readouterr().err


def test_softmax_and_stored_matrices_need_neither_torch_nor_any_other_package_of_an_extra(files):
    """What `pip install ".[rank]"` installs is enough."""
    np.save("p.npy", softmax_matrix(*files))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    absent = {name.replace("-", "_") for names in extras.values() for name in names} - {"markupsafe"}  # jinja2's own
    code = (
        "import sys, importlib.abc\n"
        "class Absent(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name in {absent}: raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from softmax_bottleneck.__main__ import main\n"
        "layer = ['rank', '--hidden', 'h.npy', '--weight', 'w.npy']\n"
        "codes = [main([*layer, '--out', 'a']), main(['rank', '--log-probs', 'p.npy', '--out', 'b'])]\n"
        "codes += [main(['rank', '--weight', 'w.npy', '--weights-only', '--out', 'c'])]\n"
        "codes += [main(['rank', '--compare', 'a/rank.json', 'b/rank.json'])]\n"
        "codes += [main([*layer, '--head', 'gss']), main(['plan'])]\n"
        "assert codes == [0, 0, 0, 0, 2, 2], codes\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "head gss: needs torch" in done.stderr and "plan: needs torch, which is not installed" in done.stderr


# --- the rule -------------------------------------------------------------------------------------------------------
def test_the_example_is_a_valid_question():
    asked = own_question.read_question(ROOT / "config" / "own-model.example.yaml")
    assert asked.hidden == (str(ROOT / "config" / "../exported/hidden-*.npy"),)


def test_the_example_names_every_key():
    text = (ROOT / "config" / "own-model.example.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"^(?:# )?([a-z_]+):(?= )", text, re.MULTILINE)) == own_question.KEYS


def test_the_rule_makes_the_page_from_a_yaml(files):
    Path("config").mkdir()
    text = "title: Mine\nhidden: [../h.npy]\nweight: [../w.npy]\nbias: ../b.npy\n"
    Path("config/mine.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "snakemake", "results/own/mine/index.html", "--cores", "1"]
    command += ["--snakefile", str(ROOT / "Snakefile"), "--configfile", str(ROOT / "tests" / "nano.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert artefacts.read_json(Path("results/own/mine/rank.json"))["metrics"]["rank_press"] == D + 2
    assert not Path("results/nano").exists(), "no step of the study ran"
    again = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=False)
    assert "Nothing to be done" in again.stdout + again.stderr
