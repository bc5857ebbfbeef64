"""C: what is wrong in a configuration is refused before the first job; more of this family is in test_config.py."""

from __future__ import annotations

import itertools
import math
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fuzz
import mutations
import pytest
import small
from hypothesis import given, settings
from hypothesis import strategies as st
from softmax_bottleneck import study as config
from softmax_bottleneck.__main__ import main
from softmax_bottleneck.corpora.sizes import size_of
from softmax_bottleneck.store import artefacts, paths
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.study.datasets import DatasetFile
from softmax_bottleneck.training import check, trainer

ROOT = Path(__file__).parents[2]


def full_study() -> dict[str, Any]:
    """The small study with every key that its schema has."""
    values = small.values(
        mirror="copies", threads=1, deterministic=True, limits={"memory_gb": 8, "disk_gb": 8}, device="cpu"
    )
    values["settings"][0]["body"] |= {"kind": "awd-lstm", "context_size": 5, "embedding_noise": 0.0}
    schedule = {"variable_length": True, "max_length_delta": 40, "nonmonotone_window": 5}
    values["settings"][0]["schedule"] |= schedule
    values["settings"][0]["author_seed"] = 3
    values["settings"] += [{"when": {"model": "mos", "dataset": "tiny"}, "body": {"hidden_size": 8}}]
    values["models"]["moss"] = {
        **{"head": {"name": "mos", "components": 2}, "label": "Mixture", "like": "mos", "datasets": ["tiny"]},
        **{"seeds": [5], "grid": {"head.dropout_latent": [0.1, 0.2]}, "stem": "wide", "max_runs": 1},
        **{"body": {"layers": 1}, "schedule": {"epochs": 2}},
    }
    values["experiments"]["known-truth"] = {"models": ["mos"], "datasets": ["tiny"], "seeds": "all"}
    return values


def study_mutations() -> list[mutations.Mutation]:
    values = full_study()
    found = [
        *mutations.of(values, config.json_schema(config.StudyFile)),
        *mutations.of_heads(values, "mos"),
        *mutations.names(values),
    ]
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


def refused(place: Path, values: dict[str, Any], dataset: dict[str, Any] | None = None) -> str:
    """The message, empty when nothing is refused."""
    try:
        small.load(place, values, dataset)
    except UserError as error:
        return str(error)
    return ""


# --- single fields --------------------------------------------------------------------------------------------------
def test_the_full_study_itself_is_accepted(place):
    study = small.load(place, full_study())
    assert {run.model for run in study.runs} == {"softmax", "mos", "wide-dropout_latent0.1"} or len(study.runs) > 4


@pytest.mark.fault("C1", "C2", "C3", "C4")
def test_every_mutation_of_a_single_field_is_refused(place):
    wrong = study_mutations()
    assert len(wrong) > 500
    messages = {one.name: refused(place, one.values) for one in wrong}
    assert [name for name, message in messages.items() if not message] == []
    assert [name for name, message in messages.items() if "\n" in message or ".yaml" not in message] == []


def dataset_mutations() -> list[mutations.Mutation]:
    found = list(mutations.of(small.DATASET, config.json_schema(DatasetFile)))
    for key in small.DATASET["language"]:
        place = ("language", key)
        for bad in (-1, 0, "x", None, math.nan, 1.5, True, [1]):
            if not (key == "seed" and bad in (-1, 0)):
                found.append(mutations.Mutation(f"{key} = {bad!r}", mutations.changed(small.DATASET, place, bad)))
        for typo in mutations.typos(key):
            found.append(mutations.Mutation(typo, mutations.renamed(small.DATASET, ("language",), key, typo)))
    return found


@pytest.mark.fault("C3")
def test_every_mutation_of_a_dataset_is_refused(place):
    wrong = dataset_mutations()
    assert [one.name for one in wrong if not refused(place, small.STUDY, one.values)] == []


