"""Turns a failed finding and the recorded launches into one claim that a script can assert.

The claim comes from the results themselves. Where a finding compares two results (``before`` and ``after``), the module
looks for the launches that returned these values. Otherwise it compares every result with the golden result of its
call, the last result first. The first element that no rounding explains is the claim. The table of checks
(qualify.facts.checks) says for each check which earlier launches the claim needs, which part of a result shows the
finding, and with which bound. That part is the LSE, an empty row, the error budget, or one element.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qualify.facts.accuracy import E_LIMIT, R_LIMIT, ROUNDED, ElementBound
from qualify.facts.checks import Past, Proof, check_of, proofs_of
from qualify.facts.outcome import Finding, Value
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.budget import full_golden, rows_kept
from qualify.run.checks.difference import steps_of
from qualify.run.checks.interface import Subject
from qualify.run.golden.accuracy import declared_class, judge
from qualify.run.golden.result import Golden
from qualify.run.inputs.formats import TORCH_DTYPES
from qualify.run.repro import standalone
from qualify.run.repro.recording import RecordedLaunch
from qualify.run.repro.script import Claim

Found = tuple[Callable[..., standalone.Claimed], dict[str, Any]]
"""a function of ``standalone`` with its keywords; ``row`` (of the golden result) stands for sequence and query"""


def claim_of(subject: Subject, finding: Finding, launches: list[RecordedLaunch]) -> Claim | None:
    """The claim for a finding; None where no recorded result shows the finding."""
    last = len(launches) - 1
    if last < 0:
        return None
    if "form" in proofs_of(finding.check):
        return _broken_contract(finding.values, last)
    if "before" in finding.values and "after" in finding.values:
        found = _same(subject, finding, launches)
        if found:
            return found
    for number in range(last, -1, -1):
        found = _wrong_result(subject, finding, launches[number], number)
        if found:
            return found
    return None


def _broken_contract(values: Mapping[str, Value], last: int) -> Claim:
    """The claim for a finding of the check ``contract``, by what its values tell.

    Args:
        last: number of the last launch, which broke it, or overwrote the result of the one before.
    """
    if "tensors" in values:
        given = ("kernel", f"call{last}")
        return Claim(shows=standalone.writes_inputs, given=given, launches=(last,), values={}, launched=False)
    if "before" in values:
        calls = ("kernel", f"call{last - 1}", f"call{last}")
        return Claim(shows=standalone.overwrites, given=calls, launches=(last - 1, last), values={}, launched=False)
    call, out, lse = results_of(last)
    if "actual" in values or "returned" in values:
        return Claim(shows=standalone.breaks_contract, given=(call, out, lse), launches=(last,), values={})
    return Claim(shows=standalone.lse_is_missing, given=(call, lse), launches=(last,), values={})


def past_of(finding: Finding) -> Past:
    """Which results of the finding's check need the launches before them."""
    known = check_of(finding.check)
    return known.past if known else "differences"


def results_of(number: int) -> tuple[str, str, str]:
    """Names, in the program, of a call, its out and its lse."""
    return f"call{number}", f"out{number}", f"lse{number}"


def _same(subject: Subject, finding: Finding, launches: list[RecordedLaunch]) -> Claim | None:
    """A claim that two launches should agree: those whose results hold the finding's two values at its place."""
    values = finding.values
    place = {key: int(values.get(key) or 0) for key in ("sequence", "query", "head", "element")}
    tensor = str(values.get("tensor", "out"))

    def is_value(number: int, key: str) -> bool:
        wanted, seen = values[key], _value_at(launches[number], tensor, **place)
        return isinstance(wanted, float) and (seen == wanted or (math.isnan(seen) and math.isnan(wanted)))

    before = next((number for number in range(len(launches)) if is_value(number, "before")), None)
    after = next((number for number in range(len(launches) - 1, -1, -1) if is_value(number, "after")), None)
    if before is None or after is None or before == after:
        return None
    known = check_of(finding.check)
    every_bit = subject.card.claims.deterministic or (known is not None and known.bitwise)
    return Claim(
        shows=standalone.results_differ,
        given=(f"call{after}", f"(out{before}, lse{before})", f"(out{after}, lse{after})"),
        launches=(before, after) if past_of(finding) == "never" else tuple(range(after + 1)),
        values={
            "tensor": tensor,
            **place,
            "steps": 0.0 if every_bit else steps_of(TORCH_DTYPES[subject.workload.out_format]),
            "change": _change(finding),
        },
    )


