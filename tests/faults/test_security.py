"""Nothing executes, nothing escapes, nothing tells on its user: what the sources may not do, and pickles that would."""

import ast
import getpass
import gzip
import platform
import re
import shutil
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import small
from softmax_bottleneck import __main__ as program
from softmax_bottleneck.report import archive
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.paths import Store

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "workflow" / "softmax_bottleneck"
SOURCES = sorted(PACKAGE.rglob("*.py"))
RULES = [ROOT / "Snakefile", ROOT / "workflow" / "Snakefile", *sorted((ROOT / "workflow" / "rules").glob("*.smk"))]


NEEDED = {**dict.fromkeys(("np.load", "np.save", "np.savez", "read_array"), ("allow_pickle", False)),
    "torch.load": ("weights_only", True)}  # fmt: skip
WRITERS = {  # modules that may open files for writing: everything else goes through artefacts
    "artefacts": "the one that writes",
    "locks": "the lock of the workflow and the lease of a run",
    "__main__": "the log of a step",
    "crate": "a copy in a folder that gets its name when it is whole",
    "new_study": "files that belong to a person from then on, without hashes beside them",
    "reproduce": "the log of Snakemake",
}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yield the dotted name of every call in a file, and the call."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_no_source_loads_pickles_hashes_by_process_or_writes_beside_the_store() -> None:
    for path, (name, call) in ((source, named) for source in SOURCES for named in calls(source)):
        where = f"{path.name}:{call.lineno}: {name}"
        last = name.rpartition(".")[2]
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        assert name != "hash", where  # differs from process to process
        for forbidden, (key, value) in NEEDED.items():
            if name == forbidden or (last == forbidden and "." not in forbidden):
                assert isinstance(given.get(key), ast.Constant) and given[key].value is value, where
        if path.stem not in WRITERS:
            assert last not in {"write_text", "write_bytes"} or name.startswith("artefacts."), where
            assert not (last in {"open", "fdopen"} and _writes(call)), where


def _writes(call: ast.Call) -> bool:
    texts = [arg.value for arg in [*call.args, *(k.value for k in call.keywords if k.arg == "mode")]
             if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]  # fmt: skip
    return any(set(text) <= set("rwaxbt+") and set(text) & set("wax+") for text in texts)


def test_every_value_that_reaches_a_shell_is_quoted() -> None:
    found = 0
    for path in RULES:
        for block in re.findall(r"^\s+shell:\n((?:\s+[rf]*\".*\"\n)+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            for value in re.findall(r"\{([^{}]*)\}", block):
                assert value.endswith(":q"), f"{path.name}: {{{value}}}"
                found += 1
            assert not re.match(r"\s+[rf]*f[rf]*\"", block), f"{path.name}: an f-string in a shell command"
    text = "".join(path.read_text(encoding="utf-8") for path in RULES)
    assert found >= 15 and text.count("shell:") == len(re.findall(r"shell:\n\s+\"", text))
    assert not re.search(r"^\s+run:", text, re.MULTILINE)


def test_rules_keep_away_from_what_loses_work() -> None:
    """Snakemake deletes nothing of a training run, and has no checkpoint but the choice of a search, a small file."""
    for path in RULES:
        text = re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
        text = text.replace("temp(STORE.job_file(", "")  # says only that a job of several runs has ended
        losing = r"^checkpoint\s(?!choose:)|\b(directory|temp|pipe)\(|\bshadow:"
        assert not re.search(losing, text, re.MULTILINE), path.name


def test_templates_escape_everything_and_addresses_are_https() -> None:
    for path in (ROOT / "report").glob("*.j2"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe\b|autoescape\s+false|\{%\s*raw", text), path.name
        assert not re.search(r"\b(?:href|src|title|id|class|alt)=\{\{", text), (
            f"{path.name}: an attribute without quotes"
        )
    for path in (ROOT / "config" / "datasets").glob("*.yaml"):
        assert "http://" not in path.read_text(encoding="utf-8"), path.name


class Canary:
    """Unpickled, it leaves a file."""

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("canary").absolute(),))


def forged(path: Path, data: bytes) -> None:
    """Write a file with the hash that fits it."""
    path.write_bytes(data)
    artefacts.sidecar(path).write_text(artefacts.sha256_file(path) + "\n", encoding="utf-8")


@pytest.mark.fault("C10")
def test_a_pickle_in_any_file_never_runs(finished: Path, place: Path) -> None:
    """Every file of a run, its corpus and its study becomes a pickle with the right hash, and every step is called."""
    study = small.copied(finished, place)
    run = study.needed[0].path
    array = place / "array.npy"
    np.save(array, np.array([Canary()], dtype=object), allow_pickle=True)
    import torch

    torch.save({"state": Canary()}, place / "state.pt")
    payloads = [array.read_bytes(), (place / "state.pt").read_bytes()]
    files = [path for path in sorted(Path("results").rglob("*")) if path.is_file() and path.suffix != ".sha256"]
    files += [Store().run_folder(run) / name for name in ("resume-a.pt", "resume-b.pt")]
    again = [["measure", "--only", name] for name in ("evaluate", "spectrum", "wordsim")]
    calls_ = [[*words, "--run", run] for words in (["train"], ["measure"], *again)]
    calls_ += [["tokenise", "--dataset", "tiny"], ["collect"], ["verify"], ["report"]]
    for payload in payloads:
        shutil.rmtree("results")
        study = small.copied(finished, place)
        for path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            forged(path, payload)
        (Store().run_folder(run) / "done.json").unlink()
        for words in calls_:
            try:
                program.main([*words, "--study", "study.yaml"])
            except Exception as error:  # whatever it is, it must not have run anything
                assert not isinstance(error, AssertionError), words
        assert not Path("canary").exists()
    Path("canary").unlink(missing_ok=True)


def contents(path: Path) -> Iterator[bytes]:
    """Yield the contents of a file; of an archive its members, since compressed bytes spell three letters by chance."""
    if not zipfile.is_zipfile(path):
        yield path.read_bytes()
        return
    with zipfile.ZipFile(path) as archive:
        yield from (member.encode() + archive.read(member) for member in archive.namelist())


def test_no_file_tells_who_made_it_where(tmp_path: Path, monkeypatch, capsys) -> None:
    """A whole study, its page, its crate and its archive, made by qx7user on qx7host in a folder of qx7home."""
    home = tmp_path / "qx7home" / "study"
    home.mkdir(parents=True)
    names = {"HOME": str(home.parent), "USER": "qx7user", "LOGNAME": "qx7user", "HOSTNAME": "qx7host"}
    for variable, value in names.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(platform, "node", lambda: "qx7host")
    monkeypatch.setattr(socket, "gethostname", lambda: "qx7host")
    assert getpass.getuser() == "qx7user"
    monkeypatch.chdir(home)
    small.tokenised(home)
    study = small.load(home, small.values(seeds=[1], models={"softmax": {"head": "softmax"}}))
    small.finish(study)
    program.main(["check", "--study", "study.yaml"])
    program.main(["crate", "--zip", "--study", "study.yaml"])
    monkeypatch.setattr(archive, "FOLDER", home / "archives")
    Path("results/archive.json").write_bytes(gzip.decompress(archive.write(study).read_bytes()))
    files = [path for path in sorted(Path("results").rglob("*")) if path.is_file()]
    assert len(files) > 40
    for path in files:
        data = b"".join(contents(path))
        for private in (b"qx7", str(ROOT).encode(), str(Path.home()).encode()):
            assert private not in data, (path, private)
