"""torchrun and mpirun, for real, over two hosts: breaks when a rank takes its place, or that where
ranks meet, from the wrong variable."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
from host_ranks import outputs

from ciranda.measure.hosts import make_key

RANK = (str(Path(__file__).parent / "train.py"), "auto", "5")

MakeNetwork = Callable[..., Any]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of every rank: a key, and a folder that hosts do not share."""
    key = make_key(tmp_path)
    return {"CIRANDA_KEY_FILE": str(key), "XDG_RUNTIME_DIR": "/run", "OMP_NUM_THREADS": "1"}


def assert_trained(texts: list[str], rank_count: int) -> None:
    # Ranks that share a pipe may come between each other's line and its end.
    results = [json.loads(found) for text in texts for found in re.findall(r"\{.*?\}", text)]
    assert len(results) == rank_count, texts
    assert all(result["off"] < 1e-6 and result["equal"] for result in results)


def test_torchrun_on_two_hosts_trains(
    make_network: MakeNetwork, environment: dict[str, str], tmp_path: Path
) -> None:
    network = make_network(2, addresses=("ipv4",))
    # As Debian does: a host finds itself at a loopback address.
    names = tmp_path / "hosts"
    names.write_text("127.0.0.1 localhost\n127.0.1.1 node0\n")
    network.hosts[0].check(["mount", "--bind", str(names), "/etc/hosts"])
    command = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
    command += ["--master-addr=node0"]
    processes = [
        warm.on_host(host, [*command, f"--node-rank={host.index}", *RANK], environment)
        for host in network.hosts
    ]
    assert_trained(outputs(processes), 4)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (openmpi-bin)")
def test_mpirun_on_two_hosts_trains(make_network: MakeNetwork, environment: dict[str, str]) -> None:
    host = make_network(2, addresses=("ipv4",), ssh=True).hosts[0]
    variables = {**environment, "MASTER_ADDR": "node0"}
    command = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-H", "node0:2,node1:2"]
    for name, value in variables.items():
        command += ["-x", f"{name}={value}"]
    ended = host.run([*command, sys.executable, *RANK], timeout=60)
    assert_trained([ended.stdout + ended.stderr], 4)
