"""Where everything lies: the layout of a results folder, the workflow's own home, and the names of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]  # the workflow's home: config/, report/ and workflow/ lie there
SHARED = frozenset(["corpora", "tokens", "runs", "jobs", "fits", "own", "logs", "benchmarks"])  # beside the studies


@dataclass(frozen=True)
class Store:
    """A results folder. Every path of an artefact is asked of it; nothing is created by asking."""

    root: Path = Path("results")

    def corpus_folder(self, dataset: str) -> Path:
        """The files of a dataset as they were published."""
        return self.root / "corpora" / dataset

    def tokens_folder(self, dataset: str) -> Path:
        """Token ids and vocabulary of a corpus."""
        return self.root / "tokens" / dataset

    def run_folder(self, run_path: str) -> Path:
        """One training run; `run_path` is `<dataset>/<model>/<seed>-<run_id>`."""
        return self.root / "runs" / run_path

    def job_file(self, job: str) -> Path:
        """What says that a job of several runs is through; the runs' own done.json say what came out."""
        return self.root / "jobs" / f"{job}.json"

    def study_folder(self, study: str) -> Path:
        """Everything made for one study from its runs: records, tables, figures, the report."""
        return self.root / study

    def fits_folder(self, path: str) -> Path:
        """Fits to known laws: a unit is `<plan>/<laws>/<seed>-<unit_id>`, its parts `laws/<laws>/<seed>-<law_id>`."""
        return self.root / "fits" / path

    def own_folder(self, name: str) -> Path:
        """The findings about somebody's own model."""
        return self.root / "own" / name
