"""The rank of an output layer in files against plain float64 formulas and LAPACK; files and errors of `rank`."""

import os
import re
import subprocess
import sys
import tomllib
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from page_reader import Page
from scipy.special import log_softmax
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.own_model import inputs, log_probs, rank
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.study import Study, read

ROOT = Path(__file__).parents[2]
D = 6
LAYER: dict[str, Any] = {"hidden": ["h.npy"], "weight": ["w.npy"], "bias": "b.npy"}
CALL = ["rank", "--hidden", "h.npy", "--weight", "w.npy", "--seconds", "0", "--out", "out"]


def analyse(**options: Any) -> rank.Result:
    return rank.rank(read(inputs.Request, {"seconds": 0} | options, "test"), lambda line: None, Path("export"))


def save_layer(m: int, n: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    h, w, b = (rng.normal(size=shape).astype(np.float32) for shape in ((m, D), (n, D), (n,)))
    np.save("h.npy", h), np.save("w.npy", w), np.save("b.npy", b)
    return h, w, b


def softmax_matrix(h: np.ndarray, w: np.ndarray, b: np.ndarray | float) -> np.ndarray:
    return log_softmax(h.astype(float) @ w.astype(float).T + b, 1)


def gss_matrix(h: np.ndarray, w: np.ndarray, b: np.ndarray, c: float = -1.5, k: float = 2.5) -> np.ndarray:
    """Parthiban 2021, eq. 5, literally."""
    x = h.astype(float) @ w.astype(float).T + b
    return log_softmax(k * (x - c) + c - (k - 1) * np.log(np.exp(x - c) + 1), 1)


def press(matrix: np.ndarray) -> int:
    """Numerical Recipes' rank with float32's epsilon, from numpy's SVD of the whole matrix."""
    sigma = np.linalg.svd(matrix, compute_uv=False)
    return int((sigma > 0.5 * np.sqrt(sum(matrix.shape) + 1) * sigma[0] * np.finfo(np.float32).eps).sum())


# --- ranks ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("m", "n"), [(90, 70), (40, 200)])
def test_singular_values_are_those_of_the_plain_matrix(files, monkeypatch, m, n) -> None:
    monkeypatch.setattr(log_probs, "BLOCK_BYTES", 8 * 37 * max(m, n))  # several blocks
    layer = save_layer(m, n)
    for head, matrix in (("softmax", softmax_matrix(*layer)), ("gss:c=-1.5,k=2.5", gss_matrix(*layer))):
        result = analyse(**LAYER, head=head)
        expected = np.linalg.svd(matrix, compute_uv=False)
        assert (result.spectrum.m, result.spectrum.n) == (m, n)
        np.testing.assert_allclose(result.spectrum.with_zeros(), expected, atol=3e-6 * expected[0])
        assert result.ranks.press.rank == press(matrix)
    assert result.ranks.press.rank > D + 2
    without_bias = np.linalg.svd(softmax_matrix(*layer[:2], 0), compute_uv=False)
    found = analyse(hidden=["h.npy"], weight=["w.npy"]).spectrum.sigma
    np.testing.assert_allclose(found[:D], without_bias[:D], rtol=1e-5)


@pytest.mark.parametrize(("m", "n", "dtype"), [(90, 70, np.float32), (40, 200, np.float64)])
def test_stored_log_probabilities(files, m, n, dtype) -> None:
    matrix = softmax_matrix(*save_layer(m, n))
    np.save("1.npy", matrix[:13].astype(dtype)), np.savez("2.npz", rest=matrix[13:].astype(dtype))
    result = analyse(log_probs=["1.npy", "2.npz"])
    expected = np.linalg.svd(matrix, compute_uv=False)
    np.testing.assert_allclose(result.spectrum.sigma[: D + 2], expected[: D + 2], rtol=1e-5)
    assert (result.spectrum.m, result.spectrum.n) == (m, n)
    assert result.ranks.press.rank == press(matrix) == D + 2


def test_log_probabilities_in_half_precision_are_rejected(files) -> None:
    """Their rounding alone would be counted as rank."""
    half = softmax_matrix(*files[:3]).astype(np.float16)
    np.save("half.npy", half)
    assert press(half.astype(float)) > D + 2
    with pytest.raises(DataError, match=r"half\.npy: numbers are float16.*Export float32"):
        analyse(log_probs=["half.npy"])


def test_the_softmax_bound_is_checked_on_a_written_out_block(files) -> None:
    bound = analyse(**LAYER).bound
    assert (bound.limit, bound.rank, bound.holds, bound.cliff[0]) == (D + 2, D + 2, True, D) and bound.cliff[1] > 1e3
    np.save("few.npy", files[0][:5])
    assert analyse(**LAYER | {"hidden": ["few.npy"]}).bound is None


@pytest.mark.fault("H6")
def test_one_word_has_rank_zero_by_every_way(files) -> None:
    """Its log-probability is 0 in every context: the zero matrix."""
    np.save("w.npy", files[1][:1]), np.save("b.npy", np.float32([0.7])), np.save("p.npy", np.zeros((30, 1)))
    ways = [LAYER, LAYER | {"head": "gss"}, {"log_probs": ["p.npy"]}]
    for ranks in (analyse(**way).ranks for way in ways):
        assert ranks.press.rank == 0 and set(ranks.effective.values()) == {0}
    assert main(CALL) == 0


def test_the_rank_of_an_own_run_is_that_of_the_pipeline(study: Study) -> None:
    folder = study.store.run_folder(study.needed[0].path)
    weights = f"{folder}/model.safetensors::head.decoder."
    hidden = [f"{folder}/hidden.npz::hidden_TD"]
    result = analyse(hidden=hidden, weight=[f"{weights}weight"], bias=f"{weights}bias")
    pipeline = artefacts.read_json(folder / "rank.json")
    assert result.ranks.metrics().items() <= pipeline["metrics"].items()
    assert result.ranks.press.tolerance == pytest.approx(pipeline["tolerance"], rel=1e-6)


# --- memory -----------------------------------------------------------------------------------------------


def test_the_memory_estimate_holds(files, monkeypatch) -> None:
    monkeypatch.setattr(log_probs, "BLOCK_BYTES", 1 << 20)
    monkeypatch.setattr(log_probs, "BASE_BYTES", 8 << 20)  # of blocks
    monkeypatch.setattr(log_probs, "TORCH_BYTES", 0)
    analyse(**LAYER, head="gss")  # torch is imported before, not within, the measurement
    save_layer(1700, 620), np.save("part.npy", np.ones((12_500, 64), np.float32))
    for options in (LAYER | {"head": "gss"}, {"weight": ["part.npy"] * 16, "weights_only": True}):
        tracemalloc.start()
        result = analyse(**options)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert result.bytes_needed / 4 <= peak <= result.bytes_needed, "far too high an estimate would reject what fits"


def test_a_matrix_that_does_not_fit_is_rejected_before_anything_is_computed(files, monkeypatch, capsys) -> None:
    monkeypatch.setattr(rank, "free_bytes", lambda: 1 << 20)
    assert main(CALL) == 2
    assert "needs 400 MiB of memory, and 1 MiB are free; give fewer contexts" in capsys.readouterr().err


# --- errors ---------------------------------------------------------------------------------------------------------
ERRORS = [  # what is changed of `rank --hidden h.npy --weight w.npy`
    ({"--weight": "h.npy::x"}, "an .npy file holds one array"),
    ({"--weight": "transposed.npy"}, "(90, 6) and the weight transposed.npy (6, 70). Expected weight [words, 6]"),
    ({"--bias": "short.npy"}, "bias short.npy has shape (69,) beside 70 words"),
    ({"--targets": "none.npy"}, "targets: none.npy: no such file"),
    ({"--targets": "y.npz"}, "targets: y.npz: not a sound .npy file"),
    ({"--targets": "empty.npy"}, "targets: empty.npy: not a sound .npy file"),
    ({"--out": "h.npy"}, "--out: h.npy: not a writable folder"),
    ({"--out": "h.npy/sub"}, "h.npy: not a writable folder"),
    ({"--log-probs": "h.npy"}, "Expected one of: hidden and weight (optionally bias, head, targets); log_probs;"),
    ({"--hidden": "h-\udcff.npy::x"}, "is not allowed"),
    ({"--hidden": "huge.npy", "--weight": "huge.npy"}, "hidden: row 0 gives logits that overflow float32"),
    ({"--hidden": "huge.npy", "--weight": "huge.npy", "--head": "gss"}, "row 0 gives logits that overflow float32"),
    ({"--head": "gss:c"}, "expected NAME:OPTION=VALUE"),
    ({"--head": "gss:k=-1"}, "head gss: k: -1 is not allowed (input should be greater than 0)"),
    ({"--head": "gss:c=["}, "head gss: c: '[' is not allowed (input should be a valid number"),
    ({"--head": "gss:c=!!python/name:os.system"}, "input should be a valid number"),
    ({"--head": "gss:c=nan"}, "c: nan is not allowed (input should be a finite number)"),
    ({"--head": "gss:c=" + "9" * 5000}, "input should be a valid number"),
    ({"--head": "gss:=1"}, "unknown key ''; allowed are c, k"),
    ({"--head": "softmaxx"}, "did you mean 'softmax'"),
    ({"--head": "mos"}, "head mos: has weights of its own. Write its log-probabilities"),
    ({"--head": "lms-plif"}, "has weights of its own"),
]


@pytest.mark.fault("H5", "H7")
@pytest.mark.parametrize(("change", "message"), ERRORS, ids=range(len(ERRORS)))
def test_bad_input_is_one_line_with_exit_code_2(files, capsys, change: dict[str, str], message: str) -> None:
    np.save("transposed.npy", np.zeros((D, 70), np.float32)), np.save("short.npy", np.zeros(69, np.float32))
    np.save("huge.npy", files[0] * np.float32(5e37)), np.savez("y.npz", files[3]), Path("empty.npy").touch()
    options = {"--hidden": "h.npy", "--weight": "w.npy", "--out": "out"} | change
    assert main(["rank", *(word for pair in options.items() for word in pair)]) == 2
    *_, error = lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("error: ") for line in lines) == 1 and not any("Traceback" in line for line in lines)
    assert error.startswith("error: ") and message in error and not Path("out").exists()


