"""The command line: one command per rule of the workflow, and commands for people."""

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
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softmax_bottleneck import study as config
from softmax_bottleneck.jobs import outcomes
from softmax_bottleneck.jobs.out_of_memory import as_out_of_memory_error
from softmax_bottleneck.store import artefacts, errors
from softmax_bottleneck.store.fingerprint import STEPS
from softmax_bottleneck.store.paths import Store
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import plan, schema

if TYPE_CHECKING:
    from softmax_bottleneck.records.records import Records

COLLECT_AFTER = 5000  # objects; at the usual 700, the garbage collector makes importing torch a tenth slower
EXIT_DISK, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 74, 130, 141
EPILOG = (
    "Exit codes: 0 done, 1 a bug, 2 an error that you can fix, 3 results incomplete, 10 diverged, 74 disk full or "
    "failing, 75 try again, 130 and 143 stopped by a signal after saving, 141 the reader closed the output."
)
EXPECTED = (
    *(errors.UserError, errors.IncompleteError, errors.BusyError),
    *(errors.DivergedResultError, errors.MemoryExhaustedError),
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; an error that a person can fix is one line on stderr."""
    args = parser().parse_args(arguments)
    args.arguments = sys.argv[1:] if arguments is None else arguments
    say, subject = _line_printer(args.log), _subject(args)
    outcomes.note(args.step, subject)
    message, code = "", 0
    try:
        args.call(args, say)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has seen enough, like `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        known = _message_and_code(error, args.step)
        if known is None:
            outcomes.note(args.step, subject, 1, f"{type(error).__name__}: {error}; its traceback is in the log")
            raise
        message, code = known
        say(f"error: {message}")
    outcomes.note(args.step, subject, code, message)
    return code


def _message_and_code(error: BaseException, step: str) -> tuple[str, int] | None:
    """Return the message and exit code of an error that a person or time can fix, or None for a bug."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; repeat the command to resume", EXIT_INTERRUPTED
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("softmax_bottleneck"):
        message = f"{step}: needs {error.name}, which is not installed; `make env` installs it"
        return message, errors.UserError.exit_code
    if isinstance(error, OSError):
        problem = f"{error.filename or 'disk'}: {error.strerror or error}"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return f"{problem}; make it writable, or work in another folder", errors.UserError.exit_code
        advice = "free some space" if error.errno in artefacts.FULL else "repair the disk or the folder"
        return f"{problem}; {advice}, then repeat the command: finished work is kept", EXIT_DISK
    known = error if isinstance(error, EXPECTED) else None
    if isinstance(error, MemoryError | RuntimeError):
        known = as_out_of_memory_error(error, step)
    return (str(known), known.exit_code) if known else None


def _line_printer(log: Path | None) -> Say:
    """Return a function that prints a line to stderr and appends it to `log`; a failing log stops no work."""

    def say(line: str) -> None:
        line = line.encode("utf-8", "backslashreplace").decode("utf-8")  # a file name may contain any bytes
        print(line, file=sys.stderr, flush=True)
        if log is not None:
            with suppress(OSError):  # the results raise their own error if the disk fails
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("a", encoding="utf-8") as file:
                    file.write(f"{time.strftime('%H:%M:%S')}  {line}\n")

    return say


def _subject(args: argparse.Namespace) -> str:
    """Return the run, corpus or unit of fits that a step works on, or "" for a step of the whole study."""
    return next((str(vars(args)[key]) for key in ("run", "dataset", "unit") if key in args), "")


def _study(args: argparse.Namespace) -> config.Study:
    """Return the study, with the time limits of the command line if it has any."""
    study = config.load_study(*_study_file(args))
    limits = {name: value for name in ("max_wall", "time_margin") if (value := vars(args).get(name))}
    return dataclasses.replace(study, **limits) if limits else study


def _study_file(args: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """Return the study's file and the keys that replace the file's keys."""
    file, overrides = (args.study, {}) if args.study else config.study_from_environment()
    for pair in args.set:
        key, separator, value = pair.partition("=")
        if not separator:
            raise errors.UserError(f"--set {pair}: expected key=value")
        overrides[key] = config.parse_yaml(value, f"--set {key}")
    return file, overrides


def _records(study: config.Study) -> Records:
    """Return the records of a study, or those of its interim report if it is not finished."""
    from softmax_bottleneck.extras import partial
    from softmax_bottleneck.records import records

    for folder in (study.store.study_folder(study.name), partial.folder_of(study)):
        if (folder / records.REST_FILE).exists():
            return records.load(folder)
    raise errors.UserError(
        f"study {study.name} has no results yet: run `make reproduce CONFIG={study.file}`, or name another with --study"
    )


# --- steps of the workflow ------------------------------------------------------------------------------------------
def _step(args: argparse.Namespace, say: Say) -> None:
    """Call the function that has the step's name, as `fit` of training/fit.py."""
    function = getattr(import_module(f"softmax_bottleneck.{STEPS[args.step][0]}"), args.step)
    study, subject = _study(args), _subject(args)
    restart = {"restart": args.restart} if "restart" in args else {}
    done = function(study, *([subject] if subject else []), say, **restart)
    if "measure" in args and args.measure:
        from softmax_bottleneck.measuring.measure import measure_after_training

        measure_after_training(study, args.run, say)
    if done and done["status"] == "diverged" and not args.diverged_ok:
        raise errors.DivergedResultError(f"{args.run}: diverged: {done['reason']}; recorded; do not try it again")


def _train(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.jobs import replicas

    study = _study(args)
    runs = plan.jobs(study).get(args.run, ())
    if len(runs) > 1:
        words = [word for word in args.arguments if word != "--measure"]  # all seeds share the job's threads
        command = [sys.executable, "-m", "softmax_bottleneck", *words]  # the last --run counts
        replicas.train_together(command, [run.path for run in runs], runs[0].device, say)
    else:
        _step(args, say)
    if study.replicas_per_job > 1 and runs:
        replicas.record_job(study, args.run, runs)


def _measure(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.measuring import measure

    if args.step == "measure":
        measure.measure(_study(args), args.run, say)
    else:
        measure.measure_step(_study(args), args.run, args.step, say)


def _check(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report.views import check_options

    check_options(_study(args))
    _step(args, say)


def _collect(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.records import collect

    study = _study(args)
    records = collect.collect_to(study, study.store.study_folder(study.name))
    for warning in records.mixtures():
        say(f"warning: {warning}")
    say(f"{study.name}: {len(records.rows)} records, {records.counts()}")


def _render(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report import render

    study = _study(args)
    render.render(study, study.store.study_folder(study.name))
    say(f"{study.name}: {len(study.experiments)} tables and figures")


def _report(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report import report

    study = _study(args)
    folder = study.store.study_folder(study.name)
    say(f"wrote {report.report(folder, out=args.out)}")
    counts = dict(artefacts.read_json(folder / "page.json")["counts"])
    if counts["planned"] and counts["missing"] == counts["planned"]:
        raise errors.IncompleteError(f"{study.name}: none of the {counts['planned']} planned runs has results")


# --- commands for people --------------------------------------------------------------------------------------------
def _plan(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras.plan import text
    from softmax_bottleneck.report.views import check_options
    from softmax_bottleneck.training import check

    study = _study(args)
    check_options(study)
    facts = check.facts(study, check.costs(study)) if args.json else None
    print(json.dumps(facts, indent=1) if facts else text(study, args.budget))


def _doctor(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras import doctor

    findings = doctor.examine(*_study_file(args))
    print(doctor.text(findings))
    doctor.verdict(findings)


def _slurm(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras import doctor
    from softmax_bottleneck.extras import slurm_launcher as launcher

    file, overrides = _study_file(args)
    findings = doctor.examine(file, overrides, on_cluster=True)
    print(doctor.text(findings))
    if not args.anyway:
        doctor.verdict(findings)
    code = launcher.repeat(launcher.command(file, args.set, args.snakemake), args.tries, launcher.PAUSE_S, say)
    if code:
        raise errors.IncompleteError(f"Snakemake ended with exit code {code}; see its log above; repeat the command")


def _reproduce(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras import reproduce

    reproduce.reproduce(_study(args), reproduce.Call(args.set, args.cores, args.snakemake, args.verbose), say)


def _new_study(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras.new_study import new_study
    from softmax_bottleneck.extras.plan import text

    study = config.load_study(new_study(args.texts, args.into, args.name, say))
    print(f"{text(study)}\n\nmake reproduce CONFIG={study.file}")


def _partial(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras.partial import partial

    say(f"wrote {partial(_study(args), args.reload)}")


def _claims(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report import archive, claims

    entries = [entry for name in args.archived for study in archive.find(name) for entry in study.claims]
    if not args.archived:
        study = _study(args)
        entries = [entry.to_json() for entry in claims.ledger(_records(study), claims.of_study(study), study)]
    print("\n".join(claims.explain(entries, args.explain)))


def _archive(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report import archive

    say(f"wrote {archive.write(_study(args), args.unfinished)}")


def _number(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report.lookup import lookup

    study = _study(args)
    print("\n".join(lookup(study, _records(study), args.number)))


def _compare(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.report import compare

    tables = compare.side_by_side(compare.find_studies(args.studies))
    print(compare.text(tables))
    if args.out:
        path = args.out / "compare.csv"
        artefacts.write_text(path, compare.csv(tables))
        say(f"wrote {path}")


def _verify(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.records.verify import verify
    from softmax_bottleneck.report import archive

    study = _study(args)
    found = verify(study)
    found = dataclasses.replace(found, findings=(*found.findings, *archive.findings()))
    print(json.dumps(found.to_json(), indent=1) if args.json else found.text())
    if not found.complete:
        raise errors.IncompleteError(f"{study.name}: incomplete or damaged")


def _repair(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.jobs import project_lock
    from softmax_bottleneck.records.verify import repair

    study = _study(args)
    project_lock.acquire()
    found, removed = repair(study)
    for path in removed:
        say(f"removed {study.store.root / path}")
    runs = sum(path.parts[0] == "runs" and len(path.parts) == 4 for path in removed)  # folders: damaged weights
    training = f" and trains {runs} of the runs" if runs else ""
    say(f"{study.name}: findings: {len(found.findings)}, removed: {len(removed)}")
    say(f"`make reproduce` recomputes what was removed{training}")


def _rank(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.own_model import page, rank, request

    values = ((key, value) for key, value in vars(args).items() if key in request.KEYS)
    named = {key: value for key, value in values if value is not None and value is not False}
    if args.config and named:
        raise errors.UserError(f"--config {args.config} holds all options: leave out {', '.join(sorted(named))}")
    if args.compare:
        if args.config or named:
            raise errors.UserError("--compare: takes no other option")
        for row in page.compare(args.compare):
            print("  ".join(f"{text:32.32}" for text in row).rstrip())
        return
    checked = request.read_request(args.config) if args.config else request.request(named, "rank")
    name = args.config or Path(checked.model or "model").resolve()
    folder = args.out or Store().own_folder(name.stem)
    result = rank.rank(checked, say, folder / "export")
    path = page.write(result, folder)
    for label, text in page.rows(result):
        print(f"{label:32}  {text}")
    for note in result.notes():
        say(f"note: {note}")
    say(f"wrote {path}")


def _crate(args: argparse.Namespace, say: Say) -> None:
    from softmax_bottleneck.extras import crate

    say(f"wrote {crate.build(_study(args), args.author, args.licence, args.include, args.zip)}")


def _hours(text: str) -> float:
    try:
        return schema.seconds(text) / 3600
    except errors.UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# --- options: name -> help text, further arguments of argparse -------------------------------------------------------
PATH: dict[str, Any] = {"type": Path}
SWITCH: dict[str, Any] = {"action": "store_true"}
FILES: dict[str, Any] = {"nargs": "+", "action": "extend", "metavar": "FILE[::NAME]"}
TIME: dict[str, Any] = {"metavar": "TIME"}
MANY: dict[str, Any] = {"nargs": "*", "default": []}
REQUIRED: dict[str, Any] = {"required": True}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "--study": ("study file (default: config/demo.yaml)", PATH),
    "--set": ("top-level keys that replace the file's, as in mirror=/data", MANY | {"metavar": "KEY=VALUE"}),
    "--dataset": ("name of a file in config/datasets", REQUIRED),
    "--run": ("<dataset>/<model>/<seed>-<run_id>, as `plan --json` prints it", REQUIRED),
    "--unit": ("<fits>/<distribution>/<seed>-<unit_id>, as `plan --json` prints it", REQUIRED),
    "--restart": ("delete earlier results of this step and begin again", SWITCH),
    "--max-wall": ("save and stop with exit code 75 after this time: 90s, 30m, 4h, 1.5d", TIME),
    "--time-margin": ("save this long before the SLURM job ends (default: 3m)", TIME),
    "--diverged-ok": ("exit with 0 instead of 10 if the run diverges", SWITCH),
    "--measure": ("then measure the run in the same process", SWITCH),
    "--json": ("print JSON", SWITCH),
    "--budget": ("list what fits into this time: 100h, 4d", TIME | {"type": _hours}),
    "--cores": ("number of CPU cores to use (default: 2)", {"type": int, "default": 2}),
    "--verbose": ("show Snakemake's log instead of the progress line", SWITCH),
    "--tries": ("how often Snakemake is started (default: 5)", {"type": int, "default": 5}),
    "--anyway": ("start even if `doctor` finds a problem", SWITCH),
    "snakemake": ("options of Snakemake after --, as in -- --until measure", {"nargs": "*", "metavar": "OPTION"}),
    "--texts": ("folder of UTF-8 texts, *.txt", PATH | REQUIRED),
    "--name": ("name of the study and its corpus (default: the folder's)", {}),
    "--into": ("folder to write to (default: config)", PATH | {"default": Path("config")}),
    "--reload": ("seconds after which the browser reloads the page", {"type": int, "metavar": "SECONDS"}),
    "--explain": ("show premises, intervals and stability", SWITCH),
    "archived": ("archived studies, instead of --study", {"nargs": "*", "metavar": "NAME"}),
    "number": ("corpus/model/metric, as the report shows it", {"metavar": "NUMBER"}),
    "studies": ("a name in results/ or of an archive, or a folder", {"nargs": "+", "metavar": "STUDY"}),
    "--out": ("folder to write to", PATH),
    "--include": ("also pack these large files", MANY | {"choices": ["weights", "hidden"]}),
    "--author": ('"Name" or "Name <https://orcid.org/...>"', MANY | {"metavar": "NAME"}),
    "--licence": ("licence of the results (default: MIT)", {"default": "MIT", "metavar": "SPDX"}),
    "--zip": ("write a zip file as well", SWITCH),
    "--unfinished": ("archive the finished runs of an unfinished study", SWITCH),
    "--config": ("YAML with the options below, as config/own-model.example.yaml", PATH),
    "--hidden": ("hidden states [contexts, width]: .npy, .npz, .safetensors, also in shards", FILES),
    "--weight": ("output matrix [words, width]", FILES),
    "--bias": ("output bias [words]", {"metavar": "FILE[::NAME]"}),
    "--head": ("softmax (default), gss:c=-1.5,k=2.5, sigsoftmax, ...", {"metavar": "NAME[:OPTION=VALUE,...]"}),
    "--log-probs": ("instead: log-probabilities [contexts, words], in shards of contexts", FILES),
    "--model": ("instead: a Hugging Face folder or GGUF file, with --text", {"metavar": "DIR|FILE.gguf"}),
    "--text": ("the text that --model reads", {"metavar": "FILE"}),
    "--targets": ("index of the word after each hidden state, for the gradient", {"metavar": "FILE.npy"}),
    "--weights-only": ("analyse only the output matrix of --model or --weight", SWITCH),
    "--width": ("with --log-probs: the model's width d, to check rank <= d + 2", {"type": int}),
    "--max-memory": (
        "as 4GB; beyond it a random part is analysed (default: most of the free memory)",
        {"metavar": "SIZE"},
    ),
    "--seconds": ("time limit of the search for unargmaxable tokens (default: 60)", {"type": float}),
    "--compare": ("instead: compare models analysed before", PATH | {"nargs": "+", "metavar": "rank.json"}),
    "--seed": ("seed of the random part (default: 1)", {"type": int}),
    "--title": ("name of the model in the report", {}),
    "--log": ("also append the messages to this file", PATH),
}

# --- commands: name -> function, its options, help text; first those for people, then the steps of the workflow ------
STUDY, RESUMABLE = "--study --set ", " --restart --max-wall --time-margin"
TRAIN = STUDY + "--run --diverged-ok --measure" + RESUMABLE
RANK = """--config --hidden --weight --bias --head --log-probs --model --text --targets --weights-only --width
    --max-memory --seconds --compare --seed --title --out"""
COMMANDS: dict[str, tuple[Callable[[argparse.Namespace, Say], None], str, str]] = {
    "plan": (_plan, STUDY + "--json --budget", "list experiments with their runs, hours and disk space"),
    "doctor": (_doctor, STUDY, "check whether a study can run on this machine"),
    "reproduce": (_reproduce, STUDY + "--cores --verbose snakemake", "run a study up to its report, or resume it"),
    "slurm": (_slurm, STUDY + "--tries --anyway snakemake", "run a study on a SLURM cluster, after `doctor`"),
    "new-study": (_new_study, "--texts --name --into", "write a corpus and a small study from a folder of texts"),
    "partial": (_partial, STUDY + "--reload", "write the interim report of an unfinished study"),
    "claims": (_claims, STUDY + "--explain archived", "print the verdict on every claim of the papers"),
    "number": (_number, STUDY + "number", "print a number with its definition, seeds, files and hashes"),
    "archive": (
        _archive,
        STUDY + "--unfinished",
        "pack a finished study, without its weights, for report/evidence",
    ),
    "compare": (_compare, "studies --out", "compare finished studies: claims, heads, hardware"),
    "verify": (_verify, STUDY + "--json", "list results that are missing, damaged, stale or impossible"),
    "repair": (_repair, STUDY, "delete damaged results and what depends on them"),
    "crate": (_crate, STUDY + "--include --author --licence --zip", "pack a finished study as an RO-Crate"),
    "rank": (_rank, RANK, "measure the rank of your own language model"),
    "check": (_check, STUDY, "check options and count parameters without allocating memory"),
    "download": (_step, STUDY + "--dataset", "download and check a dataset, or sample a synthetic language"),
    "tokenise": (_step, STUDY + "--dataset", "write token ids and vocabulary of a corpus"),
    "train": (_train, TRAIN, "train a run, or resume it"),
    "finetune": (_step, TRAIN, "finetune a trained run from its best weights"),
    "dynamic": (_step, STUDY + "--run" + RESUMABLE, "evaluate a trained run dynamically"),
    "measure": (_measure, STUDY + "--run", "measure a run: repeat only steps that are missing or stale"),
    "evaluate": (_measure, STUDY + "--run", "compute perplexities and predicted words of a run"),
    "spectrum": (_measure, STUDY + "--run", "compute singular values and ranks of a run"),
    "wordsim": (_measure, STUDY + "--run", "evaluate word similarity of a run"),
    "fit": (_step, STUDY + "--unit" + RESUMABLE, "fit heads to known distributions"),
    "synthetic": (_step, STUDY, "measure untrained layers and noise; gather the fits"),
    "collect": (_collect, STUDY, "write the records of all runs"),
    "render": (_render, STUDY, "write tables, figures and claims"),
    "report": (_report, STUDY + "--out", "write the report"),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="softmax_bottleneck", description=__doc__, epilog=EPILOG)
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="step")
    for name, (call, options, about) in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.", epilog=EPILOG)
        command.set_defaults(call=call)
        for option in [*options.split(), "--log"]:
            text, settings = OPTIONS[option]
            command.add_argument(option, help=text, **settings)
    return top


if __name__ == "__main__":
    gc.set_threshold(COLLECT_AFTER)
    code = main()
    # Otherwise the interpreter searches all of torch for cycles when it ends: 0.4 CPU seconds a step. Where triton is
    # loaded, frozen objects outlive its bindings, which then list them as leaks on stderr.
    if "triton" not in sys.modules:
        gc.freeze()
    sys.exit(code)
