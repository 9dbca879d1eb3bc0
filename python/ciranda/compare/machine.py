"""The machine during a run: CPU use of other programs, and energy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ciranda.compare.setting import Setting
from ciranda.measure.machine import core_seconds

_RAPL = Path("/sys/class/powercap")
_BUSY_PERCENT = 15.0
_STEPS_FEW = 3


class Others:
    """Measures CPU use of other programs on this machine from now on.

    This process and the children that it has waited for do not count. The other guests of a virtual
    machine's host do.
    """

    def __init__(self) -> None:
        self._busy_s, self._all_s = self._since_boot()

    def busy_percent(self) -> float:
        """Returns the percentage of core time used by others; a child counts until reaped."""
        busy_s, all_s = self._since_boot()
        return max(0.0, 100.0 * (busy_s - self._busy_s) / max(1.0, all_s - self._all_s))

    @staticmethod
    def _since_boot() -> tuple[float, float]:
        """Returns seconds since boot, summed over the cores: those of others, and all."""
        spent = core_seconds()
        busy_s = spent.user + spent.nice + spent.system + spent.stolen
        return busy_s - sum(os.times()[:4]), sum(spent)


def nonsense(setting: Setting, run: Mapping[str, Any]) -> list[str]:
    """Returns sentences about figures that say less than they seem to.

    `run` has "cores" and "servers" at the time of the run, "busy_percent" of other programs, and
    "hosts" as given to --hosts.
    """
    found = []
    if run["busy_percent"] > _BUSY_PERCENT:
        found.append("other programs or virtual machines kept its cores busy meanwhile")
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
    """Returns the joules counted by RAPL (packages) and NVML (GPUs); None if neither counts."""
    counts: list[float] = []
    for domain in _RAPL.glob("intel-rapl:[0-9]*"):
        if domain.name.count(":") == 1:  # a package, not a part of one
            with contextlib.suppress(OSError, ValueError):
                counts.append(int((domain / "energy_uj").read_text()) / 1e6)
    with contextlib.suppress(Exception):  # a driver may fail in any way
        import pynvml

        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            counts.append(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
    return sum(counts) if counts else None
