"""Prints the test files that what changed can reach, nearest by imports first: what `make quick` runs."""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
READERS = {
    "kernels/": ("qualify.cards.load", "tests/test_docs.py"),
    "matrices/": ("qualify.cards.load", "tests/test_docs.py"),
    "canaries/": ("qualify.cards.load", "qualify.cards.canary"),
    "traffic/": ("qualify.cards.load", "qualify.cards.traffic"),
    "reports/": ("qualify.report.page",),
    "deploy/": ("tests/deploy/test_compose.py", "tests/deploy/test_monitoring.py"),
    "docker-compose.yml": ("tests/deploy/test_compose.py",),
    "action.yml": ("tests/test_ci_examples.py",),
    "docs/": ("tests/test_docs.py", "tests/test_condense.py", "tests/test_site.py"),
    "mkdocs.yml": ("tests/test_site.py",),
    "docs/ci.md": ("tests/test_ci_examples.py",),
    "README.md": ("tests/test_docs.py",),
    "CONTRIBUTING.md": ("tests/test_docs.py",),
    "pyproject.toml": ("tests/test_architecture.py", "tests/test_packaging.py"),
    "constraints.txt": ("tests/test_packaging.py",),
    "qualify/": ("tests/test_architecture.py",),
    "qualify/store/new.sql": ("qualify.store.schema",),
    "tests/cli_server.py": ("tests/cli_process.py",),
}
"""who reads files that nobody imports: the beginning of a path -> modules and test files"""

MOST = 20
"""test files: to collect more would take the time that their tests need"""


def changed_since(base: str) -> list[str]:
    """Paths that differ between the working tree and the commit where this branch left ``base``, and new files."""
    since = _git("merge-base", "HEAD", base)[0]
    differ = _git("diff", "--name-only", "--no-renames", since)
    return sorted({*differ, *_git("ls-files", "--others", "--exclude-standard")})


def _git(*arguments: str) -> list[str]:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def module_of(path: str) -> str:
    """The dotted name of a module of the package; other paths stay as they are."""
    if not path.startswith("qualify/") or not path.endswith(".py"):
        return path
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Imports:
    """Who imports whom: modules of the package by their dotted names, files of the tests by their paths."""

    def __init__(self) -> None:
        graph = grimp.build_graph("qualify", cache_dir=str(ROOT / ".import_linter_cache"))
        self.importers = {name: set(graph.find_modules_that_directly_import(name)) for name in graph.modules}
        self.tests = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py"))
        helpers = defaultdict(list)
        for path in self.tests:
            helpers[Path(path).stem].append(path)
        for path in self.tests:
            for name in imported_by((ROOT / path).read_text(), self.importers.keys() | helpers.keys()):
                for used in helpers.get(name, [name]):
                    self.importers.setdefault(used, set()).add(path)

    def steps(self, changed: Iterable[str]) -> Mapping[str, int]:
        """How many imports lie between a change and each module or file that it reaches."""
        found = dict.fromkeys(changed, 0)
        waiting = deque(found)
        while waiting:
            used = waiting.popleft()
            for importer in sorted(self.importers.get(used, ())):
                if importer not in found:
                    found[importer] = found[used] + 1
                    waiting.append(importer)
        return found


def imported_by(source: str, known: Iterable[str]) -> set[str]:
    """Those of the known modules that a source imports, or names in a string, as who starts a process does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=str(module), level=0):
                names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
            case ast.Constant(value="qualify"):
                names.add("qualify.__main__")
            case ast.Constant(value=str(text)) if text.startswith("qualify."):
                names.add(text)
    known = set(known)
    return {name for name in names if name in known and name != "qualify"}


def starts_of(changed: Iterable[str], tests: Iterable[str]) -> list[str]:
    """What changed as modules and test files, with the readers of files that nobody imports."""
    starts = []
    for path in changed:
        starts.append(module_of(path))
        starts += [reader for begin, readers in READERS.items() if path.startswith(begin) for reader in readers]
        if path.endswith("conftest.py"):
            starts += [test for test in tests if test.startswith(path.removesuffix("conftest.py"))]
    return starts


def nearby(changed: Iterable[str], imports: Imports) -> list[str]:
    """Test files that the changes reach: the fewest imports first, of these the one that is named after a change."""
    changed = list(changed)
    steps = imports.steps(starts_of(changed, imports.tests))
    named = {f"test_{Path(path).stem}" for path in changed}
    tests = [path for path in imports.tests if Path(path).name.startswith("test_") and "gpu" not in path.split("/")]
    found = [path for path in tests if path in steps]
    return sorted(found, key=lambda path: (path not in changed, Path(path).stem not in named, steps[path], path))


def main() -> None:
    """One path a line, and on stderr how many were left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default="main", help="the branch or commit to compare with")
    base = parser.parse_args().base
    try:
        changed = changed_since(base)
    except subprocess.CalledProcessError:  # git has said why
        sys.exit(f"Nothing can be compared with {base!r}. Name a commit or branch that is here: make quick BASE=HEAD~1")
    found = nearby(changed, Imports())
    print("\n".join(found[:MOST]))
    print(f"The nearest {len(found[:MOST])} of {len(found)} test files that the change reaches:", file=sys.stderr)


if __name__ == "__main__":
    main()
