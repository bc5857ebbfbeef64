"""Real studies with something wrong in them, by chance: in their values, in their text, or in files that they name.

A draw changes one to three things. What comes of a study is either a plan or one line that names a file or a key.
"""

from __future__ import annotations

import copy
import random
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mutations
import yaml
from softmax_bottleneck import study as config
from softmax_bottleneck.store.errors import UserError

ROOT = Path(__file__).parents[2]
STUDIES = [
    ROOT / "tests" / "nano.yaml",
    *(ROOT / "config" / f"{name}.yaml" for name in ("demo", "truth", "ptb-cpu-quick")),
]
# Values that some key must refuse, and none may stumble over.
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 1.0, 10.0, 8.5, 2**63, 10**29, -0.0, 1e-300, 1e300, 65536, 10**12),
    *("", " ", "all", "self", "1e-3", "../x", "a\nb", "nano\n", "x" * 200, "ü", "\u202e", "jobs", "Runs", "null", "~"),
    *([], {}, [[]], [None], [1, 1], ["a", "a"], {"": 1}, {"name": "mos"}, {"a": {"b": {"c": [1]}}}, [{"when": {}}]),
    *("0s", "1h", "softmax", "ptb", "head", "train", "finetune", "parthiban2021_table2.csv", "2020-99-99"),
]
# Pieces of YAML that a file may hold anywhere.
TEXTS = [
    *("!!int x", "!!python/name:os.system", "!!binary =", "!!set {a}", "&a [*a]", "*a", "&a", "<<: *a", "<<: {a: 1}"),
    *(
        "[" * 3000,
        "{a: " * 3000,
        "- " * 3000,
        "9" * 5000,
        "0x" + "f" * 400,
        ".nan",
        "-.inf",
        "1:2:3",
        "2020-99-99",
        "=",
    ),
    *(
        '"\\0"',
        '"\\ud800"',
        '"\\x07"',
        "\t",
        "\x00",
        "\x85",
        "---\n",
        "...\n",
        "%YAML 9.9\n",
        "? [a]",
        ": :",
        "|",
        ">",
        "#",
    ),
    "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"b{n}: &b{n} [{','.join(['*a' if n == 0 else f'*b{n - 1}'] * 9)}]\n" for n in range(9)),
]


@dataclass(frozen=True)
class Outcome:
    """What came of a study: empty where it was planned, its message where it was refused, and in how many seconds."""

    message: str
    seconds: float

    @property
    def is_sound(self) -> bool:
        """Whether it is a plan or one line, soon."""
        return "\n" not in self.message and len(self.message) < 2000 and self.seconds < 10


