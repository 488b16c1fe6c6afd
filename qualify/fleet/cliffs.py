"""Finds the exact shapes at which a kernel library launches something else.

One axis at a time is varied. The launched attention kernels are traced at its ends and at the powers of two between
them. Where two neighbours differ, the distance between them is halved until they stand next to each other. A difference
that begins and ends between two traced values that agree is not found. All values of a short axis are traced, unless
the library compiles for each value or the limit is less. Values that the card does not claim are left out beforehand.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise

from qualify.cards.kernel import KernelCard
from qualify.cards.load import NO_ENVIRONMENTS
from qualify.errors import NothingSelected, NoVerdict
from qualify.facts.case import Case, Workload
from qualify.facts.cliffs import GRID, Axis, Map, MapPhase, Segment
from qualify.facts.devices import KINDS, DeviceKind
from qualify.facts.dtypes import Dtype
from qualify.fleet.probe import available_memory
from qualify.fleet.trials import Bench
from qualify.masks import Mask
from qualify.plan.workloads import descaled, workload_refusals
from qualify.run.process.messages import LAUNCHES_OF, HostLimits, TrialEnded, TrialSetup
from qualify.text import clipped, one_line, unsaid

LIMITS: dict[Axis, int] = {
    "seqlen": 16384,
    "context": 131072,
    "batch": 256,
    "head_dim": 576,
    "group": 64,
    "page_size": 512,
}
"""largest value of each axis that is looked at"""
SMALLER: dict[Axis, int] = {"seqlen": 1024, "context": 8192, "batch": 64}
"""largest values on a CPU, for the axes on which they are smaller"""
FEW = 72
"""an axis of at most so many values is traced whole, where nothing has to be compiled"""
MEMORY_SHARE = 0.8
TIMEOUT_S = 600.0
TELL_S = 10.0
"""between two lines that say how far an axis is"""
REASON = 300
"""characters of why a call launched nothing"""


def find_maps(
    card: KernelCard,
    axes: Sequence[Axis],
    base: Workload,
    device: DeviceKind,
    import_paths: Sequence[str],
    *,
    grids: bool,
    limit: int,
    environments: Mapping[str, str] = NO_ENVIRONMENTS,
    tell: Callable[[str], None] = unsaid,
) -> Iterator[Map]:
    """One map for each axis on which the card claims more than one value.

    Args:
        base: the call whose axis is varied.
        grids: whether another grid of the same kernel counts as a change.
        limit: values that are traced at most on each axis.
        environments: interpreters by the name of their environment.
        tell: takes a line for the first call that crashes, and so for each other end without a launch.

    Raises:
        NothingSelected: there is no such axis.
        NoVerdict: no call launched anything.
        DeviceError: no worker can be started, or the kernel's library cannot be loaded.
    """
    asked = descaled(base, card)
    claimed = {axis: claimed_values(card, asked, axis, device) for axis in axes}
    claimed = {axis: values for axis, values in claimed.items() if len(values) > 1}
    if not claimed:
        raise NothingSelected(f"{card.kernel} has nothing to vary: {_why_fixed(card, asked, axes)}")
    setup = TrialSetup(
        device=device,
        level="smoke",
        reference="fp32",
        import_paths=tuple(import_paths),
        card=card,
        hosts=HostLimits(
            timeout_s=TIMEOUT_S,
            compile_timeout_s=TIMEOUT_S,
            memory_bytes=int(available_memory() * MEMORY_SHARE),
            environments=environments,
        ),
    )
    with closing(Bench(setup)) as bench:
        tracer = _Tracer(bench, card, asked, tell, grids=grids)
        for axis, values in claimed.items():
            every = card.jit == "never" and len(values) <= FEW
            progress = AxisProgress(axis, min(limit, len(values)), tell)
            seen = trace_cliffs(values, progress.after(partial(tracer.launched, axis)), limit, every=every)
            yield Map(axis=axis, traced=len(seen), segments=tuple(segments(values, seen)))
    if not tracer.launches:
        why = "; ".join(tracer.reasons.values())
        raise NoVerdict(f"no call of {card.kernel} launched anything, so there are no cliffs to show: {why}")


def claimed_values(card: KernelCard, base: Workload, axis: Axis, device: DeviceKind) -> list[int]:
    """The values of an axis that the card claims, up to the largest that is looked at on such a device."""
    last = SMALLER.get(axis, LIMITS[axis]) if KINDS[device].scale == "small" else LIMITS[axis]
    return [value for value in range(1, last + 1) if not workload_refusals(card, altered(base, axis, value))]


def check_axes(card: KernelCard, axes: Sequence[Axis], base: Workload, device: DeviceKind) -> None:
    """Raises NothingSelected for an axis on which the card does not claim two values: there is no cliff to find."""
    asked = descaled(base, card)
    fixed = [axis for axis in axes if len(claimed_values(card, asked, axis, device)) < 2]
    if fixed:
        raise NothingSelected(
            f"--axis {fixed[0]}: {card.kernel} has nothing to vary there: {_why_fixed(card, asked, fixed[:1])}. "
            "Without --axis qualify varies all that it claims"
        )


def _why_fixed(card: KernelCard, base: Workload, axes: Sequence[Axis]) -> str:
    """Why the card does not claim the calls at the ends of these axes."""
    ends = (altered(base, axis, value) for axis in axes for value in (1, LIMITS[axis]))
    return "; ".join(dict.fromkeys(why for workload in ends for why in workload_refusals(card, workload)))


def altered(base: Workload, axis: Axis, value: int) -> Workload:
    """The workload with one axis set."""
    batch = base.batch
    match axis:
        case "seqlen":
            return base.with_lengths((value,) * batch, (value,) * batch)
        case "context":
            return base.with_lengths(base.seqlens_q, (value,) * batch)
        case "batch":
            return base.with_lengths(base.seqlens_q[:1] * value, base.seqlens_k[:1] * value)
        case "head_dim":
            return replace(base, head_dim=value, head_dim_v=value, scale=value**-0.5)
        case "group":
            return replace(base, heads_q=base.heads_kv * value)
        case "page_size":
            return replace(base, page_size=value)


class AxisProgress:
    """Says now and then how many values of an axis are traced: on a CPU one of them may take half a minute."""

    def __init__(
        self, axis: Axis, most: int, tell: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is traced yet.

        Args:
            most: values that are traced at most.
            now: a clock, in seconds.
        """
        self.axis, self.most, self.tell, self.now = axis, most, tell, now
        self.traced, self.told = 0, now()

    def after(self, launched: Callable[[int], str]) -> Callable[[int], str]:
        """The same function, which counts how often it was called."""

        def counting(value: int) -> str:
            found = launched(value)
            self.traced += 1
            if self.now() - self.told >= TELL_S:
                self.told = self.now()
                self.tell(f"{self.axis}: {self.traced} of at most {self.most} values traced, the last one {value}")
            return found

        return counting


