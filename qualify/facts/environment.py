"""Other interpreters that kernels run in: how such a kernel is called, and what a run knows of each.

The default environment is the interpreter that qualify itself runs in; its name is empty. A kernel in another one is a
kernel of its own, called ``KERNEL@NAME``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from qualify.facts.stack import Stack

AT = "@"
"""stands between a kernel and its environment"""
ENVIRONMENT = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$"
"""what an environment may be called"""
HERE = "this interpreter"
"""what the default environment is called for people"""
_NAME = re.compile(ENVIRONMENT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Another interpreter of a run."""

    python: str
    """absolute path of the interpreter"""
    stack: Stack | None = None
    """what its kernels ran on; None until its host has reported"""


def in_environment(kernel: str, environment: str) -> str:
    """What a kernel is called in an environment; its own name in the default one."""
    return f"{kernel}{AT}{environment}" if environment else kernel


def environment_of(kernel: str) -> str:
    """The environment that a kernel's name says; empty for the default one."""
    return kernel.partition(AT)[2]


def kernel_in(kernel: str) -> str:
    """The kernel's name without its environment."""
    return kernel.partition(AT)[0]


def is_environment_name(name: str) -> bool:
    """Whether an environment may be called so."""
    return _NAME.fullmatch(name) is not None
