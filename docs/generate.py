"""Writes the generated parts of the documents and the schemas; ``--check`` only names files that are out of date.

::

    python docs/generate.py           writes docs/schema/*.json, qualify/store/new.sql, and the marked blocks of
                                      README.md and docs/**/*.md
    python docs/generate.py --check   exits 1 and names the files that differ from what it would write

A marked block stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import sys

from generating.documents import documents
from generating.places import ROOT


def main() -> int:
    """Write or check; returns the exit code, 1 where ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    checks = parser.parse_args().check
    drifted = {path: text for path, text in documents() if not path.exists() or path.read_text() != text}
    for path, text in drifted.items():
        if checks:
            print(f"{path.relative_to(ROOT)} differs from what `make docs` writes", file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if checks and drifted else 0


if __name__ == "__main__":
    sys.exit(main())