def places(values: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a configuration, below its top."""
    pairs = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return [found for key, child in pairs for found in ((*place, key), *places(child, (*place, key)))]


def at(values: Any, place: tuple[Any, ...]) -> Any:
    """The value at a place."""
    for key in place:
        values = values[key]
    return values


# --- changes --------------------------------------------------------------------------------------------------------
def replaced(values: dict[str, Any], draw: random.Random) -> None:
    place = draw.choice(places(values))
    at(values, place[:-1])[place[-1]] = copy.deepcopy(draw.choice(ODD))


def removed(values: dict[str, Any], draw: random.Random) -> None:
    place = draw.choice(places(values))
    del at(values, place[:-1])[place[-1]]


def moved(values: dict[str, Any], draw: random.Random) -> None:
    place, other = draw.choice(places(values)), draw.choice(places(values))
    at(values, place[:-1])[place[-1]] = copy.deepcopy(at(values, other))


def misspelt(values: dict[str, Any], draw: random.Random) -> None:
    place = draw.choice([*(place for place in places(values) if isinstance(place[-1], str)), (next(iter(values)),)])
    inside = at(values, place[:-1])
    inside[draw.choice(mutations.typos(place[-1]) or ["x"])] = inside.pop(place[-1])


def added(values: dict[str, Any], draw: random.Random) -> None:
    inside = at(values, draw.choice([(), *places(values)]))
    if isinstance(inside, dict):
        inside[draw.choice(["x", "name", "head", "seeds", "grid", "like", "extends", "c", "", "\n", "1"])] = (
            draw.choice(ODD)
        )
    elif isinstance(inside, list):
        inside.append(copy.deepcopy(draw.choice(ODD)))


def wrapped(values: dict[str, Any], draw: random.Random) -> None:
    place = draw.choice(places(values))
    value = at(values, place)
    at(values, place[:-1])[place[-1]] = draw.choice([[value], {"x": value}, [value, value], str(value)])


def scaled(values: dict[str, Any], draw: random.Random) -> None:
    for place in places(values):
        if type(at(values, place)) in (int, float) and draw.random() < 0.1:
            at(values, place[:-1])[place[-1]] *= draw.choice([-1, 0, 0.5, 1.0, 2, 10.0, 1e6, 1e15])


CHANGES: list[Callable[[dict[str, Any], random.Random], None]] = [
    replaced,
    removed,
    moved,
    misspelt,
    added,
    wrapped,
    scaled,
]


def mistyped(text: str, draw: random.Random) -> str:
    """A text with a few of its characters or lines changed."""
    lines = text.splitlines(keepends=True)
    line, where = draw.randrange(len(lines)), draw.randrange(len(text))
    ways = [
        lambda: text[:where] + draw.choice(TEXTS) + text[where:],
        lambda: "".join([*lines[:line], draw.choice(TEXTS), "\n", *lines[line:]]),
        lambda: "".join([*lines[:line], *lines[line + 1 :]]),
        lambda: "".join([*lines[:line], lines[line], *lines[line:]]),
        lambda: "".join([*lines[:line], " " * draw.randrange(1, 4), *lines[line:]]),
        lambda: text[:where],
        lambda: text[:where] + draw.choice(":,[]{}&*!|>'\"%@`#-? \t\n\x00\x1bé") + text[where + 1 :],
    ]
    return draw.choice(ways)()


def changed(path: Path, draw: random.Random) -> None:
    """Change a YAML file at one to three places, in what it says or in how it is written."""
    text = path.read_text(encoding="utf-8")
    for _ in range(draw.randint(1, 3)):
        if draw.random() < 0.4:
            text = mistyped(text, draw) if text else draw.choice(TEXTS)
            continue
        try:
            values = config.parse_yaml(text, "")
        except UserError:  # what is broken already stays so
            continue
        if places(values):
            draw.choice(CHANGES)(values, draw)
        text = yaml.dump(values, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True)
    path.write_bytes(
        text.encode("utf-8", "surrogatepass") if draw.random() < 0.95 else text.encode("latin-1", "replace")
    )


# --- trying ---------------------------------------------------------------------------------------------------------
def prepared(folder: Path, draw: random.Random) -> Path:
    """A copy of a study with what it names beside it, of which one file is changed."""
    original = draw.choice(STUDIES)
    study = folder / "study.yaml"
    text = original.read_text(encoding="utf-8").replace(
        "extends: ptb-cpu.yaml", f"extends: {original.parent}/ptb-cpu.yaml"
    )
    study.write_text(text, encoding="utf-8")
    named = yaml.load(text, Loader=yaml.CSafeLoader)
    kind = draw.choice(["study", "study", "study", "datasets", "experiments"])
    names = [name for name in named.get(kind, ()) if kind != "study"]
    if not names:
        changed(study, draw)
        return study
    name = draw.choice(names)
    (folder / kind).mkdir(exist_ok=True)
    shutil.copy(ROOT / "config" / kind / f"{name}.yaml", folder / kind)
    changed(folder / kind / f"{name}.yaml", draw)
    return study


def tried(folder: Path, seed: int, check: Callable[[config.Study], object] = lambda study: None) -> Outcome:
    """What comes of the study of this number; `check` may refuse what loading accepts."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    file = prepared(folder, random.Random(seed))
    config.load_dataset.cache_clear()
    began, message = time.process_time(), ""
    try:
        check(config.load_study(file))
    except UserError as error:
        message = str(error) or "\n"
    return Outcome(message, time.process_time() - began)


def peak_gb() -> float:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
