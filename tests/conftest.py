"""CIRANDA_TEST_REQUIRE=all: a test that would skip fails, so that continuous integration notices
when a package is missing that a test needs. Only a GPU may be missing, or in the way
(`@pytest.mark.gpu`).

Tests that assert how long something takes are marked `timing`: they run after all others, are tried
twice, for the machine may have been busy, and their figures are printed at the end
(`record_property`)."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from _pytest.runner import runtestprotocol

REQUIRE = "CIRANDA_TEST_REQUIRE"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("timing") is not None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if item.get_closest_marker("timing") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if any(report.failed for report in reports):
        item.user_properties.clear()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call" and report.user_properties:
                figures = ", ".join(f"{name} {value}" for name, value in report.user_properties)
                terminalreporter.write_line(f"{report.nodeid}: {figures}")


def _fail_a_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    skipped = report.outcome == "skipped" and not hasattr(report, "wasxfail")
    if skipped and os.environ.get(REQUIRE) == "all":
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: {why}; {REQUIRE}=all allows no skip"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.get_closest_marker("gpu") is None:
        _fail_a_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that skips as a whole."""
    report = yield
    _fail_a_skip(report)
    return report
