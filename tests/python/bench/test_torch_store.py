"""Peers on torch.distributed open no port that another host could reach."""

from __future__ import annotations

import os
from pathlib import Path

from ranks import run_ranks, values_of

from ciranda.measure.sides import free_port


def addresses_that_it_listens_on() -> list[str]:
    from ciranda.measure import torch_store

    torch_store.join("gloo")
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    ours = {os.readlink(link) for link in links if os.path.islink(link)}
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in ours:
                found.append(fields[1].partition(":")[0])
    return found


def test_on_one_host_it_listens_on_loopback_alone() -> None:
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    place["MASTER_PORT"] = str(free_port())
    (found,) = values_of(run_ranks(addresses_that_it_listens_on, 1, env=place, place=False))
    assert set(found) == {"0100007F"}
