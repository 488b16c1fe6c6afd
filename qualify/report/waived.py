"""The waivers that a verdict used, each with its owner, a case and its last day: a promotion relies on these owners."""

from __future__ import annotations

from typing import Any

from qualify.facts.run import Conclusion
from qualify.facts.waiver import WaiverUse
from qualify.report.figures import counted
from qualify.text import one_line

NAMED = 5
"""most waivers that a headline names; every format lists all of them below"""


def waived_words(conclusion: Conclusion) -> str:
    """Owner, case and expiry date of each waiver that covers a failure; empty where none does."""
    used = used_waivers(conclusion)
    words = [_words(use) for use in used[:NAMED]]
    more = [f"and {counted(len(used) - NAMED, 'more waiver')}"] if len(used) > NAMED else []
    return one_line("; ".join([*words, *more]))


def used_waivers(conclusion: Conclusion) -> list[WaiverUse]:
    """The waivers that cover a failure, in the order of their last days."""
    return sorted((use for use in conclusion.waivers if use.waived), key=lambda use: use.waiver.expires)


def waived_data(conclusion: Conclusion) -> list[dict[str, Any]]:
    """These waivers as JSON, with all cases that they cover."""
    return [
        {"id": it.waiver.id, "owner": it.waiver.owner, "expires": f"{it.waiver.expires}", "cases": list(it.waived)}
        for it in used_waivers(conclusion)
    ]


def _words(use: WaiverUse) -> str:
    more = f" and {len(use.waived) - 1} more" if len(use.waived) > 1 else ""
    waiver = use.waiver
    return f"{use.waived[0]}{more} by {waiver.owner} until {waiver.expires} ({waiver.id})"
