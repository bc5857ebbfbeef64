"""The command line: one command per rule of the workflow, and further commands for users."""

import sys

from softmax_bottleneck.jobs import forkserver

# The imports below take longer than a small step.
if __name__ == "__main__" and (exit_code := forkserver.run_in_fork(sys.argv[1:])) is not None:
    sys.exit(exit_code)

import argparse
import errno
import gc
import inspect
import os
import textwrap
import time
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from softmax_bottleneck import study as config
from softmax_bottleneck.jobs.interrupt import stopped_with_workflow
from softmax_bottleneck.jobs.locks import no_workflow_beside
from softmax_bottleneck.jobs.out_of_memory import as_out_of_memory_error
from softmax_bottleneck.jobs.workflow import note
from softmax_bottleneck.statistics.samples import NotFiniteError
from softmax_bottleneck.store import artefacts, errors
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Study

EXIT_DISK, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 74, 130, 141
OF_REPORT = ("collect", "render", "report")  # called by hand, they do not run beside a workflow
EPILOG = (
    "Exit codes: 0 done, 1 a bug, 2 an error that you can fix, 3 results incomplete, 10 diverged, 74 disk full or "
    "failing, 75 try again, 130 and 143 stopped by a signal after saving, 141 the reader closed the output."
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    A problem that the user can solve, or that may be gone at the next attempt, is printed as one line on stderr. Any
    other error is raised. EPILOG lists the exit codes. Messages go to stderr and, with `--log`, to a file as well.

    Args:
        arguments: the words after the name of the program (None: `sys.argv[1:]`).
    """
    args = parser().parse_args(arguments)
    args.arguments = sys.argv[1:] if arguments is None else arguments

    def say(line: str) -> None:
        line = line.encode("utf-8", "backslashreplace").decode("utf-8")  # a file name may contain any bytes
        print(line, file=sys.stderr, flush=True)
        if args.log is not None:
            with suppress(OSError):  # the results raise their own error if the disk fails
                artefacts.append_line(args.log, f"{time.strftime('%H:%M:%S')}  {line}")

    subject = str(vars(args).get("path") or vars(args).get("name") or "")
    note(args.step, subject)
    message, code = "", 0
    try:
        with stopped_with_workflow(say):
            _call(args, say)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has seen enough, like `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        known = _message_and_code(error, args.step)
        if known is None:
            note(args.step, subject, 1, f"{type(error).__name__}: {error}; its traceback is in the log")
            raise
        message, code = known
        say(f"error: {message}")
    note(args.step, subject, code, message)
    return code


def _call(args: argparse.Namespace, say: Say) -> None:
    """Call the function of a command; its parameters are named like the options of the command.

    The parameter `options` gets all options, `study` the study that they choose, and `say` prints a line.

    Raises:
        DivergedResultError: the run diverged, and `--diverged-ok` is not given.
    """
    module, _, name = COMMANDS[args.step][0].partition(":")
    function = getattr(import_module(f"softmax_bottleneck.{module}"), name)
    given = vars(args) | {"options": args, "say": say} | ({"study": _study(args)} if "study" in args else {})
    with no_workflow_beside() if args.step in OF_REPORT else nullcontext():
        done = function(**{name: given[name] for name in inspect.signature(function).parameters})
    if "diverged_ok" in args and not args.diverged_ok and done and done["status"] == "diverged":
        advice = "this is recorded as its result, and a repetition would diverge again"
        raise errors.DivergedResultError(f"{args.path}: diverged: {done['reason']}; {advice}")


def _message_and_code(error: BaseException, step: str) -> tuple[str, int] | None:
    """Return (message, exit code) of an error; None if the error is a bug, which the caller must raise again.

    Errors that are not bugs: Ctrl-C, a missing package, an OSError, memory that ran out, and every `ExpectedError`: an
    error whose cause the user can correct, or that a later attempt may avoid. `step` names the command in messages.
    """
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
    if isinstance(error, NotFiniteError):
        return f"{step}: {error}", errors.DataError.exit_code
    known = as_out_of_memory_error(error, step) or error
    return (str(known), known.exit_code) if isinstance(known, errors.ExpectedError) else None


def _study(args: argparse.Namespace) -> Study:
    """Return the study that `args`, the parsed options of a command, choose.

    `--study` names the study's file. Without this option, the environment variables that a running workflow sets for
    its steps give the file and its overrides (values that replace those in the file). If they are not set either, the
    file is config/demo.yaml. The option `--set KEY=VALUE` replaces values of the file and of the overrides.

    Raises:
        UserError: the study's file is missing or invalid, or a word after `--set` is not a valid KEY=VALUE.
    """
    file, overrides = (args.study, {}) if args.study else config.study_from_environment()
    for pair in args.set:
        key, separator, value = pair.partition("=")
        if not separator:
            raise errors.UserError(f"--set {pair}: expected key=value")
        overrides[key] = config.parse_yaml(value, f"--set {key}")
    return config.load_study(file, overrides)


# --- options: name -> help text, further arguments of argparse -------------------------------------------------------
PATH: dict[str, Any] = {"type": Path}
SWITCH: dict[str, Any] = {"action": "store_true"}
FILES: dict[str, Any] = {"nargs": "+", "action": "extend", "metavar": "FILE[::NAME]"}
MANY: dict[str, Any] = {"nargs": "*", "default": []}
PLANNED: dict[str, Any] = {"required": True, "dest": "path"}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "--study": ("study file (default: config/demo.yaml)", PATH),
    "--set": ("replace top-level keys of the study file, as in mirror=/data", MANY | {"metavar": "KEY=VALUE"}),
    "--dataset": ("name of a file in config/datasets", {"required": True, "dest": "name"}),
    "--run": ("<dataset>/<model>/<seed>-<run_id>, as `plan --json` prints it", PLANNED),
    "--unit": ("<fits>/<distribution>/<seed>-<unit_id>, as `plan --json` prints it", PLANNED),
    "--truth": ("<name>/<seed>-<truth_id>, a folder in results/fits/truths", PLANNED),
    "--choice": ("<dataset>/<model>-<hash>, a file in results/<study>/choices", PLANNED),
    "--restart": ("delete earlier results of this step and begin again", SWITCH),
    "--only": ("repeat one measurement, also if it is up to date", {"choices": ("evaluate", "spectrum", "wordsim")}),
    "--diverged-ok": ("exit with 0 instead of 10 if the run diverges", SWITCH),
    "--archive": ("check only this archive of a study, NAME.json.gz", PATH | {"metavar": "FILE"}),
    "--json": ("print JSON", SWITCH),
    "--cores": ("number of CPU cores to use (default: 2)", {"type": int, "default": 2}),
    "snakemake": ("options of Snakemake after --, as in -- --until measure", {"nargs": "*", "metavar": "OPTION"}),
    "--texts|--from": ("folder of UTF-8 texts (*.txt, also in folders below it)", PATH | {"required": True}),
    "--name": ("name of the study and its corpus (default: the folder's)", {}),
    "--reload": ("seconds after which the browser reloads the page", {"type": int, "metavar": "SECONDS"}),
    "--explain": ("show premises and intervals", SWITCH),
    "archived": ("archived studies, instead of --study", {"nargs": "*", "metavar": "NAME"}),
    "number": ("corpus/model/metric as the report shows it, or a table, as in 'Table 3'", {"metavar": "NUMBER"}),
    "studies": ("a name in results/ or of an archive, or a folder", {"nargs": "+", "metavar": "STUDY"}),
    "--out": ("folder to write to", PATH),
    "--weights": ("pack the weights too (verify: measure the archived runs from them)", SWITCH),
    "--zip": ("write a zip file as well", SWITCH),
    "--unfinished": ("archive the finished runs of an unfinished study", SWITCH),
    "file": (argparse.SUPPRESS, {"nargs": "*", "metavar": ""}),  # for an error that names the options
    "--hidden": ("hidden states [contexts, width]: .npy, .npz, .safetensors, also in shards", FILES),
    "--weight": ("output matrix [words, width]", FILES),
    "--bias": ("output bias [words]", {"metavar": "FILE[::NAME]"}),
    "--head": ("head, such as gss:c=-1.5,k=2.5 (default: softmax)", {"metavar": "NAME[:OPTION=VALUE,...]"}),
    "--log-probs": ("log-probabilities [contexts, words], in place of hidden and weight", FILES),
    "--model": ("Hugging Face folder or GGUF file, in place of arrays; needs --text", {"metavar": "DIR|FILE.gguf"}),
    "--text": ("the text that --model reads", {"metavar": "FILE"}),
    "--targets": ("index of the word after each hidden state, for the gradient", {"metavar": "FILE.npy"}),
    "--weights-only": ("analyse the output matrix --weight itself", SWITCH),
    "--seconds": ("time limit of the search for unargmaxable tokens (default: 60)", {"type": float}),
    "--price": ("also fit heads of several widths: the nats that each loses (minutes; needs torch)", SWITCH),
    "--compare": ("only print what differs between these results", PATH | {"nargs": "+", "metavar": "rank.json"}),
    "--log": ("also append the messages to this file", PATH),
}

# --- commands for people: name -> function, options, help ------------------------------------------------------------
STUDY = "--study --set "
VERIFY = STUDY + "--json --archive --weights"
RANK = """file --hidden --weight --bias --head --log-probs --model --text --targets --weights-only --seconds
    --price --compare --out"""
COMMANDS = {
    "plan": ("extras.plan:print_plan", STUDY + "--json", "list experiments with their runs, hours and disk space"),
    "doctor": ("extras.doctor:doctor", STUDY, "check whether a study can run on this machine"),
    "reproduce": ("extras.reproduce:reproduce", STUDY + "--cores snakemake", "run a study to its report, or resume it"),
    "slurm": ("extras.reproduce:slurm", STUDY + "snakemake", "run `doctor`, then a study on a SLURM cluster"),
    "new-study": ("extras.new_study:new_study", "--texts|--from --name", "write a study from a folder of texts"),
    "partial": ("extras.results:write_partial", STUDY + "--reload", "write the interim report of an unfinished study"),
    "claims": ("extras.results:print_claims", STUDY + "--explain archived", "print the verdicts on the papers' claims"),
    "number": ("extras.results:print_number", STUDY + "number", "print a number with its definition, seeds and files"),
    "archive": ("extras.results:write_archive", STUDY + "--unfinished --weights", "pack a study into report/evidence"),
    "compare": ("extras.results:compare_studies", "studies", "compare finished studies: claims, heads, hardware"),
    "verify": ("extras.results:verify_results", VERIFY, "list results that are missing, damaged or stale"),
    "repair": ("extras.results:repair_results", STUDY, "delete damaged results and what depends on them"),
    "crate": ("extras.crate:crate", STUDY + "--weights --zip", "pack a finished study as an RO-Crate"),
    "rank": ("own_model.rank:rank_command", RANK, "measure the rank of your own language model"),
}


# The steps of the workflow: name -> options, help; each is a function and a module of this name in steps/.
STEPS = {
    "check": ("", "check options and count parameters without allocating memory"),
    "download": ("--dataset", "download a dataset, or sample a synthetic language"),
    "tokenise": ("--dataset", "write token ids and vocabulary of a corpus"),
    "train": ("--run --diverged-ok --restart", "train a run, or resume it"),
    "finetune": ("--run --diverged-ok --restart", "finetune a trained run from its best weights"),
    "dynamic": ("--run --restart", "evaluate a trained run dynamically"),
    "measure": ("--run --only", "take the missing or stale measurements of a run"),
    "truth": ("--truth", "compute natural next-word distributions for fits"),
    "fit": ("--unit --restart", "fit heads to known distributions"),
    "choose": ("--choice", "end a round of a search: choose settings, or try more"),
    "synthetic": ("", "measure untrained layers and noise; gather the fits"),
    "collect": ("", "write the records of all runs"),
    "render": ("", "write tables, figures and claims"),
    "report": ("--out", "write the report"),
}
COMMANDS |= {name: (f"steps.{name}:{name}", STUDY + options, about) for name, (options, about) in STEPS.items()}

# An example of each command for people; `--help` lists these commands only.
EXAMPLES = {
    "plan": "--study config/paper.yaml",
    "reproduce": "--study config/demo.yaml --cores 2",
    "slurm": "--study config/paper.yaml",
    "doctor": "--study config/paper.yaml",
    "new-study": "--from my-texts --name mine",
    "rank": "--model my-model --text my-text.txt",
    "number": '"Table 3"',
    "claims": "--explain demo-amd-epyc",
    "compare": "demo rank-or-mixture-small",
    "archive": "--study config/demo.yaml --weights",
    "verify": "--study config/demo.yaml",
    "repair": "--study config/demo.yaml",
    "crate": "--study config/demo.yaml --zip",
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    lines = "\n".join(f"  {COMMANDS[name][2]}:\n    {name} {example}" for name, example in EXAMPLES.items())
    others = ", ".join(name for name in COMMANDS if name not in EXAMPLES)
    steps = textwrap.fill(f"Steps of the workflow, and other commands: {others}.", 100)
    about = f"{__doc__}\nCommands, after `python -m softmax_bottleneck`:\n{lines}\n\n{steps}"
    shape = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="softmax_bottleneck", description=about, epilog=textwrap.fill(EPILOG, 100), formatter_class=shape
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="step", help="`COMMAND --help`: its options")
    for name, (_, options, about) in COMMANDS.items():
        command = commands.add_parser(name, description=f"{about[0].upper()}{about[1:]}.", epilog=EPILOG)
        for option in [*options.split(), "--log"]:
            text, settings = OPTIONS[option]
            command.add_argument(*option.split("|"), help=text, **settings)
    return top


if __name__ == "__main__":
    gc.set_threshold(forkserver.COLLECT_AFTER)
    code = main()
    # Without `gc.freeze`, the interpreter searches all of torch for cycles at exit: 0.4 CPU seconds a step. If triton
    # is loaded, frozen objects outlive its bindings, which then list them as leaks on stderr.
    if "triton" not in sys.modules:
        gc.freeze()
    sys.exit(code)
