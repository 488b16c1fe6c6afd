"""budget: the error against the fp64 golden result, in the units of the accuracy class (qualify.run.golden.accuracy).

This check also judges the LSE with its base, and rows that see no key, because both need the golden result. ``nan >
limit`` is False, so a NaN would pass a careless comparison. The code looks for NaN explicitly in the output, in the LSE
and in the golden result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Literal

import torch
from torch import Tensor

from qualify.facts.accuracy import CALLED, CLASSES, E_LIMIT, R_LIMIT, AccuracyClass
from qualify.facts.case import Level
from qualify.facts.outcome import Finding, Statistics, Value
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.difference import finite, lse_apart
from qualify.run.checks.interface import Result, Shipped, Subject
from qualify.run.checks.rows import capped
from qualify.run.golden.accuracy import Errors, declared_class, errors_in
from qualify.run.golden.comparison import Deviations, compared, golden_rows, rows_within
from qualify.run.golden.result import Golden
from qualify.run.golden.rows import SAMPLE_ROWS
from qualify.run.inputs.tensors import INPUT_KINDS, InputKind

LseBase = Literal["e", "2", ""]
LOG2_E = 1 / math.log(2)
KINDS: dict[Level, tuple[InputKind, ...]] = {"smoke": ("normal",), "full": INPUT_KINDS}
NEAR_BASE = 5e-3
"""how far the ratio of an LSE to the golden one may be from that of a base"""
NEAR_E = NEAR_BASE / 2
"""an LSE with no larger relative error than this is in base e"""
FEW_ROWS = 64
"""rows that are compared first, because a few rows may already break the limits of a class"""
LIKELY_SMALL = "an output or weights that are rounded towards zero (truncated), or weights that are lost"
"""what is most often behind a bias of outputs that are too small"""
LIKELY_LARGE = "weights that sum to more than 1, such as an approximate exponential beside an exact sum"
"""the same where they are too large"""
Richer = Callable[[], Golden]
"""computes the golden result again, with every term that any accuracy class needs"""


class Budget(Shipped):
    """Compares with the golden result, and adds the statistics of each input kind to the subject."""

    def skips(self, subject: Subject) -> str:
        """Applies to every kernel."""
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """Compare one call for each input kind of the level."""
        findings: list[Finding] = []
        statistics: list[Statistics] = []
        for seed, kind in enumerate(KINDS[subject.level]):
            asked = subject if kind == "normal" else replace(subject, row_limit=SAMPLE_ROWS)
            call = asked.inputs(kind, seed).call
            found, measured = compare(asked, call, asked.golden(call), asked.run(call), kind, seed)
            findings += found
            statistics += [measured] if measured else []
        subject.statistics.extend(statistics)
        return findings


def full_golden(subject: Subject, call: AttentionCall) -> Golden:
    """The golden result with the terms of every class, for the rows that see a key."""
    found = subject.golden_of(call, dtype=subject.reference, underflow=True, scores=True, row_limit=subject.row_limit)
    return rows_kept(found, found.keys > 0)


def compare(
    subject: Subject, call: AttentionCall, golden: Golden, result: Result, kind: str, seed: int, *, measure: bool = True
) -> tuple[list[Finding], Statistics | None]:
    """Judge one result of a call against its golden result.

    Args:
        kind: name of the input kind, for findings and statistics.
        seed: number that is added to the subject's seed in the statistics.
        measure: False skips statistics, and the search for the tightest class, where the result keeps its limits. It is
            for probes that only need to know whether anything fails.
    """
    out = result.out[golden.rows]
    lse = None if result.lse is None else result.lse.T[golden.rows]
    findings, seen = list[Finding](), golden
    if not plain(golden, out):
        traps = not_finite(subject, golden, out, kind)
        hidden = (golden.keys <= 0).nonzero()[:, 0]
        findings += traps
        if len(hidden):
            findings += empty_rows(subject, out[hidden], None if lse is None else lse[hidden], call.sinks, kind)
            sees = (golden.keys > 0).nonzero()[:, 0]
            seen, out, lse = golden_rows(golden, sees), out[sees], None if lse is None else lse[sees]
        if traps:
            return findings, None
    if not len(seen.rows):
        return findings, None
    declared = declared_class(subject.card, subject.workload.dtype)
    richer = partial(full_golden, subject, call)
    if declared.scores:
        seen = richer()
    lse_rel, base, lse_findings = compare_lse(subject, seen, lse, kind)
    errors, measured = classified(seen, out, declared, richer, measure=measure)
    if measured is None:
        return [*findings, *lse_findings], None
    statistics = Statistics(
        inputs=kind,
        seed=subject.seed + seed,
        reference="fp64" if subject.reference == torch.float64 else "fp32",
        declared_class=declared.name,
        measured_class=measured,
        rows=out.shape[0] * out.shape[1],
        E=errors.E,
        E_without_underflow=errors.E_without_underflow,
        R=errors.R,
        G=errors.G,
        G_limit=errors.G_limit,
        beta=errors.beta,
        beta_limit=errors.beta_limit,
        worst_sequence=errors.worst_sequence,
        lse_rel=lse_rel,
        lse_base=base,
    )
    return [*findings, budget_finding(subject, seen, out, errors, declared, statistics), *lse_findings], statistics


def beyond_budget(subject: Subject, call: AttentionCall, result: Result, kind: InputKind = "normal") -> Finding | None:
    """The first failing finding of a comparison with the golden result; None where nothing fails."""
    findings, _ = compare(subject, call, subject.golden(call), result, kind, 0, measure=False)
    return next((finding for finding in findings if finding.verdict == "fail"), None)


def classified(
    golden: Golden, out: Tensor, declared: AccuracyClass, richer: Richer, *, measure: bool
) -> tuple[Errors, str | None]:
    """The statistics in the declared class, and the name of the tightest class whose limits the output keeps.

    The name is empty where it keeps none. Of classes with equal limits (bf16 and fp8kv), the declared one is named.

    Args:
        richer: computes the golden result with more terms, for classes that round scores.
        measure: False looks for no class where the output keeps the declared one; the name is then None.
    """
    found = compared(golden, out)
    errors = errors_in(found, declared)
    if errors.within and not measure:
        return errors, None
    excluded = ruled_out(found, declared)
    for known in CLASSES:
        kind = declared if known.name == declared.name else known
        if kind in excluded:
            continue
        if kind.scores and found.golden.S is None:
            del found  # its memory is needed
            found = compared(richer(), out)
        if errors.within if kind is declared else keeps(found, kind):
            return errors, declared.name if replace(kind, name=declared.name) == declared else known.name
    return errors, ""


def ruled_out(found: Deviations, declared: AccuracyClass) -> list[AccuracyClass]:
    """Classes before the declared one in which a few rows break E or R, which need single rows.

    The widest is asked first: what breaks its limits breaks those of every class that allows no more.
    """
    few, failed = found.first(FEW_ROWS), list[AccuracyClass]()
    underflow = few.golden.U is not None
    before = takewhile(lambda known: known.name != declared.name, CLASSES)
    for kind in reversed([known for known in before if not known.scores]):
        if any(no_wider(kind, than, underflow=underflow) for than in failed) or not rows_within(few, kind):
            failed.append(kind)
    return failed


def no_wider(kind: AccuracyClass, than: AccuracyClass, *, underflow: bool) -> bool:
    """Whether the limits of E and R in a class of CLASSES are nowhere above those in another.

    Args:
        underflow: whether the golden result has the term for weights below the normal range.
    """
    names = ("roundoff", "scores", "product", *(("underflow", "spacing") if underflow else ()))
    return than.name != "fp32" and all(getattr(kind, name) <= getattr(than, name) for name in names)


def keeps(found: Deviations, kind: AccuracyClass) -> bool:
    """Whether the output keeps the limits of a class. A few rows are judged first, because E and R need single rows."""
    return rows_within(found.first(FEW_ROWS), kind) and errors_in(found, kind).within


def rows_kept(golden: Golden, keep: Tensor) -> Golden:
    """The golden result limited to the rows that a mask keeps."""
    return golden if bool(keep.all()) else golden_rows(golden, keep.nonzero()[:, 0])


def plain(golden: Golden, out: Tensor) -> bool:
    """Whether all is finite and every row sees a key, as three sums tell: the LSE of a row without keys is -inf.

    Numbers of 32 bits and fewer do not overflow a sum in float64.
    """
    sums = [values.sum(dtype=torch.float64) for values in (golden.out, golden.lse, out)]
    return all(map(math.isfinite, torch.stack(sums).tolist()))


def not_finite(subject: Subject, golden: Golden, out: Tensor, kind: str) -> list[Finding]:
    """Findings about NaN or infinity where none may be: in the golden result, or in outputs of rows with keys."""
    seen = (golden.keys > 0).view(-1, 1)
    broken = ~finite(out) & seen.unsqueeze(-1)
    exact = finite(golden.out).all() & (finite(golden.lse) | ~seen).all()
    comparable, some_broken = torch.stack([exact, broken.any()]).tolist()  # one wait for both
    if not comparable:
        detail = f"{kind} inputs: the golden result itself is not finite, so nothing can be compared"
        return [Finding(check="budget", verdict="fail", detail=detail, values={"inputs": kind})]
    if not some_broken:
        return []
    row, head, element = (int(x) for x in broken.nonzero()[0])
    sequence, query = subject.locate(int(golden.rows[row]))
    count = int(broken.sum())
    detail = (
        f"{kind} inputs: {count} of {broken.numel()} output elements are NaN or infinite; first: sequence {sequence}, "
        f"query {query}, head {head}, element {element}: {float(out[row, head, element])}, golden "
        f"{float(golden.out[row, head, element]):.6g}"
    )
    values: dict[str, Value] = {"inputs": kind, "elements": count, "sequence": sequence, "query": query, "head": head}
    return [Finding(check="budget", verdict="fail", detail=detail, values=values)]


def empty_rows(subject: Subject, out: Tensor, lse: Tensor | None, sinks: Tensor | None, kind: str) -> list[Finding]:
    """Findings where rows that see no key differ from the card's ``empty_row``.

    With sinks, the LSE may also be the sink: it is the LSE of the sink alone, and FlashAttention-3 and -4 return it.

    Args:
        out: (rows, heads_q, head_dim_v) of the rows that see no key.
        lse: (rows, heads_q) of these rows.
        sinks: (heads_q,) of the call.
    """
    policy = subject.card.claims.empty_row
    out_right = {"0": out == 0, "nan": out.isnan()}.get(policy.out)
    infinity = {"-inf": -math.inf, "inf": math.inf}.get(policy.lse)
    lse_right = None if lse is None or infinity is None else lse == infinity
    if lse is not None and lse_right is not None and sinks is not None:
        lse_right |= ~lse_apart(sinks.expand_as(lse), lse, subject.card.claims.lse.rel)
    asked = [right for right in (out_right, lse_right) if right is not None]
    wrong = []
    if asked and not all(torch.stack([right.all() for right in asked]).tolist()):  # one wait for both
        if out_right is not None and not bool(out_right.all()):
            wrong.append(
                f"the card claims {policy.out} for their output, but one element is {float(out[~out_right][0])}"
            )
        if lse is not None and lse_right is not None and not bool(lse_right.all()):
            expected = policy.lse if sinks is None else f"{policy.lse} (or the sink)"
            wrong.append(f"the card claims {expected} for their LSE, but one is {float(lse[~lse_right][0])}")
    if not wrong:
        return []
    if lse is not None and lse_right is not None:
        wrong += capped(lse[~lse_right], subject.workload)
    detail = f"{kind} inputs: {len(out)} query rows see no key; {'; '.join(wrong)}"
    return [Finding(check="empty_row", verdict="fail", detail=detail, values={"rows": len(out), "inputs": kind})]


def budget_finding(
    subject: Subject, golden: Golden, out: Tensor, errors: Errors, declared: AccuracyClass, statistics: Statistics
) -> Finding:
    """The finding about E, R, G and β: which limits are broken, and the places of the worst element and row."""
    values: dict[str, Value] = {
        "inputs": statistics.inputs,
        "E": errors.E,
        "R": errors.R,
        "G": errors.G,
        "G_limit": errors.G_limit,
        "beta": errors.beta,
        "beta_limit": errors.beta_limit,
        "measured_class": statistics.measured_class,
    }
    limits = (("E", errors.E, E_LIMIT), ("R", errors.R, R_LIMIT), ("G", errors.G, errors.G_limit))
    over = [f"{value:.3g} > {limit:.3g} ({CALLED[name]})" for name, value, limit in limits if not value <= limit]
    broken = [f"error {', '.join(over)}"] if over else []
    if not abs(errors.beta) <= errors.beta_limit:
        size, likely = ("small", LIKELY_SMALL) if errors.beta < 0 else ("large", LIKELY_LARGE)
        broken.append(f"|β| {abs(errors.beta):.3g} > {errors.beta_limit:.3g}")
        if len(broken) == 1:
            values |= {"wrong": f"The outputs are too {size} on the whole", "likely": likely}
            broken = [f"the outputs are too {size} by {abs(errors.beta):.2%} on the whole: {broken[0]}"]
    if not broken:
        better = statistics.measured_class not in {"", declared.name}
        detail = f"{statistics.inputs} inputs: within the budget of {declared.name}" + (
            f"; measured {statistics.measured_class}" if better else ""
        )
        return Finding(check="budget", verdict="pass", detail=detail, values=values)
    row, head, element = errors.worst
    sequence, query = subject.locate(int(golden.rows[row]))
    row_sequence, row_query = subject.locate(int(golden.rows[errors.worst_row[0]]))
    values |= {"sequence": sequence, "query": query, "head": head, "element": element, "over": errors.over}
    measured = statistics.measured_class or f"worse than {CLASSES[-1].name}"
    widest = f"; over all rows of sequence {errors.worst_sequence}" if errors.worst_sequence is not None else ""
    detail = (
        f"{statistics.inputs} inputs: declared {declared.name}, measured {measured}: {', '.join(broken)}; worst: "
        f"sequence {sequence}, query {query}, head {head}, element {element}: {float(out[row, head, element]):.6g}, "
        f"golden {float(golden.out[row, head, element]):.6g}; worst row: sequence {row_sequence}, query {row_query}, "
        f"head {errors.worst_row[1]}{widest}; {errors.over} of {out.numel()} elements over the limit "
        f"({errors.over / out.numel():.2%})"
    )
    return Finding(check="budget", verdict="fail", detail=detail, values=values)


def base_of(returned: Tensor, expected: Tensor) -> LseBase:
    """The base of an LSE, from the ratio to the golden one where that is larger than 1; empty where there is none."""
    telling = (returned / expected)[expected.abs() > 1]
    ratio = float(telling.median()) if len(telling) else math.nan
    return "2" if abs(ratio - LOG2_E) < NEAR_BASE else "e" if abs(ratio - 1) < NEAR_BASE else ""


def compare_lse(
    subject: Subject, golden: Golden, lse: Tensor | None, kind: str
) -> tuple[float | None, LseBase, list[Finding]]:
    """(worst relative error of the LSE, its base, findings)."""
    claimed = "lse" in subject.card.claims.features
    if lse is None:
        detail = "the card claims an LSE and the kernel returned none"
        missing = Finding(check="lse", verdict="fail", detail=detail)
        return None, "", [missing] if claimed else []
    returned, size = lse.to(golden.lse.dtype), golden.lse.abs()
    error = (returned - golden.lse).abs_() / size.clamp(min=1)
    worst, largest = torch.stack([error.max(), size.max()]).tolist()  # one wait for both
    worst = math.inf if math.isnan(worst) else min(worst, torch.finfo(error.dtype).max)
    limit = subject.card.claims.lse.rel
    # An LSE so near to the golden one has its base, without a look at the ratio of the two.
    base = base_of(returned, golden.lse) if worst > NEAR_E else "e" if largest > 1 else ""
    values: dict[str, Value] = {"inputs": kind, "lse_rel": worst, "limit": limit, "base": base}
    if worst <= limit:
        detail = f"{kind} inputs: LSE within {limit:g} relative"
        return worst, base, [Finding(check="lse", verdict="pass", detail=detail, values=values)]
    at = int(error.nan_to_num(nan=math.inf).argmax())
    row, head = at // error.shape[1], at % error.shape[1]
    sequence, query = subject.locate(int(golden.rows[row]))
    cause = "; it is in base 2, the contract asks for the natural logarithm" if base == "2" else ""
    detail = (
        f"{kind} inputs: LSE is off by {worst:.3g} relative, limit {limit:g}{cause}; worst: sequence {sequence}, query "
        f"{query}, head {head}: {float(lse[row, head]):.7g}, golden {float(golden.lse[row, head]):.7g}"
    )
    return worst, base, [Finding(check="lse", verdict="fail", detail=detail, values=values)]
