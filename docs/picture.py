"""Takes docs/pictures/report.png: the report of a real run, in Chromium.

::

    python docs/picture.py [--chromium PATH]

The run is that of docs/tutorial.md, with the kernel whose mask is aligned to the wrong corner.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).resolve().parent
PICTURE = DOCS / "pictures" / "report.png"
FILE = re.compile(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RIGHT, WRONG = "mask.tril(k.shape[2] - q.shape[2])", "mask.tril()"
SIZE = (1120, 800)
"""width and height of the window in px; the picture is its upper part"""
LARGEST_BYTES = 200_000


def broken_report(folder: Path) -> Path:
    """Run the tutorial's broken kernel in an empty folder; returns the path of the report."""
    for path, text in FILE.findall((DOCS / "tutorial.md").read_text()):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text.replace(RIGHT, WRONG))
    command = [sys.executable, "-m", "qualify", "run", "my-matrix.yaml", "--cards", "mykernels", "--device", "cpu"]
    ended = subprocess.run(command, cwd=folder, check=False)
    if ended.returncode != 1:
        raise SystemExit(f"the broken kernel must fail with exit 1, and the run ended with {ended.returncode}")
    (report,) = folder.glob("out/*/report.html")
    return report


def take(report: Path, chromium: str) -> None:
    """Take a screenshot of the first screen of a report."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light")
        page.goto(report.as_uri())
        page.screenshot(path=PICTURE)
        browser.close()


def main() -> None:
    """Run the kernel, take the picture, and refuse a picture that is too large for a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    there = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    parser.add_argument("--chromium", default=there, help="Default: chromium-headless-shell or chromium on the PATH.")
    chromium = parser.parse_args().chromium
    if not chromium:
        raise SystemExit("no chromium is on the PATH: install it, or name it with --chromium")
    with tempfile.TemporaryDirectory() as folder:
        take(broken_report(Path(folder)), chromium)
    size = PICTURE.stat().st_size
    print(f"wrote docs/pictures/report.png, {size:,} bytes")
    if size > LARGEST_BYTES:
        raise SystemExit(f"that is more than {LARGEST_BYTES:,} bytes: make SIZE smaller")


if __name__ == "__main__":
    main()
