"""What holds for the whole tree and no type checker sees."""

from __future__ import annotations

import ast
import importlib
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

from qualify import assets
from qualify.cards.load import load_kernels
from qualify.facts.adapters import ADAPTERS
from qualify.run.checks.registry import CHECKS

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "qualify").rglob("*.py"))
REGISTRIES = (
    ("qualify.assets", "FOLDERS"),
    ("qualify.units", "UNITS"),
    ("qualify.cards.schema", "KINDS"),
    ("qualify.cli.entry", "COMMANDS"),
    ("qualify.cli.entry", "GROUPS"),
    ("qualify.run.golden.accuracy", "CLASSES"),
    ("qualify.facts.adapters", "ADAPTERS"),
    ("qualify.run.checks.registry", "CHECKS"),
    ("qualify.run.measure.kernel_names", "TABLE"),
    ("qualify.selftest.faults.registry", "FAULTS"),
    ("qualify.selftest.correct", "VARIANTS"),
    ("qualify.selftest.workloads", "SHAPES"),
    ("qualify.report.questions", "QUESTIONS"),
)
BROAD = {"cards/options.py", "cli/entry.py", "run/process/worker.py", "run/execute.py"}
"""modules that may catch any exception: what a kernel, a card's entry or a third party's module raises is a result"""


def name_of(path: Path) -> str:
    """The module's path within the package."""
    return path.relative_to(ROOT / "qualify").as_posix()


def public_without_docstring(body: list[ast.stmt], prefix: str = "") -> list[str]:
    """Public functions, classes and methods of a module without a docstring; overloads share their function's."""
    found = []
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list):
            continue
        if ast.get_docstring(node) is None:
            found.append(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found += public_without_docstring(node.body, f"{node.name}.")
    return found


def broad_handlers(tree: ast.Module) -> list[int]:
    """Lines that catch Exception, or everything."""
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    caught = [(node.lineno, ast.unparse(node.type) if node.type else "") for node in handlers]
    return [line for line, what in caught if what in {"", "Exception"}]


def code_in_strings(tree: ast.Module) -> list[int]:
    """Lines of string constants that are Python with an import or a definition."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or "\n" not in node.value:
            continue
        try:
            inner = ast.parse(textwrap.dedent(node.value))
        except SyntaxError:
            continue
        kinds = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
        if any(isinstance(part, kinds) for part in ast.walk(inner)):
            found.append(node.lineno)
    return found


def bodies(tree: ast.Module) -> list[tuple[str, str]]:
    """(body without docstring, name) of each function of more than three statements."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if sum(isinstance(part, ast.stmt) for statement in body for part in ast.walk(statement)) > 3:
            found.append(("\n".join(ast.dump(statement) for statement in body), node.name))
    return found


@pytest.mark.parametrize("folder", ["kernels", "matrices", "canaries", "reports"])
def test_no_code_in_folders_of_cards(folder):
    """A folder of cards holds no Python: a top-level package called kernels would shadow another library."""
    assert [] == sorted((ROOT / folder).rglob("*.py"))


def test_every_folder_of_cards_exists():
    """What the package looks for is there."""
    assert list(assets.FOLDERS) == [folder for folder in assets.FOLDERS if (ROOT / folder).is_dir()]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_docstrings(path):
    """Every module, and every public class, function and method, says what it is."""
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{name_of(path)} has no docstring"
    assert [] == public_without_docstring(tree.body)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_code_in_strings(path):
    """What a script holds is the source of real functions, which linters read and tests run."""
    assert [] == code_in_strings(ast.parse(path.read_text()))


def test_code_in_a_string_is_seen():
    """A definition or an import within a string, but no docstring's words and no YAML."""
    text = 'a = """\\\nimport math\n"""\nb = """\\\n    def f(x):\n        return x\n"""\n'
    text += 'c = """\\\nmatrix: x\nb: [1]\n"""\n'
    assert [1, 4] == code_in_strings(ast.parse(text))


def test_every_class_has_a_name_of_its_own():
    """So that a name in a message, a signature or a search means one thing."""
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name_of(path))
    assert len(places) > 300
    assert {} == {name: found for name, found in places.items() if len(found) > 1}


def test_no_function_exists_twice():
    """Equal bodies have one home."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for body, name in bodies(ast.parse(path.read_text())):
            homes.setdefault(body, []).append(f"{name_of(path)}:{name}")
    assert [] == [places for places in homes.values() if len(places) > 1]


@pytest.mark.parametrize("path", [path for path in MODULES if name_of(path) not in BROAD], ids=name_of)
def test_no_broad_except(path):
    """Only the places that turn an exception into a result catch every exception."""
    assert [] == broad_handlers(ast.parse(path.read_text()))


@pytest.mark.parametrize("name", [known.name for known in ADAPTERS])
def test_every_adapter_has_a_factory(name):
    """An adapter's module has a ``create`` with a docstring; libraries are imported only when it is called."""
    module = importlib.import_module(f"qualify.run.adapters.{name}")
    assert callable(module.create)
    assert module.create.__doc__


def test_every_card_has_an_adapter():
    """A shipped card names an adapter that exists, and every adapter serves a shipped card."""
    assert {known.name for known in ADAPTERS} == {loaded.card.adapter for loaded in load_kernels().values()}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_check_has_a_test(check):
    """Every check has a test module of its own, or its class is used by one beside it."""
    folder = ROOT / "tests" / "run" / "checks"
    modules = sorted(folder.glob("test_*.py"))
    own = folder / f"test_{check.name}.py"
    assert own in modules or any(type(check).__name__ in module.read_text() for module in modules)


def test_check_names_are_their_modules():
    """A check lies in the module of its name, so a finding leads to the code."""
    assert [check.name for check in CHECKS] == [type(check).__module__.rpartition(".")[2] for check in CHECKS]


@pytest.mark.parametrize(("module", "name"), REGISTRIES, ids=lambda value: value)
def test_registries_are_literal_tuples(module, name):
    """A registry is a tuple: an import cannot add to it."""
    assert isinstance(getattr(importlib.import_module(module), name), tuple)
