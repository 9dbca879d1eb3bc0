"""Starts elastic jobs on the hosts of a test network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import ciranda
from ciranda.netns.network import Host

PACKAGES = Path(ciranda.__file__).resolve().parents[1]


def start_job(
    host: Host, folder: Path, program: str, *options: str, output: int | IO[str]
) -> subprocess.Popen[str]:
    """Starts a launcher on the host, in a new folder, for a program with this text."""
    folder.mkdir()
    python = folder / "python"  # for hosts where the ciranda under test is not installed
    python.write_text(f'#!/bin/sh\nPYTHONPATH={PACKAGES} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (folder / "rank.py").write_text(program)
    command = [sys.executable, "-m", "ciranda", "run", "--no-color", f"--python={python}"]
    return host.popen(
        [*command, *options, "-x", "OMP_NUM_THREADS=1", "rank.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
    )
