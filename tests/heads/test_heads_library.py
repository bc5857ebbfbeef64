"""The heads as a library: classes by label, made when asked for, without torch until then; the example runs."""

import math
import os
import pickle
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from softmax_bottleneck import heads
from softmax_bottleneck.heads.base import Head

ROOT = Path(__file__).parents[2]
SIZES = {"vocabulary_size": 9, "context_size": 4, "embedding_size": 4}
CLASSES = {re.sub(r"[^A-Za-z0-9]", "", head.label): head.name for head in heads.declarations().values()}

WITH_THE_EXTRA_ALONE = """
import sys; sys.modules |= dict.fromkeys({absent})
import softmax_bottleneck.heads as h; dir(h); h.names(); assert "torch" not in sys.modules
import torch; from softmax_bottleneck.heads import MoS, GSS, LMSPLIF
for head in (MoS, GSS, LMSPLIF):
    head(**{sizes}).mean_nll(torch.ones(3, 4), torch.arange(3)).backward()
"""


def test_heads_need_torch_when_one_is_made_and_no_package_of_another_extra():
    """Train with a head, with nothing but the packages of `pip install ".[heads]"`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    absent = {name for names in extras.values() for name in names} - {"torch", "markupsafe"}  # jinja2 needs markupsafe
    code = WITH_THE_EXTRA_ALONE.format(absent=sorted(absent), sizes=SIZES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("attribute", "name"), CLASSES.items())
def test_every_head_has_a_class_that_equals_what_a_study_builds(attribute, name):
    kind = getattr(heads, attribute)
    torch.manual_seed(3)
    own = kind(**SIZES).eval()
    torch.manual_seed(3)
    built = heads.build(name, **SIZES).eval()
    hidden = torch.randn(5, 4)
    assert isinstance(own, Head) and type(own) is kind
    torch.testing.assert_close(own.log_probs(hidden), built.log_probs(hidden), rtol=0, atol=0)
    assert list(own.state_dict()) == list(built.state_dict())
    again = pickle.loads(pickle.dumps(own))
    torch.testing.assert_close(again.log_probs(hidden), own.log_probs(hidden), rtol=0, atol=0)


def test_the_examples_of_the_page_run():
    """The code blocks of docs/heads.md, with hidden states and targets as its comments describe them."""
    page = (ROOT / "docs" / "heads.md").read_text(encoding="utf-8")
    names = {"hidden": torch.randn(3, 2, 400, requires_grad=True), "targets": torch.randint(10_000, (3, 2))}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, names)
    torch.testing.assert_close(names["log_p"].exp().sum(1), torch.ones(6))
    assert names["hidden"].grad.abs().sum() > 0


def test_the_example_trains_with_each_head(monkeypatch, capsys):
    example = ROOT / "examples" / "train_with_each_head.py"
    monkeypatch.setattr(sys, "argv", [str(example), "--steps", "40"])
    runpy.run_path(str(example), run_name="__main__")
    losses = re.findall(r"^(\S.*?)\s+loss ([\d.]+) -> ([\d.]+) nats", capsys.readouterr().out, re.MULTILINE)
    assert len(losses) == example.read_text(encoding="utf-8").count("lambda:")
    for name, first, last in losses:
        assert float(last) < float(first) and math.isfinite(float(last)), name
