"""The documentation as a site: strict, whole, without requests to other servers; its prose and its pictures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import prose
from drawing import census, verdicts

ROOT = Path(__file__).resolve().parent.parent
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["'](?:https?:)?//|<link[^>]*rel=["']?(?!canonical)[^>]*href=["'](?:https?:)?//"""
)
IMPORTED = re.compile(r"""(?:@import|url\()\s*["']?(?:https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it; a warning, as of a link that leads nowhere, ends the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert 0 == done.returncode, done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    """Each page of docs/ and of the root, except the README, becomes a page."""
    sources = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    sources += [Path(name) for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    made = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html"}
    expected = {path.with_suffix(".html").as_posix().replace("README.html", "index.html") for path in sources}
    assert expected == made


def test_the_site_asks_no_other_server(site: Path) -> None:
    """Fonts, scripts, styles and pictures come with it."""
    pages = [page for page in site.rglob("*.html") if LOADED.search(page.read_text())]
    styles = [style for style in site.rglob("*.css") if IMPORTED.search(style.read_text())]
    assert [] == [*pages, *styles]


def test_every_page_is_in_the_navigation() -> None:
    """A page that nobody can reach by the navigation is missing there."""
    listed = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} <= listed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("The gate fails.", []),
        (f"{'word ' * 36}end.", ["37 words, at most 36"]),
        (f"{'word ' * 30}end. x is {'word ' * 30}end.", []),
        (f"{'word ' * 29}end. " * 5, ["a paragraph of 150 words, at most 130"]),
        (f"{'word ' * 30}end. {'Word ' * 30}end.", []),
        ("It has ten rows, of which two fail.", ["“of which”"]),
        ("`of which` is a phrase.", []),
    ],
)
def test_prose_is_checked(text: str, said: list[str]) -> None:
    """Long sentences and riddles are named; code is not read."""
    assert said == [what.partition(":")[0] for what in prose.wrong(text)]


def test_prose_of_tables_and_code_is_not_checked() -> None:
    """Paragraphs and list items are; tables, code and generated parts are not."""
    page = "A line\nof prose.\n\n| a | b |\n\n```sh\nno prose\n```\n\n* item\n<!-- generated: x -->\nno\n<!-- end -->\n"
    assert ["A line of prose.", "* item"] == list(prose.paragraphs(page))


def test_no_page_has_a_bad_sentence() -> None:
    """What `make check` says of the documents: nothing."""
    assert 0 == prose.main()


def test_the_picture_of_the_report_is_small() -> None:
    """It is committed, so it stays below 200 kB."""
    assert (ROOT / "docs" / "pictures" / "report.png").stat().st_size <= 200_000


def test_pictures_show_what_calls_give() -> None:
    """The census tells both masks apart, and the page on budgets says what its four judges really say."""
    right, wrong = census.outputs()
    assert ([7, 8, 9, 10], [1, 2, 3, 4]) == tuple((grid > 0).sum(-1).tolist() for grid in (right, wrong))
    assert [(False, True, True, True), (False, True, False, True), (False, True, True, False)] == [
        each.accepted for each in verdicts.judged()
    ]
    assert (ROOT / "docs/pictures/verdicts.svg").read_text() == verdicts.picture()


def test_every_defect_is_listed_and_counted() -> None:
    """The page of findings links each defect's page, and the README says how many there are."""
    pages = {path.name for path in (ROOT / "docs" / "findings").glob("*.md")}
    listed = re.findall(r"\| \[[^\]]+\]\(findings/([\w.-]+)\)", (ROOT / "docs" / "findings.md").read_text())
    assert sorted(pages) == sorted(listed)
    assert f"[All {len(pages)} defects]" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "findings").glob("*.md")), ids=lambda page: page.stem)
def test_a_defect_is_told_in_two_sentences(page: Path) -> None:
    """What the user sees; then which versions have it, and what to do. The versions are those of the table."""
    _, lead, table, *_ = page.read_text().split("\n\n")
    seen, concerns = re.split(r"(?<=\.) (?=It concerns)", lead.replace("\n", " "))
    assert seen.endswith(".")
    versions = re.findall(r"\d+\.\d+\.\d+\w*(?:\.post\d)?", table.splitlines()[2])
    assert versions == re.findall(r"\d+\.\d+\.\d+\w*(?:\.post\d)?", concerns)
    assert re.search(r": \w+ .+\.$|there is nothing to \w+: .+\.$", concerns)


def test_a_decision_has_the_number_of_its_file() -> None:
    """In its title, which the navigation shows."""
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == [
        int(re.match(r"# (\d+)\. ", page.read_text())[1]) for page in pages
    ]


@pytest.mark.parametrize("name", ["docs/architecture.md", "SECURITY.md", "CONTRIBUTING.md", "docs/decisions"])
def test_files_that_the_project_pages_name_exist(name: str) -> None:
    """From the root, from the package, or by their names alone; a file that moved is named at its new place."""
    pages = sorted((ROOT / name).glob("*.md")) if (ROOT / name).is_dir() else [ROOT / name]
    there = [path.as_posix() for part in ("qualify", "tests", "docs") for path in (ROOT / part).rglob("*.py")]
    named = {file for page in pages for file in re.findall(r"`((?:[\w-]+/)*[\w-]+\.py)`", page.read_text())}
    invented = {"rREVISION_what.py"}
    assert [] == [file for file in sorted(named - invented) if not any(path.endswith(f"/{file}") for path in there)]
