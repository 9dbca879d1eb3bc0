"""Sums gradients by torch's Gloo group, which is formed anew when its harness says so.

The harness writes `members-N`: the pids of the N-th group, in the order of ranks. Each process
appends the time of each sum to log-PID, with the group's number, until it is killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist

COMPUTING_S = 0.002


def wait_for(path: Path) -> str:
    while not path.exists():
        time.sleep(0.0005)
    return path.read_text()


def publish(path: Path, text: str) -> None:
    made = path.with_suffix(f".{os.getpid()}")
    made.write_text(text)
    os.rename(made, path)


def form(number: int) -> bool:
    """Returns False if the harness has named a newer group."""
    me = os.getpid()
    members = json.loads(wait_for(Path(f"members-{number}")))
    publish(Path(f"handle-{number}-{me}"), dist._get_reconfigure_handle())
    handles = []
    for each in members:
        path = Path(f"handle-{number}-{each}")
        while not path.exists():
            if Path(f"members-{number + 1}").exists():
                return False
            time.sleep(0.0005)
        handles.append(path.read_text())
    dist._reconfigure(uuid=number, handles=handles).wait()
    return True


def main() -> None:
    dist.init_process_group(
        "gloo",
        store=dist.FileStore("store", -1),
        rank=int(sys.argv[1]),  # never used twice: the handle is made of it
        world_size=1 << 20,
        timeout=timedelta(seconds=8),
        enable_reconfigure=True,
    )
    log = os.open(f"log-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    me, number = os.getpid(), 0
    while True:  # a spare waits for the first group that it belongs to
        number += 1
        if me in json.loads(wait_for(Path(f"members-{number}"))):
            break
    while True:
        try:
            if not form(number):
                number += 1
                continue
            while True:
                time.sleep(COMPUTING_S)
                gradient = torch.ones(1000)
                dist.all_reduce(gradient)
                assert gradient[0] == dist.get_world_size()
                os.write(log, f"{number} {time.monotonic_ns()}\n".encode())
        except RuntimeError as error:
            print(number, error, file=sys.stderr, flush=True)
            number += 1


if __name__ == "__main__":
    main()
