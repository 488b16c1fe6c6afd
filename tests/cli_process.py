"""Runs the real ``qualify`` in a process of its own, on tiny matrices and the kernels of third parties."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import qualify

ROOT = Path(qualify.__file__).resolve().parents[1]
THIRD_PARTY = Path(__file__).parent / "fleet" / "third_party.py"

CARD = """\
kernel: {name}
generation: portable
adapter: call
entry: {module}:{function}
requires: {{device: cpu}}
claims:
  dtypes: [bf16, fp32]
  head_dim: {{max: 64}}
  layouts: [packed]
  masks: [full, causal]
  features: [ragged]
  deterministic: true
  empty_row: {{out: any, lse: any}}
accuracy: {{bf16: bf16, fp32: fp32}}
witness: {{must_match: [".+"]}}
"""

MATRIX = """\
matrix: {name}
models:
  - model: toy
    geometry: {{groups: [{{layers: [0], heads_q: 2, heads_kv: 2, head_dim: 32, mask: causal}}]}}
phases:
  prefill: {{seqlen: {seqlens}}}
dtypes: {dtypes}
kernels: {kernels}
exclude: {exclude}
policy: {{timeout_s: {timeout_s}, compile_timeout_s: {timeout_s}}}
"""


STEERING = {"QUALIFY_DB", "QUALIFY_TRACEBACK", "NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS"}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The one JSON object on stdout; strict, so NaN is an error."""
        return json.loads(self.out, parse_constant=refuse_constant)


def refuse_constant(name: str) -> None:
    """What json calls for NaN and the infinities."""
    raise AssertionError(f"{name} is not JSON")


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with the checkout importable, one thread, and without what steers the output."""
    kept = {name: value for name, value in os.environ.items() if name not in STEERING}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **changes}


def command(*arguments: object) -> list[str]:
    """The command line that runs it with this interpreter."""
    return [sys.executable, "-m", "qualify", *map(str, arguments)]


def call(*arguments: object, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 240) -> Ended:
    """Runs one command to its end. No command may show a traceback."""
    ended = subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=env or environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert "Traceback" not in ended.stderr + ended.stdout, ended.stderr + ended.stdout
    assert "internal error" not in ended.stderr, ended.stderr
    return Ended(code=ended.returncode, out=ended.stdout, err=ended.stderr)


def write_cards(folder: Path, *functions: str) -> Path:
    """A --cards folder with one card for each function of third_party.py, and that module."""
    folder.mkdir(exist_ok=True)
    shutil.copy(THIRD_PARTY, folder / "third_party.py")
    for function in functions:
        write_card(folder, function.replace("_", "-"), "third_party", function)
    return folder


def write_card(folder: Path, name: str, module: str, function: str = "attend") -> None:
    """A card whose entry is that function."""
    (folder / f"{name}.yaml").write_text(CARD.format(name=name, module=module, function=function))


def write_matrix(
    path: Path,
    *kernels: str,
    seqlens: tuple[int, ...] = (8,),
    dtypes: tuple[str, ...] = ("fp32",),
    exclude: tuple[str, ...] = (),
    timeout_s: float = 60,
) -> Path:
    """A matrix of tiny prefills of one attention layer."""
    text = MATRIX.format(
        name=path.stem,
        seqlens=list(seqlens),
        dtypes=json.dumps(dtypes),
        kernels=json.dumps(kernels or ("tiled-torch",)),
        exclude=json.dumps(exclude),
        timeout_s=timeout_s,
    )
    path.write_text(text)
    return path