@pytest.mark.fault("C1", "C2")
@pytest.mark.parametrize(
    ("place_of", "value", "words"),
    [
        (("settings", 0, "body", "dropuot_input"), 0.1, ["dropuot_input", "did you mean 'dropout_input'"]),
        (("models", "mos", "head", "name"), "moss", ['unknown head "moss"', 'did you mean "mos"']),
        (("datasets",), ["tyni"], ["no 'tyni'", "tiny"]),
        (("device",), "tpu", ["device", "'tpu'", "auto, cpu, cuda"]),
        (("experiments", "known-truht"), None, ["known-truht", "did you mean 'known-truth"]),
    ],
)
def test_the_command_exits_2_before_any_job(tmp_path, monkeypatch, capsys, place_of, value, words):
    monkeypatch.chdir(tmp_path)
    file = small.write(tmp_path, mutations.changed(small.STUDY, place_of, value))
    before = small.tree(tmp_path)
    for step in (["plan"], ["check"], ["train", "--run", "x"], ["verify"], ["report"]):
        assert main([*step, "--study", str(file)]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and all(word in line for word in (*words, str(file)))
    assert small.tree(tmp_path) == before


# --- files ----------------------------------------------------------------------------------------------------------
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join('*' + chr(97 + i) for _ in range(9))}]\n" for i in range(12)
)


@pytest.mark.fault("C5")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("study: a\nseeds: [1]\nstudy: b\n", "study.yaml:3: key 'study' is given twice"),
        ("settings:\n  - body:\n\t  layers: 1\n", "study.yaml:3:"),
        (BOMB, "aliases"),
        ("- 1\n", "expected `key: value`"),
        ("", "expected `key: value`"),
        ("study: small\non: 1\n", "study.yaml:2: key True is not text"),
        ("study: small\nno: 1\n", "study.yaml:2: key False is not text"),
        ("x: " + "y" * 10_000_000, "too long"),
        ("study: [1\n", "study.yaml:2"),
        ("study: !!python/object/apply:os.system ['touch canary']\n", "study.yaml:1"),
    ],
)
def test_bad_files_are_refused_with_their_line(tmp_path, monkeypatch, capsys, text, words):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "study.yaml"
    file.write_text(text, encoding="utf-8")
    assert main(["check", "--study", str(file)]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and words in line
    assert [path.name for path in tmp_path.iterdir()] == ["study.yaml"]


DEEP = [opening * 20_000 for opening in ("[", "- ", "{a: ")] + ["a: &a [*a]", "a: &a {b: *a}"]
NINE = "".join(f"b{n}: &b{n} [{','.join([f'*b{n - 1}'] * 9)}]\n" for n in range(1, 10))


@pytest.mark.fault("C12")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "") for text in DEEP),
        ("b0: &b0 [x,x,x,x,x,x,x,x,x]\n" + NINE, "more than 100000 values"),  # 81 aliases, 9^10 values
        (f"seeds: [{'9' * 5000}]\n", "a number of 5000 characters"),
        (f"seeds: [{'9' * 35}]\n", "more than 30 digits"),
        ("seeds: [!!int x]\n", "'x' is no int"),
        ("seeds: !!int\n", "'' is no int"),
        ("tied: !!bool maybe\n", "'maybe' is no bool"),
        ("seeds: !!set {1}\n", "the tag"),
        ("seeds: {<<: {a: 1}}\n", "the tag"),
        ("seeds: [2020-99-99]\n", ""),
        ("extends: 2020-01-01-study.yaml\n", "cannot be read"),
        ('extends: "a\\0b"\n', "holds a character that is no text"),
        ('extends: "a\\nb"\n', "is not the path of a study file"),
        ('title: "a\\x1bb"\n', "holds a character that is no text"),
        ("study: a\n---\nstudy: b\n", "a second document"),
        ("study: [a]: 1\n", "study.yaml:1"),
        ("? [study]\n: 1\n", "is not text"),
    ],
)
def test_what_no_study_needs_is_refused_at_once(tmp_path, text, words):
    file = tmp_path / "study.yaml"
    file.write_text(text, encoding="utf-8")
    began = time.process_time()
    with pytest.raises(UserError) as error:
        config.load_study(file)
    assert words in str(error.value) and "\n" not in str(error.value) and "study.yaml" in str(error.value)
    assert time.process_time() - began < 2


