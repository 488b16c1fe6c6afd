"""Which kernel really ran: what the launches of a traced call prove about a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qualify.facts.identity import UNMATCHED, accepts_anything, matches, side_work_among
from qualify.facts.outcome import Finding, Launch, Role, Value, Witness, WitnessState
from qualify.run.measure.capacity import Need, too_little
from qualify.run.measure.kernel_names import FUSED_OPERATORS, identify
from qualify.run.measure.tracing import Trace

UNCLASSIFIED_SHARE = 0.05
"""largest share of the device time for unknown kernels, and for products that the card does not name"""
AGREEMENT_SHARE = 0.1
"""by how much traced and untraced durations may differ without a note"""
LISTED = 3
"""most launched kernels that a reason names"""
LEAST_US = 100.0
"""below it, gaps between launches and a cold cache explain any difference"""


def decide(found: Trace, must_match: Sequence[str], may_match: Sequence[str], *, need: Need | None = None) -> Witness:
    """What the trace proves about a card: proven, substituted by another attention kernel, or unproven.

    Args:
        need: what the traced call needs at least; without it only names are compared.
    """
    launches = tuple(_assign_role(launch, must_match, may_match) for launch in (found.calls[-1] if found.calls else ()))
    claimed = [launch for launch in launches if launch.role == "attention" and matches(launch.name, must_match)]
    state: WitnessState
    if found.defect:
        state, reason = "unproven", found.defect
    elif other := _substitute(launches, claimed):
        state, reason = "substituted", other
    elif not claimed:
        state, reason = "unproven", _unmatched(launches, must_match)
    elif doubt := _doubt(found, launches, claimed, may_match, need):
        state, reason = "unproven", doubt
    else:
        state, reason = "proven", _not_asserted(must_match, may_match)
    return Witness(state=state, reason=reason, expected=tuple(must_match), launches=launches, calls=len(found.calls))


def _substitute(launches: Sequence[Launch], claimed: Sequence[Launch]) -> str:
    """Which attention ran in place of the card's; empty where none is known to have."""
    foreign = [launch for launch in launches if launch.role == "attention" and launch not in claimed]
    if foreign:
        names = ", ".join(f"{launch.family or 'attention'} ({launch.name})" for launch in foreign)
        return f"another attention kernel ran: {names}"
    products = [launch.name for launch in launches if launch.role in {"gemm", "softmax"}]
    if claimed or not products or any(launch.role == "unclassified" for launch in launches):
        return ""
    return f"no attention kernel ran, the math path did: {', '.join(products[:4])}"


def _unmatched(launches: Sequence[Launch], must_match: Sequence[str]) -> str:
    """What the card looks for, and what was launched instead, the longest first."""
    names = list(dict.fromkeys(launch.name for launch in sorted(launches, key=lambda it: -it.duration_us)))
    more = f" and {len(names) - LISTED} more" if names[LISTED:] else ""
    seen = f"launched: {', '.join(names[:LISTED])}{more}" if names else "nothing was launched"
    return f"{UNMATCHED} ({', '.join(must_match)}) and none is known as attention; {seen}"


def _doubt(
    found: Trace, launches: Sequence[Launch], claimed: Sequence[Launch], may_match: Sequence[str], need: Need | None
) -> str:
    """Why launches of the card's name do not prove that they computed the call; empty where they do."""
    doubt = _hollow(found, claimed)
    if need is not None and not doubt:
        beside = [launch for launch in launches if launch.grid and matches(launch.name, may_match)]
        doubt = too_little([*claimed, *(launch for launch in beside if launch not in claimed)], found.inputs, need)
    return doubt or _foreign_share(launches)


def _not_asserted(must_match: Sequence[str], may_match: Sequence[str]) -> str:
    """Why the card does not say which kernel it is; empty where it does."""
    if accepts_anything(tuple(must_match)):
        return f"identity is not asserted: must_match {', '.join(must_match)} accepts any kernel"
    if other := side_work_among(tuple(must_match)):
        return f"identity is not asserted: must_match {', '.join(must_match)} accepts what is no attention: {other}"
    if accepts_anything(tuple(may_match)):
        return f"identity is not asserted: may_match {', '.join(may_match)} accepts any other kernel beside it"
    return ""


