"""Commands that qualify prints, as somebody can paste them: they find the cards and the evidence of this command."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from qualify.facts.case import Level
from qualify.text import shell_line

OPTIONS: dict[str, tuple[str, ...]] = {
    "check": ("cards", "db"),
    "plan": ("cards", "environment"),
    "run": ("cards", "db", "environment"),
    "repro": ("cards", "db", "environment"),
    "profile": ("cards", "db", "environment"),
    "gate": ("cards", "db", "waivers", "environment"),
    "report": ("cards", "db", "waivers"),
    "diff": ("cards", "db", "waivers"),
    "bisect": ("cards", "db", "waivers"),
    "baseline": ("cards", "db", "waivers"),
    "canary": ("cards", "db"),
    "db": ("db",),
    "verify": ("db",),
    "ingest": ("db",),
    "doctor": ("db", "environment"),
    "kernels": ("cards", "environment"),
    "fleet": ("cards", "db"),
    "coverage": ("cards", "db"),
    "signoff": ("cards", "db", "waivers"),
    "duel": ("cards", "db", "environment"),
}
"""which of the options each printed command takes"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Typed:
    """What was typed to say where cards and evidence are; every printed command repeats it."""

    cards: tuple[str, ...] = ()
    """the --cards folders"""
    db: str = ""
    """the --db address without its password; empty = the default, or the variable QUALIFY_DB has it"""
    waivers: str = ""
    """the --waivers file"""
    environments: tuple[str, ...] = ()
    """the value of each --environment"""

    def anywhere(self) -> Typed:
        """The same for a script that may run in any folder: paths are absolute."""
        cards = tuple(str(Path(folder).resolve()) for folder in self.cards)
        db = self.db if not self.db or "://" in self.db else str(Path(self.db).resolve())
        return replace(self, cards=cards, db=db)

    def words(self, command: str, *arguments: str) -> list[str]:
        """The words of a command of qualify, followed by those of these options that it takes.

        Where the first argument is a path that begins with a dash, it is written so that no parser takes it for an
        option.
        """
        first, more = arguments[:1], arguments[1:]
        arguments = (*(f"./{it}" if it.startswith("-") and not it.startswith("--") else it for it in first), *more)
        given = {
            "cards": self.cards,
            "db": (self.db,),
            "waivers": (self.waivers,),
            "environment": self.environments,
        }
        options = [word for name in OPTIONS[command] for value in given[name] if value for word in (f"--{name}", value)]
        return ["qualify", command, *arguments, *options]

    def command(self, command: str, *arguments: str) -> str:
        """The same as one line for a shell."""
        return shell_line(self.words(command, *arguments))

    def accept(self, run: str, reason: str, name: str = "") -> str:
        """The command that makes a run the baseline, for a shell: in the unproven name of whoever pastes it.

        Args:
            name: whose baseline; empty = the one without a name.
        """
        words = ["accept", run, *(["--name", name] if name else []), "--reason", reason]
        return f'{self.command("baseline", *words)} --by "$USER"'

    def sign(self, run: str) -> str:
        """The command that signs a run, for a shell: in the name of the person whose token is in the file."""
        return f"{self.command('signoff', run)} --role ROLE --reason REASON --access FILE --token-file FILE"


PLAIN = Typed()
"""nothing was typed but the command"""


def level_words(level: Level) -> list[str]:
    """The option that asks a run for the level; none where it is the default."""
    return ["--level", level] if level != "smoke" else []