@pytest.mark.parametrize("base", [2, 10])
@pytest.mark.parametrize(("m", "n"), [(90, 70), (40, 200)])
def test_log_probabilities_to_another_base_are_converted(files, base: int, m: int, n: int) -> None:
    matrix = softmax_matrix(*save_layer(m, n))
    np.save("1.npy", matrix[:30] / np.log(base)), np.save("2.npy", matrix[30:] / np.log(base))
    result = analyse(log_probs=["1.npy", "2.npy"])
    np.testing.assert_allclose(result.spectrum.sigma[: D + 2], np.linalg.svd(matrix, compute_uv=False)[: D + 2])
    assert result.ranks.press.rank == D + 2 and any(f"base {base};" in note for note in result.notes)
    np.save("2.npy", matrix[30:])  # shards with different bases
    with pytest.raises(DataError, match=r"counted from (1|2)\.npy: its probabilities add up to"):
        analyse(log_probs=["1.npy", "2.npy"])


@pytest.mark.parametrize(("n", "scale"), [(64, 1.0), (5000, 1.0), (5000, 0.05)])
def test_logits_that_were_rounded_to_half_precision_are_a_note(files, n: int, scale: float) -> None:
    """Rounded before or after log_softmax, with logits from 0.1 to 10; none if the whole computation is in float32."""
    h, w, b = save_layer(40, n)
    plain = torch.from_numpy(scale * (h @ w.T + b))
    noted = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for when, matrix in (
            ("before", plain.to(dtype).float().log_softmax(1)),
            ("after", plain.log_softmax(1).to(dtype).float()),
        ):
            matrix = matrix if dtype == torch.float32 else matrix - matrix.double().logsumexp(1, True).float()
            np.save("p.npy", matrix.numpy())
            noted[dtype, when] = any("half precision" in note for note in analyse(log_probs=["p.npy"]).notes)
    assert noted == {(dtype, when): dtype != torch.float32 for dtype, when in noted}
    np.save("p.npy", np.full((40, n), -np.log(n), np.float32))  # equal numbers are no sign of rounding
    assert not any("half precision" in note for note in analyse(log_probs=["p.npy"]).notes)


