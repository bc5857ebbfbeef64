"""Archived studies: the numbers of the study itself, the same bytes every time, and refused when they are damaged."""

import gzip
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import claim_examples as examples
import fake_results as fake
import pandas as pd
import pytest
from softmax_bottleneck import study as config
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.records import collection, records
from softmax_bottleneck.report import archive, archive_rules, views
from softmax_bottleneck.report.page import table_page
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import IncompleteError, UserError
from softmax_bottleneck.store.paths import ROOT

SHIPPED = sorted((ROOT / "report" / "evidence" / "studies").glob("*.json.gz"))


def planned_experiment(name: str, near: Path) -> config.PlannedExperiment:
    return config.PlannedExperiment.of(config.load_experiment(name, near))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished study, and an empty folder of archives."""
    folder = tmp_path_factory.mktemp("archive")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        study = fake.load(folder, fake.showing("parthiban2021-table2: {models: all}"))
        fake.write_all(study)
        examples.judged(study)
        yield folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of archives, which is used instead of the repository's."""
    monkeypatch.setattr(archive, "FOLDER", tmp_path / "studies")
    return tmp_path / "studies"


def test_an_archive_has_the_numbers_states_and_verdicts_of_its_study(finished: Path) -> None:
    study = fake.load(finished, (finished / "study.yaml").read_text(encoding="utf-8"))
    path = archive.write(study)
    first = path.read_bytes()
    assert path.name == "fake-fake.json.gz" and archive.write(study).read_bytes() == first  # "Fake CPU"
    (found,) = archive.load_all()
    for run in study.needed:
        values = found.records.values(run.dataset, run.model, "test_ppl")
        assert values[run.seed] == fake.perplexities(run)["test_ppl"]
        assert found.settings[run.dataset, run.model].settings == run.settings
    own = study.store.study_folder(study.name)
    assert found.records.states.equals(records.load(own).states) and found.corpora.keys() == study.datasets.keys()
    verdicts = {(one["id"], one["dataset"]): one["verdict"] for one in found.claims}
    shown = artefacts.read_json(own / "claims.json")["claims"]
    assert {(one["id"], one["dataset"]): one["verdict"] for one in shown}.items() <= verdicts.items()
    assert set(verdicts) > {(one["id"], one["dataset"]) for one in shown}  # those of all papers


@pytest.mark.parametrize(("changes", "missing", "unfinished"), [
    ({"seeds: [1, 2, 3]": "seeds: [1, 2, 3, 4]"}, 6, False),  # a run of each of six models
    ({"learning_rate: 10": "learning_rate: 5"}, 18, False),
    ({"learning_rate: 10": "learning_rate: 5", "study: fake": "study: other"}, 19, True),  # nothing to archive
])  # fmt: skip
def test_results_from_before_a_change_of_the_study_are_not_archived(finished, tmp_path, changes, missing, unfinished):
    text = fake.showing("parthiban2021-table2: {models: all}", "merity2017-ranks:")
    assert archive.write(fake.load(tmp_path, text))
    for old, new in changes.items():
        text = text.replace(old, new)
    with pytest.raises(IncompleteError, match=f": {missing} planned"):
        archive.write(fake.load(tmp_path, text), unfinished)


