"""The workflow as people run it: dry runs of every study, the smallest study end to end, a kill in the middle."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml
from run_snakemake import in_process
from softmax_bottleneck import study as config
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.study import study_file

ROOT = Path(__file__).parents[1]
NANO = ROOT / "tests" / "nano.yaml"
# One run needs every rule.
FEWER = {"seeds": [1], "models": {"softmax": {"head": "softmax"}}}


def snakemake(folder: Path, study: Path, *words: str) -> list[str]:
    """Return Snakemake's arguments for a study whose results are in a folder."""
    snakefile = str(ROOT / "Snakefile")
    return ["--snakefile", snakefile, "--directory", str(folder), "--configfile", str(study), "--cores", "2", *words]


def dry_run(folder: Path, study: Path, *words: str) -> str:
    """Return what a dry run of a study prints."""
    code, output = in_process(*snakemake(folder, study, "--dry-run", *words))
    assert code == 0, output
    return output


def changed(file: Path, folder: Path, **keys: Any) -> Path:
    """A study with other keys, in a folder."""
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study_file.read_values(file) | keys), encoding="utf-8")
    return path


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "snakemake", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.fault("C1", "C19")
@pytest.mark.parametrize(("words", "expected"), [
    (["--config", "seeds=[7,8]"], [7, 8]),
    (["--config", "seeds=[true]"], "--config: seeds.0: True"),
    (["--config", "seed=3"], "--config: unknown key 'seed'; did you mean 'seeds'?"),
    (["--configfile", str(NANO), str(ROOT / "config" / "demo.yaml")], "extends: "),
])  # fmt: skip
def test_the_command_line_of_snakemake_has_numbers_and_one_study(tmp_path: Path, words: list[str], expected) -> None:
    code, output = in_process(*snakemake(tmp_path, NANO, "--dry-run", *words))
    if isinstance(expected, str):
        assert code == 1 and expected in output
    else:
        assert code == 0
        runs = config.load_study(NANO, {"seeds": expected}).needed
        assert all(f"{run.path}/done.json" in output for run in runs)


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("auto", 1)])
def test_jobs_ask_for_a_gpu_where_the_study_may_use_one(tmp_path: Path, device: str, gpus: int) -> None:
    """Otherwise a cluster would reserve GPUs for jobs that leave them idle."""
    requests = re.findall(r"gpu=\d", dry_run(tmp_path, NANO, "--config", f"device={device}"))
    assert requests == 2 * 6 * [f"gpu={gpus}"]  # train and measure of six runs


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest study, run once."""
    folder = tmp_path_factory.mktemp("nano") / f'-a b\'ü$x "q" {"long" * 30}'  # all of it on purpose
    folder.mkdir()
    shown = study_file.read_values(NANO)["experiments"] | {"parthiban2021-rank-training": {"models": ["softmax"]}}
    done = run(snakemake(folder, changed(NANO, folder, **FEWER, experiments=shown)))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.pipeline
@pytest.mark.fault("E5", "E6")
def test_a_second_call_has_nothing_to_do_wherever_the_study_was_moved(nano: Path, tmp_path: Path) -> None:
    """With its dates and Snakemake's notes nothing is done again; without either, nothing is trained again."""
    page = (nano / "results" / "nano" / "report" / "index.html").read_text(encoding="utf-8")
    assert "Every rule once" in page and str(nano) not in page
    moved = shutil.copytree(nano, tmp_path / "moved")
    assert "Nothing to be done" in dry_run(moved, moved / "study.yaml")
    bare = shutil.copytree(nano, tmp_path / "bare", copy_function=shutil.copy, ignore=lambda *_: {".snakemake"})
    output = dry_run(bare, bare / "study.yaml", "--quiet", "host")
    assert not re.search(r"^train\s", output, re.MULTILINE)


@pytest.mark.pipeline
def test_after_an_edit_snakemake_wants_exactly_the_steps_that_depend_on_it(nano: Path, tmp_path: Path) -> None:
    """A copy of the workflow has one more constant in `ranks`: all but training is to be done again."""
    for name in ("workflow", "config", "report", "envs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "Snakefile", tmp_path)
    with (tmp_path / "workflow" / "softmax_bottleneck" / "ranks" / "counts.py").open("a", encoding="utf-8") as file:
        file.write("\nCHANGED = 1\n")
    words = ["--dry-run", "--quiet", "host", "--rerun-triggers", "mtime", "params"]
    done = run([*snakemake(nano, nano / "study.yaml", *words), "--snakefile", str(tmp_path / "Snakefile")])
    assert done.returncode == 0, done.stderr
    found = set(re.findall(r"^(\w+) +[0-9]+$", done.stdout + done.stderr, re.MULTILINE))
    assert found - {"total", "all", "reproduce"} == {"measure", "collect", "render", "report"}


@pytest.mark.pipeline
def test_snakemakes_own_report_files_every_result(nano: Path) -> None:
    done = run(snakemake(nano, nano / "study.yaml", "--report", "results/nano/report.zip"))
    assert done.returncode == 0, done.stdout + done.stderr
    with ZipFile(nano / "results" / "nano" / "report.zip") as packed:
        files = {Path(name).name for name in packed.namelist()}
        page = packed.read("report/report.html").decode("utf-8")
    for experiment in config.load_study(nano / "study.yaml").experiments:
        assert f"{experiment.id}.csv" in files
        assert json.dumps(experiment.title, ensure_ascii=False) in page  # a label
    assert {"index.html", "claims.json"} <= files
    assert "problematic" not in page  # what docutils writes where a caption is not reStructuredText


@pytest.mark.pipeline
@pytest.mark.corpora
@pytest.mark.tier2
def test_real_text_goes_through_every_rule(place: Path, mirror: Path) -> None:
    """The commands that Snakemake would call, in its order, called here; then nothing is left for it to do."""
    study = ROOT / "tests" / "nano-ptb.yaml"
    options = ("--printshellcmds", "--config", f"mirror={mirror}")
    listed = dry_run(place, study, *options)
    for words in re.findall(r"^Shell command: python -m softmax_bottleneck (.*)", listed, re.MULTILINE):
        assert main([*shlex.split(words), "--study", str(study), "--set", f"mirror={mirror}"]) == 0
    assert "Nothing to be done" in dry_run(place, study, *options)
    wordsim = next((place / "results" / "runs").rglob("wordsim.json"))
    assert len(json.loads(wordsim.read_text(encoding="utf-8"))["benchmarks"]) == 13
    assert artefacts.is_sound(place / "results" / "nano-ptb" / "report" / "index.html")
