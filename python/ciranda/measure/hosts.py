"""Ranks on hosts of one network: the variables that a launcher there would set."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from ciranda.launch.remote.meeting import format_endpoint, make_key_file
from ciranda.measure.sides import Launcher, one_thread_env
from ciranda.netns.network import Network

GLOO = {"GLOO_SOCKET_IFNAME": "eth0"}  # the network's device
PORT = 29400  # first port to use; each network has all ports for itself


def places_of(ranks: int, hosts: int) -> list[int]:
    """Returns the host of each rank; neighbouring ranks share a host."""
    return [rank * hosts // ranks for rank in range(ranks)]


def make_key(folder: Path) -> Path:
    key = folder / "key"
    make_key_file(str(key))
    return key


def torch_variables(rank: int, places: Sequence[int], address: str, port: int) -> dict[str, str]:
    """Returns the variables of torchrun; `address` is that of rank 0."""
    mine = _on_host_of(rank, places)
    return {
        **{"RANK": str(rank), "WORLD_SIZE": str(len(places))},
        **{"LOCAL_RANK": str(mine.index(rank)), "LOCAL_WORLD_SIZE": str(len(mine))},
        **{"MASTER_ADDR": address, "MASTER_PORT": str(port)},
    }


def job_variables(
    rank: int, places: Sequence[int], folder: Path, key: Path, address: str, port: int
) -> dict[str, str]:
    """Returns the variables of a ciranda job that is named like its folder.

    `address` is that of host 0. The job makes sockets in the folder, so its path must be short.
    """
    host, mine = places[rank], _on_host_of(rank, places)
    return {
        "CIRANDA_RANK": str(rank),
        "CIRANDA_SIZE": str(len(places)),
        "CIRANDA_LOCAL_RANK": str(mine.index(rank)),
        "CIRANDA_LOCAL_SIZE": str(len(mine)),
        "CIRANDA_CROSS_RANK": str(host),
        "CIRANDA_CROSS_SIZE": str(len(set(places))),
        "CIRANDA_JOB_ID": folder.name,
        "CIRANDA_JOB_DIR": str(folder / f"host{host}"),
        "CIRANDA_RENDEZVOUS": format_endpoint(address, port),
        "CIRANDA_KEY_FILE": str(key),
    }


def _on_host_of(rank: int, places: Sequence[int]) -> list[int]:
    return [each for each, host in enumerate(places) if host == places[rank]]


def ciranda_through(
    network: Network, ports: Iterator[int], folder: Path, variables: Mapping[str, str]
) -> Launcher:
    """Starts a ciranda job on all hosts of the network.

    `ports` yields ports that are free there. `folder` must outlive the job.
    """

    def launch(worker: Sequence[str], log: IO[bytes], ranks: int) -> list[subprocess.Popen[bytes]]:
        job = Path(tempfile.mkdtemp(dir=folder))
        key, place = make_key(job), (network.hosts[0].address(), next(ports))
        places = places_of(ranks, len(network.hosts))
        envs = [
            {**job_variables(rank, places, job, key, *place), **variables} for rank in range(ranks)
        ]
        return _start(network, places, envs, worker, log)

    return launch


def torch_through(network: Network, ports: Iterator[int]) -> Launcher:
    """Starts a torch.distributed job on all hosts of the network."""

    def launch(worker: Sequence[str], log: IO[bytes], ranks: int) -> list[subprocess.Popen[bytes]]:
        place = (network.hosts[0].address(), next(ports))
        places = places_of(ranks, len(network.hosts))
        envs = [{**torch_variables(rank, places, *place), **GLOO} for rank in range(ranks)]
        return _start(network, places, envs, worker, log)

    return launch


def _start(
    network: Network,
    places: Sequence[int],
    envs: Sequence[Mapping[str, str]],
    worker: Sequence[str],
    log: IO[bytes],
) -> list[subprocess.Popen[bytes]]:
    return [
        network.hosts[host].popen(
            [sys.executable, *worker],
            env=one_thread_env(**env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        for host, env in zip(places, envs, strict=True)
    ]
