"""What changed between two runs, as text and as JSON: first the stack, then verdicts, kernels, numbers and times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qualify.facts.accuracy import CALLED
from qualify.facts.comparison import BUCKETS, TOPICS, Bucket, Change, Comparison, Seen, StackChange, Topic
from qualify.facts.run import Run
from qualify.report import figures
from qualify.report.names import short_name
from qualify.report.views import WORDS
from qualify.report.weaker import changes_data, sentence
from qualify.text import one_line

BUCKET_WORDS: Mapping[Bucket, str] = {
    "regression": "regression",
    "suspicious": "suspicious",
    "insufficient data": "insufficient data",
    "none": "harmless",
}
"""what people read for each bucket of a change; JSON has the bucket itself"""
SHOWN = 6
"""groups of changes that the text names under each topic"""
DIGITS = 12
"""characters of a digest that a person sees"""
NAMES = {"measured_class": "class", **CALLED}
"""names of numbers as people say them"""
ABSENT = "absent"
NOT_COMPARED = "not compared"
SCHEMA = "qualify.diff/1"


def to_data(comparison: Comparison) -> dict[str, Any]:
    """The fields of ``qualify diff --json``: lists of {id or component, from, to}, with bucket and detail."""
    return {
        "before": comparison.before.id,
        "after": comparison.after.id,
        "buckets": {bucket: comparison.cases.get(bucket, 0) for bucket in BUCKETS},
        "caveats": list(comparison.caveats),
        "stack": [stack_change_data(change) for change in comparison.stack],
        "weaker": changes_data(comparison.weaker),
    } | {topic: [_change_data(change) for change in changes] for topic, changes in comparison.topics()}


def stack_change_data(change: StackChange) -> dict[str, Any]:
    """A component that differs, as JSON."""
    return {"component": change.component, "kind": change.kind, "from": change.before, "to": change.after}


def _change_data(change: Change) -> dict[str, Any]:
    return {
        "id": change.id,
        "from": _plain(change.before),
        "to": _plain(change.after),
        "bucket": change.bucket,
        "detail": change.detail,
        "impact_us": change.impact_us,
    }


def _plain(seen: Seen) -> Any:
    return list(seen) if isinstance(seen, tuple) else dict(seen) if isinstance(seen, Mapping) else seen


def to_text(comparison: Comparison) -> str:
    """One line with the buckets, the stack, then each topic with alike changes together."""
    lines = [summary_line(comparison)]
    lines += [f"caveat: {caveat}" for caveat in comparison.caveats]
    lines.append("stack:" if comparison.stack else "stack: the same")
    lines += [f"  {one_line(stack_change_text(change))}" for change in comparison.stack]
    lines += [f"weaker: {weaker_line(comparison)}"] if comparison.weaker else []
    lines += [f"  {sentence(less)}" for less in comparison.weaker]
    for topic, changes in comparison.topics():
        lines.append(f"{topic}: {counted_buckets(comparison, topic)}")
        groups = grouped(topic, changes)
        for first, more in groups[:SHOWN]:
            lines.append(f"  {BUCKET_WORDS[first.bucket]:18}{one_line(first.id)}")
            lines.append(f"  {'':18}{one_line(change_text(topic, first))}")
            if more:
                lines.append(f"  {'':18}and {more} more like this")
        if len(groups) > SHOWN:
            lines.append(f"  {len(groups) - SHOWN} other kinds of change: --out DIR and --json have all")
    return "\n".join(lines)


def summary_line(comparison: Comparison) -> str:
    """How many cases are in which bucket."""
    cases = comparison.cases
    return (
        f"{run_name(comparison.after)} against {run_name(comparison.before)}: "
        f"{figures.counted(cases['regression'], 'regression')}, {cases['suspicious']:,} suspicious, "
        f"{cases['insufficient data']:,} with insufficient data, {cases['none']:,} unchanged or harmless"
    )


def weaker_line(comparison: Comparison) -> str:
    """In how many points the later run requires less."""
    points = figures.counted(len(comparison.weaker), "point")
    return f"run {comparison.after.id} requires less than run {comparison.before.id} in {points}"


def run_name(run: Run) -> str:
    """A run by its id, matrix and stack."""
    return f"run {run.id} ({run.matrix}{f', stack {run.stack.fingerprint[:12]}' if run.stack else ''})"


def stack_change_text(change: StackChange) -> str:
    """A component with its value before and after."""
    kind = "" if change.kind in ("distribution", "device") else f" ({change.kind})"
    return f"{change.component}{kind}: {change.before or ABSENT} -> {change.after or ABSENT}"


def counted_buckets(comparison: Comparison, topic: Topic) -> str:
    """How many changes of a topic are in which bucket, in words."""
    changes = dict(comparison.topics())[topic]
    if not changes:
        compared, of = comparison.uncompared.get(topic, (0, 0))
        if not of:
            return "unchanged"
        return (
            f"unchanged in {compared:,} of {of:,} cases, and not compared in the others" if compared else NOT_COMPARED
        )
    counts = {bucket: sum(change.bucket == bucket for change in changes) for bucket in BUCKETS}
    found = {bucket: count for bucket, count in counts.items() if count}
    return ", ".join(
        figures.counted(count, bucket) if bucket == "regression" else f"{count:,} {BUCKET_WORDS[bucket]}"
        for bucket, count in found.items()
    )


def change_text(topic: Topic, change: Change) -> str:
    """The value before, the value after, and why the change is in its bucket."""
    return f"{seen_text(topic, change.before)} -> {seen_text(topic, change.after)}: {change.detail}"


def seen_text(topic: Topic, seen: Seen) -> str:
    """One side of a change."""
    match topic, seen:
        case _, None:
            return ABSENT
        case "times", int() | float():
            return figures.duration(float(seen))
        case "bits", str():
            return seen[:DIGITS]
        case "verdicts", ("PASS" | "FAIL" | "WAIVED" | "INCONCLUSIVE" | "NOT_REQUIRED") as verdict:
            return WORDS[verdict][1]
        case _, tuple():
            return ", ".join(dict.fromkeys(short_name(name) for name in seen)) or "no attention kernel"
        case _, Mapping():
            return ", ".join(f"{NAMES.get(it, it)} {_number(value)}" for it, value in seen.items() if it != "inputs")
    return str(seen)


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if math.isfinite(value) else figures.text(value)
    return "none" if value is None else str(value)


def grouped(topic: Topic, changes: Sequence[Change]) -> list[tuple[Change, int]]:
    """Groups of changes that look the same: the first change of each, and how many more there are, in given order."""
    groups: dict[tuple[object, ...], list[Change]] = {}
    for change in changes:
        kernel = change.id.rpartition("/")[2]
        alike = change.detail.partition(":")[0] if topic == "verdicts" else ""
        sides = (change.before, change.after) if topic in ("verdicts", "kernels") else ()
        key = (change.bucket, kernel, alike, *sides)
        groups.setdefault(key, []).append(change)
    return [(members[0], len(members) - 1) for members in groups.values()]


def told_topics(comparison: Comparison) -> list[str]:
    """One line for each topic, as a gate tells it."""
    return [f"{topic} {counted_buckets(comparison, topic)}" for topic in TOPICS]
