"""The section of one case: launched kernels, errors beside their limits, and the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qualify.facts.accuracy import E_LIMIT
from qualify.facts.case import Workload
from qualify.facts.outcome import (
    Bound,
    Crashed,
    Finding,
    FindingVerdict,
    Launch,
    Statistics,
    TimedOut,
    Timing,
    ended_at_of,
)
from qualify.facts.stages import when
from qualify.report import figures
from qualify.report.columns import AnyTable, Column, Limited, Table
from qualify.report.drawings.masks import masks
from qualify.report.drawings.svg import Drawing
from qualify.report.names import short_name
from qualify.report.questions.tolerance import LIMITS, Limit, Sample
from qualify.report.run_facts import moment
from qualify.report.views import CaseView, anchor
from qualify.text import clipped

FINDING_ORDER: dict[FindingVerdict, int] = {"fail": 0, "inconclusive": 1, "note": 2, "pass": 3}
BETA_AND_LSE = "β is the share by which all results are too large or too small, LSE the error of the log-sum-exp."
ERROR_WORDS = f"Errors are written as error/limit. {BETA_AND_LSE}"
"""how to read the errors of an answer, which names them in words"""
SYMBOLS = (
    "Errors stand beside their limits: E is that of the worst element, R of the worst row, G of all rows together. "
    f"{BETA_AND_LSE}"
)
"""meaning of the symbols, shown below each table that has them"""
HASH = 16
"""characters that the page shows of a content hash; the JSON twin has all"""
LONGEST_RAW = 96
"""most characters of a raw kernel name in a case; the list of kernels holds the whole name"""


def _triple(size: tuple[int, int, int] | None) -> str:
    return "–" if size is None else "×".join(map(str, size))


LAUNCHES: tuple[Column[Launch], ...] = (
    Column(key="role", title="Role", cell=lambda launch: launch.role),
    Column(
        key="name",
        title="Kernel",
        cell=lambda launch: clipped(launch.name, LONGEST_RAW),
        link=lambda launch: anchor("kernel", launch.name),
        code=True,
    ),
    Column(key="family", title="Family", cell=lambda launch: launch.family or "unknown"),
    Column(key="generation", title="Generation", cell=lambda launch: launch.generation or "–"),
    Column(key="count", title="Launches", unit="count", cell=lambda launch: launch.count),
    Column(key="grid", title="Grid", cell=lambda launch: _triple(launch.grid)),
    Column(key="block", title="Block", cell=lambda launch: _triple(launch.block)),
    Column(key="registers", title="Registers", unit="count", cell=lambda launch: launch.registers),
    Column(key="shared_bytes", title="Shared memory", unit="bytes", cell=lambda launch: launch.shared_bytes),
    Column(key="duration_us", title="Traced", unit="us", cell=lambda launch: launch.duration_us),
)


def _limit_column(limit: Limit) -> Column[Sample]:
    cell: Callable[[Sample], Limited | None] = limit.of
    return Column(key=limit.key, title=limit.title, unit=limit.key, cell=cell, show_limit=limit.varies)


STATISTICS: tuple[Column[Sample], ...] = (
    Column(key="inputs", title="Inputs", cell=lambda row: row.statistics.inputs),
    *(_limit_column(limit) for limit in LIMITS),
    Column(key="classes", title="Class, declared → measured", cell=lambda row: _classes(row.statistics)),
    Column(key="rows", title="Rows", unit="count", cell=lambda row: row.statistics.rows),
    Column(key="remark", title="Reference", cell=lambda row: _remark(row.statistics)),
)


def _classes(statistics: Statistics) -> str:
    measured = statistics.measured_class or "none"
    return f"{statistics.declared_class} → {measured}" if measured != statistics.declared_class else measured


def _remark(statistics: Statistics) -> str:
    remarks = [f"{statistics.reference}, seed {statistics.seed}"]
    if figures.exceeds(statistics.E_without_underflow, E_LIMIT) and not figures.exceeds(statistics.E, E_LIMIT):
        without = figures.significant(statistics.E_without_underflow)
        remarks.append(f"worst element {without} without the underflow term")
    if statistics.worst_sequence is not None:
        remarks.append(f"all rows and β: closest to a limit in sequence {statistics.worst_sequence}")
    if statistics.lse_base == "2":
        remarks.append("LSE to base 2")
    return "; ".join(remarks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Strip:
    """All samples of a time as a picture, and in words."""

    places: tuple[float, ...]
    """place of each sample, in pixels"""
    median_px: float
    label: str

    @property
    def path(self) -> str:
        """SVG path of one tick per sample."""
        return figures.strip_path(self.places)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Everything that the page shows about a case that ran."""

    view: CaseView
    reasons: tuple[str, ...]
    """reasons of the verdict that repeat no finding"""
    facts: tuple[tuple[str, str], ...]
    """term and value, without empty values"""
    launches: AnyTable | None
    statistics: AnyTable | None
    findings: tuple[Finding, ...]
    """findings, failures first and passes last"""
    strip: Strip | None
    log: str
    """last lines of the log of a crash; empty where the case did not crash"""

    @property
    def told(self) -> list[Finding]:
        """Findings that the page shows at once; with a failure stands what the same check says of other inputs."""
        return [finding for finding in self.findings if not self._is_plain(finding)]

    @property
    def passed(self) -> list[Finding]:
        """Findings of the checks that only pass."""
        return [finding for finding in self.findings if self._is_plain(finding)]

    def _is_plain(self, finding: Finding) -> bool:
        return finding.verdict == "pass" and not any(
            other.check == finding.check and other.verdict in ("fail", "inconclusive") for other in self.findings
        )

    @property
    def mask(self) -> Drawing | None:
        """The expected mask beside the mask that a failed census saw; None where no census failed."""
        failed = [it for it in self.view.findings if it.check == "census" and it.verdict == "fail"]
        return masks(self.view.case.workload, failed[0]) if failed else None


