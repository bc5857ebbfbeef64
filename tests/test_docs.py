"""The pages name files, commands and make targets that exist, and the drawings follow the code."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
from softmax_bottleneck import __main__ as program
from softmax_bottleneck.study import Schedule

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks/README.md", ROOT / "config/README.md"]


def test_the_drawings_and_the_list_of_modules_are_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "draw_architecture.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_commands_and_steps_of_the_pages_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target
    found = re.findall(r"python -m softmax_bottleneck ([a-z-]+)|\bsteps? `([a-z-]+)`", " ".join(text.split()))
    assert {command or step for command, step in found} <= set(program.COMMANDS)


def test_every_test_that_a_page_names_exists() -> None:
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")]
    known = {name for source in sources for name in re.findall(r"def (test_\w+)", source)}
    metrics = set(re.findall(r"^ +(test_\w+):", (ROOT / "report" / "metrics.yaml").read_text(), re.MULTILINE))
    settings = {field.name for field in dataclasses.fields(Schedule)}
    for page in PAGES:
        assert set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))) <= known | metrics | settings, page


def test_every_make_target_in_the_pages_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for text in (page.read_text(encoding="utf-8") for page in PAGES):
        code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
        assert set(re.findall(r"\bmake ([a-z-]+)", code)) <= known


def test_help_fits_a_screen_and_imports_no_large_package() -> None:
    code = "import sys; from softmax_bottleneck import __main__ as program; print(program.parser().format_help());"
    code += "sys.exit(bool({'torch', 'pandas', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) <= 50
