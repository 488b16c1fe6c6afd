"""The stages of a run in words: no screen and no page shows the internal names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qualify.facts.outcome import Crashed, TimedOut


@dataclass(frozen=True, kw_only=True, slots=True)
class StageWords:
    """What a stage is called."""

    doing: str
    """while it goes on: what qualify does"""
    when: str
    """afterwards: when something happened to a case"""


STAGES: Mapping[str, StageWords] = {
    "start": StageWords(doing="starting a process for the kernels", when="while its process started"),
    "load": StageWords(doing="loading the kernel", when="while its library was loaded"),
    "ceilings": StageWords(doing="measuring what the device can reach", when="while the device was measured"),
    "fingerprint": StageWords(doing="describing the stack", when="while the stack was described"),
    "prepare": StageWords(doing="preparing the inputs", when="while its call was prepared"),
    "call": StageWords(doing="calling the kernel", when="in its call"),
    "compile": StageWords(doing="compiling the kernel", when="while it was compiled"),
    "compile ahead": StageWords(doing="compiling kernels ahead of the run", when="while kernels were compiled ahead"),
    "witness": StageWords(doing="seeing which kernel runs", when="while its kernels were traced"),
    "checks": StageWords(doing="checking the result", when="while its results were checked"),
    "timing": StageWords(doing="measuring the time", when="while it was timed"),
    "health": StageWords(doing="seeing whether the device still computes", when="when the device was tested after it"),
    "done": StageWords(doing="done", when="at its end"),
}


def doing(stage: str) -> str:
    """What qualify does in a stage; ``load:NAME`` and ``checks:NAME`` say with what."""
    kind, _, name = stage.partition(":")
    match kind if name else "":
        case "load":
            return f"loading {name}"
        case "checks":
            return f"checking: {name.replace('_', ' ')}"
    known = STAGES.get(stage)
    return known.doing if known else stage


def when(stage: str) -> str:
    """When something happened to a case, as the end of a sentence."""
    kind, _, name = stage.partition(":")
    if kind == "checks" and name:
        return f"while {name} was checked"
    known = STAGES.get(kind)
    return known.when if known else f"in {stage}"


def ending(outcome: Crashed | TimedOut) -> str:
    """How a case ended that gave no evidence, as the verdict says it."""
    if isinstance(outcome, Crashed):
        return f"crashed {when(outcome.stage)}: {outcome.error}"
    return f"no sign of life for {outcome.limit_s:g} s {when(outcome.stage)}"
