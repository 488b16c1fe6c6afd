"""Why a case failed or stayed open, in words: one cause for each case, and one sentence for each finding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from qualify.facts.accuracy import CALLED, E_LIMIT, R_LIMIT
from qualify.facts.checks import check_of
from qualify.facts.outcome import Finding, Value
from qualify.judge.causes import cause_of as judged_cause
from qualify.judge.causes import finding_of
from qualify.report import figures
from qualify.report.views import CaseView
from qualify.text import clipped
from qualify.verdict.policy import SUBSTITUTED

ENDINGS: dict[str, tuple[str, str]] = {
    "crash": (
        "The kernel or its process crashed",
        "a mistake in its code, an address out of bounds, or a call that the library does not expect",
    ),
    "hang": (
        "The kernel gave no sign of life within the limit",
        "a deadlock between blocks, or a compilation without end",
    ),
    "refusal": ("The library refuses a case that the card claims", "the library takes fewer calls than its card says"),
    "substitution": ("Another kernel did the work", "the library chose a fallback for this call"),
    "witness": ("The trace could not tell which kernel ran", "a kernel name that no pattern of the card matches"),
    "evidence": ("The stored evidence contradicts itself", "a row that was changed by hand, or a damaged store"),
    "timing": ("The time cannot be believed", "work that was skipped or cached, or a disturbed machine"),
    "lse": (
        "The LSE does not match the keys that the query sees",
        "a sum over other keys, another base, or too few bits",
    ),
    "empty_row": ("A query without keys gives another result than the card claims", "a division of 0 by 0"),
    "xid": (
        "The driver reported an error while it ran",
        "a card that is failing, or a kernel that faulted; the reason says which",
    ),
    "not run": ("The case was not run", "the run goes on, or ended before its turn"),
}
"""what is wrong and its most frequent cause, for endings and findings that no check describes"""
EXPECTED = ("expected", "golden", "before", "limit")
"""keys of a finding's values that say what should be; the first key that is present counts"""
LONGEST = 240
"""most characters of a detail at the head of a page"""
NUMBER = re.compile("[0-9]+")
"""addresses and sizes in the error of a crash differ from call to call"""
SEEN = ("actual", "seen", "after", "lse", "lse_rel")
"""keys that say what was seen, likewise"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """One failure in one sentence, and what it is made of."""

    wrong: str
    """what is wrong"""
    expected: str
    """what should be; empty where no value says it"""
    seen: str
    """what was; empty where no value says it"""
    cause: str
    """its most frequent cause"""
    detail: str
    """the check's own sentence, which names the first place"""

    @property
    def sentence(self) -> str:
        """What is wrong, and its most frequent cause."""
        return _sentence(self._observed, self.cause)

    @property
    def short(self) -> str:
        """The sentence; where no values say what was seen, with the detail that does."""
        if (self.expected and self.seen) or not self.detail:
            return self.sentence
        return f"{self.wrong}: {clipped(self.detail, LONGEST)}. Likely cause: {self.cause}."

    @property
    def observation(self) -> str:
        """What is wrong, as a sentence."""
        return f"{self._observed}."

    @property
    def _observed(self) -> str:
        pair = f": expected {self.expected}, seen {self.seen}" if self.expected and self.seen else ""
        return f"{self.wrong}{pair}"


def cause_of(view: CaseView) -> str:
    """The one cause under which a case that failed or stayed open is counted: a check, or how it ended."""
    return judged_cause(view.outcome, view.verdict, view.reasons)


def diagnose(view: CaseView, cause: str) -> Diagnosis:
    """Why the case failed, or stayed open, by its cause."""
    return told(cause, finding_of(view.outcome, cause), next(iter(view.reasons or view.why), ""))


def told(cause: str, finding: Finding | None, reason: str) -> Diagnosis:
    """Why a case failed, or stayed open: by the finding behind its cause, or by how it ended where there is none."""
    if finding:
        return explain(finding)
    wrong, behind = ENDINGS.get(cause, (f"{cause} failed", "unknown"))
    return Diagnosis(wrong=wrong, expected="", seen="", cause=behind, detail=_without(reason, cause))


