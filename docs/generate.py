"""Writes the generated parts of the documents, the schemas and the lock; ``--check`` only says what has drifted.

::

    python docs/generate.py           writes docs/schema/*.json and the marked blocks of README.md and docs/*.md
    python docs/generate.py --check   exits 1 and names the files that differ from what it would write
    python docs/generate.py --incidents NAME [EVIDENCE.json] REPORT.json [REPORT.json ...]
                                      writes docs/evidence/incidents-NAME.json from reports of runs of `incidents`, all
                                      on one stack, each of some kernels
    python docs/generate.py --lock    writes constraints.txt from what is installed in this environment

A marked block stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from qualify.cards.config.families import FAMILIES, WRAPPERS, Family, Wrapper
from qualify.cards.config.writing import described
from qualify.cards.kernel import KernelCard
from qualify.cards.load import load_kernels, load_matrix, load_models, matrix_names
from qualify.cards.schema import KINDS, schema
from qualify.facts.case import Workload
from qualify.plan.plan import make_plan
from qualify.report.contract import gate_schema
from qualify.report.incidents import STATES
from qualify.run.adapters.interface import Adapter
from qualify.run.checks.interface import Check, Subject
from qualify.run.checks.registry import CHECKS
from qualify.run.golden.accuracy import CLASSES

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence"
BLOCK = re.compile(r"(<!-- generated: ([a-z -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = "100"
TORCHS_OWN = re.compile(r"pip==|wheel==|triton==|cuda-|nvidia-(?!ml-py)")
"""what the lock leaves to others: the installer, and what a CUDA build of torch brings"""
COMMANDS = (
    *("run", "plan", "gate", "report", "repro", "model", "cliffs", "kernels", "doctor", "selftest", "schema", "web"),
    *("traffic import", "db upgrade", "db export", "db import", "db prune"),
)
LOCK_HEADER = """\
# The exact versions that `make run`, `make test` and CI install, as pip constraints.
# Written by `make lock` (another torch: make lock TORCH=2.x.y): a fresh environment, pip install torch==TORCH
# -e '.[run,dev]' without constraints, pip freeze. Local version labels (+cpu) are left out, so that every build of
# that torch fits; triton and the CUDA libraries are left out, because a CUDA build of torch pins its own.
"""


def main() -> int:
    """Write, check or lock; the exit code is 1 where ``--check`` finds a difference."""
    if "--lock" in sys.argv:
        (ROOT / "constraints.txt").write_text(LOCK_HEADER + freeze())
        return 0
    if "--incidents" in sys.argv:
        name, *reports = sys.argv[sys.argv.index("--incidents") + 1 :]
        evidence = incident_evidence([json.loads(Path(report).read_text()) for report in reports])
        (EVIDENCE / f"incidents-{name}.json").write_text(evidence)
    drifted = {path: text for path, text in documents() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv:
        for path in drifted:
            print(f"{path.relative_to(ROOT)} differs from what `make docs` writes", file=sys.stderr)
        return 1 if drifted else 0
    for path, text in drifted.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


def documents() -> Iterator[tuple[Path, str]]:
    """Every document with generated content, and what it must hold."""
    for kind, _ in KINDS:
        yield ROOT / "docs" / "schema" / f"{kind}.json", json.dumps(schema(kind), indent=2) + "\n"
    yield ROOT / "docs" / "schema" / "gate.json", json.dumps(gate_schema(), indent=2) + "\n"
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]):
        text = path.read_text()
        if BLOCK.search(text):
            yield path, BLOCK.sub(lambda match: f"{match[1]}{block(match[2])}{match[3]}", text)


def block(name: str) -> str:
    """The content of a marked block: help (of a command), or one of the tables."""
    if name.startswith("help"):
        return f"```text\n{help_text(name.removeprefix('help').split())}```\n"
    blocks = {
        "kernels": kernels_table,
        "accuracy": accuracy_table,
        "selftest": selftest_table,
        "incidents": incidents_table,
        "cliffs": cliffs_table,
        "families": families_table,
        "models": models_table,
        "coverage": coverage,
    }
    return blocks[name]()


def help_text(command: list[str]) -> str:
    """What ``qualify COMMAND --help`` prints, on a terminal of a fixed width and without colour."""
    environment = os.environ | {"COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    environment.pop("QUALIFY_DB", None)
    line = [sys.executable, "-m", "qualify", *command, "--help"]
    printed = subprocess.run(line, capture_output=True, text=True, check=True, env=environment, cwd=ROOT).stdout
    lines = [line.rstrip() for line in printed.replace("python -m qualify", "qualify").strip().splitlines()]
    return "\n".join(lines) + "\n"


def kernels_table() -> str:
    """Shipped kernel cards against the checks, and what each card claims."""
    cards = [loaded.card for loaded in load_kernels().values()]
    heads = ["kernel", *(check.name.replace("_", " ") for check in CHECKS), "needs", "dtypes", "LSE"]
    rows = [[f"`{card.kernel}`", *(_asked(card, check) for check in CHECKS), *_claims(card)] for card in cards]
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _asked(card: KernelCard, check: Check) -> str:
    """Whether a check is asked of a kernel on some prefill or decode that its card claims."""
    device = torch.device("cpu" if card.requires.device == "cpu" else "cuda")
    subjects = [
        Subject(
            workload=workload,
            card=card,
            adapter=cast("Adapter", None),  # nobody runs it: only skips() is asked
            device=device,
            level="full",
            reference=torch.float64,
            seed=0,
        )
        for workload in _workloads(card)
    ]
    if all(check.skips(subject) for subject in subjects):
        return "–"
    return "✓" if "smoke" in check.levels else "full"


def _workloads(card: KernelCard) -> list[Workload]:
    """A causal prefill and a decode, with pages where the card claims them."""
    dim = min(card.claims.head_dim.max, 128)
    prefill = Workload(
        heads_q=4,
        heads_kv=4,
        head_dim=dim,
        head_dim_v=dim,
        dtype=card.claims.dtypes[0],
        causal=True,
        window=(-1, -1),
        softcap=0.0,
        sinks=False,
        scale=dim**-0.5,
        seqlens_q=(128, 128),
        seqlens_k=(128, 128),
        page_size=0,
    )
    decode = replace(prefill, seqlens_q=(1, 1), page_size=256 if "paged" in card.claims.layouts else 0)
    return [prefill, decode]


def _claims(card: KernelCard) -> list[str]:
    """Hardware, dtypes and the accuracy of the LSE; `qualify kernels` prints the rest."""
    hardware = " ".join([card.requires.device, *card.requires.compute_capability])
    lse = f"{card.claims.lse.rel:g}" if "lse" in card.claims.features else "–"
    return [hardware, " ".join(card.claims.dtypes), lse]


def accuracy_table() -> str:
    """The accuracy classes and their constants."""
    lines = ["| class | u_P | β₀ | a_P |\n", "| --- | --- | --- | --- |\n"]
    for kind in CLASSES:
        underflow = _power(kind.underflow) if kind.underflow else "0"
        lines.append(f"| `{kind.name}` | {_power(kind.roundoff)} | {kind.gain:g} | {underflow} |\n")
    return "".join(lines)


def selftest_table() -> str:
    """The rates and the kill table of the committed result of ``qualify selftest``."""
    result = json.loads((ROOT / "docs" / "evidence" / "selftest.json").read_text())
    rates = ", ".join(
        f"{found['caught']} of {result['faults']} at {level}" for level, found in result["levels"].items()
    )
    alarms = f"{len(result['false_alarms'])} correct kernels accused in {result['correct_runs']:,} runs"
    lines = [f"Check version {result['check_version']}: caught {rates}; {alarms}; {result['wall_s']:.0f} s.\n\n"]
    lines += ["| fault | class | does | mirrors | smoke | full |\n", "| --- | --- | --- | --- | --- | --- |\n"]
    for kill in result["kills"]:
        equivalent = kill["fault"] in result["equivalent"]
        missed = "equivalent" if equivalent else "**missed**"
        found = [", ".join(kill["caught_by"].get(level, [])) or missed for level in ("smoke", "full")]
        cells = [f"`{kill['fault']}`", kill["class"], kill["does"], kill["mirrors"], *found]
        lines.append(f"| {' | '.join(cells)} |\n")
    lines += [f"\n`{name}` is equivalent: {proof}\n" for name, proof in result["equivalent"].items()]
    return "".join(lines)


def coverage() -> str:
    """Claims against evidence: one row for each CUDA kernel, then every difference as a finding."""
    cards = {name: kernel.card for name, kernel in load_kernels().items() if kernel.card.requires.device != "cpu"}
    seen = _seen_on_h100()
    lines = ["| kernel | dtypes | masks | layouts | features | head_dim |\n", "| --- " * 6 + "|\n"]
    untried: list[str] = []
    for name, card in cards.items():
        own = [(words, verdict) for case, (words, verdict, _) in seen.items() if case.rpartition("/")[2] == name]
        passed = Counter(word for words, verdict in own if verdict == "PASS" for word in words)
        features = tuple(word for word in card.claims.features if word not in UNSEEN)
        claims = (card.claims.dtypes, card.claims.masks, card.claims.layouts, features)
        dims = sorted({word for words, verdict in own if verdict == "PASS" for word in words if word.startswith("d=")})
        cells = [", ".join(f"{word} {passed[word] or '**0**'}" for word in words) or "–" for words in claims]
        shown = ", ".join(sorted((dim.removeprefix("d=") for dim in dims), key=int)) or "**none**"
        lines.append(f"| `{name}` | {' | '.join(cells)} | {shown} of {_range(card)} |\n")
        missing = [word for words in claims for word in words if not passed[word]]
        untried += [f"* `{name}`: {', '.join(missing)}\n"] if missing else []
    return "".join([*lines, *_differences(seen, cards), "\n## Claimed, and not measured here\n\n", *untried])


UNSEEN = ("lse", "graph")
"""features that are no part of a workload"""


def _range(card: KernelCard) -> str:
    dims = card.claims.head_dim
    step = f", multiples of {dims.multiple_of}" if dims.multiple_of > 1 else ""
    gaps = f", not {', '.join(map(str, dims.excluded))}" if dims.excluded else ""
    return f"{dims.min} to {dims.max or 'any'}{step}{gaps}"


def _seen_on_h100() -> dict[str, tuple[set[str], str, list[str]]]:
    """(claim words of the workload, verdict, reasons) of each case in the evidence that a shipped matrix still has."""
    kernels = load_kernels()
    plans = [make_plan(load_matrix(name), kernels) for name in matrix_names()]
    planned = {case.id: case for plan in plans for case in (*plan.cases, *(case for case, _ in plan.refused))}
    evidence = json.loads((EVIDENCE / "2026-11-21-h100.json").read_text())
    found: dict[str, tuple[set[str], str, list[str]]] = {}
    for run in sorted(evidence["runs"], key=lambda run: run["started_at"]):
        for case in run["cases"]:
            if case["id"] in planned:
                found[case["id"]] = (_words_of(planned[case["id"]].workload), case["verdict"], case["reasons"])
    return found


def _words_of(workload: Workload) -> set[str]:
    """The words of a card that a workload needs."""
    words = {workload.dtype, workload.mask_kind, workload.layout, f"d={workload.head_dim}"}
    ragged = len(set(workload.seqlens_q)) > 1 or len(set(workload.seqlens_k)) > 1
    needed = {
        "gqa": workload.heads_q != workload.heads_kv,
        "softcap": workload.softcap > 0,
        "sinks": workload.sinks,
        "spans": bool(workload.spans),
        "ragged": ragged,
        "empty": 0 in workload.seqlens_q or 0 in workload.seqlens_k,
    }
    return words | {word for word, needs in needed.items() if needs}


def _differences(seen: dict[str, tuple[set[str], str, list[str]]], cards: dict[str, KernelCard]) -> Iterator[str]:
    """Claims that failed, and what works beyond them."""
    failed = [case for case, (_, verdict, _) in seen.items() if verdict == "FAIL"]
    beyond = [case for case, (_, _, reasons) in seen.items() if any("passed every check" in why for why in reasons)]
    for title, found in (("Claimed, and failed", failed), ("Not claimed, and passed every check", beyond)):
        yield f"\n## {title}\n\n"
        own = sorted(case for case in found if case.rpartition("/")[2] in cards)
        yield from (f"* `{case}`: {seen[case][2][0][:160].replace('<', '&lt;')}\n" for case in own)
        if not own:
            yield "None.\n"


def families_table() -> str:
    """The families that `qualify model` reads, and which keys decide about their masks."""
    lines = ["| models | `model_type` | masks |\n", "| --- | --- | --- |\n"]
    described_by: list[Family | Wrapper] = [*FAMILIES, *WRAPPERS]
    for each in described_by:
        names = ", ".join(f"`{name}`" for name in each.model_types)
        lines.append(f"| {each.title} | {names} | {each.convention} |\n")
    return "".join(lines)


def models_table() -> str:
    """The shipped model cards: what their layer groups are."""
    lines = ["| card | on the hub | layers | attention |\n", "| --- | --- | --- | --- |\n"]
    for name, loaded in load_models().items():
        groups = "<br>".join(f"{len(group.layers)} × {described(group)}" for group in loaded.card.groups)
        lines.append(f"| `{name}` | {loaded.card.hub} | {loaded.card.layers} | {groups} |\n")
    return "".join(lines)


def _power(value: float) -> str:
    """A power of two as such."""
    exponent = round(value).bit_length() if value >= 1 else -round(1 / value).bit_length() + 1
    assert value == 2.0**exponent, f"{value} is no power of two"
    return f"2^{exponent}"


def incident_evidence(reports: Sequence[dict[str, Any]]) -> str:
    """What docs/incidents.md needs of reports: the stack, and each incident's state, kernels and first reason.

    Of a case that several reports have, the last one counts that ran it. Where the first is such evidence already, it
    stands for all incidents but those that the others replay to the end.
    """
    before = reports[0] if isinstance(reports[0]["incidents"], dict) else None
    reports = reports[1:] if before else reports
    if not reports or any(isinstance(report["incidents"], dict) for report in reports):
        raise SystemExit("earlier evidence comes first, and reports after it")
    stack, parameters = reports[0]["stack"], reports[0]["parameters"]
    parts: dict[tuple[str, str], set[frozenset[tuple[str, str]]]] = {}
    for report in reports:
        named: dict[tuple[str, str], set[tuple[str, str]]] = {}
        for part in report["stack"]["components"]:
            named.setdefault((part["kind"], part["name"]), set()).add((part["version"], part["digest"]))
        for name, states in named.items():  # two libraries may each have a binary of that name
            parts.setdefault(name, set()).add(frozenset(states))
    if any(len(states) > 1 for states in parts.values()):  # a run names only the binaries that it loaded
        raise SystemExit("the reports are of several stacks; name each stack's evidence differently")
    versions = {part["name"]: part["version"] for part in stack["components"] if part["kind"] == "distribution"}
    if before and (before["device"], before["versions"]) != (stack["device"]["name"], versions):
        raise SystemExit("the reports are of another stack than the evidence; name it differently")
    if before and any(report["parameters"]["level"] != before["level"] for report in reports):
        raise SystemExit(f"the reports are of another level than the evidence ({before['level']})")
    if before and any(report["parameters"]["kernel"] for report in reports):
        raise SystemExit("a report of some kernels does not replay a whole incident: leave out --kernel")
    replayed: dict[str, dict[str, dict[str, Any]]] = {}
    for item in (item for report in reports for item in report["incidents"]):
        known = replayed.setdefault(item["incident"], {})
        measured = {case["id"]: case for case in item["cases"] if case["state"] not in {"open", "not applicable"}}
        known |= {case["id"]: case for case in item["cases"] if case["id"] not in known} | measured
    found = dict(before["incidents"]) if before else {}
    for incident, by_id in replayed.items():
        cases = by_id.values()
        ran = any(case["state"] != "not applicable" for case in cases)
        if incident in found and (not ran or any(case["state"] == "open" for case in cases)):
            continue
        state = next(state for state in STATES if any(case["state"] == state for case in cases))
        telling = [case for case in cases if case["state"] == state]
        kernels = list(dict.fromkeys(case["kernel"] for case in telling))
        reasons = [reason for case in telling for reason in case["why"]]
        found[incident] = {"state": state, "kernels": kernels, "why": reasons[0] if reasons else ""}
    data = {
        "run": ", ".join([*([before["run"]] if before else []), *(report["run"] for report in reports)]),
        "device": stack["device"]["name"],
        "versions": {name: versions[name] for name in sorted(versions)},
        "level": parameters["level"],
        "qualify": parameters["qualify_version"],
        "incidents": found,
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def cliffs_table() -> str:
    """Where `qualify cliffs` found that a library launches something else, from docs/evidence/cliffs-*.json."""
    heads = ["kernel", "call", "varied", "from", "something else is launched from"]
    rows = [heads, ["---"] * len(heads)]
    for path in sorted(EVIDENCE.glob("cliffs-*.json")):
        for found in json.loads(path.read_text()):
            for axis in found["maps"]:
                begins = [f"{part['first']:,}{'' if part['exact'] else ' (about)'}" for part in axis["segments"][1:]]
                span = f"{axis['segments'][0]['first']:,} to {axis['segments'][-1]['last']:,}"
                changes = ", ".join(begins) or "nowhere"
                rows.append([f"`{found['kernel']}`", found["phase"], axis["axis"].replace("_", " "), span, changes])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def incidents_table() -> str:
    """Every incident of the matrix: where it was reported, its trigger, what shows it, and what each stack showed."""
    stacks = {path.stem.removeprefix("incidents-"): path for path in sorted(EVIDENCE.glob("incidents-*.json"))}
    seen = {name: json.loads(path.read_text()) for name, path in stacks.items()}
    heads = ["incident", "reported in", "what went wrong", "trigger", "shown by", *seen]
    lines = [heads, ["---"] * len(heads)]
    for incident in load_matrix("incidents").card.incidents:
        links = [f"[{text}](https://github.com/{text.replace('#', '/issues/')})" for text in incident.issue]
        words = [incident.title, incident.trigger, ", ".join(incident.shown_by)]
        results = [_replayed(data["incidents"].get(incident.incident)) for data in seen.values()]
        lines.append([f"`{incident.incident}`", ", ".join(links), *words, *results])
    stacks_seen = [
        f"- **{name}**: {data['device']}, {', '.join(f'{key} {value}' for key, value in data['versions'].items())}; "
        f"level {data['level']}, run {data['run']}: {_counted(data['incidents'].values())}.\n"
        for name, data in seen.items()
    ]
    return "".join([*stacks_seen, "\n", *(f"| {' | '.join(line)} |\n" for line in lines)])


def _replayed(found: dict[str, Any] | None) -> str:
    if found is None:
        return "no case"
    named = found["state"] in {"reproduced", "fails otherwise"}
    return f"**{found['state']}**: {', '.join(found['kernels'])}" if named else str(found["state"])


def _counted(found: Iterable[dict[str, Any]]) -> str:
    counts = Counter(item["state"] for item in found)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())


def freeze() -> str:
    """Installed versions, one to a line, sorted, without qualify itself and without local version labels."""
    command = [sys.executable, "-m", "pip", "freeze", "--exclude-editable", "--exclude", "attn-qualify", "--all"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pinned = (re.sub(r"\+[A-Za-z0-9.]+$", "", line) for line in listed if "==" in line)
    kept = (line for line in pinned if not TORCHS_OWN.match(line))
    return "".join(f"{line}\n" for line in sorted(kept, key=str.lower))


if __name__ == "__main__":
    sys.exit(main())
