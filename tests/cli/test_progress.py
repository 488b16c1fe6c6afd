"""What a run says of itself on stderr."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import make_evidence, make_record

from qualify.cli.progress import Show
from qualify.facts.outcome import Measured
from qualify.fleet.local import Progress


def test_what_was_compiled_ahead_is_no_first_call_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Its cost is the case's first call, but other processes paid it before the run's time began."""
    slow = Measured(evidence=replace(make_evidence(), first_call_us=4e6))
    first, second = (make_record(slow, kernel=name) for name in ("compiled", "not-compiled"))
    with Show() as show:
        show(Progress(done=0, total=2, case_id=first.case.id, stage="compiled ahead", record=None, compiling=True))
        for number, record in enumerate((first, second), 1):
            show(Progress(done=number, total=2, case_id=record.case.id, stage="done", record=record))
    assert "4.0 s of it in first calls" in capsys.readouterr().err
