"""What a judge says of a device that it cannot use together with hosts."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from builders import make_card

from qualify.errors import DeviceError
from qualify.run.machine.device import Cpu
from qualify.run.process import worker
from qualify.run.process.messages import (
    CompileSetup,
    DuelEffort,
    DuelSetup,
    HostLimits,
    RunSetup,
    TrialSetup,
    Unusable,
    decode_answer,
)

LIMITS = HostLimits(timeout_s=9, compile_timeout_s=9, memory_bytes=1 << 30, environments={})
EFFORT = DuelEffort(quads=1, block_us=1, aside=0.1, stage_s=9, compile_s=9)
CARD = make_card()
COMMON: dict[str, Any] = {"device": "cpu", "import_paths": (), "hosts": LIMITS}
RUN: dict[str, Any] = {
    "level": "smoke",
    "reference": "fp64",
    "hash_cache": "",
    "preload": (),
    "ceilings": None,
    "card": "",
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that admits no second process, as a GPU in exclusive mode; this process collects no garbage after it."""

    def refuse(*_: object) -> None:
        raise DeviceError("the card admits one process")

    monkeypatch.setattr(Cpu, "take", refuse)
    for name in ("freeze", "enable"):
        monkeypatch.setattr(gc, name, lambda: None)


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize(
    ("serve", "setup"),
    [
        (worker._run, RunSetup(**COMMON, **RUN, cards={CARD.kernel: CARD})),
        (worker._compile, CompileSetup(**COMMON, cards={CARD.kernel: CARD})),
        (worker._serve_trials, TrialSetup(**COMMON, level="smoke", reference="fp64", card=CARD)),
        (worker._duel, DuelSetup(**COMMON, cards={CARD.kernel: CARD}, hash_cache="", effort=EFFORT)),
    ],
    ids=["run", "compile", "repro", "duel"],
)
def test_a_device_that_admits_no_host_ends_the_judge(serve: Callable[..., None], setup: Any) -> None:
    """It says why, and asks for no work: each kernel would fail there."""

    def work() -> Iterator[Any]:
        pytest.fail("it asked for work")
        yield

    said = io.BytesIO()
    serve(setup, work(), worker.Pipe(said))
    assert [Unusable(message="the card admits one process")] == [
        decode_answer(line) for line in said.getvalue().splitlines()
    ]
