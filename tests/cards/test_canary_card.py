"""The canary card: normal form, times that mean one thing, and refusals with their places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qualify.cards.canary import CanaryCard, seconds
from qualify.cards.load import load_canaries, load_canary, load_kernels
from qualify.cards.named import matrix_names
from qualify.cards.words import descriptions
from qualify.errors import CardError

TEXT = """\
canary: mine
matrix: smoke
cron: "*/15 0-6/2 * jan,Mar-may *"
alerts:
  - {target: oncall, kind: webhook, url: "https://example.com/hook", secret_env: HOOK_KEY, events: [hold, roll back]}
"""


def refused(write: Any, text: str, name: str = "mine.yaml") -> list[str]:
    """The problems of a card, without the folder."""
    path = write(text, name)
    with pytest.raises(CardError) as caught:
        load_canary(path, ["smoke"])
    return str(caught.value).replace(f"{path.parent}/", "").splitlines()


def test_defaults(write: Any) -> None:
    """A full level, six hours, a tenth slower; every end of a fire is told unless the card says which."""
    card = load_canary(write(TEXT, "mine.yaml"), ["smoke"]).card
    assert ("full", "auto", 21600, 0.1, None) == (
        card.level, card.device, seconds(card.timeout), card.slower, card.stack_change
    )  # fmt: skip
    assert ("hold", "roll back") == card.alerts[0].events
    assert "*/15 0-6/2 * jan,mar-may *" == card.cron


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 3 * *", "must be five fields"),
        ("60 3 * * *", "a value of minute from 0 to 59, not '60'"),
        ("0 3 0 * *", "a value of day of month from 1 to 31"),
        ("0 3 * 13 *", "a value of month from 1 to 12"),
        ("0 3 * * 0", "name days as mon, tue"),
        ("0 3 * * sunday", "name days as mon, tue"),
        ("0 3 13 * fri", "which programs combine differently"),
        ("0 3 30 feb *", "none of its months has such a day"),
        ("0 5-3 * * *", "ranges that rise"),
        ("*/90 * * * *", "steps that fit"),
        ("*/0 * * * *", "steps that fit"),
        ("0 3 * * mon-", "the day of week 'mon-' does not"),
        ("0 ３ * * *", "not '３'"),
    ],
)
def test_wrong_times(write: Any, cron: str, words: str) -> None:
    """A time that some program would read differently, or that never comes, is refused at its place."""
    (problem,) = refused(write, TEXT.replace("*/15 0-6/2 * jan,Mar-may *", cron))
    assert problem.startswith("mine.yaml:3:7: cron: ")
    assert words in problem


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("matrix: smoke", "matrix: smok", "mine.yaml:2:9: matrix: unknown matrix smok; perhaps you meant smoke"),
        ("matrix: smoke", "matrix: ./no.yaml", "mine.yaml:2:9: matrix: no such file"),
        ("cron:", "crom:", "mine.yaml:3:1: crom: unknown key; perhaps you meant cron"),
        ('url: "https://example.com/hook", ', "", "needs one of url, url_file and url_env; it has none"),
        ('"https://', '"ftp://', "must begin with https:// or http://, but is ftp://"),
        (", secret_env: HOOK_KEY", "", "needs secret_file or secret_env: a webhook is signed"),
        ("HOOK_KEY", "s3cr3t-value", "; write the name of an environment variable, such as MY_VARIABLE"),
        ("HOOK_KEY", "A, secret_file: b", "stands beside secret_file"),
        ("hold,", "held,", "must be one of promote, hold, roll back, refused, failed, released"),
        ("canary: mine", "canary: other", "the file is mine.yaml; call the file other.yaml"),
        ("matrix: smoke", "matrix: smoke\ntimeout: 6", "timeout: must be a number and its unit s, m, h or d, such as"),
        ("matrix: smoke", "matrix: smoke\ntimeout: 6 hours", 's, m, h or d, such as 10m, but is "6 hours"'),
        ("matrix: smoke", "matrix: smoke\ntimeout: 0h", 'such as 10m, but is "0h"'),
        ("matrix: smoke", "matrix: smoke\nslower: 10%", 'slower: must be a number, but is "10%"; write 0.1'),
        (
            "matrix: smoke",
            "matrix: smoke\nstack_change: true",
            "but is true; its keys are settle, distributions, files",
        ),
        (
            "matrix: smoke",
            "matrix: smoke\nstack_change: {files: a/*}",
            "stack_change.files: must match ^/[^\\x00]+$",
        ),
        ("matrix: smoke", "matrix: smoke\nstack_change: {files: [a]}", 'but is "a"; write an absolute path'),
        (
            'cron: "*/15 0-6/2 * jan,Mar-may *"',
            "cron:",
            "mine.yaml:3:1: cron: is empty; give it a value, or remove the",
        ),
        ("matrix: smoke", "matrix: smoke\nstack_change:", "mine.yaml:3:1: stack_change: is empty; give it a value"),
        ("matrix: smoke", "matrix: smoke\nselect: null", "mine.yaml:3:9: select: is empty; give it a value"),
        (
            "matrix: smoke",
            'matrix: smoke\nkernel: " "',
            "mine.yaml:3:9: kernel: holds only spaces; give it a value, or",
        ),
        (
            "matrix: smoke",
            'matrix: smoke\nselect: ", ,"',
            'mine.yaml:3:9: select: must hold a word or a glob, but is ", ,"; without one it selects every case',
        ),
        (
            "matrix: smoke",
            'matrix: smoke\nselect: " "',
            'mine.yaml:3:9: select: must hold a word or a glob, but is " "',
        ),
    ],
)
def test_wrong_cards(write: Any, before: str, after: str, expected: str) -> None:
    """Every mistake is named with its place."""
    (problem,) = refused(write, TEXT.replace(before, after))
    assert expected in problem


def test_two_targets_of_one_name(write: Any) -> None:
    """An alert is told apart from others by its target."""
    (problem,) = refused(write, TEXT + "  - {target: oncall, kind: slack, url_file: /run/slack}\n")
    assert "mine.yaml:6:14: alerts[1].target: names oncall again, after alerts[0]" in problem


def test_a_matrix_by_its_path(write: Any, tmp_path: Path) -> None:
    """It counts from the card's own folder."""
    write("matrix: x", "matrices/x.yaml")
    loaded = load_canary(write("canary: a\nmatrix: ../matrices/x.yaml\n", "canaries/a.yaml"), [])
    assert (tmp_path / "matrices" / "x.yaml").samefile(loaded.matrix)


