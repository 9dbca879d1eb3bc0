"""Ranks on several hosts, which are namespaces of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ranks import OnHost

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # tests/
from ciranda.measure.hosts import PORT, job_variables, make_key, places_of
from ciranda.netns.network import Network

LIMIT_S = 60.0
Process = subprocess.Popen[str] | OnHost
Start = Callable[..., list[OnHost]]


def places_of_ranks(
    network: Network, folder: Path, *, ranks_per_host: int, nic: int = 0
) -> list[dict[str, str]]:
    """What tells each rank of one job its place; `folder` holds the job's key and sockets."""
    key, address = folder / "key", network.hosts[0].address(nic=nic)
    if not key.exists():  # jobs of one folder share it
        make_key(folder)
    shared = {"CIRANDA_JOB_ID": uuid.uuid4().hex, "CIRANDA_START_TIMEOUT_SECONDS": "20"}
    hosts = places_of(ranks_per_host * len(network.hosts), len(network.hosts))
    return [
        {**job_variables(rank, hosts, folder, key, address, PORT), **shared}
        for rank in range(len(hosts))
    ]


def start_each(
    network: Network, places: list[dict[str, str]], *commands: list[str], **env: str
) -> list[subprocess.Popen[str]]:
    """The processes by rank: of the hosts in turn each runs a command, its ranks at `places`."""
    ranks_per_host = len(places) // len(network.hosts)
    return [
        network.hosts[rank // ranks_per_host].popen(
            commands[rank // ranks_per_host % len(commands)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **place, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, place in enumerate(places)
    ]


def ranks_on_hosts(
    network: Network,
    places: list[dict[str, str]],
    what: Path | Callable[..., Any],
    arguments: Sequence[Any],
    **env: str,
) -> list[OnHost]:
    """The processes by rank, forked: as start_each(), and `what` is a program or a function."""
    ranks_per_host = len(places) // len(network.hosts)
    return [
        OnHost(network.hosts[rank // ranks_per_host], what, arguments, {**place, **env})
        for rank, place in enumerate(places)
    ]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts `program` as `ranks_per_host` ranks on every host, which meet on eth<nic>; returns the
    processes by rank."""

    def start(
        network: Network,
        program: Path,
        *arguments: str,
        ranks_per_host: int = 1,
        nic: int = 0,
        **env: str,
    ) -> list[OnHost]:
        places = places_of_ranks(network, tmp_path, ranks_per_host=ranks_per_host, nic=nic)
        return ranks_on_hosts(network, places, program, arguments, **env)

    return start


def wait_for(processes: Sequence[Process], line: str) -> None:
    """Until each of them has printed that line."""
    for process in processes:
        assert process.stdout is not None
        said = [each.rstrip("\n") for each in iter(process.stdout.readline, f"{line}\n")]
        assert process.poll() is None, said


def outputs(processes: Sequence[Process], limit_s: float = LIMIT_S) -> list[str]:
    return [process.communicate(timeout=limit_s)[0] for process in processes]
