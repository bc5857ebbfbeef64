"""A wrong configuration fails before any job: exit code 2 and one line with file, key, value and expectation."""

from pathlib import Path
from typing import Any

import pytest
import small
from softmax_bottleneck import study as config
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.store import paths, schema
from softmax_bottleneck.store.errors import UserError

ROOT = Path(__file__).parents[2]
BODY, SCHEDULE, MOS = ("settings", 0, "body"), ("settings", 0, "schedule"), ("models", "mos")
FITS = {**{"kind": "dirichlet", "alphas": [1], "words": [5.0], "widths": [2], "updates": 3, "learning_rate": 0.1},
    "models": {"softmax": {"head": "softmax"}}}  # fmt: skip
# Place of the value in the study, the value, and what the message names beside the file.
STUDIES = [
    ((*BODY, "dropuot_input"), 0.1, ["settings.0.body", "'dropuot_input'", "'dropout_input'"]),
    ((*BODY, "learning_rate"), 1, ["settings.0.body", "'learning_rate'", "allowed are"]),
    (("colour",), 1, ["'colour'", "allowed are"]),
    ((*BODY, "dropout_input"), 1.0, ["settings.0.body.dropout_input", "1.0"]),
    ((*BODY, "hidden_size"), 7.0, ["settings.0.body.hidden_size", "7.0", "integer"]),
    ((*SCHEDULE, "learning_rate"), "1e-3", ["settings.0.schedule.learning_rate", "'1e-3'", "read as text"]),
    ((*SCHEDULE, "learning_rate"), float("nan"), ["settings.0.schedule.learning_rate", "nan"]),
    ((*SCHEDULE, "clip"), None, ["settings.0.schedule.clip", "None"]),
    ((*SCHEDULE, "optimizer"), "adam", ["settings.0.schedule.optimizer", "'adam'", "nt-asgd"]),
    ((*SCHEDULE, "variable_length"), "no", ["settings.0.schedule.variable_length", "'no'"]),
    (("settings",), [{"finetune": {"epoch": 3}}], ["settings.0.finetune", "'epoch'", "'epochs'"]),
    (("settings",), [{"dynamic": {"decays": []}}], ["settings.0.dynamic.decays"]),
    (("settings", 0, "when"), {"model": "moss"}, ["settings.0.when.model", "'moss'", "'mos'"]),
    ((*MOS, "head", "components"), 0, ["models.mos", "components", "0"]),
    ((*MOS, "head", "name"), "moss", ["models.mos", "'moss'", "'mos'"]),
    ((*MOS, "head"), {"name": "mos", "q": 1}, ["models.mos", "'q'"]),
    ((*MOS, "head"), {"components": 2}, ["models.mos.head", "name"]),
    ((*MOS, "like"), "nothing", ["models.mos.like", "'nothing'"]),
    ((*MOS, "like"), "mos", ["models.mos.like", "mos -> mos"]),
    ((*MOS, "datasets"), ["ptb"], ["models.mos.datasets", "'ptb'", "tiny"]),
    ((*MOS, "seeds"), "first", ["models.mos.seeds", "'first'"]),
    ((*MOS, "seeds"), [5.0], ["models.mos.seeds.0", "5.0"]),
    ((*MOS, "max_runs"), 3, ["models.mos", "max_runs", "grid"]),
    ((*MOS, "grid"), {"components": [1]}, ["models.mos.grid", "components"]),
    ((*MOS, "grid"), {"head.components": []}, ["models.mos.grid.head.components"]),
    ((*MOS, "grid"), {"head.components": [[1]]}, ["models.mos.grid", "'mos-components[1]'"]),
    ((*MOS, "grid"), {"body.layrs": [1]}, ["models.mos.grid", "'layrs'", "'layers'"]),
    ((*MOS, "grid"), {"body.layers": [0]}, ["models.mos.grid", "layers", "0"]),
    ((*MOS, "grid"), {"head.dropout_latent": [0.1000001, 0.1000002]}, ["models.mos.grid", "'mos-dropout_latent0.1'"]),
    (("datasets",), ["ptbb"], ["datasets", "'ptbb'", "'ptb'"]),
    (("datasets",), ["word-sim"], ["datasets", "'word-sim'", "benchmarks"]),
    (("datasets",), ["../tiny"], ["datasets.0", "'../tiny'"]),
    (("device",), "tpu", ["device", "'tpu'", "cuda"]),
    (("seeds",), [1, 1], ["seeds", "[1, 1]"]),
    (("seeds",), [2**63], ["seeds.0", str(2**63)]),
    (("study",), "a; touch b", ["study", "'a; touch b'"]),
    (("experiments", "parthiban2021-tabel2"), None, ["experiments", "'parthiban2021-table2'"]),
    (("experiments", "known-truth", "models"), ["softmx"], ["experiments.known-truth.models", "'softmx'", "'softmax'"]),
    (("experiments", "known-truth", "datasets"), ["tny"], ["experiments.known-truth.datasets", "'tny'", "'tiny'"]),
    (("max_wall",), "4 hours", ["max_wall", "'4 hours'", "1.5d"]),
    (("time_margin",), 0, ["time_margin", "0"]),
    (("fits",), {"toy": FITS}, ["fits.toy.words.0", "5.0"]),
    (("extends",), 3, ["extends", "3"]),
    (("extends",), "absent.yaml", ["absent.yaml", "no such file"]),
    (("extends",), "study.yaml", ["extends", "study.yaml"]),
]
DATASETS: list[tuple[dict[str, Any], list[str]]] = [
    ({"rank_contexts": 0}, ["rank_contexts", "0"]),
    ({"titel": "x"}, ["'titel'", "'title'"]),
    ({"language": small.DATASET["language"] | {"topics": 2.0}}, ["language.topics", "2.0"]),
    ({"kind": "corpus"}, ["language", "kind"]),
    ({"wordsim": "nope"}, ["'nope'"]),
    ({"wordsim": "ptb"}, ["wordsim", "'ptb'", "benchmarks"]),
    ({"contexts": "../../parthiban2021_sm_table2_contexts.csv"}, ["contexts"]),
    ({"contexts": "absent_contexts.csv"}, ["contexts", "absent"]),
    ({"expected": {"tokens": {"trian": 5}}}, ["expected.tokens.trian", "'train'"]),
    ({"base": "word-sim", "vocabulary_size": 5, "train_tokens": 50}, ["base", "'word-sim'", "corpus"]),
    ({"base": "tiny", "vocabulary_size": 5, "train_tokens": 50}, ["base", "cut from itself"]),
    ({"base": "ptb"}, ["base", "vocabulary_size", "train_tokens"]),
]


