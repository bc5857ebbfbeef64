"""Finished studies: those in results folders, and those archived, without weights, in report/evidence/studies.

An archive holds the measured numbers, the states of the runs, the verdicts, and their provenance. It is small enough
for the repository, so that a fresh clone can compare studies that take hours. For some runs, an archive holds more:

* a run on a published corpus (one of the papers' own, such as Penn Treebank): its settings, singular values and epoch
  log, which the chapter "At the published size" shows;
* the first run of every model on real text: the words that the model predicts at the positions that the papers show.
"""

import gzip
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from softmax_bottleneck.records import collection, integrity, records
from softmax_bottleneck.report import archive_file, archive_rules, claims
from softmax_bottleneck.report.archive_file import ENDING, StoredRun
from softmax_bottleneck.report.claims.rules import SYNTHETIC, CorpusData
from softmax_bottleneck.report.claims.verdict import DECIDED, Code, judge
from softmax_bottleneck.report.source import bundled_dataset
from softmax_bottleneck.store import artefacts, paths
from softmax_bottleneck.store.errors import DataError, IncompleteError, UserError
from softmax_bottleneck.study import Contrasts, Run, Study

FOLDER = paths.ROOT / "report" / "evidence" / "studies"
SETTINGS = paths.ROOT / "report" / "evidence" / "settings.json.gz"  # of models in archives without settings
CLAIMS_FILE = "claims.json"  # is in the folder of every finished study
FINISHED = {"ok", "diverged"}  # states of runs that no further call would change
NOT_IN_NAMES = re.compile(r"\((?:R|TM)\)|\b(?:CPU|Processor)\b|@.*")  # parts of the name that a processor reports
INSTRUCTIONS = re.compile(r"\bcpu (\w+), ")  # instruction set in the column `hardware` of `Records.states`
USUAL = {"AVX512"}  # the instruction set that the name of a machine leaves out
Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class ArchivedRun:
    """An archived run on a published corpus.

    Attributes:
        name: `<archive>/<corpus>/<name>`, such as `demo-amd-epyc/ptb/demo-mos-1`; unique among all archived runs.
        label: the label of the model in its study.
        hardware: the machine of the run.
        run: the run with its settings. Its `run_id` is computed from the present code, so it may differ from the
            run_id in the archive.
        values: {metric: measured number}.
        history: the log, one dict per epoch.
        epoch_ranks: one dict per epoch at which ranks were measured. Its keys are `epoch` (0 is before training) and
            the names of metrics.
        spectrum: pairs (index from 1, singular value) of the log-probability matrix, for a subset of the indices.
    """

    name: str
    label: str
    hardware: str
    run: Run
    values: Mapping[str, float]
    history: Sequence[Mapping[str, Any]]
    epoch_ranks: Sequence[Mapping[str, Any]]
    spectrum: Sequence[tuple[int, float]]


@dataclass(frozen=True, eq=False)
class FinishedStudy:
    """A study with its numbers and verdicts, from a results folder or an archive.

    The study whose report is being made has this type, too; it may be unfinished.

    Attributes:
        name: a unique name: `<study>-<hardware>` for an archive. For a results folder, the name of the study or the
            path of the folder: `compare` uses the path if its user named the study by a path.
        study: the name of the study, the same on all machines.
        title: the title of the study; for a study from `from_results`, the same as `name`.
        hardware: the GPUs and processors of the runs as text, such as `AMD EPYC (AVX2)`.
        corpora: {name of a corpus: its title}; empty for a study from `from_results`.
        claims: the list `claims` of claims.json: a dict per claim and corpus, with the verdict.
        records: the measured numbers and the states of the runs.
        runs: the archived runs on published corpora; empty for a study without an archive.
        tuned, contrasts, missing: the choices of a study that tunes its models, the comparisons that it names, and what
            an archive of an unfinished study lacks (see `ArchiveFile`).
        settings: {(corpus, model): a run with its settings}; models of unknown settings are left out.
    """

    name: str
    study: str
    title: str
    hardware: str
    corpora: dict[str, str]
    claims: list[dict[str, Any]]
    records: records.Records
    runs: tuple[ArchivedRun, ...] = ()
    tuned: tuple[dict[str, Any], ...] = ()
    contrasts: Contrasts | None = None
    missing: tuple[str, ...] = ()
    settings: Mapping[tuple[str, str], Run] = field(default_factory=dict)

    @cached_property
    def datasets(self) -> list[str]:
        """The names of the corpora, or ["synthetic"] for a study that only fits known distributions."""
        return list(dict.fromkeys(self.records.states["dataset"])) or [SYNTHETIC]

    def title_of(self, dataset: str) -> str:
        """Return the title of a corpus, or its name if it has no title."""
        return self.corpora.get(dataset, dataset)

    @cached_property
    def views(self) -> list[CorpusData]:
        """The records of each corpus in the property `datasets`, as the rules of claims read them."""
        return [CorpusData(self.records, dataset) for dataset in self.datasets]


