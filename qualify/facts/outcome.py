"""What happened: a tagged union of frozen records, so contradictory states cannot be built.

::

    Outcome = Measured     it ran, the witness saw the claimed kernel or could not tell (UNPROVEN)
            | Refused      nobody ran it: the plan or the library said why not
            | Substituted  it ran, but another attention kernel did the work
            | Crashed      an exception, a signal, an exit, or a poisoned CUDA context
            | TimedOut     killed by the watchdog
            | NotRun       the run goes on, or ended before its turn
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from qualify.facts.identity import accepts_anything, side_work_among
from qualify.text import clipped

OTHERS = "others"
"""the value of a finding about a time that says how many other processes used the card"""
FindingVerdict = Literal["pass", "fail", "inconclusive", "note"]
Value = str | int | float | bool | None
Role = Literal["attention", "auxiliary", "gemm", "softmax", "unclassified"]
WitnessState = Literal["proven", "substituted", "unproven"]
Bound = Literal["flops", "bytes", "exps", "launch"]

LOST = "store"
"""name of the check in a finding which says that somebody deleted findings from the store, or added some"""
CONTRACT = "contract"
"""the check that a kernel fails if it breaks the call contract; later checks do not run then"""
REUSED = "reused"
"""name of the check in a note which says from which run an outcome was taken over"""
TIMING = "timing"
"""name of the check in a finding about the time of a case"""
LONGEST_US = 1e13
"""a time of one call that is longer was not measured: it is 115 days"""
NAMED, SHOWN = 3, 60
"""patterns that a sentence names, and most characters of each"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check says about one outcome, with the values that made it say so."""

    check: str
    verdict: FindingVerdict
    detail: str
    """one sentence for a person: index, both values, limit, count and share where it is numeric"""
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One device kernel (or, on the CPU, one operator) that one call launched."""

    name: str
    """raw demangled name, as the profiler gave it"""
    count: int
    """launches of this name in one call"""
    role: Role
    family: str
    """library family, for example ``flash-attention-3``; empty where unknown"""
    generation: str
    """``ampere``, ``hopper``, ``blackwell``, ``cpu`` or empty where the name does not tell"""
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers: int | None
    """registers per thread"""
    shared_bytes: int | None
    """shared memory per block"""
    stream: int | None
    duration_us: float
    """traced time of all ``count`` launches; never quoted as a measurement"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Witness:
    """Which kernel really ran, and whether that could be proved."""

    state: WitnessState
    reason: str
    """why it is unproven or substituted; where it is proven, why identity is not asserted, or empty"""
    expected: tuple[str, ...]
    """the card's ``must_match`` patterns"""
    launches: tuple[Launch, ...]
    calls: int
    """traced calls that had to agree"""

    @property
    def identity_asserted(self) -> bool:
        """Whether the card's patterns tell its kernel from others, and it ran."""
        loose = accepts_anything(self.expected) or side_work_among(self.expected)
        return self.state == "proven" and not self.reason and not loose

    @property
    def substitution(self) -> str:
        """What ran in place of the card's kernel, and what the card expects."""
        shown = [clipped(name, SHOWN) for name in self.expected[:NAMED]]
        more = f" and {len(self.expected) - NAMED} more" if self.expected[NAMED:] else ""
        return f"{self.reason}; the card expects {', '.join(shown)}{more} (must_match)" if shown else self.reason

    @property
    def attention_names(self) -> tuple[str, ...]:
        """Names of the attention kernels among the launches."""
        return tuple(launch.name for launch in self.launches if launch.role == "attention")


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """Error of one call against the golden result, as in docs/numerics.md."""

    inputs: str
    """input kind, for example ``normal``"""
    seed: int
    reference: str
    """``fp64`` or ``fp32``"""
    declared_class: str
    measured_class: str
    """tightest accuracy class whose limits hold; empty where none does"""
    rows: int
    """query rows times heads compared"""
    E: float
    E_without_underflow: float
    """E without the class's underflow term; shown so that its effect stays visible"""
    R: float
    G: float
    """G of the sequence, or of the whole batch, that comes closest to its limit"""
    G_limit: float
    """depends on the rows that G is taken over"""
    beta: float
    """β of the sequence, or of the whole batch, that comes closest to its limit"""
    beta_limit: float
    worst_sequence: int | None
    """the sequence of the batch that comes closest to a limit of G or β; None = the batch as a whole"""
    lse_rel: float | None
    """worst |lse - golden| / max(1, |golden|); None where the kernel returns no LSE"""
    lse_base: Literal["e", "2", ""]
    """base of the LSE, as its ratio to the golden LSE shows; empty where unknown"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Time of one call, with all samples."""

    latency_us: float
    """median of ``samples_us``"""
    samples_us: tuple[float, ...]
    """one per block: block time over launches"""
    launches_per_block: int
    rotated_bytes: int
    """footprint of the rotating input copies"""
    cold: bool
    """whether that footprint is at least five times the last-level cache"""
    host_us: float
    """median time of the host to issue one call, without waiting for it"""
    flops: int
    compulsory_bytes: int
    exps: int
    roofline_us: float
    """time that the measured ceilings allow at best"""
    bound: Bound
    """which ceiling that is"""
    ceiling_share: float
    """roofline over latency: 1.0 is the limit of the card"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Everything observed while a case ran."""

    findings: tuple[Finding, ...]
    statistics: tuple[Statistics, ...]
    witness: Witness
    timing: Timing | None
    first_call_us: float
    """first call in its process: compilation, planning, autotuning"""
    peak_temporary_bytes: int | None
    """allocator high-water mark of one call minus inputs and output"""
    wall_s: float
    """seconds that the whole case took"""
    attempt: int
    """1, or more where the case was repeated alone in a fresh process"""
    output_digest: str = ""
    """sha256 over the bits of the first call's out and lse; empty in evidence of an older qualify"""
    inputs_digest: str = ""
    """digest of the inputs that the call read: only outputs of equal inputs are compared bit by bit"""
    device_uuid: str = ""
    """the card that ran it, where several cards shared the run; empty = the run's"""
    ended_at: datetime | None = None
    """aware UTC, by the runner's clock: when the case ended; None in evidence of an older qualify"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """It ran."""

    outcome: Literal["measured"] = "measured"
    evidence: Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class Substituted:
    """It ran, and another attention kernel than the card's did the work."""

    outcome: Literal["substituted"] = "substituted"
    evidence: Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """Nobody ran it; the reasons carry values."""

    outcome: Literal["refused"] = "refused"
    by: Literal["plan", "library"]
    reasons: tuple[str, ...]
    ended_at: datetime | None = None
    """as in :class:`Evidence`; None where the plan refused"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Crashed:
    """An exception, a signal, an exit, or a CUDA context that no longer computes."""

    outcome: Literal["crashed"] = "crashed"
    stage: str
    """``load``, ``prepare``, ``call``, ``witness``, ``checks``, ``timing``, ``health``"""
    error: str
    """one line: the exception, the signal or the exit status"""
    log: str
    """end of the traceback or of the process's stderr"""
    attempt: int
    findings: tuple[Finding, ...] = ()
    device_uuid: str = ""
    """as in :class:`Evidence`"""
    ended_at: datetime | None = None
    """as in :class:`Evidence`"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedOut:
    """No sign of life within the limit; the process was killed."""

    outcome: Literal["timed_out"] = "timed_out"
    stage: str
    limit_s: float
    attempt: int
    findings: tuple[Finding, ...] = ()
    device_uuid: str = ""
    """as in :class:`Evidence`"""
    ended_at: datetime | None = None
    """as in :class:`Evidence`"""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotRun:
    """The run goes on, or ended before its turn."""

    outcome: Literal["not_run"] = "not_run"
    reason: str


Outcome = Measured | Refused | Substituted | Crashed | TimedOut | NotRun
OUTCOMES = ("measured", "refused", "substituted", "crashed", "timed_out", "not_run")


def findings_of(outcome: Outcome) -> tuple[Finding, ...]:
    """The findings of an outcome, whichever kind it is."""
    match outcome:
        case Measured() | Substituted():
            return outcome.evidence.findings
        case Crashed() | TimedOut():
            return outcome.findings
        case Refused() | NotRun():
            return ()


def causes_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in their order, but first those that are likely to cause the others.

    These are a breach of the call contract, and equal calls that differ by more than rounding: the other checks then
    compare numbers that change from call to call.
    """
    return sorted(findings, key=lambda it: it.check != CONTRACT and not it.values.get("beyond_rounding"))


