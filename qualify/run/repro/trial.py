"""One check of one case, recorded, in a process of its own: what ``qualify repro`` asks a worker.

::

    parent -> child   setup {mode: trials, device, level, reference, import_paths, card}                   once
                      trial {case, seed, check, finding, script}                                     again and again
    child -> parent   ready {}  or  unusable {message}                                               once
                      at {case, stage}                                                               before every step
                      script {text}              before every launch, where a script is wanted: it may be the last word
                      trial {ended, detail, script}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from qualify.cards.kernel import KernelCard
from qualify.facts.case import Case
from qualify.facts.checks import check_of
from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import Adapter, LibraryRefusal, Scripted
from qualify.run.checks.interface import ContractBreach, Subject
from qualify.run.checks.registry import check_named
from qualify.run.measure.tracing import trace
from qualify.run.process.setup import LAUNCHES_OF
from qualify.run.repro import standalone
from qualify.run.repro.claims import claim_of
from qualify.run.repro.export import CannotExport
from qualify.run.repro.recording import Recorder, RecordingAdapter
from qualify.run.repro.script import Claim, render

LAUNCHES = 3
"""of a case that crashed or hung outside any check"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One trial."""

    case: Case
    seed: int
    """of the inputs; it stays while the case shrinks"""
    check: str
    """check to run; empty = only launch"""
    finding: str
    """name of the finding that must come again"""
    script: bool
    """whether the script is wanted, and not only how it ends"""
    text: str
    """explanation that goes into the script"""


def subject_of(
    asked: Asked, card: KernelCard, adapter: Adapter, device: torch.device, setup: Mapping[str, Any]
) -> Subject:
    """What the checks see: the case as it is asked, the rest as the run had it."""
    return Subject(
        workload=asked.case.workload,
        card=card,
        adapter=adapter,
        device=device,
        level=setup["level"],
        reference={"fp64": torch.float64, "fp32": torch.float32}[setup["reference"]],
        seed=asked.seed,
    )


class Trial:
    """One check under the recorder."""

    def __init__(self, asked: Asked, subject: Subject, pipe: Any) -> None:
        self.asked = asked
        self.pipe = pipe
        self.recorder = Recorder(subject.device)
        self.plain = subject
        self.subject = replace(subject, adapter=RecordingAdapter(subject.adapter, self.recorder, self._before))

    def run(self) -> dict[str, str]:
        """How it ended (``finding:NAME``, ``refused`` or ``passed``), in words, and the script.

        Whatever else the kernel raises passes through.
        """
        try:
            if self.asked.check == LAUNCHES_OF:
                return self._launched()
            known = check_of(self.asked.check)
            if known is None or known.recordable:
                with self.recorder:
                    findings = self._findings(self.subject)
            else:
                findings = self._findings(self.plain)
        except LibraryRefusal as refusal:
            if self.asked.check:  # the library declines what the check altered, so the check was not asked
                return self._ended("passed", f"not asked: {refusal}", self._shown())
            return self._ended("refused", str(refusal), self._runs("was refused"))
        except ContractBreach as breach:
            findings = [breach.finding]
        failed = [item for item in findings if item.verdict == "fail"]
        chosen = next((item for item in failed if item.check == self.asked.finding), next(iter(failed), None))
        if chosen is None:
            return self._ended("passed", "it passes", self._shown())
        claim = claim_of(self.plain, chosen, self.recorder.launches) if self.asked.script else None
        return self._ended(f"finding:{chosen.check}", chosen.detail, claim)

    def crashed(self, error: Exception) -> dict[str, str]:
        """How it ended, where the kernel raised an exception."""
        name = type(error).__name__
        return self._ended(f"crashed:{name}", f"{name}: {error}", self._runs(f"raised {name}"))

    def _launched(self) -> dict[str, str]:
        """The attention kernels of the call as JSON, all kernels where none is known as one."""
        prepared = self.plain.adapter.prepare(self.plain.inputs().call)
        prepared.launch()
        (traced,) = trace([prepared.launch], self.plain.device)
        if traced.defect:
            return self._ended("unproven", traced.defect, None)
        launches = traced.calls[0]
        chosen = [launch for launch in launches if launch.role == "attention"] or list(launches)
        return self._ended("launched", json.dumps([{"name": item.name, "grid": item.grid} for item in chosen]), None)

    def _findings(self, subject: Subject) -> list[Finding]:
        known = check_of(self.asked.check)
        if known is not None:
            check = check_named(known.name)
            return [] if check.skips(subject) else list(check.run(subject))
        if self.asked.check:
            detail = f"{self.asked.check} is no check of calls"
            return [Finding(check=self.asked.finding, verdict="fail", detail=detail)]
        call = subject.inputs().call
        for _ in range(LAUNCHES):
            subject.run(call)
        return []

    def _before(self, number: int) -> None:
        """The kernel may end the process: say beforehand what would be to blame."""
        if self.asked.script:
            self.pipe.send("script", text=self._render(self._runs("ended the process", number)))

    def _runs(self, what: str, number: int | None = None) -> Claim | None:
        last = len(self.recorder.launches) - 1 if number is None else number
        if last < 0:
            return None
        given = ("kernel", f"call{last}")
        return Claim(shows=standalone.returns, given=given, launches=(last,), values={"what": what})

    def _shown(self) -> Claim | None:
        """One value of a case that passes, beside the exact one."""
        workload = self.plain.workload
        lengths = list(zip(workload.seqlens_q, workload.seqlens_k, strict=True))
        sequence = next((index for index, (q, k) in enumerate(lengths) if q and k), None)
        if sequence is None or not self.recorder.launches:
            return self._runs("returned")
        eps = torch.finfo(self.recorder.launches[0].call.out_dtype).eps
        place = {"sequence": sequence, "query": lengths[sequence][0] - 1, "head": 0, "element": 0}
        values = {**place, "absolute": 1e-6, "of_weights": 4 * eps}
        return Claim(shows=standalone.element_is_off, given=("call0", "out0"), launches=(0,), values=values)

    def _ended(self, ended: str, detail: str, claim: Claim | None) -> dict[str, str]:
        script = self._render(claim) if self.asked.script and claim is not None else ""
        return {"ended": ended, "detail": detail, "script": script}

    def _render(self, claim: Claim | None) -> str:
        """The script of a claim; empty where the adapter's function has no source to give."""
        adapter = self.plain.adapter
        if claim is None or not isinstance(adapter, Scripted):
            return ""
        try:
            return render(
                title=f"{self.asked.finding}: {self.asked.case.id}",
                text=self.asked.text,
                device=self.plain.device,
                bind=adapter.bind,
                program=self.recorder.program(claim.launches, launched=claim.launched),
                claim=claim,
            )
        except CannotExport:
            return ""
