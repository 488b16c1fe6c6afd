"""A driver that is too old: the real CUDA runtime asks a stand-in for libcuda that reports an old version."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_process import call, environment

STAND_IN = """
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 11040; return 0; }
"""


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_driver_that_is_too_old_is_named(tmp_path: Path) -> None:
    """The run ends with the device's exit code, the versions, and what to do; nothing is lost."""
    source = tmp_path / "libcuda.c"
    source.write_text(STAND_IN)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
    paths = f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    ended = call("run", "smoke", "--device", "cuda", cwd=tmp_path, env=environment(LD_LIBRARY_PATH=paths))
    assert 4 == ended.code
    assert "driver on your system is too old (found version 11040)" in ended.err
    assert "Upgrade the NVIDIA driver, or run with --device cpu." in ended.err
