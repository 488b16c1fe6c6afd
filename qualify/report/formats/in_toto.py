"""The verdict as an in-toto statement with the predicate test-result/v0.1, which a promotion can require and verify.

The subjects are what was tested, each with its sha256. They are the artifacts that ``--subject`` names. Without it they
are the image that the run was in, or else the files that its hosts had mapped. The module refuses an artifact that the
evidence knows with another digest. ``qualify gate --sign`` signs the statement.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from qualify.assets import again_elsewhere
from qualify.errors import NoVerdict
from qualify.facts import codec
from qualify.facts.artifact import ARTIFACT, Artifact
from qualify.facts.code import Code
from qualify.facts.run import Conclusion, Run
from qualify.facts.stack import Stack
from qualify.judge.judged import Judged
from qualify.report.formats.interface import OutputOptions
from qualify.report.signoffs import signoff_data
from qualify.report.verdict_text import DEMONSTRATION, verdict_line
from qualify.report.waived import waived_data
from qualify.report.weaker import sentence
from qualify.seal.form import line, plain
from qualify.seal.sealed import signed

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
FILES = 20
"""most files of a kernel's code that a statement names"""


def render(judged: Judged, options: OutputOptions) -> str:
    """The statement as JSON. Raises NoVerdict as :func:`to_statement` does."""
    statement = to_statement(judged, options.subjects)
    return codec.to_json(signed(statement, options.key) if options.key else statement)


def to_statement(judged: Judged, given: Sequence[Artifact] = ()) -> dict[str, Any]:
    """The statement. INCONCLUSIVE becomes FAILED, because in-toto knows no third state and INCONCLUSIVE never passes.

    Raises:
        NoVerdict: the run was narrowed, or is a demonstration on a CPU. Nothing was named, and no file of the stack has
            a digest. Or what was named had another digest when it was tested.
    """
    _refuse_partial(judged)
    for subject in given:
        _refuse_other(judged, subject)
    run, conclusion = judged.run, judged.conclusion
    subjects = list(given) or _image(run) or _mapped(run)
    if not subjects:
        raise NoVerdict(
            f"run {run.id} has nothing that a statement could name: no image with a digest (QUALIFY_IMAGE), and no "
            "file with one. Name what you promote, with --subject NAME@sha256:HEX; `sha256sum FILE` prints the digest "
            "of a file."
        )
    named = _tests(conclusion)
    result = "FAILED" if conclusion.exit_code else "WARNED" if named["warnedTests"] else "PASSED"
    return {
        "_type": STATEMENT,
        "subject": [subject.data() for subject in subjects],
        "predicateType": PREDICATE,
        "predicate": {"result": result, "configuration": _configuration(judged), **named},
    }


def _tests(conclusion: Conclusion) -> dict[str, list[str]]:
    """Ids of cases and production shapes by the list of their verdict. INCONCLUSIVE counts as a failure."""
    lists = {"PASS": "passedTests", "WAIVED": "warnedTests", "FAIL": "failedTests", "INCONCLUSIVE": "failedTests"}
    named: dict[str, list[str]] = {"passedTests": [], "warnedTests": [], "failedTests": []}
    for name, verdict in (
        *((item.case_id, item.verdict) for item in conclusion.judgements),
        *((cell.cell, cell.verdict) for cell in conclusion.cells),
    ):
        if verdict in lists:
            named[lists[verdict]].append(name)
    return named


def _refuse_partial(judged: Judged) -> None:
    """Raises NoVerdict for a run of a part of the matrix, or on a CPU that stood in for the production GPU."""
    run = judged.run
    if run.narrowed:
        raise NoVerdict(
            f"run {run.id} was narrowed by --select or --kernel, and a statement stands for the whole matrix. Judge "
            f"all of it: {judged.typed.command('gate', '--matrix', run.matrix_path, '--format', 'in-toto')}"
        )
    if judged.conclusion.demonstration:
        raise NoVerdict(
            f"run {run.id} is a {DEMONSTRATION}, and a statement stands for the device that serves. On the GPU "
            f"host, `{judged.typed.command(*again_elsewhere(run.matrix_path, run.matrix_source))}` runs it."
        )


