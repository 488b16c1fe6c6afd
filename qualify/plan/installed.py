"""The files of an installed distribution: what its RECORD promises of each, and which are not as promised."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
from collections.abc import Mapping
from functools import lru_cache

SUFFIXES = (
    *(".py", ".pyx", ".so", ".pyd", ".dylib", ".cu", ".cuh", ".c", ".cc", ".cpp", ".h", ".hpp", ".inl"),
    *(".ptx", ".cubin", ".fatbin", ".hsaco"),
)
"""what runs, or is compiled to run"""
_COMMANDS = ("../", "/")
_NOT_RUN = (*_COMMANDS, "torch/include/")
"""parts that the kernels do not use: commands, and headers for extensions, which are three quarters of torch's files"""

Files = dict[str, tuple[str, str]]
"""path and promised sha256 by name; a promise is empty where there is none"""


def runs(name: str) -> bool:
    """Whether a file of that name runs, or is compiled to run."""
    return name.endswith(SUFFIXES) or ".so." in name


@lru_cache(maxsize=16)
def files_of(record: str, root: str) -> Files:
    """The files that count, from the text of a RECORD; a file without a promise counts only if it runs.

    The answer is cached, because a process asks more than once, and torch has thousands of files: do not change it.

    Args:
        root: the folder that the RECORD counts from.
    """
    root, files = os.path.abspath(root), {}  # noqa: PTH100 - joined with thousands of names
    for path, *promised in filter(None, csv.reader(record.splitlines())):
        if path.startswith(_NOT_RUN) or ".dist-info/" in path:
            continue
        digest = _sha256_of(promised[0]) if promised else ""
        if digest or runs(path):
            files[path] = (f"{root}/{path}", digest)
    return files


def _sha256_of(promise: str) -> str:
    """The digest that a RECORD promises; empty where it promises none, or none that can be read."""
    kind, _, encoded = promise.partition("=")
    try:
        return base64.urlsafe_b64decode(f"{encoded}==").hex() if kind == "sha256" else ""
    except ValueError:
        return ""


def not_as_promised(files: Files, digests: Mapping[str, str]) -> dict[str, str]:
    """Digests by name of files that RECORD promises otherwise, or not at all; empty for a file that is gone."""
    found = {name: (digests.get(path, ""), promise) for name, (path, promise) in files.items()}
    return {name: seen for name, (seen, promise) in found.items() if seen != promise}


def digest_of(record: str, other: Mapping[str, str]) -> str:
    """Digest of a distribution: of what its RECORD promises and what is not as promised; empty where it has no RECORD.

    What the installer writes itself does not count: commands, which name the folder of their interpreter, and notes
    beside the metadata. So a wheel has the same digest in every environment, whether pip or uv installed it.
    """
    promised = [
        line
        for line in record.splitlines()
        if not line.startswith(_COMMANDS) and ".dist-info/" not in line and not line.endswith(",,")
    ]
    text = "\n".join([*sorted(promised), *(f"{name} {digest}" for name, digest in sorted(other.items()))])
    return hashlib.sha256(text.encode()).hexdigest() if record else ""
