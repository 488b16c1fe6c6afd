"""Where two results differ that should be equal, and whether the change between the calls is the cause."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qualify.facts.outcome import Finding, Value
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.interface import ContractBreach, Result, Subject, failing
from qualify.run.checks.rows import rows_of
from qualify.run.inputs.formats import TORCH_DTYPES
from qualify.run.unlike import INTEGERS, unlike


def same_bits(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise equality of the bits: a NaN equals a NaN of the same bits, and 0 differs from -0."""
    return _bits(a) == _bits(b)


def unlike_bits(a: Tensor, b: Tensor) -> Tensor:
    """The opposite of :func:`same_bits`."""
    return _bits(a) != _bits(b)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(INTEGERS[tensor.element_size()])


def finite(values: Tensor) -> Tensor:
    """Elements that are neither NaN nor infinite. ``isfinite`` takes twice as many operators."""
    return values.abs() < math.inf


def narrower_format(actual: Tensor, expected: Tensor) -> str:
    """The format of fewer bits that an output was rounded to; empty where there is none.

    It holds every element exactly, and does not hold what should be there, which is near.

    Args:
        actual: elements of an output.
        expected: what they should be, in any dtype.
    """
    for name, dtype in TORCH_DTYPES.items():
        unit = torch.finfo(dtype).eps
        if unit <= torch.finfo(actual.dtype).eps or torch.equal(expected.to(dtype).to(expected.dtype), expected):
            continue
        near = (actual.double() - expected.double()).abs() <= unit * expected.double().abs()
        if torch.equal(actual.to(dtype).to(actual.dtype), actual) and bool(near.all()):
            return name
    return ""


Difference = dict[str, Value]
"""where two results differ: tensor (out, lse), sequence, query, head, element, before, after, elements, share, rows"""
STEPS, STEPS_FP32 = 8, 64
"""How far a kernel that does not claim determinism may differ from itself, in units in the last place of a row's
largest element; the second number is for fp32. There, rounding of the scores is not small beside that of the output:
PyTorch on a CPU once differed by more than 8 units with other strides."""


def difference(
    subject: Subject, before: Result, after: Result, rows: Tensor | None = None, *, exact: bool = True
) -> Difference | None:
    """The first place where two results differ; None where they do not differ.

    Rows that see no key are left out where the card promises nothing about them.

    Args:
        rows: (total_q,) bool mask of the packed query rows to compare; None = all rows.
        exact: True compares bits. False allows the difference that a kernel without determinism may have from itself
            (STEPS), and for the LSE twice the relative error that the card claims.

    Raises:
        ContractBreach: only one of them has the LSE that the card claims.
    """
    if (before.lse is None) != (after.lse is None):
        raise ContractBreach("the card claims an LSE; one call returned it, another did not", {"tensor": "lse"})
    pairs = [(before.out, after.out)]
    if before.lse is not None and after.lse is not None:
        pairs.append((before.lse, after.lse))
    if rows is None and not any(unlike(pairs)):
        return None
    policy = subject.card.claims.empty_row
    kept = _promised(subject, rows) if policy.out == "any" else rows
    apart = unlike_bits(before.out, after.out) if exact else far_apart(before.out, after.out)
    asked = [("out", _within(apart, kept), before.out, after.out)]
    if pairs[1:]:
        was, now = (lse.T.unsqueeze(-1) for lse in pairs[1])
        kept = _promised(subject, rows) if "any" in {policy.out, policy.lse} else rows
        apart = unlike_bits(was, now) if exact else lse_apart(was, now, subject.card.claims.lse.rel)
        asked.append(("lse", _within(apart, kept), was, now))
    counts = torch.stack([unequal.sum() for _, unequal, _, _ in asked]).tolist()  # one wait for both
    for count, (name, unequal, was, now) in zip(counts, asked, strict=True):
        if count:
            return _first(subject, name, unequal, was, now, count)
    return None


def _within(unequal: Tensor, rows: Tensor | None) -> Tensor:
    """Unequal elements (total_q, heads_q, elements) in some of the rows; None = all rows."""
    return unequal if rows is None else unequal & rows.view(-1, 1, 1)