@pytest.mark.fault("C12")
def test_what_is_no_file_of_utf_8_is_refused_in_words(tmp_path):
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("study: small\ntitle: für alle\n".encode("latin-1"))
    for path, words in (
        (pipe, "cannot be read"),
        (tmp_path, "cannot be read"),
        (tmp_path / "absent.yaml", "absent.yaml: cannot be read (no such file)"),
        (latin, "latin.yaml:2: byte 0xfc is not UTF-8"),
    ):
        with pytest.raises(UserError) as error:
            config.load_study(path)
        assert words in str(error.value)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = sorted(config.json_schema(config.StudyFile)["properties"])


@pytest.mark.fault("C1", "C3", "C5")
@settings(max_examples=60, deadline=None, derandomize=True)
@given(key=st.sampled_from(KEYS), value=json_like)
def test_any_value_of_any_key_is_accepted_or_refused_in_words(place, key, value):
    """Accepted: the plan's identities do not depend on the order of keys. Refused: one line that names the file."""
    values = small.values(**{key: value})
    message = refused(place, values)
    if message:
        assert "\n" not in message and ("study.yaml" in message or "tiny.yaml" in message or "no '" in message)
        return
    paths = [run.path for run in small.load(place, values).runs]
    backwards = {name: values[name] for name in reversed(values)}
    assert [run.path for run in small.load(place, backwards).runs] == paths


@pytest.mark.fault("C3")
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.floats(min_value=0.001, max_value=999, allow_nan=False))
def test_a_run_id_is_of_the_number_and_not_of_how_it_is_written(place, rate):
    ids = set()
    for text in (repr(rate), f"{rate:.17g}", f"{rate:.20f}"):
        values = small.values()
        values["settings"][0]["schedule"]["learning_rate"] = "RATE"
        file = small.write(place, values)
        file.write_text(file.read_text(encoding="utf-8").replace("RATE", text), encoding="utf-8")
        ids.add(config.load_study(file).runs[0].run_id)
    assert len(ids) == 1


# --- places and sizes -----------------------------------------------------------------------------------------------
@pytest.mark.fault("C6")
@pytest.mark.parametrize("name", [*sorted(paths.SHARED), "Runs"])
def test_a_study_may_not_be_named_as_what_studies_share(place, name):
    assert f"study: {name!r} is the name of a folder of results/" in refused(place, small.values(study=name))


@pytest.mark.fault("C6")
def test_names_that_differ_by_capitals_alone_are_refused(place):
    models = {"softmax": {"head": "softmax"}, "Softmax": {"head": "mos"}}
    assert "'softmax' and 'Softmax' would share a folder" in refused(place, small.values(models=models))


@pytest.mark.fault("C6")
def test_no_two_runs_of_any_study_write_to_one_place():
    for file in sorted((ROOT / "config").glob("*.yaml")):
        if "study" in config.load_yaml(file):
            runs = config.load_study(file).needed
            assert len({run.path.lower() for run in runs}) == len(runs)


@pytest.mark.fault("C7")
@pytest.mark.parametrize(
    ("limits", "words"),
    [({"memory_gb": 0.1}, "training on tiny takes about"), ({"disk_gb": 0.000001}, "4 runs need about 0.0 GB of disk")],
)
def test_what_does_not_fit_is_refused_before_the_first_job(begun, tmp_path, capsys, limits, words):
    file = small.write(tmp_path, small.values(limits=limits))
    assert main(["plan", "--study", str(file)]) == 0
    assert "memory GB" in capsys.readouterr().out
    assert main(["check", "--study", str(file)]) == 2
    assert words in capsys.readouterr().err
    assert not Path("results/small").exists()


