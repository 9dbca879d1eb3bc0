"""Facts that a reader needs to judge figures: the machine, its load, and versions."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def first_line_of(command: Sequence[str]) -> str:
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return "absent"
    return (text.splitlines() or ["unknown"])[0]


def cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


class CoreSeconds(NamedTuple):
    """Seconds that all cores have spent since boot, as in proc(5)."""

    user: float = 0.0
    nice: float = 0.0
    system: float = 0.0
    idle: float = 0.0
    iowait: float = 0.0
    irq: float = 0.0
    softirq: float = 0.0
    stolen: float = 0.0  # used by other guests of the virtual machine's host


def core_seconds() -> CoreSeconds:
    """Returns the seconds of all cores; all are 0 if the kernel does not report them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        return CoreSeconds(*(int(each) / os.sysconf("SC_CLK_TCK") for each in ticks))
    return CoreSeconds()


def stolen_s() -> float:
    """Returns the seconds since boot in which other virtual machines used this one's cores.

    Returns 0 if the kernel does not report them.
    """
    return core_seconds().stolen


def machine() -> dict[str, Any]:
    """Returns facts that a reader needs to judge the figures, including the load by others."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version_of("torch"),
        "ciranda": version_of("ciranda"),
        "load_average": round(os.getloadavg()[0], 2),
        "utc": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }
