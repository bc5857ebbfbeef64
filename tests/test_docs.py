"""The pages name files, commands and make targets that exist, and the drawings follow the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from softmax_bottleneck import __main__ as program

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "config" / "README.md"]


def test_the_drawings_and_the_list_of_modules_are_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "draw_architecture.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_make_target_in_the_pages_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"\bmake ([a-z-]+)", _code(page))}
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_step_in_the_pages_exists(page: Path) -> None:
    code = r"python -m softmax_bottleneck ([a-z-]+)|\bsteps? `([a-z-]+)`"
    found = re.findall(code, " ".join(page.read_text(encoding="utf-8").split()))
    assert {command or step for command, step in found} <= set(program.COMMANDS)


def test_help_fits_a_screen_and_imports_no_large_package() -> None:
    code = "import sys; from softmax_bottleneck import __main__ as program; print(program.parser().format_help());"
    code += "sys.exit(bool({'torch', 'pandas', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) <= 50


def test_paths_in_the_table_of_questions_exist() -> None:
    """Every path in an answer exists in the repository or in the package."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    answers = re.findall(r"^\| .*\? \| (.*) \|$", text, re.MULTILINE)
    assert answers
    for name in (name for answer in answers for name in re.findall(r"`([\w./-]+/[\w./-]*)`", answer)):
        folders = (ROOT, ROOT / "workflow" / "softmax_bottleneck")
        assert any((folder / name).exists() for folder in folders), name


def _code(page: Path) -> str:
    """Return everything set as code."""
    text = page.read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
