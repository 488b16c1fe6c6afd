"""What other distributions import: the call, what an adapter is, what a check is, and how an adapter is offered.

Everything here is stable: names and parameters may be added, and none is removed or changes its meaning without a
major version. Import nothing else of qualify.

* A kernel as a function (``adapter: call`` on its card) takes one :class:`AttentionCall`.
* An adapter is what an :class:`AdapterFactory` makes. A distribution offers the factory in the entry-point group
  :data:`ADAPTER_ENTRY_POINTS`, under the name that cards say as ``adapter``. Its attribute ``declared_options`` is a
  tuple of :class:`Option`: qualify checks the options of cards against it.
* A :class:`Check` asks a :class:`Subject` one question and answers with a :class:`Finding` or more.

Importing it needs torch; ``import qualify`` alone does not.
"""

from __future__ import annotations

try:
    from qualify.facts.adapters import ENTRY_POINTS as ADAPTER_ENTRY_POINTS
    from qualify.facts.adapters import Option
    from qualify.facts.outcome import Finding
    from qualify.masks import Mask
    from qualify.run.adapters.interface import (
        Adapter,
        AdapterFactory,
        AttentionCall,
        LibraryRefusal,
        Prepared,
        Scripted,
        SlowAtFirst,
    )
    from qualify.run.checks.interface import Check, ContractBreach, Result, Subject
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "qualify.api needs torch, which is not installed here: pip install 'attn-qualify[run]'", name="torch"
    ) from error

__all__ = [
    "ADAPTER_ENTRY_POINTS",
    "Adapter",
    "AdapterFactory",
    "AttentionCall",
    "Check",
    "ContractBreach",
    "Finding",
    "LibraryRefusal",
    "Mask",
    "Option",
    "Prepared",
    "Result",
    "Scripted",
    "SlowAtFirst",
    "Subject",
]