def _value_at(launch: RecordedLaunch, tensor: str, *, sequence: int, query: int, head: int, element: int) -> float:
    """The value at a place of a launch's result; NaN where the launch returned no such tensor."""
    row = int(launch.call.cu_seqlens_q[sequence]) + query
    if tensor == "lse" and isinstance(launch.lse, Tensor):
        return float(launch.lse[head, row])
    return float(launch.out[row, head, element]) if isinstance(launch.out, Tensor) else math.nan


def _change(finding: Finding) -> str:
    """What changed between the two launches, in words."""
    values = finding.values
    for key, words in (
        ("poison", "{} was put into the bytes outside the valid region"),
        ("masked_poison", "{} was put into keys that no query sees"),
        ("what", "{} changed"),
        ("call", "the same call was repeated (call {})"),
    ):
        if key in values:
            return words.format(values[key])
    return f"what {finding.check} changes"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """A result and the golden result of its call, with the same rows."""

    subject: Subject
    call: AttentionCall
    golden: Golden
    out: Tensor
    """(rows, heads_q, head_dim_v)"""
    lse: Tensor | None
    """(rows, heads_q)"""
    bound: ElementBound


def _wrong_result(subject: Subject, finding: Finding, launch: RecordedLaunch, number: int) -> Claim | None:
    """The claim that a result differs from its golden result; None where it shows nothing of the finding's kind."""
    if not isinstance(launch.out, Tensor):
        return None
    rounds_scores = declared_class(subject.card, subject.workload.dtype).scores
    golden = full_golden(subject, launch.call) if rounds_scores else subject.golden(launch.call)
    proofs = proofs_of(str(finding.values.get("finding", finding.check)))
    if "empty_row" not in proofs:
        golden = rows_kept(golden, golden.keys > 0)
    if not len(golden.rows):
        return None
    known = check_of(finding.check)
    shown = _Shown(
        subject=subject,
        call=launch.call,
        golden=golden,
        out=launch.out[golden.rows],
        lse=launch.lse.T[golden.rows] if isinstance(launch.lse, Tensor) else None,
        bound=known.element if known else ROUNDED,
    )
    found = next(filter(None, (PROOFS[proof](shown) for proof in proofs)), None)
    if found is None:
        return None
    shows, values = found
    if "row" in values:
        sequence, query = _locate(launch.call.cu_seqlens_q, int(golden.rows[values.pop("row")]))
        values = {"sequence": sequence, "query": query, **values}
    launches = tuple(range(number + 1)) if past_of(finding) == "always" else (number,)
    names = dict(zip(("call", "out", "lse"), results_of(number), strict=True))
    given = tuple(names[name] for name in inspect.signature(shows).parameters if name in names)
    return Claim(shows=shows, given=given, launches=launches, values=values)


def _locate(bounds: Tensor, row: int) -> tuple[int, int]:
    """(sequence, query) of a packed row."""
    starts = bounds.tolist()
    sequence = max(index for index in range(len(starts) - 1) if starts[index] <= row)
    return sequence, row - int(starts[sequence])


def _place(flat: int, shape: torch.Size) -> tuple[int, ...]:
    """The indices of an element. ``torch.unravel_index`` would first import hundreds of modules of the compiler."""
    found = []
    for size in reversed(shape):
        flat, index = divmod(flat, size)
        found.append(index)
    return tuple(reversed(found))


def _empty(shown: _Shown) -> Found | None:
    """A row without keys whose result differs from the card's ``empty_row``."""
    out, lse, policy = shown.out, shown.lse, shown.subject.card.claims.empty_row
    wrong = torch.zeros(out.shape[:2], dtype=torch.bool, device=out.device)
    if policy.out in ("0", "nan"):
        wrong |= ~((out == 0) if policy.out == "0" else out.isnan()).all(-1)
    if lse is not None and policy.lse in ("-inf", "inf"):
        wrong |= lse != float(policy.lse)
    wrong &= (shown.golden.keys == 0)[:, None]
    if not bool(wrong.any()):
        return None
    row, head = (int(index) for index in wrong.nonzero()[0])
    values = {"row": row, "head": head, "out_policy": policy.out, "lse_policy": policy.lse}
    return standalone.empty_row_is_off, values


