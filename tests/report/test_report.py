"""The report: self-contained, escaped, complete about gaps, and made without torch."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import fake_results as fake
import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collect
from softmax_bottleneck.report import render
from softmax_bottleneck.store import artefacts, paths
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study.studies import STUDY_VARIABLE

VOID = {"meta", "img", "link", "br", "hr", "input", "source"}
HOSTILE = (
    *("<script>alert(1)</script>", "</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{7*7}}"),
    *("javascript:alert(1)", "$x$ \\frac", "\u202eevil\u2028", "' onload='x", "<!--", "{% raw %}"),
)


class Page(HTMLParser):
    """Elements, ids, addresses and text of a page; refuses elements that are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text = ""
        self.island = ""
        self.script = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            if self.elements[-1][1]:
                self.island += data
            else:
                self.script += data
        else:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artefacts.os, "fsync", lambda descriptor: None)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    """Study and parsed page, all runs done."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(artefacts.os, "fsync", lambda descriptor: None)
        study = fake.load(folder)
        fake.write_all(study)
        path = fake.build(study)
        assert path.resolve() == folder / "results/fake/report/index.html" and artefacts.is_sound(path)
        html = path.read_text(encoding="utf-8")
        yield study, Page(html), html


def assert_self_contained(page: Page) -> None:
    for tag, attrs in page.elements:
        assert tag not in {"link", "iframe", "object", "embed", "base", "form"}
        assert not any(key.startswith("on") or key == "style" for key in attrs), (tag, attrs)
        for key in ("src", "srcset", "href", "action", "poster", "data"):
            if key in attrs:
                assert attrs[key].startswith(("#", "data:")), (tag, attrs[key][:60])
    scripts = page.all("script")
    assert scripts == [{"type": "application/json", "id": "provenance-data"}, {}]
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(page.script.encode()).digest()).decode()
    assert policy.split("; ")[:2] == ["default-src 'none'", f"script-src 'sha256-{digest}'"]
    assert page.script == (config.ROOT / "report" / "report.js").read_text(encoding="utf-8").removesuffix("\n")


def downloads(page: Page) -> dict[str, str]:
    """File name -> text of everything the page offers for download."""
    links = {attrs["download"]: attrs["href"] for attrs in page.all("a") if "download" in attrs}
    return {name: unquote(address.split(",", 1)[1]) for name, address in links.items()}


@pytest.mark.fault("G12")
def test_the_page_needs_nothing_from_outside(finished) -> None:
    page = finished[1]
    assert_self_contained(page)
    assert not any(word in page.text for word in ("url(", "@import", "@font-face"))


def test_links_find_their_ids_and_tables_and_images_are_labelled(finished) -> None:
    page = finished[1]
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for attrs in page.all("a"):
        assert not attrs["href"].startswith("#") or attrs["href"][1:] in ids, attrs
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1 and all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(attrs["scope"] in {"col", "row", "rowgroup"} for attrs in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table")) > 5
    assert all(attrs["alt"] for attrs in page.all("img")) and page.all("img")


def test_every_experiment_has_a_section_and_its_data(finished) -> None:
    study, page, _ = finished
    sections = {attrs.get("id") for attrs in page.all("section")}
    assert {experiment.id for experiment in study.experiments} <= sections
    texts = downloads(page)
    for experiment in study.experiments:
        assert texts[f"{experiment.id}.csv"].count("\n") > 2
    runs = texts["fake-runs.csv"].splitlines()
    assert len(runs) == 1 + len(study.needed) and "test_ppl" in runs[0] and "spearman benchmark=MC-30" in runs[0]


def test_provenance_is_readable_by_machines_and_names_no_place(finished) -> None:
    study, page, _ = finished
    facts = json.loads(page.island)
    assert facts["counts"]["ok"] == len(study.needed) == 18
    assert len(facts["runs_read"]) == 18 * 5
    for name, digest in list(facts["runs_read"].items())[:5]:
        assert re.fullmatch(r"[0-9a-f]{64}", digest) and not name.startswith("/")
    everything = page.island + page.text
    for private in {str(Path.home()), str(paths.ROOT), os.uname().nodename}:
        assert private not in everything


def test_models_with_incomplete_runs_lead_the_list(results: Path) -> None:
    study = fake.load(results)
    fake.write_all(study)
    fake.write_done(next(run for run in study.needed if run.path.startswith("truth-demo/gss/2-")), "diverged", "nan")
    (part,) = render.run_tables(study, collect.collect(study))
    rows = [(model["key"], run["seed"], run["state"]) for model in part["models"] for run in model["runs"]]
    assert (len(rows), part["complete"]) == (18, 17)
    assert rows[:4] == [("gss", "1", "ok"), ("gss", "2", "diverged"), ("gss", "3", "ok"), ("softmax", "1", "ok")]


def test_a_page_on_ones_own_texts_begins_with_the_best_head_and_quotes_no_paper(results: Path) -> None:
    (results / "datasets").mkdir()
    for split in ("train", "valid", "test"):
        (results / "datasets" / f"{split}.txt").write_text(f"a {split} <unk>\n" * 99, encoding="utf-8")
    files = "{train.txt: {path: train.txt}, valid.txt: {path: valid.txt}, test.txt: {path: test.txt}}"
    own = f"name: mine\nkind: corpus\ntitle: My texts\nfiles: {files}\n"
    (results / "datasets" / "mine.yaml").write_text(own, encoding="utf-8")
    shown = fake.showing("parthiban2021-table2: {models: all}", "parthiban2021-figure3: {models: all}")
    study = fake.load(results, shown.replace("[truth-demo]", "[mine]"))
    fake.write_all(study)
    page = Page(fake.page(study))
    assert study.is_of_own_texts and "published-numbers" not in {attrs.get("id") for _, attrs in page.elements}
    assert page.text.index("Which head should I use?") < page.text.index("Overall verdicts")
    assert not [words for words in ("paper, full size", "published cells", "56.8") if words in page.text]
    assert "no run of mos-nt-components* in this study" in page.text and "rank-or-mixture" not in page.text


@pytest.mark.fault("G13")
def test_a_study_without_results_says_so(results: Path) -> None:
    study = fake.load(results, fake.showing("known-truth: {models: all}", "parthiban2021-figure7: {models: all}"))
    page = Page(fake.page(study))
    assert_self_contained(page)
    assert "0 of 18 planned training runs finished" in page.text
    assert "3 of 3 missing, seed 1, 2, 3 (not trained yet)" in page.text
    assert "nan" not in page.text.lower().replace("provenance", "")
    assert "0/3" in render.result_table(study, collect.collect(study))


@pytest.mark.fault("G1")
def test_gaps_are_stated_at_the_top_and_in_every_cell(results: Path) -> None:
    study = fake.load(results, fake.showing("parthiban2021-table2: {models: all}"))
    fake.write_all(study)
    gss = [run for run in study.needed if run.model == "gss"]
    fake.write_done(gss[0], "diverged", "nan in epoch 3")
    (Store().run_folder(gss[2].path) / "done.json").write_text("{}", encoding="utf-8")
    page = Page(fake.page(study))
    for words in ("1 of 3 diverged, seed 1 (nan in epoch 3)", "1 of 3 unsound, seed 3", "16 of 18", "n = 1 of 3"):
        assert words in page.text, words
    assert "seed 1 diverged; seed 3 unsound" in page.text
    assert "1/3" in render.result_table(study, collect.collect(study))


EVIL = ("parthiban2021-table2: {models: all}", "parthiban2021-sm-table3: {models: all}", "merity2017-ranks:")


@pytest.mark.fault("G10")
def test_every_field_is_text(results: Path) -> None:
    study = fake.load(results, fake.showing(*EVIL).replace("seeds: [1, 2, 3]", "seeds: [1]"))
    fake.write_all(study)
    fake.write_done(study.needed[0], "diverged", HOSTILE[1])
    fake.write_wordsim(study.needed[1], dict.fromkeys(HOSTILE, (10, 5)))
    words = " ".join(HOSTILE)
    labels = dict(zip(study.labels, HOSTILE, strict=False))
    experiments = tuple(
        dataclasses.replace(e, title=words, caption=words, artefact=HOSTILE[0]) for e in study.experiments
    )
    datasets = {name: dataclasses.replace(one, title=words) for name, one in study.datasets.items()}
    evil = dataclasses.replace(
        study, title=words, description=words, labels=labels, experiments=experiments, datasets=datasets
    )
    html = fake.page(evil)
    page = Page(html)
    assert_self_contained(page)
    assert page.text.count("{{7*7}}") > 5
    assert page.text.count("<script>alert(1)</script>") > 5
    json.loads(page.island)


WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("torch is not installed here")
sys.meta_path.insert(0, NoTorch())
from softmax_bottleneck.__main__ import main
sys.exit(main(["render", *sys.argv[1:]]) or main(["report", *sys.argv[1:]]))
"""


