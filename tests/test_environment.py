"""One source of truth for versions: the lock. The conda file and the project's dependencies agree with it."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import softmax_bottleneck
import yaml

ROOT = Path(__file__).parents[1]
LOCK = dict(
    line.split("==")
    for line in (ROOT / "envs" / "requirements.lock").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DIRECT = {*PROJECT["dependencies"], *EXTRAS["study"], *EXTRAS["heads"], *EXTRAS["dev"]}


def conda_pins() -> dict[str, str]:
    entries = yaml.safe_load((ROOT / "envs" / "environment.yaml").read_text(encoding="utf-8"))["dependencies"]
    plain = [entry for entry in entries if isinstance(entry, str)] + entries[-1]["pip"]
    return dict(re.split("==?", entry) for entry in plain if "=" in entry and not entry.startswith("python="))


def test_the_lock_pins_every_direct_dependency_exactly() -> None:
    assert set(LOCK) >= DIRECT
    assert all(re.fullmatch(r"[0-9][0-9a-zA-Z.]*", version) for version in LOCK.values())


def test_conda_names_the_same_versions() -> None:
    assert conda_pins() == {name: LOCK[name] for name in DIRECT}


def test_one_version_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    notes = re.findall(r"^## ([0-9.]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert PROJECT["version"] == cited == notes[0] == softmax_bottleneck.__version__


def test_every_import_is_a_declared_dependency() -> None:
    found = set()
    for path in (ROOT / "workflow" / "softmax_bottleneck").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).partition(".")[0])
    third_party = found - set(sys.stdlib_module_names) - {"softmax_bottleneck"}
    declared = {name for names in (PROJECT["dependencies"], *EXTRAS.values()) for name in names}
    assert third_party <= {name.replace("-", "_") for name in declared} - {"pyyaml"} | {"yaml", "pydantic_core"}
