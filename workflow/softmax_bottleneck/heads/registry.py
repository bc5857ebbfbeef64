"""The heads that studies can name, and what their files declare, without importing torch.

A head is a Python file with a `Declaration` named HEAD and the class of the head. Heads come from three places: the
files of this folder; installed packages, by entry points of the group `softmax_bottleneck.heads` that name modules; and
files that a study lists under `heads`.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from softmax_bottleneck.heads.declaration import Declaration
from softmax_bottleneck.store import fingerprint, schema
from softmax_bottleneck.store.errors import UserError

FOLDER = Path(__file__).parent
PACKAGE = __name__.rpartition(".")[0]
GROUP = "softmax_bottleneck.heads"  # of entry points
EXPECTED = "Expected a head's file (CONTRIBUTING.md)"


@dataclass(frozen=True, kw_only=True)
class HeadFile:
    """A file with a head.

    Attributes:
        head: the declaration of the head.
        path: the file.
        module: dotted name of its module; empty for a file that a study lists.
        code: modules of this package (names) and files (paths) that hold the head's code.
    """

    head: Declaration
    path: Path
    module: str
    code: tuple[str | Path, ...]

    @property
    def is_outside(self) -> bool:
        """True if the file is not one of this package."""
        return self.path.parent != FOLDER


@cache
def _files() -> dict[str, HeadFile]:
    """Return {name of a head: its file}; the function `add` extends the dict."""
    files: dict[str, HeadFile] = {}
    for path in sorted(FOLDER.glob("*.py")):
        if head := _declaration(path):
            name = path.stem
            _insert(files, HeadFile(head=head, path=path, module=f"{PACKAGE}.{name}", code=(f"heads.{name}",)))
    for point in sorted(entry_points(group=GROUP)):
        _insert(files, _installed(point))
    return files


def _insert(files: dict[str, HeadFile], file: HeadFile) -> None:
    other = files.get(file.head.name, file)
    if other.path != file.path:
        raise UserError(f"{file.path}: HEAD: the name {file.head.name!r} is that of {other.path}. Choose another name")
    files[file.head.name] = file


def _installed(point: EntryPoint) -> HeadFile:
    """Return the file of an installed head; all files of its top-level package count as its code."""
    top, *inner = point.module.split(".")
    spec = find_spec(top)  # unlike find_spec(point.module), it imports nothing
    root = Path(spec.origin) if spec and spec.origin else Path(top)
    folder = root.parent.joinpath(*inner)
    path = next((file for file in (folder.with_suffix(".py"), folder / "__init__.py") if file.is_file()), folder)
    path = path if inner else root
    code = sorted(root.parent.rglob("*.py")) if root.name == "__init__.py" else [path]
    return HeadFile(head=_required(path), path=path, module=point.module, code=tuple(code))


def add(path: Path) -> None:
    """Make the head of a file known, such as one that a study lists under `heads`.

    Raises:
        UserError: the file cannot be read, declares no head, or imports a folder of code beside it; or its head has
            the name of another one.
    """
    path = path.resolve()
    with importing_from(path.parent):
        file = HeadFile(head=_required(path), path=path, module="", code=(path,))
    for folder in fingerprint.imported_folders(path):
        problem = f"imports the folder {folder}, whose code no run_id would cover"
        raise UserError(f"{path}: {problem}. Expected single files. Fix: move the code into {folder.name}.py")
    _insert(_files(), file)


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Put a folder on Python's path while its code is executed in the `with` block, so that files import each other."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _required(path: Path) -> Declaration:
    if head := _declaration(path):
        return head
    raise UserError(f"{path}: no HEAD is assigned. {EXPECTED}")


def _declaration(path: Path) -> Declaration | None:
    """Return the declaration that a file assigns to HEAD, or None if it has no HEAD.

    Of the file's code, only HEAD and the imports, constants and classes that HEAD uses are executed.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}). {EXPECTED}") from None
    statements = {name: statement for statement in tree.body for name in _names(statement)}
    needed, waiting = set[ast.stmt](), ["HEAD"]
    while waiting:
        statement = statements.get(waiting.pop())
        if statement and statement not in needed:
            needed.add(statement)
            waiting += [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    if not needed:
        return None
    body: Any = [statement for statement in tree.body if statement in needed]
    namespace: dict[str, Any] = {"__name__": path.stem}
    try:
        exec(compile(ast.Module(body, []), str(path), "exec", dont_inherit=True), namespace)
    except ValidationError as error:
        raise UserError(schema.message(error, f"{path}: HEAD")) from None
    except Exception as error:
        raise UserError(f"{path}: HEAD: {type(error).__name__}: {error}. {EXPECTED}") from None
    if not isinstance(namespace["HEAD"], Declaration):
        raise UserError(f"{path}: HEAD: {namespace['HEAD']!r:.60} is not a Declaration. {EXPECTED}")
    return namespace["HEAD"]


def _names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement at the top level of a file binds by import, assignment or class."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.ClassDef | ast.FunctionDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


# --- questions ------------------------------------------------------------------------------------------------------
def declarations() -> Mapping[str, Declaration]:
    """Return {name: declaration} of all heads, in alphabetical order."""
    return {name: file.head for name, file in sorted(_files().items())}


def outside() -> list[Declaration]:
    """Return the declarations of the heads that are not files of this package, by name."""
    return [file.head for _, file in sorted(_files().items()) if file.is_outside]


def names() -> tuple[str, ...]:
    """Return the names of all heads, sorted."""
    return tuple(declarations())


def find(name: str) -> HeadFile:
    """Return the file of a head.

    Raises:
        UserError: no head has this name.
    """
    if file := _files().get(name):
        return file
    raise UserError(f"unknown head {name!r:.60}{schema.did_you_mean(name, names())}")


def declaration(name: str) -> Declaration:
    """Return the declaration of a head.

    Raises:
        UserError: no head has this name.
    """
    return find(name).head


def options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a head: the given values, and the defaults of the options that are not given.

    Raises:
        UserError: the head or an option is unknown, or a value is not allowed; also of the head that the option
            `pointwise` names.
    """
    complete: dict[str, Any] = asdict(declaration(name).read(given))
    if "pointwise" in complete:
        options(complete["pointwise"], complete.get("pointwise_options", {}))
    return complete
