"""Where numpy and scipy are missing, one message says so."""

from __future__ import annotations

import pytest

from qualify.errors import InfrastructureError
from qualify.statistics import installed


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setattr(installed, "find_spec", lambda name: None)
    told = r"qualify duel needs numpy and scipy.*pip install 'attn-qualify\[run\]'"
    with pytest.raises(InfrastructureError, match=told):
        installed.check_installed("qualify duel")
