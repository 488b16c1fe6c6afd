"""The matrix that a run stored, as this qualify reads it: another version may know other keys, or other limits."""

from __future__ import annotations

from qualify.cards.load import parse_matrix
from qualify.cards.matrix import MatrixCard
from qualify.errors import CardError
from qualify.facts.run import Run

UNREAD = "this qualify cannot read its matrix: "
"""beginning of the reason why a run does not count whose stored matrix is wrong for this qualify"""


def stored_matrix(run: Run) -> MatrixCard:
    """The matrix that a run stored.

    Raises CardError where this qualify cannot read it: its places are those in the stored text, not in today's file.
    """
    try:
        return parse_matrix(run.matrix_source, run.matrix_path)
    except CardError as error:
        told = f"that is in the matrix as run {run.id} of qualify {run.qualify_version} stored it"
        raise CardError([(place, f"{message}; {told}") for place, message in error.problems]) from error


def unread(run: Run) -> str:
    """Why this qualify cannot read the matrix that a run stored; empty where it can."""
    try:
        parse_matrix(run.matrix_source, run.matrix_path)
    except CardError as error:
        return f"{UNREAD}{error.problems[0][1]}"
    return ""
