"""The command line: one sub-command per rule of the workflow, and others for people."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softmax_bottleneck import study as config
from softmax_bottleneck.jobs import outcomes
from softmax_bottleneck.jobs.out_of_memory import as_out_of_memory_error
from softmax_bottleneck.store import artefacts
from softmax_bottleneck.store.errors import (
    BusyError,
    DivergedResultError,
    IncompleteError,
    MemoryExhaustedError,
    UserError,
)
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import plan, schema

if TYPE_CHECKING:
    from softmax_bottleneck.records.records import Records

COLLECT_AFTER = 5000  # objects; at the usual 700 importing torch collects so often that it takes a tenth longer
EXIT_DISK, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 74, 130, 141
SUBJECTS = ("run", "dataset", "unit")
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
EPILOG = (
    "Exit codes: 0 done, 1 a fault of the program, 2 something to mend (configuration, data), 3 results incomplete, "
    "10 diverged, 74 disk, 75 try again, 130 and 143 stopped by a signal with the state saved, "
    "141 nobody reads the output on."
)


def main(arguments: list[str] | None = None) -> int:
    """Run one sub-command; errors that people can mend are one line on stderr."""
    given = parser().parse_args(arguments)
    say, what = _speaker(given.log), _subject(given)
    outcomes.note(given.step, what)
    try:
        words, code = _called(given, say)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads the output has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        words, code = "", EXIT_BROKEN_PIPE
    except Exception as error:
        outcomes.note(given.step, what, 1, f"{type(error).__name__}: {error}; its traceback is in the log")
        raise
    if words:
        say(f"error: {words}")
    outcomes.note(given.step, what, code, words)
    return code


def _subject(given: argparse.Namespace) -> str:
    """Which run, corpus or experiment a step works on; empty for one of the whole study."""
    return next((str(vars(given)[key]) for key in SUBJECTS if key in vars(given)), "")


def _called(given: argparse.Namespace, say: Say) -> tuple[str, int]:
    """What went wrong in one line, and the exit code; others than 0 are for people or time to mend."""
    try:
        given.call(given, say)
    except (UserError, IncompleteError, BusyError, DivergedResultError, MemoryExhaustedError) as error:
        return str(error), error.exit_code
    except KeyboardInterrupt:
        return "interrupted; call again to go on", EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("softmax_bottleneck"):
            raise
        return f"{given.step}: needs {error.name}, which is not installed; `make env` installs it", UserError.exit_code
    except BrokenPipeError:
        raise
    except OSError as error:
        return _disk_trouble(error)
    except (MemoryError, RuntimeError) as error:
        known = as_out_of_memory_error(error, given.step)
        if known is None:
            raise
        return str(known), known.exit_code
    return "", 0


def _disk_trouble(error: OSError) -> tuple[str, int]:
    """What to do about it and the exit code: rights are for people to mend, a full or failing disk may recover."""
    what = f"{error.filename or 'disk'}: {error.strerror or error}"
    if error.errno in FORBIDDEN:
        return f"{what}; make it writable, or work in another folder", UserError.exit_code
    if error.errno in artefacts.FULL:
        return f"{what}; free some space, then call again: what is there already stays", EXIT_DISK
    return f"{what}; mend the disk or the folder, then call again", EXIT_DISK


def _speaker(log: Path | None) -> Say:
    """Prints a line to the terminal and, when asked, keeps it in a log file; a log that fails stops no work."""

    def say(line: str) -> None:
        line = line.encode("utf-8", "backslashreplace").decode("utf-8")  # a file's name may be any bytes
        print(line, file=sys.stderr, flush=True)
        if log is not None:
            with suppress(OSError):  # the artefacts fail by themselves where the disk does
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("a", encoding="utf-8") as file:
                    file.write(f"{time.strftime('%H:%M:%S')}  {line}\n")

    return say


def _study(given: argparse.Namespace) -> config.Study:
    return config.load_study(*_asked_for(given))


def _asked_for(given: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """The study's file, and the keys that hold instead of the file's."""
    file, overrides = (given.study, {}) if given.study else config.study_from_environment()
    for pair in given.set:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UserError(f"--set {pair}: expected key=value")
        overrides[key] = config.parse_yaml(value, f"--set {key}")
    return file, overrides


# --- sub-commands ---------------------------------------------------------------------------------------------------
def _plan(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras.plan import text
    from softmax_bottleneck.report.options import check_options
    from softmax_bottleneck.training import check

    study = _study(given)
    check_options(study)
    facts = check.facts(study, check.costs(study)) if given.json else None
    print(json.dumps(facts, indent=1) if facts else text(study, given.budget))


def _check(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report.options import check_options
    from softmax_bottleneck.training import check

    study = _study(given)
    check_options(study)
    check.check(study, say)


def _doctor(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras import doctor

    findings = doctor.examine(*_asked_for(given))
    print(doctor.as_json(findings) if given.json else doctor.text(findings))
    doctor.verdict(findings)


def _slurm(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras import doctor
    from softmax_bottleneck.extras import slurm_launcher as launcher

    file, overrides = _asked_for(given)
    findings = doctor.examine(file, overrides, on_cluster=True)
    print(doctor.text(findings))
    if not given.anyway:
        doctor.verdict(findings)
    code = launcher.repeat(launcher.command(file, given.set, given.words), given.tries, launcher.PAUSE_S, say)
    if code:
        raise IncompleteError(f"Snakemake ended with exit code {code}; its log is above; call again to go on")


def _reproduce(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras import reproduce

    reproduce.reproduce(_study(given), reproduce.Call(given.set, given.cores, given.words, given.verbose), say)


def _new_study(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras.new_study import new_study
    from softmax_bottleneck.extras.plan import text

    study = config.load_study(new_study(given.texts, given.into, given.name, say))
    print(f"{text(study)}\n\nmake reproduce CONFIG={study.file}")


def _partial(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras.partial import partial

    say(f"wrote {partial(_study(given), given.reload)}")


def _download(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.corpora.download import download

    download(_study(given), given.dataset, say)


def _tokenise(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.corpora.tokenise import tokenise

    tokenise(_study(given), given.dataset, say)


def _measure(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.measuring.measure import measure

    measure(_study(given), given.run, say)


def _measuring_step(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.measuring.measure import measure_step

    measure_step(_study(given), given.run, given.step, say)


def _synthetic(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.measuring.synthetic import synthetic

    synthetic(_study(given), say)


def _collect(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.records import collect

    study = _study(given)
    records = collect.collect_to(study, study.store.study_folder(study.name))
    for warning in records.mixtures():
        say(f"warning: {warning}")
    say(f"{study.name}: {len(records.rows)} records, {records.counts()}")


def _evidence(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.records import collect

    print(collect.evidence_of(_study(given), given.run, given.origin), end="")


def _render(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report import render

    study = _study(given)
    render.render(study, study.store.study_folder(study.name))
    say(f"{study.name}: {len(study.experiments)} tables and figures")


def _claims(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report import archive, claims

    entries = [entry for name in given.archived for study in archive.find(name) for entry in study.claims]
    if not given.archived:
        study = _study(given)
        entries = [entry.to_json() for entry in claims.ledger(_records(study), claims.of_study(study), study)]
    print("\n".join(claims.explain(entries, given.explain)))


def _archive(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report import archive

    say(f"wrote {archive.write(_study(given))}")


def _report(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report import report

    study = _study(given)
    folder = study.store.study_folder(study.name)
    say(f"wrote {report.report(folder, out=given.out)}")
    counts = dict(artefacts.read_json(folder / "page.json")["counts"])
    if counts["planned"] and counts["missing"] == counts["planned"]:
        raise IncompleteError(f"{study.name}: none of {counts['planned']} planned runs is there; the page says so")


def _verify(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.records.verify import verify
    from softmax_bottleneck.report import archive

    study = _study(given)
    found = verify(study)
    found = dataclasses.replace(found, findings=(*found.findings, *archive.findings()))
    print(json.dumps(found.to_json(), indent=1) if given.json else found.text())
    if not found.complete:
        raise IncompleteError(f"{study.name}: not complete, or not sound")


def _repair(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.jobs import project_lock
    from softmax_bottleneck.records.repair import repair

    study = _study(given)
    project_lock.acquire()
    found, removed = repair(study)
    for path in removed:
        say(f"removed {study.store.root / path}")
    runs = sum(path.parts[0] == "runs" and len(path.parts) == 4 for path in removed)  # folders: weights were damaged
    makes = f"makes them again and trains {runs} of the runs" if runs else "makes them again"
    say(f"{study.name}: findings: {len(found.findings)}, removed: {len(removed)}; `make reproduce` {makes}")


def _summary(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report import render

    study = _study(given)
    print(render.result_table(study, _records(study)))
    print(f"\nReport: {(study.store.study_folder(study.name) / 'report' / 'index.html').resolve()}")


def _records(study: config.Study) -> Records:
    """Of a finished study, else of what the page of an unfinished one shows (UserError: nothing is there)."""
    from softmax_bottleneck.extras import partial
    from softmax_bottleneck.records import records

    for folder in (study.store.study_folder(study.name), partial.folder_of(study)):
        if (folder / records.REST_FILE).exists():
            return records.load(folder)
    raise UserError(
        f"study {study.name} has no results yet: `make reproduce CONFIG={study.file}` makes them, --study names another"
    )


def _number(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report.lookup import lookup

    study = _study(given)
    print("\n".join(lookup(study, _records(study), given.name)))


def _compare(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report import compare

    tables = compare.side_by_side(compare.find_studies(given.studies))
    print(compare.text(tables))
    if given.out:
        path = given.out / "compare.csv"
        artefacts.write_text(path, compare.csv(tables))
        say(f"wrote {path}")


def _rank(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.own_model import page, rank, request

    named = {key: value for key, value in vars(given).items() if key in request.KEYS and value is not None}
    if given.config and named:
        raise UserError(f"--config {given.config} holds all options: leave out {', '.join(sorted(named))}")
    if given.compare:
        if given.config or named:
            raise UserError("--compare: takes no other option than --out")
        models = page.read_compared(given.compare)
        path = page.write_comparison(models, given.out or Store().own_folder("comparison"))
        for row in [("", *(model.name for model in models)), *page.compare(models)]:
            print("  ".join(f"{text:32.32}" for text in row).rstrip())
        say(f"wrote {path}")
        return
    checked = request.read_request(given.config) if given.config else request.request(named, "rank")
    name = given.config or Path(checked.model or "model").resolve()
    folder = given.out or Store().own_folder(name.stem)
    result = rank.rank(checked, say, folder / "export")
    path = page.write(result, folder)
    for label, text in page.rows(result):
        print(f"{label:32}  {text}")
    for note in result.notes():
        say(f"note: {note}")
    say(f"wrote {path}")


def _crate(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras import crate

    deposit = crate.Deposit(tuple(given.author), given.licence, frozenset(given.include))
    say(f"wrote {crate.build(_study(given), deposit, packed=given.zip)}")


def _limited_study(given: argparse.Namespace) -> config.Study:
    """The study with the time limits of the command line, where there are any."""
    named = {name: getattr(given, name) for name in ("max_wall", "time_margin") if getattr(given, name)}
    return dataclasses.replace(_study(given), **named)


def _train(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.jobs import replicas

    study = _limited_study(given)
    runs = plan.jobs(study).get(given.run, ())
    if len(runs) > 1:
        replicas.train_together(_same_call(given), [run.path for run in runs], runs[0].device, say)
    else:
        from softmax_bottleneck.training.train import train

        _finish_training(given, study, train(study, given.run, say, given.restart), say)
    if study.replicas_per_job > 1 and runs:
        replicas.record_job(study, given.run, runs)


def _same_call(given: argparse.Namespace) -> list[str]:
    """Return the command line of `train` without its run, and without --measure: all seeds share the job's threads."""
    words = [sys.executable, "-m", "softmax_bottleneck", "train"]
    words += [f"--{name.replace('_', '-')}" for name in ("restart", "diverged_ok") if getattr(given, name)]
    valued = {name: getattr(given, name) for name in ("study", "log", "max_wall", "time_margin")}
    words += [word for name, value in valued.items() if value for word in (f"--{name.replace('_', '-')}", str(value))]
    return words + (["--set", *given.set] if given.set else [])


