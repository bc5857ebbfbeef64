"""The workflow as a Snakemake module of another project: its configuration, its folder, its rules under new names."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from run_snakemake import in_process
from softmax_bottleneck import study as config
from softmax_bottleneck.__main__ import main

ROOT = Path(__file__).parents[1]
NANO = yaml.safe_load((ROOT / "tests" / "nano.yaml").read_text(encoding="utf-8"))
SNAKEFILE = """
configfile: "config/config.yaml"


module bottleneck:
    snakefile:
        "{snakefile}"
    config:
        config["bottleneck"]
{more}

use rule * from bottleneck as bottleneck_*


rule conclude:
    default_target: True
    input:
        rules.bottleneck_all.input,
"""


def project(folder: Path, study: dict[str, Any], more: str = "") -> Path:
    """Another project that uses this workflow as a module, with `study` in its own configuration."""
    snakefile = ROOT / "workflow" / "Snakefile"
    (folder / "Snakefile").write_text(SNAKEFILE.format(snakefile=snakefile, more=more), encoding="utf-8")
    (folder / "config" / "datasets").mkdir(parents=True)
    text = yaml.safe_dump({"another": "key", "bottleneck": study})
    (folder / "config" / "config.yaml").write_text(text, encoding="utf-8")
    return folder


def dry_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, int], str]:
    """Return the number of jobs of each rule, and all that is printed."""
    monkeypatch.chdir(folder)
    code, output = in_process("--dry-run", "--quiet", "host")
    assert code == 0, output
    return {name: int(count) for name, count in re.findall(r"^(\w+)\s+(\d+)$", output, re.MULTILINE)}, output


def test_a_whole_study_comes_from_the_other_projects_configuration(tmp_path: Path, monkeypatch) -> None:
    """Its runs are those of the same study in a file."""
    counts, output = dry_run(project(tmp_path, NANO), monkeypatch)
    assert counts["bottleneck_train"] == 6
    assert counts["conclude"] == 1
    for run in config.load_study(ROOT / "tests" / "nano.yaml").needed:
        assert f"results/runs/{run.path}/done.json" in output


def test_steps_read_that_configuration_and_datasets_beside_it(tmp_path: Path, monkeypatch) -> None:
    """The commands of jobs, called here in the environment that they get, find the study and its project's corpus."""
    folder = project(tmp_path, NANO | {"study": "borrowed", "datasets": ["own-text"]})
    corpus = {"name": "own-text", "kind": "corpus", "title": "Own text", "source": "here", "licence": "free"}
    corpus |= {"citation": "none", "files": {f"{s}.txt": {"path": f"{s}.txt"} for s in ("train", "valid", "test")}}
    (folder / "config" / "datasets" / "own-text.yaml").write_text(yaml.safe_dump(corpus), encoding="utf-8")
    for split, text in {"train": "a b a\nb a\n", "valid": "b b a\n", "test": "a a b\n"}.items():
        (folder / "config" / "datasets" / f"{split}.txt").write_text(200 * text, encoding="utf-8")
    monkeypatch.chdir(folder)
    target, exported = "results/tokens/own-text/corpus.json", dict[str, str]()
    code, listed = in_process("--dry-run", "--printshellcmds", target, exported=exported)
    assert code == 0, listed
    monkeypatch.setattr(os, "environ", exported)
    for words in re.findall(r"^Shell command: python -m softmax_bottleneck (.*)", listed, re.MULTILINE):
        assert main(shlex.split(words)) == 0
    assert Path(target).is_file()
