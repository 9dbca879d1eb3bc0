"""CIRANDA_TEST_REQUIRE=all: a test that would skip fails, so that continuous integration notices
when a package is missing that a test needs. Only a GPU may be missing, or in the way
(`@pytest.mark.gpu`)."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

REQUIRE = "CIRANDA_TEST_REQUIRE"


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