def test_rows_of_zeros_at_the_end_of_the_weight_are_a_note(files) -> None:
    np.save("padded.npy", np.concatenate([files[1], np.zeros((58, D), np.float32)]))
    for options in ({"hidden": ["h.npy"]}, {"weights_only": True}):
        for weight, count in (("padded.npy", 58), ("w.npy", 0)):
            result = analyse(weight=[weight], **options)
            assert result.measures.zero_rows == count
            assert any(f"last {count} rows" in note for note in result.notes) == (count > 0)


def test_an_array_without_an_option_is_told_the_options(capsys) -> None:
    assert main(["rank", "lp.npy"]) == 2
    assert "--log-probs lp.npy" in capsys.readouterr().err


def test_log_probabilities_must_add_up_to_one(files) -> None:
    h, w, b, _ = files
    np.save("logits.npy", h @ w.T + b), np.save("huge.npy", np.full((2, 3), 1e4, np.float32))
    np.save("less.npy", softmax_matrix(h, w, b) - 0.01)  # probabilities that add up to 0.99
    with pytest.raises(DataError, match=r"add up to 0\.99"):
        analyse(log_probs=["less.npy"])
    np.save("near.npy", softmax_matrix(h, w, b) + 0.002)
    with pytest.raises(DataError, match=r"add up to 1\.002"):
        analyse(log_probs=["near.npy"])
    with pytest.raises(DataError, match=r"row \d+, counted from logits\.npy.*expected 1 .*; are these logits\?"):
        analyse(log_probs=["logits.npy"])
    with pytest.raises(DataError, match="add up to"):
        analyse(log_probs=["huge.npy"])
    with pytest.raises(UserError, match=r"unknown key 'weights'; did you mean 'weight'\?"):
        analyse(**LAYER, weights=["w.npy"])


