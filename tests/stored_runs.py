"""Runs in a real store, as a worker would have left them: a real plan, with outcomes that a test chooses."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from builders import answered, make_evidence, make_finding

from qualify import assets
from qualify.assets import digest_cache
from qualify.cards.load import NO_ENVIRONMENTS, LoadedKernel, in_environments, load_kernels, load_matrix
from qualify.cards.terms import terms_by_kernel
from qualify.facts.baseline import Baseline
from qualify.facts.case import Case
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.code import Code
from qualify.facts.environment import Environment
from qualify.facts.outcome import Measured, Outcome, Refused
from qualify.facts.run import Record, Run
from qualify.facts.stack import Component, Device, Stack
from qualify.facts.terms import Terms
from qualify.plan.code import CodeHere
from qualify.plan.plan import Plan, make_plan
from qualify.store.store import Store

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
PASSED = Measured(evidence=make_evidence())
WRONG = Measured(evidence=make_evidence(make_finding("fail", "row 3 sees key 9")))
OPEN = Measured(evidence=make_evidence(make_finding("inconclusive", "no sample")))
DEVICE = Device(
    kind="cpu", name="Test CPU", uuid="cpu-0", compute_capability="", units=2, memory_bytes=1 << 33, cache_bytes=1 << 25
)
MATRIX = """\
matrix: serving
models:
  - model: toy
    geometry: {groups: [{layers: [0], heads_q: 2, heads_kv: 2, head_dim: 32, mask: causal}]}
phases:
  prefill:
    seqlen:
      - 8
      - 9
dtypes: [fp32]
kernels: [tiled-torch, torch-cpu-math]
"""
CELL = "toy.tp1/prefill/b1.q{0}.k{0}/fp32/causal"
IDS = [f"{CELL.format(size)}/{kernel}" for size in (8, 9) for kernel in ("tiled-torch", "torch-cpu-math")]
WAIVER: dict[str, Any] = {
    "id": "known-mask",
    "select": "*",
    "checks": ["census"],
    "owner": "jane@example.com",
    "reason": "fixed in the next release",
    "link": "https://example.com/issues/1",
    "created": "2026-11-01",
    "expires": "2026-12-31",
}
_numbers = count()


def real_age(**span: float) -> timedelta:
    """The ``age`` of a run that began so long before this moment: what is old depends on the real clock."""
    return NOW - datetime.now(UTC) + timedelta(**span)


def real_days(days: int = 30) -> dict[str, str]:
    """Changes of a waiver that holds for so many days after the day of the test."""
    today = datetime.now(UTC).date()
    return {"created": str(today - timedelta(days=1)), "expires": str(today + timedelta(days=days))}


def shipped_kernels() -> dict[str, LoadedKernel]:
    """The shipped kernel cards, loaded once for each place where they may be shipped: the fuzzer has its own."""
    return _kernels_in(assets.shipped("kernels"))


@cache
def _kernels_in(_: Path) -> dict[str, LoadedKernel]:
    return load_kernels()


def make_stack(**versions: str) -> Stack:
    """A stack of torch 2.11 with the given versions changed or added; a value with a colon is version:digest."""
    usual = {"torch": f"2.11.0:{'a' * 64}", "triton": "3.6.0"} | versions
    parts = [(name, *text.partition(":")[::2]) for name, text in usual.items()]
    return Stack(
        device=DEVICE,
        components=tuple(
            Component(kind="distribution", name=name, version=version, digest=digest) for name, version, digest in parts
        ),
        environment={},
    )


def make_run(**changes: Any) -> Run:
    """A completed run of `serving` that began an hour before NOW."""
    began = changes.get("started_at", NOW - timedelta(hours=1))
    usual = Run(
        id=f"{began:%Y%m%dT%H%M%SZ}-{next(_numbers):06x}",
        matrix="serving",
        matrix_hash="ab" * 32,
        matrix_source=MATRIX,
        matrix_path="serving.yaml",
        level="smoke",
        device="cpu",
        select="",
        kernel="",
        qualify_version="0.1.0",
        check_version=CHECK_VERSION,
        started_at=began,
        finished_at=NOW - timedelta(minutes=55),
        state="completed",
        stack=make_stack(),
        ceilings=None,
    )
    return replace(usual, **changes)


def write_waivers(path: Path, *changes: dict[str, Any]) -> Path:
    """A file of one waiver for each dictionary of changes."""
    lines = ["waivers:"]
    for number, change in enumerate(changes):
        data = {**WAIVER, "id": f"w{number}", **change}
        lines += [
            f"  {'- ' if at == 0 else '  '}{key}: {json.dumps(value)}" for at, (key, value) in enumerate(data.items())
        ]
    path.write_text("\n".join(lines) + "\n" if changes else "waivers: []\n")
    return path


def code_of(plan: Plan, cards: tuple[Path, ...], environments: Mapping[str, str] = NO_ENVIRONMENTS) -> dict[str, Code]:
    """What the kernels of the plan are here."""
    names = tuple(dict.fromkeys(case.kernel for case in plan.cases))
    if not cards and not environments:
        return dict(shipped_code(names))
    kernels = in_environments(load_kernels(cards) if cards else shipped_kernels(), environments)
    folders = tuple(str(folder.resolve()) for folder in cards)
    return _code_here(CodeHere(folders=folders, cache=digest_cache(), environments=environments), kernels, names)


@cache
def shipped_code(names: tuple[str, ...]) -> Mapping[str, Code]:
    """What these shipped kernels are here, looked at once: torch alone has thousands of files."""
    return _code_here(CodeHere(folders=(), cache=digest_cache()), shipped_kernels(), names)


def _code_here(here: CodeHere, kernels: Mapping[str, LoadedKernel], names: tuple[str, ...]) -> dict[str, Code]:
    found = here.of(kernels[name].card for name in names)
    return {name: code or {} for name, code in found.items()}


def terms_of_plan(
    plan: Plan, cards: tuple[Path, ...], environments: Mapping[str, str] = NO_ENVIRONMENTS
) -> dict[str, Terms]:
    """What the cards of the plan's kernels promise."""
    kernels = in_environments(load_kernels(cards) if cards else shipped_kernels(), environments)
    return terms_by_kernel(kernels, plan.kernels)