def mistake(cause: str, finding: Finding | None, reason: str) -> tuple[str, ...]:
    """What tells one mistake from another: of a check, what is wrong and why; of a crash, its error without numbers."""
    found = told(cause, finding, reason)
    return found.wrong, found.cause, "" if finding else NUMBER.sub("", found.detail)


def title(kernel: str, cause: str, phases: Mapping[str, int]) -> str:
    """Kernel, cause, phases, and number of cases."""
    return f"{kernel} · {cause} · {phases_text(phases)}: {figures.counted(sum(phases.values()), 'case')}"


def phases_text(phases: Mapping[str, int]) -> str:
    """The phases; of several each has its own number of cases."""
    return ", ".join(f"{phase} ({count})" if len(phases) > 1 else phase for phase, count in phases.items())


def explain(finding: Finding) -> Diagnosis:
    """The diagnosis of a finding that failed or could not decide."""
    wrong, cause = _open(finding.check) if finding.verdict == "inconclusive" else _usual(finding.check)
    sure = _proven(finding)
    return Diagnosis(
        wrong=str(finding.values.get("wrong") or wrong),
        expected=_limits(finding) or _first(finding, EXPECTED),
        seen=_over(finding) or _first(finding, SEEN),
        cause=f"{sure}, which explains every row" if sure else str(finding.values.get("likely") or cause),
        detail=finding.detail,
    )


def _proven(finding: Finding) -> str:
    """The mistake that explains every row of a finding; empty where the check knows none."""
    return str(finding.values.get("looks_like") or finding.values.get("explained_by") or "")


def finding_text(finding: Finding, cause: str) -> str:
    """A finding that failed or could not decide, in the details of its case.

    One fault often breaks several checks, and each check has a most frequent cause of its own. So only the findings
    that the case is counted under tell a cause, and one that proves its cause.

    Args:
        cause: what the case is counted under (:func:`cause_of`).
    """
    told = explain(finding)
    return told.sentence if finding.check == cause or _proven(finding) else told.observation


def _usual(cause: str) -> tuple[str, str]:
    """What is wrong, and its most frequent cause."""
    known = check_of(cause)
    return ENDINGS.get(cause) or ((known.wrong, known.cause) if known else (cause, "unknown"))


def _open(check: str) -> tuple[str, str]:
    """The same pair for a check that could not decide."""
    return f"{check} could not decide", "too little to compare, or a disturbed machine"


def _sentence(wrong: str, cause: str) -> str:
    return f"{wrong}. Likely cause: {cause}."


def _first(finding: Finding, names: tuple[str, ...]) -> str:
    name = next((name for name in names if finding.values.get(name) is not None), "")
    if not name:
        return ""
    value, label = finding.values[name], finding.values.get("label")
    keys = f" of {label}" if label and name == "expected" else ""
    return f"{'at most ' if name == 'limit' else ''}{figures.text(value)}{keys}"


def _broken(finding: Finding) -> list[tuple[str, float, float]]:
    """Name, value and limit of each error that breaks its limit."""
    values = finding.values
    pairs: tuple[tuple[str, Value, Value], ...] = (
        (CALLED["E"], values.get("E"), E_LIMIT),
        (CALLED["R"], values.get("R"), R_LIMIT),
        (CALLED["G"], values.get("G"), values.get("G_limit")),
        ("|β|", values.get("beta"), values.get("beta_limit")),
    )
    return [
        (name, abs(value), limit)
        for name, value, limit in pairs
        if isinstance(value, int | float) and isinstance(limit, int | float) and figures.exceeds(value, limit)
    ]


def _limits(finding: Finding) -> str:
    return ", ".join(f"{name} ≤ {limit:.3g}" for name, _, limit in _broken(finding))


def _over(finding: Finding) -> str:
    return ", ".join(f"{name} {figures.text(value)}" for name, value, _ in _broken(finding))


def _without(reason: str, cause: str) -> str:
    return reason.removeprefix(f"{cause}: ").removeprefix("UNPROVEN: ").removeprefix(f"{SUBSTITUTED}: ")
