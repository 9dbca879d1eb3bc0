"""setup.py cannot rot: it builds the same files as the native backend of pyproject.toml."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]


def build_wheel(out: Path, *command: str) -> set[str]:
    """Its files and what it requires."""
    # Core only, compiled as it is for the wheel of this environment, so that the compiler cache has
    # it; the rules for the module are the same CMake lines.
    environment = {
        **os.environ,
        "SKBUILD_CMAKE_DEFINE": "CIRANDA_BUILD_TORCH=OFF;CIRANDA_WERROR=ON",
        "SKBUILD_BUILD_DIR": str(out / "native"),
    }
    done = subprocess.run(
        [sys.executable, *command],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    (metadata,) = [archive.read(name) for name in names if name.endswith(".dist-info/METADATA")]
    needs = re.findall(r"Requires-Dist: (\S+)$", metadata.decode(), re.M)
    files = {name for name in names if ".dist-info/" not in name and not name.endswith("/")}
    return files | set(needs)


@pytest.mark.timeout(600)
def test_both_ways_build_the_same_files(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    pip = ["-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--quiet", ".", "-w"]
    native = build_wheel(first, *pip, str(first))
    setup_py = ["setup.py", "-q", "egg_info", f"--egg-base={second}"]
    setup_py += ["build", f"--build-base={second}/build", f"--build-temp={second}/temp"]
    setup_py += ["bdist_wheel", f"--bdist-dir={second}/bdist", f"--dist-dir={second}"]
    classic = build_wheel(second, *setup_py)
    assert native == classic
