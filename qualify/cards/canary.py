"""The canary card: which matrix, on what trigger, for how long at most, and who is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from qualify.cards.environments import EnvironmentName
from qualify.cards.problems import Problem, meant
from qualify.cards.source import Source
from qualify.cards.words import PATH_GLOB, VARIABLE, Card, Flag, Name, Several, Some, Text, Where, refuse
from qualify.facts.canary import AlertEvent, Spread
from qualify.facts.case import Level
from qualify.facts.devices import ALL, DeviceKind, logical_devices
from qualify.files import beside

SPAN = r"^[1-9][0-9]{0,5}[smhd]$"
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
PLACEHOLDERS = ("node", "canary", "advice")
"""names that stand in braces in the arguments of a command; qualify fills in their values"""
MOST_LOGICAL = 64


def _span(value: object) -> object:
    if not isinstance(value, str) or not re.fullmatch(SPAN, value):
        raise ValueError("must be a number and its unit s, m, h or d, such as 10m")
    return value


MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, MONTHS),
    ("day of week", 0, 6, DAYS),
)
PART = re.compile(r"(?:(?P<all>\*)|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>[0-9]{1,4}))?")


def _cron(value: str) -> str:
    """A crontab expression that has valid fields, means the same to every program, and fits at least one day."""
    fields = value.split()
    if len(fields) != len(FIELDS):
        raise ValueError('must be five fields: minute hour day month weekday, for example "0 3 * * *" (UTC)')
    chosen = [_values(text, *field) for text, field in zip(fields, FIELDS, strict=True)]
    if fields[2] != "*" and fields[4] != "*":
        raise ValueError(
            "must not narrow both day of month and day of week, which programs combine differently; write two canaries"
        )
    if not any(day <= LENGTHS[month - 1] for month in chosen[3] for day in chosen[2]):
        raise ValueError("must fit at least one day, but none of its months has such a day")
    return " ".join(fields).lower()


def as_numbers(cron: str) -> list[str]:
    """The fields of a checked crontab expression, each as ``*`` or as numbers; Monday is 0.

    Libraries read steps and words differently: some take ``mon-fri/2`` for ``mon-fri``.
    """
    return [
        text if text == "*" else ",".join(map(str, sorted(_values(text, *field))))
        for text, field in zip(cron.split(), FIELDS, strict=True)
    ]


def _values(text: str, name: str, low: int, high: int, words: tuple[str, ...]) -> set[int]:
    """What a field of a crontab expression selects."""
    found: set[int] = set()
    for part in text.lower().split(","):
        match = PART.fullmatch(part)
        if match is None:
            raise ValueError(f"must hold numbers, ranges 1-5, steps */5 and commas; the {name} {text!r} does not")
        first = low if match["all"] else _value(match["first"], name, low, high, words)
        single = first if not (match["all"] or match["step"]) else high
        last = _value(match["last"], name, low, high, words) if match["last"] else single
        step = int(match["step"] or 1)
        if last < first or not 1 <= step <= max(1, last - first):
            raise ValueError(f"must hold ranges that rise and steps that fit; the {name} {text!r} does not")
        found |= set(range(first, last + 1, step))
    return found


def _value(text: str, name: str, low: int, high: int, words: tuple[str, ...]) -> int:
    if text in words:
        return words.index(text) + low
    if name == "day of week":
        raise ValueError(f"must name days as {', '.join(words)}: numbers mean different days to different programs")
    if not (text.isascii() and text.isdecimal()) or not low <= int(text) <= high:
        raise ValueError(f"must have a value of {name} from {low} to {high}, not {text!r}")
    return int(text)


Span = Annotated[str, BeforeValidator(_span, json_schema_input_type=str), Field(json_schema_extra={"pattern": SPAN})]
"""a number with s, m, h or d"""
Cron = Annotated[str, Field(max_length=200), AfterValidator(_cron)]
Variable = Annotated[str, Field(pattern=VARIABLE, max_length=200)]
VariableGlob = Annotated[str, Field(pattern=r"^[A-Za-z_*?][A-Za-z0-9_*?]*$", max_length=200)]
PathGlob = Annotated[str, Field(pattern=PATH_GLOB, max_length=1000)]


def _selecting(value: str) -> str:
    if not value.replace(",", " ").strip():
        raise ValueError("must hold a word or a glob; without one it selects every case, as without the key")
    return value


def _cards_of_nodes(value: str) -> str:
    if value != ALL and not 1 <= logical_devices(value) <= MOST_LOGICAL:
        raise ValueError(f"must be {ALL}, or cpu:N with N from 1 to {MOST_LOGICAL}, but is {value}")
    return value


def seconds(span: str) -> int:
    """The length in seconds of a span such as ``10m``."""
    return int(span[:-1]) * SECONDS[span[-1]]


class OnStackChange(Card):
    """Fire when driver, CUDA, PyTorch, an attention library, firmware, image or dispatch environment changed."""

    settle: Span = "10m"
    """how long the new stack must stay unchanged before the canary fires, so that one upgrade fires once"""
    distributions: Several[Text] = ()
    """Python distributions to watch in addition to those that bring kernels, with every file that their RECORD names"""
    files: Several[PathGlob] = ()
    """files to watch by their content: absolute paths, which may hold * and ?"""
    variables: Several[VariableGlob] = ()
    """environment variables of the service to watch in addition to those that steer dispatch; names may hold *"""
    ignore: Several[Text] = ()
    """components and variables whose change does not fire, by the name that `qualify doctor` and alerts show; may
    hold *"""


Share = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]


class RolloutPlan(Card):
    """Fire in waves: a wave begins when the wave before it advised promote; any other advice ends the rollout."""

    first: Annotated[int, Field(strict=True, ge=1, le=100_000)] | Some[Text] = 1
    """nodes of wave 0: how many, or their names; names may hold *"""
    waves: Some[Share] = (0.25, 1.0)
    """share of all nodes that have had their turn at the end of each further wave; the last is 1.0"""

    @model_validator(mode="after")
    def _fits(self) -> RolloutPlan:
        if list(self.waves) != sorted(set(self.waves)) or self.waves[-1] != 1.0:
            refuse([(("waves",), f"must rise and end with 1.0, but is {list(self.waves)}")])
        return self


class DuelPlan(Card):
    """A duel in the fire itself: this interpreter and an older environment take turns on the card (the GPU)."""

    when: Literal["slower", "always"] = "slower"
    """slower: only where a case became slower than in the baseline by more than the difference between two runs of one
    stack, or where its history rose since then; always: in every fire"""
    against: EnvironmentName = "baseline"
    """baseline: the stack of the accepted baseline, if an interpreter here still has that stack; any other word: the
    name of an environment of the matrix"""
    deadline: Span = "30m"
    """time limit of the duel; a cell that is not decided by then is AMBIGUOUS, and the advice is hold"""
    pairs: Annotated[int, Field(strict=True, ge=2, le=100)] = 5
    """fresh pairs of processes that a verdict needs"""


class FleetPlan(Card):
    """Fire on every card (GPU) of a cluster, whichever machines serve the canary."""

    engine: Literal["ray"] = "ray"
    """library that places the tasks on the nodes"""
    address: Text = "auto"
    """address of the Ray cluster, as the leader reaches it"""
    device: Annotated[str, AfterValidator(_cards_of_nodes)] = ALL
    """the cards of every node: cuda:all; or cpu:N, N logical CPU devices, which prove nothing about a GPU"""
    spread: Literal["repeat", "shard"] = "repeat"
    """repeat: every card runs all cases; shard: the equal cards of all nodes share the production shapes"""
    coverage: Share = 1.0
    """share of the cards to cover (with spread shard: of the production shapes); below it there is no verdict, but exit
    code 5 and an alert"""
    start: Span = "10m"
    """time within which a node must begin; a node that begins later is BUSY"""
    deadline: Span | None = None
    """a node that takes longer is stopped, and its results so far are kept; left out: the timeout of the fire ends all
    nodes"""


class AlertTarget(Card):
    """Who gets alerts. Secrets stand in files or environment variables, never here."""

    target: Name
    """its name in the list of alerts"""
    kind: Literal["webhook", "slack", "alertmanager", "command"]
    """webhook: signed as Standard Webhooks say; slack: an incoming webhook; alertmanager: its API v2; command: a
    program of the service's machine, for example to cordon a node"""
    command: tuple[Text, ...] = ()
    """only with kind command: program and arguments, never through a shell; {node}, {canary} and {advice} are filled
    in (roll_back for roll back). The service must allow the program: `qualify canary serve --allow-program PATH`"""
    url: Text | None = None
    """address to send to; where the address itself is a secret, use url_file or url_env instead"""
    url_file: Text | None = None
    """file that holds the address"""
    url_env: Variable | None = None
    """environment variable that holds the address"""
    secret_file: Text | None = None
    """file that holds the key of the signature, or the token of Alertmanager"""
    secret_env: Variable | None = None
    """environment variable that holds this key or token"""
    events: Some[AlertEvent] = ("promote", "hold", "roll back", "refused", "failed")
    """which ends of a fire make an alert; released: the fire passed, and so ended the last hold on its node"""
    allow_private: Flag = False
    """true: the host may be a loopback or private address"""

    @model_validator(mode="after")
    def _fits(self) -> AlertTarget:
        problems: list[tuple[Where, str]] = []
        places = [name for name in ("url", "url_file", "url_env") if getattr(self, name)]
        if self.kind == "command":
            refuse(self._as_command(places))
            return self
        if self.command:
            problems.append((("command",), f"is used only with kind: command, and the kind is {self.kind}"))
        if len(places) != 1:
            found = f"it has {' and '.join(places)}" if places else "it has none"
            problems.append(((), f"needs one of url, url_file and url_env; {found}"))
        if self.url and not re.match(r"https?://[^/\s]", self.url):
            problems.append((("url",), f"must begin with https:// or http://, but is {self.url}"))
        if self.secret_file and self.secret_env:
            problems.append((("secret_env",), "stands beside secret_file; keep one of them"))
        if self.kind == "webhook" and not (self.secret_file or self.secret_env):
            problems.append(((), "needs secret_file or secret_env: a webhook is signed"))
        refuse(problems)
        return self

    def _as_command(self, places: list[str]) -> list[tuple[Where, str]]:
        """What is wrong with a target that is a program."""
        places += [name for name in ("secret_file", "secret_env", "allow_private") if getattr(self, name)]
        problems: list[tuple[Where, str]] = [((name,), "has no meaning for kind: command") for name in places]
        if not self.command or not self.command[0].startswith("/"):
            problems.append(
                (("command",), 'must begin with the path of a program, for example ["/usr/bin/kubectl", …]')
            )
        for index, argument in enumerate(self.command):
            unknown = set(re.findall(r"\{([^{}]*)\}", argument)) - set(PLACEHOLDERS)
            if unknown:
                known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
                problems.append((("command", index), f"has {{{min(unknown)}}}; what can be filled in: {known}"))
        return problems


