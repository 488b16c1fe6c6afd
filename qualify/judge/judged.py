"""A stored run together with the verdict on it: what every page, format and gate starts from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from qualify.cards.load import LoadedKernel, in_environments, parse_matrix
from qualify.cards.matrix import MatrixCard
from qualify.cards.plain_text import text_of
from qualify.cards.policy import WaiverPolicy
from qualify.cards.waivers import load_waivers, refuse_broad
from qualify.errors import CardError
from qualify.facts.baseline import Baseline
from qualify.facts.case import Level
from qualify.facts.clock import is_future
from qualify.facts.comparison import Change, Comparison, Since, Slowdown, Topic
from qualify.facts.devices import HOST
from qualify.facts.outcome import NotRun
from qualify.facts.people import SignedOff
from qualify.facts.performance import Performance
from qualify.facts.run import Conclusion, Record, Run, Verdict
from qualify.facts.selftest import SelfTest
from qualify.facts.typed import PLAIN, Typed, level_words
from qualify.facts.waiver import Waiver
from qualify.facts.weaker import Weaker
from qualify.files import beside
from qualify.judge.code import changed_cards, changed_code, code_here, foreign_environments, ran_kernels
from qualify.judge.notes import (
    ahead_note,
    changed_note,
    contradiction_note,
    deleted_note,
    failed_note,
    first_of,
    listed_contradictions,
    narrowed_note,
    outdated_note,
    reused_note,
    skewed_note,
    unasserted_note,
)
from qualify.judge.seals import Seals
from qualify.judge.signoffs import signed_off
from qualify.judge.stored import stored_matrix
from qualify.judge.whole import whole_notes
from qualify.plan.code import CodeHere
from qualify.plan.host import gpu_kernels
from qualify.seal.keys import PublicKey
from qualify.store.store import Store
from qualify.verdict.consistency import asked_level, run_contradiction, stackless
from qualify.verdict.faults import failed_cards, own_card
from qualify.verdict.gate import conclude, without_verdict
from qualify.verdict.origin import made_since, newest, oldest, origins_of
from qualify.verdict.policy import Rules
from qualify.verdict.waivers import Waivers


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """Evidence, in plan order, and the conclusion from it."""

    run: Run
    """the run; where the evidence is from several runs, the newest of them"""
    records: list[Record]
    conclusion: Conclusion
    selftest: SelfTest | None
    """result for the checks of this run; None where nobody ran the selftest for them"""
    runs: tuple[str, ...]
    """ids of all runs that the evidence is from, newest first"""
    origins: Mapping[str, datetime]
    """by id, when the runs began whose evidence was taken over"""
    evidence_since: datetime
    """when the oldest evidence was made"""
    notes: tuple[str, ...]
    """what a reader must know beside the verdict"""
    waivers_path: str
    """the file of waivers that was given, or that the matrix names; empty where there is none"""
    matrix: MatrixCard
    """the matrix whose policy it was judged by"""
    stale: bool = False
    """the evidence is older than allowed, or another card or other code is here"""
    outdated: str = ""
    """which card, code or checks are others here than those that made the evidence; empty where none is, or nothing was
    compared"""
    future: datetime | None = None
    """the latest date of the evidence where it lies in the future, which is not believed; else None"""
    unsealed: str = ""
    """why none of the required keys has sealed the evidence; empty where one has, or no key is required"""
    edited: str = ""
    """how the run contradicts itself; empty where it does not"""
    failed_cards: Mapping[str, str] = field(default_factory=dict)
    """by UUID, what the driver said of cards whose hardware failed during the run: their evidence does not count"""
    below: Level | None = None
    """the level that was asked for, where the run was made at a lower one; else None"""
    part: Verdict | None = None
    """the verdict on the selected cases, where the run was narrowed; it is no verdict on the matrix"""
    against: Against | None = None
    """what it was compared with, where that was asked"""
    since: Since | None = None
    """what changed since that run, or else since the accepted baseline; None where there is none but this run itself"""
    slower: Slowdown | None = None
    """cases that are slower than in the accepted baseline, or than in the run of the comparison"""
    untimed: str = ""
    """why times could not be compared with an earlier run; empty where they were, or where there is none"""
    weaker: Weaker | None = None
    """requirements that are weaker than the accepted baseline's; None where none is, or nobody accepted one"""
    performance: Performance | None = None
    """the result for the budgets of time; None where the matrix has no budget and no duel is required"""
    again: tuple[str, ...] = ()
    """options for a new run whose evidence would count"""
    signoffs: tuple[SignedOff, ...] = ()
    """all sign-offs of the evidence, also revoked ones and those of other evidence than is stored now"""
    sources: Mapping[str, str] = field(default_factory=dict)
    """by case id, the run that its evidence is from; empty where all of it is from one run"""
    typed: Typed = PLAIN
    """options that printed commands repeat"""

    def source(self, case_id: str) -> str:
        """The run that the evidence of a case is from."""
        return self.sources.get(case_id, self.run.id)

    @property
    def partial(self) -> bool:
        """Whether only a part of the matrix has evidence that counts: of a part, of a card that failed, or missing."""
        missing = any(isinstance(record.outcome, NotRun) for record in self.records)
        return self.run.narrowed or bool(self.failed_cards) or missing

    @property
    def contradiction(self) -> str:
        """How the run contradicts itself, or else its cases: the first, and how many more; empty where nothing does."""
        return self.edited or listed_contradictions(self.conclusion.judgements)

    @property
    def began_at(self) -> datetime:
        """When the first run of the evidence began; where nothing was taken over, that is the start of the run."""
        return oldest(self.run, self.origins)


