"""The table of engines and their backends in docs/check.md."""

from __future__ import annotations

from generating.tables import table
from qualify.facts.backends import ENGINES
from qualify.facts.engines import FP8, LONG_HEAD, About, Backend, CardFor, Engine, Rule

KINDS: dict[tuple[About, int | None], str] = {
    ("latent", 0): "models with latent attention",
    ("latent", None): "models without latent attention",
    ("sinks", 0): "models with attention sinks",
    ("windows", 0): "models with windows",
    ("images", 0): "models whose images or prompts see later tokens",
}
"""kinds of models that a rule refuses, by what it looks at and the most that it takes"""


def engines_table() -> str:
    """A row for each backend of each engine."""
    heads = ["engine", "backend", "kernel card", "the engine refuses", "note"]
    rows = [row for engine in ENGINES for row in [*_dropped(engine), *(_row(engine, each) for each in engine.backends)]]
    return table(heads, rows)


def _dropped(engine: Engine) -> list[list[str]]:
    """A row for what an engine refuses with every backend."""
    gone = [f"`{name}`" for each in engine.dropped for name in each.model_types]
    return [[f"{engine.title} {engine.version}", "any", "–", f"model type {', '.join(gone)}", ""]] if gone else []


def _row(engine: Engine, backend: Backend) -> list[str]:
    refuses = dict.fromkeys(_rules(backend))
    cards = ", ".join(map(_card, backend.served)) or "none: qualify cannot check it"
    return [f"{engine.title} {engine.version}", f"`{backend.name}`", cards, "; ".join(refuses) or "–", backend.note]


def _card(served: CardFor) -> str:
    where = [f"compute capability {_majors(served.majors)}"] if served.majors else []
    where += ["on a CPU"] if served.device == "cpu" else []
    if served.latent is not None:
        where.append("latent attention" if served.latent else "no latent attention")
    if served.long_heads is not None:
        where.append(f"heads {'above' if served.long_heads else 'up to'} {LONG_HEAD}")
    where += [", ".join(served.phases)] if served.phases else []
    where += [", ".join(served.dtypes)] if served.dtypes else []
    where += ["another build"] if served.build == "other" else []
    return f"`{served.card}`" + (f" ({', '.join(where)})" if where else "")


def _rules(backend: Backend) -> list[str]:
    return [f"{_refused(rule)}{_where(rule)}" for rule in backend.rules]


def _refused(rule: Rule) -> str:
    about = rule.about.replace("_", " ")
    if kind := KINDS.get((rule.about, rule.most)):
        return kind
    if rule.about in {"cache", "queries"}:
        kind = "16 bits" if rule.about == "queries" and rule.among == FP8 else "fp8"
        return f"{rule.about} in {kind}{' beside a cache in fp8' if rule.about == 'queries' else ''}"
    if rule.never:
        return f"{about} {', '.join(f'`{name}`' for name in rule.never)}"
    if rule.among:
        return f"{about} other than {', '.join(map(str, rule.among))}"
    return _bounds(about, rule.least, rule.most, rule.multiple_of)


def _where(rule: Rule) -> str:
    """For which models, dtypes and devices the rule holds, where it does not hold for all."""
    words = " with attention sinks" if rule.with_sinks else ""
    words += " with a cache in fp8" if rule.with_fp8 else ""
    return words + (f" on compute capability {_majors(rule.majors)}" if rule.majors else "")


def _majors(majors: tuple[int, ...]) -> str:
    return " or ".join(f"{major}.x" for major in majors)


def _bounds(about: str, least: int | None, most: int | None, multiple_of: int) -> str:
    tenths = about == "capability"
    shown = [str(value / 10 if tenths else value) if value is not None else "" for value in (least, most)]
    name = "compute capability" if tenths else about
    words = [f"below {shown[0]}"] if shown[0] else []
    words += [f"above {shown[1]}"] if shown[1] else []
    words += [f"that is no multiple of {multiple_of}"] if multiple_of > 1 else []
    return f"{name} {' or '.join(words)}"
