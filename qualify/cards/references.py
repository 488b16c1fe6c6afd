"""What a matrix names and does not define itself: models and kernels must exist."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

from qualify.cards.matrix import MatrixCard
from qualify.cards.named import OWN
from qualify.cards.places import dotted
from qualify.cards.problems import Problem, meant
from qualify.cards.source import Source
from qualify.cards.words import Where
from qualify.facts.environment import environment_of, kernel_in

LIST_KERNELS = f"`qualify kernels` lists them. {OWN}"


def reference_problems(
    card: MatrixCard, source: Source, kernels: list[str], models: list[str], environments: Collection[str]
) -> list[Problem]:
    """Every model, kernel and environment that the matrix names and that does not exist, with its place."""
    found = [
        *_idle_traffic(card),
        *_models(card, models),
        *_kernels(card, kernels),
        *_idle_incidents(card, kernels),
        *_expectations(card, kernels, environments),
    ]
    return [(source.place(where), f"{dotted(source.nearest(where))}: {message}") for where, message in found]


def _idle_traffic(card: MatrixCard) -> list[tuple[Where, str]]:
    if card.traffic is None or card.models:
        return []
    return [(("traffic",), "plans no call, because the matrix has no models; add models and dtypes, or remove the key")]


def _models(card: MatrixCard, known: list[str]) -> list[tuple[Where, str]]:
    problems: list[tuple[Where, str]] = []
    for index, entry in enumerate(card.models):
        where: Where = ("models", index, "model")
        if entry.geometry is None and entry.model not in known:
            names = ", ".join(known)
            problems.append((where, f"unknown model {entry.model}{meant(entry.model, known)}. There are: {names}"))
        if entry.geometry is not None and entry.model in known:
            problems.append((where, f"{entry.model} has a card already; name the explicit geometry differently"))
    return problems


def _kernels(card: MatrixCard, known: list[str]) -> list[tuple[Where, str]]:
    return [
        (("kernels", index), f"no kernel matches {glob}{meant(glob, known)}; {LIST_KERNELS}")
        for index, glob in enumerate(card.kernels)
        if not any(fnmatchcase(name, glob) for name in known)
    ] + [
        (("incidents", number, "kernels", index), f"no kernel matches {glob}{meant(glob, known)}; {LIST_KERNELS}")
        for number, incident in enumerate(card.incidents)
        for index, glob in enumerate(incident.kernels)
        if not any(fnmatchcase(name, glob) for name in known)
    ]


def _idle_incidents(card: MatrixCard, known: list[str]) -> Iterator[tuple[Where, str]]:
    """Incidents whose kernels exist, and none of which the matrix has."""
    own = [name for name in known if any(fnmatchcase(name, glob) for glob in card.kernels)]
    for number, incident in enumerate(card.incidents):
        named = [name for name in known if any(fnmatchcase(name, glob) for glob in incident.kernels)]
        if named and own and not set(named) & set(own):
            what = "has no kernel of this matrix, so no call would be replayed"
            yield ("incidents", number, "kernels"), f"{what}; add one of them to the matrix, or remove the incident"


def _expectations(card: MatrixCard, known: list[str], environments: Collection[str]) -> list[tuple[Where, str]]:
    problems: list[tuple[Where, str]] = []
    for index, expectation in enumerate(card.expect):
        kernel, fallback = expectation.kernel, expectation.fallback
        own = kernel_in(kernel)
        where: Where = ("expect", index, "kernel")
        if own not in known:
            problems.append((where, f"unknown kernel {own}{meant(own, known)}; {LIST_KERNELS}"))
        elif not any(fnmatchcase(own, glob) for glob in card.kernels):
            problems.append((where, f"{own} is not among this matrix's kernels, so nothing can meet it"))
        problems += _unknown_environment(where, kernel, environments)
        words = ["forbid", "record", *known]
        if kernel_in(fallback) not in words:
            message = f"must be forbid, record or a kernel, but is {fallback}{meant(fallback, words)}; {LIST_KERNELS}"
            problems.append((("expect", index, "fallback"), message))
        problems += _unknown_environment(("expect", index, "fallback"), fallback, environments)
    return problems


def _unknown_environment(where: Where, kernel: str, known: Collection[str]) -> list[tuple[Where, str]]:
    name = environment_of(kernel)
    if not name or name in known:
        return []
    hint = "add it under environments, or give --environment NAME=PYTHON"
    return [(where, f"{kernel} names the environment {name}, which is not there{meant(name, known)}; {hint}")]
