"""The report in a real browser: at three widths, light and dark, with and without scripts.

The report is that of a made-up study, built once. Without a Chromium the tests are skipped.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import fake_results as fake
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, sync_playwright
from softmax_bottleneck.records import metrics

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TABLE = "#parthiban2021-table2"
RANK = 8  # its column of the Press rank
CORPORA = ("Penn Treebank", "WikiText-2")


@dataclass
class Visit:
    """An open page with what it asked for and what it complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


Opener = Callable[..., Visit]


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


@pytest.fixture(scope="module")
def report_page(tmp_path_factory: pytest.TempPathFactory, shipped: None) -> Path:
    """The page of a study with two corpora, published numbers beside most of its own, and gaps."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
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


def serious(page: Page, within: str | None = None) -> list[tuple[str, str]]:
    """Return the violations of serious or critical impact that axe finds in a page or a part: rule and element."""
    found = Axe().run(page, within, {"resultTypes": ["violations"]}).response["violations"]
    grave = [one for one in found if one["impact"] in {"serious", "critical"}]
    return [(one["id"], node["html"]) for one in grave for node in one["nodes"]]


@pytest.mark.parametrize(("width", "scheme", "scripts"),
    [(400, "dark", True), (900, "light", False), (1400, "light", True)])  # fmt: skip
def test_it_needs_nothing_complains_of_nothing_and_fits(visit, report_page, width, scheme, scripts) -> None:
    seen = visit(report_page, width=width, scheme=scheme, scripts=scripts)
    page = seen.page
    assert [url for url in seen.requests if not url.startswith("data:")] == [report_page.as_uri()]
    assert seen.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    broken = page.evaluate("[...document.images].filter((one) => !one.complete || !one.naturalWidth).length")
    assert (page.locator("img").count() > 3, broken) == (True, 0)
    assert page.locator("button, select, input").count() == 0 or scripts
    table = page.locator(f"{TABLE} table").first
    assert not table.is_visible()
    page.locator(f"details:has({TABLE}) > summary").click()
    assert table.is_visible()
    if width == 1400:  # all columns of the main table are in sight
        assert all(part.evaluate("(one) => one.scrollWidth <= one.clientWidth")
                   for part in page.locator(f"{TABLE} .scroll").all())  # fmt: skip
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible() and table.is_visible()


def test_axe_finds_nothing_serious(visit: Opener, report_page: Path) -> None:
    """Narrow and dark; the test of the filters checks a wide light page."""
    page = visit(report_page, width=400, scheme="dark").page
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert serious(page) == []


def test_no_other_script_runs(visit: Opener, report_page: Path, tmp_path: Path) -> None:
    """A script that a broken template would let through is refused by the page's policy."""
    text = report_page.read_text(encoding="utf-8").replace("</main>", "<script>document.title = 'evil'</script></main>")
    (tmp_path / "evil.html").write_text(text, encoding="utf-8")
    seen = visit(tmp_path / "evil.html")
    assert seen.page.title() != "evil"
    assert len(seen.complaints) == 1 and "Content Security Policy" in seen.complaints[0]
    assert seen.page.locator("th button").count() > 50  # while the page's own one works


def test_the_keyboard_reaches_the_content_and_the_table_of_contents(visit: Opener, report_page: Path) -> None:
    page = visit(report_page).page
    page.keyboard.press("Tab")
    skip = page.locator(":focus")
    assert skip.inner_text() == "Skip to the results" and skip.bounding_box()["x"] >= 0
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.locator("nav a:focus").count():
            break
    link = page.locator("nav a:focus")
    target = link.get_attribute("href")
    page.keyboard.press("Enter")
    assert page.url.endswith(target) and page.locator(target).bounding_box()["y"] < 900
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.url.endswith("#content")


