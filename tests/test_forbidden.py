"""Calls that lose files, run what they read, or depend on the machine are made in one place or nowhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "workflow" / "softmax_bottleneck"
SOURCES = sorted(PACKAGE.rglob("*.py"))
WORKFLOW = [ROOT / "Snakefile", ROOT / "workflow" / "Snakefile", *sorted((ROOT / "workflow" / "rules").glob("*.smk"))]
TEMPLATES = sorted((ROOT / "report").glob("*.j2"))

# What is forbidden everywhere, and why. Names as they are written in a call.
NOWHERE = {
    "eval": "runs text",
    "exec": "runs text",
    "compile": "runs text",
    "os.system": "a shell",
    "os.popen": "a shell",
    "yaml.load": "runs tags",
    "yaml.unsafe_load": "runs tags",
    "yaml.full_load": "runs tags",
    "pickle.load": "runs what it reads",
    "pickle.loads": "runs what it reads",
    "pickle.dump": "is to be read by nobody",
    "pickle.dumps": "is to be read by nobody",
    "shelve.open": "is pickle",
    "joblib.load": "is pickle",
    "pd.read_pickle": "is pickle",
    "tempfile.mktemp": "a name that another may take",
    "hash": "differs from process to process",
    "Markup": "switches escaping off",
    "markupsafe.Markup": "switches escaping off",
    "shutil.unpack_archive": "writes what an archive says",
}
METHODS_NOWHERE = {"extractall": "writes what an archive says", "to_pickle": "is pickle"}
# Only these modules may write files in other ways than through artefacts.
WRITERS = {
    "artefacts.py",  # the way
    "lease.py",  # created exclusively, touched, never replaced
    "__main__.py",  # appends to a log
    "alone.py",  # holds a lock
    "crate.py",  # fills a folder of copies, packed when it is whole
}
MODES_THAT_WRITE = re.compile(r"[wax+]")
READERS_OF_ARRAYS = {"artefacts.py", "shards.py"}
KEEPER_OF_STATES = {"checkpoint.py"}
NO_FILES = ("os.open", "tarfile.open", "gzip.open", "opener.open", "archive.open", "file.open")


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Every call in a file, with the dotted name that is called (the attribute alone where there is no name)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in call.keywords if one.arg == name), None)


def is_constant(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def mode_of(call: ast.Call, position: int) -> str:
    """The mode of an open call; `?` where it is no literal."""
    node = keyword(call, "mode") or (call.args[position] if len(call.args) > position else ast.Constant("r"))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "?"


def findings(path: Path) -> Iterator[str]:
    for call, name in calls(path):
        last, place = name.rpartition(".")[2], f"{path.name}:{call.lineno}: {name}"
        if name in NOWHERE:
            yield f"{place} {NOWHERE[name]}"
        if last in METHODS_NOWHERE:
            yield f"{place} {METHODS_NOWHERE[last]}"
        if is_constant(keyword(call, "shell"), True):
            yield f"{place} starts a shell"
        yield from _of_files(call, name, last, path.name, place)
        yield from _of_arrays(call, name, path.name, place)


def _of_files(call: ast.Call, name: str, last: str, file: str, place: str) -> Iterator[str]:
    opens = name == "open" or (last == "open" and name not in NO_FILES)
    mode = mode_of(call, 1 if name == "open" else 0) if opens else ""
    if opens and MODES_THAT_WRITE.search(mode) and file not in WRITERS:
        yield f"{place} writes in another way than artefacts does"
    if last in ("write_text", "write_bytes", "savefig", "to_csv", "to_parquet") and file not in WRITERS:
        own = name.startswith("artefacts.") or last in ("to_csv", "to_parquet", "savefig")
        target = call.args[0] if call.args else None
        if not own or isinstance(target, ast.Constant):
            yield f"{place} writes in another way than artefacts does"
    reads_text = (opens and "b" not in mode) or (last in ("read_text", "write_text") and last != name)
    named = keyword(call, "encoding") is not None or (last == "write_text" and len(call.args) > 1)
    if reads_text and not named and not name.startswith("artefacts."):
        yield f"{place} takes the machine's encoding"


def _of_arrays(call: ast.Call, name: str, file: str, place: str) -> Iterator[str]:
    if name in ("np.load", "np.save", "np.savez", "np.savez_compressed"):
        if not is_constant(keyword(call, "allow_pickle"), False):
            yield f"{place} without allow_pickle=False"
        if file not in READERS_OF_ARRAYS:
            yield f"{place} outside {', '.join(sorted(READERS_OF_ARRAYS))}"
    if name == "torch.load" and not is_constant(keyword(call, "weights_only"), True):
        yield f"{place} without weights_only=True"
    if name in ("torch.load", "torch.save") and file not in KEEPER_OF_STATES:
        yield f"{place} outside {', '.join(sorted(KEEPER_OF_STATES))}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
@pytest.mark.fault("E7", "C10")
def test_nothing_forbidden_is_called(path: Path) -> None:
    assert list(findings(path)) == []


BAD = """
import os, subprocess, yaml, pickle, torch
import numpy as np
eval("1"); os.system("x"); yaml.load("x"); pickle.loads(b""); hash("x")
subprocess.run("x", shell=True)
open("x", "w"); path.open("a"); path.write_text("x"); path.read_text(); open("x")
np.load("x"); np.save("x", a); torch.load("x"); torch.save(a, "x"); torch.load("x", weights_only=False)
archive.extractall()
"""


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    """A guard that finds nothing in the worst file guards nothing."""
    path = tmp_path / "bad.py"
    path.write_text(BAD, encoding="utf-8")
    lines = {found.split(":")[1] for found in findings(path)}
    assert lines == {"4", "5", "6", "7", "8"}
    assert len(list(findings(path))) >= 18


def test_templates_escape_everything() -> None:
    for path in TEMPLATES:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe\b|autoescape\s+false|\{%\s*raw", text), path.name
        assert not re.search(r"\b(?:href|src|title|id|class|alt)=\{\{", text), (
            f"{path.name}: an attribute without quotes"
        )


def test_environments_of_templates_escape() -> None:
    made = [(call, path) for path in SOURCES for call, name in calls(path) if name.endswith("Environment")]
    assert made
    for call, path in made:
        assert is_constant(keyword(call, "autoescape"), True), path.name
        assert "StrictUndefined" in ast.unparse(call), path.name


def test_rules_keep_away_from_what_loses_work() -> None:
    """No `run:` rules, no checkpoints, and nothing of a training run that Snakemake would delete."""
    for path in WORKFLOW:
        text = re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
        text = text.replace("temp(artefacts.job_file(", "")  # says only that a job of several runs has ended
        found = re.search(r"^\s+run:\s*$|^checkpoint\s|\b(directory|temp|pipe)\(|\bshadow:", text, re.MULTILINE)
        assert not found, f"{path.name}: {found}"


def test_addresses_are_fetched_over_https_alone() -> None:
    for path in sorted((ROOT / "config" / "datasets").glob("*.yaml")):
        assert "http://" not in path.read_text(encoding="utf-8"), path.name
