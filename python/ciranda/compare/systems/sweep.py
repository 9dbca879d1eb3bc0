"""`ciranda sweep`: a search over learning rate and batch, with trials side by side."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ciranda.compare.protocol import say
from ciranda.compare.system import Processes, System, no_module

if TYPE_CHECKING:
    from ciranda.compare.workload import Workload

_SPACE = ["lr=1e-4..1e-1:log", "batch=32,64,128,256"]


class Sweep(System):
    title = "ciranda sweep"
    processes = Processes("python")
    networks = ("host",)

    def missing(self) -> str | None:
        return no_module("optuna", "pip install optuna")

    def train(self, workload: Workload) -> None:
        from ciranda.sweep.settings import COMPLETE, PRUNED, SweepSettings
        from ciranda.sweep.space import parse_space
        from ciranda.sweep.sweep import run_sweep

        setting = workload.setting
        with tempfile.TemporaryDirectory() as name:
            told = Path(name, "setting.json")
            told.write_text(setting.key())
            command = [sys.executable, "-m", "ciranda.compare.trial", str(told), "{lr}", "{batch}"]
            begin = time.perf_counter()
            settings = SweepSettings(
                command + ([workload.data_folder] if workload.data_folder else []),
                parse_space(_SPACE),
                metric="accuracy",
                maximize=True,
                trials=setting.trials,
                np=setting.ranks,
                parallel=setting.parallel,
                seed=setting.seed,
                prune=setting.prune,
                out=Path(name, "out"),
            )
            result = run_sweep(settings)
        seconds, best = time.perf_counter() - begin, result.best
        outcome = {"epochs": [], "total_s": seconds, "notes": []}
        outcome["curve"] = [(seconds, best.value)] if best else []
        counts = {"trials": result.count(COMPLETE), "pruned": result.count(PRUNED)}
        say(rank=0, size=1, outcome={**outcome, **counts})


SYSTEM = Sweep()
