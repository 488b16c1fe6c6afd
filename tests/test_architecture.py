"""What holds for the whole tree and no type checker sees."""

from __future__ import annotations

import ast
import gc
import importlib
import re
import subprocess
import sys
import textwrap
import typing
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from cli_process import environment
from longest import LONGEST

from qualify import assets
from qualify.cards.load import load_kernels
from qualify.facts.adapters import ADAPTERS
from qualify.facts.checks import CHECKS as KNOWN_CHECKS
from qualify.facts.checks import FINDINGS, Proof, proofs_of
from qualify.facts.devices import KINDS
from qualify.report.formats import FORMATS, FormatName
from qualify.run.checks.registry import CHECKS
from qualify.run.machine.device import PROCESSORS
from qualify.run.repro.claims import PROOFS

ROOT = Path(__file__).resolve().parent.parent
REGISTRIES = (
    ("qualify.assets", "FOLDERS"),
    ("qualify.units", "UNITS"),
    ("qualify.cards.schema", "KINDS"),
    ("qualify.cli.entry", "COMMANDS"),
    ("qualify.cli.entry", "GROUPS"),
    ("qualify.facts.accuracy", "CLASSES"),
    ("qualify.facts.checks", "CHECKS"),
    ("qualify.facts.adapters", "ADAPTERS"),
    ("qualify.run.checks.registry", "CHECKS"),
    ("qualify.run.machine.device", "PROCESSORS"),
    ("qualify.run.measure.kernel_names", "TABLE"),
    ("qualify.selftest.faults.registry", "FAULTS"),
    ("qualify.selftest.correct", "VARIANTS"),
    ("qualify.selftest.workloads", "SHAPES"),
    ("qualify.report.questions", "QUESTIONS"),
    ("qualify.report.formats", "FORMATS"),
)
BROAD = {
    "canary/alerts/postman.py",
    "cards/options.py",
    "cli/entry.py",
    "run/process/worker.py",
    "run/execute.py",
    "run/host/serve.py",
    "seal/keyless.py",
    "seal/keys.py",
}
"""modules that may catch any exception: what a kernel, a card's entry, a third party, a key service or what tells an
alert raises, is an answer"""