@dataclass(frozen=True, kw_only=True, slots=True)
class Against:
    """The comparison with an earlier run."""

    comparison: Comparison
    baseline: Baseline | None
    """who accepted that run; None where a run was named"""
    forbidden: tuple[tuple[Topic, Change], ...]
    """changes that the matrix's policy does not allow"""
    records: Sequence[Record]
    """of the earlier run, in plan order"""
    doubt: str = ""
    """why the earlier run does not count: none of the required keys sealed it, or it contradicts itself; else empty"""


def judge(
    store: Store,
    run_id: str,
    kernels: Mapping[str, LoadedKernel],
    *,
    now: datetime,
    waivers: Path | None = None,
    max_age: timedelta | None = None,
    code: CodeHere | None = None,
    part: bool = False,
    waiver_policy: WaiverPolicy | None = None,
    keys: Sequence[PublicKey] = (),
    typed: Typed = PLAIN,
    like: Iterable[Record] = (),
) -> Judged:
    """Judge a stored run by the policy of the matrix that it was made with; an unfinished one never qualifies.

    A run that is dated in the future, or was narrowed, never qualifies either.

    Waivers count as they are today. They are read from ``waivers``, else from the file that the matrix names, where it
    is on this machine. Raises CardError where that file is wrong, a waiver goes beyond the policy, or this qualify
    cannot read the run's matrix.

    Args:
        max_age: an older run, or one that took over older evidence, gives no verdict.
        code: the installed code and checks that must have made the evidence, under the cards as they are today; None =
            any may have made it.
        part: judge a narrowed run by the cases that it selected: then it may pass.
        waiver_policy: what the waivers must keep to; None = that of the run's matrix.
        keys: one of these must have sealed the run as it is; empty = it needs no seal.
        typed: what printed commands repeat.
        like: records of another run, in memory already. Equal cases share their memory, so this costs little more.
    """
    seals = Seals(store, keys)
    run, records = seals.run(run_id), seals.records(run_id, like)
    card = stored_matrix(run)
    kernels = in_environments(kernels, run.environments)
    allowed = waiver_policy or card.policy.waivers
    path, items, notes = waivers_of(card, run, waivers, allowed)
    refuse_broad(items, allowed, [record.case.id for record in records])
    changed = _changed(run, records, kernels, code)
    outdated = [*changed_note(changed), *(outdated_note(run) if code else [])]
    origins = origins_of(records)
    edited = edited_words(store, run) or stackless(run, records)
    since = made_since(run, records, now)
    stale = bool(outdated) or (max_age is not None and now - since > max_age)
    doubts = _doubts(run, origins, seals, edited, stale=stale, now=now)
    failed = failed_cards(records, own_card(run))
    conclusion = conclude(records, rules_of(run, card, kernels, items, now))
    if run.state != "completed" or doubts.any():
        conclusion = without_verdict(conclusion)
    selected = conclusion.verdict if run.narrowed else None
    return Judged(
        run=run,
        records=records,
        conclusion=without_verdict(conclusion) if run.narrowed and not part else conclusion,
        selftest=store.selftest(run.check_version),
        runs=(run.id, *sorted(origins, reverse=True)),
        origins=origins,
        evidence_since=since,
        notes=(
            *seals.note(run),
            *contradiction_note(run, doubts.edited),
            *failed_note(failed),
            *changed_note(changed),
            *notes,
            *ahead_note(doubts.future, now),
            *skewed_note([run]),
            *_origin_notes(store, run, records, origins, typed),
            *unasserted_note(records),
            *narrowed_note(run, selected),
            *outdated_note(run),
            *deleted_note(store, run),
        ),
        waivers_path=path,
        matrix=card,
        stale=doubts.stale,
        outdated=first_of(outdated),
        future=doubts.future,
        unsealed=doubts.unsealed,
        edited=doubts.edited,
        failed_cards=failed,
        part=selected,
        signoffs=signed_off(store, [run.id]),
        again=again(run, run.level, fresh=doubts.stale or doubts.future is not None),
        typed=replace(typed, environments=typed.environments or run.environment_words),
    )