def _foreign_share(launches: Sequence[Launch]) -> str:
    """What takes too much of the time and is not the card's; empty where nothing does.

    Products and softmaxes count on a GPU only: on a CPU they may be operators within an operator that the card names.
    """
    total = sum(launch.duration_us for launch in launches)
    unknown = [launch for launch in launches if launch.role == "unclassified"]
    products = [launch for launch in launches if launch.role in {"gemm", "softmax"} and launch.grid]
    kinds = (("unknown kernels", unknown), ("kernels that the card does not name", unknown + products))
    for kind, some in kinds:
        share = sum(launch.duration_us for launch in some) / total if total else 0.0
        if share > UNCLASSIFIED_SHARE:
            return f"{kind} took {share:.0%} of the time: {', '.join(launch.name for launch in some[:3])}"
    return ""


def _hollow(found: Trace, claimed: Sequence[Launch]) -> str:
    """Why a CPU's operators of the card are only names in the trace; empty where they are real operators."""
    if found.inputs is not None and not any(launch.name in found.inputs for launch in claimed):
        return f"{claimed[0].name} took no tensor: only its name is in the trace, no real operator"
    for launch in claimed:
        product = found.products.get(launch.name)
        if product and identify(launch.name).family in FUSED_OPERATORS:
            real = "a real fused operator computes products and softmax itself"
            return f"{launch.name} ran the separate operator {product}; {real}"
    return ""


def _assign_role(launch: Launch, must_match: Sequence[str], may_match: Sequence[str]) -> Launch:
    """A card knows its own kernels better than the table does."""
    role: Role = launch.role
    if matches(launch.name, must_match) and role != "auxiliary":
        role = "attention"
    elif matches(launch.name, may_match):
        role = "auxiliary"
    return replace(launch, role=role)


def negative_control(found: Trace) -> str:
    """The math path must show matrix products and a softmax and no fused attention; empty where it does."""
    roles = {launch.role for call in found.calls for launch in call}
    fused = [launch.name for call in found.calls for launch in call if launch.role == "attention"]
    fused = [name for name in fused if identify(name).family != "sdpa-math"]
    if found.defect:
        return f"the math path could not be traced: {found.defect}"
    if fused:
        return f"the math path shows fused attention kernels: {', '.join(fused)}"
    if "gemm" not in roles or "softmax" not in roles:
        math_seen = any(identify(launch.name).family == "sdpa-math" for call in found.calls for launch in call)
        if not math_seen:
            return f"the math path shows no matrix product and softmax, only {', '.join(sorted(roles))}"
    return ""


def findings(seen: Witness, latency_us: float, units: int) -> list[Finding]:
    """What the launches say beyond identity: an idle card, a copy that costs, a trace that disagrees with the clock.

    Args:
        latency_us: the untraced, measured time of the call.
        units: streaming multiprocessors of the card.
    """
    notes = []
    traced = sum(launch.duration_us for launch in seen.launches)
    for launch in seen.launches:
        if launch.role != "attention" or launch.grid is None:
            continue
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        if blocks < units // 2 and launch.duration_us > 20:
            detail = f"{launch.family or launch.name} ran {blocks} blocks on {units} multiprocessors"
            notes.append(
                Finding(check="grid", verdict="note", detail=detail, values={"blocks": blocks, "units": units})
            )
    side = sum(launch.duration_us for launch in seen.launches if launch.role == "auxiliary" and not launch.family)
    if traced and side / traced > UNCLASSIFIED_SHARE:
        detail = f"copies and elementwise kernels take {side / traced:.0%} of the device time"
        notes.append(Finding(check="auxiliary", verdict="note", detail=detail, values={"share": side / traced}))
    if min(traced, latency_us) > LEAST_US and abs(traced / latency_us - 1) > AGREEMENT_SHARE:
        detail = f"traced {traced:.1f} µs (warm), measured {latency_us:.1f} µs (cold): more than 10 % apart"
        values: dict[str, Value] = {"traced_us": traced, "latency_us": latency_us}
        notes.append(Finding(check="trace", verdict="note", detail=detail, values=values))
    return notes
