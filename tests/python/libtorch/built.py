"""Builds C++ programs as users build them, against the installed package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import ciranda

LAUNCH = [sys.executable, "-m", "ciranda", "run", "--no-color"]


def run(*command: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source: Path, folder: Path) -> Path:
    # Unoptimized: torch's headers compile for seconds.
    options = ["-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_PREFIX_PATH={ciranda.cmake_prefix_path()}"]
    if shutil.which("ccache"):
        options.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    run("cmake", "-G", "Ninja", "-S", source, "-B", folder, *options)
    run("cmake", "--build", folder)
    return folder
