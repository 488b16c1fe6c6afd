"""How many inputs are tried, the folder that they begin from, and the totals at the end."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attack
import pytest
from corpus import shipped_folder, stored
from shares import PARTS

from qualify import assets
from qualify.facts import codec

LINES, LINE = 40, 400
"""of a failure that is shown at once, and characters of each"""
WARMING = [
    ["plan", "everything.yaml"],
    ["plan", "everything.yaml", "--cards", ".", "--json"],
    ["gate", "--db", "evidence.db", "--format", "markdown"],
    ["gate", "--db", "evidence.db", "--format", "junit", "--against", "baseline"],
    ["gate", "--db", "evidence.db", "--matrix", "serving.yaml", "--max-age", "9999d"],
    ["report", "latest", "--db", "evidence.db"],
    ["diff", "baseline", "latest", "--db", "evidence.db"],
    ["waiver", "check", "waivers.yaml"],
    ["db", "export", "latest", "--db", "evidence.db"],
    ["db", "import", "run.jsonl.gz", "--db", "other.db"],
    ["verify", "run.jsonl.gz"],
    ["model", "config.json"],
    ["traffic", "import", "azure.csv", "--out", "t.yaml"],
    ["canary", "explain", "nightly", "--db", "evidence.db"],
]
"""commands that build what every later one needs: models of cards, templates, adapters"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Many inputs are tried in several parts, so that several processes share them."""
    metafunc.fixturenames.append("part")
    metafunc.parametrize("part", range(PARTS if metafunc.config.getoption("inputs") else 1))


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Few shipped cards, a home of its own, and everything imported: a command then takes a fiftieth of a second."""
    folder = shipped_folder(tmp_path_factory.mktemp("shipped"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assets, "shipped", lambda name: folder / name)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        for name in ("QUALIFY_DB", "QUALIFY_TRACEBACK", "QUALIFY_DB_PASSWORD_FILE"):
            patch.delenv(name, raising=False)
        attack.get_ready(patch, WARMING, stored(tmp_path_factory.mktemp("warming")))
        yield
        gc.unfreeze()


@pytest.fixture(scope="session")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, an export, waivers, and what is no file; it is only read."""
    return stored(tmp_path_factory.mktemp("stored"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that runs a part of the tests hands over what it counted."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["totals"] = codec.to_data(attack.TOTALS)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What such a process counted."""
    if found := node.workeroutput.get("totals"):
        attack.TOTALS.merge(codec.from_data(attack.Totals, found))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The figures that the documentation quotes."""
    if attack.TOTALS.inputs:
        terminalreporter.section("fuzzing")
        for line in attack.TOTALS.lines():
            terminalreporter.write_line(line)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Shows a failure at once: a long run is not over for an hour."""
    if report.failed and "/fuzz/" in report.nodeid:
        told = [line[:LINE] for line in report.longreprtext.splitlines() if line.lstrip(" |").startswith("E ")]
        sys.stderr.write("\n".join(["", report.nodeid, *told[:LINES], ""]))