def section(view: CaseView) -> Section:
    """The section of one case."""
    evidence = view.evidence
    launches = evidence.witness.launches if evidence else ()
    samples = tuple(Sample(view=view, statistics=item) for item in evidence.statistics) if evidence else ()
    told = {f"{finding.check}: {finding.detail}" for finding in view.findings}
    return Section(
        view=view,
        reasons=tuple(reason for reason in view.reasons if reason not in told),
        facts=tuple((term, value) for term, value in _facts(view) if value),
        launches=Table(caption="Launched kernels", columns=LAUNCHES, rows=launches) if launches else None,
        statistics=Table(caption="Error against the golden result", columns=STATISTICS, rows=samples)
        if samples
        else None,
        findings=tuple(sorted(view.findings, key=lambda finding: FINDING_ORDER[finding.verdict])),
        strip=_strip(view.timing) if view.timing and view.timing.samples_us else None,
        log=view.outcome.log if isinstance(view.outcome, Crashed) else "",
    )


def values_text(values: Mapping[str, str | int | float | bool | None]) -> str:
    """The values of a finding on one line."""
    return ", ".join(f"{key} = {figures.text(value)}" for key, value in values.items())


def _facts(view: CaseView) -> list[tuple[str, str]]:
    evidence, at = view.evidence, ended_at_of(view.outcome)
    facts = [
        ("Environment", view.case.environment),
        ("Workload", workload_text(view.case.workload)),
        ("Ended", _ended(view)),
        ("Ended at", moment(at) if at else ""),
    ]
    if evidence:
        witness = evidence.witness
        facts += [
            (
                "Witness",
                " – ".join(
                    filter(None, (f"{witness.state} over {figures.counted(witness.calls, 'call')}", witness.reason))
                ),
            ),
            ("Card expects", ", ".join(witness.expected)),
        ]
    if view.timing:
        facts += _time_facts(view.timing)
    if evidence:
        facts += [
            ("First call", figures.duration(evidence.first_call_us)),
            ("Temporary memory", _bytes(evidence.peak_temporary_bytes)),
            ("Repeated", f"attempt {evidence.attempt}, alone in a fresh process" if evidence.attempt > 1 else ""),
        ]
    return [
        *facts,
        ("Beyond the card's claims", "; ".join(view.case.unclaimed)),
        ("Layers", f"{view.case.layers} of the model make this call"),
        ("Matrix line", str(view.case.line) if view.case.line else ""),
        ("Content hash", f"{view.case.content_hash[:HASH]}…"),
    ]


