"""What would make results depend on the machine, or let text act as markup; faults/test_security.py has the rest."""

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
NO_FILES = ("os.open", "tarfile.open", "gzip.open", "opener.open", "archive.open", "file.open")
READERS_OF_ARRAYS = {"artefacts.py", "measures.py", "shards.py"}
KEEPER_OF_STATES = {"checkpoint.py"}


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Every call in a file, with the dotted name that is called."""
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
        place = f"{path.name}:{call.lineno}: {name}"
        if name == "hash":
            yield f"{place} differs from process to process"
        if _reads_text(call, name) and keyword(call, "encoding") is None:
            yield f"{place} takes the machine's encoding"
        if name.rpartition(".")[2] in ("run", "Popen") and keyword(call, "text") is not None:
            yield f"{place} decodes by the machine's encoding"
        if name in ("np.load", "np.save", "np.savez", "np.savez_compressed") and not _of_arrays(call, path):
            yield f"{place} outside {READERS_OF_ARRAYS}, or without allow_pickle=False"
        if name in ("torch.load", "torch.save") and path.name not in KEEPER_OF_STATES:
            yield f"{place} outside {KEEPER_OF_STATES}"


def _of_arrays(call: ast.Call, path: Path) -> bool:
    return path.name in READERS_OF_ARRAYS and is_constant(keyword(call, "allow_pickle"), False)


def _reads_text(call: ast.Call, name: str) -> bool:
    """Return True if a call opens a file as text, or reads or writes one whole."""
    last = name.rpartition(".")[2]
    if last in ("read_text", "write_text"):
        return name != last and not name.startswith("artefacts.") and not (last == "write_text" and len(call.args) > 1)
    opens = last == "open" and name not in NO_FILES
    return opens and "b" not in mode_of(call, 1 if name == "open" else 0)


@pytest.mark.fault("E7")
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_source_depends_on_the_machine(path: Path) -> None:
    assert list(findings(path)) == []


BAD = """
hash("x")
path.open("a"); path.write_text("x"); path.read_text(); open("x"); path.open()
subprocess.run(words, text=True)
np.load("x"); np.save("x", a, allow_pickle=False)
torch.save(a, "x"); torch.load("x")
"""


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    """A guard that finds nothing in the worst file guards nothing."""
    path = tmp_path / "bad.py"
    path.write_text(BAD, encoding="utf-8")
    assert [found.split(":")[1] for found in findings(path)] == ["2", *"33333", "4", *"55", *"66"]


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
        text = text.replace("temp(STORE.job_file(", "")  # says only that a job of several runs has ended
        found = re.search(r"^\s+run:\s*$|^checkpoint\s|\b(directory|temp|pipe)\(|\bshadow:", text, re.MULTILINE)
        assert not found, f"{path.name}: {found}"


def test_addresses_are_fetched_over_https_alone() -> None:
    for path in sorted((ROOT / "config" / "datasets").glob("*.yaml")):
        assert "http://" not in path.read_text(encoding="utf-8"), path.name