class _Tracer:
    """Traces what calls of a kernel launch, and says once of each way in which one launches nothing why it did."""

    def __init__(
        self, bench: Bench, card: KernelCard, base: Workload, tell: Callable[[str], None], *, grids: bool
    ) -> None:
        self.bench = bench
        self.card = card
        self.base = base
        self.tell = tell
        self.grids = grids
        self.launches = 0
        """calls that launched something"""
        self.reasons: dict[str, str] = {}
        """by how a call without a launch ended, why the first of them did"""

    def launched(self, axis: Axis, value: int) -> str:
        """What the call with that value launches, or how it ends, in words that are equal where nothing has changed."""
        attempt = self._attempt(altered(self.base, axis, value))
        if attempt.ended == "launched":
            self.launches += 1
            return _names(attempt.detail, grids=self.grids)
        if attempt.ended not in self.reasons:
            how = attempt.ended.partition(":")[0]
            self.reasons[attempt.ended] = f"{how}: {clipped(one_line(attempt.detail), REASON)}"
            self.tell(f"{axis} {value} {self.reasons[attempt.ended]}")
        return f"{attempt.ended}: {attempt.detail[:200]}" if attempt.ended == "refused" else attempt.ended

    def _attempt(self, workload: Workload) -> TrialEnded:
        digest = hashlib.sha256(repr(workload).encode()).hexdigest()
        case = Case(
            id=f"cliffs/{digest[:12]}/{self.card.kernel}",
            model="cliffs",
            phase="decode" if max(workload.seqlens_q) == 1 else "prefill",
            shape=digest[:12],
            dtype=workload.dtype,
            mask=workload.mask.kind,
            kernel=self.card.kernel,
            layers=1,
            line=0,
            content_hash=digest,
            unclaimed=(),
            workload=workload,
        )
        return self.bench.attempt(case, seed=1, check=LAUNCHES_OF, finding="")


def _names(launches: str, *, grids: bool) -> str:
    """What a call launched, in words that are equal where nothing has changed."""
    names = [
        launch["name"] + (GRID.join(["", *map(str, launch["grid"])]) if grids and launch["grid"] else "")
        for launch in json.loads(launches)
    ]
    return " + ".join(dict.fromkeys(names))


def trace_cliffs(
    values: Sequence[int], launched: Callable[[int], str], limit: int, *, every: bool = False
) -> dict[int, str]:
    """What is launched at the places (indices) that had to be traced to find every cliff between them."""
    powers = (index for index, value in enumerate(values) if value & (value - 1) == 0)
    whole = every and len(values) <= limit
    start = list(range(len(values))) if whole else sorted({0, len(values) - 1, *powers})[:limit]
    seen = {place: launched(values[place]) for place in start}
    open_ = list(pairwise(start))
    while open_ and len(seen) < limit:
        low, high = open_.pop(0)
        if high - low < 2 or seen[low] == seen[high]:
            continue
        middle = (low + high) // 2
        seen[middle] = launched(values[middle])
        open_ += [(low, middle), (middle, high)]
    return seen


def segments(values: Sequence[int], seen: dict[int, str]) -> Iterator[Segment]:
    """Neighbours that launch the same, joined."""
    places = sorted(seen)
    first = places[0]
    for place, after in zip(places, [*places[1:], None], strict=True):
        if after is not None and seen[after] == seen[place]:
            continue
        exact = after is None or after == place + 1
        yield Segment(first=values[first], last=values[place], launched=seen[place], exact=exact)
        first = after if after is not None else first


def base_workload(*, dtype: Dtype, phase: MapPhase, seqlen: int, page_size: int) -> Workload:
    """32 query heads on 8, 128 elements, causal: one sequence of a usual model."""
    return Workload(
        heads_q=32,
        heads_kv=8,
        head_dim=128,
        head_dim_v=128,
        dtype=dtype,
        mask=Mask(causal=True),
        softcap=0.0,
        sinks=False,
        scale=128**-0.5,
        seqlens_q=(1,) if phase == "decode" else (seqlen,),
        seqlens_k=(seqlen,),
        page_size=page_size,
    )
