"""Peers on torch.distributed open no port that another host could reach."""

from __future__ import annotations

import os
import subprocess
import sys

from ciranda.measure.sides import free_port

RANK = """
import os
from ciranda.measure import torch_store
torch_store.join("gloo")
links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
ours = {os.readlink(link) for link in links if os.path.islink(link)}
for table in ("/proc/net/tcp", "/proc/net/tcp6"):
    for line in open(table).readlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in ours:
            print(fields[1].partition(":")[0])
"""


def test_on_one_host_it_listens_on_loopback_alone() -> None:
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", RANK],
        env={**os.environ, **place, "MASTER_PORT": str(free_port())},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"0100007F"}