@pytest.mark.fault("C7")
def test_a_mixture_too_large_for_this_machine_is_refused(begun, tmp_path, capsys):
    values = small.values()
    values["settings"][0]["body"] |= {"embedding_size": 60_000, "hidden_size": 60_000}
    assert main(["check", "--study", str(small.write(tmp_path, values))]) == 2
    line = capsys.readouterr().err
    assert "GB of memory, and" in line or "GB of disk, and" in line


def test_memory_for_singular_values_is_that_of_the_gram_matrix(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planned = check.costs(config.load_study(ROOT / "config" / "paper.yaml"))

    def spectrum_gb(model: str) -> float:
        return next(cost.spectrum_gb for path, (_, cost) in planned.items() if path.startswith(f"{model}/"))

    for dataset, words in (("wikitext-2", 33_278), ("ptb", 10_000)):
        gram_gb = words**2 * 8e-9
        assert 2 * gram_gb > spectrum_gb(f"{dataset}/mos") > gram_gb > spectrum_gb(f"{dataset}/softmax")


@pytest.mark.fault("C8")
def test_a_running_job_keeps_its_settings_and_an_edited_study_is_another_run(begun, tmp_path, monkeypatch, capsys):
    before = begun.needed[0]
    edited = small.values()
    edited["settings"][0]["schedule"]["learning_rate"] = 6

    original = trainer.Trainer.update

    def update(self: trainer.Trainer) -> None:
        if self.place.updates == 5:
            small.write(tmp_path, edited)
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "update", update)
        assert main(["train", "--study", "study.yaml", "--run", before.path]) == 0
    kept = artefacts.read_json(Store().run_folder(before.path) / "run.json")
    assert kept["schedule"]["learning_rate"] == 5
    after = config.load_study(Path("study.yaml")).needed[0]
    assert after.path != before.path and (after.model, after.seed) == (before.model, before.seed)
    assert main(["train", "--study", "study.yaml", "--run", before.path]) == 2  # planned before the edit
    assert "the configuration or the code has changed" in capsys.readouterr().err
    assert main(["train", "--study", "study.yaml", "--run", after.path]) == 0
    assert artefacts.read_json(Store().run_folder(before.path) / "run.json") == kept


@pytest.mark.fault("C9")
def test_more_contexts_than_there_are_are_refused_with_their_number(begun, tmp_path, capsys):
    size = size_of(begun.store, begun.datasets["tiny"])
    there = size.tokens["test"] - 1
    for asked, code in ((there + 1, 2), (there, 0)):
        file = small.write(tmp_path, dataset=small.DATASET | {"rank_contexts": asked})
        config.load_dataset.cache_clear()
        assert main(["check", "--study", str(file)]) == code
        assert main(["tokenise", "--study", str(file), "--dataset", "tiny"]) == code
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error"))
    assert f"rank_contexts: {there + 1} are asked for, and the test text has {there}" in line
    file = small.write(tmp_path, dataset=small.DATASET | {"rank_contexts": 0})
    config.load_dataset.cache_clear()
    assert main(["check", "--study", str(file)]) == 2
    config.load_dataset.cache_clear()


# --- numbers, names, sizes ------------------------------------------------------------------------------------------
@pytest.mark.fault("C13")
@pytest.mark.parametrize(
    "place_of",
    [
        ("seeds", 0),
        ("threads",),
        ("settings", 0, "body", "hidden_size"),
        ("settings", 0, "schedule", "batch_size"),
        ("settings", 0, "author_seed"),
        ("models", "mos", "head", "components"),
        ("models", "moss", "seeds", 0),
        ("models", "moss", "max_runs"),
    ],
)
def test_an_integer_is_not_written_with_a_point(place, place_of):
    """Neither accepted nor turned into one: what a key takes does not depend on where it stands."""
    values = full_study()
    inner = values
    for key in place_of:
        inner = inner[key]
    message = refused(place, mutations.changed(values, place_of, float(inner)))
    assert f"{float(inner)}" in message and "integer" in message


