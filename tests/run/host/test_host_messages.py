"""Messages between a judge and a host: what is as usual is not sent, and arrives all the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qualify.facts.lines import WrongMessage, decode_line
from qualify.run.host import messages as says
from qualify.run.host.events import AT_ONCE, packed, unpacked
from qualify.run.host.launch import heard

CALL: dict[str, Any] = {"q": (0, 512, 64, 0, "float32", (2, 2, 4), (8, 4, 1)), "scale": 0.5, "sinks": None}
REQUESTS = [
    says.Wait(asked=7),
    says.RunOnce(asked=1, kernel="k", call=CALL, region=(0, 0, 64), drop=(3, 4), free=((0, 512),)),
    says.RunOnce(asked=1, kernel="k", call=CALL, region=(0, 0, 64), place={"thread": True}),
    says.Load(kernel="k", adapter="call", entry="m:f", options={"half": "\udcff"}),
]
ANSWERS = [
    says.Accepted(to=7),
    says.Numbers(to=1, values=(1.0, None)),
    says.Raised(to=2, kind="other", name="E", text="\udcff", log="", place="k.py:3"),
    says.Returned(
        to=3,
        several=True,
        parts=(says.ReturnedPart(kind="Tensor", dtype="float32", shape=(2,), device="cpu", offset=0),),
    ),
]


def listed(value: object) -> object:
    """As JSON has it: a tuple becomes a list."""
    return json.loads(json.dumps(value, default=vars))


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda message: type(message).__name__)
def test_a_request_arrives_as_it_was(request_: says.HostRequest) -> None:
    """Also half characters, which a path may have."""
    arrived = says.decode_request(says.encode(request_))
    assert type(request_) is type(arrived)
    assert listed(vars(request_)) == listed(vars(arrived))


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda message: type(message).__name__)
def test_an_answer_arrives_as_it_was(answer: says.Answer) -> None:
    """Half characters become question marks, because answers are stored."""
    arrived = decode_line(says.encode(answer), says.ANSWERS)
    text = json.dumps(listed(vars(answer))).replace("\\udcff", "?")
    assert json.loads(text) == listed(vars(arrived))


def test_what_is_as_usual_is_not_sent() -> None:
    """A question that drops nothing and asks from the usual place does not say so."""
    assert b'{"asked":7,"event":"wait"}\n' == says.encode(says.Wait(asked=7))
    assert b'{"to":7,"event":"accepted"}\n' == says.encode(says.Accepted(to=7))


LONG = "x" * 100_000
TOO_LONG = [
    says.Raised(kind="refusal", name=LONG, text=LONG, log=LONG, place=LONG),
    says.Returned(several=True, parts=(says.ReturnedPart(kind=LONG),)),
    says.Events(names=(LONG,), kinds=(), rows=()),
    says.HostSoftware(components=(("system", LONG, LONG, LONG),), binaries=(), environment={LONG: LONG}),
]
"""what a host sends that keeps to nothing"""


@pytest.mark.parametrize("answer", TOO_LONG, ids=lambda message: type(message).__name__)
def test_the_judge_cuts_what_it_hears(answer: says.Answer) -> None:
    """What a host says may be stored, and a host may say anything."""
    found = heard(says.encode(answer))
    assert type(answer) is type(found)
    assert max(map(len, texts(vars(found)))) <= max(says.LOG_KEPT, says.LAUNCH_KEPT, says.SOFTWARE_KEPT)


def test_the_name_of_a_class_is_one_line() -> None:
    """Messages begin with it, and a kernel may call its classes anything."""
    found = heard(says.encode(says.Raised(kind="other", name="E\n::error::\x1b[2J", text="", log="", place="")))
    assert isinstance(found, says.Raised)
    assert r"E ::error::\x1b[2J" == found.name


def texts(value: object) -> list[str]:
    """Every text in it."""
    whole = json.loads(json.dumps(value, default=vars))
    if isinstance(whole, dict):
        return [text for key, item in whole.items() for text in (key, *texts(item))]
    if isinstance(whole, list):
        return [text for item in whole for text in texts(item)]
    return [whole] if isinstance(whole, str) else []


def test_the_end_of_a_traceback_is_kept() -> None:
    """There the error stands."""
    found = heard(says.encode(says.Raised(kind="other", name="E", text="", log=f"{LONG} the end", place="")))
    assert isinstance(found, says.Raised)
    assert found.log.endswith(" the end")
    assert says.LOG_KEPT == len(found.log)


MANY = 300_000
ENDLESS = {
    "rows": b'{"event":"events","names":[],"kinds":[],"rows":[%s0]}' % (b"0," * 2 * MANY),
    "shape": b'{"event":"returned","several":true,"parts":[{"kind":"","shape":[%s0]}]}' % (b'"a",' * 2 * MANY),
    "fields": b'{"event":"events","names":[],"rows":[],"kinds":[%s{}]}' % (b'{"a":{"a":0}},' * MANY),
}


@pytest.mark.parametrize("line", ENDLESS.values(), ids=ENDLESS)
def test_a_message_of_very_many_items_is_none(line: bytes) -> None:
    """To look at each of them would cost the judge gigabytes: it would note for each what is wrong with it."""
    with pytest.raises(WrongMessage, match=f"more than {says.MOST_ITEMS:,} items"):
        heard(line)


def test_a_part_of_a_trace_has_an_end() -> None:
    """What the judge keeps of an event takes more memory than its message. A host sends so many at once, no more."""

    def of(count: int) -> says.Events:
        return says.Events(names=("a",), kinds=({"name": 0},), rows=((0, 0.0, None, None),) * count)

    assert AT_ONCE == len(unpacked(of(AT_ONCE)))
    with pytest.raises(ValueError, match="too many events"):
        unpacked(of(AT_ONCE + 1))


def test_the_longest_part_of_a_trace_is_a_message() -> None:
    """Where no two launches are alike."""
    args = {"grid": [1, 2, 3], "block": [4, 5, 6], "registers per thread": 7, "shared memory": 8, "stream": 9}
    events = [
        {"name": str(number), "cat": "kernel", "ts": 1.0, "dur": 1.0, "args": {**args, "correlation": number}}
        for number in range(AT_ONCE)
    ]
    (message,) = packed(events)
    found = heard(says.encode(message))
    assert isinstance(found, says.Events)
    assert events == unpacked(found)


UNREADABLE = {
    "a category that is a list": {"name": 0, "cat": []},
    "an operator without arguments": {"name": 0, "cat": "cpu_op"},
    "elements that are a text": {"name": 0, "args": {"Input elements": "x"}},
    "elements that nothing has": {"name": 0, "args": {"Input elements": 10**400}},
    "a grid that is none": {"name": 0, "args": {"grid": 5}},
    "a grid of texts": {"name": 0, "args": {"grid": ["a", "b", "c"]}},
    "a correlation that is a list": {"name": 0, "args": {"correlation": []}},
    "bytes that are a text": {"name": 0, "args": {"Bytes": "x"}},
}


@pytest.mark.parametrize("kind", UNREADABLE.values(), ids=UNREADABLE)
def test_an_event_that_no_profiler_makes_is_none(kind: dict[str, Any]) -> None:
    """Whoever reads it would stumble, and the message would look like a fault of qualify's own."""
    with pytest.raises(ValueError, match="event"):
        unpacked(says.Events(names=("a",), kinds=(kind,), rows=((0, 0.0, None, None),)))
