"""The checks: what each one tests, when it runs, and the names of its findings. Data: no torch, no card, no device.

A whole check is an entry here and the module ``qualify.run.checks.NAME``, with a class of that name in CamelCase.
Cards, waivers, scripts, reports, the selftest and the documents read this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from qualify.facts.accuracy import COPIED, HALF_A_KEY, ROUNDED, ElementBound
from qualify.facts.case import Level

CHECK_VERSION = 19
"""Raised whenever a check's meaning or limits change: evidence of another version is not comparable."""

Past = Literal["never", "differences", "always"]
"""
Which findings a script can repeat only with the launches before them. never: two calls that differ, or one wrong
result, show the failure alone. differences: one wrong result shows it alone; two results that differ need every launch
before them. always: both need them.
"""
Proof = Literal["form", "empty_row", "lse", "budget", "element"]
"""
Which part of a result a script compares with its exact value. form: shape, dtype and device, or what the call wrote to;
empty_row: a row without keys; lse: every LSE; budget: the statistics of the accuracy class; element: one element.
"""
ANY_PROOF: tuple[Proof, ...] = ("lse", "budget", "element")
Topic = Literal["mask", "numbers", ""]
"""the question of the report that a check answers: which keys are seen, how large errors are, or none of its own"""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownCheck:
    """One check."""

    name: str
    """its name, which its module and its findings have, too; cards, waivers and reports use it"""
    question: str
    """what it asks, in one sentence"""
    wrong: str
    """what a failure of it says about the kernel, in one sentence without its full stop"""
    cause: str
    """what is most often behind such a failure"""
    levels: tuple[Level, ...] = ("smoke", "full")
    """levels at which it runs"""
    cost: str
    """what it costs, in calls of the kernel"""
    needs: str = ""
    """what a kernel or a workload must have so that the check runs; empty = nothing"""
    also: Mapping[str, tuple[Proof, ...]] = field(default_factory=dict)
    """names of its findings besides its own name, and what shows each of them in a script"""
    shown_by: tuple[Proof, ...] = ANY_PROOF
    """what shows its own finding in a script; the first that does is taken"""
    element: ElementBound = ROUNDED
    """how far an element may be off in the proof ``element``"""
    bitwise: bool = False
    """whether two results differ in any bit, also where the card claims no determinism"""
    past: Past = "differences"
    """whether a script needs what was launched before a wrong result"""
    recordable: bool = True
    """False where recording its calls would disturb what it captures or measures: then it has no script of its own"""
    neighbours: bool = False
    """whether its finding is the one for a case that fails among others and passes alone"""
    topic: Topic = ""
    silent: bool = False
    """whether it may leave no finding, because the kernel claims none of the altered calls"""

    @property
    def findings(self) -> tuple[str, ...]:
        """Every name under which its findings stand."""
        return self.name, *self.also


FULL: tuple[Level, ...] = ("full",)
NO_NEW_SHAPES = "a kernel that is not compiled for each shape"