def _finetune(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.training.finetune import finetune

    study = _limited_study(given)
    _finish_training(given, study, finetune(study, given.run, say, given.restart), say)


def _finish_training(given: argparse.Namespace, study: config.Study, done: dict[str, Any], say: Say) -> None:
    """Measure the run in this process if --measure asks for it; a diverged run is an error without --diverged-ok."""
    if given.measure:
        from softmax_bottleneck.measuring.measure import measure_after_training

        measure_after_training(study, given.run, say)
    if done["status"] == "diverged" and not given.diverged_ok:
        raise DivergedResultError(f"{given.run}: diverged: {done['reason']}; recorded, and not to be tried again")


def _dynamic(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.training.dynamic import dynamic

    dynamic(_limited_study(given), given.run, say, given.restart)


def _fit(given: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.training.fit import fit

    fit(_limited_study(given), given.unit, say, given.restart)


Add = Callable[[argparse.ArgumentParser], None]


def _add_study(command: argparse.ArgumentParser) -> None:
    command.add_argument("--study", "--configfile", type=Path, help="the study's YAML (default: config/demo.yaml)")
    command.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="top-level keys instead of the file's (mirror=/data)"
    )


def _add_dataset(command: argparse.ArgumentParser) -> None:
    _add_study(command)
    command.add_argument("--dataset", required=True, help="name of a file in config/datasets")


def _add_run(command: argparse.ArgumentParser) -> None:
    _add_study(command)
    command.add_argument("--run", required=True, help="<dataset>/<model>/<seed>-<run_id>, as `plan --json` prints it")


def _add_fits(command: argparse.ArgumentParser) -> None:
    _add_study(command)
    command.add_argument("--unit", required=True, help="<fits>/<laws>/<seed>-<unit_id>, as `plan --json` prints it")
    _add_resumable(command)


def _add_train(command: argparse.ArgumentParser) -> None:
    _add_run(command)
    _add_resumable(command)
    command.add_argument("--diverged-ok", action="store_true", help="exit 0, not 10, for a run that diverged")
    command.add_argument("--measure", action="store_true", help="then measure the run in the same process")


def _add_dynamic(command: argparse.ArgumentParser) -> None:
    _add_run(command)
    _add_resumable(command)


def _add_resumable(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--restart", action="store_true", help="begin anew, and remove what is there, a finished result too")
    add("--max-wall", metavar="TIME", help="save and stop with exit code 75 after so long: 90s, 30m, 4h, 1.5d")
    add("--time-margin", metavar="TIME", help="how long before the end of its SLURM job to do that (default: 3m)")


def _add_evidence(command: argparse.ArgumentParser) -> None:
    _add_run(command)
    command.add_argument("--origin", required=True, help="who measured it, as the tables will say")


def _add_plan(command: argparse.ArgumentParser) -> None:
    _add_verify(command)
    command.add_argument("--budget", type=_hours, metavar="TIME", help="what so much time buys, as 100h or 4d")


def _hours(words: str) -> float:
    try:
        return schema.seconds(words) / 3600
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_verify(command: argparse.ArgumentParser) -> None:
    _add_study(command)
    command.add_argument("--json", action="store_true", help="for programs, as JSON")


def _add_claims(command: argparse.ArgumentParser) -> None:
    _add_study(command)
    command.add_argument("--explain", action="store_true", help="with premises, intervals and stability")
    command.add_argument("archived", nargs="*", help="instead of --study: archived studies by name")


def _add_compare(command: argparse.ArgumentParser) -> None:
    command.add_argument("studies", nargs="+", metavar="STUDY", help="a name (of results/ or an archive), or a folder")
    command.add_argument("--out", type=Path, help="also write compare.csv into this folder")


def _add_number(command: argparse.ArgumentParser) -> None:
    _add_study(command)
    command.add_argument("name", metavar="CORPUS/MODEL/METRIC", help="as a number of the page names it when it opens")


def _add_doctor(command: argparse.ArgumentParser) -> None:
    _add_study(command)
    command.add_argument("--json", action="store_true", help="for programs: a list of {check, state, found, advice}")


def _add_slurm(command: argparse.ArgumentParser) -> None:
    _add_study(command)
    command.add_argument("--tries", type=int, default=5, help="calls of Snakemake, with growing pauses (default 5)")
    command.add_argument("--anyway", action="store_true", help="start although doctor found something")
    command.add_argument("words", nargs="*", help="after --: further options of Snakemake, such as --jobs 20")


def _add_reproduce(command: argparse.ArgumentParser) -> None:
    _add_study(command)
    command.add_argument("--cores", type=int, default=2, help="how much works at the same time (default 2)")
    command.add_argument("--verbose", action="store_true", help="all that Snakemake and the steps print, not one line")
    command.add_argument("words", nargs="*", help="after --: further options of Snakemake, such as --until measure")


def _add_new_study(command: argparse.ArgumentParser) -> None:
    command.add_argument("--texts", type=Path, required=True, help="a folder of plain UTF-8 texts, *.txt")
    command.add_argument("--name", help="of the study and its corpus (default: the folder's)")
    command.add_argument("--into", type=Path, default=Path("config"), help="where both are written (default: config)")


def _add_report(command: argparse.ArgumentParser) -> None:
    _add_study(command)
    command.add_argument(
        "--out", type=Path, help="where index.html is written (default: report/ of the study's folder)"
    )


def _add_partial(command: argparse.ArgumentParser) -> None:
    _add_study(command)
    command.add_argument("--reload", type=int, metavar="SECONDS", help="the browser loads the page again after so long")


def _add_crate(command: argparse.ArgumentParser) -> None:
    _add_study(command)
    add = command.add_argument
    add("--include", nargs="*", default=[], choices=["weights", "hidden"], help="what is left out otherwise")
    add("--author", nargs="*", default=[], metavar="NAME", help='who ran it: "Name" or "Name <https://orcid.org/...>"')
    add("--licence", default="MIT", metavar="SPDX", help="licence of the results (default: MIT, the workflow's)")
    add("--zip", action="store_true", help="also pack it as one file")


def _add_rank(command: argparse.ArgumentParser) -> None:
    files: dict[str, Any] = {"nargs": "+", "action": "extend", "metavar": "FILE[::NAME]"}
    add = command.add_argument
    add("--config", type=Path, help="a YAML with everything below, as config/own-model.example.yaml")
    add(
        "--hidden",
        **files,
        help="hidden states [contexts, width]: .npy, .npz, .safetensors; patterns and shards allowed",
    )
    add("--weight", **files, help="output matrix [words, width]")
    add("--bias", metavar="FILE[::NAME]", help="output bias [words]")
    add("--head", metavar="NAME[:OPTION=VALUE,...]", help="softmax (default), or gss:c=-1.5,k=2.5, sigsoftmax, ...")
    add("--log-probs", **files, help="instead: log-probabilities [contexts, words] in shards of contexts")
    add(
        "--model",
        metavar="DIR|FILE.gguf",
        help="instead: a Hugging Face folder or GGUF file, with --text",
    )
    add("--text", metavar="FILE", help="text whose tokens are the contexts of --model")
    add("--targets", metavar="FILE.npy", help="number of the word that follows each hidden state, for the gradient")
    add("--weights-only", action="store_true", default=None, help="the output matrix of --model or --weight, no text")
    add("--width", type=int, help="with --log-probs: the model's width d, to check rank <= d + 2")
    add("--max-memory", metavar="SIZE", help="4GB; beyond it a random part is analysed (default: most of what is free)")
    add("--seconds", type=float, help="time limit of the search for unargmaxable words (default 60)")
    add("--compare", nargs="+", type=Path, metavar="rank.json", help="instead: models that were analysed, side by side")
    add("--seed", type=int, help="seed of the part (default 1)")
    add("--title", help="name of the model in the report")
    add("--out", type=Path, help="folder for rank.json, spectrum.npz, spectrum.svg, index.html (results/own/<name>)")


Call = Callable[[argparse.Namespace, Say], None]
COMMANDS: dict[str, tuple[str, Add, Call]] = {
    "plan": ("print each experiment with the runs it needs, how many are done, hours and disk", _add_plan, _plan),
    "doctor": ("whether a study can be run here: data, disk, GPU, packages, time limits, SLURM", _add_doctor, _doctor),
    "reproduce": ("run a study to its page, going on where an earlier call stopped", _add_reproduce, _reproduce),
    "new-study": ("a corpus and a small study from a folder of plain texts", _add_new_study, _new_study),
    "partial": ("the page of a study that is not finished, apart from its own", _add_partial, _partial),
    "slurm": ("run a study on a SLURM cluster: doctor, then Snakemake with the profile", _add_slurm, _slurm),
    "check": ("build every model without memory: refuse bad options, count parameters", _add_study,
              _check),
    "download": ("bring a dataset's files, checked by hash; sample the known-truth language", _add_dataset, _download),
    "tokenise": ("token ids and vocabulary of a corpus, counts asserted", _add_dataset, _tokenise),
    "train": ("train one run, going on where an earlier call stopped", _add_train, _train),
    "finetune": ("finetune a trained run from its best weights, going on where an earlier call stopped", _add_train,
                 _finetune),
    "dynamic": ("dynamic evaluation of a trained or finetuned run, going on where an earlier call stopped",
                _add_dynamic, _dynamic),
    "measure": ("all measurements of a trained run; steps whose files are up to date are not repeated", _add_run,
                _measure),
    "evaluate": ("perplexities and predicted words of a trained run, hidden states of the test text", _add_run,
                 _measuring_step),
    "spectrum": ("singular values and ranks of the log-probability matrix", _add_run, _measuring_step),
    "wordsim": ("word-similarity benchmarks on a run's word vectors", _add_run, _measuring_step),
    "fit": ("output heads on free context vectors, fitted to the laws of one unit", _add_fits, _fit),
    "synthetic": ("ranks of untrained layers, noise, and the numbers of all fits", _add_study,
                  _synthetic),
    "rank": ("singular values and ranks of a model of your own, from files", _add_rank, _rank),
    "evidence": ("a finished run as a file for report/evidence of another checkout, to the standard output",
                 _add_evidence, _evidence),
    "collect": ("all runs' numbers as tidy records", _add_study, _collect),
    "render": ("every table, figure and claim of a study, measured beside published", _add_study, _render),
    "claims": ("print the papers’ conclusions as judged by the collected records", _add_claims, _claims),
    "report": ("the study's page, which embeds what render wrote", _add_report, _report),
    "archive": ("pack a finished study into report/evidence/studies, without its weights", _add_study, _archive),
    "compare": ("finished studies side by side: claims and heads, with the hardware", _add_compare, _compare),
    "number": ("print one number with its definition, seeds, files and hashes", _add_number, _number),
    "verify": ("hash everything the study shows, and list what is missing, damaged, stale or impossible", _add_verify,
               _verify),
    "repair": ("remove what is damaged and what was made from it, so that it is made again", _add_study, _repair),
    "crate": ("a finished study as a Workflow Run RO-Crate, to be deposited and cited", _add_crate, _crate),
    "summary": ("a small result table, and where the report is", _add_study, _summary),
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(prog="softmax_bottleneck", description=__doc__, epilog=EPILOG)
    commands = top.add_subparsers(required=True, metavar="STEP", dest="step")
    for name, (about, add, call) in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".", epilog=EPILOG)
        add(command)
        command.add_argument("--log", type=Path, help="also append what is printed to this file")
        command.set_defaults(call=call)
    return top


if __name__ == "__main__":
    gc.set_threshold(COLLECT_AFTER)
    code = main()
    # Otherwise the interpreter searches all of torch for cycles when it ends: 0.4 CPU seconds a step. Where triton is
    # loaded, frozen objects outlive its bindings, which then list them as leaks on stderr.
    if "triton" not in sys.modules:
        gc.freeze()
    sys.exit(code)