@pytest.mark.fault("C13")
def test_integers_of_datasets_and_fits_are_not_written_with_a_point(place):
    assert "integer" in refused(place, small.STUDY, small.DATASET | {"rank_contexts": 3.0})
    language = small.DATASET["language"] | {"topics": 2.0}
    assert "language.topics: 2.0" in refused(place, small.STUDY, small.DATASET | {"language": language})
    plan = {"kind": "dirichlet", "alphas": [1], "words": [5.0], "widths": [2], "updates": 3, "learning_rate": 0.1}
    fits = {"toy": plan | {"models": {"softmax": {"head": "softmax"}}}}
    assert "fits.toy.words.0: 5.0" in refused(place, small.values(fits=fits))


@pytest.mark.fault("C14")
@pytest.mark.parametrize(
    ("study", "dataset", "words"),
    [
        ({"study": "nano\n"}, {}, "must match"),
        ({"study": "jobs"}, {}, "a folder of results/"),
        ({"models": {"softmax": {"head": "softmax", "grid": {"head.x": ["../a"]}}}}, {}, "would be a folder"),
        ({"datasets": ["../tiny"]}, {}, "must match"),
        ({}, {"wordsim": "nope"}, "no 'nope'"),
        ({}, {"wordsim": "ptb"}, "wordsim: 'ptb' is of kind corpus, not benchmarks"),
        ({}, {"contexts": "parthiban2021_table2.csv"}, "contexts: 'parthiban2021_table2.csv' is not allowed"),
        ({}, {"contexts": "../../parthiban2021_sm_table2_contexts.csv"}, "contexts"),
        ({}, {"expected": {"tokens": {"trian": 5}}}, "unknown key 'trian'; did you mean 'train'?"),
        ({}, {"base": "tiny", "vocabulary_size": 5, "train_tokens": 50}, "base: goes round in a circle"),
        ({}, {"base": "word-sim", "vocabulary_size": 5, "train_tokens": 50}, "base: 'word-sim' is of kind benchmarks"),
        ({}, {"base": "ptb"}, "base, vocabulary_size and train_tokens belong together"),
        ({}, {"kind": "corpus"}, "a `language` is set where, and only where"),
    ],
)
def test_names_of_what_is_something_else_are_refused(place, study, dataset, words):
    assert words in refused(place, small.values(**study), small.DATASET | dataset)


@pytest.mark.fault("C15")
@pytest.mark.parametrize(
    ("study", "words"),
    [
        ({"max_wall": "0s"}, "max_wall: '0s' is no time at all"),
        ({"max_wall": "0.0h"}, "is no time at all"),
        ({"time_margin": "0m"}, "time_margin: '0m'"),
        ({"max_wall": "1h", "time_margin": "60m"}, "time_margin: 60m leaves nothing of max_wall, 1h"),
        ({"max_wall": 0}, "max_wall: 0 is not allowed"),
        ({"max_wall": "4 hours"}, "write 90s, 30m, 4h or 1.5d"),
    ],
)
def test_times_that_leave_nothing_are_refused(place, study, words):
    assert words in refused(place, small.values(**study))


@pytest.mark.fault("C15")
def test_a_language_of_a_trillion_words_is_refused(place):
    language = small.DATASET["language"] | {"train_tokens": 10**12}
    assert "train_tokens: 1000000000000 is not allowed" in refused(
        place, small.STUDY, small.DATASET | {"language": language}
    )