# --- the files it writes --------------------------------------------------------------------------------------------
def test_the_command_writes_numbers_spectrum_and_plot(files, capsys) -> None:
    assert main([*CALL, "--bias", "b.npy", "--targets", "y.npy"]) == 0
    shown, facts = capsys.readouterr().out, artefacts.read_json(Path("out/rank.json"))
    assert re.search(rf"^Press rank +{D + 2} ", shown, re.MULTILINE)
    kept = [facts["gradient_share"][f"norm_{way}"] for way in ("mean", "pooled")]
    assert (
        "{:.4f} mean of contexts, {:.4f} pooled; suppressed {:.4f}, {:.4f}".format(*kept, *(1 - x for x in kept))
        in shown
    )
    for name, rows in (("hidden", files[0]), ("weight", files[1])):
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosine = ((unit @ unit.T).sum() - len(rows)) / len(rows) / (len(rows) - 1)
        assert facts["saturation"][name]["anisotropy"] == pytest.approx(cosine, abs=1e-5)
    assert facts["metrics"]["rank_press"] == D + 2 == facts["bound"]["limit"]
    assert 0 < facts["gradient_share"]["norm_mean"] < 1
    assert (facts["contexts"], facts["words"], facts["width"]) == (90, 70, D)
    assert {"spectrum.npz", "0 h.npy", "1 w.npy", "2 b.npy", "3 y.npy"} == set(facts["provenance"]["parents"])
    assert artefacts.read_npz(Path("out/spectrum.npz"))["sigma"][0] == facts["sigma_max"]
    assert artefacts.read_text(Path("out/spectrum.svg")).startswith("<?xml")


