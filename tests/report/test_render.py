"""A number of the page, printed again with everything behind it."""

import re
from pathlib import Path

import fake_results as fake
import numpy as np
import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.extras import interim
from softmax_bottleneck.records import collection
from softmax_bottleneck.report import contents
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.paths import Store


@pytest.fixture
def study(place: Path):
    study = fake.load(place)
    fake.write_all(study)
    return study


def test_a_number_is_printed_with_its_seeds_files_and_hashes(study, capsys) -> None:
    collection.collect_to(study, study.store.study_folder(study.name))
    assert main(["number", "--study", "study.yaml", "truth-demo/mos/test_ppl"]) == 0
    text = capsys.readouterr().out
    for run in (run for run in study.needed if run.model == "mos"):
        file = Store().run_folder(run.path) / "measure.json"
        assert f"seed {run.seed}: {fake.perplexities(run)['test_ppl']!r}  {file}" in text
        assert artefacts.sha256_file(file) in text
    assert "(n = 3)" in text and "of the test text" in text
    assert main(["number", "--study", "study.yaml", "truth-demo/mos/test_pl"]) == 2
    assert "did you mean 'truth-demo/mos/test_ppl'?" in capsys.readouterr().err


def test_the_numbers_of_a_table_are_listed_by_its_name_in_the_paper(study, capsys) -> None:
    collection.collect_to(study, study.store.study_folder(study.name))
    table = next(one for one in study.experiments if one.id == "parthiban2021-table2")
    mean = np.mean(fake.ppls_of(study, "mos"))
    for name in ("Table 2", table.id):
        assert main(["number", "--study", "study.yaml", name]) == 0
        first, *lines = capsys.readouterr().out.splitlines()
        assert first.startswith(f"{table.id}: ") and len(lines) == len(set(lines))
        shown = {line.split()[0].rstrip(":"): line for line in lines}
        assert re.search(rf": {mean:.2f} ± .* \(n = 3\)$", shown["truth-demo/mos/test_ppl"])
        columns = {column.metric for column in table.columns}
        assert {key.split("/")[1] for key in shown} == set(table.models)
        assert {key.split("/")[2] for key in shown} <= columns


def test_without_results_the_command_that_makes_them_is_named(study, capsys) -> None:
    """Those of an unfinished study are read where its page lies."""
    for words in (["number", "truth-demo/mos/test_ppl"], ["claims"]):
        assert main([*words[:1], "--study", "study.yaml", *words[1:]]) == 2
        assert "study fake has no results yet" in capsys.readouterr().err
    collection.collect_to(study, interim.interim_folder(study))
    assert main(["number", "--study", "study.yaml", "truth-demo/mos/test_ppl"]) == 0


def test_what_differs_from_the_published_setting_is_named(study) -> None:
    words = contents.unlike_published(study, "truth-demo", "mos")
    assert "hidden_size 32, published 960" in words and words[0].startswith("corpus truth-demo, published ptb")
    paper = config.load_study(config.ROOT / "config" / "paper.yaml")
    assert contents.unlike_published(paper, "ptb", "mos") == []
    assert contents.unlike_published(paper, "ptb", "none") == [contents.NO_COUNTERPART]
