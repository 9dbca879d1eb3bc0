"""The interface of a system: one way to train on several processes. Imports no torch.

A file of `systems/`, or any other file that `--systems` names, holds one subclass of System and
`SYSTEM`, its only instance. The methods here are those of a single plain process.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ciranda.compare.setting import Setting
    from ciranda.compare.workload import Workload

FOLDER = Path(__file__).with_name("systems")


@dataclass(frozen=True)
class Processes:
    """How a system's processes are started.

    "python": one process, whatever the number of ranks. "torch": one process for each rank, with
    torchrun's variables. "ciranda": `ciranda run`. "mpirun", "horovod": their own launchers.
    """

    by: Literal["python", "torch", "ciranda", "mpirun", "horovod"] = "ciranda"
    servers: bool = False  # starts parameter servers for the ranks
    coordinator: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


class System:
    title = "one process"
    processes = Processes("python")
    ranks_min = 1
    ranks_max = 1_000_000
    networks: Sequence[str] = ("host", "hosts", "lan", "vpn")

    rank = 0
    size = 1
    model: Any
    optimizer: Any

    # --- where the comparison runs

    def missing(self) -> str | None:
        """Returns why the system cannot run on this machine, and the remedy; None if it can."""
        return None

    def runs(self, setting: Setting) -> bool:
        """Returns true if the system supports the setting; otherwise it has no row."""
        fits = self.ranks_min <= setting.ranks <= self.ranks_max
        return fits and setting.network in self.networks

    # --- in each process

    def start(self, workload: Workload) -> None:
        """Connects to the other processes; sets rank, size, and the model and optimizer."""
        self.model = workload.make_model()
        self.optimizer = workload.make_optimizer(self.model)

    def step(self, images: Any, labels: Any) -> float:
        """Makes one step with this rank's batch; returns the CPU seconds of this thread."""
        from ciranda.compare.workload import plain_step

        return plain_step(self.model, self.optimizer, images, labels)

    def same(self, value: float) -> float:
        """Returns rank 0's value on all ranks, and blocks until they all call it.

        Returns `value` itself in a system whose ranks step independently.
        """
        return value

    def report(self) -> dict[str, float]:
        """Returns seconds since start(): "waiting_s" (for other ranks) and "communicating_s".

        A system that does not count them returns an empty dict.
        """
        return {}

    def stop(self) -> None:
        """Disconnects from the other processes. The parameters stay."""

    def train(self, workload: Workload) -> None:
        """Makes the whole run; overridden by systems that do not train in epochs of steps."""
        from ciranda.compare.workload import train

        train(self, workload)


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


def load(name: str) -> System:
    """Returns the system of that name, or from a file; raises ValueError if it is missing."""
    path = Path(name) if name.endswith(".py") else FOLDER / f"{name}.py"
    if not path.is_file():
        raise ValueError(f"there is no system {name!r}; there are {', '.join(names())}")
    module_name = f"ciranda.compare.systems.{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, "SYSTEM", None)
    if not isinstance(found, System):
        raise ValueError(f"{path}: has no SYSTEM, an instance of ciranda.compare.system.System")
    return found


# --- reasons for missing() ------------------------------------------------------------------------


def no_module(module: str, install: str) -> str | None:
    if importlib.util.find_spec(module) is not None:
        return None
    return f"{module} is not installed ({install})"


def no_program(program: str, install: str) -> str | None:
    return None if shutil.which(program) else f"{program} is not installed ({install})"


def no_gpu(count: int = 1) -> str | None:
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return None if found >= count else f"needs {count} GPUs; this machine has {found}"
