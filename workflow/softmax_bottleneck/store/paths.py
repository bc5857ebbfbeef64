"""The folders and files of the results, and the root of the repository."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]  # of the repository: config/, report/, workflow/
SHARED = frozenset(
    ["corpora", "tokens", "runs", "jobs", "fits", "own", "logs", "benchmarks"]
)  # folders in results/ that are not studies
OVERVIEW = ("figures/overview.svg", "figures/overview.csv")  # files that every study has in its folder


@dataclass(frozen=True)
class Store:
    """A results folder (`root`) and the paths in it; no method creates a file or folder."""

    root: Path = Path("results")

    def corpus_folder(self, dataset: str) -> Path:
        """Return the folder with the downloaded files of a dataset."""
        return self.root / "corpora" / dataset

    def tokens_folder(self, dataset: str) -> Path:
        """Return the folder with the token ids and the vocabulary of a dataset."""
        return self.root / "tokens" / dataset

    def run_folder(self, run_path: str) -> Path:
        """Return the folder of a run; `run_path` is `Run.path`, such as `<dataset>/<model>/<seed>-<run_id>`."""
        return self.root / "runs" / run_path

    def job_file(self, job: str) -> Path:
        """Return the file that marks the training job `job` as finished.

        A job trains one model with one or several seeds. With several seeds, its name `job` is
        `<dataset>/<model>/<seed>+<seed>...-<12 hex digits>`. With one seed, the name is the path of the run. The file
        holds no results, which are in the done.json of each run.
        """
        return self.root / "jobs" / f"{job}.json"

    def study_folder(self, study: str) -> Path:
        """Return the folder with the records, tables, figures and report of a study."""
        return self.root / study

    def fits_folder(self, path: str) -> Path:
        """Return the folder `path` below results/fits.

        A unit of fits has two folders. The first holds the unit's record and resume states; its path is
        `<plan>/<name>/<seed>-<unit_id>` (`Unit.path`). The second holds the results of the single fits; its path is
        `laws/<name>/<seed>-<law_id>` (`laws/` and `Unit.law_path`). Units with the same distributions and settings
        share the second folder.
        """
        return self.root / "fits" / path

    def own_folder(self, name: str) -> Path:
        """Return the folder with the analysis of a user's own model; `name` is the stem of the model's file name."""
        return self.root / "own" / name
