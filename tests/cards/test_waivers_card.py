"""The waivers file: normal form, refusals with their places, and the matrix that names it."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from qualify.cards.load import load_matrix
from qualify.cards.waivers import LONGEST_DAYS, holds_waivers, load_waivers
from qualify.errors import CardError

TEXT = """\
# failures that we ship with
waivers:
  - id: fa3-window
    select: "*/decode/*/flash-attn-3"
    checks: lse
    owner: jane@example.com
    reason: fixed upstream
    link: Dao-AILab/flash-attention#1
    created: 2026-11-01
    expires: 2027-01-30

  - {id: b, select: "*", checks: [census, crash], owner: x, reason: y, link: https://example.com/1,
     created: 2026-11-01, expires: 2026-11-01, stack: {device: "NVIDIA H100*", torch: ">=2.11,<2.12"}}
"""


def test_full_example(write: Any) -> None:
    """Every key arrives; a lone check is a tuple, days are dates, and each waiver knows its line."""
    path = write(TEXT)
    first, second = load_waivers(path)
    assert ("fa3-window", "*/decode/*/flash-attn-3", ("lse",)) == (first.id, first.select, first.checks)
    assert (date(2026, 11, 1), date(2027, 1, 30), {}) == (first.created, first.expires, first.stack)
    assert ("jane@example.com", "fixed upstream", "Dao-AILab/flash-attention#1") == (
        first.owner,
        first.reason,
        first.link,
    )
    assert (f"{path}:3", f"{path}:12") == (first.place, second.place)
    assert {"device": "NVIDIA H100*", "torch": ">=2.11,<2.12"} == second.stack


@pytest.mark.parametrize("word", ["nan", "long_context", "surroundings", "leak", "lse", "timing", "witness", "hang"])
def test_every_failure_can_be_waived(write: Any, word: str) -> None:
    """Whatever check, measurement or outcome makes a case fail."""
    first, _ = load_waivers(write(TEXT.replace("checks: lse", f"checks: {word}")))
    assert (word,) == first.checks


def test_an_empty_list_is_a_file(write: Any) -> None:
    """The last waiver may go and the file stay."""
    assert () == load_waivers(write("waivers: []\n"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("id: fa3-window", "id: b", ":12:10: waivers[1].id: names b again, after waivers[0]; rename one"),
        ("checks: lse", "checks: lsee", ":5:13: waivers[0].checks: must be one of contract, census"),
        ("checks: lse", "checks: surounding", 'but is "surounding"; perhaps you meant surroundings'),
        ("checks: lse", "checks: []", ":5:13: waivers[0].checks: must hold at least 1 value"),
        ("checks: lse", 'checks: "*"', ":5:13: waivers[0].checks: must be one of"),
        ("    owner: jane@example.com\n", "", ":3:5: waivers[0].owner: is missing (who answers for it); add it"),
        ("link: Dao-AILab/flash-attention#1", "link: ask jane", ":8:11: waivers[0].link: must be a URL"),
        ("created: 2026-11-01\n", "created: 2026-11-31\n", ":9:14: waivers[0].created: must be a day that exists"),
        ("created: 2026-11-01\n", "created: yesterday\n", ":9:14: waivers[0].created: must be a day like 2026-12-31"),
        ("expires: 2027-01-30", "expires: 2026-10-31", ":10:14: waivers[0].expires: is 2026-10-31, before created"),
        (
            "expires: 2027-01-30",
            "expires: 2027-01-31",
            ":10:14: waivers[0].expires: is 2027-01-31, 91 days after created; at most 90 are allowed, until 2027-",
        ),
        ('">=2.11,<2.12"', '"=>2.11"', "waivers[1].stack.torch: must be a glob like 2.11.*, or a version specifier"),
        ("reason: fixed upstream", "resaon: x", ":7:5: waivers[0].resaon: unknown key; perhaps you meant reason"),
    ],
)
def test_refusals(write: Any, old: str, new: str, message: str) -> None:
    """What is wrong is named with file, line, column, value and rule."""
    assert old in TEXT
    path = write(TEXT.replace(old, new, 1))
    with pytest.raises(CardError) as caught:
        load_waivers(path)
    assert f"{path}{message}" in str(caught.value) or (message in str(caught.value) and not message.startswith(":"))


def test_ninety_days_are_allowed() -> None:
    """The limit itself is within it."""
    assert LONGEST_DAYS == (date(2027, 1, 30) - date(2026, 11, 1)).days


def test_a_matrix_names_its_waivers(write: Any, matrix: Any, tmp_path: Path) -> None:
    """The path counts from the matrix's folder, and a wrong file is an error of the matrix."""
    write(TEXT, "deep/known.yaml")
    path = write(matrix({"waivers": "known.yaml"}), "deep/m.yaml")
    assert ["fa3-window", "b"] == [waiver.id for waiver in load_matrix(str(path)).waivers]
    write(TEXT.replace("checks: lse", "checks: x"), "deep/known.yaml")
    with pytest.raises(CardError, match=r"known.yaml:5:13"):
        load_matrix(str(path))
    (tmp_path / "deep" / "known.yaml").unlink()
    with pytest.raises(CardError, match=r"m.yaml:\d+:\d+: waivers: no such file .*deep/known.yaml"):
        load_matrix(str(path))


def test_files_are_told_apart(write: Any, matrix: Any) -> None:
    """A file with waivers and no matrix is one of waivers; a broken file is not, so that the loader explains it."""
    assert holds_waivers(write(TEXT, "a.yaml"))
    assert not holds_waivers(write(matrix({"waivers": "a.yaml"}), "b.yaml"))
    assert not holds_waivers(write("waivers: [", "c.yaml"))
