"""surroundings: a call returns the same result in the surroundings of a serving engine as in those of this process.

An engine calls in inference mode, from its own thread, on its own stream, and with as many threads as its container
has. It also makes calls of more shapes than a kernel's host code keeps plans for. The check repeats a short call

::

    mode      in inference mode, or outside it where the process is in it
    thread    from another thread
    count     with one and with three threads for PyTorch's operators (CPU)
    stream    on another stream, after work that replaces its inputs (CUDA): a kernel that does not wait reads the old
    shapes    again, after 66 calls of other lengths

A call with other contents comes first each time, from the usual place: a kernel that takes elsewhere what the latest
call left there would else be right by chance. Then the call must return the same bits as before. A kernel that does not
claim determinism must stay within its error budget. So must every kernel with another number of threads, because sums
may then be split in another way. The check does not try another stream with an adapter that copies its inputs before
the launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from qualify.facts.devices import HOST
from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.checks.budget import beyond_budget
from qualify.run.checks.difference import blame_change, difference
from qualify.run.checks.interface import Result, Shipped, Subject, failing, noted, passed
from qualify.run.checks.other_workloads import shortened
from qualify.run.checks.size_limits import layout_of
from qualify.run.host.interface import CallPlace
from qualify.text import first_line

OTHERS = 66
"""number of other shapes: host code that keeps plans often keeps 64"""
COUNTS = (1, 3)
"""numbers of threads for PyTorch's operators"""


class Surroundings(Shipped):
    """The same call in other surroundings."""

    def skips(self, subject: Subject) -> str:
        """Applies to every kernel."""
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """Repeat the call until a result differs. Host code is tested, so this runs once for each kernel and layout."""
        small = replace(subject, workload=shortened(subject.workload))
        decode = max(small.workload.seqlens_q) == 1
        question = f"{self.name}/{subject.card.kernel}/{layout_of(small.workload)}/{'decode' if decode else 'prefill'}"
        if question in subject.asked:
            return [noted(self.name, "passed before, in another case")]
        call = small.inputs().call
        before = small.run(call)
        asked, findings = [], []
        for name, place in places(small):
            exact = small.card.claims.deterministic and not place.threads
            try:
                after = self._from(small, call, place)
            except LibraryRefusal as refusal:
                findings.append(noted(self.name, f"not run {name}: {refusal}"))
                continue
            wrong = self._differs(small, call, before, after, name, exact=exact)
            if wrong:
                return [wrong]
            asked.append(name)
        if subject.processor.streams:
            told = self._on_another_stream(small)
            if told.verdict == "fail":
                return [told]
            findings.append(told)
        subject.asked[question] = "right"
        return [passed(self.name, f"the same result {', '.join(asked)}"), *findings]

    def _differs(
        self, subject: Subject, call: AttentionCall, before: Result, after: Result, name: str, *, exact: bool
    ) -> Finding | None:
        """A finding where the bits differ, unless the difference is allowed and the result is within the budget.

        Args:
            name: the surroundings, in words.
            exact: whether the bits must be the same.
        """
        found = difference(subject, before, after)
        if not found:
            return None
        if exact:
            return blame_change(subject, self.name, f"{name}, the same call: ", found, {"where": name}, call=call)
        wrong = beyond_budget(subject, call, after)
        return failing(self.name, f"{name}: {wrong.detail}", dict(wrong.values) | {"where": name}) if wrong else None

    def _from(self, subject: Subject, call: AttentionCall, place: CallPlace) -> Result:
        """The result of the call from a place, after one with other contents; from the usual place, after many others.

        Raises:
            LibraryRefusal: the kernel keeps tensors from inference mode, which PyTorch forbids to change outside of it.
        """
        if place == CallPlace():
            return _after_others(subject, call)
        subject.run(subject.inputs(seed=1).call)
        try:
            with subject.kernel.at(place):
                return subject.run(call)
        except RuntimeError as error:
            if not place.turned or "inference tensor" not in str(error).lower():
                raise
            raise LibraryRefusal(first_line(error)) from error

    def _on_another_stream(self, subject: Subject) -> Finding:
        """Launch a prepared call on a side stream, after work that replaces its queries, keys and values."""
        inputs, other = subject.inputs(), subject.inputs(seed=1)
        exact = subject.card.claims.deterministic
        expected = subject.run(replace(inputs.call, q=other.call.q, k=other.call.k, v=other.call.v))
        prepared = subject.kernel.prepare(inputs.call)
        prepared.launch()
        names = ("q_whole", "k_whole", *(() if inputs.call.latent else ("v_whole",)))
        replaced = [(getattr(inputs, name), getattr(other, name)) for name in names]
        found = difference(subject, expected, subject.judged(prepared.behind(replaced), inputs.call), exact=exact)
        if not found:
            return passed(self.name, "the same result on another stream, behind the work that makes its inputs")
        here = subject.judged(prepared.result(prepared.launch()), inputs.call)
        if difference(subject, expected, here, exact=exact):
            return noted(self.name, "not run on another stream: the adapter copies its inputs")
        said = "on another stream, the call does not wait for the work before it: "
        return blame_change(subject, self.name, said, found, {"where": "stream"}, call=inputs.call)


def places(subject: Subject) -> Iterator[tuple[str, CallPlace]]:
    """(name, place) of each of the surroundings; the usual place stands for a call after many other shapes."""
    yield ("outside" if torch.is_inference_mode_enabled() else "in") + " inference mode", CallPlace(turned=True)
    yield "from another thread", CallPlace(thread=True)
    if subject.device.type == HOST:
        for count in COUNTS:
            yield f"with {count} threads", CallPlace(threads=count)
    if subject.card.jit != "shapes":  # otherwise each shape would be compiled
        yield f"after {OTHERS} other lengths", CallPlace()


def _after_others(subject: Subject, call: AttentionCall) -> Result:
    """The result of the call after calls of one sequence, each with another length."""
    workload = subject.workload
    decode = max(workload.seqlens_q) == 1
    for length in range(1, OTHERS + 1):
        other = replace(subject, workload=workload.with_lengths((1 if decode else length,), (length,)))
        try:
            other.kernel.prepare(other.inputs().call).launch()
        except LibraryRefusal:  # this library does not take this length
            continue
    return subject.run(call)
