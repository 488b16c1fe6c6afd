"""A standalone script of a failure: the kernel's call, the recorded inputs, and one claim that must not hold.

Only torch and the kernel's library are imported. The script prints what the kernel gave beside what it should have
given and exits 1 while the two differ, 0 once they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch

from qualify.run.adapters.interface import Prepared, Scripted
from qualify.run.repro import standalone
from qualify.run.repro.export import CannotExport, Exporter, call_of
from qualify.run.repro.standalone import Claimed


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What is wrong, and between which launches it shows."""

    shows: Callable[..., Claimed]
    """a function of ``standalone``"""
    given: tuple[str, ...]
    """its arguments: names of the program"""
    launches: tuple[int, ...]
    """all launches that the script repeats, in order"""
    values: Mapping[str, object]
    """its keywords, as plain values"""

    launched: bool = True
    """False where the claim launches the last call itself, and nothing may launch it before"""


def render(
    *, title: str, text: str, device: torch.device, bind: partial[Prepared], program: Sequence[str], claim: Claim
) -> str:
    """The script.

    Args:
        title: one line: check and case.
        text: what the check found, and how to repeat the case under qualify.
        device: where the inputs are made.
        bind: what the adapter makes of a call.
        program: lines that make the inputs and launch.
        claim: what the end asserts.

    Raises:
        CannotExport: the adapter's function has no source that a script can hold.
    """
    exporter = Exporter(copied=(bind.func.__module__,))
    kernel = f"kernel = {export_kernel(exporter, bind)}\n"
    where = f'"{device.type}"' if device.index is None else f'"{device.type}", {device.index}'
    place = f"device = torch.device({where})\n"
    launched = "\n".join(program)
    finished = f"finish(*{call_of(claim.shows.__name__, *claim.given, **claim.values)})\n"
    exporter.add_names_of(f"kernel = None\n{place}\n{launched}\n{finished}", standalone.__name__)
    return exporter.script(
        title=title,
        text=text,
        body=f"# The kernel, called as qualify calls it.\n\n{place}{kernel}\n"
        f"# The inputs, as the check made them, and the launches.\n\n{launched}\n\n"
        f"# What came back, beside what should have.\n\n{finished}",
    )


def rendered(
    adapter: object, *, title: str, text: str, device: torch.device, program: Sequence[str], claim: Claim
) -> str:
    """:func:`render` for an adapter; empty where its function has no source to give."""
    if not isinstance(adapter, Scripted):
        return ""
    try:
        return render(title=title, text=text, device=device, bind=adapter.bind, program=program, claim=claim)
    except CannotExport:
        return ""


def export_kernel(exporter: Exporter, bind: partial[Prepared]) -> str:
    """What the script calls the kernel: the adapter's function with its keywords; its definitions are taken along."""
    module, name = bind.func.__module__, bind.func.__name__
    if bind.args:
        raise CannotExport(f"{module}.{name} is given {len(bind.args)} arguments without a name")
    if not bind.keywords:
        exporter.add_names_of(name, module)
        return name
    libraries = [f"import {value.__name__}" for value in bind.keywords.values() if isinstance(value, ModuleType)]
    imports = [*libraries, "from functools import partial"]
    for text in imports:
        exporter.add_import(text)
    kernel = call_of("partial", name, **bind.keywords)
    exporter.add_names_of("\n".join([*imports, kernel]), module)
    return kernel
