"""Starts a host in whatever Python runs this file: qualify is taken from here, whatever else is installed there."""

import gc
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""the package qualify"""


def main() -> None:
    """Import this very qualify, and serve."""
    file = ROOT / "__init__.py"
    spec = importlib.util.spec_from_file_location("qualify", file, submodule_search_locations=[str(ROOT)])
    assert spec is not None, "a file with this suffix has a loader"
    assert spec.loader is not None, "a file with this suffix has a loader"
    sys.modules["qualify"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    from qualify.run.process.parent import follow_parent, keep_to_itself, leave_others_alone  # noqa: PLC0415

    # Before torch, whose import takes seconds: until then another host could open what this one shares with the judge.
    follow_parent(int(sys.argv[3]))
    leave_others_alone()
    keep_to_itself()
    gc.disable()  # torch makes a million objects while it is imported, and none of them is garbage
    from qualify.run.host.serve import main as serve  # noqa: PLC0415 - only now it is this qualify's

    gc.freeze()
    gc.enable()
    serve()


if __name__ == "__main__":
    main()
