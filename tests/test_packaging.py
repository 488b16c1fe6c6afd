"""The wheel, not the checkout: what it holds, and that it works where nothing else is."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import sqlite3
import subprocess
import sys
import tomllib
import zipfile
from contextlib import closing
from importlib.metadata import distributions
from pathlib import Path

import pytest
from cli_process import call
from packaging.specifiers import SpecifierSet

from qualify import assets
from qualify.errors import INFRASTRUCTURE
from qualify.store import Store
from qualify.store.address import parse
from qualify.store.database import Database
from qualify.store.schema import VERSION_TABLE, head, upgrade

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, **options) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def test_the_lock_fits_every_python_that_qualify_admits():
    """Debian 12 has Python 3.11.2: one pinned distribution wanted 3.11.5, and `make test` could not install there."""
    admitted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = admitted.removeprefix(">=") + ".0"
    assert oldest == "3.11.0"
    wants = {it.name: it.metadata["Requires-Python"] for it in distributions() if "Requires-Python" in it.metadata}
    assert {} == {name: python for name, python in wants.items() if oldest not in SpecifierSet(python)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment that has the wheel, and sees this environment's other distributions."""
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # Written after the installation, so that pip does not find the checkout and uninstall it. A folder that a .pth
    # file names is searched, but its own .pth files, the checkout's among them, are not read.
    folders = {path for path in sys.path if Path(path).name == "site-packages"}
    (site / "others.pth").write_text("\n".join(sorted(folders)))
    return home / "bin"


def plain_environment() -> dict[str, str]:
    """The environment without what would bring the checkout back."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout: nothing says which files belong to it")
def test_wheel_holds_exactly_the_tracked_files(wheel):
    """The package and the folders of cards, every file that git does not ignore, and nothing else."""
    listed = run("git", "ls-files", "-co", "--exclude-standard", "qualify", *assets.FOLDERS, cwd=ROOT).splitlines()
    present = [name for name in listed if (ROOT / name).exists()]
    expected = {name if name.startswith("qualify/") else f"qualify/_shipped/{name}" for name in present}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert expected == names


def test_wheel_plans_from_an_empty_folder(installed, tmp_path):
    """The installed command finds its shipped cards without the checkout."""
    options = {"cwd": tmp_path, "env": plain_environment()}
    place = run(installed / "python", "-c", "import qualify; print(qualify.__file__)", **options)
    assert Path(place).is_relative_to(installed.parent)
    printed = run(installed / "qualify", "plan", "smoke", **options)
    cell = "llama-3.1-8b.tp4/prefill/b2.q277.k277/bf16/causal"
    assert f"{cell}/tiled-torch" in printed.splitlines()


def test_wheel_renders_and_migrates(installed, tmp_path):
    """Templates, migrations and the schema of a new store are in the wheel: one is made, and an older one migrated."""
    environment = plain_environment()
    database = Database(parse(str(tmp_path / "older.db")), busy_timeout_s=1)
    with database.migrating() as connection:
        upgrade(connection, "0026")
    database.close()
    for address in ("older.db", "new.db"):
        run(installed / "qualify", "db", "upgrade", "--db", address, cwd=tmp_path, env=environment)
        with closing(sqlite3.connect(tmp_path / address)) as made:
            assert [(head(),)] == made.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall()
    code = "from qualify import assets; print((assets.shipped('reports') / 'base.html').read_text())"
    assert "<!doctype html>" in run(installed / "python", "-c", code, cwd=tmp_path, env=environment)


@pytest.mark.parametrize("command", [["plan", "smoke"], ["kernels"], ["schema", "kernel"], ["db", "upgrade"]])
def test_base_install_needs_no_torch(installed, tmp_path, command):
    """Commands that touch no device work where torch and numpy cannot be imported."""
    block = "import sys; sys.modules['torch'] = sys.modules['numpy'] = None"
    code = f"{block}; from qualify.cli import main; sys.argv[1:] = {command!r}; main()"
    assert run(installed / "python", "-c", code, cwd=tmp_path, env=plain_environment())


WITHOUT_EXTRAS = """
import os, sys
for name in {blocked!r}:
    sys.modules[name] = None
