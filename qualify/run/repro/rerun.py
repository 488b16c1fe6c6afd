"""The script for a failure that only qualify can show: it runs a command of qualify."""

from __future__ import annotations

import subprocess
import sys


def rerun(*words: str) -> None:
    """Run a command of qualify and exit as it does: 1 while the case still fails."""
    sys.exit(subprocess.run([sys.executable, "-m", *words], check=False).returncode)