# In this order they run, and of several that fail a kernel the first is told first: it says most of the cause.
CHECKS: tuple[KnownCheck, ...] = (
    KnownCheck(
        name="contract",
        question="Does the result have the right shape, dtype and device, and does the call change nothing else?",
        wrong="The call breaks its contract: a result has another form, or something else was written",
        cause="an output buffer of another shape or dtype, or a write beyond the result",
        cost="two calls",
        shown_by=("form",),
    ),
    KnownCheck(
        name="census",
        question="Which keys does each query see?",
        wrong="Queries see other keys than the mask says",
        cause="a mask that is aligned, bounded or skipped wrongly in a tile of keys",
        cost="two calls per labelled window, one more at full",
        shown_by=("element", "lse"),
        element=HALF_A_KEY,
        topic="mask",
    ),
    KnownCheck(
        name="needle",
        question="Does a query return the value of the one key that dominates it, bit for bit?",
        wrong="A query that one key dominates does not return that key's value",
        cause="a lost split or page, an overflow in the softmax, or another head's value",
        cost="one call per sweep",
        shown_by=("element", "lse"),
        element=COPIED,
        topic="mask",
    ),
    KnownCheck(
        name="parameters",
        question="Does the kernel use the call's scale, its softcap, and the sink of each head?",
        wrong="The scale, the softcap or a head's sink is not the one of the call",
        cause="a default that replaces the given number, or a sink of another head",
        cost="two calls at smoke, four at full; one and four more under a softcap, four more at full with sinks",
        needs="keys with at least two elements, and a query that sees two keys",
    ),
    KnownCheck(
        name="poison",
        question="Is the result independent of bytes outside the valid region, and of keys that no query sees?",
        wrong="Bytes outside the valid region, or hidden keys, reach the result",
        cause="values that are masked by a weight of 0 and multiplied all the same: 0 · NaN is NaN",
        cost="four calls, two more where keys are hidden",
        past="never",
        topic="mask",
    ),
    KnownCheck(
        name="suffix",
        question="Does a query's result stay the same when later keys, neighbours, or keys behind its window change?",
        wrong="The result of a query changes with keys or neighbours that the query must not see",
        cause="a wrong bound between past and future, or between two sequences of the batch",
        cost="one call per split and direction, two for the neighbours",
        needs="a key that some query does not see",
        past="never",
        topic="mask",
    ),
    KnownCheck(
        name="page_permutation",
        question="Is the result the same wherever the pages of the cache lie, and does the cache stay as it was?",
        wrong="The result depends on where the pages of the cache lie",
        cause="an address that is computed from the place of a page, or a page that is read twice",
        cost="three calls at smoke, nine at full",
        needs="a paged cache",
        past="never",
    ),
    KnownCheck(
        name="heads",
        question="Does each query head read its own key/value head and no other?",
        wrong="A query head reads another key/value head than its own",
        cause="a wrong mapping of query heads to groups",
        levels=FULL,
        cost="one call per binary digit of the KV heads and one with keys; the same and a golden result for ten groups",
        past="never",
    ),
    KnownCheck(
        name="powers_of_two",
        question="Does scaling by a power of two change only the exponent of the result?",
        wrong="A power of two in the input changes more than the exponent of the result",
        cause="an overflow or underflow, or a constant that does not scale with the input",
        levels=FULL,
        cost="five calls, one more of values in fp8",
        past="never",
    ),
    KnownCheck(
        name="nan",
        question="Does a NaN show in the result of every query that sees it?",
        wrong="A NaN that a query sees is hidden in its result",
        cause="a maximum or a comparison that drops NaN",
        levels=FULL,
        cost="eight calls",
        needs="a card that claims `nan: propagates`, and a query that sees a key",
    ),
    KnownCheck(
        name="degenerate",
        question="Is the result right at the lengths at which kernels break?",
        wrong="The result is wrong at a length at which kernels break",
        cause="an empty sequence or a partly filled tile that the kernel does not expect",
        cost="one small call at smoke, three to sixteen at full, each with a golden result",
        needs=NO_NEW_SHAPES,
        silent=True,
    ),
    KnownCheck(
        name="merge",
        question="Does attention over two parts of a cache, merged through their LSE, equal attention over the whole?",
        wrong="Two parts of a cache, merged through their LSE, differ from attention over the whole cache",
        cause="an LSE in another base or of other keys than the output",
        levels=FULL,
        cost="three calls and a golden result",
        needs="an LSE, one query per sequence, and a mask without a window",
    ),
    KnownCheck(
        name="layout",
        question="Is the result the same however the tensors lie in memory?",
        wrong="The result depends on how the tensors lie in memory",
        cause="a stride that the kernel assumes instead of reading it",
        levels=FULL,
        cost="one call per layout, at most fourteen",
        past="never",
        silent=True,
    ),
    KnownCheck(
        name="history",
        question="Is a call independent of the calls before it?",
        wrong="An earlier call changes the result of a later one",
        cause="a workspace, a plan or a cache that is kept from an earlier call",
        levels=FULL,
        cost="two small calls and a golden result for each difference, at most 31, and at most 56 small calls",
        needs=NO_NEW_SHAPES,
        past="always",
        neighbours=True,
    ),
    KnownCheck(
        name="size_limits",
        question="Is the result right at sizes that 16-bit or 32-bit numbers cannot count?",
        wrong="The result is wrong where 16 or 32 bits no longer count the elements",
        cause="an index or an offset that wraps",
        levels=FULL,
        cost="13 small calls, 116 tiny (GPU: 400), six over 2^31 elements; each once for a kernel, dtype and layout",
        needs=NO_NEW_SHAPES,
        silent=True,
    ),
    KnownCheck(
        name="long_context",
        question="Do sums over one long sequence include its last keys, and keep enough bits?",
        wrong="The sum over one long sequence does not reach its end, or has too few bits",
        cause="one accumulator for all keys, or an index that wraps",
        levels=FULL,
        cost="seven calls (on a GPU 19), two more with small groups; once for a kernel, dtype and layout",
        needs=f"{NO_NEW_SHAPES}, and a mask under which a query sees the last keys",
    ),
    KnownCheck(
        name="repeat",
        question="Does the same call give the same bits, up to rounding where the card claims no determinism?",
        wrong="The same call gives another result",
        cause="a race between blocks, atomic additions, uninitialised memory, or a row that is never written",
        cost="3 calls at smoke, 20 at full, where 10 share the GPU",
        bitwise=True,
        past="always",
    ),
    KnownCheck(
        name="surroundings",
        question="Is the result the same in another mode, thread or stream, and after many other shapes?",
        wrong="The result depends on the mode, thread, stream or shapes around the call",
        cause="state that the library keeps for the thread or the stream",
        levels=FULL,
        cost="at most twelve small calls, and 66 of other lengths; once for a kernel and layout",
        past="always",
    ),
    KnownCheck(
        name="leak",
        question="Does a call give back the memory that it takes?",
        wrong="A call does not give back the memory that it takes",
        cause="a workspace that is allocated for each call",
        levels=FULL,
        cost="eight small calls; once for a kernel, dtype and layout",
        needs=NO_NEW_SHAPES,
        recordable=False,
    ),
    KnownCheck(
        name="growth",
        question="Does temporary memory grow with the length of the sequence, and not with its square?",
        wrong="Temporary memory grows like the square of the sequence",
        cause="scores that are written to memory: a path that is not fused",
        levels=FULL,
        cost="two calls at each of two lengths",
        needs=f"{NO_NEW_SHAPES}, and more than one query",
        recordable=False,
    ),
    KnownCheck(
        name="graph",
        question="Does a captured CUDA graph give the result of an eager call, also with other contents and lengths?",
        wrong="A captured call does not give what an eager call gives",
        cause="lengths or addresses that are frozen into the graph",
        levels=FULL,
        cost="seven calls, six more on pages",
        needs="a CUDA device",
        recordable=False,
    ),
    KnownCheck(
        name="budget",
        question="Is the error against the golden result within the limits of the accuracy class?",
        wrong="The error is above what the accuracy class allows",
        cause="another rounding than the card declares, or wrong weights for some keys",
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


def asked_at(level: Level) -> tuple[str, ...]:
    """The checks that answer at that level about every case that runs to its end, in the order in which they run."""
    return tuple(known.name for known in CHECKS if level in known.levels and not known.silent)


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
