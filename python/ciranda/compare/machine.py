"""What a run meets on its machine: others that compute, and the energy that is counted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ciranda.compare.setting import Setting

_RAPL = Path("/sys/class/powercap")
_LOOK_S = 0.3
_BUSY_PERCENT = 15.0
_STEPS_FEW = 3


def _busy_and_all() -> tuple[float, float]:
    """Ticks of all cores since boot."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return float(sum(ticks) - ticks[3] - ticks[4]), float(sum(ticks))
    return 0.0, 0.0


def busy_percent() -> float:
    """Of all cores, while this process sleeps: what others do. Blocks for a moment."""
    busy, total = _busy_and_all()
    time.sleep(_LOOK_S)
    busy_after, total_after = _busy_and_all()
    return 100.0 * (busy_after - busy) / max(1.0, total_after - total)


def nonsense(setting: Setting, run: Mapping[str, Any]) -> list[str]:
    """Sentences about figures that say less than they seem to. `run`: with "cores" and "servers" of
    then, "busy_percent" before it, and "hosts", which were given."""
    found = []
    if run["busy_percent"] > _BUSY_PERCENT:
        found.append("other programs kept the machine busy when it was measured")
    cut = [e["images"] for e in run["ranks"][0].get("epochs", []) if e["images"] < e["of"]]
    if cut and min(cut) < _STEPS_FEW * setting.batch:
        found.append("its epochs are cut after a step or two, which is little to measure")
    if run.get("hosts"):
        return found
    cores, ranks = run["cores"], setting.ranks * max(1, setting.parallel)
    if ranks * setting.threads > cores:
        found.append(f"{ranks * setting.threads} threads share {cores} cores: this is no scaling")
    elif ranks + run["servers"] > cores:
        found.append(f"{ranks} ranks and {run['servers']} server(s) share {cores} cores")
    if setting.network != "host":
        found.append("hosts are namespaces of one machine, which share its cores")
    return found


def joules() -> float | None:
    """Counted so far by RAPL (packages) and NVML (GPUs); None where neither counts, or may be
    read."""
    counts: list[float] = []
    for domain in _RAPL.glob("intel-rapl:[0-9]*"):
        if domain.name.count(":") == 1:  # a package, not a part of one
            with contextlib.suppress(OSError, ValueError):
                counts.append(int((domain / "energy_uj").read_text()) / 1e6)
    with contextlib.suppress(Exception):  # whatever is wrong with a driver
        import pynvml

        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            counts.append(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
    return sum(counts) if counts else None