def test_runs_on_a_published_corpus_are_kept_with_spectrum_and_epochs_also_of_an_unfinished_study(
    place: Path, monkeypatch
) -> None:
    paper = fake.load(place, fake.paper_text())
    run = next(run for run in paper.needed if (run.dataset, run.model, run.seed) == ("ptb", "mos", 1001))
    for started in (run, next(run for run in paper.needed if run.model == "softmax")):
        fake.write_run(started)
        fake.write_topk(started)
    artefacts.remove(paper.store.run_folder(started.path) / "rank.json")  # but its spectrum.npz is there
    fake.write_epoch_ranks(run)
    with pytest.raises(IncompleteError):
        archive.write(paper)
    path = archive.write(paper, unfinished=True)
    (study,) = archive.load_all()
    (archived,) = archive.archived_runs()
    assert set(study.records.states["model"]) == {"mos"} and set(study.records.rows["run_id"]) == {run.run_id}
    assert study.records.detail(run.path, "predictions")[0]["target"] == "tons" and len(study.records.details) == 1
    assert archived.run == run and archived.values["test_ppl"] == fake.perplexities(run)["test_ppl"]
    (whole_K,) = artefacts.read_npz(paper.store.run_folder(run.path) / "spectrum.npz").values()
    assert all(sigma == whole_K[index - 1] for index, sigma in archived.spectrum)
    last = run.body.embedding_size + 2  # of a softmax
    assert {last, last + 1, fake.rank_of(run), fake.rank_of(run) + 1} <= {index for index, _ in archived.spectrum}
    assert [line["rank_press"] for line in archived.epoch_ranks] == [10.0, 20.0, 30.0, 40.0, 50.0]
    table = views.build(paper, planned_experiment("published-size", place), collection.collect(paper))
    cells = {cell.metric: cell for cell in table.sections[0].rows[0].cells}
    assert cells["test_ppl"].difference == pytest.approx(fake.perplexities(run)["test_ppl"] - 54.91)
    content = json.loads(gzip.decompress(path.read_bytes()))
    other = content["runs"][0]
    other["run"]["schedule"]["epochs"] -= 1  # no longer the published setting
    other["spectrum"] = [[1, 4.0], [2, 1.0]]
    content["runs"].append(other | {"run": other["run"] | {"dataset": "wikitext-2"}})
    content["states"]["label"] = ["<b>MoS"]
    first = content["rows"]["metric"].index("test_ppl")
    for name, values in content["rows"].items():  # a unigram model as good as both runs, which share a run_id
        values.append("unigram_ppl" if name == "metric" else values[first])
    monkeypatch.setattr(archive_rules, "RULES", ())
    archive.save(content | {"hardware": "Another CPU"})
    table = views.build(paper, planned_experiment("published-size", place), collection.collect(paper))
    assert {section.dataset: len(section.rows) for section in table.sections} == {"ptb": 2, "wikitext-2": 1}
    assert all(cell.difference is None for cell in table.sections[0].rows[0].cells)
    assert "<b>MoS" not in table_page(table)


def test_archives_of_two_machines_keep_all_runs_of_an_unfinished_study(place: Path) -> None:
    paper = fake.load(place, fake.paper_text())
    first, second, *_ = (run for run in paper.needed if (run.dataset, run.model) == ("ptb", "mos"))
    names = []
    for here in ([first], [second], [first, second]):
        shutil.rmtree(paper.store.run_folder(first.path).parent, ignore_errors=True)
        for run in here:
            fake.write_run(run)
        names.append(archive.write(paper, unfinished=True).name)
    assert names[0] == names[2] and names[1] == names[0].replace(".json.gz", "-2.json.gz")
    assert [len(one.records.states) for one in archive.load_all()] == [2, 1]
    content = json.loads(gzip.decompress((archive.FOLDER / names[0]).read_bytes()))
    missing = content.pop("missing")
    assert archive.save(content).name == names[0]  # the study has finished
    fewer = (
        content
        | {"missing": missing}
        | {part: {key: [] for key in content[part]} for part in ("states", "stages", "rows")}
    )
    assert archive.save(fewer).name == names[0].replace(".json.gz", "-3.json.gz")


CONTENT = {
    "study": "small", "title": "Small", "hardware": "Some(R) CPU @ 2 GHz", "digest": "0" * 12, "command": "make",
    "corpora": {"a": "A"}, "claims": [], "environments": [
        {"git": {"commit": "0" * 40}, "versions": {"python": "3.11.2"}, "hardware": {"cpu": "Some CPU"}}],
    "rows": {
        "table": ["measure"] * 2, "dataset": ["a"] * 2, "model": ["m"] * 2, "condition": [""] * 2,
        "metric": ["test_ppl"] * 2, "value": [3.5, 4.5], "n": [None, 1], "seed": [1, 2], "run_id": ["0" * 12] * 2,
    },
    "states": {key: [None] * 2 for key in records.STATE_COLUMNS} | {
        **{key: [key] * 2 for key in ("label", "reason", "hardware")}, "dataset": ["a"] * 2, "model": ["m"] * 2,
        "seed": [1, 2], "run_id": ["0" * 12] * 2, "path": [f"a/m/{seed}-{'0' * 12}" for seed in (1, 2)],
        "state": ["missing"] * 2}, "stages": {key: [] for key in records.STAGE_COLUMNS},
}  # fmt: skip


