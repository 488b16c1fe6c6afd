"""Cases per second of the smoke matrix, including the start of the worker and the report."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time

from common import KERNEL, command_line, machine, select, show, small


def main() -> None:
    """Run the matrix once in an empty folder."""
    command_line(__doc__).parse_args()
    narrow = ["--select", select(), "--kernel", KERNEL] if small() else []
    command = [sys.executable, "-m", "qualify", "run", "smoke", "--device", "cpu", "--db", "e.db", "--json", *narrow]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        took = time.perf_counter() - began
    counts = json.loads(done.stdout)["counts"]["outcomes"]
    machine()
    show("qualify run smoke on the CPU", took, "s")
    show("cases measured", counts["measured"], "cases")
    show("cases per second", counts["measured"] / took, "cases/s")


if __name__ == "__main__":
    main()
