"""Messages between a run and its workers survive the pipe as they were sent."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
from builders import CEILINGS, make_card, make_case
from stored_runs import make_stack

from qualify.facts.duel import DuelPair, DuelQuad, DuelTask
from qualify.facts.lines import WrongMessage
from qualify.facts.outcome import Crashed, Finding, TimedOut
from qualify.run.process.messages import (
    EVENTS,
    CallCompiled,
    CardUnfit,
    CaseEnded,
    CaseRequest,
    CellFailed,
    CellTimed,
    Chunk,
    ChunkDone,
    CompileSetup,
    ContextLost,
    Described,
    DuelEffort,
    DuelRound,
    DuelSetup,
    FromChild,
    FromParent,
    HostLimits,
    Ready,
    RunSetup,
    SidesDescribed,
    StageBegun,
    TrialEnded,
    TrialRequest,
    TrialSetup,
    Unusable,
    decode_answer,
    decode_request,
    encode,
)

CARD = make_card()
CASE = make_case()
HOSTS = HostLimits(
    timeout_s=60.0, compile_timeout_s=600.5, memory_bytes=8 << 30, environments={"next": "/opt/\udcff/bin/python"}
)
NOTE = Finding(check="budget", verdict="note", detail="µ", values={"worst": math.inf})
RUN = RunSetup(
    device="cpu",
    level="full",
    reference="fp64",
    hash_cache="/cache/\udcff",
    import_paths=("/cards/\udcff",),
    cards={CARD.kernel: CARD},
    preload=(CARD.kernel,),
    hosts=HOSTS,
    ceilings=CEILINGS,
)
REQUESTS = [
    RUN,
    replace(RUN, ceilings=None),
    CompileSetup(device="cuda", import_paths=(), cards={CARD.kernel: CARD}, hosts=HOSTS),
    TrialSetup(device="cpu", level="smoke", reference="fp32", import_paths=("a b",), card=CARD, hosts=HOSTS),
    Chunk(requests=(CaseRequest(case=CASE, attempt=2), CaseRequest(case=CASE, attempt=3, alone=True))),
    TrialRequest(case=CASE, seed=1, check="", finding="budget", script=True, text="two\nlines"),
    DuelSetup(
        device="cuda",
        import_paths=("/cards/\udcff",),
        cards={CARD.kernel: CARD},
        hash_cache="",
        hosts=HOSTS,
        effort=DuelEffort(quads=2, block_us=20_000.0, aside=0.25, stage_s=60.0, compile_s=600.0),
    ),
    DuelRound(number=3, tasks=(DuelTask(name="shape", a=CASE, b=CASE, plant=0.02),)),
]
ANSWERS = [
    Ready(),
    Described(stack=make_stack(), environments={"next": make_stack(torch="2.12")}, ceilings=CEILINGS),
    Unusable(message="no CUDA device"),
    StageBegun(case="", stage="load:fa3"),
    CaseEnded(case=CASE.id, outcome=Crashed(stage="load", error="µ", log="", attempt=1), fresh=True),
    CaseEnded(case=CASE.id, outcome=TimedOut(stage="prepare", limit_s=1, attempt=1, findings=(NOTE,)), fresh=False),
    ChunkDone(),
    ContextLost(case=CASE.id, error="illegal address"),
    CallCompiled(case=CASE.id, first_call_us=None),
    CallCompiled(case=CASE.id, first_call_us=7.5),
    TrialEnded(ended="passed", detail="it passes", script=""),
    SidesDescribed(a=make_stack(), b=make_stack(torch="2.12"), note="NVML does not answer"),
    CellTimed(
        cell="shape",
        pairs=(DuelPair(way="graph", pair=3, quads=(DuelQuad(a_us=(1.5, 2.0), b_us=(1.0, 2.5)),), thrown_away=1),),
        notes=("µ",),
    ),
    CellFailed(cell="shape", error="B (k): killed"),
    CardUnfit(reasons=("MIG is on",)),
]


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_a_request_arrives_as_it_was_sent(message: FromParent) -> None:
    """In one line; undecodable bytes in a path too, and of a card what its author wrote."""
    line = encode(message)
    assert [len(line) - 1] == [place for place, byte in enumerate(line) if byte == ord("\n")]
    assert message == decode_request(line)
    if isinstance(message, TrialSetup):
        arrived = decode_request(line)
        assert isinstance(arrived, TrialSetup)
        assert message.card.model_fields_set == arrived.card.model_fields_set


@pytest.mark.parametrize("message", ANSWERS, ids=lambda message: type(message).__name__)
def test_an_answer_arrives_as_it_was_sent(message: FromChild) -> None:
    """In one line, with infinities."""
    line = encode(message)
    assert [len(line) - 1] == [place for place, byte in enumerate(line) if byte == ord("\n")]
    assert message == decode_answer(line)


def test_every_kind_has_an_example() -> None:
    """And a name of its own in its line."""
    kinds = {*get_args(FromParent), *get_args(FromChild)}
    assert kinds == set(EVENTS) == {type(message) for message in (*REQUESTS, *ANSWERS)}
    assert len(kinds) == len(set(EVENTS.values()))


def test_no_encoding_knows_half_a_character() -> None:
    """What a worker says with undecodable bytes is stored and printed."""
    assert Unusable(message="cannot read ?") == decode_answer(encode(Unusable(message="cannot read \udcff")))


def test_each_end_takes_only_what_the_other_sends() -> None:
    """A worker that echoes its setup is not understood, nor is a parent that answers."""
    with pytest.raises(WrongMessage, match="unknown event 'run'"):
        decode_answer(encode(RUN))
    with pytest.raises(WrongMessage, match="unknown event 'ready'"):
        decode_request(encode(Ready()))
