"""Which files of tests are handed out first where several processes run them."""

from __future__ import annotations

LONGEST = (
    "tests/canary/test_service.py",
    "tests/run/checks/test_all_checks.py",
    "tests/fleet/test_repro.py",
    "tests/fleet/test_interrupts.py",
    "tests/test_docs.py",
    "tests/test_ci_examples.py",
    "tests/canary/test_queues.py",
    "tests/fleet/test_third_party_deaths.py",
    "tests/fleet/test_writers.py",
    "tests/run/test_fp8.py",
    "tests/test_changed_code.py",
    "tests/fleet/test_third_party_results.py",
    "tests/run/test_fp8_cache.py",
    "tests/selftest/test_battery.py",
    "tests/run/process/test_compile_ahead.py",
    "tests/run/process/test_supervisor.py",
    "tests/run/checks/test_any_workload.py",
    "tests/cards/config/test_hub.py",
)
"""files that take longest; some compute and some wait, in turn"""
