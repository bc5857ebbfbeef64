"""Texts, files and archives that would leave a mark if anything ran them; every one is put where the project reads."""

from __future__ import annotations

import contextlib
import html.parser
import io
import os
import pickle
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_results as fake
import numpy as np
import small
import torch
import yaml
from softmax_bottleneck import study as config
from softmax_bottleneck.corpora import archives, tokenise
from softmax_bottleneck.jobs import checkpoint
from softmax_bottleneck.measuring import wordsim
from softmax_bottleneck.own_model import arrays
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import DataError, UserError
from softmax_bottleneck.store.paths import Store

Tried = tuple[str, bool]
MARK = "canary"
MARKUP = [
    "<script>document.title='canary'</script>",
    "</script><script>1</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{7*7}}{% raw %}",
    "\u202ecanary",
    "<!--",
    "]]>",
    "\\u003cscript\\u003e",
]


class Touch:
    """Unpickling it makes the mark."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.system, (f"touch {MARK}",)


def all_of(folder: Path) -> Iterator[Tried]:
    """(what was tried, whether nothing ran) for every canary; works in folders below `folder`."""
    kinds = {"yaml": yaml_tags, "pickle": pickles, "html": markup, "archives": archived}
    for name, tries in kinds.items():
        with small.inside_new(folder / name):
            for what, silent in tries():
                yield f"{name}: {what}", silent and not marked(folder)


def marked(folder: Path) -> bool:
    """Whether something ran."""
    return any(path.name == MARK for path in folder.rglob(f"*{MARK}*"))


def yaml_tags() -> Iterator[Tried]:
    """Tags that an unsafe loader would call, in the place of every value of a study and a dataset."""
    for file, values in (("study.yaml", small.STUDY), ("datasets/tiny.yaml", small.DATASET)):
        for place in leaves(values):
            for tag in ("!!python/object/apply:os.system [touch canary]", "!!python/name:os.system", "!!binary x"):
                small.write(Path())
                text = yaml.safe_dump(small.changed(values, place, "PLACE"), sort_keys=False)
                Path(file).write_text(text.replace("PLACE", tag), encoding="utf-8")
                config.load_dataset.cache_clear()
                yield f"{file} {place} {tag}", refuses(lambda: config.load_study(Path("study.yaml")))


def leaves(values: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Places of all values that hold no others."""
    pairs = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else None
    return [place] if pairs is None else [found for key, child in pairs for found in leaves(child, (*place, key))]


def refuses(call: Callable[[], object]) -> bool:
    """Whether it is refused as people's errors are."""
    try:
        call()
    except UserError:
        return True
    return False


def pickles() -> Iterator[Tried]:
    """An object with a side effect in every file that is read."""
    plain, boxed = pickle.dumps(Touch()), io.BytesIO()
    torch.save({"state": Touch()}, boxed)
    objects = io.BytesIO()
    np.save(objects, np.array([Touch()], dtype=object), allow_pickle=True)
    packed = io.BytesIO()
    np.savez(packed, singular_values=np.array([Touch()], dtype=object))
    contents = {"pickle": plain, "torch": boxed.getvalue(), "npy": objects.getvalue(), "npz": packed.getvalue()}
    for kind, data in contents.items():
        for name, read in readers().items():
            path = Path(name)
            artefacts.write_bytes(path, data)
            yield f"{kind} as {name}", does_not_return(read, path)
        for name in checkpoint.NAMES:
            artefacts.write_bytes(Path("run") / name, data)
        loader = checkpoint.Checkpointer(Path("run"), {})
        yield f"{kind} as resume state", refuses(loader.load)


def readers() -> dict[str, Callable[[Path], object]]:
    """Everything that reads a file, by a name it would read."""
    return {
        "spectrum.npz": artefacts.read_npz,
        "train.npy": artefacts.read_npy,
        "done.json": artefacts.read_json,
        "words.csv": wordsim.read_benchmark,
        "train.txt": tokenise.read_split,
        "study.yaml": config.load_study,
        "hidden.npy": lambda path: arrays.find([str(path)], "hidden"),
        "hidden.npz": lambda path: arrays.find([str(path)], "hidden"),
        "hidden.safetensors": lambda path: arrays.find([str(path)], "hidden"),
    }


def does_not_return(read: Callable[[Path], object], path: Path) -> bool:
    """Whether reading fails (how is another question), or gives no object of the canary's."""
    try:
        found = read(path)
    except Exception:
        return True
    return not isinstance(found, Touch)


class Tags(html.parser.HTMLParser):
    """Counts elements and the attributes that can act."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag] += 1
        for name, value in attrs:
            if name.startswith("on") or (name in ("href", "src") and (value or "").lower().startswith("javascript:")):
                self.found[f"{tag} {name}"] += 1


def tags(page: str) -> Counter[str]:
    """Elements of a page, and attributes that would run something."""
    parser = Tags()
    parser.feed(page)
    return parser.found


def markup() -> Iterator[Tried]:
    """Markup in every text that reaches the report: the page has the elements it has with plain text."""
    plain = tags(page_with("plain words"))
    for payload in MARKUP:
        yield f"{payload!r} in every text of the study", tags(page_with(payload)) == plain


def page_with(text: str) -> str:
    """The report of a made-up study whose free texts, reasons and hardware say `text`."""
    fake.load(Path())
    values = yaml.safe_load(Path("study.yaml").read_text(encoding="utf-8")) | {"title": text, "description": text}
    values["models"]["gss"]["label"] = text[:40]
    Path("study.yaml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    study = config.load_study(Path("study.yaml"))
    for run in study.needed[:6]:
        fake.write_run(run)
        path = Store().run_folder(run.path) / "done.json"
        facts = artefacts.read_json(path)
        facts["provenance"]["hardware"]["cpu"] = text
        facts["provenance"]["git"]["commit"] = text
        artefacts.write_json(path, facts)
    fake.write_done(study.needed[7], "diverged", text)
    return fake.build(study).read_text(encoding="utf-8")


def archived() -> Iterator[Tried]:
    """Members that would be written elsewhere; only what is asked for by name comes out, under its own name."""
    for member in (f"../{MARK}", f"/tmp/{MARK}-soak", f"a/../../{MARK}", f"..\\{MARK}"):
        for kind, make in (("zip", zipped), ("tar", tarred)):
            path = make(Path(f"{kind}.archive"), member)
            with contextlib.suppress(DataError, UserError):
                archives.extract(path, Path("out"), [archives.Member(member, "train.txt")])
            outside = [one for one in Path().rglob("*") if one.is_file() and one.name not in ("train.txt", path.name)]
            yield f"{kind} {member}", not outside and not Path(f"/tmp/{MARK}-soak").exists()
            path.unlink()


def zipped(path: Path, member: str) -> Path:
    """A zip with one member."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(member, "a b\n")
    return path


def tarred(path: Path, member: str) -> Path:
    """A tar with one member."""
    with tarfile.open(path, "w:gz") as file:
        facts = tarfile.TarInfo(member)
        facts.size = 4
        file.addfile(facts, io.BytesIO(b"a b\n"))
    return path
