"""A rank that joins four jobs one after the other: prints the longest start and the longest first
exchange in seconds, which makes links, and the part of a core that taking calls took."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

import ciranda.torch as hvd


def cpu_s_of_taking_calls() -> float:
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "ciranda-calls":
            return int((task / "schedstat").read_text().split()[0]) / 1e9
    raise AssertionError("no thread takes calls")


def main() -> None:
    start_s, exchange_s, cpu_s, alive_s = [], [], 0.0, 0.0
    for _ in range(4):
        began_s = time.monotonic()
        hvd.init()
        started_s = time.monotonic()
        total = hvd.allreduce(torch.ones(1 << 20), op=hvd.Sum)
        exchange_s.append(time.monotonic() - started_s)
        start_s.append(started_s - began_s)
        assert torch.all(total == hvd.size())
        time.sleep(0.3)
        hvd.barrier()
        cpu_s += cpu_s_of_taking_calls()
        alive_s += time.monotonic() - started_s
        hvd.shutdown()
    found = {"start_s": max(start_s), "exchange_s": max(exchange_s), "core": cpu_s / alive_s}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