class CanaryCard(Card):
    """When a matrix runs by itself, and what becomes of its verdict."""

    canary: Name
    """name of the canary; equals the file's name without .yaml"""
    matrix: Text
    """name of a matrix, or path of one relative to this file"""
    cron: Cron | None = None
    """times in UTC: minute hour day month weekday"""
    stack_change: OnStackChange | None = None
    """fire when the stack changed and settled"""
    on: Spread | None = None
    """on which nodes of the service it fires. every-node: on all; one-per-stack: on one of the nodes with equal stacks;
    sample: on as many as `sample` says, each time on others. Left out: on the leader's node, or after a change on the
    node that changed"""
    sample: Annotated[int, Field(strict=True, ge=1, le=100_000)] | None = None
    """only with on: sample: how many nodes"""
    rollout: RolloutPlan | None = None
    """only with on: every-node: fire in waves"""
    level: Level = "full"
    """smoke or full"""
    device: Literal["auto", DeviceKind] = "auto"
    """where it runs"""
    select: Annotated[Text, AfterValidator(_selecting)] | None = None
    """only cases whose id matches this glob"""
    kernel: Text | None = None
    """only kernels whose name matches this glob"""
    timeout: Span = "6h"
    """a fire that takes longer is killed"""
    slower: Annotated[float, Field(strict=True, gt=0, le=10, allow_inf_nan=False)] = 0.1
    """share by which a time must be longer than in the baseline to advise hold"""
    duel: DuelPlan | None = None
    """settle by a duel whether a kernel became slower"""
    fleet: FleetPlan | None = None
    """fire on a cluster instead of a machine of the service"""
    alerts: tuple[AlertTarget, ...] = ()
    """who gets alerts"""

    @model_validator(mode="after")
    def _fits(self) -> CanaryCard:
        first: dict[str, int] = {}
        problems: list[tuple[Where, str]] = []
        for index, alert in enumerate(self.alerts):
            if alert.target in first:
                earlier = first[alert.target]
                problems.append((("alerts", index, "target"), f"names {alert.target} again, after alerts[{earlier}]"))
            first.setdefault(alert.target, index)
        has = f"and this canary {f'has on: {self.on}' if self.on else 'has no on'}"
        if (self.on == "sample") != (self.sample is not None):
            where: Where = ("sample",) if self.sample is not None else ("on",)
            problems.append((where, f"on: sample and a number after sample belong together, {has}"))
        if self.rollout is not None and self.on != "every-node":
            problems.append((("rollout",), f"belongs to on: every-node, {has}"))
        if self.duel is not None and seconds(self.duel.deadline) >= seconds(self.timeout):
            told = f"is {self.duel.deadline}; it must be shorter than the timeout of the fire, {self.timeout}"
            problems.append((("duel", "deadline"), told))
        refuse([*problems, *self._as_fleet()])
        return self

    def _as_fleet(self) -> list[tuple[Where, str]]:
        """Problems with keys beside ``fleet`` that say on which machine to run, or that act on one machine."""
        if self.fleet is None:
            return []
        names = [name for name in ("on", "rollout", "duel") if getattr(self, name)]
        names += ["device"] if self.device != "auto" else []
        problems: list[tuple[Where, str]] = [
            ((name,), "has no meaning beside fleet, which runs on all cards of its cluster") for name in names
        ]
        for index, alert in enumerate(self.alerts):
            if alert.kind == "command":
                told = "is command, which acts on one node; beside fleet use a webhook: its body has the nodes"
                problems.append((("alerts", index, "kind"), told))
        return problems

    @property
    def seats(self) -> int | None:
        """How many nodes of one stack fire after a change; None = each that changed."""
        return {"one-per-stack": 1, "sample": self.sample}.get(self.on or "")

    def matrix_beside(self, path: Path) -> str:
        """The matrix as a run takes it: its name, or its path from the folder of the card's file."""
        return str(beside(path, self.matrix)) if is_path(self.matrix) else self.matrix


def is_path(matrix: str) -> bool:
    """Whether a matrix is given by the path of its file."""
    return "/" in matrix or matrix.endswith((".yaml", ".yml"))


def matrix_problems(card: CanaryCard, source: Source, known: list[str]) -> list[Problem]:
    """What is wrong with the matrix that a canary names, with its place."""
    place = source.place(("matrix",))
    if is_path(card.matrix):
        path = Path(card.matrix_beside(source.path))
        missing = f"matrix: no such file {path}; the path counts from the canary's own folder"
        return [] if path.is_file() else [(place, missing)]
    if card.matrix in known:
        return []
    return [(place, f"matrix: unknown matrix {card.matrix}{meant(card.matrix, known)}. There are: {', '.join(known)}")]
