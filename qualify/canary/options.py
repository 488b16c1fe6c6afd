"""How a replica of the service works."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How a replica works."""

    db: str
    """address of the store, for the children"""
    node: str
    """name of this machine in holds and history"""
    lease: str = "canary"
    """replicas of one lease share its canaries"""
    lease_s: float = 15.0
    """how long a leader may be silent"""
    poll_s: float = 60.0
    """seconds between two looks at the stack"""
    out: Path = Path("out")
    """folder of reports"""
    programs: tuple[str, ...] = ()
    """paths of the programs that cards may have run for an alert"""
    only: int | None = None
    """run this fire and nothing else"""
