"""Saves a state in one way, while it computes: prints as JSON how long the program stood still, how
long until the bytes were on the disk, and how long a step took meanwhile.

    python benchmarks/workers/checkpoint_cost.py in line|dcp|ciranda FOLDER MIB ROUNDS
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

import ciranda.torch as hvd

Wait = Callable[[], Any]


def saver(how: str, folder: str, state: dict[str, Any]) -> Callable[[], Wait]:
    """Returns a function that saves, and returns what waits for the disk."""
    if how == "ciranda":
        checkpoints = hvd.Checkpoints(folder, keep=1)

        def save() -> Wait:
            checkpoints.save(state)
            return checkpoints.wait

    elif how == "dcp":

        def save() -> Wait:
            path = os.path.join(folder, "dcp")
            shutil.rmtree(path, ignore_errors=True)
            return dcp.async_save(state, checkpoint_id=path, no_dist=True).result

    else:

        def save() -> Wait:
            path = os.path.join(folder, "in-line.pt")
            with open(path + ".new", "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path + ".new", path)
            return lambda: None

    return save


def main(how: str, folder: str, mib: int, rounds: int) -> None:
    torch.set_num_threads(1)
    os.makedirs(folder, exist_ok=True)
    state = {"x": {str(number): torch.rand(4 << 20) for number in range(mib // 16)}}
    save, work = saver(how, folder, state), torch.rand(256, 256)
    for _ in range(rounds + 1):
        began = time.monotonic()
        wait = save()
        stood_s = time.monotonic() - began
        steps, until = 0, time.monotonic() + 0.5
        while time.monotonic() < until:
            work = (work @ work).clamp(0, 1)
            steps += 1
        wait()
        whole_s = time.monotonic() - began
        line = {"stood_s": stood_s, "whole_s": whole_s, "step_ms": 500 / steps}
        print(json.dumps(line), flush=True)


main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
