"""Run by the interpreter of another environment: imports there what a host imports, and forks hosts (forking.py)."""

import gc
import importlib.util
import socket
import sys
from pathlib import Path


def load(name, file, folders=None):
    """This very module, whatever else is installed here."""
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    package, answering, owner = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    load("qualify", package / "__init__.py", [str(package)])
    gc.disable()
    forking = load("forking", Path(__file__).with_name("forking.py"))
    gc.freeze()
    gc.enable()
    forking.be_nursery(socket.socket(fileno=answering), owner, owner)
