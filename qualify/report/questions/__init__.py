"""The five questions that a design review asks of each model. A new question is one entry and one module."""

from __future__ import annotations

from qualify.report.questions import fallback, gains, kernels, packing, tolerance
from qualify.report.questions.interface import Answer, Link, Question, State

__all__ = ["QUESTIONS", "Answer", "Link", "Question", "State"]

QUESTIONS: tuple[Question, ...] = (
    Question(key="kernels", text="Which exact attention kernel handles every production shape?", answer=kernels.answer),
    Question(key="fallback", text="What is the fallback, and how is it detected?", answer=fallback.answer),
    Question(key="packing", text="Does variable-length packing preserve the intended mask?", answer=packing.answer),
    Question(key="gains", text="Are the gains in prefill, in decode, or in both?", answer=gains.answer),
    Question(
        key="tolerance", text="What numerical tolerance is accepted across backend upgrades?", answer=tolerance.answer
    ),
)
