"""The records of an exported file, line by line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from qualify.facts import codec
from qualify.facts.case import Case
from qualify.facts.outcome import Outcome
from qualify.facts.people import LONGEST_NAME, LONGEST_TEXT, Comment, SignOff
from qualify.facts.run import Record, Run
from qualify.facts.seal import Seal
from qualify.seal.duel_form import duel_from
from qualify.store.archive import Attached, DuelArchive, Exported, RunArchive

# An id becomes the name of a folder or a file, and what is imported may come from anywhere.
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*")


@dataclass(kw_only=True, slots=True)
class Unpacking:
    """What the lines of a file have given so far."""

    run: Any
    """the line of the run; until format 7 the first line had it"""
    sides: bool
    """whether the file spells masks in three fields"""
    plan: list[Case] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    """ids of the cases of the plan"""
    outcomes: list[Record] = field(default_factory=list)
    seal: Seal | None = None
    signoffs: list[SignOff] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    duels: list[tuple[Any, list[Any]]] = field(default_factory=list)
    """each duel's id and lines"""

    def add(self, data: Any) -> None:
        """Takes the next line. Raises ValueError for a line that no file holds at this place."""
        match data:
            case {"sha256": _}:
                pass
            case {"duel": name}:
                self.duels.append((name, []))
            case _ if self.duels:
                self.duels[-1][1].append(data)
            case {"case": content}:
                self._add_case(codec.from_data(Case, _with_mask(content) if self.sides else content))
            case {"of": number, "outcome": content}:
                if type(number) is not int or number < 0:
                    raise ValueError("an outcome names no case")
                self.outcomes.append(Record(case=self.plan[number], outcome=codec.from_data(Outcome, content)))
            case {"run": content}:
                self.run = content
            case {"seal": content}:
                self.seal = codec.from_data(Seal, content)
            case {"signoff": content}:
                self.signoffs.append(replace(codec.from_data(SignOff, content), id=0, origin="", how=""))
            case {"comment": content}:
                self.comments.append(replace(codec.from_data(Comment, content), id=0, origin=""))
            case _:
                raise ValueError("a line is neither case, outcome, run, seal, sign-off, comment nor duel")

    def made(self) -> Exported:
        """Everything that the lines gave. Raises ValueError where a part is missing or contradicts another one."""
        duels = tuple(_duel(name, lines) for name, lines in self.duels)
        if len({duel.id for duel in duels}) < len(duels):
            raise ValueError("a duel is there twice")
        if self.run is None and duels and not (self.plan or self.seal or self.signoffs or self.comments):
            return Exported(run=None, beside=Attached(duels=duels))
        run = codec.from_data(Run, self.run)
        _check_id("run", run.id)
        said: list[SignOff | Comment] = [*self.signoffs, *self.comments]
        for one in said:
            _check_said(one, run.id)
        beside = Attached(signoffs=tuple(self.signoffs), comments=tuple(self.comments), duels=duels)
        made = RunArchive(run=run, cases=self.plan, outcomes=self.outcomes, seal=self.seal)
        return Exported(run=made, beside=beside)

    def _add_case(self, case: Case) -> None:
        if case.id in self.ids:
            raise ValueError("a case is there twice")
        self.ids.add(case.id)
        self.plan.append(case)


def _duel(name: Any, lines: list[Any]) -> DuelArchive:
    """A duel from its lines; the last line may be its seal."""
    sealed = bool(lines) and "seal" in lines[-1]
    seal = codec.from_data(Seal, lines[-1]["seal"]) if sealed else None
    duel = duel_from(lines[:-1] if sealed else lines)
    if duel.id != name:
        raise ValueError(f"the file announces duel {name!r}, but the lines are those of duel {duel.id!r}")
    _check_id("duel", duel.id)
    return DuelArchive(duel=duel, seal=seal)


def _check_said(said: SignOff | Comment, run_id: str) -> None:
    """Raises ValueError where a sign-off or a comment is about another run, or has too long a text or name."""
    texts = [said.text, said.case_id] if isinstance(said, Comment) else [said.reason, said.sha256]
    names = [said.by] if isinstance(said, Comment) else [said.by, said.role]
    if isinstance(said, SignOff) and said.revoked:
        texts, names = [*texts, said.revoked.reason], [*names, said.revoked.by]
    if said.run_id != run_id:
        raise ValueError(f"a sign-off or a comment belongs to run {said.run_id!r}, and the file holds another run")
    if max(map(len, texts)) > LONGEST_TEXT or max(map(len, names)) > LONGEST_NAME:
        raise ValueError("a sign-off or a comment is too long")


def _check_id(what: str, name: str) -> None:
    if not _ID.fullmatch(name):
        raise ValueError(f"{what} id {name!r}")


def _with_mask(case: dict[str, Any]) -> dict[str, Any]:
    """A case of a format before 6, with the mask that its workload spelled in three fields."""
    workload = dict(case["workload"])
    chunk = workload.pop("chunk", 0)
    mask = {"causal": workload.pop("causal"), "window": workload.pop("window"), "size": chunk}
    mask["pattern"] = "chunked" if chunk else ""
    return {**case, "workload": {**workload, "mask": mask}}
