"""Lets the files here import each other, and prints the tables when all is done."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
LIMIT_S = 900  # the project's limit is for tests; a benchmark takes minutes
sys.path.insert(0, str(HERE.parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(LIMIT_S))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from benchmarks.report import finished_reports

    for text in finished_reports:
        terminalreporter.write_line("")
        terminalreporter.write_line(text)