@pytest.mark.fault("C15")
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("batch_size", 65536, "schedule.batch_size: train of tiny has"),
        ("eval_batch_size", 4096, "schedule.eval_batch_size: valid of tiny has"),
        ("test_batch_size", 4096, "schedule.test_batch_size: test of tiny has"),
        ("pieces", 1000, "schedule.batch_size: train of tiny has"),
    ],
)
def test_more_streams_than_a_text_has_are_refused_before_the_first_job(begun, tmp_path, capsys, key, value, words):
    values = small.values()
    values["settings"][0]["schedule"][key] = value
    assert main(["check", "--study", str(small.write(tmp_path, values))]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.fault("C16")
def test_a_study_with_anything_wrong_is_planned_or_refused_in_one_line(tmp_path):
    """Three hundred of them; `make soak` tries ten thousand, and builds the models of those that are accepted."""
    outcomes = [fuzz.tried(tmp_path / "study", seed) for seed in range(300)]
    assert [number for number, outcome in enumerate(outcomes) if not outcome.is_sound] == []
    assert 150 < sum(bool(outcome.message) for outcome in outcomes) < 295
    assert fuzz.peak_gb() < 4


@pytest.mark.fault("C16")
def test_a_key_with_a_line_end_is_refused_in_one_line(tmp_path):
    models = {"softmax": {"head": "softmax", "grid": {"body.\n": [1]}}}
    with pytest.raises(UserError, match=r"models\.softmax\.grid\.body\.\\n: .*must match [^\n]*$"):
        small.load(tmp_path, small.values(models=models))


# --- what a shell would run -----------------------------------------------------------------------------------------
PAYLOADS = [
    *(
        "; touch canary",
        "$(touch canary)",
        "`touch canary`",
        "a\ntouch canary",
        "' touch canary '",
        '" && touch canary"',
    ),
    *("*", "~", "-rf", "..", "../canary", "|touch canary", "a b", "{wildcards.run}", "$HOME"),
]


def strings_of(values: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the texts of a configuration are."""
    if isinstance(values, str):
        return [place]
    pairs = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return [found for key, child in pairs for found in strings_of(child, (*place, key))]


@pytest.mark.fault("C10")
def test_what_a_shell_would_run_is_refused_or_stays_text(tmp_path, monkeypatch):
    """Names are refused; texts for people are kept as they are, and reach no command line."""
    monkeypatch.chdir(tmp_path)
    free = {("title",), ("description",), ("mirror",), ("models", "moss", "label")}
    values = full_study()
    for place, payload in itertools.product(strings_of(values), PAYLOADS):
        message = refused(tmp_path, mutations.changed(values, place, payload))
        assert bool(message) != (place in free), (place, payload)
    for place, payload in itertools.product([("models",), ("experiments",)], PAYLOADS):
        old = next(iter(values[place[0]]))
        assert refused(tmp_path, mutations.renamed(values, place, old, payload))
    assert not list(tmp_path.rglob("*canary*"))


@pytest.mark.fault("C10")
@pytest.mark.pipeline
def test_names_of_files_that_a_shell_would_run_match_no_rule(finished, tmp_path):
    small.copied(finished, tmp_path)
    where = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(tmp_path)]
    targets = [f"results/tokens/{name}/corpus.json" for name in ("a;touch canary;", "$(touch canary)", "-rf", "..")]
    words = [sys.executable, "-m", "snakemake", *where, "--configfile", str(tmp_path / "study.yaml"), "--cores", "1"]
    done = subprocess.run(
        [*words, "--", *targets], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode != 0
    assert not list(tmp_path.rglob("*canary*"))


@pytest.mark.fault("C10")
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.text(alphabet="'\"$;\\\n*~ab{}` &|<>()#!", min_size=1, max_size=20))
def test_a_quoted_text_arrives_as_it_is(text):
    """Snakemake's `:q` is shlex.quote: what a program is given is the text."""
    script = f"printf '%s' {shlex.quote(text)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout == text


@pytest.mark.fault("C4")
@pytest.mark.parametrize("seeds", [[], [1, 1], ["1"], [1.5], [2**63], [-1], [True], [None], "1", None, [[1]]])
def test_bad_seeds_are_refused_by_key_and_value(place, seeds):
    assert "seeds" in refused(place, small.values(seeds=seeds))


@pytest.mark.fault("C10")
@pytest.mark.tier2
def test_every_canary_stays_silent(tmp_path):
    """Shell words, YAML tags, pickles, markup and archives, wherever the project reads; `make soak` counts them."""
    import canaries  # which uses helpers of this module

    assert [what for what, silent in canaries.all_of(tmp_path) if not silent] == []
