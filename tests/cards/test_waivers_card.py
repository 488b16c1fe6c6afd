"""The waivers file: normal form, refusals with their places, and the matrix that names it."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from qualify.cards.load import load_matrix
from qualify.cards.policy import LONGEST_DAYS, WaiverPolicy
from qualify.cards.waivers import holds_waivers, load_waivers, refuse_broad
from qualify.errors import CardError
from qualify.facts.waiver import bare_stars

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
        ("    owner: jane@example.com\n", "", ":3:5: waivers[0].owner: is missing (who is responsible for it); add it"),
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


@pytest.mark.parametrize(
    ("policy", "place", "message"),
    [
        (
            {"owners": ["*@example.com", "ops"]},
            "12:58: waivers[1].owner: ",
            'is "x", who may not waive; policy.waivers.owners of the matrix allows *@example.com, ops',
        ),
        (
            {"max_days": 30},
            "10:14: waivers[0].expires: is 2027-01-30, 90 days after created; ",
            "policy.waivers.max_days of the matrix allows 30, until 2026-12-01",
        ),
        (
            {"stars": "forbid"},
            '12:21: waivers[1].select: is "*", which leaves the case and the kernel open; ',
            "name it, because policy.waivers.stars is forbid",
        ),
        (
            {"max_waivers": 1},
            "12:5: waivers[1]: is waiver 2 of the file; ",
            "policy.waivers.max_waivers of the matrix allows 1",
        ),
    ],
)
def test_a_waiver_beyond_the_policy(write: Any, policy: dict[str, Any], place: str, message: str) -> None:
    """Who, for how long, how broad, how many: refused with file, line and column; within the policy it is taken."""
    path = write(TEXT)
    assert 2 == len(load_waivers(path))
    with pytest.raises(CardError) as caught:
        load_waivers(path, WaiverPolicy(**policy))
    assert [f"{path}:{place}{message}"] == str(caught.value).splitlines()
    wide = {"owners": ["*"], "max_days": 90, "max_waivers": 2}
    assert 2 == len(load_waivers(path, WaiverPolicy(**wide)))


@pytest.mark.parametrize(
    ("select", "parts"),
    [
        ("*", ("case", "kernel")),
        ("**", ("case", "kernel")),
        ("*/*/*", ("case", "kernel")),
        ("*/[!~]*", ("case", "kernel")),
        ("toy*", ("kernel",)),
        ("[!/]*", ("case", "kernel")),
        ("*[!/]", ("case", "kernel")),
        ("[a-z]*[a-z0-9]", ("case", "kernel")),
        ("*/[!]/]*", ("case", "kernel")),
        ("*/flash-attn-[23]", ("case",)),
        ("toy/*/fp32/*", ("kernel",)),
        ("*/flash-attn-3", ("case",)),
        ("*flash-attn-3", ("case",)),
        ("*/decode/*/flash-attn-3", ()),
        ("toy/decode/b1.q1.k8/fp32/causal/flash-attn-3", ()),
    ],
)
def test_what_a_glob_leaves_open(select: str, parts: tuple[str, ...]) -> None:
    """A bare star for every kernel, or for every case."""
    assert parts == bare_stars(select)


def test_the_policy_of_the_matrix_counts(write: Any, matrix: Any) -> None:
    """Loading the matrix refuses the waiver, with the place in the file of waivers."""
    waivers = write(TEXT, "waivers.yaml")
    path = write(matrix({"waivers": "waivers.yaml", "policy": {"waivers": {"max_days": 30}}}), "m.yaml")
    with pytest.raises(CardError, match=f"{waivers}:10:14: "):
        load_matrix(str(path))


def test_a_waiver_may_cover_as_many_cases_as_the_policy_allows(write: Any) -> None:
    """Two of three; of a limit of one both numbers are told, and without a limit any number is allowed."""
    waivers = load_waivers(write(TEXT))[:1]
    ids = ["m/decode/a/flash-attn-3", "m/decode/b/flash-attn-3", "m/prefill/a/flash-attn-3"]
    for limit in (2, None):
        refuse_broad(waivers, WaiverPolicy(max_cases=limit), ids)
    with pytest.raises(CardError, match="covers 2 of 3 cases"):
        refuse_broad(waivers, WaiverPolicy(max_cases=1), ids)
