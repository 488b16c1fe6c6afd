"""What one stack showed of every incident, from reports of runs of the matrix `incidents`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qualify.report.incidents import STATES

Data = dict[str, Any]
NOT_RUN = {"open", "not applicable"}


def incidents(reports: Sequence[Data]) -> Data:
    """What docs/incidents.md needs of reports: the stack, and each incident's state, kernels and first reason.

    Of a case that several reports have, the last one counts that ran it. Where the first is such evidence already, it
    stands for all incidents but those that the others replay to the end.

    Raises:
        SystemExit: the reports are of several stacks, or do not belong to the evidence.
    """
    before = reports[0] if isinstance(reports[0]["incidents"], dict) else None
    reports = reports[1:] if before else reports
    if not reports or any(isinstance(report["incidents"], dict) for report in reports):
        raise SystemExit("earlier evidence comes first, and reports after it")
    _refuse_several_stacks(reports)
    stack, parameters = reports[0]["stack"], reports[0]["parameters"]
    versions = {part["name"]: part["version"] for part in stack["components"] if part["kind"] == "distribution"}
    if before:
        _refuse_others(before, reports, stack["device"]["name"], versions)
    found = dict(before["incidents"]) if before else {}
    for incident, cases in _replayed(reports).items():
        ran = any(case["state"] != "not applicable" for case in cases)
        if incident in found and (not ran or any(case["state"] == "open" for case in cases)):
            continue
        found[incident] = _condensed(cases)
    return {
        "run": ", ".join([*([before["run"]] if before else []), *(report["run"] for report in reports)]),
        "device": stack["device"]["name"],
        "versions": {name: versions[name] for name in sorted(versions)},
        "level": parameters["level"],
        "qualify": parameters["qualify_version"],
        "incidents": found,
    }


def _refuse_several_stacks(reports: Sequence[Data]) -> None:
    """A run names only the binaries that it loaded, so a part that only some reports have is no difference."""
    parts: dict[tuple[str, str], set[frozenset[tuple[str, str]]]] = {}
    for report in reports:
        named: dict[tuple[str, str], set[tuple[str, str]]] = {}
        for part in report["stack"]["components"]:
            named.setdefault((part["kind"], part["name"]), set()).add((part["version"], part["digest"]))
        for name, states in named.items():  # two libraries may each have a binary of that name
            parts.setdefault(name, set()).add(frozenset(states))
    if any(len(states) > 1 for states in parts.values()):
        raise SystemExit("the reports are of several stacks; name each stack's evidence differently")


def _refuse_others(before: Data, reports: Sequence[Data], device: str, versions: Mapping[str, str]) -> None:
    if (before["device"], before["versions"]) != (device, versions):
        raise SystemExit("the reports are of another stack than the evidence; name it differently")
    if any(report["parameters"]["level"] != before["level"] for report in reports):
        raise SystemExit(f"the reports are of another level than the evidence ({before['level']})")
    if any(report["parameters"]["kernel"] for report in reports):
        raise SystemExit("a report of some kernels does not replay a whole incident: leave out --kernel")


def _replayed(reports: Sequence[Data]) -> dict[str, list[Data]]:
    """The cases of each incident, each as the last report has it that ran it."""
    replayed: dict[str, dict[str, Data]] = {}
    for item in (item for report in reports for item in report["incidents"]):
        known = replayed.setdefault(item["incident"], {})
        measured = {case["id"]: case for case in item["cases"] if case["state"] not in NOT_RUN}
        known |= {case["id"]: case for case in item["cases"] if case["id"] not in known} | measured
    return {incident: list(by_id.values()) for incident, by_id in replayed.items()}


def _condensed(cases: Sequence[Data]) -> Data:
    """The incident's most telling state, the kernels that are in it, and the first reason."""
    state = next(state for state in STATES if any(case["state"] == state for case in cases))
    telling = [case for case in cases if case["state"] == state]
    reasons = [reason for case in telling for reason in case["why"]]
    kernels = list(dict.fromkeys(case["kernel"] for case in telling))
    return {"state": state, "kernels": kernels, "why": reasons[0] if reasons else ""}
