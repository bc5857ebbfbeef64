"""Hash of the source a result depends on, so that an edit re-runs exactly what it concerns.

Comments, docstrings and layout do not count (the hash is of the syntax tree). Standard library only: it runs while the
workflow is parsed.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# Modules that move, name or show results but cannot change a number; an edit there must not retrain anything.
NEUTRAL = frozenset(
    [
        *("__init__", "store.artefacts", "store.errors", "store.fingerprint", "store.progress", "study"),
        *("jobs.checkpoint", "jobs.interrupt", "jobs.run_lease"),
    ]
)


def fingerprint(*modules: str) -> str:
    """12 hex digits for the named modules (`train`, `heads.gss`) and every module of the package they import."""
    digest = hashlib.sha256()
    for module in sorted(closure(modules)):
        digest.update(f"{module}\n{_source_hash(module)}\n".encode())
    return digest.hexdigest()[:12]


def closure(modules: Iterable[str]) -> set[str]:
    """The modules and all they import inside the package, without the neutral ones."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in found and module not in NEUTRAL:
            found.add(module)
            waiting.extend(_imports(module))
    return found


def _path(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _exists(module: str) -> bool:
    return _path(module).exists()


@cache
def _tree(module: str) -> ast.Module:
    tree = ast.parse(_path(module).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node)
    return tree


def _drop_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        node.body = node.body[1:]


@cache
def _source_hash(module: str) -> str:
    return hashlib.sha256(ast.dump(_tree(module)).encode()).hexdigest()


@cache
def _imports(module: str) -> frozenset[str]:
    """Modules of the package that `module` imports, as dotted names below the package."""
    prefix = PACKAGE.name
    names: set[str] = set()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == prefix:
            base = node.module[len(prefix) :].lstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                names.add(inner if _exists(inner) else base)
        elif isinstance(node, ast.Import):
            names.update(a.name[len(prefix) + 1 :] for a in node.names if a.name.startswith(f"{prefix}."))
    return frozenset(name for name in names if name and _exists(name))