import qualify.cards.load, qualify.cli.entry, qualify.fleet.local, qualify.store.store  # of all commands, once
from qualify.cli import main
for command in {commands!r}:
    if os.fork() == 0:
        print("--", *command, file=sys.stderr, flush=True)
        sys.argv[1:] = command
        main()
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
EXTRAS = {
    "run": ("torch", "numpy", "scipy", "pynvml"),
    "service": ("apscheduler", "fastapi", "httpx2", "jwt", "prometheus_client", "psycopg", "starlette", "uvicorn"),
    "fleet": ("ray",),
    "models": ("huggingface_hub",),
    "sign": ("cryptography", "securesystemslib", "sigstore"),
}


def test_what_needs_an_extra_says_so(installed, tmp_path):
    """Where only the base is installed each command names what to install, and ends with 4."""
    Store.open(str(tmp_path / "e.db")).close()
    (tmp_path / "key.pem").write_text("no key")
    needed = {
        "web --db e.db": "service",
        "canary list": "service",
        "db upgrade --db postgresql://localhost/none": "service",
        "selftest": "run",
        "duel a b smoke": "run",
        "history --db e.db": "run",
        "node smoke": "run",
        "fleet smoke": "fleet",
        "check Qwen/Qwen3-8B": "models",
        "verify latest --db e.db --signed-by key.pem": "sign",
    }
    script = WITHOUT_EXTRAS.format(
        blocked=[name for names in EXTRAS.values() for name in names], commands=[words.split() for words in needed]
    )
    command = [installed / "python", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=plain_environment(), check=False)
    told = dict(part.split("\n", 1) for part in done.stderr.split("-- ")[1:])
    assert [] == [words for words, text in told.items() if "internal error" in text or "Traceback" in text]
    assert {} == {words: told[words] for words, extra in needed.items() if f"attn-qualify[{extra}]" not in told[words]}
    codes = dict(zip(needed, re.findall(r"^\d+$", done.stdout, re.MULTILINE), strict=True))
    assert {} == {words: code for words, code in codes.items() if code != str(INFRASTRUCTURE)}


@pytest.fixture
def suite(tmp_path):
    """The kernel and the test of docs/testing.md, as somebody has them in a project of their own."""
    text = (ROOT / "docs" / "testing.md").read_text()
    for name, code in re.findall(r"<!-- file: tested/(\S+) -->\n```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(code)
    return tmp_path


def test_the_kernel_of_the_documentation_is_right(suite, forked, monkeypatch):
    """Its test passes, as it stands there."""
    monkeypatch.syspath_prepend(suite)
    try:
        runpy.run_path(str(suite / "test_mykernel.py"))["test_attend"]()
    finally:
        del sys.modules["mykernel"]


def test_a_kernel_is_qualified_in_the_test_suite_of_another_project(installed, suite):
    """Through the fixture a mask in the wrong corner fails, with a command that repeats it, from any environment."""
    wrong = (suite / "mykernel.py").read_text().replace(".tril((k1 - k0) - (q1 - q0))", ".tril()")
    (suite / "wrong.py").write_text(wrong)
    (suite / "test_wrong.py").write_text(
        "from wrong import attend\n\n\ndef test_attend(qualify_kernel):\n"
        "    qualify_kernel(attend, phases={'chunked': {'chunk': 33, 'context': 100}})\n"
    )
    others = ("cacheprovider", "schemathesis", "hypothesispytest", "anyio")
    without = [word for plugin in others for word in ("-p", f"no:{plugin}")]
    command = [installed / "python", "-m", "pytest", "-q", *without, "--qualify-device", "cpu", "test_wrong.py"]
    options = {"cwd": suite, "env": plain_environment(), "text": True}
    ended = subprocess.run(command, capture_output=True, check=False, **options)
    told = ended.stdout
    assert 1 == ended.returncode, told + ended.stderr
    assert "1 failed" in told
    assert "KernelNotQualified: attend is not correct: 1 of 1 cases" in told
    assert "all rows look like a mask aligned to the top left corner" in told
    found = re.search(r"repeat it: qualify (repro call.tp1/chunked/b1.q33.k133/bf16/causal/attend --run .*)", told)
    script = call(*shlex.split(found[1]), cwd=suite)
    assert 0 == script.code, script.out + script.err
    assert script.out.startswith('"""census: call.tp1/chunked/b1.q33.k133/bf16/causal/attend')
