"""Other interpreters for the tests: virtual environments with small distributions, made without a download."""

from __future__ import annotations

import base64
import hashlib
import os
import venv
from importlib.util import find_spec
from pathlib import Path


def make_environment(folder: Path, **versions: str) -> Path:
    """A virtual environment with those distributions and nothing else; the path of its python.

    A distribution ``fake_attn`` has one module of that name. A version of torch makes a torch that only says its
    version, and ``+cuNNN`` at its end for which CUDA it was built.
    """
    venv.create(folder, symlinks=True)
    for name, version in versions.items():
        install(folder, name, version)
    return folder / "bin" / "python"


def site_of(folder: Path) -> Path:
    """Where its packages lie."""
    (site,) = (folder / "lib").glob("python3*/site-packages")
    return site


def install(folder: Path, name: str, version: str, text: str = "x = 1\n") -> None:
    """A distribution with one module, as pip leaves it, instead of one of the same name."""
    site = site_of(folder)
    for old in site.glob(f"{name}-*.dist-info"):
        old.rename(folder / f"gone-{old.name}-{len(list(folder.glob('gone-*')))}")
    if name == "torch":
        cuda = version.partition("+cu")[2]
        (site / "torch").mkdir(exist_ok=True)
        (site / "torch" / "__init__.py").write_text("raise ImportError('nobody may import it')\n")
        built = repr(f"{cuda[:-1]}.{cuda[-1]}") if cuda else None
        text = f"__version__ = '{version}'\ncuda: Optional[str] = {built}\n"
    file = "torch/version.py" if name == "torch" else f"{name}.py"
    (site / file).write_text(text)
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{file},sha256={digest},{len(text)}\n{info.name}/METADATA,,\n")


def share_torch(folder: Path) -> None:
    """Lets the environment see what this interpreter has installed, torch first of all, after its own packages."""
    found = find_spec("torch")
    assert found is not None, "qualify needs it"
    (site_of(folder) / "shared.pth").write_text(f"{Path(str(found.origin)).parent.parent}\n")


def script(path: Path, text: str) -> Path:
    """An executable file."""
    path.write_text(text)
    os.chmod(path, 0o755)  # noqa: PTH101
    return path
