"""Fingerprints: hashes of the source code that a step's numbers depend on.

docs/architecture.md lists what else decides whether a file is recomputed (*Who decides what is recomputed*).

A step is repeated if its fingerprint has changed. The fingerprint covers the step's own module and every module of the
package that the step's module imports, directly or not, also inside functions. NEUTRAL lists subpackages and modules
that cannot change a number, such as `store`; fingerprints leave them out. COUNTED lists the exceptions inside these
subpackages, such as `store.seeds`. Comments, statements that are only a string (docstrings, for example), imports under
`if TYPE_CHECKING`, the declaration of a head (`HEAD`) and the version of Python do not change a fingerprint.
`fingerprint.py` imports only the standard library, because Snakemake runs it while parsing the workflow.
"""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
PREFIX = f"{PACKAGE.name}."

# Step -> its module. A step is a rule of the workflow, and a module in steps/ with a function of the same name.
# The fingerprint of a run also covers the modules of its head and body.
STEPS = {path.stem: f"steps.{path.stem}" for path in sorted(PACKAGE.glob("steps/[a-z]*.py"))}

# Subpackages and modules that steps import but that cannot change a number, each with the reason. No fingerprint covers
# them, except those in COUNTED. An edit of these repeats no step, and their imports count only if a step imports the
# same modules itself.
NEUTRAL = {
    "store": "finds, names, writes and checks files without changing their content",
    "study": "decides what is computed; all of it is in the settings, which run_ids contain",
    "jobs": "stops and resumes a computation with the same bits (see the tests of resuming)",
    "heads.registry": "finds the files of heads, and reads the options, which are in the settings",
    "heads.declaration": "has what tables and figures show of a head, and the types of options",
    "corpora.corpus_warnings": "warns about a text; no token depends on it",
}
COUNTED = {
    "store.seeds": "every random number comes from it",
    "study.costs": "its estimates are in check.json",
    "study.tuning": "it chooses settings",
    "jobs.numerics": "determinism, TF32 and threads decide bits",
}


def step_code(step: str, *modules: str | Path) -> str:
    """Return the fingerprint of a step.

    Args:
        step: name of the step, a key of STEPS.
        modules: further modules to cover, those of a run's head and body: names such as `heads.gss`, or files of
            heads from outside the package.
    """
    return fingerprint(STEPS[step], *modules)


@cache
def fingerprint(*modules: str | Path, package: Path = PACKAGE) -> str:
    """Return 12 hex digits that identify the code of some modules and of all modules that these import.

    Args:
        modules: names of modules relative to the package, such as `steps.train` or `heads.gss`, or files outside.
        package: folder of the package.
    """
    files = module_files(package)
    lines = []
    for module in closure(modules, package):
        name, path = (module.name, module) if isinstance(module, Path) else (module, files[module])
        lines.append(f"{name}\n{_read(path)[0]}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()[:12]


def closure(modules: Iterable[str | Path], package: Path = PACKAGE) -> set[str | Path]:
    """Return `modules` and all modules of the package that these import, directly or not.

    A file outside of the package is a path. What it imports from files beside it is included, too.

    An imported module is left out, with its own imports, if the module or its subpackage is in NEUTRAL and the module
    is not in COUNTED.

    Raises:
        KeyError: a name in `modules` is not a module of the package.
    """
    files = module_files(package)
    reached: set[str | Path] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            path = module if isinstance(module, Path) else files[module]
            for imported in _read(path)[1]:
                name = imported.removeprefix(PREFIX)
                if name == imported:
                    beside = path.with_name(f"{name.partition('.')[0]}.py")
                    if isinstance(module, Path) and beside.is_file():
                        waiting.append(beside)
                    continue
                while name and name not in files:  # `heads` for `heads.Head`
                    name = name.rpartition(".")[0]
                if name and (name in COUNTED or not {name, name.partition(".")[0]} & NEUTRAL.keys()):
                    waiting.append(name)
    return reached


def imported_folders(file: Path) -> list[Path]:
    """Return the folders of code that a file outside of the package, or a file beside it, imports.

    `closure` does not cover such folders. `file` is the file of a head that a study lists.
    """
    files = [module for module in closure([file]) if isinstance(module, Path)]
    folders = {path.with_name(name.partition(".")[0]) for path in files for name in _read(path)[1]}
    return sorted(folder for folder in folders if any(folder.rglob("*.py")))


@cache
def module_files(package: Path = PACKAGE) -> dict[str, Path]:
    """Return {dotted name: file} for every module of the package, such as {`heads.gss`: .../heads/gss.py}.

    The name of a subpackage stands for its `__init__.py`.
    """
    paths = {path.relative_to(package).with_suffix(""): path for path in package.rglob("*.py")}
    parts = {name.parts[:-1] if name.name == "__init__" else name.parts: path for name, path in paths.items()}
    return {".".join(words): path for words, path in parts.items() if words}


def _read(path: Path) -> tuple[str, frozenset[str]]:
    return _summary(path.read_text(encoding="utf-8"))


@cache
def _summary(source: str) -> tuple[str, frozenset[str]]:
    """Return the hash of a module's syntax tree, and the names that the module imports.

    `source` is the text of the module. Comments, statements that are only a string, imports under `if TYPE_CHECKING`,
    and the assignment to `HEAD` do not count. A name can be a module (`softmax_bottleneck.heads.gss`), or a module with
    an object in it.
    """
    tree = ast.parse(source)
    tree.body = [statement for statement in tree.body if not (_is_for_types(statement) or _declares(statement))]
    names: set[str] = set()
    for node in (tree, *_statements(tree)):
        for block in ("body", "orelse", "finalbody"):
            if statements := getattr(node, block, []):
                setattr(node, block, [statement for statement in statements if not _is_text(statement)])
        if not getattr(node, "type_params", True):  # a field that Python 3.11 lacks
            del node.type_params  # type: ignore[attr-defined]
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    dump = ast.dump(tree, **({"show_empty": True} if sys.version_info >= (3, 13) else {}))  # as Python 3.11 writes it
    return hashlib.sha256(dump.encode()).hexdigest(), frozenset(names)


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _declares(node: ast.stmt) -> bool:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return isinstance(target, ast.Name) and target.id == "HEAD"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements, exception handlers and match cases inside a node, at any depth.

    Expressions are skipped, which makes this function faster than `ast.walk`.
    """
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, name, ()):
            yield inner
            yield from _statements(inner)