@pytest.mark.parametrize(("machines", "expected"), [
    (["cpu AVX512, A(R) B(TM) CPU @ 2 GHz"], "A B"), (["cpu AVX512, cpu AVX2, A Processor"], "A (AVX2)"),
    (["G, A"], "G"), (["G, A", "G, cpu AVX2, B"], "G and B (AVX2)"), (["cpu AVX2, G, B"], "B (AVX2) and G"),
])  # fmt: skip
def test_an_archive_names_gpus_or_processors_with_instruction_sets_that_change_bits(machines, expected: str) -> None:
    states = pd.DataFrame(dict.fromkeys(records.STATE_COLUMNS, machines))
    assert archive.machines(records.Records(pd.DataFrame(columns=list(records.COLUMNS)), states)) == expected


CLAIM = {
    "id": "mos-better", "source": "s", "statement": "s", "where": "w", "limits": "", "criterion": "c", "models": ["m"],
    "dataset": "a", "verdict": "reproduced", "reason": "", "code": "", "premises": [],
    "numbers": [{"what": "w", "text": "t", "unit": "", "n": [1], "value": 1.0, "low": None, "high": None}],
}  # fmt: skip
DEEP: list = []
for _ in range(90):
    DEEP = [DEEP]


def edited(**rows: object) -> dict[str, object]:
    return CONTENT | {"rows": CONTENT["rows"] | rows}


def text_of(content: object, old: str = "", new: str = "") -> bytes:
    text = json.dumps(content)
    assert old in text
    return text.replace(old, new, 1).encode()


def of_claim(**changes: object) -> dict[str, object]:
    return CONTENT | {"claims": [CLAIM, CLAIM | changes]}


def of_state(**changes: object) -> dict[str, object]:
    return CONTENT | {"states": CONTENT["states"] | {key: [value] * 2 for key, value in changes.items()}}


def of_run(**changes: object) -> dict[str, object]:
    return CONTENT | {"runs": [{"name": "one", "run": {}} | changes]}


ODD = {  # content, and the key that the message names
    "columns of other lengths": (edited(seed=[1]), "rows: the columns are no table: .*seed has 1"),
    "a number whose sum overflows": (edited(value=[3.5, 1e308]), "rows.value.1: 1e.308"),
    "a negative seed": (edited(seed=[1, -2]), "rows.seed.1"),
    "no digest": ({key: value for key, value in CONTENT.items() if key != "digest"}, "digest"),
    "a claim as text": (CONTENT | {"claims": ["mos-better"]}, "claims.0"),
    "an empty claim": (CONTENT | {"claims": [{}]}, "claims.0.id, claims.0.source"),
    "another verdict": (of_claim(verdict="yes"), "claims.1.verdict: 'yes'"),
    "a number of a claim": (of_claim(numbers=[CLAIM["numbers"][0] | {"n": 3}]), "claims.1.numbers.0.n"),
    "a dict as hardware": (CONTENT | {"hardware": {"cpu": "x"}}, "hardware: "),
    "hardware of an environment": (
        CONTENT | {"environments": [{"hardware": "x"}]},
        "environments.0.git, environments.0.versions|environments.0.hardware",
    ),
    "an unknown state": (of_state(state="fine"), "states.state.0"),
    "negative seconds": (of_state(wall_s=-1), "states.wall_s.0"),
    "deep nesting": (of_claim(models=DEEP), "claims.1.models.*: nested deeper"),
    "deeper nesting": (b"[" * 100_000 + b"]" * 100_000, "no archive of a study"),
    "a long text": (CONTENT | {"title": "x" * 10_001}, "title: a text of 10001 characters"),
    "a large integer": (edited(n=[None, 10**30]), "rows.n.1: an integer"),
    "an integer of many digits": (text_of(CONTENT, "3.5", "9" * 5000), "no archive of a study"),
    "infinity": (text_of(CONTENT, "3.5", "1e400"), "rows.value.0: inf"),
    "a run without settings": (of_run(), "one: "),
    "a spectrum of zeros": (of_run(spectrum=[[1, 0.0]]), "runs.0: spectrum: "),
    "a spectrum from 0": (of_run(spectrum=[[0, 1.0]]), "runs.0.spectrum.0.0"),
    "a list": ([], ""),
    "a bomb": (b" " * (1 << 25), "16 MiB when unpacked"),
}