def _lse(shown: _Shown) -> Found | None:
    """The worst LSE that is less accurate than the card claims."""
    golden, lse, claims = shown.golden, shown.lse, shown.subject.card.claims
    limit = claims.lse.rel
    if lse is None:
        claimed = "lse" in claims.features
        return (standalone.lse_is_off, {"row": 0, "head": 0, "allowed": limit}) if claimed else None
    error = (lse.to(golden.lse.dtype) - golden.lse).abs() / golden.lse.abs().clamp(min=1)
    error = error.nan_to_num(nan=math.inf)
    if float(error.max()) <= limit:
        return None
    row, head = _place(int(error.argmax()), error.shape)
    return standalone.lse_is_off, {"row": row, "head": head, "allowed": limit}


def _budget(shown: _Shown) -> Found | None:
    """The broken statistic of the error budget, as an error in plain numbers: of an element, a row, or all rows."""
    subject, golden, out = shown.subject, shown.golden, shown.out
    broken = ~out.isfinite()
    if bool(broken.any()):
        row, head, element = (int(index) for index in broken.nonzero()[0])
        return standalone.element_is_off, _at(row, head, element) | {"absolute": 1e-2, "of_value": 1e-2}
    errors = judge(golden, out, declared_class(subject.card, subject.workload.dtype))
    error = out.to(golden.out.dtype) - golden.out
    if not errors.E <= E_LIMIT:
        row, head, element = errors.worst
        allowed = float(error[row, head, element].abs()) / errors.E * E_LIMIT
        return standalone.element_is_off, _at(row, head, element) | {"absolute": _short(allowed)}
    if not errors.R <= R_LIMIT:
        row, head = errors.worst_row
        allowed = float(error[row, head].square().mean().sqrt()) / errors.R * R_LIMIT
        return standalone.row_is_off, {"row": row, "head": head, "allowed": _short(allowed)}
    if not abs(errors.beta) <= errors.beta_limit:
        return standalone.rows_are_off, {"statistic": "gain", "allowed": _short(errors.beta_limit)}
    if not errors.G <= errors.G_limit:
        allowed = float(error.square().mean().sqrt()) / errors.G * errors.G_limit
        return standalone.rows_are_off, {"statistic": "rms error", "allowed": _short(allowed)}
    return None


def _at(row: int, head: int, element: int) -> dict[str, Any]:
    return {"row": row, "head": head, "element": element}


def _short(value: float) -> float:
    """The value with six digits, for the text of a script."""
    return float(f"{value:.6g}")


def _element(shown: _Shown) -> Found | None:
    """The worst element against the bound of the check."""
    golden, bound, roundoff = shown.golden, shown.bound, torch.finfo(shown.out.dtype).eps / 2
    allowed = {"absolute": bound.absolute, "of_value": bound.of_value * roundoff}
    allowed["of_weights"] = bound.of_weights * roundoff
    allowed["of_key"] = bound.of_key and bound.of_key * float(shown.call.v[shown.call.v.isfinite()].abs().max())
    limit = allowed["absolute"] + allowed["of_value"] * golden.out.abs() + allowed["of_weights"] * golden.A
    limit = limit + allowed["of_key"] * torch.exp(-golden.lse).unsqueeze(-1)
    over = ((shown.out.to(golden.out.dtype) - golden.out).abs() / limit).nan_to_num(nan=math.inf)
    if float(over.max()) <= 1:
        return None
    row, head, element = _place(int(over.argmax()), over.shape)
    return standalone.element_is_off, _at(row, head, element) | {key: part for key, part in allowed.items() if part}


PROOFS: Mapping[Proof, Callable[[_Shown], Found | None]] = {
    "empty_row": _empty,
    "lse": _lse,
    "budget": _budget,
    "element": _element,
}
"""by proof, the function that compares a result with the golden one; the proof ``form`` needs none"""
