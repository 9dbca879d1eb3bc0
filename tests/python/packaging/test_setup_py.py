"""setup.py cannot rot: it builds the same files as the native backend of pyproject.toml."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def copy_of_the_project(tmp_path: Path) -> Path:
    ignore = shutil.ignore_patterns("build", "dist", ".*", "__pycache__", "*.egg-info", "results")
    return shutil.copytree(PROJECT, tmp_path / "source", ignore=ignore)


def build_wheel(project: Path, out: Path, *command: str) -> set[str]:
    """Its files and what it requires."""
    # Core only, and not optimised, as it is not run; the rules for the module are the same CMake
    # lines. The next run's folder has another name, which the compiler cache must not see.
    environment = {
        **os.environ,
        "SKBUILD_CMAKE_DEFINE": "CIRANDA_BUILD_TORCH=OFF",
        "SKBUILD_CMAKE_BUILD_TYPE": "None",
        "CCACHE_BASEDIR": str(project),
    }
    done = subprocess.run(
        [sys.executable, *command, str(out)],
        cwd=project,
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
def test_both_ways_build_the_same_files(copy_of_the_project: Path, tmp_path: Path) -> None:
    pip = ["-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--quiet", ".", "-w"]
    native = build_wheel(copy_of_the_project, tmp_path / "native", *pip)
    # As deep in the project as the other build: the compiler cache serves both.
    setup_py = ["setup.py", "-q", "build", "--build-temp=build", "bdist_wheel", "--dist-dir"]
    classic = build_wheel(copy_of_the_project, tmp_path / "classic", *setup_py)
    assert native == classic
