"""A report of a made-up study, built once, and a headless Chromium to open it with; skipped where there is none.

What was seen is kept in tests/browser/screenshots.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import fake_results as fake
import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from softmax_bottleneck.store import artefacts

SCREENSHOTS = Path(__file__).parent / "screenshots"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass
class Visit:
    """An open page with what it asked for and what it complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if program is None:
        pytest.skip("needs a Chromium on the path: apt-get install chromium")
    with sync_playwright() as playwright:
        # As root in a container, as in continuous integration: no sandbox, little shared memory, no graphics.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        opened = playwright.chromium.launch(executable_path=program, args=arguments)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def report_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study with two corpora, published numbers beside most of its own, and gaps."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(artefacts.os, "fsync", lambda descriptor: None)
        study = fake.load(folder, fake.paper_text("[1001, 1002, 1003]"))
        for run in study.needed:
            fake.write_run(run)
        fake.write_done(next(run for run in study.needed if run.model == "gss"), "diverged", "nan in epoch 3")
        fake.write_synthetic(study)
        return fake.build(study).resolve()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Return a function that opens a file at a width and a fragment, in light or dark, with scripts or without."""
    with ExitStack() as opened:

        def go(path: Path, *, width: int = 1400, scheme: str = "light", scripts: bool = True, at: str = "") -> Visit:
            context = browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=scripts
            )
            opened.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(120_000)  # on a busy machine
            seen = Visit(page)
            page.on("request", lambda request: seen.requests.append(request.url))
            page.on("console", lambda words: seen.complaints.append(words.text))
            page.on("pageerror", lambda error: seen.complaints.append(str(error)))
            page.goto(path.as_uri() + at)
            return seen

        yield go
