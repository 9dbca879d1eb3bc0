"""The commands of a run's processes. Pure, except that it looks for a free port."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import ciranda
from ciranda.compare.setting import Setting
from ciranda.compare.system import Processes, System
from ciranda.measure.hosts import GLOO, PORT, job_variables, make_key, places_of, torch_variables
from ciranda.measure.sides import free_port

_SERVER = Path(ciranda.__file__).parent / "bin" / "ciranda-ps"
_CHECKPOINT_STEPS = "1000"


@dataclass(frozen=True)
class Start:
    argv: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    host: int = 0  # index of a network's host


def worker(setting: Setting, data_folder: str | None) -> list[str]:
    """Returns the arguments of Python for a worker."""
    told = json.dumps(asdict(setting))
    return ["-m", "ciranda.compare.worker", told, *([data_folder] if data_folder else [])]


def on_one_host(
    system: System,
    setting: Setting,
    data_folder: str | None,
    folder: Path,
    hosts: str | None = None,
) -> list[Start]:
    """Returns the commands for this host, or for `hosts`, as -H of `ciranda run` takes them."""
    told, processes = worker(setting, data_folder), system.processes
    program, ranks = [sys.executable, *told], str(setting.ranks)
    env = {**threads(setting), **processes.variables}
    if processes.by == "torch" and hosts is None:
        port, places = free_port(), places_of(setting.ranks, 1)
        return [
            Start(program, {**env, **torch_variables(rank, places, "127.0.0.1", port)})
            for rank in range(setting.ranks)
        ]
    if processes.by == "mpirun":
        options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        return [Start(["mpirun", *options, "-np", ranks, *program], env)]
    if processes.by == "horovod":
        return [Start([sys.executable, "-m", "horovod.runner.launch", "-np", ranks, *program], env)]
    if processes.by in ("ciranda", "torch"):  # ciranda also reads torchrun's variables
        options = run_options(processes, setting, folder)
        options += ["-H", hosts] if hosts is not None else []
        run = [sys.executable, "-m", "ciranda", "run", "--verbose", "-np", ranks, *options]
        return [Start([*run, *program], env)]
    return [Start(program, env)]


def run_options(processes: Processes, setting: Setting, folder: Path) -> list[str]:
    """Returns the options of `ciranda run` for servers, and for their failures and checkpoints."""
    if not processes.servers:
        return []
    options = ["--ps", str(setting.servers)]
    options += ["--coordinator"] if processes.coordinator else []
    if setting.killed:
        options += ["--ps-dir", str(folder / "state"), "--restarts", "9"]
    if setting.saver or setting.killed:
        options += ["--checkpoint-dir", str(folder / "checkpoints")]
        options += ["--checkpoint-every", _CHECKPOINT_STEPS]
    if setting.saver == "resumed":
        options += ["--restore", str(folder / "before")]
    return options


def threads(setting: Setting) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(setting.threads), "MKL_NUM_THREADS": str(setting.threads)}


def between_hosts(
    system: System,
    setting: Setting,
    data_folder: str | None,
    folder: Path,
    addresses: Sequence[str],
) -> list[Start]:
    """Returns commands for ranks spread over hosts of one network, which share only a key."""
    told, processes = [sys.executable, *worker(setting, data_folder)], system.processes
    env = {**threads(setting), **processes.variables}
    places = places_of(setting.ranks, len(addresses))
    if processes.by == "torch":
        return [
            Start(
                told,
                {**env, **GLOO, **torch_variables(rank, places, addresses[0], PORT)},
                host,
            )
            for rank, host in enumerate(places)
        ]
    key = make_key(folder)
    if processes.servers:
        return _served(setting, told, env, key, addresses, places)
    return [
        Start(told, {**env, **job_variables(rank, places, folder, key, addresses[0], PORT)}, host)
        for rank, host in enumerate(places)
    ]


def _served(
    setting: Setting,
    told: Sequence[str],
    env: Mapping[str, str],
    key: Path,
    addresses: Sequence[str],
    places: Sequence[int],
) -> list[Start]:
    """Returns commands for a server on each host, and for the ranks."""
    endpoints = [f"{address}:{PORT}" for address in addresses]
    starts = []
    for number, endpoint in enumerate(endpoints):
        argv = [str(_SERVER), f"--workers={setting.ranks}", f"--servers={len(endpoints)}"]
        argv += [f"--server={number}", "--listen", endpoint, "--key-file", str(key)]
        starts.append(Start(argv, env, number))
    shared = {"CIRANDA_SIZE": str(setting.ranks), "CIRANDA_KEY_FILE": str(key)}
    shared["CIRANDA_PS"] = ",".join(endpoints)
    for rank, host in enumerate(places):
        starts.append(Start(told, {**env, **shared, "CIRANDA_RANK": str(rank)}, host))
    return starts
