"""deploy/systemd: both units read the same cards and settings, and what their first lines name is read."""

from __future__ import annotations

import re
from pathlib import Path

from qualify.store.address import PASSWORD_FILE

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
CANARY, WEB = ((UNITS / f"qualify-{name}.service").read_text() for name in ("canary", "web"))


def test_the_site_knows_the_kernels_of_the_canaries():
    """It judges by the same kernel cards; systemd makes their folder, without which neither starts."""
    for line in (r"^ExecStart=.* (--cards \S+)$", r"^(ConfigurationDirectory=.*)$", r"^(EnvironmentFile=.*)$"):
        here, there = (re.findall(line, unit, re.MULTILINE) for unit in (CANARY, WEB))
        assert (1, here) == (len(here), there), line


def test_the_password_is_named_by_its_variable():
    """A file alone is not read."""
    assert "/etc/qualify/password" in CANARY
    assert f"{PASSWORD_FILE}=/etc/qualify/password" in CANARY
