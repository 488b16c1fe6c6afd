"""The judges of a run. They start before there is anything to judge, because importing torch takes seconds.

Meanwhile the run's store is opened and its plan is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self

from qualify.assets import digest_cache
from qualify.facts.stack import Ceilings
from qualify.fleet.probe import available_memory
from qualify.fleet.request import Request
from qualify.run.machine.xids import XidWatch
from qualify.run.process.child import Child
from qualify.run.process.compile_ahead import left_to_compile
from qualify.run.process.setup import Settings
from qualify.run.process.supervisor import begin_judge

MEMORY_SHARE = 0.85
"""share of the machine's free memory that a worker may take"""


class Judges:
    """Judges that have begun, by card, until a supervisor takes them. Leaving the context ends the others."""

    def __init__(self, settings: Settings, cards: Sequence[str] = ()) -> None:
        """Start one for each card, without waiting for it; none for which the machine has no room.

        Args:
            settings: of the run.
            cards: UUIDs, or an empty text for the first card.
        """
        self.settings = settings
        self.xids = XidWatch()
        """sees whatever the driver reports from now on"""
        self._begun: dict[str, Child] = {}
        with suppress(OSError):  # who needs the judge tries again, and says what is wrong
            for card in cards:
                self._begun[card] = begin_judge(replace(settings, card=card))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        while self._begun:
            self._begun.popitem()[1].stop()
        self.xids.close()

    def take(self, card: str) -> Child | None:
        """The judge of a card, which is the caller's from now on; None where none has begun."""
        return self._begun.pop(card, None)


def begin_judges(request: Request, ceilings: Ceilings | None = None) -> Judges:
    """The judges of a run that begins or goes on.

    None begins where kernels have to be compiled first, because its hosts would load what is not there yet.

    Args:
        ceilings: what an earlier judge of the run measured; None to measure.
    """
    settings = settings_of(request, ceilings)
    waits = not request.plan.cases or left_to_compile(settings, request.plan.cases)
    return Judges(settings, () if waits else request.uuids or ("",))


def settings_of(request: Request, ceilings: Ceilings | None = None) -> Settings:
    """What all workers of a run have in common.

    Args:
        ceilings: what an earlier judge of the run measured; None to measure.
    """
    policy = request.matrix.card.policy
    names = dict.fromkeys(case.kernel for case in request.plan.cases)
    return Settings(
        device=request.device,
        device_name=request.host.name,
        level=request.level,
        reference=policy.reference,
        timeout_s=policy.timeout_s,
        compile_timeout_s=policy.compile_timeout_s,
        hash_cache=digest_cache(),
        anew=request.anew,
        cards={name: request.kernels[name].card for name in names},
        import_paths=request.import_paths,
        memory_bytes=int(available_memory() * MEMORY_SHARE),
        ceilings=ceilings,
        environments=request.environments,
        card=next(iter(request.uuids), ""),
    )