@pytest.fixture(scope="module", autouse=True)
def kept() -> Iterator[None]:
    """The trees of all modules are a million objects that stay: no collection of garbage looks through them."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def name_of(path: Path) -> str:
    """The module's path within the package."""
    return path.relative_to(ROOT / "qualify").as_posix()


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, parsed once."""
    return {name_of(path): ast.parse(path.read_text()) for path in sorted((ROOT / "qualify").rglob("*.py"))}


@cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    """Every node of a module, found once."""
    return list(ast.walk(tree))


def found_in_all(look: Callable[[ast.Module], list[Any]], but: Collection[str] = ()) -> list[str]:
    """What a look at each module finds, as module:what; some are left out."""
    return [f"{name}:{what}" for name, tree in modules().items() if name not in but for what in look(tree)]


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
    handlers = [node for node in nodes(tree) if isinstance(node, ast.ExceptHandler)]
    caught = [(node.lineno, ast.unparse(node.type) if node.type else "") for node in handlers]
    return [line for line, what in caught if what in {"", "Exception"}]


def code_in_strings(tree: ast.Module) -> list[int]:
    """Lines of string constants that are Python with an import or a definition."""
    found = []
    for node in nodes(tree):
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


def failing_names(tree: ast.Module) -> list[str]:
    """Names of findings that a module writes out beside the verdict ``fail``, or as the first argument of failing."""
    found = []
    for node in nodes(tree):
        if not isinstance(node, ast.Call):
            continue
        words = {item.arg: item.value for item in node.keywords}
        name = node.args[0] if ast.unparse(node.func) == "failing" and node.args else words.get("check")
        verdict = words.get("verdict", ast.Constant("fail"))
        if isinstance(name, ast.Constant) and isinstance(verdict, ast.Constant) and verdict.value == "fail":
            found.append(name.value)
    return found


def asks_for_a_check(tree: ast.Module) -> list[int]:
    """Lines that ask whether something is of one check's class."""
    classes = {type(check).__name__ for check in CHECKS}
    calls = [node for node in nodes(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"]
    return [node.lineno for node in calls if classes & {ast.unparse(part) for part in ast.walk(node.args[1])}]


def findings_compared(tree: ast.Module) -> list[int]:
    """Lines that compare something with the name of a finding."""
    return [
        node.lineno
        for node in nodes(tree)
        if isinstance(node, ast.Compare) and re.search(r"check|finding|meant", ast.unparse(node.left))
        if any(isinstance(part, ast.Constant) and part.value in FINDINGS for part in ast.walk(node))
    ]


def bodies(tree: ast.Module) -> list[tuple[str, str]]:
    """(body without docstring, name) of each function of more than three statements."""
    found = []
    for node in nodes(tree):
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


def test_the_longest_files_of_tests_are_there():
    """Those that are handed out first."""
    assert [] == [path for path in LONGEST if not (ROOT / path).is_file()]


def test_tests_share_by_helper_modules_alone():
    """No file imports from a test module, and each name that it imports from a helper module is there."""
    assert [] == [found for path in (ROOT / "tests").rglob("*.py") for found in wrong_imports(path)]


def test_a_wrong_import_is_seen(tmp_path):
    """From a test module, and of a name that has moved."""
    (tmp_path / "test_one.py").write_text("from test_two import a\nfrom builders import CAUSAL, no_such_name\n")
    expected = ["test_one.py: test_two", "test_one.py: builders.no_such_name"]
    assert expected == wrong_imports(tmp_path / "test_one.py")


def wrong_imports(path: Path) -> list[str]:
    """What a file of the tests may not import: all of a test module, and what a helper module does not define."""
    found = []
    for node in statements(parsed(path)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
            missing = {alias.name for alias in node.names} - helpers().get(
                node.module, {alias.name for alias in node.names}
            )
            found += [f"{path.name}: {node.module}.{name}" for name in sorted(missing)]
        found += [f"{path.name}: {name}" for name in modules if name.startswith("test_")]
    return found


@cache
def parsed(path: Path) -> ast.Module:
    """A file of the tests."""
    return ast.parse(path.read_text())


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Every statement of a file, however deep."""
    left: deque[Any] = deque([tree])
    while left:
        node = left.popleft()
        if isinstance(node, ast.stmt):
            yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            left.extend(getattr(node, part, ()))


@cache
def helpers() -> dict[str, set[str]]:
    """Names at the top of each helper module of the tests; those of files that share a name together."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "tests").rglob("*.py"):
        for node in () if path.name.startswith("test_") else parsed(path).body:  # from a test nobody may import
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[path.stem] |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            found[path.stem] |= {alias.asname or alias.name for alias in getattr(node, "names", ())}
            found[path.stem].add(getattr(node, "name", ""))
    return dict(found)


def test_the_statistics_do_without_what_imports_slowly():
    """Importing scipy.stats takes a processor half a second, and scipy.special has the same distributions."""
    sources = {path: path.read_text() for path in (ROOT / "qualify").rglob("*.py")}
    assert [] == [path for path, text in sources.items() if re.search(r"scipy import stats|scipy\.stats", text)]


def test_every_folder_of_cards_exists():
    """What the package looks for is there."""
    assert list(assets.FOLDERS) == [folder for folder in assets.FOLDERS if (ROOT / folder).is_dir()]


def test_docstrings():
    """Every module, and every public class, function and method, says what it is."""
    assert len(modules()) > 200
    assert [] == [name for name, tree in modules().items() if not ast.get_docstring(tree)]
    assert [] == found_in_all(lambda tree: public_without_docstring(tree.body))


def test_no_code_in_strings():
    """What a script holds is the source of real functions, which linters read and tests run."""
    assert [] == found_in_all(code_in_strings)


def test_code_in_a_string_is_seen():
    """A definition or an import within a string, but no docstring's words and no YAML."""
    text = 'a = """\\\nimport math\n"""\nb = """\\\n    def f(x):\n        return x\n"""\n'
    text += 'c = """\\\nmatrix: x\nb: [1]\n"""\n'
    assert [1, 4] == code_in_strings(ast.parse(text))


def test_every_class_has_a_name_of_its_own():
    """So that a name in a message, a signature or a search means one thing."""
    places = defaultdict(list)
    for name, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    assert len(places) > 300
    assert {} == {name: found for name, found in places.items() if len(found) > 1}


def test_no_function_exists_twice():
    """Equal bodies have one home."""
    homes: dict[str, list[str]] = {}
    for module, tree in modules().items():
        for body, name in bodies(tree):
            homes.setdefault(body, []).append(f"{module}:{name}")
    assert [] == [places for places in homes.values() if len(places) > 1]


def test_no_broad_except():
    """Only the places that turn an exception into a result catch every exception."""
    assert [] == found_in_all(broad_handlers, but=BROAD)


def test_every_check_answers_alike():
    """Nobody treats a check by its class: what one has to say goes the way of all others."""
    assert [] == found_in_all(asks_for_a_check)


def test_scripts_know_no_check():
    """What shows a finding, and with which bound, stands in the table of checks."""
    seen = "if finding.check == 'repeat': pass\nif meant in {'lse'}: pass\nif tensor == 'lse': pass"
    assert [1, 2] == findings_compared(ast.parse(seen))
    folder = ROOT / "qualify" / "run" / "repro"
    found = {path.name: findings_compared(ast.parse(path.read_text())) for path in folder.glob("*.py")}
    assert {} == {name: lines for name, lines in found.items() if lines}


def test_every_proof_has_a_function():
    """What the table of checks names, a script compares; the form of a result is all that needs no exact value."""
    asked = {proof for finding in FINDINGS for proof in proofs_of(finding)}
    assert asked == {*PROOFS, "form"} == set(get_args(Proof))
    assert (("form",), ("lse",), ("budget",)) == tuple(map(proofs_of, ("contract", "lse", "budget")))


@pytest.mark.parametrize("name", [known.name for known in ADAPTERS])
def test_every_adapter_has_a_factory(name):
    """An adapter's module has a ``create`` with a docstring; libraries are imported only when it is called."""
    module = importlib.import_module(f"qualify.run.adapters.{name}")
    assert callable(module.create)
    assert module.create.__doc__


def test_every_card_has_an_adapter():
    """A shipped card names an adapter that exists, and every adapter serves a shipped card."""
    assert {known.name for known in ADAPTERS} == {loaded.card.adapter for loaded in load_kernels().values()}


def test_every_finding_that_fails_is_known():
    """What a module of a run calls a failure is a word that waivers and incidents take."""
    named = {name for path, tree in modules().items() if path.startswith("run/") for name in failing_names(tree)}
    assert {"contract", "lse", "empty_row", "timing", "history"} <= named
    assert set() == {name for name in named if isinstance(name, str)} - set(FINDINGS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_check_has_a_test(check):
    """Every check has a test module of its own, or its class is used by one beside it."""
    folder = ROOT / "tests" / "run" / "checks"
    modules = sorted(folder.glob("test_*.py"))
    own = folder / f"test_{check.name}.py"
    assert own in modules or any(type(check).__name__ in module.read_text() for module in modules)


def test_every_check_is_one_module_and_one_entry():
    """Each entry of the table has a module of its name, and no module with a check is left out."""
    folder = ROOT / "qualify" / "run" / "checks"
    modules = sorted(folder.glob("*.py"))
    written = [path.stem for path in modules if re.search(r"^class \w+\(Shipped\)", path.read_text(), re.MULTILINE)]
    assert written == sorted(known.name for known in KNOWN_CHECKS)
    assert [known.name for known in KNOWN_CHECKS] == [type(check).__module__.rpartition(".")[2] for check in CHECKS]


def test_findings_have_one_owner():
    """No two checks write findings of one name, so a finding leads to its check; each question is one sentence."""
    assert len(FINDINGS) == len(set(FINDINGS))
    assert [] == [known.name for known in KNOWN_CHECKS if not known.question.endswith("?") or not known.levels]


@pytest.mark.parametrize(("module", "name"), REGISTRIES, ids=lambda value: value)
def test_registries_are_literal_tuples(module, name):
    """A registry is a tuple: an import cannot add to it."""
    assert isinstance(getattr(importlib.import_module(module), name), tuple)


def test_every_format_of_the_gate_is_listed_and_reachable():
    """A module is an entry, an entry a word of --format, and its file an option of the gate."""
    folder = ROOT / "qualify" / "report" / "formats"
    modules_there = {path.stem for path in folder.glob("*.py")} - {"__init__", "interface"}
    assert modules_there == {form.module for form in FORMATS}
    assert [form.name for form in FORMATS] == list(typing.get_args(FormatName))
    assert [] == [form.name for form in FORMATS if not callable(form.load())]
    options = (ROOT / "qualify" / "cli" / "gate.py").read_text()
    assert [] == [form.option for form in FORMATS if f'"{form.option}"' not in options and form.option]


def torch_dtypes(tree: ast.AST) -> list[int]:
    """Lines that say a dtype of fewer than 32 bits by torch's name, in a comparison, a table or a constant."""
    within = (ast.Compare, ast.Dict, ast.Tuple, ast.Set, ast.List, ast.Assign, ast.AnnAssign)
    said = [part for node in nodes(tree) if isinstance(node, within) for part in ast.iter_child_nodes(node)]
    names = re.compile(r"torch\.(bfloat16|float16|half|float8\w+)")
    return [part.lineno for part in said if isinstance(part, ast.Attribute) and names.fullmatch(ast.unparse(part))]


def test_dtypes_have_one_home():
    """Elsewhere a module reads the table of formats: another dtype is an addition. A planted fault has its own."""
    homes = ("run/inputs/formats.py", "selftest/faults/")
    found = {path: torch_dtypes(tree) for path, tree in modules().items() if not path.startswith(homes)}
    assert {} == {path: lines for path, lines in found.items() if lines}


def test_a_list_of_dtypes_is_seen():
    """However it is written; a tensor made in a dtype is none."""
    texts = (
        "A = (torch.float16, torch.bfloat16)",
        "a == torch.float16",
        "B = {torch.float8_e4m3fn: 1}[a]",
        "C = torch.half",
    )
    assert [[1, 1], [1], [1], [1]] == [torch_dtypes(ast.parse(text)) for text in texts]
    assert [] == torch_dtypes(ast.parse("a = torch.zeros(3, dtype=torch.bfloat16)"))


HOST_LOADS = """
import importlib, importlib.metadata, io, re, sys
import torch

def tops():
    return {name.partition(".")[0] for name in sys.modules} - {"qualify"}

before = tops()
from qualify.run.host import messages, serve
imported = tops() - before - set(sys.stdlib_module_names)
from qualify.facts.adapters import ADAPTERS
for known in ADAPTERS:
    importlib.import_module(f"qualify.run.adapters.{known.name}")
server = serve.Server(io.BytesIO(), [])
server.start(messages.Start(device="cpu", import_paths=()))
server.describe(messages.Describe())
server.control(messages.Control(warm_up=True))

def required(name):
    words = [line for line in importlib.metadata.requires(name) or () if "extra ==" not in line]
    return {re.match(r"[\\w.-]+", line)[0].lower() for line in words}

own = required("attn-qualify") - required("torch") - {"torch"}
homes = importlib.metadata.packages_distributions()
served = {top for top in tops() - before if own & {home.lower() for home in homes.get(top, ())}}
print(sorted(own)[:1] != [], sorted(imported), sorted(served))
"""


def test_a_host_needs_only_torch() -> None:
    """Its interpreter may have nothing else: what torch does not load itself, no module of qualify's loads there."""
    ended = subprocess.run(
        [sys.executable, "-c", HOST_LOADS], env=environment(), capture_output=True, text=True, check=True
    )
    assert "True [] []" == ended.stdout.splitlines()[-1]


def kinds_compared(tree: ast.Module) -> list[int]:
    """Lines that compare with, or look up, a kind of device by its word."""
    compared = [(node, [node.left, *node.comparators]) for node in nodes(tree) if isinstance(node, ast.Compare)]
    keyed = [(node, node.keys) for node in nodes(tree) if isinstance(node, ast.Dict)]
    return [
        node.lineno
        for node, parts in [*compared, *keyed]
        if isinstance(node, ast.Compare) or len(parts) > 1
        if any(isinstance(part, ast.Constant) and part.value in KINDS for part in parts)
    ]


def test_kinds_of_device_have_one_home():
    """Elsewhere a module asks the processor, or reads the table of kinds: another kind is an addition."""
    homes = {"facts/devices.py", "run/machine/device.py"}
    labels = {"report/run_facts.py"}  # versions of the stack, of which one is called cuda
    assert [] == found_in_all(kinds_compared, but=homes | labels)


def test_every_kind_of_device_has_a_processor():
    """A row of the table and a class."""
    assert list(KINDS) == [each.kind for each in PROCESSORS]


def test_a_comparison_with_a_kind_is_seen():
    """However it is written."""
    seen = [
        kinds_compared(ast.parse(text)) for text in ('a.type == "cuda"', '"cpu" != a', 'B = {"cpu": 1, "cuda": 2}[a]')
    ]
    assert [[1]] * 3 == seen