def test_own_canaries_join_the_shipped_ones(write: Any, tmp_path: Path) -> None:
    """A --cards folder adds canaries; one that is called like a shipped one is an error; foreign files are ignored."""
    write(TEXT, "canaries/mine.yaml")
    write("matrix: smoke\n", "canaries/foreign.yaml")
    assert {"mine", "nightly", "stack-change"} == set(load_canaries((tmp_path,)))
    write(f'{TEXT}kernel: "torch-*"\n', "canaries/mine.yaml")
    assert "mine" not in matrix_names((tmp_path / "canaries",)), "a canary is no matrix"
    assert "mine" not in load_kernels((tmp_path / "canaries",)), "nor a kernel"
    write(TEXT.replace("mine", "nightly"), "canaries/nightly.yaml")
    with pytest.raises(CardError, match="canary nightly exists already"):
        load_canaries((tmp_path,))


def test_every_word_of_the_card_is_described() -> None:
    """The schema explains each key to an editor."""
    assert all(descriptions(CanaryCard).values())


def test_a_duel_is_against_the_baseline_for_half_an_hour(write: Any) -> None:
    """Unless the card says otherwise; the fire must have time for it."""
    plan = load_canary(write(f"{TEXT}duel: {{}}\n", "mine.yaml"), ["smoke"]).card.duel
    assert plan is not None
    assert ("slower", "baseline", "30m", 5) == (plan.when, plan.against, plan.deadline, plan.pairs)
    told = refused(write, f"{TEXT}timeout: 20m\nduel: {{deadline: 20m}}\n")
    assert ["mine.yaml:7:18: duel.deadline: is 20m; it must be shorter than the timeout of the fire, 20m"] == told


def test_a_fleet_covers_every_card_of_its_cluster(write: Any) -> None:
    """Unless the card asks for less; the section of one machine has no meaning beside it."""
    plan = load_canary(write(f"{TEXT}fleet: {{}}\n", "mine.yaml"), ["smoke"]).card.fleet
    assert plan is not None
    assert ("ray", "auto", "cuda:all", 1.0, "10m", None) == (
        plan.engine, plan.address, plan.device, plan.coverage, plan.start, plan.deadline
    )  # fmt: skip
    beside = "has no meaning beside fleet, which runs on all cards of its cluster"
    assert [f"mine.yaml:6:1: device: {beside}"] == [
        line.replace(":9:", ":1:") for line in refused(write, f"{TEXT}device: cpu\nfleet: {{}}\n")
    ]
    assert "must be cuda:all, or cpu:N" in refused(write, f"{TEXT}fleet: {{device: cuda}}\n")[0]
    webhook = 'kind: webhook, url: "https://example.com/hook", secret_env: HOOK_KEY'
    command = TEXT.replace(webhook, "kind: command, command: [/bin/true]")
    assert "acts on one node" in refused(write, f"{command}fleet: {{}}\n")[0]