def full_study() -> dict[str, Any]:
    """Return the small study with a value in every place of the table."""
    known_truth = {"models": ["mos"], "datasets": ["tiny"], "seeds": "all"}
    return small.changed(small.values(), ("experiments", "known-truth"), known_truth)


@pytest.mark.fault("C1", "C2", "C3", "C4", "C10", "C13", "C14", "C15")
@pytest.mark.parametrize(("place", "value", "words"), STUDIES, ids=lambda part: str(part)[:40])
def test_a_wrong_study_exits_2_with_one_line(tmp_path, capsys, place, value, words) -> None:
    file = small.write(tmp_path, small.changed(full_study(), place, value))
    assert main(["plan", "--study", str(file)]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and all(word in line for word in (*words, str(tmp_path)))


@pytest.mark.fault("C3", "C9", "C13", "C14", "C15")
@pytest.mark.parametrize(("changes", "words"), DATASETS, ids=lambda part: str(part)[:40])
def test_a_wrong_dataset_is_rejected_by_key(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        small.load(tmp_path, small.STUDY, small.DATASET | changes)
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words)


@pytest.mark.fault("C6")
@pytest.mark.parametrize("name", [*sorted(paths.SHARED), "Runs"])
def test_a_study_has_no_name_of_a_shared_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"study: '{name}'"):
        small.load(tmp_path, small.values(study=name))


@pytest.mark.fault("C18")
def test_all_missing_keys_are_named_at_once(tmp_path: Path) -> None:
    study = small.values()
    del study["settings"][0]["schedule"]["clip"], study["settings"][0]["body"]["layers"]
    with pytest.raises(UserError, match=r"models\.softmax: body\.layers, schedule\.clip are not set"):
        small.load(tmp_path, study)
    del study["seeds"], study["title"]
    with pytest.raises(UserError, match="title, seeds are not set"):
        small.load(tmp_path, study)


