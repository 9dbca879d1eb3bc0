"""A wheel that is to travel needs nothing that only the machine has which built it."""

import subprocess
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]


@pytest.mark.soak
def test_make_wheel_builds_one_that_can_travel(tmp_path: Path) -> None:
    done = subprocess.run(
        ["tools/wheel.sh", str(tmp_path)], cwd=PROJECT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("ciranda/_C.")]