@pytest.mark.fault("H8")
@pytest.mark.parametrize(("content", "key"), ODD.values(), ids=ODD)
def test_an_archive_edited_by_hand_is_refused_in_a_line_that_names_file_and_key(folder, capsys, content, key) -> None:
    archive.save(CONTENT | {"claims": [CLAIM]})
    path = folder / "small.json.gz"
    artefacts.write_bytes(path, gzip.compress(content if isinstance(content, bytes) else json.dumps(content).encode()))
    assert main(["verify", "--archive", str(path)]) == 2
    message = capsys.readouterr().err
    assert re.search(rf"small\.json\.gz: .*{key}", message) and message.count("\n") == 1
    (finding,) = archive.findings()
    assert finding.kind == "damaged" and str(path) in finding.words and "\n" not in finding.words
    assert [one.name for one in archive.load_all()] == ["small-some"]  # the other archive is read
    with pytest.raises(UserError, match=re.escape(str(path))):
        archive.find("small")


# --- twelve and more edits of a real archive, each with a new hash ---------------------------------------------------
Content = dict[str, Any]


def number(content: Content, metric: str) -> int:
    """The index of the first row with this metric."""
    return content["rows"]["metric"].index(metric)


def value(metric: str, change: Callable[[float], float]) -> Callable[[Content], None]:
    """An edit of one number."""

    def edit(content: Content) -> None:
        values = content["rows"]["value"]
        values[number(content, metric)] = change(values[number(content, metric)])

    return edit


def column(table: str, key: str, change: Callable[[Any], Any]) -> Callable[[Content], None]:
    """An edit of the first value of a column."""

    def edit(content: Content) -> None:
        content[table][key][0] = change(content[table][key][0])

    return edit


def other_seed(content: Content) -> None:
    """Another seed of the first run, in rows, states and path."""
    run_id, seed = content["states"]["run_id"][0], content["states"]["seed"][0]
    content["states"]["seed"][0] = seed + 70
    content["states"]["path"][0] = content["states"]["path"][0].replace(f"/{seed}-", f"/{seed + 70}-")
    rows = content["rows"]
    rows["seed"] = [
        one + 70 if other == run_id else one for one, other in zip(rows["seed"], rows["run_id"], strict=True)
    ]


def copied_run(content: Content, seed: int = 99) -> None:
    """A copy of the first run that claims to be of another seed."""
    run_id = content["states"]["run_id"][0]
    for table in ("rows", "states"):
        columns = content[table]
        for index in [i for i, one in enumerate(columns["run_id"]) if one == run_id]:
            for key, values in columns.items():
                values.append({"seed": seed, "run_id": "f" * 12}.get(key, values[index]))
    content["states"]["path"][-1] = f"ptb/{content['states']['model'][0]}/{seed}-{'f' * 12}"


def twice(content: Content) -> None:
    """The first row of the table twice."""
    for values in content["rows"].values():
        values.append(values[0])


def history(content: Content) -> None:
    """A better validation perplexity in the log alone."""
    for line in content["runs"][0]["history"]:
        line["valid_ppl"] -= 1


