"""The context of the report page: everything that the templates show, and nothing that they must compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from qualify.facts.case import INCIDENTS
from qualify.facts.run import Conclusion, Record, Run
from qualify.facts.typed import PLAIN, Typed
from qualify.judge.signing import why_unsignable
from qualify.report.beside import NOTHING, Beside
from qualify.report.cliffs import MapsView, in_report
from qualify.report.columns import AnyTable, Table
from qualify.report.compact import CompactRow, compact_rows
from qualify.report.decision import BasisTile, tiles
from qualify.report.detection import sentence
from qualify.report.diff_page import DiffPage, diff_page
from qualify.report.drawings.svg import Drawing
from qualify.report.environments import environments_table
from qualify.report.incidents import Replay, counted_states, incidents_table, replays
from qualify.report.inventory import inventory
from qualify.report.overview import CaseOverview, overview
from qualify.report.performance import budgets_table, cells_drawing, cells_table, duel_command
from qualify.report.pictures import ModelPictures, pictures
from qualify.report.questions import QUESTIONS, Answer
from qualify.report.refused import Refusal, refused_table
from qualify.report.run_facts import COMPONENTS, ceilings, device, header, parameters
from qualify.report.signoffs import signoffs_table
from qualify.report.since import changed, earlier
from qualify.report.slower import slower_table
from qualify.report.summary import Counts, counted_cases, headline, summary
from qualify.report.traffic import Traffic, weigh
from qualify.report.views import CaseView, ModelView, by_model, join
from qualify.report.waivers import waivers_table
from qualify.report.weaker import weaker_table
from qualify.report.whynot import WhyNot, why_not
from qualify.verdict.origin import made_since

Pairs = tuple[tuple[str, str], ...]
"""term and value"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelAnswers:
    """The answers for one model, in the order of the questions."""

    model: str
    anchor: str
    answers: tuple[Answer, ...]

    @property
    def rank(self) -> int:
        """Sort key of the model: the more bad answers, the smaller, so that the worst model comes first."""
        return -sum(answer.state == "bad" for answer in self.answers)


