"""Names and beginnings of files that a command writes anew, for whoever removes those of an earlier one.

It imports nothing: they go before anything large is imported.
"""

from __future__ import annotations

COLUMNS = ("time", "run", "case", "card", "stack", "us", "anchor", "anchor_us", "ratio")
"""of the CSV file of a history"""
OTAVA = "otava.yaml"
OTAVA_BEGINS = '{\n "tests": {'
"""how the file for Otava begins; JSON is valid YAML, and a person writes another one"""
SELFTEST_DATA, SELFTEST_PAGE = "selftest.json", "selftest.html"
"""the files of a selftest"""
