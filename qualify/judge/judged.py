"""A stored run together with the verdict on it: what every page, format and gate starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from qualify.cards.load import LoadedKernel, parse_matrix
from qualify.cards.matrix import MatrixCard
from qualify.cards.waivers import beside, load_waivers
from qualify.facts.baseline import Baseline
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.comparison import Change, Comparison, Topic
from qualify.facts.run import Conclusion, Record, Run
from qualify.facts.selftest import SelfTest
from qualify.facts.waiver import Waiver
from qualify.store.store import Store
from qualify.verdict.gate import conclude, without_verdict
from qualify.verdict.origin import oldest, origin_of, origins_of
from qualify.verdict.policy import Rules
from qualify.verdict.waivers import Waivers

NAMED = 3
"""runs that a note names"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """Evidence, in plan order, and the conclusion from it."""

    run: Run
    """the run, or the newest of those that the evidence is from"""
    records: list[Record]
    conclusion: Conclusion
    selftest: SelfTest | None
    """of the checks that made the run; None where it was not run"""
    runs: tuple[str, ...]
    """ids of all runs that the evidence is from, newest first"""
    notes: tuple[str, ...]
    """what a reader must know beside the verdict"""
    waivers_path: str
    """the file of waivers that the matrix names, or was given; empty where there is none"""
    matrix: MatrixCard
    """by whose policy it was judged"""
    stale: bool = False
    """the evidence is older than was asked for"""
    against: Against | None = None
    """what it was compared with, where that was asked"""

    @property
    def evidence_since(self) -> datetime:
        """When the oldest evidence was begun to be gathered; by the run itself, where nothing was taken over."""
        return oldest(self.run, self.records)


@dataclass(frozen=True, kw_only=True, slots=True)
class Against:
    """The comparison with an earlier run."""

    comparison: Comparison
    baseline: Baseline | None
    """who accepted that run; None where a run was named"""
    forbidden: tuple[tuple[Topic, Change], ...]
    """changes that the matrix's policy does not allow"""


def judge(
    store: Store,
    run_id: str,
    kernels: Mapping[str, LoadedKernel],
    *,
    now: datetime,
    waivers: Path | None = None,
    max_age: timedelta | None = None,
) -> Judged:
    """Judge a stored run by the policy of the matrix that it was made with; an unfinished one never qualifies.

    Waivers are judged as they are today: by ``waivers``, else by the file that the matrix names, where it is here.

    Args:
        max_age: an older run, or one that took over older evidence, is no verdict.
    """
    run, records = store.run(run_id), store.records(run_id)
    card = parse_matrix(run.matrix_source, run.matrix_path)
    path, items, notes = _waivers_of(card, run, waivers)
    conclusion = conclude(records, rules_of(run, card, kernels, items, now))
    stale = max_age is not None and now - oldest(run, records) > max_age
    if run.state != "completed" or stale:
        conclusion = without_verdict(conclusion)
    return Judged(
        run=run,
        records=records,
        conclusion=conclusion,
        selftest=store.selftest(run.check_version),
        runs=(run.id, *sorted(origins_of(records), reverse=True)),
        notes=(*notes, *reused_note(records), *_narrowed(run), *_outdated(run)),
        waivers_path=path,
        matrix=card,
        stale=stale,
    )


def rules_of(
    run: Run, card: MatrixCard, kernels: Mapping[str, LoadedKernel], waivers: Sequence[Waiver], now: datetime
) -> Rules:
    """What the evidence of a run is judged by."""
    return Rules(
        matrix=card,
        patterns={name: kernel.card.witness.must_match for name, kernel in kernels.items()},
        partial=run.narrowed,
        waivers=Waivers(items=tuple(waivers), today=now.date(), stack=run.stack),
    )


def _waivers_of(card: MatrixCard, run: Run, given: Path | None) -> tuple[str, tuple[Waiver, ...], list[str]]:
    """The path of the file, its waivers, and a note where it is not here."""
    if given is None and card.waivers is None:
        return "", (), []
    path = given or beside(Path(run.matrix_path), str(card.waivers))
    if given is None and not path.exists():
        return str(path), (), [f"no waiver was applied: {path} is not here; give the file with --waivers FILE"]
    return str(path), load_waivers(path), []


def reused_note(records: Sequence[Record]) -> list[str]:
    """How much was not run again, from which runs, and how old it is."""
    origins = origins_of(records)
    if not origins:
        return []
    names = sorted(origins, reverse=True)
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    count, first = sum(origin_of(record.outcome) is not None for record in records), min(origins.values())
    text = f"{count} of {len(records)} cases were not run again, but taken over from {shown}"
    return [f"{text}, begun {first:%Y-%m-%d %H:%M} UTC at the earliest; `qualify run --fresh` runs everything"]


def _narrowed(run: Run) -> list[str]:
    options = [f"--{name} {value!r}" for name, value in (("select", run.select), ("kernel", run.kernel)) if value]
    return [f"the run was narrowed by {' '.join(options)}: the rest of the matrix is not judged"] if options else []


def _outdated(run: Run) -> list[str]:
    if run.check_version == CHECK_VERSION:
        return []
    return [f"the run was made with check version {run.check_version}, this qualify has {CHECK_VERSION}: run it again"]
