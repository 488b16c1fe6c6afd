"""One version everywhere, with its section in the changelog and its release notes in the site."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
from cli_process import call

from qualify import __version__

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
RELEASES = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\S+)$", CHANGELOG, re.MULTILINE)
"""(version, date) of each release, the newest first"""
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
"""the groups of Keep a Changelog"""


def section(version: str) -> str:
    """What the changelog says of a release, or of what is not released."""
    return CHANGELOG.partition(f"\n## [{version}]")[2].partition("\n## ")[0]


def test_every_place_has_the_same_version(tmp_path: Path) -> None:
    """The distribution, the command, the newest release of the changelog, and the chart."""
    distribution = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    chart = (ROOT / "deploy/helm/qualify/Chart.yaml").read_text()
    printed = call("--version", cwd=tmp_path).out
    found = {distribution, RELEASES[0][0], *re.findall(r'^(?:version|appVersion): "?([\d.]+)"?$', chart, re.MULTILINE)}
    assert ({__version__}, f"qualify {__version__}\n") == (found, printed)


@pytest.mark.parametrize("name", ["docker-compose.yml", "deploy/helm/qualify/values.yaml", "deploy/ray/rayjob.yaml"])
def test_images_have_the_version(name: str) -> None:
    """Each image of qualify's own, where a deployment names one."""
    assert {__version__} == set(re.findall(r"qualify-(?:web|worker|worker-cpu):([\d.]+\d)", (ROOT / name).read_text()))


def test_the_action_is_shown_with_the_version() -> None:
    """docs/ci.md pins the released action."""
    assert [__version__] == re.findall(r"OWNER/qualify@v([\d.]+)", (ROOT / "docs/ci.md").read_text())


def test_releases_stand_in_order() -> None:
    """What is not released comes first; versions and dates fall."""
    assert "Unreleased" == re.search(r"^## \[(.+?)\]", CHANGELOG, re.MULTILINE)[1]
    versions = [tuple(map(int, version.split("."))) for version, _ in RELEASES]
    dates = [date.fromisoformat(day) for _, day in RELEASES]
    assert (sorted(versions, reverse=True), sorted(dates, reverse=True)) == (versions, dates)


@pytest.mark.parametrize("version", [version for version, _ in RELEASES])
def test_a_release_is_short_and_grouped(version: str) -> None:
    """Groups in the order of Keep a Changelog; entries of at most two lines, and not more than somebody reads."""
    text = section(version)
    groups = re.findall(r"^### (.+)$", text, re.MULTILINE)
    entries = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
    long = [entry for entry in entries if len(entry.split("\n\n")[0].strip().splitlines()) > 2]
    assert ([kind for kind in KINDS if kind in groups], []) == (groups, long)
    assert 1 <= len(entries) <= 60


def test_the_newest_release_has_notes() -> None:
    """A page that says what is new, what breaks and how to upgrade; the changelog links it."""
    page = ROOT / "docs" / "releases" / f"{__version__}.md"
    headings = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
    assert ["What is new", "What breaks", "How to upgrade"] == headings[:3]
    assert f"docs/releases/{__version__}.md" in section(__version__)