def test_the_page_has_the_numbers_of_rank_json_and_escapes_all_text(files) -> None:
    hostile = "<script>alert(1)<img onerror=x>&{{7*7}}\udcff"
    folder = hostile[:-1]
    np.save(f"{hostile}.npy", files[0])
    assert main(["rank", "--hidden", "*onerror*.npy", "--weight", "w.npy", "--seconds", "20", "--out", folder]) == 0
    facts = artefacts.read_json(Path(folder, "rank.json"))
    html = artefacts.read_text(Path(folder, "index.html"))
    page = Page(html)
    rows = dict(page.rows)
    assert int(rows["Press rank"].split()[0]) == facts["metrics"]["rank_press"] == D + 1
    assert int(rows["unargmaxable words"]) == len(facts["words_that_win"]["never"])
    assert facts["provenance"]["parents"].items() <= rows.items()
    assert any("onerror" in name for name in rows)
    assert {"script", "link"}.isdisjoint(tag for tag, _ in page.elements)
    assert not any(key.startswith("on") for _, attributes in page.elements for key in attributes)
    (image,) = page.all("img")
    assert image["src"].startswith("data:image/svg+xml;base64,") and image["alt"]
    assert "http:" not in html and "https:" not in html and str(Path.cwd()) not in html


def test_compare_prints_a_column_per_model(files, capsys) -> None:
    np.save("h2.npy", files[0][:, :3]), np.save("w2.npy", files[1][:, :3])
    assert main([*CALL, "--targets", "y.npy", "--out", "a"]) == 0
    assert main(["rank", "--hidden", "h2.npy", "--weight", "w2.npy", "--seconds", "0", "--out", "b"]) == 0
    capsys.readouterr()
    assert main(["rank", "--compare", "a/rank.json", "b/rank.json"]) == 0
    titles, *lines = capsys.readouterr().out.splitlines()
    table = {name: values for name, *values in map(str.split, lines)}
    assert titles.split() == ["a", "b"] and "contexts" not in table  # both have 90
    assert table["metrics.rank_press"] == [str(D + 1), "4"]  # no bias: one less than d + 2
    assert [table["bound.cliff"][entry] for entry in (0, 2)] == [f"{D},", "3,"]
    share = artefacts.read_json(Path("a/rank.json"))["gradient_share"]["norm_mean"]
    assert table["gradient_share.norm_mean"] == [f"{share:.4g}", "-"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["a.json"], "two models or more"), (["a.json", "none.json"], "none.json: not a rank.json"),
    (["a.json", "h.npy"], "h.npy: not a rank.json"), (["a.json", "list.json"], "list.json: not a rank.json"),
    (["a.json", "a.json", "--seconds", "1"], "no other option"),
])  # fmt: skip
def test_compare_rejects_other_files_with_one_line(files, capsys, arguments: list[str], message: str) -> None:
    Path("a.json").write_text('{"metrics": {}, "contexts": 1, "words": 1}', encoding="utf-8")
    Path("list.json").write_text("[1]", encoding="utf-8")
    assert main(["rank", "--compare", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_packages_of_the_rank_extra_are_enough(files) -> None:
    """`pip install ".[rank]"` brings no torch: softmax layers, stored matrices and comparisons do without."""
    np.save("p.npy", softmax_matrix(*files[:3]))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    absent = {name.replace("-", "_") for names in extras.values() for name in names} - {"markupsafe"}  # jinja2's own
    code = (
        "import sys, importlib.abc\n"
        "class Absent(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name in {absent}: raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from softmax_bottleneck.__main__ import main\n"
        "layer = ['rank', '--seconds', '0', '--hidden', 'h.npy', '--weight', 'w.npy']\n"
        "codes = [main([*layer, '--out', 'a']), main(['rank', '--log-probs', 'p.npy', '--out', 'b'])]\n"
        "codes += [main(['rank', '--weight', 'w.npy', '--weights-only', '--seconds', '1', '--out', 'c'])]\n"
        "codes += [main(['rank', '--compare', 'a/rank.json', 'b/rank.json'])]\n"
        "codes += [main([*layer, '--head', 'gss']), main(['plan'])]\n"
        "assert codes == [0, 0, 0, 0, 2, 2], codes\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "rank: needs torch, which is not" in done.stderr and "plan: needs " in done.stderr
