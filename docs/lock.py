"""Writes constraints.txt from the distributions of this environment: ``make lock`` runs it in a new environment."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "constraints.txt"
TORCHS_OWN = re.compile(r"pip==|wheel==|triton==|cuda-|nvidia-(?!ml-py)")
"""matches distributions that the lock leaves out: the installer, and dependencies of a CUDA build of torch"""
HEADER = """\
# The exact versions that `make run`, `make test` and CI install, as pip constraints.
# Written by `make lock` (another torch: make lock TORCH=2.x.y): a fresh environment, pip install torch==TORCH
# -e '.[run,dev]' without constraints, pip freeze. Local version labels (+cpu) are left out, so that every build of
# that torch fits; triton and the CUDA libraries are left out, because a CUDA build of torch pins its own.
"""


def freeze() -> str:
    """Installed versions, one to a line, sorted, without qualify itself and without local version labels."""
    command = [sys.executable, "-m", "pip", "freeze", "--exclude-editable", "--exclude", "attn-qualify", "--all"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pinned = (re.sub(r"\+[A-Za-z0-9.]+$", "", line) for line in listed if "==" in line)
    kept = (line for line in pinned if not TORCHS_OWN.match(line))
    return "".join(f"{line}\n" for line in sorted(kept, key=str.lower))


if __name__ == "__main__":
    FILE.write_text(HEADER + freeze())