def edited_words(store: Store, run: Run) -> str:
    """How a run contradicts itself, its outcomes left aside; empty where it does not."""
    return "; ".join(filter(None, (run_contradiction(run), store.edited(run))))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Doubts:
    """Why the evidence of a run is no verdict today, whatever it shows."""

    stale: bool
    """it is older than allowed, or another card, other code or other checks are here"""
    future: datetime | None
    """its latest date where that lies in the future; else None"""
    unsealed: str
    """why none of the required keys has sealed it; empty where one has, or no key is required"""
    edited: str
    """how the run contradicts itself; empty where it does not"""

    def any(self) -> bool:
        """Whether there is a doubt."""
        return self.stale or self.future is not None or bool(self.unsealed or self.edited)


def _doubts(
    run: Run,
    origins: Mapping[str, datetime],
    seals: Seals,
    edited: str,
    *,
    stale: bool,
    now: datetime,
) -> _Doubts:
    """What speaks against the evidence of a run.

    Args:
        edited: how the run contradicts itself; empty where it does not.
        stale: it is older than allowed, or another card, other code or other checks are here.
    """
    dated = newest(run, origins)
    return _Doubts(
        stale=stale,
        future=dated if is_future(dated, now) else None,
        unsealed=seals.why_not(run),
        edited=edited,
    )


def _changed(
    run: Run, records: Iterable[Record], kernels: Mapping[str, LoadedKernel], code: CodeHere | None
) -> dict[str, str]:
    """By kernel, why it must run again: its card or its code is another now, or its environment was not described."""
    records = list(records)
    ran = sorted(ran_kernels(records))
    cards = {} if code is None else changed_cards(run, (record.case.kernel for record in records), kernels)
    if code is not None:
        interpreters = {name: one.python for name, one in run.environments.items()}
        cache = None if run.level == "full" else code.cache
        code = replace(code, cache=cache, environments={**interpreters, **code.environments})
    return cards | changed_code(run, code_here(code, ran, kernels)) | foreign_environments(run, {}, ran)


def again(run: Run, level: Level, *, fresh: bool) -> tuple[str, ...]:
    """Options that make evidence of that level on the run's device; ``fresh`` takes no earlier evidence over."""
    return (*level_words(level), "--device", run.device, *(["--fresh"] if fresh else []))


def rules_of(
    run: Run, card: MatrixCard, kernels: Mapping[str, LoadedKernel], waivers: Sequence[Waiver], now: datetime
) -> Rules:
    """What the evidence of a run is judged by."""
    stacks = {"": run.stack, **{name: one.stack for name, one in run.environments.items()}}
    return Rules(
        matrix=card,
        patterns={name: kernel.card.witness.must_match for name, kernel in kernels.items()},
        partial=run.narrowed,
        waivers=Waivers(items=tuple(waivers), today=now.date(), stacks=stacks),
        demonstration=run.device == HOST and bool(gpu_kernels(card, kernels)),
        level=asked_level(run),
        card=own_card(run),
    )


def waivers_of(
    card: MatrixCard, run: Run, given: Path | None, policy: WaiverPolicy
) -> tuple[str, tuple[Waiver, ...], list[str]]:
    """The path of the file, its waivers, and a note where it is not here, or lies beside another matrix."""
    if given is None and card.waivers is None:
        return "", (), []
    path = given or beside(Path(run.matrix_path), str(card.waivers))
    missing = "" if given else _no_such_waivers(path, run)
    if missing:
        return str(path), (), [f"no waiver was applied: {missing}; give the file with --waivers FILE"]
    return str(path), load_waivers(path, policy), []


def _no_such_waivers(path: Path, run: Run) -> str:
    """Why the waivers of a run's matrix are not here; empty where they are.

    The path of a run's matrix may be relative. In another folder it may be the path of another matrix.
    """
    if not path.exists():
        return f"{path} is not here"
    try:
        name = parse_matrix(text_of(Path(run.matrix_path)), run.matrix_path).matrix
    except CardError:  # the waivers alone may be here
        return ""
    return "" if name == run.matrix else f"{path} lies beside {run.matrix_path}, which is another matrix here: {name}"


def fresh_words(run: Run, matrix: str) -> tuple[str, ...]:
    """Arguments of a command that makes all evidence of the run anew."""
    return (matrix, *again(run, run.level, fresh=True))


def _origin_notes(
    store: Store, run: Run, records: Sequence[Record], origins: Mapping[str, datetime], typed: Typed
) -> list[str]:
    """Which other runs the evidence is from."""
    if run.placement and run.placement.is_whole:
        return whole_notes(store, run.placement, origins)
    return reused_note(records, origins, typed.command("run", *fresh_words(run, run.matrix_path)))
