"""Codes for why a verdict is what it is. Their texts are in report/reasons.yaml.

Rules, premises and tiles decide by codes and numbers alone: a text may be rewritten freely.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from softmax_bottleneck.store import paths

Code = StrEnum(
    "Code",
    "NO_MODEL NO_RUN ALL_DIVERGED NO_VALUE TOO_FEW INCONCLUSIVE UNSTABLE ONE_SIZE EPOCHS SETTINGS CEILING "
    "STEP_SIZE MACHINES LEARNED CONVERGED AVERAGED_ALIKE AVERAGED WIDTH SEED_NOISE SIZE_UNKNOWN SIZE "
    "EQUAL_PAIR NO_EQUAL_PAIR CONTROL NO_CONTROL TREATMENT RANKS_APART BENCHMARKS RUNS PUBLISHED_WIDTH "
    "FITS_CONVERGED STATE UNLEARNED",
)
TEMPLATES: dict[str, Mapping[str, str]] = yaml.safe_load(
    (paths.ROOT / "report" / "reasons.yaml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Finding:
    """A code and the facts that its text prints."""

    code: Code
    facts: Mapping[str, Any]

    @property
    def found(self) -> str:
        """The text without what is needed."""
        return self._fill("found")

    @property
    def needed(self) -> str:
        """What is needed; empty for a remark."""
        return self._fill("needed")

    def __str__(self) -> str:
        return f"{self.found}; needed: {self.needed}" if self.needed else self.found

    def _fill(self, part: str) -> str:
        text = TEMPLATES[self.code].get(part, "").format(**self.facts)
        return re.sub(r"(?<=\d)%", "\u00a0%", text)
