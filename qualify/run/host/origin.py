"""Which line of a kernel raised an exception."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import torch

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""folders of packages that were installed"""
PASSED = tuple(f"{folder}/" for folder in (Path(__file__).parents[2], Path(torch.__file__).parent))
"""folders of qualify and torch, through which the calls of a kernel go"""
PYTHON = f"{Path(os.__file__).parent}/"


def place_of(error: BaseException) -> str:
    """``file.py:LINE`` of the innermost frame in the author's own code; else of that in a library; else empty."""
    frames = [(Path(frame.f_code.co_filename), line) for frame, line in traceback.walk_tb(error.__traceback__)]
    passed = [(path, line) for path, line in frames if path.suffix == ".py" and not str(path).startswith(PASSED)]
    libraries = [(path, line) for path, line in passed if INSTALLED & {*path.parts}]
    own = [each for each in passed if each not in libraries and not str(each[0]).startswith(PYTHON)]
    return next((f"{path.name}:{line}" for path, line in reversed(own or libraries)), "")
