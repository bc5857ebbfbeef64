"""The folders and files of the results, and the root of the repository."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]  # of the repository: config/, report/, workflow/
PUBLISHED = ROOT / "report" / "published"
# Folders in results/ that are not studies.
SHARED = frozenset(["corpora", "tokens", "runs", "jobs", "fits", "own", "logs", "benchmarks"])
OVERVIEW = ("figures/overview.svg", "figures/overview.csv")  # files that every study has in its folder


def natural_order(text: str) -> list[tuple[int, str]]:
    """Return the sort key of a file's name that puts shard-9 before shard-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


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

        A job trains one model with one or several seeds. With one seed, its name `job` is the path of the run. With
        several seeds, it is `<dataset>/<model>/<seed>+<seed>...-<12 hex digits>`; the digits are a hash of the runs'
        paths. The file holds the hash of each run's done.json. It is written only if the study's `replicas_per_job`,
        the number of seeds per job, is above 1.
        """
        return self.root / "jobs" / f"{job}.json"

    def study_folder(self, study: str) -> Path:
        """Return the folder with the records, tables, figures and report of a study."""
        return self.root / study

    def fits_folder(self, path: str) -> Path:
        """Return the folder `path` below results/fits.

        A unit of fits has two folders. The first holds the unit's record and resume states; its path is `Unit.path`,
        which is `<plan>/<name>/<seed>-<unit_id>`. The second holds the results of the single fits; its path is `laws/`
        followed by `Unit.law_path`, which is `<name>/<seed>-<law_id>`. Units of different plans or studies share the
        second folder if they have the same distributions and settings, so that equal fits are computed once.
        """
        return self.root / "fits" / path

    def own_folder(self, name: str) -> Path:
        """Return the folder with the analysis of a user's own model; `name` is that of its folder or .gguf file."""
        return self.root / "own" / name
