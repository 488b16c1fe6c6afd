"""Page contexts and what is rendered from them: one self-contained HTML file and its JSON twin."""

from __future__ import annotations

from qualify.report.context import ReportContext, report_context
from qualify.report.document import to_json
from qualify.report.files import write_report
from qualify.report.page import render_html

__all__ = ["ReportContext", "render_html", "report_context", "to_json", "write_report"]
