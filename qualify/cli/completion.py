"""What a shell completes behind a command: names of shipped cards. Files are completed where no name fits."""

from __future__ import annotations


def matrices(incomplete: str) -> list[str]:
    """Names of shipped matrices."""
    from qualify.cards.named import matrix_names

    return _beginning(matrix_names(), incomplete)


def models(incomplete: str) -> list[str]:
    """Names of model cards."""
    from qualify.cards.named import model_names

    return _beginning(model_names(), incomplete)


def kernels(incomplete: str) -> list[str]:
    """Names of kernel cards."""
    from qualify.cards.named import kernel_names

    return _beginning(kernel_names(), incomplete)


def backends(incomplete: str) -> list[str]:
    """Names of attention backends, of every engine."""
    from qualify.facts.backends import ENGINES

    return _beginning(sorted({backend.name for engine in ENGINES for backend in engine.backends}), incomplete)


def _beginning(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
