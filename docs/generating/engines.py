"""The table of engines and their backends in docs/check.md."""

from __future__ import annotations

from generating.tables import table
from qualify.facts.backends import ENGINES
from qualify.facts.engines import Backend, CardFor, Engine


def engines_table() -> str:
    """A row for each backend of each engine."""
    heads = ["engine", "backend", "kernel card", "the engine refuses", "note"]
    return table(heads, [_row(engine, backend) for engine in ENGINES for backend in engine.backends])


def _row(engine: Engine, backend: Backend) -> list[str]:
    refuses = dict.fromkeys(_rules(backend))
    cards = ", ".join(map(_card, backend.served)) or "none: qualify cannot check it"
    return [f"{engine.title} {engine.version}", f"`{backend.name}`", cards, "; ".join(refuses) or "–", backend.note]


def _card(served: CardFor) -> str:
    where = [f"compute capability {' or '.join(f'{major}.x' for major in served.majors)}"] if served.majors else []
    where += ["on a CPU"] if served.device == "cpu" else []
    if served.latent is not None:
        where.append("latent attention" if served.latent else "no latent attention")
    where += ["another build"] if served.build == "other" else []
    return f"`{served.card}`" + (f" ({', '.join(where)})" if where else "")


def _rules(backend: Backend) -> list[str]:
    found = []
    for rule in backend.rules:
        about = rule.about.replace("_", " ")
        if rule.never:
            found.append(f"{about} {', '.join(f'`{name}`' for name in rule.never)}")
        elif rule.about == "latent":
            found.append("models with latent attention" if rule.most == 0 else "models without latent attention")
        elif rule.about == "sinks":
            found.append("models with attention sinks")
        elif rule.about == "images":
            found.append("models whose images or prompts see later tokens")
        elif rule.among:
            found.append(f"{about} other than {', '.join(map(str, rule.among))}")
        else:
            found.append(f"{_bounds(about, rule.least, rule.most, rule.multiple_of)}{_sinks(rule.with_sinks)}")
    return found


def _bounds(about: str, least: int | None, most: int | None, multiple_of: int) -> str:
    tenths = about == "capability"
    shown = [str(value / 10 if tenths else value) if value is not None else "" for value in (least, most)]
    name = "compute capability" if tenths else about
    words = [f"below {shown[0]}"] if shown[0] else []
    words += [f"above {shown[1]}"] if shown[1] else []
    words += [f"that is no multiple of {multiple_of}"] if multiple_of > 1 else []
    return f"{name} {' or '.join(words)}"


def _sinks(only: bool) -> str:
    return " with attention sinks" if only else ""