def from_results(folder: Path, name: str) -> FinishedStudy:
    """Return the finished study in a results folder, with `name` as its unique name and its title.

    Raises:
        DataError: a file is damaged or missing.
    """
    content, found = artefacts.read_json(folder / CLAIMS_FILE), records.load(folder)
    return FinishedStudy(name, content["study"], name, machines(found), {}, content["claims"], found)


def files() -> list[Path]:
    """Return the files of all archives, sorted by their names without the ending `.json.gz`."""
    return sorted(FOLDER.glob(f"*{ENDING}"), key=lambda path: path.name.removesuffix(ENDING))


def called(file: Path) -> str:
    """Return the name of a file for users: its path relative to the project's folder.

    For a file outside the project, return its path relative to the working folder or, outside both, only its name.
    """
    full = file.resolve()
    homes = (home for home in (paths.ROOT, Path.cwd()) if full.is_relative_to(home))
    return next((full.relative_to(home).as_posix() for home in homes), file.name)


def machine(hardware: str) -> str:
    """Return the GPU in a run's hardware or, if it has none, the processor, such as `Intel Xeon`; both if it used both.

    `hardware` is a value of the column `hardware` of `Records.states`, or the name that a processor reports.
    """
    *devices, processor = hardware.split(", ")
    used = [processor if device.startswith("cpu ") else device for device in devices] or [processor]
    return " and ".join(map(_plain, dict.fromkeys(used)))


def _plain(name: str) -> str:
    return " ".join(NOT_IN_NAMES.sub("", name).split())


def machines(found: records.Records) -> str:
    """Return the GPUs and processors of the runs in `found` as text, such as `AMD EPYC (AVX2)`, joined by " and ".

    The text is `unknown` if no hardware is recorded. A processor's instruction set is named unless it is AVX-512. Two
    instruction sets count as two machines, because results differ in their last digits.
    """
    processors = [block.get("hardware", {}).get("cpu", "unknown") for block in found.environments]
    names = []
    every = {*map(str, found.states["hardware"]), *map(str, found.stages["hardware"])}
    for hardware in sorted(every - {""}) or processors:
        others = sorted(set(INSTRUCTIONS.findall(hardware)) - USUAL)
        processor, details = _plain(hardware.rpartition(", ")[2]), f" ({' and '.join(others)})" if others else ""
        names += [f"{name}{details if name == processor else ''}" for name in machine(hardware).split(" and ")]
    return " and ".join(dict.fromkeys(names)) or "unknown"


