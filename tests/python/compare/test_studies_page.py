"""What docs and README show of the studies is what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
import make_studies_page  # noqa: E402


def test_the_page_and_the_readme_are_made_of_what_is_kept() -> None:
    hint = "run tools/make_studies_page.py"
    assert make_studies_page.PAGE.read_text(encoding="utf-8") == make_studies_page.page(), hint
    assert make_studies_page.README.read_text(encoding="utf-8") == make_studies_page.readme(), hint
