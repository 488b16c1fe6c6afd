"""``qualify selftest`` as a process."""

from __future__ import annotations

import json

from cli_process import call

from qualify.run.selftest.workloads import SHAPES


def test_a_few_faults(tmp_path):
    """It prints the contract's JSON, writes both files, stores the result, and exits 0 where the floors hold."""
    ended = call("selftest", "--fault", "lse-*", "--runs", "1", "--level", "smoke", "--json", cwd=tmp_path)
    assert 0 == ended.code, ended.err
    assert "qualify.selftest/1" == ended.data["schema"]
    assert (3, 3, [], len(SHAPES), []) == tuple(
        ended.data[name] for name in ("faults", "caught", "missed", "correct_runs", "false_alarms")
    )
    assert 3 == json.loads((tmp_path / "out" / "selftest.json").read_text())["faults"]
    assert (tmp_path / "out" / "selftest.html").exists()
    assert (tmp_path / ".qualify" / "evidence.db").exists()
    assert "USDT" not in ended.err


def test_nothing_matches(tmp_path):
    """A glob that matches no fault exits 3 and leaves nothing behind."""
    ended = call("selftest", "--fault", "nothing-like-it", cwd=tmp_path)
    assert 3 == ended.code
    assert [] == list(tmp_path.iterdir())