@dataclass(frozen=True, kw_only=True)
class ReportContext:
    """The page of one run. Each property is computed once, because templates show some of them several times."""

    run: Run
    records: Sequence[Record]
    conclusion: Conclusion
    beside: Beside
    views: tuple[CaseView, ...]
    """all cases in the order of the records"""
    shapes: tuple[ModelView, ...]
    """the same cases by model and production shape"""
    decide: str = ""
    """address where readers sign and comment; empty = this page is a file"""
    cases_at: str = ""
    """address of the list of cases, where each case has a page of its own; empty = this page is a file"""

    @cached_property
    def headline(self) -> str:
        """The verdict in words."""
        return headline(self.run, self.conclusion)

    @cached_property
    def summary(self) -> str:
        """One sentence."""
        return summary(self.run, self.views, self.conclusion, self.incident_counts, self.beside)

    @cached_property
    def facts(self) -> Pairs:
        """What the header names."""
        known = ((term, value) for term, value in header(self.run, made_since(self.run, self.records)) if value)
        return (*known, ("Selftest", sentence(self.beside.selftest, self.run.check_version)))

    @cached_property
    def since(self) -> tuple[str, str] | None:
        """The earlier run and what changed under the kernels since; None where there is none to compare with."""
        found = self.beside.since
        return (earlier(found.before, found.baseline), changed(found, self.run)) if found else None

    @cached_property
    def tiles(self) -> tuple[BasisTile, ...]:
        """What a reviewer decides by."""
        return tiles(self.conclusion, self.beside, signable=not self.unsignable)

    @cached_property
    def counts(self) -> Counts:
        """Cases by verdict and by outcome."""
        return counted_cases(self.conclusion)

    @cached_property
    def served(self) -> tuple[ModelView, ...]:
        """The models of the matrix, without the pseudo-model that holds replayed incidents."""
        return tuple(model for model in self.shapes if model.model != INCIDENTS)

    @cached_property
    def models(self) -> tuple[ModelAnswers, ...]:
        """The served models, each with its answers."""
        return tuple(
            ModelAnswers(
                model=model.model,
                anchor=f"model-{number}",
                answers=tuple(question.answer(model) for question in QUESTIONS),
            )
            for number, model in enumerate(self.served, 1)
        )

    @cached_property
    def why(self) -> WhyNot:
        """What keeps the run from being qualified; empty where nothing does."""
        return why_not(self.run, self.views, self.shapes, self.conclusion, self.beside)

    @cached_property
    def overview(self) -> CaseOverview:
        """All cases on one map."""
        return overview(self.shapes)

    @cached_property
    def pictures(self) -> tuple[ModelPictures, ...]:
        """Drawings of each model."""
        return pictures(self.served, self.run.ceilings)

    @cached_property
    def ran(self) -> int:
        """Number of cases that used a device."""
        return sum(view.ran for view in self.views)

    @cached_property
    def compact(self) -> tuple[CompactRow, ...]:
        """Every case that ran, for a reader without JavaScript."""
        return compact_rows(self.views)

    @cached_property
    def refused(self) -> Table[Refusal]:
        """Cases that did not run, by kernel and reason."""
        return refused_table(self.views)

    @cached_property
    def changes(self) -> DiffPage | None:
        """The comparison with another run; None where nobody asked for one."""
        against = self.beside.against
        return diff_page(against.comparison, against.baseline) if against else None

    @cached_property
    def waivers(self) -> AnyTable:
        """What each waiver did; no rows where the matrix has none."""
        return waivers_table(self.conclusion)

    @cached_property
    def replays(self) -> tuple[Replay, ...]:
        """Public incidents that the run replayed."""
        return replays(self.run, self.views)

    @cached_property
    def incidents(self) -> AnyTable:
        """The replayed incidents as a table; no rows where the matrix has none."""
        return incidents_table(self.replays)

    @cached_property
    def incident_counts(self) -> str:
        """How many incidents are in each state, in words."""
        return counted_states(self.replays)

    @cached_property
    def traffic(self) -> Traffic | None:
        """The evidence weighted by the traffic; None where the matrix names no traffic."""
        return weigh(self.run, self.shapes)

    @cached_property
    def cliffs(self) -> tuple[MapsView, ...]:
        """Kernel maps that somebody gave for this page."""
        return tuple(in_report(file, self.run, self.views) for file in self.beside.maps)

    @cached_property
    def environments(self) -> AnyTable:
        """The other interpreters; no rows where there are none."""
        return environments_table(self.run)

    @cached_property
    def inventory(self) -> AnyTable:
        """Every launched kernel with its raw name."""
        return inventory(self.views)

    @cached_property
    def components(self) -> AnyTable:
        """What the stack is made of."""
        rows = self.run.stack.components if self.run.stack else ()
        return Table(caption="Components", columns=COMPONENTS, rows=rows)

    @cached_property
    def ceilings(self) -> Pairs:
        """The measured ceilings of the device."""
        return ceilings(self.run)

    @cached_property
    def device(self) -> Pairs:
        """What the run ran on."""
        return device(self.run.stack.device) if self.run.stack else ()

    @cached_property
    def parameters(self) -> Pairs:
        """The run's parameters, as the command line gave them."""
        return parameters(self.run)

    @cached_property
    def repeat(self) -> str:
        """Command that repeats the run."""
        return repeat_command(self.run, self.beside.typed)

    @cached_property
    def slowdowns(self) -> AnyTable:
        """Cases that take longer than in the baseline; no rows where none does."""
        return slower_table(self.beside.slower)

    @cached_property
    def budgets(self) -> AnyTable:
        """The budgets of time; no rows where the matrix has none, or no duel counts."""
        return budgets_table(self.beside.performance)

    @cached_property
    def timed(self) -> AnyTable:
        """The cells that the duel compared."""
        return cells_table(self.beside.performance)

    @cached_property
    def intervals(self) -> Drawing | None:
        """The changes of these cells as a drawing; None where nothing was timed."""
        return cells_drawing(self.beside.performance)

    @cached_property
    def duel(self) -> str:
        """The command that makes or repeats a duel; empty where neither a budget nor an option asks about time."""
        found, typed = self.beside.performance, replace(self.beside.typed, db="")
        return duel_command(self.run, typed, found) if found else ""

    @cached_property
    def weakened(self) -> AnyTable:
        """Requirements of the run that are weaker than the baseline's; no rows where there are none."""
        return weaker_table(self.beside.weaker.changes if self.beside.weaker else ())

    @cached_property
    def signoffs(self) -> AnyTable:
        """Who signed the evidence; no rows where nobody did."""
        return signoffs_table(self.beside.signed)

    @cached_property
    def unsignable(self) -> str:
        """Why the evidence cannot be signed; empty where it can."""
        return why_unsignable(self.run, self.conclusion)

    @cached_property
    def sign(self) -> str:
        """The command that signs the evidence; empty where a sign-off is in force, or where signing is impossible."""
        if self.unsignable or any(it.state == "valid" for it in self.beside.signed):
            return ""
        return replace(self.beside.typed, db="").sign(self.run.id)


def report_context(
    run: Run, records: Sequence[Record], conclusion: Conclusion, beside: Beside = NOTHING
) -> ReportContext:
    """Joins the facts of one run into the page. Raises KeyError where a case or a shape has no verdict."""
    views = join(records, conclusion)
    models = by_model(views, conclusion)
    return ReportContext(run=run, records=records, conclusion=conclusion, beside=beside, views=views, shapes=models)


def repeat_command(run: Run, typed: Typed = PLAIN) -> str:
    """The command that repeats a run, quoted for a shell. It names no store, because people copy pages elsewhere."""
    words = [run.matrix_path, "--fresh", "--level", run.level, "--device", run.device]
    for option, value in (("--select", run.select), ("--kernel", run.kernel)):
        words += [option, value] if value else []
    return replace(typed, db="", environments=run.environment_words).command("run", *words)