def _promised(subject: Subject, rows: Tensor | None) -> Tensor:
    """(total_q,) bool: rows that see a key, among all rows or the given ones."""
    workload = subject.workload
    some = rows_of(workload, subject.device).visible().some
    return some if rows is None else rows & some


def _first(subject: Subject, name: str, unequal: Tensor, before: Tensor, after: Tensor, count: int) -> Difference:
    """The first unequal element and the number of them.

    Args:
        name: ``out`` or ``lse``.
        unequal: (total_q, heads_q, elements) bool.
        count: how many are unequal; at least one.
    """
    row, head, element = (int(x) for x in unequal.nonzero()[0])
    sequence, query = subject.locate(row)
    return {
        "tensor": name,
        "sequence": sequence,
        "query": query,
        "head": head,
        "element": element,
        "before": float(before[row, head, element]),
        "after": float(after[row, head, element]),
        "elements": count,
        "share": count / unequal.numel(),
        "rows": int(unequal.flatten(1).any(1).sum()),
    }


def steps_of(dtype: torch.dtype) -> int:
    """The number of steps (STEPS) for an output's dtype."""
    return STEPS_FP32 if dtype == torch.float32 else STEPS


def far_apart(before: Tensor, after: Tensor) -> Tensor:
    """Elements that differ by more than STEPS units in the last place of their row's largest; two NaN are equal."""
    allowed = steps_of(before.dtype) * torch.finfo(before.dtype).eps * before.float().abs().amax(-1, keepdim=True)
    near = (before.float() - after.float()).abs() <= allowed
    return ~(near | same_bits(before, after))


def lse_apart(before: Tensor, after: Tensor, rel: float) -> Tensor:
    """Where two LSE differ so much that one of them must be wrong; equal infinities count as equal.

    Args:
        rel: the relative error that each may have; where the LSE is below 1, it is an absolute error.
    """
    near = (before - after).abs() <= 2 * rel * before.abs().clamp(min=1)
    return ~((near & finite(before) & finite(after)) | same_bits(before, after))


def changed(values: Difference) -> str:
    """A sentence about a difference."""
    return (
        f"{values['elements']} elements of {values['tensor']} in {values['rows']} rows ({values['share']:.2%}) "
        f"changed; first: sequence {values['sequence']}, query {values['query']}, head {values['head']}, element "
        f"{values['element']}: {values['before']:.9g} became {values['after']:.9g}"
    )


def unequal(found: Difference, subject: Subject, first: Result, later: Result) -> dict[str, Value]:
    """The values of a finding that two equal calls differ, and whether by more than rounding explains."""
    beyond = difference(subject, first, later, exact=False)
    return {**found, "beyond_rounding": True} if beyond else {**found}


UNCHANGED = 5
"""how often an unchanged call is repeated before a change is named as the cause of a difference"""


def unsteady(subject: Subject, call: AttentionCall, before: Result | None = None) -> Finding | None:
    """A finding where the unchanged call does not return the same again, so that the change is not the cause.

    Args:
        before: earlier result of the call. None compares new calls only, because a kernel may remember the change.
    """
    before = subject.run(call) if before is None else before
    for number in range(1, UNCHANGED + 1):
        later = subject.run(call)
        found = difference(subject, before, later, exact=subject.card.claims.deterministic)
        if found:
            times = "once" if number == 1 else f"{number} times"
            detail = f"the same call, repeated {times} with nothing changed, gives another result: {changed(found)}"
            return failing("repeat", detail, {"call": number + 1, **unequal(found, subject, before, later)})
    return None


def blame_change(
    subject: Subject,
    check: str,
    said: str,
    found: Difference,
    values: dict[str, Value],
    *,
    call: AttentionCall,
    before: Result | None = None,
) -> Finding:
    """The finding that a change made a difference; where even the unchanged call varies, the finding of that.

    Args:
        check: name of the check.
        said: beginning of a sentence that says what was changed; the difference is its end.
        found: the difference.
        values: values of the finding that say what was changed.
        call: the unchanged call.
        before: as for :func:`unsteady`.
    """
    return unsteady(subject, call, before) or failing(check, f"{said}{changed(found)}", {**values, **found})
