"""The checks: what each asks, when it runs, and what its findings are called. Data: no torch, no card, no device.

An entry and the module ``qualify.run.checks.NAME``, with a class of that name in CamelCase, are a whole check: cards,
waivers, scripts, reports, the selftest and the documents read this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from qualify.facts.accuracy import COPIED, HALF_A_KEY, ROUNDED, ElementBound
from qualify.facts.case import Level

CHECK_VERSION = 15
"""Raised whenever a check's meaning or limits change: evidence of another version is not comparable."""

Past = Literal["never", "differences", "always"]
"""
Which findings need the launches before them to happen again. never: two calls that differ, or one wrong result, show
it alone; differences: one wrong result does, two results that differ need every launch before; always: both need them.
"""
Proof = Literal["form", "empty_row", "lse", "budget", "element"]
"""
What of a result a script holds against its exact value. form: shape, dtype and device, or what the call wrote to;
empty_row: a row without keys; lse: every LSE; budget: the statistics of the accuracy class; element: one element.
"""
ANY_PROOF: tuple[Proof, ...] = ("lse", "budget", "element")
Topic = Literal["mask", "numbers", ""]
"""the question of the report that a check answers: which keys are seen, how large errors are, or none of its own"""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownCheck:
    """One check."""

    name: str
    """of its module, of its findings, and in cards, waivers and reports"""
    question: str
    """what it asks, in one sentence"""
    levels: tuple[Level, ...] = ("smoke", "full")
    """levels at which it runs"""
    cost: str
    """what it costs, in calls of the kernel"""
    needs: str = ""
    """what a kernel or a workload must have to be asked; empty = nothing"""
    also: Mapping[str, tuple[Proof, ...]] = field(default_factory=dict)
    """names of its findings beyond its own name, and what shows each in a script"""
    shown_by: tuple[Proof, ...] = ANY_PROOF
    """what shows its own finding in a script; the first that does is taken"""
    element: ElementBound = ROUNDED
    """bound of ``element``"""
    bitwise: bool = False
    """whether two results differ in any bit, also where the card claims no determinism"""
    past: Past = "differences"
    """whether a script needs what was launched before a wrong result"""
    recordable: bool = True
    """False where it captures or measures what recording its calls would disturb: then it has no script of its own"""
    neighbours: bool = False
    """whether a case that fails among others and passes alone bears its finding"""
    topic: Topic = ""

    @property
    def findings(self) -> tuple[str, ...]:
        """Every name under which its findings stand."""
        return self.name, *self.also


FULL: tuple[Level, ...] = ("full",)
NO_NEW_SHAPES = "a kernel that is not compiled for each shape"