@pytest.mark.fault("C5")
@pytest.mark.parametrize(("text", "words"), [
    ("study: a\nseeds: [1]\nstudy: b\n", ":3: key 'study' is given twice"),
    ("models: {a: {head: x, head: y}}\n", ":1: key 'head' is given twice"),
    ("settings:\n  - body:\n\t  layers: 1\n", ":3: "), ("study: small\non: 1\n", ":2: key True is not text"),
    ("? [study]\n: 1\n", ":1: "), ("study: [1\n", ":2: "),
    ("study: !!python/object/apply:os.system ['touch canary']\n", ":1: "), ("seeds: [!!int x]\n", ": "),
    ("study: a\nbase: &b {layers: 1}\nbody: {<<: *b}\n", ":3: merge keys"), ("seeds: *nothing\n", ":1: "),
    ("study: a\n---\nstudy: b\n", ":2: "), ("- 1\n", ": expected `key: value`"), ("", ": expected `key: value`"),
    ('title: "a\x00b"\n', ": "),
])  # fmt: skip
def test_a_bad_file_is_rejected_with_its_line(place: Path, text: str, words: str) -> None:
    Path("study.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=f"^study.yaml{words}") as error:
        config.load_study(Path("study.yaml"))
    assert "\n" not in str(error.value)
    assert [path.name for path in place.iterdir()] == ["study.yaml"]


@pytest.mark.fault("C5")
def test_what_is_no_text_file_is_rejected(tmp_path: Path) -> None:
    latin, absent = tmp_path / "latin.yaml", tmp_path / "latn.yaml"
    latin.write_bytes("study: small\ntitle: für alle\n".encode("latin-1"))
    for path, words in ((tmp_path, "cannot be read"), (latin, "UTF-8"), (absent, "did you mean 'latin.yaml'")):
        with pytest.raises(UserError, match=words) as error:
            config.load_study(path)
        assert ("did you mean" in str(error.value)) == (path == absent)


@pytest.mark.fault("C4", "C5")
@pytest.mark.parametrize("seed", ["010", "-010", "00", "0_7", "1:30", "190:20:30", "1:30.5"])
def test_numbers_that_yaml_1_1_reads_in_another_base_are_rejected_by_key(tmp_path: Path, seed: str) -> None:
    """PyYAML reads 010 as 8 and 1:30 as 90; YAML 1.2 reads 10 and text."""
    file = small.write(tmp_path, {key: value for key, value in small.values().items() if key != "seeds"})
    with file.open("a", encoding="utf-8") as study:
        study.write(f"seeds: [1, {seed}]\n")
    with pytest.raises(UserError, match=rf"seeds\.1: '{seed}' is not allowed"):
        config.load_study(file)
    assert config.parse_yaml(f"{{a: {seed}}}", "--set a") == {"a": seed}


def test_plain_numbers_are_numbers() -> None:
    found = config.parse_yaml("[0, 10, -3, 1_000, 0x1F, 0.5, 010.5, 1.0e-3]", "here")
    assert found == [0, 10, -3, 1000, 31, 0.5, 10.5, 0.001]


def test_dates_stay_text_and_an_alias_repeats_a_value() -> None:
    value = config.parse_yaml("a: &a [2020-01-01, 1.0e-3, 1e-3]\nb: *a\n", "here")
    assert value == {"a": ["2020-01-01", 0.001, "1e-3"], "b": ["2020-01-01", 0.001, "1e-3"]}


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("30m", 1800), ("4h", 14400), ("1.5d", 129_600)])
def test_durations_are_seconds(text: str, expected: float) -> None:
    assert schema.seconds(text) == expected


@pytest.mark.fault("C15")
@pytest.mark.parametrize("text", ["0s", "0.0h", "-1h", "4", "4 h", "1h30m", ""])
def test_no_other_text_is_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        schema.seconds(text)


@pytest.mark.fault("C15")
def test_a_margin_is_shorter_than_the_time(tmp_path: Path) -> None:
    assert small.load(tmp_path, small.values(max_wall="1h", time_margin="59m")).time_margin == "59m"
    with pytest.raises(UserError, match="time_margin: 60m"):
        small.load(tmp_path, small.values(max_wall="1h", time_margin="60m"))


def test_every_key_of_a_study_is_documented() -> None:
    text = (ROOT / "config" / "README.md").read_text(encoding="utf-8")

    def keys(rules: Any) -> set[str]:
        own = set(rules.get("properties", {}))
        return own.union(*(keys(child) for child in rules.values() if isinstance(child, dict)))

    documented = keys(schema.TypeAdapter(config.StudyFile).json_schema())
    assert len(documented) > 80 and {key for key in documented if f"`{key}`" not in text} == set()


@pytest.mark.parametrize("key", ["absent", "absent_datasets", "entries", "needs"])
def test_an_experiment_file_sets_nothing_that_is_planned(tmp_path: Path, key: str) -> None:
    original = (ROOT / "config" / "experiments" / "known-truth.yaml").read_text(encoding="utf-8")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "known-truth.yaml").write_text(f"{original}{key}: [mos]\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"known-truth\.yaml: unknown key '{key}'"):
        small.load(tmp_path)
