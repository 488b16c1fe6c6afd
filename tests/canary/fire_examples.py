"""What a fire is asked to do, and what it has seen."""

from __future__ import annotations

from qualify.canary.messages import Order, Seen
from qualify.facts.comparison import StackChange

TORCH = StackChange(component="torch", kind="distribution", before="2.11.0", after="2.13.0")
NONE = {"verdicts": 0, "kernels": 0, "numbers": 0, "times": 0}
GOOD = Seen(
    run_id="run-2",
    matrix="smoke",
    variant="Test CPU",
    verdict="PASS",
    failing=(),
    baseline="run-1",
    stack=(),
    regressions=NONE,
    suspicious={"verdicts": 0, "kernels": 0, "numbers": 0},
    slower=0,
    examples=(),
)
ORDER = Order(
    matrix="smoke",
    cards=(),
    select=None,
    kernel=None,
    level="smoke",
    device="cpu",
    resume=None,
    out="out",
    slower=0.1,
    lease="canary",
    epoch=1,
    lease_s=30.0,
    node="n",
    fire=1,
)