# --- writing --------------------------------------------------------------------------------------------------------
def write(study: Study, unfinished: bool = False) -> Path:
    """Write the archive of a study and return the path of the file; the same results give the same bytes.

    The results are collected again from the runs that the study plans now. The study's folder may hold older records.
    The archive has the verdicts on the claims of all papers, also of papers that the study's own report leaves out.

    Args:
        study: the study.
        unfinished: if true, an unfinished study is archived, too, with its finished runs and stages only.

    Raises:
        IncompleteError: nothing has finished; or a planned run, stage or synthetic experiment has not finished, and
            `unfinished` is false.
        DataError: synthetic.json is damaged.
    """
    found = collection.collect(study)
    states, stages = (table[table["state"].isin(FINISHED)] for table in (found.states, found.stages))
    rows = found.rows[found.rows["run_id"].isin({"", *states["run_id"], *stages["run_id"]})]
    missing = sorted({*found.states["path"], *found.stages["path"]} - {*states["path"], *stages["path"]})
    missing += [f"the choice of {'/'.join(one.key)} and its runs" for one in study.shown_tuned if not one.choice]
    missing += [one.id for one in study.experiments if one.is_synthetic and found.synthetic.empty]
    finished = len(states) + len(stages) + len(rows)
    if missing and not (unfinished and finished):
        what = "planned runs, stages, choices or synthetic experiments"
        advice = "run `make reproduce`" + (", or archive the others with --unfinished" if finished else "")
        raise IncompleteError(f"archive: {study.name}: {len(missing)} {what} have not finished; {advice}")
    found = replace(found, rows=rows, states=states, stages=stages)
    runs = [run for run in study.needed if run.path in set(states["path"])]
    natural = [run for run in runs if study.datasets[run.dataset].kind == "corpus"]
    predicted = [run for run in natural if found.detail(run.path, "predictions")]
    first = {(run.dataset, run.model): run.path for run in reversed(predicted)}
    corpora = [*found.states["dataset"], *found.stages["dataset"]]
    content = {
        "study": study.name,
        "title": study.title,
        "hardware": machines(found),
        "digest": study.digest,
        "command": f"python -m softmax_bottleneck reproduce --study {called(study.file)}",
        "corpora": {name: study.datasets[name].title for name in dict.fromkeys(corpora)},
        "environments": list(found.environments),
        "rows": columns_of(found.rows.drop(columns=["source", "std"])),
        "states": columns_of(found.states),
        "stages": columns_of(found.stages),
        "claims": [entry.to_json() for entry in claims.ledger(found, study=study)],
        "settings": _settings_of_models(study, states),
        "runs": [
            _single_run(study, run, found)
            for run in runs
            if study.datasets[run.dataset].published_as and run.path in found.spectra
        ],
    }
    kept = archive_file.Choice.__annotations__
    optional: dict[str, Any] = {
        "tuned": [{key: tuned.choice[key] for key in kept} for tuned in study.shown_tuned if tuned.choice],
        "contrasts": study.contrasts and asdict(study.contrasts),
        "missing": missing,
        "predictions": {path: found.detail(path, "predictions") for path in first.values()},
    }
    return save(content | {key: value for key, value in optional.items() if value})