EDITS: dict[str, tuple[Callable[[Content], Any], str]] = {
    "a lower test perplexity": (value("test_ppl", lambda ppl: ppl * 0.97), "test_ppl: contradicts test_ppl_sound"),
    "a test perplexity lowered by 0.001": (value("test_ppl", lambda ppl: ppl - 0.001), "test_ppl"),
    "a lower validation perplexity": (value("valid_ppl", lambda ppl: ppl - 0.1), "valid_ppl"),
    "another seed": (other_seed, "runs.*seed"),
    "another seed in rows": (column("rows", "seed", lambda seed: seed + 1), "rows.run_id: no such run"),
    "a run copied as another seed": (copied_run, "perplexities: occurs twice"),
    "a row twice": (twice, "rows: occurs twice"),
    "no column n": (lambda content: content["rows"].pop("n"), "rows.n"),
    "a column of texts": (lambda content: content["rows"].update(value=["1"] * 220), "rows.value.0"),
    "NaN": (value("test_ppl", lambda _: math.nan), "NaN is no JSON number"),
    "infinity": (value("test_ppl", lambda _: math.inf), "Infinity is no JSON number"),
    "an unknown metric": (column("rows", "metric", lambda _: "test_pp"), "rows.metric: unknown metric 'test_pp'"),
    "an unknown head": (lambda content: content["runs"][0]["run"]["head"].update(name="softermax"), "unknown head"),
    "no commit": (lambda content: [block.pop("git") for block in content["environments"]], "environments.0.git"),
    "no environment": (lambda content: content.update(environments=[]), "environments"),
    "other parameters": (value("parameters", lambda count: count - 1), "params_m: contradicts"),
    "a perplexity below 1": (value("valid_ppl_sound", lambda _: 0.9), "valid_ppl_sound is impossible"),
    "a negative KL": (column("rows", "metric", lambda _: "kl_truth_nats"), "rows"),
    "a rank above the number of words": (value("rank_press", lambda _: 10_001.0), "rank_press: above rank_press_high"),
    "a rank that the spectrum lacks": (value("rank_press", lambda rank: rank + 1), "spectrum"),
    "a share above 1": (value("hit_rate_1", lambda _: 1.01), "hit_rate_1 is impossible"),
    "an extra key": (lambda content: content.update(author="me"), "author"),
    "negative seconds": (value("sec_per_epoch", lambda seconds: -seconds), "sec_per_epoch is impossible"),
    "fewer minutes": (value("train_minutes", lambda minutes: minutes / 2), "train_minutes: contradicts"),
    "a log that contradicts its run": (history, "history: the best epoch contradicts rows"),
    "more epochs than planned": (column("states", "planned_epochs", lambda epochs: epochs - 1), "epochs"),
    "a best epoch beyond the last": (
        column("states", "best_epoch", lambda epoch: epoch + 9),
        "best_epoch: contradicts",
    ),
    "fewer epochs in a row": (value("epochs", lambda epochs: epochs - 1), "states: .*: epochs: contradicts"),
    "runs without settings": (lambda content: content.update(study="new"), "settings: contradicts"),
    "other settings": (lambda content: content["runs"][0]["run"]["schedule"].update(learning_rate=1.0), "run_id"),
}


@pytest.mark.fault("H8")
@pytest.mark.parametrize(("edit", "key"), EDITS.values(), ids=EDITS)
def test_an_edit_of_a_real_archive_is_refused_although_its_hash_agrees(edit, key: str, tmp_path, capsys) -> None:
    (source,) = (path for path in SHIPPED if path.name == "benka-mixture-intel-xeon.json.gz")
    content = json.loads(gzip.decompress(source.read_bytes()))
    path = tmp_path / source.name
    edit(content)
    artefacts.write_bytes(path, gzip.compress(json.dumps(content).encode()))
    assert main(["verify", "--archive", str(path)]) == 2
    message = capsys.readouterr().err
    assert re.search(rf"{source.name}: .*{key}.*Fix: ", message) and message.count("\n") == 1


@pytest.mark.fault("H8")
@pytest.mark.parametrize(("study", "rank", "message"), [
    ("dirichlet", 20, ""),
    ("dirichlet", 21, "rank_press exceeds the number of words"),
    ("tuned", 20, "study: 'tuned' does not begin the file's name"),
])  # fmt: skip
def test_an_archive_of_fits_has_possible_ranks_and_its_own_study(study, rank, message, tmp_path, capsys) -> None:
    (source,) = (path for path in SHIPPED if path.name == "dirichlet-amd-epyc.json.gz")
    content = json.loads(gzip.decompress(source.read_bytes())) | {"study": study}
    rows = content["rows"]
    of_rank = (index for index, name in enumerate(rows["metric"]) if name == "rank_press")
    rows["value"][next(index for index in of_rank if ";M=20;" in rows["condition"][index])] = rank
    path = tmp_path / source.name
    artefacts.write_bytes(path, gzip.compress(json.dumps(content).encode()))
    assert main(["verify", "--archive", str(path)]) == (2 if message else 0)
    assert message in capsys.readouterr().err


