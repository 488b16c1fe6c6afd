"""What `make quick` selects: test files that a change reaches, nearest first."""

from __future__ import annotations

import pytest
from nearby import ROOT, Imports, imported_by, nearby


@pytest.fixture(scope="module")
def imports() -> Imports:
    """The graph of this checkout."""
    return Imports()


def test_the_tests_of_a_changed_module_come_first(imports: Imports) -> None:
    """First those that are named after it; then with each import more between them and the change."""
    found = nearby(["qualify/verdict/gate.py"], imports)
    assert "tests/verdict/test_gate.py" == found[0]
    assert found.index("tests/verdict/test_compare.py") < found.index("tests/test_cli_gate.py")
    assert "tests/run/golden/test_accuracy.py" not in found


def test_a_changed_test_comes_before_all(imports: Imports) -> None:
    """Whoever edits a test wants to see it run."""
    found = nearby(["qualify/verdict/gate.py", "tests/test_masks.py"], imports)
    assert "tests/test_masks.py" == found[0]


def test_helpers_and_fixtures_reach_their_tests(imports: Imports) -> None:
    """A helper those that import it, a conftest every test beside and below."""
    assert "tests/verdict/test_gate.py" in nearby(["tests/builders.py"], imports)
    store = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "store").glob("test_*.py")}
    assert store <= set(nearby(["tests/store/conftest.py"], imports))


def test_processes_count_as_imports(imports: Imports) -> None:
    """Who starts `python -m qualify` depends on every command, and on what the commands import."""
    assert {"qualify.__main__"} == imported_by("run([sys.executable, '-m', 'qualify'])", imports.importers)
    assert {"tests/test_cli_gate.py", "tests/fleet/test_writers.py"} <= set(nearby(["qualify/fleet/local.py"], imports))


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("kernels/fa3.yaml", "tests/cards/test_loading.py"),
        ("reports/run.html", "tests/report/test_page.py"),
        ("docs/ci.md", "tests/test_ci_examples.py"),
        ("pyproject.toml", "tests/test_architecture.py"),
        ("qualify/store/migrations/versions/r99_new.py", "tests/test_architecture.py"),
    ],
)
def test_files_that_nobody_imports_have_readers(imports: Imports, changed: str, test: str) -> None:
    """Cards, templates, documents and settings select the tests of whoever reads them."""
    assert test in nearby([changed], imports)


def test_nothing_changed_selects_nothing(imports: Imports) -> None:
    """An empty answer, so that nobody takes it for the whole suite."""
    assert [] == nearby([], imports)


def test_in_a_hurry_no_test_starts_late(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --until in the past every test is skipped and says where it runs; slow ones always are.

    What a plugin imports in there is forgotten afterwards, and who needs it imports it again: two classes of one name.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (pytester.path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\nmarkers = ["slow", "gpu"]')
    pytester.makepyfile("import pytest\ndef test_usual(): pass\n@pytest.mark.slow\ndef test_slow(): pass\n")
    pytester.runpytest_inprocess().assert_outcomes(passed=2)
    pytester.runpytest_inprocess("--until", "4000000000").assert_outcomes(passed=1, skipped=1)
    pytester.runpytest_inprocess("--until", "1").assert_outcomes(skipped=2)


pytest_plugins = ["pytester"]
