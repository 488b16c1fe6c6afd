"""Two flows in boxes: from a claim to a verdict, and how the identity of a kernel is proved."""

from __future__ import annotations

from drawing.svg import GREEN, RED, arrow, card, sheet, words


def evidence() -> str:
    """Claim, case, evidence, verdict."""
    shapes = [
        card(10, 20, 180, ["kernel card", "a claim: dtypes, masks,", "head_dim, kernel names"]),
        card(10, 120, 180, ["matrix", "models, phases, shapes,", "dtypes, expectations"]),
        card(250, 70, 150, ["case", "one call of one", "kernel, with an id"]),
        card(460, 20, 200, ["outcome", "launched kernels, findings,", "error statistics, times"]),
        card(460, 120, 200, ["refusal", "no claim covers the call,", "with the values"]),
        card(720, 70, 130, ["verdict", "PASS, FAIL,", "INCONCLUSIVE"], GREEN),
        arrow(190, 95, 250, 95),
        arrow(400, 95, 460, 95),
        arrow(660, 95, 720, 95),
        words(430, 88, "run", size=12),
        words(690, 88, "gate", size=12),
        words(220, 88, "plan", size=12),
    ]
    return sheet(860, 210, "A card is a claim, a run is evidence, the verdict compares the two", shapes)


def identity() -> str:
    """Trace, names, work, share; and the three states."""
    shapes = [
        card(10, 60, 170, ["three traced calls", "a profiler records", "every launch"]),
        card(220, 60, 180, ["is the trace whole?", "sentinels, durations,", "three equal calls"]),
        card(440, 60, 180, ["do names match?", "must_match, and no", "other attention kernel"]),
        card(660, 60, 190, ["could it do the work?", "FLOPs, bytes, tensors;", "others below 5 %"]),
        card(660, 190, 190, ["proven"], GREEN),
        card(440, 190, 180, ["substituted"], RED),
        card(220, 190, 180, ["unproven"], "#fef3c7"),
        arrow(180, 95, 220, 95),
        arrow(400, 95, 440, 95),
        arrow(620, 95, 660, 95),
        arrow(755, 130, 755, 190),
        arrow(530, 130, 530, 190),
        arrow(310, 130, 310, 190),
        words(410, 86, "yes", size=12),
        words(640, 86, "yes", size=12),
        words(772, 165, "yes", size=12),
        words(590, 165, "another one ran", size=12),
        words(370, 165, "no: never a pass", size=12),
    ]
    return sheet(860, 240, "How the identity of a kernel is proved", shapes)