def _refuse_other(judged: Judged, subject: Artifact) -> None:
    """Raises NoVerdict for an artifact where the run tested another digest of the same name."""
    run = judged.run
    tested = {known.sha256 for known in (*_image(run), *_mapped(run)) if known.name == subject.name}
    if tested and subject.sha256 not in tested:
        raise NoVerdict(
            f"--subject {subject.name}@sha256:{subject.sha256}: run {run.id} tested {subject.name} with the sha256 "
            f"{', '.join(sorted(tested))}. "
            f"`{judged.typed.command('run', run.matrix_path)}` tests the one that is promoted."
        )


def _image(run: Run) -> list[Artifact]:
    """The image that the run was in, where QUALIFY_IMAGE named it with its digest."""
    found = ARTIFACT.fullmatch(run.stack.version("image")) if run.stack else None
    return [Artifact(name=found["name"], sha256=found["digest"])] if found else []


def _mapped(run: Run) -> list[Artifact]:
    """The files that hosts of all environments had mapped; equal files appear once."""
    parts = [part for stack in _stacks(run).values() for part in stack.components]
    files = dict.fromkeys(
        (part.name, part.digest) for part in parts if part.kind == "binary" and len(part.digest) == 64
    )
    return [Artifact(name=name, sha256=digest) for name, digest in files]


def _stacks(run: Run) -> dict[str, Stack]:
    """Stacks of the run by environment; the empty name stands for this interpreter."""
    found = {name: run.stack_of(name) for name in ("", *run.environments)}
    return {name: stack for name, stack in found.items() if stack}


def _configuration(judged: Judged) -> list[dict[str, Any]]:
    """The matrix with its digest, and the run, the stacks and the code that the evidence is from."""
    run = judged.run
    annotations = {
        "run": run.id,
        "level": run.level,
        "started_at": judged.began_at.isoformat(),
        "evidence_since": judged.evidence_since.isoformat(),
        "exit_code": judged.conclusion.exit_code,
        "check_version": run.check_version,
        "qualify_version": run.qualify_version,
        "headline": verdict_line(judged),
        "waived": waived_data(judged.conclusion),
        "signoffs": [signoff_data(it) for it in judged.signoffs],
        "baseline": _baseline(judged),
        "asks_less": [sentence(less) for less in judged.weaker.changes] if judged.weaker else [],
    }
    matrix = {"name": run.matrix_path, "digest": {"sha256": run.matrix_hash}, "annotations": annotations}
    stacks = [_of_stack(name, stack) for name, stack in _stacks(run).items()]
    code = [_of_code(kernel, files) for kernel, files in sorted((run.code or {}).items()) if files]
    return [matrix, *stacks, *code, *(image.data() for image in _image(run))]


def _baseline(judged: Judged) -> dict[str, Any] | None:
    """Who accepted the run that the verdict compares with, and whether a token proved it; None without a baseline."""
    accepted = judged.against.baseline if judged.against else None
    if accepted:
        return {"run": accepted.run_id, "accepted_by": accepted.accepted_by, "accepted_proven": accepted.proven}
    if weaker := judged.weaker:
        return {"run": weaker.run, "accepted_by": weaker.accepted_by, "accepted_proven": weaker.proven}
    return None


def _of_stack(environment: str, stack: Stack) -> dict[str, Any]:
    """A stack as in-toto's ResourceDescriptor."""
    versions = {part.name: part.version for part in stack.components if part.version}
    return {
        "name": f"stack{f' of environment {environment}' if environment else ''} on {stack.device.name}",
        "digest": {"sha256": stack.fingerprint},
        "annotations": {"device": stack.device.variant, **versions},
    }


def _of_code(kernel: str, files: Code) -> dict[str, Any]:
    """The code of a kernel: one digest over the names and digests of its files, and at most FILES of these files."""
    digest = hashlib.sha256(line({"code": plain(files)})).hexdigest()
    told = dict(sorted(files.items())[:FILES]) | {"files": len(files)}
    return {"name": f"code of {kernel}", "digest": {"sha256": digest}, "annotations": told}
