"""The digest of an installed distribution, from the text of its RECORD."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

from qualify.plan.installed import digest_of

WHEEL = ("lib/core.py,sha256=Zm9v,10", "lib/kernels.so,sha256=YmFy,900", '"lib/a, b.py",sha256=YmF6,5')
PIP = (
    "../../../bin/tool,sha256=AAAA,227",
    "lib-1.0.dist-info/INSTALLER,sha256=BBBB,4",
    "lib-1.0.dist-info/RECORD,,",
    "lib/__pycache__/core.cpython-311.pyc,,",
)
UV = (
    "../../../bin/tool,sha256=CCCC,231",
    "lib-1.0.dist-info/INSTALLER,sha256=DDDD,2",
    "lib-1.0.dist-info/REQUESTED,sha256=EEEE,0",
    "lib-1.0.dist-info/RECORD,,",
)


def record(*lines: str) -> str:
    """The text of a RECORD."""
    return "\n".join(lines) + "\n"


def test_a_wheel_has_one_digest_wherever_it_is_installed() -> None:
    """Scripts name their interpreter, installers leave notes, and each writes its lines in its own order."""
    assert digest_of(record(*WHEEL, *PIP), {}) == digest_of(record(*UV, *reversed(WHEEL)), {})


def test_whatever_a_kernel_could_use_counts() -> None:
    """Another promise for a file, one file more or less, and a file that is not as promised."""
    known = digest_of(record(*WHEEL, *PIP), {})
    changed = (
        digest_of(record(WHEEL[0].replace("Zm9v", "Zm9w"), *WHEEL[1:], *PIP), {}),
        digest_of(record(*WHEEL[1:], *PIP), {}),
        digest_of(record(*WHEEL, "lib/more.py,sha256=Zm9v,10", *PIP), {}),
        digest_of(record(*WHEEL, *PIP), {"lib/core.py": "00"}),
        digest_of(record(*WHEEL, *PIP), {"lib/core.py": ""}),
    )
    assert 6 == len({known, *changed})


def test_no_record_is_no_digest() -> None:
    """As with an installation in development by a tool that writes none."""
    assert "" == digest_of("", {})


def test_pip_in_two_environments(tmp_path: Path) -> None:
    """A real wheel with a command, installed into two virtual environments."""
    wheel = write_wheel(tmp_path)
    records = [installed(wheel, tmp_path / name) for name in ("one", "another")]
    assert all("bin/tool" in text for text in records)
    assert records[0] != records[1]
    assert digest_of(records[0], {}) == digest_of(records[1], {})


def write_wheel(folder: Path) -> Path:
    """A wheel with one module and one command."""
    about = "lib-1.0.dist-info"
    files = {
        "lib.py": "def main(): pass\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: lib\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": "[console_scripts]\ntool = lib:main\n",
    }
    promises = [f"{name},sha256={_encoded(text)},{len(text)}" for name, text in files.items()]
    files[f"{about}/RECORD"] = record(*promises, f"{about}/RECORD,,")
    path = folder / "lib-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


def _encoded(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def installed(wheel: Path, folder: Path) -> str:
    """Install it into a new virtual environment; the text of its RECORD there."""
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--quiet", "--no-index", wheel]
    subprocess.run(pip, check=True)
    (text,) = folder.glob("lib/python*/site-packages/lib-1.0.dist-info/RECORD")
    return text.read_text()
