"""The commit and the processor that results name."""

import shutil
import subprocess
from pathlib import Path

import pytest
from softmax_bottleneck.store import provenance


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_known_in_a_clone_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a"]
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message=first"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own switch
    assert provenance.block()["git"] == {"commit": head, "dirty": False}


def test_the_facts_of_a_process_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = provenance.block({"a": "1"}, flag=True)
    before["versions"]["torch"] = "changed"  # type: ignore[index]
    monkeypatch.setattr(subprocess, "run", None)
    after = provenance.block()
    assert after["git"] == before["git"] and after["hardware"] == before["hardware"]
    assert after["versions"]["torch"] != "changed" and after["parents"] == {}  # type: ignore[index]


@pytest.mark.parametrize(("model_name", "expected"), [
    ("AMD EPYC", "AMD EPYC family 26 model 2"), ("AMD EPYC 9654 96-Core Processor", "AMD EPYC 9654 96-Core Processor"),
    ("Intel(R) Xeon(R) CPU @ 2.60GHz", "Intel(R) Xeon(R) CPU @ 2.60GHz family 26 model 2"),
])  # fmt: skip
def test_a_name_without_a_number_gets_the_generation(model_name: str, expected: str) -> None:
    cores = f"processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: {model_name}\nflags\t\t: a b\n\n"
    assert provenance.processor_name(cores * 2) == expected


def test_a_system_without_cpuinfo_names_the_processor_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance.platform, "processor", lambda: "arm")
    assert provenance.processor_name("") == "arm"
