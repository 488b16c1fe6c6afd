"""The verdict as an in-toto statement with the predicate test-result/v0.1: what a promotion can ask for and verify.

The subjects are what was tested: the artifacts that ``--subject`` names, otherwise the files that the worker had
mapped, each with its sha256. The statement is not signed; signing it is the pipeline's part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from qualify.errors import NoVerdict, UsageError
from qualify.facts import codec
from qualify.judge.judged import Judged
from qualify.report.formats.interface import Artifact, OutputOptions
from qualify.report.verdict_text import DEMONSTRATION, verdict_line
from qualify.report.waived import waived_data
from qualify.report.weaker import sentence

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
SUBJECT = re.compile(r"(?P<name>[^\s@]+)@sha256:(?P<digest>[0-9a-f]{64})")


def parse_subject(text: str) -> Artifact:
    """A subject as it is typed: NAME@sha256:HEX. Raises UsageError for anything else."""
    found = SUBJECT.fullmatch(text)
    if not found:
        raise UsageError(
            f"--subject {text}: give NAME@sha256:HEX with 64 lower-case hexadecimal digits, as registries name images"
        )
    return Artifact(name=found["name"], sha256=found["digest"])


def render(judged: Judged, options: OutputOptions) -> str:
    """The statement as JSON. Raises NoVerdict as :func:`to_statement` does."""
    return codec.to_json(to_statement(judged, options.subjects))


def to_statement(judged: Judged, given: Sequence[Artifact] = ()) -> dict[str, Any]:
    """The statement. A verdict that is not given is FAILED: in-toto knows no third state, and it never passes.

    Raises:
        NoVerdict: the run was narrowed, or is a demonstration on a CPU; or nothing was named, and no file of the stack
            has a digest.
    """
    run, conclusion = judged.run, judged.conclusion
    if run.narrowed:
        raise NoVerdict(
            f"run {run.id} was narrowed by --select or --kernel, and a statement stands for the whole matrix. Judge "
            f"all of it: {judged.typed.command('gate', '--matrix', run.matrix_path, '--format', 'in-toto')}"
        )
    if conclusion.demonstration:
        raise NoVerdict(
            f"run {run.id} is a {DEMONSTRATION}, and a statement stands for the device that serves. Run it on the GPU "
            f"host: {judged.typed.command('run', run.matrix_path)}"
        )
    subjects = list(given) or _mapped(judged)
    if not subjects:
        raise NoVerdict(
            f"run {run.id} knows no file with a digest to state anything about: name the artifact that is promoted "
            "with --subject NAME@sha256:HEX"
        )
    named: dict[str, list[str]] = {"passedTests": [], "warnedTests": [], "failedTests": []}
    lists = {"PASS": "passedTests", "WAIVED": "warnedTests", "FAIL": "failedTests", "INCONCLUSIVE": "failedTests"}
    for name, verdict in (
        *((item.case_id, item.verdict) for item in conclusion.judgements),
        *((cell.cell, cell.verdict) for cell in conclusion.cells),
    ):
        if verdict in lists:
            named[lists[verdict]].append(name)
    result = "FAILED" if conclusion.exit_code else "WARNED" if named["warnedTests"] else "PASSED"
    return {
        "_type": STATEMENT,
        "subject": [subject.data() for subject in subjects],
        "predicateType": PREDICATE,
        "predicate": {"result": result, "configuration": _configuration(judged), **named},
    }


def _mapped(judged: Judged) -> list[Artifact]:
    """The files that the worker had mapped; of equal files one."""
    stack = judged.run.stack
    parts = stack.components if stack else ()
    files = dict.fromkeys(
        (part.name, part.digest) for part in parts if part.kind == "binary" and len(part.digest) == 64
    )
    return [Artifact(name=name, sha256=digest) for name, digest in files]


def _configuration(judged: Judged) -> list[dict[str, Any]]:
    """The matrix with its digest, and the run and the stack that the evidence is from."""
    run, stack = judged.run, judged.run.stack
    annotations = {
        "run": run.id,
        "level": run.level,
        "started_at": judged.evidence_since.isoformat(),
        "exit_code": judged.conclusion.exit_code,
        "check_version": run.check_version,
        "qualify_version": run.qualify_version,
        "headline": verdict_line(judged),
        "waived": waived_data(judged.conclusion),
        "asks_less": [sentence(less) for less in judged.weaker.changes] if judged.weaker else [],
    }
    found: list[dict[str, Any]] = [
        {"name": run.matrix_path, "digest": {"sha256": run.matrix_hash}, "annotations": annotations}
    ]
    if stack:
        versions = {part.name: part.version for part in stack.components if part.version}
        found.append(
            {
                "name": f"stack on {stack.device.name}",
                "digest": {"sha256": stack.fingerprint},
                "annotations": {"device": stack.device.variant, **versions},
            }
        )
    return found
