"""Whether what the statistics need is installed."""

from __future__ import annotations

from importlib.util import find_spec

from qualify.errors import InfrastructureError

NEEDED = ("numpy", "scipy")


def missing() -> list[str]:
    """Those of numpy and scipy that are not installed."""
    return [name for name in NEEDED if find_spec(name) is None]


def install() -> str:
    """The command that installs them."""
    return "pip install 'attn-qualify[run]'"


def check_installed(what: str) -> None:
    """Raises InfrastructureError where numpy or scipy is missing.

    Args:
        what: the command that needs them.
    """
    if names := missing():
        raise InfrastructureError(
            f"{what} needs {' and '.join(names)}, which this interpreter lacks: qualify was installed without its "
            f"extra `run`. Install it: {install()}"
        )
