"""Heads from outside the repository: the worked example of CONTRIBUTING.md, entry points, and wrong files."""

import csv
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import small
import torch
import yaml
from fit_plans import LANGUAGE
from softmax_bottleneck import heads
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.extras import crate
from softmax_bottleneck.heads import registry
from softmax_bottleneck.records.collection import collect_to
from softmax_bottleneck.report import contents, figures, findings
from softmax_bottleneck.report.head_table import head_table
from softmax_bottleneck.steps.measure import measure
from softmax_bottleneck.steps.train import train
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store import fingerprint as fp
from softmax_bottleneck.store.errors import UserError
from trained_examples import Trained, near, study

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## A head, step by step")[2]
BLOCKS = {kind: re.sub("^   ", "", text, flags=re.M) for kind, text in re.findall(
    r"^   ```(python|yaml)\n(.*?)^   ```", PAGE.partition("3. To add")[0], re.M | re.S)}  # fmt: skip
SIZES = {"vocabulary_size": 9, "context_size": 4, "embedding_size": 4}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forget the heads of a test."""
    yield
    registry._files.cache_clear()
    for name in [name for name in sys.modules if name.startswith("outside_head_")]:
        del sys.modules[name]


def write(folder: Path, text: str = BLOCKS["python"]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tanhmax.py").write_text(text, encoding="utf-8")
    example = yaml.safe_load(BLOCKS["yaml"])
    table = {"parthiban2021-table2": {"models": "all", "datasets": ["tiny"]}}
    return small.write(folder, small.values(**example, seeds=[1], experiments=table))


def test_the_worked_example_trains_and_has_a_row(ready: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(place)
    assert main(["plan", "--json", "--study", str(file)]) == 0 and "/toy/" in capsys.readouterr().out
    tiny = small.begun(ready, place, yaml.safe_load(file.read_text(encoding="utf-8")))
    for run in tiny.needed:
        for step in (train, measure):
            step(tiny, run.path, small.quiet)
    folder = place / "results" / "rendered"
    collect_to(tiny, folder)
    contents.write(tiny, folder)
    with (folder / "tables" / "parthiban2021-table2.csv").open(encoding="utf-8") as table:
        shown = {(row["dataset"], row["row"]): row["measured"] for row in csv.DictReader(table)
            if row["column"] == "Test perplexity"}  # fmt: skip
    assert 1 < float(shown["tiny", "toy"]) < 40  # words
    assert artefacts.read_json(folder / "page.json")["heads"]["toy"] == "Tanhmax"
    looks = figures.styles(["softmax", "toy"], tiny)
    assert (looks["softmax"].colour, looks["toy"].colour) == (figures.PALETTE["softmax"], "#7c8f2b")
    assert "config/tanhmax.py" in crate._contents(tiny, with_weights=False)


def test_the_head_has_its_formula_also_inside_a_mixture(tmp_path: Path) -> None:
    registry.add(write(tmp_path).with_name("tanhmax.py"))
    torch.manual_seed(1)
    head, h_ND = heads.Tanhmax(**SIZES, s=0.5).double(), torch.randn(3, 4, dtype=torch.float64)
    logits_NV = head.decoder(h_ND).detach().numpy()
    scores_NV = np.exp(logits_NV + 0.5 * np.tanh(logits_NV))
    expected_NV = np.log(scores_NV / scores_NV.sum(1, keepdims=True))
    np.testing.assert_allclose(head.log_probs(h_ND).detach(), expected_NV, rtol=1e-12)
    mixture = heads.build("mos", **SIZES, components=2, pointwise="tanhmax").double().eval()
    assert torch.autograd.gradcheck(lambda h: mixture.nll(h, torch.arange(3)), h_ND.requires_grad_())


def test_the_code_of_the_head_is_part_of_the_run_id(tmp_path: Path) -> None:
    """An edit of the file, or of one that it imports from beside it, counts; its declaration and comments do not."""

    def run_ids(text: str = BLOCKS["python"]) -> tuple[str, str]:
        registry._files.cache_clear()
        fp.fingerprint.cache_clear()
        one, other = (run.run_id for run in small.config.load_study(write(tmp_path, text)).runs)
        return one, other

    before = run_ids()
    assert run_ids(BLOCKS["python"].replace("#7c8f2b", "#123456") + "# a comment\n") == before
    assert run_ids(BLOCKS["python"].replace("HEAD = ", "HEAD: Declaration = ")) == before
    softmax, toy = run_ids(BLOCKS["python"].replace("logits.tanh()", "logits.atan()"))
    assert softmax == before[0] and toy != before[1]
    (tmp_path / "beside.py").write_text("X = 1\n", encoding="utf-8")
    with_import = run_ids("import beside\n" + BLOCKS["python"])
    (tmp_path / "beside.py").write_text("X = 2\n", encoding="utf-8")
    assert len({before[1], with_import[1], run_ids("import beside\n" + BLOCKS["python"])[1]}) == 3


def test_a_head_imports_files_beside_it_and_the_crate_has_them(place: Path) -> None:
    """Also if only a mixture of a fit names the head. Its declaration is part of the study's digest."""
    mixture = {"head": {"name": "mos", "components": 2, "pointwise": "tanhmax"}}
    fits = {"toy": LANGUAGE | {"models": {"softmax": {"head": "softmax"}, "mos": mixture}}}
    experiments = {"truth-kl": {"options": {"fits": "toy"}}}
    file = small.write(place / "config", small.values(heads=["tanhmax.py"], fits=fits, experiments=experiments))
    (file.parent / "factor_of_tanhmax.py").write_text("FACTOR = 0.5\n", encoding="utf-8")
    lines = "from factor_of_tanhmax import FACTOR\n" + BLOCKS["python"].replace("= 1.0", "= FACTOR")
    digests, path = set(), list(sys.path)
    for colour in ("#7c8f2b", "#123456"):
        registry._files.cache_clear()
        file.with_name("tanhmax.py").write_text(lines.replace("#7c8f2b", colour), encoding="utf-8")
        loaded = small.config.load_study(file)
        digests.add(loaded.digest)
    del sys.modules["factor_of_tanhmax"]
    assert heads.build("tanhmax", **SIZES).options.s == 0.5 and sys.path == path
    assert {"config/tanhmax.py", "config/factor_of_tanhmax.py"} <= crate._contents(loaded, False).keys()
    assert len(digests) == 2