def evidence_of(outcome: Outcome) -> Evidence | None:
    """The evidence of an outcome that ran to its end."""
    return outcome.evidence if isinstance(outcome, Measured | Substituted) else None


def is_time(us: float) -> bool:
    """Whether a call can have taken so many µs. Sums and products of such times stay finite numbers."""
    return 0 < us <= LONGEST_US


def on_shared_card(evidence: Evidence) -> bool:
    """Whether other processes used the card while the case was timed, as far as it was looked for."""
    return any(OTHERS in finding.values for finding in evidence.findings if finding.check == TIMING)


def card_of(outcome: Outcome) -> str:
    """The card that gave an outcome; empty where it is the run's, or no card gave it."""
    match outcome:
        case Measured() | Substituted():
            return outcome.evidence.device_uuid
        case Crashed() | TimedOut():
            return outcome.device_uuid
        case Refused() | NotRun():
            return ""


def on_card(outcome: Outcome, uuid: str) -> Outcome:
    """The outcome with the card that gave it; one that no card gave stays as it is."""
    match outcome:
        case Measured() | Substituted():
            return replace(outcome, evidence=replace(outcome.evidence, device_uuid=uuid))
        case Crashed() | TimedOut():
            return replace(outcome, device_uuid=uuid)
        case Refused() | NotRun():
            return outcome


def ran_code(outcome: Outcome) -> bool:
    """Whether the outcome depends on the kernel's code; a refusal by the plan does not."""
    return not isinstance(outcome, NotRun) and not (isinstance(outcome, Refused) and outcome.by == "plan")


def ended_at_of(outcome: Outcome) -> datetime | None:
    """When the case ended; None where nobody ran it, and in outcomes of an older qualify."""
    match outcome:
        case Measured() | Substituted():
            return outcome.evidence.ended_at
        case Crashed() | TimedOut() | Refused():
            return outcome.ended_at
        case NotRun():
            return None


def ended(outcome: Outcome, at: datetime) -> Outcome:
    """The outcome with the moment at which its case ended; that of a case that nobody ran stays as it is."""
    match outcome:
        case Measured() | Substituted():
            return replace(outcome, evidence=replace(outcome.evidence, ended_at=at))
        case Crashed() | TimedOut() | Refused(by="library"):
            return replace(outcome, ended_at=at)
        case Refused() | NotRun():
            return outcome


def noted(outcome: Outcome, note: Finding) -> Outcome:
    """The outcome with one more finding; one that has no findings stays as it is."""
    match outcome:
        case Measured() | Substituted():
            findings = (*outcome.evidence.findings, note)
            return replace(outcome, evidence=replace(outcome.evidence, findings=findings))
        case Crashed() | TimedOut():
            return replace(outcome, findings=(*outcome.findings, note))
        case Refused() | NotRun():
            return outcome
