"""SHA-256 of files, remembered by what the file system says about them: a second look costs no more than a listing.

Whoever can write this memory, or set the clock and the times of a file, can make it wrong. So runs at
level full and those of canaries do not use it: they read every file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from qualify.files import replacing

SETTLED_NS = 2_000_000_000
"""a file that changed less than this ago is hashed again: it may change once more and keep its time and size"""
LARGEST = 200_000
"""files that are remembered; beyond that the memory starts empty"""
_HEX = re.compile(r"[0-9a-f]{64}")

Known = dict[str, Any]
"""mark and digest by path, as they are read: any of them may be damaged"""


def digests_of(paths: Iterable[str], cache: Path | None) -> dict[str, str]:
    """The digests of the files by path; one that is not there, or cannot be read, is left out.

    Args:
        cache: where digests are remembered by path, size, times of change and inode. A damaged file is computed again,
            one that cannot be written only costs time. None = read every file, and remember nothing.
    """
    now_ns = time.time_ns()
    looks = {path: look for path in paths if (look := _look(path))}
    known = _read(cache) if cache else {}
    found = {path: digest for path, (mark, _) in looks.items() if (digest := _remembered(known.get(path), mark))}
    missing = [path for path in looks if path not in found]
    if not missing:
        return found
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        computed = {path: digest for path, digest in zip(missing, pool.map(_sha256, missing), strict=True) if digest}
    settled = {path: (looks[path][0], digest) for path, digest in computed.items() if _settled(looks[path][1], now_ns)}
    if settled and cache:
        _remember(cache, settled)
    return found | computed


def _look(path: str) -> tuple[str, int] | None:
    """What changes with the content of the file, and when it changed (ns); None where it is no file, or gone."""
    try:
        seen = os.stat(path)  # noqa: PTH116 - thousands of them
    except OSError:
        return None
    if not stat.S_ISREG(seen.st_mode):  # to open a pipe would wait for its writer
        return None
    mark = f"{seen.st_size} {seen.st_mtime_ns} {seen.st_ctime_ns} {seen.st_ino}"
    return mark, max(seen.st_mtime_ns, seen.st_ctime_ns)


def _settled(changed_ns: int, now_ns: int) -> bool:
    return now_ns - changed_ns > SETTLED_NS


def _sha256(path: str) -> str:
    """The digest; empty where the file cannot be read."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _at_once(path: str, flags: int) -> int:
    """Open it without waiting for a pipe's writer, should one have taken the place of the file."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read(cache: Path) -> Known:
    """What is remembered; nothing where that cannot be read."""
    try:
        seen = cache.stat()
        return _parsed(cache, seen.st_size, seen.st_mtime_ns, seen.st_ino)
    except (OSError, ValueError, RecursionError):
        return {}


@lru_cache(maxsize=1)
def _parsed(cache: Path, *_state: int) -> Known:
    """The content in that state of the file: a service asks every few seconds. Do not change it."""
    content = json.loads(cache.read_text())
    return content if isinstance(content, dict) else {}


def _remembered(entry: Any, mark: str) -> str:
    """The digest of a file in the state ``mark``; empty where another state is remembered, or what is damaged."""
    match entry:
        case [str(before), str(digest)] if before == mark and _HEX.fullmatch(digest):
            return digest
    return ""


def _remember(cache: Path, added: Mapping[str, tuple[str, str]]) -> None:
    """Adds to what other processes remembered meanwhile, and forgets the files that have gone."""
    known = _read(cache)
    if len(known) >= LARGEST:
        known = {}
    there = {path: entry for path, entry in known.items() if os.path.exists(path)}  # noqa: PTH110 - thousands of them
    kept = {**there, **added}
    with suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        with replacing(cache) as file:
            file.write(json.dumps(kept, separators=(",", ":")).encode())
