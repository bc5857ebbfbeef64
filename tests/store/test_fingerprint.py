"""An edit re-runs what it concerns: neither less nor more."""

import ast
import hashlib
import shutil
from functools import cache
from pathlib import Path

import grimp
import pytest
from softmax_bottleneck import bodies
from softmax_bottleneck.heads import registry
from softmax_bottleneck.store import fingerprint as fp

PACKAGE = "softmax_bottleneck"
# The promise, said again: whose edit re-runs nothing.
NEUTRAL_ROOMS = {"store", "study", "jobs"}
NEUTRAL_MODULES = {"corpora.corpus_warnings", "heads.registry", "heads.declaration"}
COUNTED_ALL_THE_SAME = {"study.tuning", "store.seeds", "study.costs", "jobs.numerics"}
# What no step of the workflow imports.
BESIDE_THE_STEPS = {"__main__", "records.verify", "report.numbers", "records.metrics"}
ROOMS_BESIDE_THE_STEPS = {"extras", "own_model"}


def code(package: Path, *modules: str) -> str:
    fp.fingerprint.cache_clear()
    return fp.fingerprint(*modules, package=package)


def test_comments_and_imports_of_the_type_checker_do_not_count(tmp_path: Path) -> None:
    package, found = tmp_path / PACKAGE, set()
    package.mkdir()
    (package / "optim.py").write_text("lr = 1\n", encoding="utf-8")
    unseen = ("", '"""Words."""\n\n# why\n', "if TYPE_CHECKING:\n    import softmax_bottleneck.optim\n")
    for text in unseen:
        (package / "train.py").write_text(f"{text}x = 1\n", encoding="utf-8")
        assert fp.closure(["train"], package) == {"train"}
        found.add(code(package, "train"))
    assert len(found) == 1


def test_the_rules_of_the_report_are_no_code_of_the_measurements() -> None:
    reached = fp.closure([fp.STEPS["measure"]])
    assert "statistics.shares" in reached and not reached & {"statistics.intervals", "statistics.pooled"}


def test_the_version_of_python_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The syntax tree is hashed as Python 3.11 prints it: without a field that 3.12 added, and with empty lists."""
    printed = (
        "Module(body=[FunctionDef(name='f', args=arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], "
        "defaults=[]), body=[Return(value=Call(func=Name(id='g', ctx=Load()), args=[], keywords=[]))], "
        "decorator_list=[]), ClassDef(name='C', bases=[], keywords=[], body=[Pass()], decorator_list=[])], "
        "type_ignores=[])"
    )
    parse = ast.parse

    def parse_like_3_12(source: str) -> ast.Module:
        tree = parse(source)
        for node in tree.body:
            node.type_params = []  # type: ignore[attr-defined]
        return tree

    with monkeypatch.context() as patch:
        for kind in (ast.FunctionDef, ast.ClassDef):
            patch.setattr(kind, "_fields", (*dict.fromkeys((*kind._fields, "type_params")),))
        patch.setattr(ast, "parse", parse_like_3_12)
        found, _ = fp._summary("def f():\n    return g()\nclass C:\n    pass\n")
    assert found == hashlib.sha256(printed.encode()).hexdigest()


def with_texts(source: str, text: str) -> str:
    """Return the source with this text as a statement before and after every statement, at any depth."""
    tree = ast.parse(source)
    for node in list(ast.walk(tree)):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if statements and isinstance(statements, list):  # a lambda's body is an expression
                around = [(ast.Expr(ast.Constant(text)), one) for one in statements]
                setattr(node, block, [part for pair in around for part in pair] + [ast.Expr(ast.Constant(text))])
    return ast.unparse(ast.fix_missing_locations(tree))


EVERY_BLOCK = """
async def f(x):
    for y in x:
        pass
    else:
        y = 1
    while x:
        x = 0
    try:
        with x:
            g(lambda: "value")
    except E:
        x = 2
    else:
        x = 3
    finally:
        x = 4
    match x:
        case 1:
            x = "value"