def _settings_of_models(study: Study, states: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return {corpus: {model: content of run.json}} of the models with a run in `states`."""
    trained = set(zip(states["dataset"], states["model"], strict=True))
    settings: dict[str, dict[str, Any]] = {}
    for run in (run for run in study.runs if (run.dataset, run.model) in trained):
        settings.setdefault(run.dataset, {}).setdefault(run.model, run.to_json())
    return settings


def _single_run(study: Study, run: Run, found: records.Records) -> dict[str, Any]:
    """Return what the archive holds of a run on a published corpus (`archive_file.StoredRun`)."""
    return {
        "name": f"{study.name}-{run.model}-{run.seed}",
        "run": run.to_json() | {"run_id": run.run_id},
        "history": found.curve(run.path),
        "epoch_ranks": found.detail(run.path, "epoch_ranks") or [],
        "spectrum": [[int(index), sigma] for index, sigma in found.spectra[run.path].T.tolist()],
    }


def save(content: dict[str, Any]) -> Path:
    """Write the content of an archive to the file `<study>-<hardware>.json.gz` in FOLDER; return the path of this file.

    The keys of `content` are the attributes of `archive_file.ArchiveFile`. A file of this name that holds further runs
    is kept, unless the new archive is of a finished study: the name ends in `-2`, or in the next number that is free.

    Raises:
        DataError: a present file is damaged.
        UserError: a key is missing or unknown, or a value is not valid.
    """
    hardware = "-".join(re.findall("[a-z0-9]+", machine(content["hardware"]).lower()))
    name = f"{content['study']}-{hardware}"
    numbered = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    candidates = (FOLDER / f"{one}{ENDING}" for one in numbered)
    path = next(path for path in candidates if not content.get("missing") or _holds_no_further_run(path, content))
    archive_file.parse(content, str(path))
    text = json.dumps(content, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    artefacts.write_bytes(path, gzip.compress(text.encode("utf-8"), mtime=0))
    return path


def _holds_no_further_run(path: Path, content: Mapping[str, Any]) -> bool:
    """Return True if the archive at `path`, if there is one, has only runs that `content` has, too."""
    if not path.exists():
        return True
    present = archive_file.load(path)
    runs = {*content["states"]["run_id"], *content["stages"]["run_id"]}
    return {*present.states.run_id, *present.stages.run_id} <= runs


def columns_of(frame: pd.DataFrame) -> Columns:
    """Return a data frame as {column: values}, with None for missing numbers."""
    plain = frame.astype(object).where(frame.notna(), None)
    return {str(name): values for name, values in plain.to_dict("list").items()}


# --- reading --------------------------------------------------------------------------------------------------------
def load_all() -> list[FinishedStudy]:
    """Return all archived studies, sorted by study; archives of one study by their number of runs, the largest first.

    Archives that cannot be read are left out; `findings` names them.
    """
    found = (study for study, _ in map(_load_or_fault, files()) if study is not None)
    return sorted(found, key=lambda one: (one.study, -len(one.records.states), one.name))


def _load_or_fault(path: Path) -> tuple[FinishedStudy | None, str]:
    try:
        return load(path), ""
    except UserError as error:
        return None, str(error)


@cache
def load(path: Path) -> FinishedStudy:
    """Return the study that an archive file holds.

    Raises:
        DataError: the file is damaged, or the rows of a run are missing.
        UserError: the content does not fit the format of `archive_file.ArchiveFile`, the settings of a run are invalid,
            or the file's name does not begin with its study.
    """
    name, stored = path.name.removesuffix(ENDING), archive_file.load(path)
    try:
        rows = pd.DataFrame({"source": "archived", "std": math.nan, **vars(stored.rows)})[list(records.COLUMNS)]
        rows = rows.astype(object) if rows.empty else rows  # a search that has measured nothing yet
        rows = rows.astype({"value": "float64", "n": "Int64", "seed": "Int64"})
        states = pd.DataFrame(vars(stored.states), columns=list(records.STATE_COLUMNS))
        stages = pd.DataFrame(vars(stored.stages), columns=list(records.STAGE_COLUMNS))
        details = {run_path: {"predictions": words} for run_path, words in stored.predictions.items()}
        found = records.Records(rows, states, stages, environments=tuple(stored.environments), details=details)
        runs = tuple(_archived_run(run, found, name, f"{path}: {run.name}") for run in stored.runs)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"{path}: rows or states are no table, or lack a run ({error})") from None
    by_corpus = stored.settings or _older_settings().get(stored.study, {})
    settings = _settings(by_corpus, stored.runs, str(path))
    archive_rules.check(archive_rules.Archive(stored, by_corpus), str(path))
    if not name.startswith(f"{stored.study}-"):
        advice = "Fix: write the archive again with `archive --study`, and keep its name"
        raise UserError(f"{path}: study: {stored.study!r:.60} does not begin the file's name. {advice}")
    return FinishedStudy(
        name=name, study=stored.study, title=stored.title, hardware=machine(stored.hardware), corpora=stored.corpora,
        claims=judged_again(map(dict, stored.claims), found), records=found, runs=runs, settings=settings,
        tuned=tuple(map(dict, stored.tuned)), contrasts=stored.contrasts, missing=stored.missing,
    )  # fmt: skip


def _archived_run(stored: StoredRun, found: records.Records, archive: str, where: str) -> ArchivedRun:
    """Return a run on a published corpus with its numbers; `where` is its place in the archive, for error messages."""
    run, run_id = Run.from_json(stored.run, where), stored.run.get("run_id")
    if not bundled_dataset(run.dataset):
        raise DataError(f"{where}: dataset: {run.dataset!r} is not in config/datasets")
    numbers = found.rows[(found.rows["run_id"] == run_id) & (found.rows["condition"] == "")].set_index("metric")
    state = found.states[found.states["run_id"] == run_id].iloc[0]
    return ArchivedRun(
        name=f"{archive}/{run.dataset}/{stored.name}", label=state["label"], hardware=state["hardware"], run=run,
        values=dict(numbers["value"]), history=stored.history, epoch_ranks=stored.epoch_ranks, spectrum=stored.spectrum,
    )  # fmt: skip


def judged_again(entries: Iterable[dict[str, Any]], found: records.Records) -> list[dict[str, Any]]:
    """Return the verdicts of an archive, those on fits that nobody had checked for convergence judged again.

    Archives from before this premise hold every fit, so that nothing else is needed to judge.
    """
    needs = {claim.id: claim for claim in claims.CLAIMS if claim.premises}
    synthetic = CorpusData(found, SYNTHETIC)
    result = []
    for entry in entries:
        claim, codes = needs.get(entry["id"]), {premise["code"] for premise in entry["premises"]}
        is_unchecked = entry["verdict"] in DECIDED and not codes & {Code.FITS_CONVERGED, Code.FITS_UNCHECKED}
        is_stale = entry["dataset"] == SYNTHETIC and is_unchecked
        result.append(judge(synthetic, claim).to_json() if claim and is_stale else entry)
    return result


@cache
def _older_settings() -> dict[str, Any]:
    """Return {study: {corpus: {model: content of run.json}}} of archives that do not hold the settings themselves."""
    return dict(json.loads(gzip.decompress(SETTINGS.read_bytes())))


def _settings(by_corpus: Mapping[str, Any], runs: Iterable[StoredRun], where: str) -> dict[tuple[str, str], Run]:
    """Return {(corpus, model): a run with its settings}; `by_corpus` has {corpus: {model: content of run.json}}."""
    given = [(run, f"{where}: settings") for models in by_corpus.values() for run in models.values()]
    given += [(one.run, f"{where}: {one.name}") for one in runs]
    return {(run.dataset, run.model): run for run in (Run.from_json(*one) for one in given)}


def archived_runs() -> list[ArchivedRun]:
    """Return the runs on published corpora of all archives."""
    return [run for study in load_all() for run in study.runs]


def find(name: str) -> list[FinishedStudy]:
    """Return the archives that `name` means: one archive, or all archives of one study.

    The unique name of an archive, such as `demo-amd-epyc`, gives a list of one study. The name of a study, such as
    `demo`, gives all archives of this study, one per kind of hardware.

    Raises:
        UserError: no archive and no archived study has this name, or the archive cannot be read.
    """
    file = FOLDER / f"{name}{ENDING}"
    if file in files():
        return [load(file)]
    studies = load_all()
    if found := [one for one in studies if one.study == name]:
        return found
    problem = "no archive and, for `compare`, no finished study in results/ has this name"
    raise UserError(f"{name}: {problem}. Archives: {', '.join(one.name for one in studies)}")


def findings() -> Iterator[integrity.Finding]:
    """Yield a finding of the kind `damaged` for each archive that cannot be read; the command `verify` prints them."""
    for path in files():
        if fault := _load_or_fault(path)[1]:
            yield integrity.Finding("damaged", f"report/evidence/studies/{path.name}", fault)