CHECKS: tuple[KnownCheck, ...] = (
    KnownCheck(
        name="contract",
        question="Has the result the right shape, dtype and device, and does the call change nothing else?",
        cost="two calls",
        shown_by=("form",),
    ),
    KnownCheck(
        name="census",
        question="Which keys does each query see?",
        cost="two calls per labelled window, one more at full",
        shown_by=("element", "lse"),
        element=HALF_A_KEY,
        topic="mask",
    ),
    KnownCheck(
        name="needle",
        question="Does a query that one key dominates return that key's value, bit for bit?",
        cost="one call per sweep",
        shown_by=("element", "lse"),
        element=COPIED,
        topic="mask",
    ),
    KnownCheck(
        name="parameters",
        question="Are the scale, the softcap and each head's sink those of the call?",
        cost="two calls at smoke, four at full, two more under a softcap and four with sinks",
        needs="keys of two elements, and a query that sees two",
    ),
    KnownCheck(
        name="poison",
        question="Do bytes outside the valid region, or keys that no query sees, change the result?",
        cost="four calls, two more where keys are hidden",
        past="never",
        topic="mask",
    ),
    KnownCheck(
        name="suffix",
        question="Does a query notice the future, a neighbour in the batch, or keys behind its window?",
        cost="one call per split and direction, two for the neighbours",
        needs="a key that some query does not see",
        past="never",
        topic="mask",
    ),
    KnownCheck(
        name="page_permutation",
        question="Is the result the same wherever the pages of the cache lie, and does the cache stay as it was?",
        cost="three calls at smoke, nine at full",
        needs="a paged cache",
        past="never",
    ),
    KnownCheck(
        name="heads",
        question="Does each query head read its own key/value head and no other?",
        levels=FULL,
        cost="one call per binary digit of the KV heads and one with keys; the same and a golden result for ten groups",
        past="never",
    ),
    KnownCheck(
        name="powers_of_two",
        question="Does scaling by a power of two change only the exponent of the result?",
        levels=FULL,
        cost="five calls, one more of values in fp8",
        past="never",
    ),
    KnownCheck(
        name="nan",
        question="Does a NaN that a query sees show in its result?",
        levels=FULL,
        cost="eight calls",
        needs="a card that claims it, and a query that sees a key",
    ),
    KnownCheck(
        name="degenerate",
        question="Is the result right at the lengths at which kernels break?",
        levels=FULL,
        cost="three to sixteen small calls, each with a golden result",
        needs=NO_NEW_SHAPES,
    ),
    KnownCheck(
        name="merge",
        question="Is attention over two parts of a cache, merged through their LSE, attention over the whole?",
        levels=FULL,
        cost="three calls and a golden result",
        needs="an LSE, and a mask whose parts are calls of their own",
    ),
    KnownCheck(
        name="layout",
        question="Is the result the same however the tensors lie in memory?",
        levels=FULL,
        cost="one call per layout, at most fourteen",
        past="never",
    ),
    KnownCheck(
        name="history",
        question="Does what a kernel did before show in what it does now?",
        levels=FULL,
        cost="two small calls and a golden result for each difference, at most twenty, and at most 23 small calls",
        needs=NO_NEW_SHAPES,
        past="always",
        neighbours=True,
    ),
    KnownCheck(
        name="size_limits",
        question="Is the result right where 16 or 32 bits no longer count what a production call has?",
        levels=FULL,
        cost="at most thirteen small calls, six over 2^31 elements or more; each once for a kernel, dtype and layout",
        needs=NO_NEW_SHAPES,
    ),
    KnownCheck(
        name="long_context",
        question="Do the sums over one long sequence reach its end, in enough bits?",
        levels=FULL,
        cost="four calls (on a GPU ten), two more with small groups; once for a kernel, dtype and layout",
        needs=f"{NO_NEW_SHAPES}, and a mask that shows a late key",
    ),
    KnownCheck(
        name="repeat",
        question="Does the same call give the same bits, where the card claims determinism?",
        cost="3 calls at smoke, 20 at full, where 10 share the GPU",
        bitwise=True,
        past="always",
    ),
    KnownCheck(
        name="surroundings",
        question="Is the result the same in another mode, thread or stream, and after many other shapes?",
        levels=FULL,
        cost="at most seven small calls, and 66 of other lengths; once for a kernel and layout",
        past="always",
    ),
    KnownCheck(
        name="leak",
        question="Does a call give back the memory that it takes?",
        levels=FULL,
        cost="eight small calls; once for a kernel, dtype and layout",
        needs=NO_NEW_SHAPES,
        recordable=False,
    ),
    KnownCheck(
        name="growth",
        question="Does temporary memory grow like the sequence, and not like its square?",
        levels=FULL,
        cost="two calls at each of two lengths",
        needs=f"{NO_NEW_SHAPES}, and more than one query",
        recordable=False,
    ),
    KnownCheck(
        name="graph",
        question="Does a captured call give what an eager call gives, also with other contents and lengths?",
        levels=FULL,
        cost="seven calls, six more on pages",
        needs="a CUDA device",
        recordable=False,
    ),
    KnownCheck(
        name="budget",
        question="Is the error against the golden result within the limits of the accuracy class?",
        cost="a golden result and a call per input kind",
        shown_by=("budget",),
        also={"lse": ("lse",), "empty_row": ("empty_row",)},
        topic="numbers",
    ),
)
"""In the order in which they run: the cheapest that explains most comes first."""

(NEIGHBOURS,) = (known.name for known in CHECKS if known.neighbours)
"""the finding of a case that fails among others and passes alone"""
MEASURED = ("witness", "timing")
"""findings of the witness and of the timing, which are no checks"""
FINDINGS = (*(name for known in CHECKS for name in known.findings), *MEASURED)
"""every finding that may fail: the words of waivers and incidents"""


def known_check(name: str) -> KnownCheck:
    """The check of that name; KeyError on an unknown one."""
    return {known.name: known for known in CHECKS}[name]


def check_of(finding: str) -> KnownCheck | None:
    """The check that writes findings of that name; None where no check does."""
    return next((known for known in CHECKS if finding in known.findings), None)


def proofs_of(finding: str) -> tuple[Proof, ...]:
    """What shows a finding of that name in a script; for one that no check writes, whatever is wrong."""
    known = check_of(finding)
    if known is None:
        return ANY_PROOF
    return known.also.get(finding, known.shown_by)


def findings_shown_by(proof: Proof) -> tuple[str, ...]:
    """Names of the findings that a script shows by that proof alone."""
    return tuple(name for known in CHECKS for name in known.findings if proofs_of(name) == (proof,))


def findings_about(topic: Topic) -> tuple[str, ...]:
    """Names of the findings of the checks that answer one question of the report."""
    return tuple(name for known in CHECKS if known.topic == topic for name in known.findings)
