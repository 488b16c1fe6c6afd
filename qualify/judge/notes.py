"""What a reader must know beside a verdict: each function gives one note, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from qualify.facts.checks import CHECK_VERSION
from qualify.facts.clock import CLOCK_SKEW, received_note, skew_note
from qualify.facts.deletion import deletion_words
from qualify.facts.outcome import evidence_of
from qualify.facts.run import Judgement, Record, Run, Verdict
from qualify.store.store import Store
from qualify.verdict.origin import newest, origin_of
from qualify.verdict.policy import CONTRADICTS

NAMED = 3
"""runs that a note names"""


def changed_note(changed: Mapping[str, str]) -> list[str]:
    """The kernels that must run again, and why: the run says nothing about their present code."""
    return [f"{name} must run again: {why}" for name, why in changed.items()]


def contradiction_note(run: Run, edited: str) -> list[str]:
    """How a run contradicts itself; nothing where it does not."""
    return [f"run {run.id} contradicts itself: {edited}"] if edited else []


def listed_contradictions(judgements: Iterable[Judgement]) -> str:
    """The first case whose evidence contradicts itself, with how, and how many more there are; empty for none."""
    begin = f"{CONTRADICTS}: "
    found = [
        f"{item.case_id}: {reason.removeprefix(begin)}"
        for item in judgements
        for reason in item.reasons
        if reason.startswith(begin)
    ]
    return first_of(found)


def first_of(found: Sequence[str]) -> str:
    """The first, and how many more there are; empty for none."""
    more = f", and {len(found) - 1} more" if found[1:] else ""
    return f"{found[0]}{more}" if found else ""


def failed_note(failed: Mapping[str, str]) -> list[str]:
    """Which cards failed during the run, and what the driver said.

    Args:
        failed: as :func:`qualify.verdict.faults.failed_cards` gives it.
    """
    todo = "look at the card before anything runs on it (nvidia-smi -q, the kernel's log), then run again"
    return [f"card {card} failed: {why}; {todo}" for card, why in failed.items()]


def ahead_note(future: datetime | None, now: datetime) -> list[str]:
    """A note that the evidence is dated in the future and does not count; none where its dates are right."""
    if future is None:
        return []
    dates = f"the evidence is dated {future:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M} UTC"
    limit = f"more than {CLOCK_SKEW.seconds // 60} minutes ahead is not believed"
    return [f"{dates}: the clock of that machine or of this one is wrong; {limit}"]


def skewed_note(runs: Iterable[Run]) -> list[str]:
    """Notes on each run that was made on a machine whose clock differed from the store's."""
    told = ((skew_note(run.id, run.clock_skew_s), received_note(run.id, newest(run), run.received_at)) for run in runs)
    return [note for notes in told for note in notes if note]


def reused_note(records: Sequence[Record], origins: Mapping[str, datetime], command: str) -> list[str]:
    """How many cases were taken over, from which runs, how old they are, and the command that runs everything."""
    if not origins:
        return []
    names = sorted(origins, reverse=True)
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    count, first = sum(origin_of(record.outcome) is not None for record in records), min(origins.values())
    text = f"{count} of {len(records)} cases were not run again, but taken over from {shown}"
    return [f"{text}, begun {first:%Y-%m-%d %H:%M} UTC at the earliest. To run everything: {command}"]


def unasserted_note(records: Sequence[Record]) -> list[str]:
    """The kernels whose card has patterns that match any kernel."""
    witnesses = [(record.case.kernel, evidence_of(record.outcome)) for record in records]
    counts = Counter(
        name
        for name, evidence in witnesses
        if evidence and evidence.witness.state == "proven" and not evidence.witness.identity_asserted
    )
    told = ", ".join(f"{name} ({count} of the cases)" for name, count in sorted(counts.items()))
    return [f"identity was not asserted for {told}: the card's patterns accept any kernel"] if told else []


def narrowed_note(run: Run, selected: Verdict | None) -> list[str]:
    """What narrowed the run, and whether the selected cases passed; nothing where it ran the whole matrix."""
    options = [f"--{name} {value!r}" for name, value in (("select", run.select), ("kernel", run.kernel)) if value]
    if not options:
        return []
    passed = "what it selected passed, and " if selected == "PASS" else ""
    return [f"the run was narrowed by {' '.join(options)}: {passed}the rest of the matrix is not judged"]


def outdated_note(run: Run) -> list[str]:
    """A note that the run was made with other checks than this qualify has; none where it was not."""
    if run.check_version == CHECK_VERSION:
        return []
    return [f"the run was made with check version {run.check_version}, this qualify has {CHECK_VERSION}: run it again"]


def deleted_note(store: Store, run: Run) -> list[str]:
    """A note where somebody deleted a newer run of the matrix, whose verdict nobody can compute any more."""
    found = store.retention.newer_deletion(run.id)
    return [f"a newer run is missing: {deletion_words(found)}"] if found else []
