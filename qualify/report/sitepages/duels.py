"""Duels: their list, and one of them cell by cell."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from qualify.facts.duel import DUEL_VERDICTS, Duel, DuelCell, DuelVerdict, Ratio
from qualify.facts.overview import DuelHead
from qualify.facts.stack import Stack
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.drawings.intervals import Interval, intervals
from qualify.report.duel_text import MEANING, VERDICT_WORDS, WAY_WORDS, null_line, one_sided, to_data, undecided
from qualify.report.figures import counted, interval_words, signed_percent
from qualify.report.names import without_common
from qualify.report.sitepages.parts import PageLink, PagePart, PartsPage, address, case_address
from qualify.report.sitepages.runs import RunRow, runs_table

HOW = (
    "A and B took turns on one card, on the same inputs, in pairs of fresh processes. B is slower where the whole 95 % "
    "interval lies above the smallest change that counts, and new processes confirmed it."
)


def worst(counts: Mapping[DuelVerdict, int]) -> DuelVerdict | None:
    """The verdict that a reader must see first; None where there is no cell."""
    return next((it for it in DUEL_VERDICTS if counts.get(it)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelRow:
    """A duel in a list."""

    head: DuelHead
    why_not: str
    """why its verdicts prove nothing; empty where its stored times confirm the verdicts"""


def _said(row: DuelRow) -> str:
    head, found = row.head, worst(row.head.counts)
    if row.why_not:
        return f"? {row.why_not}"
    if head.null:
        return "– a side against itself"
    return VERDICT_WORDS[found][0] if found else "– no cell"


def _tone(row: DuelRow) -> str:
    found = worst(row.head.counts)
    if row.why_not:
        return "INCONCLUSIVE"
    return VERDICT_WORDS[found][1] if found and not row.head.null else "NOT_REQUIRED"


def _cells(counts: Mapping[DuelVerdict, int]) -> str:
    """Number of cells by verdict, the worst first, in words."""
    return ", ".join(f"{counts[it]} {VERDICT_WORDS[it][0].partition(' ')[2]}" for it in DUEL_VERDICTS if counts.get(it))


def _id(row: DuelRow) -> str:
    return row.head.id


def _matrix(row: DuelRow) -> str:
    return row.head.matrix


HEADS: tuple[Column[DuelRow], ...] = (
    Column(key="worst", title="B is", cell=_said, tone=_tone),
    Column(
        key="duel", title="Duel", cell=lambda it: it.head.id, code=True, page=lambda it: address("duels", it.head.id)
    ),
    Column(key="began", title="Began (UTC)", cell=lambda it: f"{it.head.started_at:%Y-%m-%d %H:%M}"),
    Column(key="a", title="A", cell=lambda it: it.head.a),
    Column(key="b", title="B", cell=lambda it: it.head.b),
    Column(
        key="matrix",
        title="Matrix",
        cell=lambda it: it.head.matrix,
        page=lambda it: address("runs", matrix=it.head.matrix),
    ),
    Column(key="device", title="Device", name=True, cell=lambda it: it.head.device),
    Column(key="cells", title="Cells", cell=lambda it: _cells(it.head.counts), sentence=True),
    Column(key="complete", title="Decided", cell=lambda it: "all" if it.head.complete else "not all"),
)


def _table(duels: Sequence[DuelRow], caption: str) -> AnyTable:
    return Table(caption=caption, columns=HEADS, rows=tuple(duels))


def duels_page(duels: Sequence[DuelRow]) -> PartsPage:
    """The newest duels."""
    part = PagePart(
        key="duels",
        heading="Duels",
        count=str(len(duels) or "none"),
        notes=(f"{HOW} The newest duel that counts for a run judges its budgets of time.",),
        table=_table(duels, "Duels, the newest first"),
        empty="No duel is stored here. Make one: qualify duel A B MATRIX",
    )
    return PartsPage(title="Duels", here="/duels", twin="/duels.json", csv="/duels.csv", parts=(part,))


def newest_duels(duels: Sequence[DuelRow]) -> PagePart:
    """The newest duels for the first page."""
    links = (PageLink(text="All duels", href="/duels"),)
    return PagePart(key="duels", heading="Newest duels", table=_table(duels, "The newest duels"), links=links)


def _change(cell: DuelCell) -> str:
    return signed_percent(cell.ratio.change if cell.ratio else None)


def _interval(cell: DuelCell) -> str:
    ratio = cell.ratio
    return "–" if ratio is None else f"{signed_percent(ratio.low)} to {signed_percent(ratio.high)}"


def _found_from(ratio: Ratio) -> str:
    return "nothing would be" if ratio.finds_nothing else f"{100 * ratio.detectable:.1f} %"


VERDICT: Column[DuelCell] = Column(
    key="verdict",
    title="B is",
    cell=lambda cell: VERDICT_WORDS[cell.verdict][0],
    tone=lambda cell: VERDICT_WORDS[cell.verdict][1],
)
TIMES: tuple[Column[DuelCell], ...] = (
    Column(key="phase", title="Phase", cell=lambda cell: cell.phase),
    Column(key="change", title="Change", number=True, cell=_change),
    Column(key="interval", title="95 % interval", number=True, cell=_interval),
    Column(key="a_us", title="Time of A", unit="us", cell=lambda cell: cell.ratio.a_us if cell.ratio else None),
    Column(key="b_us", title="Time of B", unit="us", cell=lambda cell: cell.ratio.b_us if cell.ratio else None),
    Column(key="pairs", title="Pairs", number=True, cell=lambda cell: cell.ratio.pairs if cell.ratio else 0),
    Column(
        key="detectable",
        title="Would be found from",
        number=True,
        cell=lambda cell: _found_from(cell.ratio) if cell.ratio else "–",
    ),
    Column(key="way", title="Timed as", cell=lambda cell: WAY_WORDS[cell.way] if cell.way else "not timed"),
    Column(key="thrown_away", title="Thrown away", number=True, cell=lambda cell: cell.thrown_away),
    Column(key="reason", title="Why it is undecided", sentence=True, cell=lambda cell: cell.reason),
)


def duel_page(duel: Duel, runs: Sequence[RunRow], linked: Collection[str], *, sealed: bool, why_not: str) -> PartsPage:
    """One duel.

    Args:
        runs: the newest runs of its matrix on B's stack.
        linked: ids of cases of B that have a page.
        sealed: whether a key sealed its times.
        why_not: why its verdicts prove nothing; empty where its stored times confirm the verdicts.
    """
    at = address("duels", duel.id)
    parts = (
        _verdict(duel, sealed=sealed, why_not=why_not),
        _cells_part(duel, linked),
        *_one_sided(duel),
        _fitness(duel),
        _stacks(duel),
        PagePart(
            key="runs",
            heading="Runs of B",
            table=runs_table(runs, f"The newest runs of {duel.matrix} on B's stack"),
            empty=f"No run of {duel.matrix} on B's stack is stored here.",
        ),
    )
    return PartsPage(
        title=f"Duel: {duel.b} against {duel.a}",
        summary=f"{duel.matrix} on {duel.device}, {duel.started_at:%Y-%m-%d %H:%M} UTC, {_length(duel.wall_s)}",
        here="/duels",
        twin=f"{at}.json",
        csv=f"{at}.csv",
        parts=parts,
        more={
            "duel": {name: value for name, value in to_data(duel).items() if name != "samples"},
            "sealed": sealed,
            "why_not": why_not,
        },
    )


def _length(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _verdict(duel: Duel, *, sealed: bool, why_not: str) -> PagePart:
    """Number of cells by verdict, in words, and facts about the duel."""
    counts = duel.counts()
    found = tuple(
        (VERDICT_WORDS[it][0], f"{counts[it]} of {counted(len(duel.cells), 'cell')}: {MEANING[it]}")
        for it in DUEL_VERDICTS
        if counts[it]
    )
    notes = [f"This duel proves nothing: {why_not}."] if why_not else []
    notes += [null_line(duel)] if duel.null else []
    notes += [f"B was made to spin in {counted(len(duel.planted), 'cell')}."] if duel.planted else []
    notes += [f"{line[0].upper()}{line[1:]}." for line in undecided(duel)]
    terms = (
        *found,
        ("A", duel.a),
        ("B", duel.b),
        ("Duel", duel.id),
        ("Selected", duel.select or "every cell of the matrix"),
        ("Verdicts recomputed", why_not or "yes, the stored times confirm each one"),
        ("Sealed", "yes" if sealed else "no: nobody signed these times"),
    )
    return PagePart(key="verdict", heading="Is B slower?", notes=tuple(notes), terms=terms)


def _worst_first(cell: DuelCell) -> tuple[int, float]:
    return DUEL_VERDICTS.index(cell.verdict), -cell.ratio.change if cell.ratio else 0.0


def _cells_part(duel: Duel, linked: Collection[str]) -> PagePart:
    """Every cell, as a drawing and as a table."""
    rows = sorted(duel.cells, key=_worst_first)
    timed = [(cell, cell.ratio) for cell in rows if cell.ratio]
    names, common = without_common([cell.name for cell, _ in timed])
    spans = [replace(_row_of(cell, ratio), name=name) for (cell, ratio), name in zip(timed, names, strict=True)]
    drawing = intervals(f"Change of each cell, B against A{f': {common}' * bool(common)}", spans, ())
    return PagePart(
        key="cells",
        heading="Cells",
        count=str(len(rows)),
        notes=(HOW,),
        drawings=(drawing,) if drawing else (),
        table=_cells_table(rows, linked),
        empty="No cell of the matrix was selected.",
    )


def _row_of(cell: DuelCell, ratio: Ratio) -> Interval:
    words, verdict = VERDICT_WORDS[cell.verdict]
    return Interval(
        name=cell.name,
        verdict=verdict,
        change=ratio.change,
        low=ratio.low,
        high=ratio.high,
        title=f"{cell.name}: {words}, {interval_words(ratio.change, ratio.low, ratio.high)}",
    )


def _cells_table(rows: Sequence[DuelCell], linked: Collection[str]) -> AnyTable:
    name: Column[DuelCell] = Column(
        key="cell",
        title="Cell",
        cell=lambda cell: cell.name,
        code=True,
        page=lambda cell: case_address(cell.b) if cell.b in linked else "",
    )
    return Table(caption="B against A, the worst cell first", columns=(VERDICT, name, *TIMES), rows=tuple(rows))


def _one_sided(duel: Duel) -> list[PagePart]:
    """The cells that one side alone can run; no part where there is none."""
    found = [(side, name, cell) for side, name, cells in one_sided(duel) for cell in cells]
    columns: tuple[Column[tuple[str, str, str]], ...] = (
        Column(key="side", title="Only", cell=lambda row: f"{row[0]}: {row[1]}"),
        Column(key="cell", title="Cell", cell=lambda row: row[2], code=True),
    )
    part = PagePart(
        key="not_compared",
        heading="Not compared",
        count=str(len(found)),
        notes=("Only one side can run these cells, so their times have nothing to be compared with.",),
        table=Table(caption="Cells that only one side can run", columns=columns, rows=tuple(found)),
    )
    return [part] if found else []


def _fitness(duel: Duel) -> PagePart:
    """What disturbed the card during the duel, and the notes of single cells."""
    lost = sum(cell.thrown_away for cell in duel.cells)
    told = f"{counted(lost, 'group')} of four blocks do not count, because the card was throttled or in use."
    notes: dict[str, list[str]] = {}
    for cell in duel.cells:
        for note in cell.notes:
            notes.setdefault(note, []).append(cell.name)
    return PagePart(
        key="fitness",
        heading="Was the card fit?",
        notes=(told if lost else "Nothing disturbed the card while it was timed.",),
        terms=tuple((note, f"{counted(len(names), 'cell')}, first {names[0]}") for note, names in notes.items()),
    )


def _stacks(duel: Duel) -> PagePart:
    """Components that differ between the two sides."""
    a, b = _versions(duel.stack_a), _versions(duel.stack_b)
    changed = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    columns: tuple[Column[str], ...] = (
        Column(key="component", title="Component", cell=lambda name: name, code=True),
        Column(key="a", title="A", cell=lambda name: a.get(name, "absent")),
        Column(key="b", title="B", cell=lambda name: b.get(name, "absent")),
    )
    return PagePart(
        key="stacks",
        heading="What differs",
        table=Table(caption="Components of the two stacks", columns=columns, rows=tuple(changed)),
        empty="Both sides have the same stack.",
        links=tuple(
            PageLink(text=f"stack of {side} {stack.fingerprint[:12]}", href=address("stacks", stack.fingerprint))
            for side, stack in (("A", duel.stack_a), ("B", duel.stack_b))
        ),
    )


def _versions(stack: Stack) -> dict[str, str]:
    return {part.name: part.version for part in stack.components if part.kind != "binary"}