def test_a_number_opens_to_everything_behind_it_without_scripts(visit: Opener, report_page: Path) -> None:
    page = visit(report_page, scripts=False, at=TABLE).page
    number = page.locator(f"{TABLE} .number", has_text="seed").nth(1)
    behind = number.locator(".behind")
    assert not behind.is_visible()
    number.locator("summary").click()
    assert re.match(r"seed \d+: [\d.]+", behind.locator("li").first.inner_text())
    words = behind.inner_text()
    name = re.search(r"softmax_bottleneck number --study \S+ (ptb/softmax/\w+)", words)[1]
    assert metrics.find(name.split("/")[2]).definition in words
    behind.locator("li a").first.click()
    run = page.locator("tr:target")
    assert run.get_attribute("id").startswith("run-ptb-softmax-") and run.bounding_box()["y"] < 900
    run.locator(".run summary").click()
    words = run.inner_text()
    assert "results/runs/ptb/softmax/" in words and "All settings are the published ones" in words


def column(table: Locator, index: int) -> list[float]:
    """Measured means of a column of numbers, in the order shown."""
    cells = table.locator(f".measured td:nth-of-type({index}) .value").all_inner_texts()
    return [float(text.split("±")[0]) for text in cells]


def test_columns_sort_by_their_measured_numbers_up_down_and_back(visit: Opener, report_page: Path) -> None:
    table = visit(report_page, at=TABLE).page.locator(f"{TABLE} table").first
    head = table.locator("thead th", has_text="Press rank")
    before, orders = column(table, RANK), []
    for expected in ("ascending", "descending", None):
        head.locator("button").press("Enter")
        assert head.get_attribute("aria-sort") == expected
        orders.append(column(table, RANK))
    assert len(set(before)) > 4 and before not in (sorted(before), sorted(before, reverse=True))
    assert orders == [sorted(before), sorted(before, reverse=True), before]
    assert table.locator("[aria-sort]").count() == 0


def test_runs_sort_one_by_one_and_a_link_still_finds_them(visit: Opener, report_page: Path) -> None:
    page = visit(report_page, at=TABLE).page
    page.evaluate("document.querySelectorAll('#runs details.part').forEach((part) => { part.open = true; })")
    runs = page.locator("#runs table").first
    runs.locator("button", has_text="Test perplexity").click()
    shown = [text for text in runs.locator("tbody tr td:nth-of-type(5)").all_inner_texts() if text]
    assert [float(text) for text in shown] == sorted(map(float, shown))
    assert runs.locator("tbody tr").last.locator("td:nth-of-type(5)").inner_text() == ""  # the diverged one
    page.locator(f"{TABLE} .number summary").first.click()
    page.locator(f"{TABLE} .number[open] li a").first.click()
    page.wait_for_function("document.querySelector('tr:target')?.id.startsWith('run-ptb-softmax')")


def test_filters_by_head_and_corpus_and_hides_published_numbers(visit: Opener, report_page: Path) -> None:
    page = visit(report_page, at=TABLE).page
    parts = page.locator(f"{TABLE} .part")
    assert parts.count() == len(CORPORA)
    page.get_by_role("combobox", name="Corpus").select_option(CORPORA[1])
    assert [part.is_visible() for part in parts.all()] == [False, True]
    page.get_by_role("combobox", name="Head").select_option("GSS")
    assert parts.nth(1).locator("tbody:visible").count() == 1
    assert re.fullmatch(r"\d+ of \d+ rows are shown\.", page.get_by_role("status").inner_text())
    assert parts.nth(1).locator("tbody:visible th").all_inner_texts() == ["GSS", "paper", "this study", "difference"]
    page.get_by_role("checkbox", name="published numbers").uncheck()
    assert parts.nth(1).locator("tbody:visible th:visible").all_inner_texts() == ["GSS", "this study"]
    for control in ("Corpus", "Head"):
        page.get_by_role("combobox", name=control).select_option("")
    page.get_by_role("checkbox", name="published numbers").check()
    assert page.get_by_role("status").inner_text() == ""
    assert parts.nth(1).locator("tbody:visible th").count() > 12
    assert serious(page, TABLE) == []
