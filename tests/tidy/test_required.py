"""Under CIRANDA_TEST_REQUIRE=all a test that skips fails; otherwise it skips."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
MODULES = {
    "test_one.py": """
import pytest
def test_runs(): pass
@pytest.mark.skipif(True, reason="no mark")
def test_marked(): pass
@pytest.fixture
def cluster(): pytest.skip("no cluster")
def test_fixture(cluster): pass
def test_within(): pytest.skip("no within")
@pytest.mark.gpu
def test_gpu(): pytest.skip("no gpu")
@pytest.mark.xfail
def test_known(): assert False
""",
    "test_two.py": "import pytest\npytest.importorskip('not_a_module')\n",
}


@pytest.mark.parametrize(
    ("require", "counts"),
    [
        ("", "1 passed, 5 skipped, 1 xfailed"),
        ("all", "1 failed, 1 passed, 1 skipped, 1 xfailed, 3 errors"),
    ],
)
def test_a_skip_fails_where_everything_is_required(
    tmp_path: Path, require: str, counts: str
) -> None:
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  gpu: needs one\n")
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "--continue-on-collection-errors", "-rA"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "CIRANDA_TEST_REQUIRE": require},
        capture_output=True,
        text=True,
    )
    assert counts in done.stdout.splitlines()[-1], done.stdout
    for reason in ("no mark", "no cluster", "no within", "not_a_module"):
        assert reason in done.stdout