def pages_of_process(folder: Path, *arguments: str, **environment: str) -> dict[Path, bytes]:
    """Render and report a collected study in a process that cannot import torch; return the files it writes."""
    paths = os.pathsep.join([str(config.ROOT / "workflow"), *sys.path])
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    env = {**os.environ, "PYTHONPATH": paths, **environment}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    written = (path for name in ("tables", "figures", "report") for path in (folder / "results").glob(f"*/{name}/*"))
    return {path: path.read_bytes() for path in sorted(written)}


@pytest.mark.fault("G5")
def test_by_hand_and_by_the_workflow_the_report_has_the_same_bytes(results: Path) -> None:
    """Whatever the threads, the order of sets, the locale, and the reader's own matplotlib."""
    tables = ("parthiban2021-table2: {models: all}", "merity2017-ranks:")
    figures = ("parthiban2021-figure4: {models: all}", "parthiban2021-figure7: {models: all}")
    study = fake.load(results, fake.showing(*tables, *figures))
    fake.write_all(study)
    folder = study.store.study_folder(study.name)
    collect.collect_to(study, folder)
    workflow = {STUDY_VARIABLE: str(study.file.resolve()), "PYTHONHASHSEED": "1", "OPENBLAS_NUM_THREADS": "1"}
    first = pages_of_process(results, "--log", "results/logs/render/fake.log", **workflow)
    (results / "matplotlibrc").write_text("font.size: 20\nsvg.fonttype: none\n")
    own = {"PYTHONHASHSEED": "2", "OPENBLAS_NUM_THREADS": "2", "LC_ALL": "C", "MPLBACKEND": "ps"}
    second = pages_of_process(results, "--study", "study.yaml", **own)
    assert len(first) > 10 and first == second
