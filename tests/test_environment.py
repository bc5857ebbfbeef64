"""One source of truth for versions: the lock. The conda file and the project's dependencies agree with it."""

from __future__ import annotations

import re
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


def test_the_container_and_the_hosted_checks_repeat_nothing() -> None:
    """One builds the environment as everybody does, the other calls what runs anywhere."""
    container = (ROOT / "envs" / "Containerfile").read_text(encoding="utf-8")
    assert "RUN make env" in container and "pip install" not in container
    hosted = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert [step["run"] for step in hosted["jobs"]["ci"]["steps"] if "run" in step] == [".ci/run"]


def test_one_version_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    notes = re.findall(r"^## ([0-9.]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert PROJECT["version"] == cited == notes[0] == softmax_bottleneck.__version__


def test_every_import_is_a_declared_dependency() -> None:
    names = {
        "torch",
        "numpy",
        "psutil",
        "markupsafe",
        "scipy",
        "pandas",
        "matplotlib",
        "seaborn",
        "jinja2",
        "pydantic",
        "typing_extensions",
        "safetensors",
    }
    found = set()
    for path in (ROOT / "workflow" / "softmax_bottleneck").rglob("*.py"):
        found |= set(re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    third_party = found - set(__import__("sys").stdlib_module_names) - {"softmax_bottleneck"}
    optional = {name for extra in ("gpu", "hf", "gguf") for name in EXTRAS[extra]}
    assert third_party <= names | {"yaml", "rocrate"} | optional
