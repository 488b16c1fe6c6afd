"""The documents are true: links, examples, and every command that they show. `make documents` checks generated parts.

A block ```` ```console ```` shows commands after ``$``. Each is run in a folder that holds the documents' example
files (a block after ``<!-- file: PATH -->``), as it stands or in the cheap variant that :func:`variant` gives.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_process import Ended, call, environment, server

from qualify import errors
from qualify.cards.load import load_canary, load_matrix, load_model
from qualify.cards.named import matrix_names
from qualify.cli import entry
from qualify.cli.examples import EXAMPLES
from qualify.fleet.local import new_run
from qualify.fleet.request import Asked, make_request
from qualify.store.store import Store

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(
    r"^(?:<!-- file: (?P<path>\S+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
READ_ALONE = {"decisions", "findings", "releases", "evidence"}
"""folders of docs/ whose pages are read one by one, each with its own words"""
COMPLETE = {0, 1}
"""exit codes of a command that did what it shows: a verdict may be negative on this machine"""


def blocks(language: str) -> list[tuple[str, str]]:
    """(path of the file that a block stands for or '', text) of every block of a language."""
    found = [match for page in PAGES for match in FENCE.finditer(page.read_text())]
    return [(match["path"] or "", match["text"]) for match in found if match["language"] == language]


def commands() -> list[list[str]]:
    """Every command that a document shows, once; those of a block together, because one may need what another made."""
    seen: set[str] = set()
    found = []
    for _, text in blocks("console"):
        shown = dict.fromkeys(line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ "))
        found.append([command for command in shown if command not in seen])
        seen.update(shown)
    return [block for block in found if block]


def variant(command: str) -> list[str]:
    """What is run instead of a command: itself if it is cheap, else something that needs the same names.

    make says what it would do; the activation of an environment is looked up in the Makefile; pip is asked for nothing,
    only that the extra exists; a run of a large matrix is planned; a canary that fires is not waited for; the selftest
    plants one fault; a benchmark runs on a small size, on evidence that the first one measured.
    """
    words = shlex.split(command)
    if words[0] == ".":
        folder = re.search(r"^VENV := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert folder
        assert f"{folder[1]}/bin/activate" == words[1]
        return ["true"]
    if words[0] == "make":
        return ["make", "--dry-run", "--always-make", "-C", str(ROOT), *words[1:]]
    if words[0] == "pip":
        extras = re.findall(r"\[([\w,]+)\]", command)
        text = (ROOT / "pyproject.toml").read_text()
        assert extras
        assert all(f"\n{name} = [" in text for extra in extras for name in extra.split(","))
        return ["true"]
    if words[0] == "openssl":
        return words
    if words[0] == "python":
        script = ROOT / words[1]
        kept = ["--evidence=measured.db"] if "evidence=True" in script.read_text() else []
        return [sys.executable, str(script), *words[2:], "--small", *kept]
    assert words[0] == "qualify", f"teach variant() the command {command!r}"
    if words[1] == "selftest":
        words += ["--fault", "lse-log2", "--level", "smoke", "--runs", "0"]
    if words[1:3] == ["canary", "fire"]:
        words += ["--no-wait"]
    if words[1] == "run" and (words[2] in matrix_names() or words[2] == "my-model.yaml"):
        words = ["qualify", "plan", words[2]]
    return words


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every example file of the documents, a store with a run that began, and that run as a file."""
    folder = tmp_path_factory.mktemp("workplace")
    run = new_run(make_request(Asked(matrix="smoke", kernel="tiled-torch", device="cpu")))
    (folder / ".qualify").mkdir()
    with Store.open(str(folder / ".qualify" / "evidence.db")) as store:
        store.begin(run)
        store.export_run(run.id, folder / "run.jsonl.gz")
    for language in ("yaml", "python", "json"):
        for path, text in blocks(language):
            if path:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text)
    return folder


def execute(words: list[str], folder: Path) -> Ended:
    """Run a command in a folder, with the checkout importable."""
    if words[0] == "qualify":
        return call(*words[1:], cwd=folder)
    if words[0] == sys.executable and words[1].endswith(".py"):
        return server().run(words[2:], folder, 240, script=words[1])
    done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr)


@pytest.mark.parametrize("block", commands(), ids=" ; ".join)
def test_every_command_runs(block, workplace):
    """The commands that a document shows do what it says on this machine, or their cheap variants do."""
    for command in block:
        done = execute(variant(command), workplace)
        allowed = (0,) if command.startswith("python ") else COMPLETE  # a benchmark has no verdict
        assert done.code in allowed, f"{command}\n{done.out}{done.err}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_command_meets_the_file_of_an_earlier_one(page):
    """A new matrix is written over no other, so the commands of a page that write one name different files."""
    text = "".join(match["text"] for match in FENCE.finditer(page.read_text()) if match["language"] != "yaml")
    found = re.findall(r"^(?:\$ )?(qualify (?:check|model) .*(?:--save|--matrix) (\S+))", text, re.MULTILINE)
    names = [*dict(found).values()]
    assert len(names) == len(set(names)), found


def test_own_kernel_is_qualified_and_its_fault_is_found(workplace, tmp_path):
    """The tutorial's kernel passes; with the mask in the wrong corner, chunked fails and the census says why."""
    command = ["qualify", "run", "my-matrix.yaml", "--cards", "mykernels", "--db", str(tmp_path / "e.db"), "--json"]
    right = execute(command, workplace)
    assert 0 == right.code, right.out + right.err
    assert 3 == right.data["counts"]["verdicts"]["PASS"]
    source = (workplace / "mykernels" / "my_attention.py").read_text()
    faulty = tmp_path / "mykernels"
    faulty.mkdir()
    (faulty / "my_attention.py").write_text(source.replace("mask.tril(k.shape[2] - q.shape[2])", "mask.tril()"))
    (faulty / "my-attention.yaml").write_text((workplace / "mykernels" / "my-attention.yaml").read_text())
    command[4] = str(faulty)
    wrong = execute(command, workplace)
    verdicts = {case["id"].split("/")[1]: case for case in wrong.data["cases"]}
    assert {"prefill": "PASS", "chunked": "FAIL", "varlen": "PASS"} == {
        phase: case["verdict"] for phase, case in verdicts.items()
    }
    assert "all rows look like a mask aligned to the top left corner" in verdicts["chunked"]["reasons"][0]


