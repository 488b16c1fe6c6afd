"""From a stored case to a standalone script that repeats it, on the smallest workload that still fails if asked."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from qualify.assets import digest_cache
from qualify.cards.kernel import KernelCard
from qualify.cards.load import NO_ENVIRONMENTS, LoadedKernel, in_environments, parse_matrix
from qualify.cards.policy import Policy
from qualify.errors import DeviceError, UsageError
from qualify.facts.case import Case
from qualify.facts.checks import NEIGHBOURS
from qualify.facts.outcome import Crashed, NotRun, Outcome, Refused, TimedOut, causes_first, findings_of
from qualify.facts.run import Run
from qualify.facts.stages import ending
from qualify.facts.typed import Typed
from qualify.files import exists
from qualify.fleet.entries import entry_words
from qualify.fleet.minimise import TRIALS, Shrunk, Smaller, minimise
from qualify.fleet.probe import available_memory, find_host
from qualify.fleet.trials import Bench
from qualify.judge.code import changed_cards, changed_code, code_here
from qualify.plan.code import CodeHere
from qualify.plan.interpreter import check_interpreter, without_python
from qualify.plan.workloads import workload_refusals
from qualify.run.process.messages import HostLimits, TrialEnded, TrialSetup
from qualify.run.repro import rerun
from qualify.run.repro.export import Exporter, call_of
from qualify.store.store import Store
from qualify.text import one_line, unsaid

MEMORY_SHARE = 0.85
"""share of the machine's free memory that a worker may take"""
HANGS = 15
"""most trials where each may hang until its time limit"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What is to be repeated."""

    run: Run
    case: Case
    kernel: LoadedKernel
    policy: Policy
    typed: Typed
    """where the cards and the evidence are, as paths that do not depend on the folder that the script runs in"""
    check: str
    """check to run; empty = only launch"""
    finding: str
    """name of the failed check, or the kind of outcome, that must come again"""
    detail: str
    """what the stored evidence says about it; empty where the case passed"""
    python: str
    """the interpreter of the case's environment; empty for this one"""

    @property
    def card(self) -> KernelCard:
        """The card of the kernel, as it is now."""
        return self.kernel.card

    @property
    def changed(self) -> str:
        """Which card or code the kernel has now that it had not in the run; empty where that is not known."""
        name, cards = self.case.kernel, {self.case.kernel: self.kernel}
        environments = {self.case.environment: self.python} if self.python else {}
        here = CodeHere(folders=self.typed.cards, cache=digest_cache(), environments=environments)
        code = changed_code(self.run, code_here(here, [name], cards)) if self.run.code else {}
        return (changed_cards(self.run, [name], cards) | code).get(name, "")

    @property
    def seed(self) -> int:
        """Seed of the inputs in the run; the same rule as in qualify.run.execute."""
        return int(self.case.content_hash[:7], 16)

    def command(self, *, alone: bool) -> list[str]:
        """The command that repeats the case under qualify, or the whole run that it failed in."""
        run = self.run
        narrowed = (("--select", self.case.id), ("--kernel", self.case.kernel))
        if not alone:
            narrowed = (("--select", run.select), ("--kernel", run.kernel))
        path = Path(run.matrix_path)
        words = [str(path.resolve()) if exists(path) else run.matrix_path, "--fresh"]
        words += [word for pair in narrowed if pair[1] for word in pair]
        return self.typed.words("run", *words, "--level", run.level, "--device", run.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class Repro:
    """The script, and how it came about."""

    run: str
    case: str
    check: str
    ended: str
    """how the case ended when it was repeated for this script"""
    shrunk: tuple[str, ...]
    """what was made smaller"""
    standalone: bool
    """False where the script runs qualify"""
    script: str


Say = Callable[[str], None]


def find_wanted(
    store: Store,
    case_id: str,
    run_id: str,
    kernels: Mapping[str, LoadedKernel],
    typed: Typed,
    environments: Mapping[str, str] = NO_ENVIRONMENTS,
    command: Literal["repro", "profile"] = "repro",
) -> Wanted:
    """The case as it is stored.

    Args:
        environments: interpreters by name, instead of those of the run.
        command: which one asks; where the case is not in that run, its message says how to ask for another.

    Raises:
        UsageError: unknown case or run, a case that never ran, a kernel whose card is gone, or an environment in which
            nothing can run.
        NoVerdict: nothing is stored yet.
    """
    resolved = store.resolve(run_id) if run_id else None
    run, record = store.find_case(case_id, resolved, lambda case, run: typed.command(command, case, "--run", run))
    case, outcome = record.case, record.outcome
    if isinstance(outcome, NotRun):
        raise UsageError(f"{case_id} has no outcome in run {run.id} ({outcome.reason}), so there is nothing to repeat.")
    if isinstance(outcome, Refused) and outcome.by == "plan":
        raise UsageError(f"{case_id} was refused beforehand and never ran: {'; '.join(outcome.reasons)}")
    interpreters = {name: one.python for name, one in run.environments.items()} | dict(environments)
    kernels = in_environments(kernels, interpreters)
    if case.kernel not in kernels:
        raise UsageError(
            f"no card here is that of kernel {case.kernel}, which ran in run {run.id}. If it is one of your own, name "
            f"its folder: {typed.command(command, case_id, '--run', run.id)} --cards DIR"
        )
    check, finding, detail = failure_of(outcome)
    return Wanted(
        run=run,
        case=case,
        kernel=kernels[case.kernel],
        policy=parse_matrix(run.matrix_source, run.matrix_path).policy,
        typed=replace(typed.anywhere(), environments=tuple(f"{name}={path}" for name, path in interpreters.items())),
        check=check,
        finding=finding,
        detail=detail,
        python=_usable_python(case.environment, interpreters),
    )


def _usable_python(environment: str, interpreters: Mapping[str, str]) -> str:
    """The interpreter of an environment, which must be able to run something; empty for this one."""
    if not environment:
        return ""
    python = interpreters[environment]
    check_interpreter(environment, python)
    return python


def failure_of(outcome: Outcome) -> tuple[str, str, str]:
    """(check to run, name of what failed, what the evidence says) of a stored outcome."""
    if isinstance(outcome, Refused):
        return "", "refused", "; ".join(outcome.reasons)
    if isinstance(outcome, Crashed | TimedOut):
        return outcome.stage.partition(":")[2], outcome.outcome, ending(outcome)
    failed = causes_first(finding for finding in findings_of(outcome) if finding.verdict == "fail")
    if not failed:
        return "budget", "passed", ""
    return failed[0].check, failed[0].check, failed[0].detail


def reproduce(wanted: Wanted, *, shrink: bool, say: Say, detail: Say = unsaid) -> Repro:
    """Repeat the case in a worker, make it smaller if asked, and write the script.

    Args:
        shrink: look for the smallest workload that fails in the same way.
        say: takes a line for the log.
        detail: takes a line for every stage of every attempt.

    Raises:
        DeviceError: the device that the run used is not here, or the kernel's library cannot be loaded.
    """
    find_host(wanted.run.device)
    if not wanted.detail:
        say(f"{wanted.case.id} passed in run {wanted.run.id}: the script shows one of its values beside the exact one")
    with closing(_bench(wanted, detail)) as bench:
        first = _first(bench, wanted)
        say(one_line(f"repeated alone: {in_words(first.ended)}: {first.detail[:300]}"))
        case, last, shrunk = wanted.case, first, None
        if shrink and first.failed:
            shrunk = _shrink(bench, wanted, first, say)
            case = replace(case, workload=shrunk.workload)
            last = _attempt(bench, wanted, case, _text(wanted, shrunk)) if shrunk.steps else first
    return _written(wanted, last, shrunk, say)


def in_words(ended: str) -> str:
    """How an attempt ended, for a person: ``finding:census`` is a check that failed."""
    how, _, name = ended.partition(":")
    if how == "finding":
        return f"{name} fails"
    return f"{how} ({name})" if name else how.replace("_", " ")


def _bench(wanted: Wanted, detail: Say) -> Bench:
    setup = TrialSetup(
        device=wanted.run.device,
        level=wanted.run.level,
        reference=wanted.policy.reference,
        import_paths=wanted.typed.cards,
        card=wanted.card,
        hosts=HostLimits(
            timeout_s=wanted.policy.compile_timeout_s if wanted.finding != "timed_out" else wanted.policy.timeout_s,
            compile_timeout_s=wanted.policy.compile_timeout_s,
            memory_bytes=int(available_memory() * MEMORY_SHARE),
            environments={wanted.case.environment: wanted.python} if wanted.python else {},
        ),
    )
    return Bench(setup, detail)


def _attempt(bench: Bench, wanted: Wanted, case: Case, text: str = "") -> TrialEnded:
    return bench.attempt(case, seed=wanted.seed, check=wanted.check, finding=wanted.finding, text=text)


def _first(bench: Bench, wanted: Wanted) -> TrialEnded:
    """The case as it is; a kernel that cannot be loaded is told with the line of its card that says so."""
    try:
        return _attempt(bench, wanted, wanted.case, _text(wanted, None))
    except DeviceError as error:
        raise DeviceError(f"{error}{entry_words(str(error), wanted.kernel)}") from None


def _shrink(bench: Bench, wanted: Wanted, first: TrialEnded, say: Say) -> Shrunk:
    """The smallest workload that ends as the first attempt did; only what the card claims is tried."""

    def fails(candidate: Smaller) -> bool:
        ended = _attempt(bench, wanted, replace(wanted.case, workload=candidate.workload)).ended
        say(one_line(f"{candidate.what}: {'as before, ' if ended == first.ended else ''}{in_words(ended)}"))
        return ended == first.ended

    def claimed(candidate: Smaller) -> bool:
        return bool(wanted.case.unclaimed) or not workload_refusals(wanted.card, candidate.workload)

    limit = HANGS if first.ended == "timed_out" else TRIALS
    shrunk = minimise(wanted.case.workload, fails, claimed, limit)
    say(f"tried {shrunk.tried} smaller workloads, {len(shrunk.steps)} of them failed as the case does")
    return shrunk


def _text(wanted: Wanted, shrunk: Shrunk | None) -> str:
    """What the script says about itself."""
    lines = [wanted.detail or "The case passed.", ""]
    if wanted.python:
        lines += [f"Run it with the interpreter of environment {wanted.case.environment}: {wanted.python}"]
    lines += [f"Run {wanted.run.id}; under qualify: {shlex.join(wanted.command(alone=True))}"]
    if shrunk is not None and shrunk.steps:
        lines += ["Made smaller while it failed in the same way:", *(f"  {step}" for step in shrunk.steps)]
    return "\n".join(lines)


def _written(wanted: Wanted, attempt: TrialEnded, shrunk: Shrunk | None, say: Say) -> Repro:
    """The script if it shows the failure by itself, else one that runs qualify."""
    why, alone = "", wanted.finding != NEIGHBOURS
    if wanted.detail and not attempt.failed and (changed := wanted.changed):
        why = f"Repeated alone the case does not fail, and its kernel is another than in the run: {changed}."
    elif wanted.detail and not attempt.failed:
        why, alone = "Repeated alone the case does not fail: what ran before it in its process matters.", False
    elif not attempt.script:
        why = f"What {wanted.finding} found cannot be shown by calls of the kernel alone."
    elif attempt.failed and not _shows(attempt.script, wanted):
        why = f"A script of the kernel's calls alone does not show what {wanted.finding} found."
    script = attempt.script
    if why:
        say(f"{why} The script runs qualify instead.")
        script = _fallback(wanted, why, wanted.command(alone=alone))
    return Repro(
        run=wanted.run.id,
        case=wanted.case.id,
        check=wanted.finding,
        ended=attempt.ended,
        shrunk=shrunk.steps if shrunk else (),
        standalone=not why,
        script=script,
    )


def _fallback(wanted: Wanted, why: str, command: Sequence[str]) -> str:
    """A script that runs qualify, and says why."""
    said = f"# {why}\n# So this repeats it under qualify; the exit code is the gate's: 1 while it still fails.\n"
    body = f"{said}{call_of('rerun', *map(repr, command))}\n"
    exporter = Exporter()
    exporter.add_names_of(body, rerun.__name__)
    title = f"{wanted.finding}: {wanted.case.id}"
    return exporter.script(title=title, text=_text(wanted, None), body=body)


def _shows(script: str, wanted: Wanted) -> bool:
    """Whether a fresh Python that runs the script ends as it should: not with 0."""
    with tempfile.TemporaryDirectory(prefix="qualify-repro-") as folder:
        path = Path(folder) / "repro.py"
        path.write_text(script)
        limit = wanted.policy.compile_timeout_s
        try:
            ended = subprocess.run(
                [wanted.python or sys.executable, "-P", str(path)],
                capture_output=True,
                timeout=limit,
                check=False,
                cwd=folder,
                env=without_python(os.environ) if wanted.python else os.environ,
            )
        except subprocess.TimeoutExpired:
            return wanted.finding == "timed_out"
    return ended.returncode != 0
