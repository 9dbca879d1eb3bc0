"""What the pages show of measurements is what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
import make_first_chart  # noqa: E402
import make_studies_page  # noqa: E402


def test_the_pages_of_studies_and_benchmarks_are_made_of_what_is_kept() -> None:
    hint = "run tools/make_studies_page.py"
    assert make_studies_page.PAGE.read_text(encoding="utf-8") == make_studies_page.page(), hint
    page = make_studies_page.BENCHMARKS
    assert page.read_text(encoding="utf-8") == make_studies_page.benchmarks(), hint


def test_the_chart_of_the_readme_is_made_of_what_is_kept() -> None:
    hint = "run tools/make_first_chart.py"
    assert make_first_chart.CHART.read_text(encoding="utf-8") == make_first_chart.chart(), hint