"""


def test_a_text_beside_any_statement_does_not_count() -> None:
    """Texts are added and reworded in every block of Python, and in a tenth of the package's modules."""
    paths = sorted(fp.module_files().values())[::10]
    for source in (EVERY_BLOCK, *(path.read_text(encoding="utf-8") for path in paths)):
        plain, _ = fp._summary(ast.unparse(ast.parse(source)))
        assert {fp._summary(with_texts(source, text))[0] for text in ("a text", "another")} == {plain}
    assert fp._summary(EVERY_BLOCK)[0] != fp._summary(EVERY_BLOCK.replace('"value"', '"other"', 1))[0]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Who imports whom, as import-linter sees it."""
    return grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)


def counts(module: str) -> bool:
    room = module.partition(".")[0]
    return module in COUNTED_ALL_THE_SAME or not (room in NEUTRAL_ROOMS or module in NEUTRAL_MODULES)


def reached(graph: grimp.ImportGraph, roots: tuple[str, ...]) -> set[str]:
    """All that counts and can be reached from the roots by imports."""
    seen: set[str] = set()

    def visit(module: str) -> None:
        if module not in seen:
            seen.add(module)
            imported = graph.find_modules_directly_imported_by(f"{PACKAGE}.{module}")
            for other in (name.removeprefix(f"{PACKAGE}.") for name in imported):
                if counts(other):
                    visit(other)

    for root in roots:
        visit(root)
    return seen


def with_one_constant_changed(source: str) -> str:
    """The source with another number or text in its last constant; with a constant more where it has none."""
    tree = ast.parse(source)
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    declared = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HEAD"]
    texts |= {id(node) for head in declared for node in ast.walk(head)}  # what tables and figures show of a head
    parts_of_f_strings = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)
    }
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float, str) and id(node) not in texts
        and id(node) not in parts_of_f_strings and node.lineno == node.end_lineno
    ]  # fmt: skip
    if not found:
        return source + "\nCHANGED = 1\n"
    last = max(found, key=lambda node: (node.lineno, node.col_offset))
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    line = lines[last.lineno - 1]
    other = repr(last.value + ("x" if isinstance(last.value, str) else 1)).encode()
    lines[last.lineno - 1] = line[: last.col_offset] + other + line[last.end_col_offset :]
    return b"".join(lines).decode()


def test_a_changed_constant_anywhere_changes_exactly_the_steps_that_use_it(graph, tmp_path, monkeypatch) -> None:
    """In a copy of the package, module by module; a run's step also starts from its head and body."""
    copy = shutil.copytree(fp.PACKAGE, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    named = [part for name in registry.names() for part in registry.find(name).code]
    named += [f"bodies.{path.stem}" for path in Path(bodies.__file__).parent.glob("[a-z]*.py")]
    roots = {step: (module,) for step, module in fp.STEPS.items()}
    roots |= {f"train with {name}": (fp.STEPS["train"], name) for name in named}
    needs = {step: reached(graph, modules) for step, modules in roots.items()}
    read = cache(fp._read)  # each file is read once per edit, not once per step
    monkeypatch.setattr(fp, "_read", read)
    before = {step: code(copy, *modules) for step, modules in roots.items()}
    for module, path in fp.module_files(copy).items():
        source = path.read_text(encoding="utf-8")
        path.write_text(with_one_constant_changed(source), encoding="utf-8")
        read.cache_clear()
        changed = {step for step, modules in roots.items() if code(copy, *modules) != before[step]}
        assert changed == {step for step, used in needs.items() if module in used}, module
        path.write_text(source, encoding="utf-8")


def test_every_module_counts_for_some_step_or_is_neutral_or_beside_the_steps(graph: grimp.ImportGraph) -> None:
    used = reached(graph, tuple(fp.STEPS.values()))
    used |= {module for module in fp.module_files() if module.startswith(("heads.", "bodies."))}
    beside = {module for module in fp.module_files() if counts(module) and module not in used}
    rooms = {module for module in beside if (fp.PACKAGE / module.replace(".", "/")).is_dir()}
    assert {m for m in beside - rooms if m.partition(".")[0] not in ROOMS_BESIDE_THE_STEPS} <= BESIDE_THE_STEPS
    for room in rooms - {"heads", "bodies"}:  # importing a module of theirs runs nothing else
        assert ast.unparse(ast.parse((fp.PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))).count("\n") == 0


def test_modules_are_imported_by_name_but_heads_and_bodies() -> None:
    """A fingerprint misses a module whose name is computed when the import runs."""
    dynamic = {"import_module", "__import__", "spec_from_file_location", "run_module"}
    for module, path in fp.module_files().items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        called = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        called |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        # No step imports the last two, and no fingerprint follows a neutral module.
        known = {"heads", "bodies", "__main__", "jobs.forkserver", *fp.NEUTRAL}
        assert not called & dynamic or module in known, module
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level], module
