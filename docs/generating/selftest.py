"""The rates and the kill table of docs/selftest.md."""

from __future__ import annotations

from generating.places import read
from generating.tables import table
from qualify.assets import released_selftest

HEADS = ("fault", "class", "does", "mirrors", "smoke", "full")


def selftest_table() -> str:
    """The rates and the kill table of the released result of ``qualify selftest``."""
    result = read(released_selftest())
    rates = ", ".join(
        f"{found['caught']} of {result['faults']} at {level}" for level, found in result["levels"].items()
    )
    alarms = f"{len(result['false_alarms'])} correct kernels accused in {result['correct_runs']:,} runs"
    rows = []
    for kill in result["kills"]:
        missed = "equivalent" if kill["fault"] in result["equivalent"] else "**missed**"
        found = [", ".join(kill["caught_by"].get(level, [])) or missed for level in ("smoke", "full")]
        rows.append([f"`{kill['fault']}`", kill["class"], kill["does"], kill["mirrors"], *found])
    lines = [f"Check version {result['check_version']}: caught {rates}; {alarms}; {result['wall_s']:.0f} s.\n\n"]
    lines += [table(HEADS, rows)]
    lines += [f"\n`{name}` is equivalent: {proof}\n" for name, proof in result["equivalent"].items()]
    return "".join(lines)
