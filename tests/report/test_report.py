"""The report: self-contained, escaped, complete about gaps, and made without torch."""

import base64
import hashlib
import itertools
import json
import os
import re
from pathlib import Path
from urllib.parse import unquote

import fake_results as fake
import pytest
from page_reader import Page
from softmax_bottleneck import study as config
from softmax_bottleneck.records import collection
from softmax_bottleneck.report import contents, page
from softmax_bottleneck.store import artefacts, paths


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, shipped):
    """Study and parsed page, all runs done."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
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
    assert page.all("script") == [{"type": "application/json", "id": "provenance-data"}, {}]
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
    assert not any(word in page.style + page.text for word in ("url(", "@import", "@font-face"))


def test_links_find_their_ids_and_tables_and_images_are_labelled(finished) -> None:
    _, page, html = finished
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"][1:] for attrs in page.all("a") if attrs["href"].startswith("#")} <= set(ids)
    entries = re.findall(r'<li><a href="#([a-z]+)\d{4}-[^"]+" title="[^"]*">([^<]+)</a>', html)  # the contents
    assert entries and all(name.lower().startswith(f"{author}: ") for author, name in entries)
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
    assert all(texts[f"{experiment.id}.csv"].count("\n") > 2 for experiment in study.experiments)
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


def test_a_large_file_is_named_and_the_training_of_every_head_is_shown(finished, monkeypatch) -> None:
    html = finished[2]
    assert 'id="training-curves"' in html
    monkeypatch.setattr(page, "MOST_EMBEDDED", 10)
    assert (page.csv_address("a,b\n1,2\n" * 9) == ""
        and page.csv_address("a\n1\n") == "data:text/csv;charset=utf-8,a%0A1%0A")  # fmt: skip


def test_models_with_incomplete_runs_lead_the_list(place: Path) -> None:
    study = fake.load(place)
    fake.write_all(study)
    fake.write_done(next(run for run in study.needed if run.path.startswith("truth-demo/gss/2-")), "diverged", "nan")
    (part,) = contents.run_tables(study, collection.collect(study))
    rows = [(model["key"], run["seed"], run["state"]) for model in part["models"] for run in model["runs"]]
    assert (len(rows), part["complete"]) == (18, 17)
    assert rows[:4] == [("gss", "1", "ok"), ("gss", "2", "diverged"), ("gss", "3", "ok"), ("softmax", "1", "ok")]


def test_a_page_on_ones_own_texts_begins_with_the_best_head_and_quotes_no_paper(place: Path) -> None:
    (place / "datasets").mkdir()
    for split in ("train", "valid", "test"):
        (place / "datasets" / f"{split}.txt").write_text(f"a {split} <unk>\n" * 99, encoding="utf-8")
    files = "{train.txt: {path: train.txt}, valid.txt: {path: valid.txt}, test.txt: {path: test.txt}}"
    own = f"name: mine\nkind: corpus\ntitle: My texts\nfiles: {files}\n"
    (place / "datasets" / "mine.yaml").write_text(own, encoding="utf-8")
    shown = fake.showing("parthiban2021-table2: {models: all}", "parthiban2021-figure3: {models: all}")
    study = fake.load(place, shown.replace("[truth-demo]", "[mine]"))
    fake.write_all(study)
    page = Page(fake.page(study))
    assert study.is_of_own_texts and "published-numbers" not in {attrs.get("id") for _, attrs in page.elements}
    assert page.text.index("Which head should I use?") < page.text.index("Overall verdicts")
    assert not [words for words in ("paper, full size", "published cells", "56.8") if words in page.text]
    assert "no run of mos-nt-components* in this study" in page.text and "rank-or-mixture" not in page.text
