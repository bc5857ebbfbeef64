"""A folder with a study on one corpus, for tests of the steps `download` and `tokenise`."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from softmax_bottleneck import __main__ as program
from softmax_bottleneck import study as config

NANO = Path(__file__).parents[1] / "nano.yaml"
TEXTS = {
    "train": "the cat sat on the mat\nthe <unk> ran to a small house by the river\n\na dog and a cat ate fish\n" * 9,
    "valid": "the dog sat on the house\na small cat ran\n",
    "test": "a fish ate the river\nthe mat ran to the dog\n",
}


class Project:
    """A folder with a study on the corpus `x`, whose YAML is in datasets/."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "datasets").mkdir()
        text = NANO.read_text(encoding="utf-8").replace("[truth-nano]", "[x]")
        (folder / "study.yaml").write_text(
            text[: text.index("experiments:")] + "experiments: {known-truth: }\n", "utf-8"
        )

    def declare(self, files: Mapping[str, object], **more: object) -> None:
        values = {"name": "x", "kind": "corpus", "title": "X", "files": files, **more}
        (self.folder / "datasets" / "x.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
        config.load_dataset.cache_clear()

    def put(self, name: str, data: bytes | str) -> Path:
        path = self.folder / "datasets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def local(self, texts: Mapping[str, str], **more: object) -> None:
        """Declare a corpus of three local files."""
        for split, text in texts.items():
            self.put(f"{split}.txt", text)
        self.declare({f"{split}.txt": {"path": f"{split}.txt"} for split in texts}, **more)

    def call(self, step: str, *words: str) -> int:
        return program.main([step, "--study", str(self.folder / "study.yaml"), "--dataset", "x", *words])

    @property
    def corpora(self) -> Path:
        return self.folder / "results" / "corpora" / "x"

    @property
    def tokens(self) -> Path:
        return self.folder / "results" / "tokens" / "x"


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line of the error."""
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    return line