def test_a_study_with_the_head_is_planned_without_torch(tmp_path: Path) -> None:
    code = "import sys, pathlib; from softmax_bottleneck import study\n"
    code += "for run in study.load_study(pathlib.Path(sys.argv[1])).runs: run.run_id\nassert 'torch' not in sys.modules"
    arguments = [sys.executable, "-c", code, str(write(tmp_path))]
    assert subprocess.run(arguments, capture_output=True, check=False).returncode == 0


def test_a_study_extends_one_with_heads_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "base")
    (tmp_path / "study.yaml").write_text("extends: base/study.yaml\nheads: []\nstudy: other\n", encoding="utf-8")
    (tmp_path / "base" / "datasets").rename(tmp_path / "datasets")
    assert {run.head.name for run in small.config.load_study(tmp_path / "study.yaml").runs} == {"softmax", "tanhmax"}
    monkeypatch.chdir(tmp_path.parent)
    registry._files.cache_clear()
    assert small.config.load_study(Path(tmp_path.name, "study.yaml")).head_files == (tmp_path / "base" / "tanhmax.py",)


def test_an_entry_point_offers_a_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('not imported to plan')\n", encoding="utf-8")
    (package / "tanhmax.py").write_text(BLOCKS["python"], encoding="utf-8")
    metadata = tmp_path / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n", encoding="utf-8")
    point = "[softmax_bottleneck.heads]\ntanhmax = my_package.tanhmax\n"
    (metadata / "entry_points.txt").write_text(point, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    registry._files.cache_clear()
    assert registry.declaration("tanhmax").label == "Tanhmax"
    assert {path.name for path in registry.find("tanhmax").code} == {"__init__.py", "tanhmax.py"}
    with pytest.raises(UserError, match=r"tanhmax\.py: cannot be imported"):
        heads.build("tanhmax", **SIZES)
    (package / "__init__.py").write_text("", encoding="utf-8")
    assert heads.build("tanhmax", **SIZES).options.s == 1.0


def test_findings_and_the_head_table_have_the_head(tmp_path: Path) -> None:
    registry.add(write(tmp_path).with_name("tanhmax.py"))
    models = {"softmax": Trained(ppl=near(100)), "toy": Trained(ppl=near(90), head="tanhmax")}
    own = study(**models)
    table = head_table([own])
    row = next(row for row in table["rows"] if row["label"] == "Tanhmax")
    assert row["family"] == "pointwise" and row["cells"][0]["value"].startswith("−10")
    assert [one.change for one in findings.Evidence.from_studies([own]).against("Tanhmax")] == pytest.approx([-10.0])
    assert findings.is_fixed_function("tanhmax")


EXAMPLE = BLOCKS["python"]
MISTAKES = {
    "absent": (None, "cannot be read"),
    "syntax": (EXAMPLE + "def (\n", r"cannot be read .*line \d+"),
    "no head": ("x = 1\n", "no HEAD"),
    "not declared": ("HEAD = 3\n", "HEAD: 3 is not"),
    "family": (EXAMPLE.replace('"pointwise"', '"odd"'), "HEAD: family: 'odd'"),
    "missing": (EXAMPLE.replace('label="Tanhmax", ', ""), "HEAD: label is not set"),
    "import": (EXAMPLE.replace("Declaration, Positive", "Declaration, Nothing"), "HEAD: ImportError"),
    "taken": (EXAMPLE.replace('"tanhmax"', '"gss"'), "the name 'gss'"),
    "option": (EXAMPLE.replace("s: Positive", "t: Positive"), "unknown key 's'"),
}


@pytest.mark.fault("C20")
@pytest.mark.parametrize(("text", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_file_that_is_no_head_exits_2_with_one_line(tmp_path: Path, capsys, text: str | None, words: str) -> None:
    file = write(tmp_path, text or "")
    if text is None:
        (tmp_path / "tanhmax.py").unlink()
    assert main(["plan", "--study", str(file)]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and re.search(words, line) and str(tmp_path) in line


@pytest.mark.fault("C20")
def test_a_folder_of_code_that_a_head_imports_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its code would not be part of the run's id. Here a file beside the head imports it."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "factor.py").write_text("X = 1\n", encoding="utf-8")
    (tmp_path / "beside.py").write_text("from parts import factor\n", encoding="utf-8")
    assert main(["plan", "--study", str(write(tmp_path, "import beside\n" + EXAMPLE))]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and f"folder {tmp_path / 'parts'}," in line


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [("declaration, function", "_, function", "declaration = HEAD"), ("from torch", "from torc", "imported")],
)
def test_a_head_without_a_class_is_rejected(tmp_path: Path, old: str, new: str, words: str) -> None:
    registry.add(write(tmp_path, EXAMPLE.replace(old, new)).with_name("tanhmax.py"))
    with pytest.raises(UserError, match=words):
        heads.build("tanhmax", **SIZES)
