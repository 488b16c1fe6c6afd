"""What changed since an earlier run, in one sentence."""

from __future__ import annotations

from qualify.facts.baseline import Baseline
from qualify.facts.comparison import Since
from qualify.facts.differing import changes_words, stack_words
from qualify.facts.run import Run
from qualify.verdict.compare import NAMED

NOTHING_CHANGED = "no version changed, and no code of a kernel"


def earlier(before: Run, baseline: Baseline | None) -> str:
    """An earlier run, and who accepted it."""
    accepted = f", accepted by {baseline.who} on {baseline.accepted_at:%Y-%m-%d}" if baseline else ""
    return f"run {before.id}{accepted}"


def changed(since: Since, run: Run) -> str:
    """What changed under the kernels, for example ``torch 2.11.0 → 2.13.0; the code of flash-attn-3 (...)``."""
    unknown = since.before.stack is None or run.stack is None
    told = [stack_words(since.before.stack, run.stack)] if unknown else []
    # A process maps the files that its kernels need: one that only the other run mapped did not change.
    changes = [it for it in since.stack if it.kind != "binary" or (it.before and it.after)]
    told += [changes_words(changes)] if changes and not unknown else []
    told += [_code(since)] if since.code else []
    return "; ".join(told) or NOTHING_CHANGED


def _code(since: Since) -> str:
    """The kernels whose own files changed, and the files of the first of them."""
    names = [*since.code]
    more = f" and {len(names) - NAMED} more" if names[NAMED:] else ""
    return f"the code of {', '.join(names[:NAMED])}{more} ({since.code[names[0]]})"