def test_all_that_an_archive_may_hold_is_accepted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = archive.save(CONTENT | {"claims": [CLAIM | {"more": 1}]})
    assert main(["verify", "--archive", str(path)]) == 0 and "2 numbers, 2 runs, 1 verdicts" in capsys.readouterr().out


@pytest.mark.fault("H8")
def test_one_bad_archive_is_left_out_of_a_report_with_a_warning_and_fails_verify(study, folder, capsys) -> None:
    path = archive.save(CONTENT)
    artefacts.sidecar(path).unlink()
    assert main(["render", "--study", str(study.file)]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1 and f"{path.name}.sha256" in warnings[0]
    gaps = artefacts.read_json(study.store.study_folder(study.name) / "page.json")["gaps"]
    assert len(gaps) == 1 and path.name in gaps[0]
    assert main(["verify", "--study", str(study.file)]) == 3
    assert main(["compare", path.name.removesuffix(".json.gz"), "small"]) == 2


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data + b"x", lambda data: b"no archive"])
def test_verify_finds_damaged_bytes_with_and_without_a_new_hash(folder: Path, damage) -> None:
    path = archive.save(CONTENT)
    assert path.name == "small-some.json.gz"
    data = damage(path.read_bytes())
    path.write_bytes(data)
    for write in (lambda: path.write_bytes(data), lambda: artefacts.write_bytes(path, data)):
        write()
        (finding,) = archive.findings()
        assert finding.kind == "damaged" and finding.file.endswith("small-some.json.gz")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_the_archives_of_the_repository_are_sound_small_and_possible(path: Path) -> None:
    """A softmax has rank d + 2 at most; a spectrum falls; at rank 1 a run has only learned unigrams."""
    study = archive.load(path)
    measured = study.records.rows
    assert set(measured["run_id"]) - {""} <= set(study.records.states["run_id"]) | set(study.records.stages["run_id"])
    assert sum(file.stat().st_size for file in SHIPPED) < 2 << 20
    for run in study.runs:
        settings, values, sigmas = run.run, run.values, [sigma for _, sigma in run.spectrum]
        assert values["rank_press"] <= values["embedding_size"] + 2 or settings.head.name not in ("softmax", "moc")
        assert sigmas == sorted(sigmas, reverse=True) and run.spectrum[0][0] == 1 and sigmas[-1] >= 0
        most = (1.15 if values["rank_press"] == 1 else 1.01) * values["unigram_ppl"]
        assert values["test_ppl"] < most and values["epochs"] == settings.schedule.epochs


def test_a_report_has_room_for_an_archive_without_a_measured_run(study, folder) -> None:
    nothing = {part: {key: [] for key in CONTENT[part]} for part in ("rows", "states", "stages")}
    archive.save(CONTENT | nothing)
    assert main(["render", "--study", str(study.file)]) == 0


def test_fits_that_were_archived_before_convergence_was_a_premise_are_judged_again() -> None:
    """After 150 updates MoS has up to 0.94 % of the unigram model's KL where theory says 0."""
    (path,) = (path for path in SHIPPED if path.name == "demo-intel-xeon.json.gz")
    stored = {entry["id"]: entry["verdict"] for entry in json.loads(gzip.decompress(path.read_bytes()))["claims"]}
    judged = {entry["id"]: entry["verdict"] for entry in archive.load(path).claims}
    changed = {name for name, verdict in stored.items() if judged[name] != verdict}
    assert changed == {"ganea-lms-kl", "ganea-lms-modes", "ganea-lms-low-d"}
    assert {judged[name] for name in changed} == {"cannot be tested here"}