BOUNDS: dict[Bound, str] = {
    "flops": "its arithmetic",
    "bytes": "its memory traffic",
    "exps": "its exponentials",
    "launch": "the launch of a kernel",
}
"""what limits the time of a call from below, by the ceiling that binds it"""


def _roofline(bound: Bound) -> str:
    """An explanation of the ceiling that binds a call."""
    return (
        f"No kernel can be faster than {', '.join(list(BOUNDS.values())[:-1])} or {BOUNDS['launch']}, each at the best "
        f"rate that this run measured on the card. Here the longest is {BOUNDS[bound]}: that time is the ceiling"
    )


def _time_facts(timing: Timing) -> list[tuple[str, str]]:
    cache = "cold cache" if timing.cold else "warm cache"
    return [
        ("Time", f"{figures.duration(timing.latency_us)} median, {cache}; host {figures.duration(timing.host_us)}"),
        (
            "Ceiling",
            (
                f"{figures.duration(timing.roofline_us)} at best, for {BOUNDS[timing.bound]}: "
                f"the kernel reaches {figures.text(timing.ceiling_share, 'share')} of that rate"
            ),
        ),
        ("What a ceiling is", _roofline(timing.bound)),
        (
            "Work",
            f"{figures.text(timing.flops, 'flops')}FLOP, at least {figures.text(timing.compulsory_bytes, 'bytes')}",
        ),
    ]


def _ended(view: CaseView) -> str:
    match view.outcome:
        case Crashed(stage=stage, error=error, attempt=attempt):
            return f"crashed {when(stage)}, attempt {attempt}: {error}"
        case TimedOut(stage=stage, limit_s=limit, attempt=attempt):
            return (
                f"killed {when(stage)}, after {figures.significant(limit)} s without a sign of life, attempt {attempt}"
            )
    return ""


def _bytes(size: int | None) -> str:
    return "" if size is None else figures.text(size, "bytes")


def workload_text(workload: Workload) -> str:
    """What the call computes, in one line."""
    parts = [
        f"{figures.counted(workload.heads_q, 'query head')}, {figures.counted(workload.heads_kv, 'KV head')}",
        f"head_dim {workload.head_dim}"
        + (f" (values {workload.head_dim_v})" if workload.head_dim_v != workload.head_dim else ""),
        "values are the keys' first elements" if workload.latent else "",
        f"{workload.batch} × q {_lengths(workload.seqlens_q)}, k {_lengths(workload.seqlens_k)}",
        workload.mask.words,
        figures.counted(len(workload.spans), "image span") if workload.spans else "",
        f"softcap {workload.softcap:g}" if workload.softcap else "",
        "sinks" if workload.sinks else "",
        f"scale {workload.scale:.6g}",
        f"pages of {workload.page_size}" if workload.page_size else "packed",
    ]
    return " · ".join(part for part in parts if part)


def _lengths(lengths: tuple[int, ...], longest: int = 12) -> str:
    """One number where all are equal, otherwise the first dozen."""
    if len(set(lengths)) == 1:
        return str(lengths[0])
    shown = ", ".join(map(str, lengths[:longest]))
    return f"[{shown}{', …' if len(lengths) > longest else ''}]"


def _strip(timing: Timing) -> Strip:
    low, high = min(timing.samples_us), max(timing.samples_us)
    return Strip(
        places=tuple(figures.strip_positions(timing.samples_us, timing.samples_us)),
        median_px=(figures.strip_positions((timing.latency_us,), timing.samples_us) or [0.0])[0],
        label=f"{figures.counted(len(timing.samples_us), 'sample')} of "
        f"{figures.counted(timing.launches_per_block, 'launch', 'launches')}, "
        f"{figures.duration(low)} to {figures.duration(high)}, median {figures.duration(timing.latency_us)}",
    )


def kernel_label(view: CaseView) -> str:
    """Short names of the launched attention kernels, for one line."""
    return ", ".join(dict.fromkeys(short_name(launch.name) for launch in view.attention))
