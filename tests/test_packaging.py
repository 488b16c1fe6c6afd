"""The wheel, not the checkout: what it holds, and that it works where nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from qualify import assets

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, **options) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


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
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
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
    place = run(installed / "python", "-c", "import qualify; print(qualify.__file__)", cwd=tmp_path)
    assert Path(place).is_relative_to(installed.parent)
    printed = run(installed / "qualify", "plan", "smoke", cwd=tmp_path, env=plain_environment())
    cell = "llama-3.1-8b.tp4/prefill/b2.q333.k333/bf16/causal"
    assert f"{cell}/tiled-torch" in printed.splitlines()


def test_wheel_renders_and_migrates(installed, tmp_path):
    """Templates and migrations are in the wheel: a store is made, and a page environment finds its template."""
    environment = plain_environment()
    run(installed / "qualify", "db", "upgrade", cwd=tmp_path, env=environment)
    assert (tmp_path / ".qualify" / "evidence.db").stat().st_size > 0
    code = "from qualify import assets; print((assets.shipped('reports') / 'base.html').read_text())"
    assert "<!doctype html>" in run(installed / "python", "-c", code, cwd=tmp_path, env=environment)


@pytest.mark.parametrize("command", [["plan", "smoke"], ["kernels"], ["schema", "kernel"], ["db", "upgrade"]])
def test_base_install_needs_no_torch(installed, tmp_path, command):
    """Commands that touch no device work where torch and numpy cannot be imported."""
    block = "import sys; sys.modules['torch'] = sys.modules['numpy'] = None"
    code = f"{block}; from qualify.cli import main; sys.argv[1:] = {command!r}; main()"
    assert run(installed / "python", "-c", code, cwd=tmp_path, env=plain_environment())


def test_canaries_need_their_extra(installed, tmp_path):
    """Without apscheduler the command says what to install."""
    code = (
        "import sys; sys.modules['apscheduler'] = None; from qualify.cli import main; sys.argv[1:] = ['canary', 'list']"
    )
    command = [installed / "python", "-c", f"{code}; main()"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=plain_environment(), check=False)
    assert 4 == ended.returncode
    assert "pip install 'attn-qualify[service]'" in ended.stderr
