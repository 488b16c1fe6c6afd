"""The table of docs/incidents.md: every incident of the matrix, and its result on each stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from generating.places import EVIDENCE, read
from generating.tables import table
from qualify.cards.load import load_matrix


def incidents_table() -> str:
    """The stacks of docs/evidence/incidents-*.json, then for each incident its links and its result on each stack."""
    paths = {path.stem.removeprefix("incidents-"): path for path in sorted(EVIDENCE.glob("incidents-*.json"))}
    seen = {name: read(path) for name, path in paths.items()}
    heads = ["incident", "reported in", "what went wrong", "trigger", "shown by", *seen]
    rows = []
    for incident in load_matrix("incidents").card.incidents:
        links = [f"[{text}](https://github.com/{text.replace('#', '/issues/')})" for text in incident.issue]
        words = [incident.title, incident.trigger, ", ".join(incident.shown_by)]
        results = [_replayed(data["incidents"].get(incident.incident)) for data in seen.values()]
        rows.append([f"`{incident.incident}`", ", ".join(links), *words, *results])
    stacks = [
        f"- **{name}**: {data['device']}, {', '.join(f'{key} {value}' for key, value in data['versions'].items())}; "
        f"level {data['level']}, run {data['run']}: {_counted(data['incidents'].values())}.\n"
        for name, data in seen.items()
    ]
    return "".join([*stacks, "\n", table(heads, rows)])


def _replayed(found: dict[str, Any] | None) -> str:
    if found is None:
        return "no case"
    named = found["state"] in {"reproduced", "fails otherwise"}
    return f"**{found['state']}**: {', '.join(found['kernels'])}" if named else str(found["state"])


def _counted(found: Iterable[dict[str, Any]]) -> str:
    counts = Counter(item["state"] for item in found)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())
