"""Pages of models, kernels, findings and waivers, from the newest runs of each matrix on each device model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from qualify.facts.overview import RunHead
from qualify.facts.run import VERDICTS, Verdict
from qualify.facts.waiver import Waiver, WaiverUse
from qualify.judge.summary import Share
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.figures import counted, proven_paths
from qualify.report.sitepages.parts import (
    NO_RUN,
    NOT_YET,
    PageLink,
    PagePart,
    PartsPage,
    address,
    case_address,
    run_address,
    verdict_words,
)
from qualify.report.sitepages.standing import Newest, where
from qualify.report.sitepages.troubles import TroubleRow, trouble_rows, troubles_part
from qualify.report.views import SEVERITY
from qualify.report.waivers import WORDS as WAIVER_WORDS

CASES = 6
"""most case ids that the page of a kernel or a model lists"""
WAIVER_TONES = {"used": "WAIVED", "passing": "INCONCLUSIVE", "unused": "INCONCLUSIVE", "expired": "FAIL"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareRow:
    """The verdicts on one model, kernel and phase in a run."""

    head: RunHead
    share: Share

    @property
    def worst(self) -> Verdict:
        """The worst verdict."""
        return next((name for name in SEVERITY if self.share.verdicts.get(name)), "NOT_REQUIRED")


@dataclass(frozen=True, kw_only=True, slots=True)
class WaiverRow:
    """A waiver as the verdict on a run used it."""

    head: RunHead
    use: WaiverUse
    today: date


@dataclass(frozen=True, kw_only=True, slots=True)
class NameRow:
    """A model or a kernel in a list."""

    name: str
    kind: str
    """``models`` or ``kernels``"""
    verdicts: Mapping[Verdict, int]
    runs: int
    devices: str = ""
    """device models of these runs: a pass on a CPU is none on a GPU"""
    note: str = ""

    @property
    def worst(self) -> Verdict | None:
        """The worst verdict; None where no run has the model or kernel."""
        return next((name for name in SEVERITY if self.verdicts.get(name)), None)


def _pending(newest: Sequence[Newest]) -> tuple[str, ...]:
    late = [it.head.id for it in newest if it.details is None]
    return (f"{counted(len(late), 'run is', 'runs are')} being judged; reload the page in a moment.",) if late else ()


def _without(newest: Sequence[Newest], nothing: str) -> str:
    """The text of a part without rows.

    Args:
        nothing: the text where runs are stored and all of them are judged.
    """
    return NO_RUN if not newest else NOT_YET if _pending(newest) else nothing


def _shares(newest: Sequence[Newest]) -> list[ShareRow]:
    return [ShareRow(head=it.head, share=share) for it in newest if it.details for share in it.details.shares]


def waiver_rows(newest: Sequence[Newest], today: date) -> list[WaiverRow]:
    """The waivers of the newest runs, in the order of their last days."""
    rows = [WaiverRow(head=it.head, use=use, today=today) for it in newest if it.details for use in it.details.waivers]
    return sorted(rows, key=lambda row: row.use.waiver.expires)


def _by_name(shares: Sequence[ShareRow], kind: str) -> dict[str, list[ShareRow]]:
    found: dict[str, list[ShareRow]] = {}
    for row in shares:
        found.setdefault(row.share.model if kind == "models" else row.share.kernel, []).append(row)
    return found


def _count(rows: Sequence[ShareRow]) -> Counter[Verdict]:
    counts: Counter[Verdict] = Counter()
    for row in rows:
        counts.update(row.share.verdicts)
    return counts


def _verdict_columns(counts_of: Callable[[Any], Mapping[Verdict, int]]) -> tuple[Column[Any], ...]:
    def column(name: Verdict) -> Column[Any]:
        title = name.replace("_", " ").capitalize()
        return Column(key=name.lower(), title=title, cell=lambda row: counts_of(row).get(name, 0), number=True)

    return tuple(map(column, VERDICTS))


NAMES: tuple[Column[NameRow], ...] = (
    Column(
        key="worst",
        title="Worst",
        cell=lambda row: verdict_words(row.worst) if row.worst else "– no run",
        tone=lambda row: row.worst or "NOT_REQUIRED",
    ),
    Column(key="name", title="Name", cell=lambda row: row.name, page=lambda row: address(row.kind, row.name)),
    *_verdict_columns(lambda row: row.verdicts),
    Column(key="runs", title="Runs", cell=lambda row: row.runs, number=True),
    Column(key="devices", title="Devices", cell=lambda row: row.devices, name=True),
    Column(key="note", title="What it is", cell=lambda row: row.note, sentence=True),
)
MODEL: Column[ShareRow] = Column(
    key="model",
    title="Model",
    cell=lambda row: row.share.model,
    page=lambda row: address("models", row.share.model),
)


KERNEL: Column[ShareRow] = Column(
    key="kernel",
    title="Kernel",
    cell=lambda row: row.share.kernel,
    page=lambda row: address("kernels", row.share.kernel),
)
PHASE: Column[ShareRow] = Column(key="phase", title="Phase", cell=lambda row: row.share.phase)
WORST: Column[ShareRow] = Column(
    key="worst", title="Worst", cell=lambda row: verdict_words(row.worst), tone=lambda row: row.worst
)
COUNTS = _verdict_columns(lambda row: row.share.verdicts)
SHARES: tuple[Column[ShareRow], ...] = (MODEL, KERNEL, PHASE, *COUNTS, *where())
WAIVERS: tuple[Column[WaiverRow], ...] = (
    Column(
        key="state",
        title="State",
        cell=lambda row: " ".join(WAIVER_WORDS[row.use.state]),
        tone=lambda row: WAIVER_TONES.get(row.use.state, "NOT_REQUIRED"),
    ),
    Column(key="id", title="Waiver", cell=lambda row: row.use.waiver.id, code=True),
    Column(key="owner", title="Owner", name=True, cell=lambda row: row.use.waiver.owner),
    Column(key="expires", title="Last day", cell=lambda row: row.use.waiver.expires.isoformat()),
    Column(key="days", title="Days left", cell=lambda row: (row.use.waiver.expires - row.today).days, number=True),
    Column(key="checks", title="Checks", sentence=True, cell=lambda row: ", ".join(row.use.waiver.checks)),
    Column(key="select", title="Cases", code=True, cell=lambda row: row.use.waiver.select),
    Column(key="waived", title="Waived", cell=lambda row: len(row.use.waived), number=True),
    Column(key="reason", title="Reason", sentence=True, cell=lambda row: row.use.waiver.reason),
    Column(key="link", title="Tracked in", sentence=True, cell=lambda row: row.use.waiver.link),
    Column(key="place", title="Written in", sentence=True, cell=lambda row: row.use.waiver.place),
    *where(),
)


def _reason_and_places(waiver: Waiver) -> str:
    return f"{waiver.reason}; tracked in {waiver.link}; written in {waiver.place}"


SHOWN_OF_WAIVER: tuple[Column[WaiverRow], ...] = tuple(
    Column(
        key="reason",
        title="Reason",
        sentence=True,
        cell=lambda row: _reason_and_places(row.use.waiver),
    )
    if column.key == "reason"
    else column
    for column in WAIVERS
    if column.key not in ("link", "place")
)
"""columns of the page, where reason and places are one sentence below the row, so that the other columns fit"""


def findings_page(newest: Sequence[Newest]) -> PartsPage:
    """What is wrong now, over all matrices and devices."""
    caption = "Failures of the newest runs by kernel and cause"
    empty = _without(newest, "Nothing is wrong in the newest runs of any matrix.")
    part = troubles_part("What is wrong now", trouble_rows(newest), caption, empty)
    return _page("Findings", "/findings", newest, part)


def waivers_page(newest: Sequence[Newest], today: date) -> PartsPage:
    """The waivers that verdicts on the newest runs rely on."""
    rows, caption = tuple(waiver_rows(newest, today)), "Accepted failures, with owner and last day"
    table: AnyTable = Table(caption=caption, columns=WAIVERS, rows=rows)
    empty = _without(newest, "The newest runs use no waiver.")
    shown = replace(table, columns=SHOWN_OF_WAIVER)
    part = PagePart(key="waivers", heading="Waivers", table=table, shown=shown, empty=empty)
    return _page("Waivers", "/waivers", newest, part)


def names_page(kind: str, newest: Sequence[Newest], notes: Mapping[str, str]) -> PartsPage:
    """All models, or all kernels.

    Args:
        kind: ``models`` or ``kernels``.
        notes: description of each model or kernel. A name in it that no run has is listed too.
    """
    found = _by_name(_shares(newest), kind)
    rows = [
        NameRow(
            name=name,
            kind=kind,
            verdicts=_count(found.get(name, ())),
            runs=len({row.head.id for row in found.get(name, ())}),
            devices=", ".join(sorted({row.head.variant for row in found.get(name, ()) if row.head.variant})),
            note=notes.get(name, ""),
        )
        for name in sorted({*found, *notes})
    ]
    rows.sort(key=lambda row: SEVERITY.index(row.worst) if row.worst else len(SEVERITY))
    table = Table(caption=f"{kind.capitalize()}, by their cases in the newest runs", columns=NAMES, rows=tuple(rows))
    return _page(
        kind.capitalize(),
        f"/{kind}",
        newest,
        PagePart(key=kind, heading=kind.capitalize(), table=table, empty=_without(newest, NO_RUN)),
    )


def model_page(model: str, newest: Sequence[Newest]) -> PartsPage | None:
    """One model; None where no newest run has it."""
    with_it = [it for it in newest if it.details and model in it.details.shapes]
    shares = [row for row in _shares(newest) if row.share.model == model]
    if not shares:
        return None
    proven = tuple(
        (
            f"{it.head.matrix} on {it.head.variant}",
            proven_paths(*it.details.shapes[model]),
        )
        for it in with_it
        if it.details
    )
    parts = (
        PagePart(
            key="shapes",
            heading="Proven paths",
            terms=proven,
            links=tuple(PageLink(text=f"report of {it.head.matrix}", href=run_address(it.head.id)) for it in with_it),
        ),
        _wrong(
            newest,
            [row for row in trouble_rows(newest) if model in row.trouble.models],
            lambda case: case.startswith(f"{model}/"),
        ),
        _measured(shares, f"Cases of {model} by kernel and phase", KERNEL),
    )
    return _page(f"Model {model}", address("models", model), newest, *parts, here="/models", listed="measured")


def kernel_page(kernel: str, claims: Sequence[tuple[str, str]], newest: Sequence[Newest]) -> PartsPage | None:
    """One kernel: the claims of its card, measurements and findings; None where neither a card nor a run has it."""
    shares = [row for row in _shares(newest) if row.share.kernel == kernel]
    if not shares and not claims:
        return None
    parts = (
        PagePart(
            key="claimed",
            heading="Claimed",
            count="by its card",
            terms=tuple(claims),
            notes=() if claims else ("This server has no card of this kernel.",),
        ),
        _wrong(newest, [row for row in trouble_rows(newest) if row.trouble.kernel == kernel], lambda _: True),
        _measured(shares, f"Cases of {kernel} by model and phase", MODEL),
    )
    return _page(f"Kernel {kernel}", address("kernels", kernel), newest, *parts, here="/kernels", listed="measured")


def _measured(shares: Sequence[ShareRow], caption: str, by: Column[ShareRow]) -> PagePart:
    """What was measured, the worst first. What no run requires is only named in a note.

    Args:
        by: column that names the kernel on the page of a model, or the model on the page of a kernel.
    """
    rows = sorted((row for row in shares if row.worst != "NOT_REQUIRED"), key=lambda row: SEVERITY.index(row.worst))
    names = [str(by.cell(row)) for row in rows]
    absent = ", ".join(sorted({str(by.cell(row)) for row in shares} - set(names)))
    return PagePart(
        key="measured",
        heading="Measured",
        count=counted(len(set(names)), by.title.lower()),
        notes=(f"Refused or not claimed in all of the newest runs: {absent}.",) if absent else (),
        table=Table(caption=caption, columns=SHARES, rows=tuple(shares)),
        shown=Table(caption=caption, columns=(WORST, by, PHASE, *COUNTS, *where()), rows=tuple(rows)),
        empty="The newest runs require no case of it.",
    )


def _wrong(newest: Sequence[Newest], rows: Sequence[TroubleRow], mine: Any) -> PagePart:
    ids = list(dict.fromkeys(case for row in rows for case in row.trouble.cases if mine(case)))
    shown, rest = ids[:CASES], len(ids) - CASES
    more = [PageLink(text=f"{rest} more, in the report", href=run_address(rows[0].head.id))] if rest > 0 else []
    empty = _without(newest, "Nothing went wrong in the newest runs.")
    links = (*(PageLink(text=case, href=case_address(case)) for case in shown), *more)
    return replace(
        troubles_part("Findings", rows, "What went wrong in the newest runs", empty), links_to="Cases: ", links=links
    )


def _page(
    title: str, at: str, newest: Sequence[Newest], *parts: PagePart, here: str = "", listed: str = ""
) -> PartsPage:
    return PartsPage(
        title=title,
        here=here or at,
        twin=f"{at}.json",
        csv=f"{at}.csv",
        parts=parts,
        notes=_pending(newest),
        listed=listed,
    )
