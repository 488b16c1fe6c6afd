"""A trial: a judge runs one check of one case for ``qualify repro``, and records it."""

from __future__ import annotations

import json
from dataclasses import replace

import torch

from qualify.facts.checks import check_of
from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import LibraryRefusal
from qualify.run.checks.interface import ContractBreach, Subject
from qualify.run.checks.registry import check_named
from qualify.run.host.hosts import Hosts
from qualify.run.host.interface import HostLost, Kernel, KernelRaised
from qualify.run.inputs.kept import forget
from qualify.run.measure.recording import CALLS
from qualify.run.measure.tracing import read_trace
from qualify.run.process.messages import LAUNCHES_OF, TrialEnded, TrialRequest, TrialSetup
from qualify.run.repro import standalone
from qualify.run.repro.claims import claim_of
from qualify.run.repro.recording import Recorder, RecordingKernel
from qualify.run.repro.script import Claim
from qualify.text import one_line

LAUNCHES = 3
"""number of launches for a case that crashed or hung outside any check"""


def subject_of(request: TrialRequest, setup: TrialSetup, kernel: Kernel, device: torch.device) -> Subject:
    """The subject of the checks: the requested case, with level, reference and card as in the run."""
    return Subject(
        workload=request.case.workload,
        card=setup.card,
        kernel=kernel,
        device=device,
        level=setup.level,
        reference={"fp64": torch.float64, "fp32": torch.float32}[setup.reference],
        seed=request.seed,
    )


def named(error: BaseException) -> tuple[str, str]:
    """(class name, text) of an exception that a kernel raised, in this process or in its host."""
    return (error.raised if isinstance(error, KernelRaised) else type(error).__name__), str(error)


def told(error: BaseException) -> str:
    """An exception in one line: class, text, and the line of the kernel's code that raised it, if that is known."""
    name, text = named(error)
    first = text.strip().partition("\n")[0]
    place = f" ({one_line(error.place)})" if isinstance(error, KernelRaised) and error.place else ""
    return f"{name}: {first}{place}"


class Trial:
    """One check, run under the recorder."""

    def __init__(self, request: TrialRequest, subject: Subject, hosts: Hosts) -> None:
        """Prepare the recorder; nothing runs yet."""
        self.request = request
        self.hosts = hosts
        self.recorder = Recorder(subject.device)
        self.plain = subject
        self.subject = replace(subject, kernel=RecordingKernel(subject.kernel, self.recorder))

    def run(self) -> TrialEnded:
        """Run the check; returns how it ended (``finding:NAME``, ``refused`` or ``passed``), in words, and the script.

        Raises:
            Exception: whatever the kernel raises beside a refusal and a breach of the call contract.
        """
        forget()  # what an earlier trial has made would stand in the script as bytes
        try:
            if self.request.check == LAUNCHES_OF:
                return self._launched()
            known = check_of(self.request.check)
            if known is None or known.recordable:
                with self.recorder:
                    findings = self._findings(self.subject)
            else:
                findings = self._findings(self.plain)
        except LibraryRefusal as refusal:
            # A check alters the call: where the library refuses that, the check did not run.
            if self.request.check not in ("", LAUNCHES_OF):
                return self._ended("passed", f"not run: {refusal}", self._shown())
            return self._ended("refused", str(refusal), self._runs("was refused"))
        except ContractBreach as breach:
            findings = [breach.finding]
        failed = [item for item in findings if item.verdict == "fail"]
        chosen = next((item for item in failed if item.check == self.request.finding), next(iter(failed), None))
        if chosen is None:
            return self._ended("passed", "it passes", self._shown())
        claim = claim_of(self.plain, chosen, self.recorder.launches) if self.request.script else None
        return self._ended(f"finding:{chosen.check}", chosen.detail, claim)

    def crashed(self, error: BaseException) -> TrialEnded:
        """How the trial ended, where the kernel raised an exception or its process ended."""
        if isinstance(error, HostLost):
            how = "timed_out" if error.limit_s is not None else f"crashed:{error.error.partition(',')[0]}"
            return self._ended(how, error.error, self._runs("ended the process"))
        name, text = named(error)
        return self._ended(f"crashed:{name}", f"{name}: {text}", self._runs(f"raised {name}"))

    def _launched(self) -> TrialEnded:
        """The launched attention kernels as JSON; all launched kernels where none is known as attention."""
        prepared = self.plain.kernel.prepare(self.plain.inputs().call)
        prepared.launch()
        events = self.hosts.host(self.plain.card).trace([prepared], lambda _: None, times=CALLS, memory=True)
        (traced,) = read_trace(events, count=1, cuda=self.plain.processor.records_launches)
        if traced.defect:
            return self._ended("unproven", traced.defect, None)
        launches = traced.calls[0]
        chosen = [launch for launch in launches if launch.role == "attention"] or list(launches)
        return self._ended("launched", json.dumps([{"name": item.name, "grid": item.grid} for item in chosen]), None)

    def _findings(self, subject: Subject) -> list[Finding]:
        known = check_of(self.request.check)
        if known is not None:
            check = check_named(known.name)
            return [] if check.skips(subject) else list(check.run(subject))
        if self.request.check:
            detail = f"{self.request.check} is no check of calls"
            return [Finding(check=self.request.finding, verdict="fail", detail=detail)]
        call = subject.inputs().call
        for _ in range(LAUNCHES):
            subject.run(call)
        return []

    def _runs(self, what: str) -> Claim | None:
        last = len(self.recorder.launches) - 1
        if last < 0:
            return None
        given = ("kernel", f"call{last}")
        return Claim(shows=standalone.returns, given=given, launches=(last,), values={"what": what})

    def _shown(self) -> Claim | None:
        """A claim about one element of a case that passes, so that the script shows it beside its exact value."""
        workload = self.plain.workload
        lengths = list(zip(workload.seqlens_q, workload.seqlens_k, strict=True))
        sequence = next((index for index, (q, k) in enumerate(lengths) if q and k), None)
        if sequence is None or not self.recorder.launches:
            return self._runs("returned")
        eps = torch.finfo(self.recorder.launches[0].call.out_dtype).eps
        place = {"sequence": sequence, "query": lengths[sequence][0] - 1, "head": 0, "element": 0}
        values = {**place, "absolute": 1e-6, "of_weights": 4 * eps}
        return Claim(shows=standalone.element_is_off, given=("call0", "out0"), launches=(0,), values=values)

    def _ended(self, ended: str, detail: str, claim: Claim | None) -> TrialEnded:
        script = self._render(claim) if self.request.script and claim is not None else ""
        return TrialEnded(ended=ended, detail=detail, script=script)

    def _render(self, claim: Claim) -> str:
        """The script of a claim; empty where the source of the adapter's function cannot be exported."""
        return self.hosts.render(
            self.plain.card,
            title=f"{self.request.finding}: {self.request.case.id}",
            text=self.request.text,
            program=self.recorder.program(claim.launches, launched=claim.launched),
            claim=claim,
        )
