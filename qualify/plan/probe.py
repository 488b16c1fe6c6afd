"""Says what an interpreter has. It runs in that interpreter, by its path, on the standard library alone.

::

    python probe.py {"distributions": ["torch"], "modules": ["mine"], "group": "qualify.adapters"}

The last line of stdout is one JSON object. None of the packages is imported. Python 3.9 must be able to read this file,
so that an old interpreter is told apart from none.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this file's folder, whose modules are named like Python's own

import importlib.util
import json
import platform
import re
from importlib import metadata
from pathlib import Path

VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]*)['\"]", re.MULTILINE)
CUDA = re.compile(r"^cuda\b[^=\n]*=\s*(?:None|['\"]([^'\"]*)['\"])", re.MULTILINE)


def main() -> None:
    """Answer one question."""
    asked = json.loads(sys.argv[1])
    answer = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch(),
        "distributions": distributions(),
        "records": {name: record for name in asked["distributions"] for record in records(name)},
        "modules": {name: module for name in asked["modules"] for module in modules(name)},
        "adapters": adapters(asked["group"]),
    }
    print("\n" + json.dumps(answer), flush=True)


def distributions() -> dict[str, str]:
    """Versions by normalised name; the first on the path counts, as for an import."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        said = one.metadata
        if "Name" in said and "Version" in said:  # while pip replaces a distribution it may have neither
            found.setdefault(re.sub(r"[-_.]+", "-", said["Name"]).lower(), said["Version"])
    return found


def records(name: str) -> list[dict[str, str]]:
    """What an installed distribution says of its files; nothing where it is not installed."""
    try:
        one = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return []
    return [
        {
            "version": one.version or "",
            "root": str(one.locate_file("")),
            "record": one.read_text("RECORD") or "",
            "direct_url": one.read_text("direct_url.json") or "{}",
        }
    ]


def modules(name: str) -> list[dict[str, object]]:
    """Where a top-level module or package stands; nothing where there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return []
    origin = spec.origin if spec.has_location else None
    places = spec.submodule_search_locations
    return [{"origin": origin, "places": None if places is None else list(places)}]


def adapters(group: str) -> dict[str, str]:
    """The distributions that offer entry points of a group, by the entry point's name."""
    try:
        offered = metadata.entry_points(group=group)
    except TypeError:  # Python 3.9 takes no group, and is refused anyway
        return {}
    return {entry.name: entry.dist.name for entry in offered if entry.dist is not None}


def torch() -> dict[str, str] | None:
    """Version of torch, and the CUDA that it was built for (empty: none, ``?``: not told); None without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    file = Path(next(iter(spec.submodule_search_locations))) / "version.py"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    version, cuda = VERSION.search(text), CUDA.search(text)
    if version is None:
        return {"version": "".join(one["version"] for one in records("torch")), "built_for": "?"}
    return {"version": version.group(1), "built_for": cuda.group(1) or "" if cuda else "?"}


if __name__ == "__main__":
    main()