def test_every_example_card_is_valid(workplace):
    """Matrices, models and kernel cards in the documents load."""
    for path, text in blocks("yaml"):
        if path.startswith("reference/canaries/"):
            assert load_canary(workplace / path, []).path == workplace / path
        elif path and re.search(r"^matrix:", text, re.MULTILINE):
            folder = (workplace / path).parent
            cards = (workplace / "mykernels",) if path == "my-matrix.yaml" else (folder,)
            assert load_matrix(str(workplace / path), cards).card.matrix
    assert "example-model" == load_model("example-model", (workplace / "reference",)).card.model


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links(page):
    """A link within the repository leads to a file, and to a heading of it."""
    for target, anchor in LINK.findall(FENCE.sub("", page.read_text())):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{page.name} links to {target}#{anchor}"


GUIDES = [page for page in PAGES if "docs" in page.parts and not READ_ALONE & set(page.parts)]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_guide_leads_to_the_glossary(page):
    """Whoever meets a word of qualify for the first time finds it in one step."""
    targets = {(page.parent / target).resolve() for target, _ in LINK.findall(page.read_text()) if target}
    assert ROOT / "docs" / "glossary.md" in {*targets, page}


@pytest.mark.parametrize("page", ["README.md", "docs/reference.md"])
def test_exit_codes(page):
    """The tables of exit codes name every code of the program and no other."""
    constants = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
    assert constants == {int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / page).read_text(), re.MULTILINE)}


def test_environment_variables():
    """Every variable of qualify's own that the program reads is in the reference, and none that it does not read."""
    sources = [*(ROOT / "qualify").rglob("*.py"), ROOT / "tests" / "conftest.py"]
    read = {name for path in sources for name in re.findall(r"QUALIFY_[A-Z_]+", path.read_text())}
    assert read == set(re.findall(r"QUALIFY_[A-Z_]+", (ROOT / "docs" / "reference.md").read_text()))


@pytest.mark.parametrize("command", ["plan smoke", "kernels", "doctor"])
def test_json_fields(command, tmp_path):
    """Every field that a command prints stands in its row of the reference."""
    done = execute(["qualify", *command.split(), "--json"], tmp_path)
    name = command.split()[0]
    row = next(line for line in (ROOT / "docs/reference.md").read_text().splitlines() if f"| `{name} --json`" in line)
    printed = done.data
    assert f"qualify.{name}/1" == printed.pop("schema")
    assert [] == [field for field in printed if f"`{field}" not in row]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_installs_qualify_from_pypi(page):
    """It is not there: a page installs a clone, or names the source behind an @."""
    assert [] == re.findall(r"pip install [^\n]*attn-qualify(?:\[[^]]*\])?(?! @|\[)[^\n]*", page.read_text())


def test_every_command_is_in_a_document():
    """Its help stands in a page, and its JSON in the reference's table."""
    pages = "".join(page.read_text() for page in PAGES)
    known = sorted(EXAMPLES)
    assert [] == [name for name in known if f"<!-- generated: help {name} -->" not in pages]
    rows = [line.split("|")[1] for line in (ROOT / "docs/reference.md").read_text().splitlines() if "--json` |" in line]
    assert [] == [name for name in known if not any(f"`{name} --json`" in row for row in rows)]


def test_every_kind_of_json_is_in_the_reference():
    """And the reference names no kind that nothing prints."""
    sources = "".join(path.read_text() for path in (ROOT / "qualify").rglob("*.py"))
    printed = set(re.findall(r"""emit_(?:json|line)\(\s*"([a-z-]+)\"""", sources))
    named = set(re.findall(r"`qualify\.([a-z-]+)/1`", (ROOT / "docs/reference.md").read_text()))
    assert printed == named


def shown_commands() -> list[str]:
    """Every qualify command of a block that is not run: in ``sh`` and ``text`` blocks, continued lines joined."""
    texts = [text.replace("\\\n", " ") for language in ("sh", "text") for _, text in blocks(language)]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    found = [
        re.split(r" +(?:[>|#;&]|>>|2>&1)", line)[0]
        for line in lines
        if re.match(r"qualify [a-z]", line) and "─" not in line
    ]
    return sorted(dict.fromkeys(found))


@cache
def parser() -> Any:
    """The command line: to make it takes longer than to parse one command."""
    return typer.main.get_command(entry._parser())


@pytest.mark.parametrize("command", shown_commands())
def test_commands_that_are_not_run_are_understood(command, tmp_path, monkeypatch):
    """Subcommand, options and arguments of each exist, so that nobody pastes what the command line refuses."""
    for folder in re.findall(r"--cards (\S+)", command):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    group, words = parser(), shlex.split(command)[1:]
    context = group.make_context("qualify", words)
    while hasattr(group, "resolve_command"):
        name, group, words = group.resolve_command(context, [*context._protected_args, *context.args])
        context = group.make_context(name, words, parent=context)


@pytest.mark.parametrize("text", [text for _, text in blocks("python")])
def test_python_is_python(text):
    """Scripts that need a GPU are not run here, but they compile."""
    assert compile(text, "document", "exec")
