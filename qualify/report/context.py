"""The context of the report page: everything that the templates show, and nothing that they must compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from qualify.facts.case import INCIDENTS
from qualify.facts.comparison import Slowdown
from qualify.facts.devices import KINDS
from qualify.facts.outcome import OUTCOMES, Crashed, Measured, Outcome, Refused, Substituted, TimedOut
from qualify.facts.run import VERDICTS, Conclusion, Record, Run
from qualify.facts.selftest import SelfTest
from qualify.facts.stack import Component, Device
from qualify.facts.typed import PLAIN, Typed
from qualify.facts.weaker import Weaker
from qualify.judge.judged import Against
from qualify.report import figures
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.detection import sentence
from qualify.report.diff_page import DiffPage, diff_page
from qualify.report.environments import environments_table
from qualify.report.heatmap import HeatMap, heatmap
from qualify.report.incidents import Replay, counted_states, incidents_table, replays
from qualify.report.inventory import inventory
from qualify.report.questions import QUESTIONS, Answer
from qualify.report.sections import Section, section
from qualify.report.slower import slower_table
from qualify.report.traffic import Traffic, weigh
from qualify.report.views import SEVERITY, CaseView, by_model, join
from qualify.report.waived import waived_words
from qualify.report.waivers import waivers_table
from qualify.report.weaker import headline as weaker_headline
from qualify.report.weaker import weaker_table
from qualify.verdict.origin import oldest

HEADLINES = {0: "Qualified", 1: "Not qualified", 5: "No verdict"}
"""by exit code"""
DEMONSTRATIONS = {0: "Demonstration on a CPU", 1: "Demonstration on a CPU, not qualified"}
"""the same where a CPU stood in for a GPU"""
WORST_FIRST: tuple[type[Outcome], ...] = (Measured, Substituted, Crashed, TimedOut, Refused)
"""a wrong result that nothing else reports is worse than a crash that everybody sees"""
VERSIONS = ("driver", "cuda", "torch", "cudnn")
"""components that the header names"""

COMPONENTS: tuple[Column[Component], ...] = (
    Column(key="kind", title="Kind", cell=lambda part: part.kind),
    Column(key="name", title="Name", cell=lambda part: part.name),
    Column(key="version", title="Version", cell=lambda part: part.version or "–"),
    Column(key="digest", title="Digest", cell=lambda part: part.digest or "–", code=True),
)

ABSENT: tuple[Column[CaseView], ...] = (
    Column(key="verdict", title="Verdict", cell=lambda view: view.verdict.replace("_", " ").lower()),
    Column(key="case", title="Case", cell=lambda view: view.case.id, code=True),
    Column(key="by", title="By", cell=lambda view: view.outcome.by if isinstance(view.outcome, Refused) else "not run"),
    Column(
        key="why", title="Reasons", sentence=True, cell=lambda view: "; ".join(view.why) or "no reason was recorded"
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelAnswers:
    """The answers for one model, in the order of the questions."""

    model: str
    anchor: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportContext:
    """The page of one run."""

    run: Run
    conclusion: Conclusion
    headline: str
    """the verdict in words"""
    summary: str
    """one sentence"""
    facts: tuple[tuple[str, str], ...]
    """term and value for the header"""
    selftest: SelfTest | None
    """how well the checks of this run detect; None where nobody measured it"""
    counts: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    """what is counted, then name and count, zeros left out"""
    models: tuple[ModelAnswers, ...]
    heatmap: HeatMap
    views: tuple[CaseView, ...]
    """all cases in the order of the records"""
    sections: tuple[Section, ...]
    """cases that ran, worst verdict first"""
    absent: AnyTable
    """cases that did not run, with the reasons"""
    against: Against | None
    """the comparison with another run; None where none was asked for"""
    changes: DiffPage | None
    """the same for the page"""
    waivers: AnyTable
    """what each waiver did; no rows where the matrix has none"""
    incidents: AnyTable
    """replayed incidents; no rows where the matrix has none"""
    incident_counts: str
    replays: tuple[Replay, ...]
    traffic: Traffic | None
    """what the traffic makes of the evidence; None where the matrix names none"""
    environments: AnyTable
    """the other interpreters; no rows where there are none"""
    inventory: AnyTable
    """every launched kernel with its raw name"""
    components: AnyTable
    ceilings: tuple[tuple[str, str], ...]
    device: tuple[tuple[str, str], ...]
    parameters: tuple[tuple[str, str], ...]
    repeat: str
    """command that repeats the run"""
    slower: Slowdown | None
    """what takes longer than in the baseline"""
    slowdowns: AnyTable
    """the same for the page; no rows where nothing does"""
    weaker: Weaker | None
    """what is asked less than in the baseline"""
    weakened: AnyTable
    """the same for the page; no rows where nothing is"""


def report_context(
    run: Run,
    records: Sequence[Record],
    conclusion: Conclusion,
    selftest: SelfTest | None = None,
    against: Against | None = None,
    slower: Slowdown | None = None,
    typed: Typed = PLAIN,
    weaker: Weaker | None = None,
) -> ReportContext:
    """Joins the facts of one run into the page. Raises KeyError where a case or a shape has no verdict.

    Args:
        selftest: what these checks' own detection was measured to be; None where it was not.
        against: the comparison with another run; None where none was asked for.
        slower: what takes longer than in the baseline; None where nothing does, or none was accepted.
        typed: what the command repeats that makes the run again.
        weaker: what is asked less than in the baseline; None where nothing is, or none was accepted.
    """
    views = join(records, conclusion)
    models = by_model(views, conclusion)
    replayed = replays(run, views)
    ranked = sorted(views, key=lambda view: SEVERITY.index(view.verdict))
    return ReportContext(
        run=run,
        conclusion=conclusion,
        headline=_headline(run, conclusion),
        summary=_summary(_headline(run, conclusion), views, conclusion, counted_states(replayed), weaker),
        facts=(
            *((term, value) for term, value in _header(run, oldest(run, records)) if value),
            ("Selftest", sentence(selftest, run.check_version)),
        ),
        selftest=selftest,
        counts=_counts(conclusion.counts),
        models=tuple(
            ModelAnswers(
                model=model.model,
                anchor=f"model-{number}",
                answers=tuple(question.answer(model) for question in QUESTIONS),
            )
            for number, model in enumerate((model for model in models if model.model != INCIDENTS), 1)
        ),
        heatmap=heatmap(models),
        views=views,
        sections=tuple(section(view) for view in ranked if view.ran),
        absent=Table(
            caption="Cases that did not run",
            columns=ABSENT,
            rows=tuple(view for view in ranked if not view.ran),
            row_anchor=lambda view: view.anchor,
        ),
        against=against,
        changes=diff_page(against.comparison, against.baseline) if against else None,
        waivers=waivers_table(conclusion),
        incidents=incidents_table(replayed),
        incident_counts=counted_states(replayed),
        replays=replayed,
        traffic=weigh(run, models),
        environments=environments_table(run),
        inventory=inventory(views),
        components=Table(caption="Components", columns=COMPONENTS, rows=run.stack.components if run.stack else ()),
        ceilings=_ceilings(run),
        device=_device(run.stack.device) if run.stack else (),
        parameters=_parameters(run),
        repeat=repeat_command(run, typed),
        slower=slower,
        slowdowns=slower_table(slower),
        weaker=weaker,
        weakened=weaker_table(weaker.changes, weaker_headline(weaker)) if weaker else weaker_table(()),
    )


def repeat_command(run: Run, typed: Typed = PLAIN) -> str:
    """The command that repeats a run, quoted for a shell; not where the evidence is, because pages travel."""
    words = [run.matrix_path, "--fresh", "--level", run.level, "--device", run.device]
    for option, value in (("--select", run.select), ("--kernel", run.kernel)):
        words += [option, value] if value else []
    return replace(typed, db="", environments=run.environment_words).command("run", *words)


def _headline(run: Run, conclusion: Conclusion) -> str:
    """The verdict in words; neither a part of a matrix nor a demonstration is ever qualified."""
    if conclusion.demonstration:
        return DEMONSTRATIONS.get(conclusion.exit_code, "Demonstration on a CPU, no verdict")
    if run.narrowed and conclusion.verdict == "PASS":
        return "What was selected passed"
    return HEADLINES.get(conclusion.exit_code, "No verdict")


def _summary(
    headline: str, views: Sequence[CaseView], conclusion: Conclusion, incidents: str, weaker: Weaker | None
) -> str:
    by_verdict = {verdict: [view for view in views if view.verdict == verdict] for verdict in VERDICTS}
    required = conclusion.required
    lacking = [cell for cell in required if cell.verdict in ("FAIL", "INCONCLUSIVE")]
    total = figures.counted(len(views), "case")
    parts = []
    if failed := by_verdict["FAIL"]:
        parts.append(f"{len(failed):,} of {total} {'fails' if len(failed) == 1 else 'fail'}")
    if unclear := by_verdict["INCONCLUSIVE"]:
        parts.append(f"{len(unclear):,} of {total} {'is' if len(unclear) == 1 else 'are'} inconclusive")
    shapes = figures.counted(len(required), "production shape")
    if lacking:
        parts.append(f"{len(lacking):,} of {shapes} {'lacks' if len(lacking) == 1 else 'lack'} a proven path")
    elif required:
        proven = shapes if conclusion.proven == len(required) else f"{conclusion.proven:,} of {shapes}"
        parts.append(f"{proven} {'has' if conclusion.proven == 1 else 'have'} a proven path")
    if expired := conclusion.expired:
        places = ", ".join(use.waiver.place for use in expired)
        parts.append(f"{figures.counted(len(expired), 'waiver')} expired ({places})")
    if weaker:
        parts.append(weaker_headline(weaker))
    if conclusion.verdict == "PASS" and (waived := waived_words(conclusion)):
        parts.append(f"waived: {waived}")
    if incidents:
        parts.append(f"incidents: {incidents}")
    if not failed:
        parts.append(f"{len(by_verdict['PASS']):,} of {total} {'passes' if len(by_verdict['PASS']) == 1 else 'pass'}")
    proves = ", which proves nothing about a GPU" if conclusion.demonstration else ""
    sentence = f"{headline}{proves}: {', '.join(parts)}"
    worst = _worst(failed or unclear)
    return f"{sentence}; worst: {worst}" if worst else f"{sentence}."


def _worst(views: Sequence[CaseView]) -> str:
    if not views:
        return ""
    rank = {kind: number for number, kind in enumerate(WORST_FIRST)}
    view = min(views, key=lambda view: rank.get(type(view.outcome), len(rank)))
    reason = next(iter(view.reasons or view.why), "")
    return f"{view.case.id} ({reason})." if reason else f"{view.case.id}."


def _counts(counts: Mapping[str, Mapping[str, int]]) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    order = {"verdicts": VERDICTS, "outcomes": OUTCOMES}
    return tuple(
        (title, tuple((name, counts[title][name]) for name in names if counts.get(title, {}).get(name)))
        for title, names in order.items()
    )


def _moment(moment: datetime | None) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC") if moment else "not finished"


def _header(run: Run, since: datetime) -> list[tuple[str, str]]:
    facts = [
        ("Run", run.id),
        ("Started", _moment(run.started_at)),
        ("Evidence since", _moment(since) if since < run.started_at else ""),
        ("Finished", _moment(run.finished_at) + (" (interrupted)" if run.state == "interrupted" else "")),
    ]
    if run.stack is None:
        return [*facts, ("Device", "no worker reported")]
    labels = {"driver": "Driver", "cuda": "CUDA", "torch": "PyTorch", "cudnn": "cuDNN"}
    return [*facts, ("Device", run.stack.device.name), *((labels[name], run.stack.version(name)) for name in VERSIONS)]


def _device(device: Device) -> tuple[tuple[str, str], ...]:
    facts = (
        ("Name", device.name),
        ("UUID", device.uuid),
        ("Compute capability", device.compute_capability),
        (KINDS[device.kind].units, str(device.units)),
        ("Memory", figures.text(device.memory_bytes, "bytes")),
        ("Last-level cache", figures.text(device.cache_bytes, "bytes") if device.cache_bytes else ""),
    )
    return tuple((term, value) for term, value in facts if value)


def _ceilings(run: Run) -> tuple[tuple[str, str], ...]:
    if run.ceilings is None:
        return ()
    return (
        *(
            (f"Matrix product, {dtype}", figures.text(flops, "flops_per_s"))
            for dtype, flops in run.ceilings.matmul_flops_per_s.items()
        ),
        ("Copy, read plus write", figures.text(run.ceilings.copy_bytes_per_s, "bytes_per_s")),
        ("Exponentials", figures.text(run.ceilings.exps_per_s, "exps_per_s")),
        ("Empty launch", figures.duration(run.ceilings.launch_us)),
    )


def _parameters(run: Run) -> tuple[tuple[str, str], ...]:
    facts = (
        ("Matrix file", run.matrix_path),
        ("Matrix hash", run.matrix_hash),
        ("Level", run.level),
        ("Device", run.device),
        ("Selected", run.select or "all cases"),
        ("Kernel", run.kernel or "all kernels"),
        ("State", run.state),
        ("qualify", run.qualify_version),
        ("Stack fingerprint", run.stack.fingerprint if run.stack else ""),
    )
    return tuple((term, value) for term, value in facts if value)
