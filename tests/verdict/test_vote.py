"""Cards vote with the bits that they got: who is at fault, and with which evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from stored_runs import make_run

from qualify.facts.vote import Ballot
from qualify.verdict.vote import unsteady_kernels, vote


def ballots(*outputs: str, case: str = "c", **changes: Any) -> list[Ballot]:
    """One ballot of each card g0, g1, … on one stack; a letter is the digest, upper case where checks found fault."""
    usual = {"kernel": "fa3", "stack": "s1", "inputs": "i"} | changes
    return [
        Ballot(case=case, card=f"g{number}", output=output.lower(), failed=output.isupper(), **usual)
        for number, output in enumerate(outputs)
    ]


def told(some: list[Ballot], unsteady: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Kind and culprit of each vote."""
    return [(found.kind, found.who) for found in vote(some, unsteady)]


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ("aaaa", []),
        ("aaab", [("outlier card", "g3")]),
        ("aaaB", [("outlier card", "g3")]),
        ("aabb", [("non-deterministic kernel", "fa3")]),
        ("abc", [("non-deterministic kernel", "fa3")]),
        ("ab", [("undecided", "g0, g1")]),
        ("aB", [("outlier card", "g1")]),
        ("AB", [("undecided", "g0, g1")]),
        ("a", []),
    ],
)
def test_the_cards_of_one_stack_vote(outputs: str, expected: list[tuple[str, str]]) -> None:
    """More than half of the cards, two at least, are right; of two the one that checks find fault with is wrong."""
    assert expected == told(ballots(*outputs))


def test_the_votes_are_the_evidence() -> None:
    """Who voted for which digest, and every case that says so."""
    some = [*ballots("a", "a", "b", case="c1"), *ballots("a", "a", "c", case="c2"), *ballots("a", "a", "a", case="c3")]
    (found,) = vote(some)
    assert (("c1", "c2"), {"a": ("g0", "g1"), "b": ("g2",)}) == (found.cases, found.ballots)
    assert "it got other bits than the majority of 3 cards on its stack" == found.detail


def test_many_outvoted_cards_are_the_kernels_fault() -> None:
    """Now this card and now that one: no four cards of nine break at once."""
    some = [
        ballot
        for case in range(4)
        for ballot in ballots(*("b" if card == case else "a" for card in range(9)), case=f"c{case}")
    ]
    assert [("non-deterministic kernel", "fa3")] == told(some)
    assert [("outlier card", "g0"), ("outlier card", "g1")] == told(some[:18])


@pytest.mark.parametrize(("cards", "blamed"), [(8, "non-deterministic kernel"), (9, "outlier card")])
def test_three_outvoted_cards_speak_against_the_kernel_among_fewer_than_nine(cards: int, blamed: str) -> None:
    """They must be more than a third of those that voted; the kernel's cases are then those of all three cards."""
    some = [
        ballot
        for case in range(3)
        for ballot in ballots(*("b" if card == case else "a" for card in range(cards)), case=f"c{case}")
    ]
    found = vote(some)
    assert {blamed} == {it.kind for it in found}
    assert {"c0", "c1", "c2"} == {case for it in found for case in it.cases}


def test_who_more_cases_speak_against_stands_first() -> None:
    """One card is outvoted in two cases, another in one."""
    two = [ballot for case in ("c1", "c2") for ballot in ballots("a", "a", "a", "b", case=case)]
    assert [("outlier card", "g3"), ("outlier card", "g0")] == told([*ballots("b", "a", "a", "a", case="c0"), *two])


def test_a_card_that_does_not_repeat_itself_blames_the_kernel() -> None:
    """Two results of one card for equal inputs: no other card is in question."""
    assert [("non-deterministic kernel", "fa3")] == told([*ballots("a"), *ballots("b")])


@pytest.mark.parametrize("drawn", ["ij", "iijj", "iijk", "ijk"])
def test_inputs_without_a_majority_blame_no_card_and_decide_nothing(drawn: str) -> None:
    """What cards got for different inputs cannot be compared: nobody may take that for agreement."""
    (found,) = vote(
        [
            Ballot(case="c", kernel="fa3", card=f"g{card}", stack="s1", inputs=inputs, output="a")
            for card, inputs in enumerate(drawn)
        ]
    )
    assert ("undecided", ", ".join(f"g{card}" for card in range(len(drawn)))) == (found.kind, found.who)
    assert "they drew different inputs from the same seed, and no majority says which are right" == found.detail


def test_a_card_that_draws_other_inputs_is_an_outlier() -> None:
    """Its output is not compared with those of other inputs, and the inputs themselves tell."""
    some = [*ballots("a", "a"), Ballot(case="c", kernel="fa3", card="g2", stack="s1", inputs="j", output="a")]
    assert [("outlier card", "g2")] == told(some)


def test_stacks_vote_when_their_cards_agree() -> None:
    """One of three stacks is outvoted; of two that with fewer cards is named. Bad cards do not hide it."""
    three = [
        Ballot(case="c", kernel="fa3", card=f"{stack}-{card}", stack=stack, inputs="i", output=output)
        for stack, outputs in (("old", "aa"), ("new", "bbc"), ("mid", "aa"))
        for card, output in enumerate(outputs)
    ]
    assert [("outlier card", "new-2"), ("outlier stack", "new")] == told(three)
    assert {"a": ("old", "mid"), "b": ("new",), "c": ("new",)} == vote(three)[1].ballots
    two = [ballot for ballot in three if ballot.stack != "mid"]
    assert ("outlier stack", "old") in told(two)


def test_a_stack_votes_with_the_result_that_no_check_finds_fault_with() -> None:
    """One of its two cards is wrong, so the stack agrees with the other one."""
    wrong = ballots("a", "B")
    assert [("outlier card", "g1")] == told([*wrong, *ballots("a", "a", stack="s2")])
    assert ("outlier stack", "s1") in told([*wrong, *ballots("b", "b", "b", stack="s2")])


def test_kernels_without_determinism_do_not_vote() -> None:
    """Their cards may differ."""
    assert [] == told(ballots("a", "a", "b"), unsteady=("fa3",))


def test_the_cards_of_a_run_say_which_kernels_are_without_determinism() -> None:
    """As they were when the run was made; a run that did not note its cards names none."""
    terms = {"fa3": {"claims.deterministic": "false"}, "fa2": {"claims.deterministic": "true"}, "old": {}}
    assert {"fa3"} == unsteady_kernels([replace(make_run(), terms=terms), replace(make_run(), terms=None)])