def accept_run(store: Store, run: Run, *, hours: float = 1) -> Baseline:
    """Somebody accepted the run so many hours before NOW, whatever it is."""
    assert run.stack is not None
    baseline = Baseline(
        matrix=run.matrix,
        variant=run.stack.device.variant,
        run_id=run.id,
        accepted_by="jane",
        accepted_at=NOW - timedelta(hours=hours),
        reason="release 7",
    )
    store.accept(baseline)
    return baseline


def store_run(
    store: Store,
    matrix: Path,
    outcome: Callable[[Case], Outcome] | Outcome = PASSED,
    *,
    age: timedelta = timedelta(hours=1),
    stack: Stack | None = None,
    cards: tuple[Path, ...] = (),
    environments: Mapping[str, Environment] = MappingProxyType({}),
    **changes: Any,
) -> Run:
    """Plans the matrix, stores a run of it that began ``age`` before NOW, and an outcome of every planned case."""
    interpreters = {name: one.python for name, one in environments.items()}
    loaded = load_matrix(str(matrix), cards, interpreters)
    plan = make_plan(loaded, dict(load_kernels(cards) if cards else shipped_kernels()))
    began = NOW - age
    run = make_run(
        id=f"{began:%Y%m%dT%H%M%SZ}-{next(_numbers):06x}",
        matrix=loaded.card.matrix,
        matrix_hash=loaded.content_hash,
        matrix_source=loaded.source,
        matrix_path=str(matrix),
        started_at=began,
        finished_at=changes.pop("finished_at", began + timedelta(minutes=5)),
        stack=stack or make_stack(),
        environments=environments,
        **({} if "code" in changes else {"code": code_of(plan, cards, interpreters)}),
        **({} if "terms" in changes else {"terms": terms_of_plan(plan, cards, interpreters)}),
        **changes,
    )
    store.begin(run)
    planned = [*plan.cases, *(case for case, _ in plan.refused)]
    store.add_cases(run.id, planned)
    chosen = [
        Record(case=case, outcome=answered(outcome(case) if callable(outcome) else outcome, run.level))
        for case in plan.cases
    ]
    refused = [Record(case=case, outcome=Refused(by="plan", reasons=why)) for case, why in plan.refused]
    store.add(run.id, [*chosen, *refused])
    return replace(run, planned=len(planned))


def by_later_qualify(store: Store, run: Run) -> None:
    """Changes a stored run as if a later qualify had made it: its matrix has a key that no qualify has yet."""
    text = f"{run.matrix_source}future_key: 3\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    with closing(sqlite3.connect(store.where)) as database, database:
        database.execute("UPDATE runs SET matrix_source = ?, matrix_hash = ? WHERE id = ?", (text, digest, run.id))


def sound_run(path: Path) -> str:
    """Stores a run whose evidence keeps every rule, with its matrix beside the store; returns its id."""
    matrix = path.with_suffix(".yaml")
    matrix.write_text(MATRIX)
    with Store.open(str(path)) as store:
        return store_run(store, matrix).id
