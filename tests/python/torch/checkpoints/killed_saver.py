"""A program that saves without a pause until it is killed. It checks what it finds."""

from __future__ import annotations

import sys

import torch

import ciranda.torch as hvd


def main(folder: str, size: int) -> None:
    state = {"x": torch.zeros(size), "y": torch.zeros(7), "n": 0}
    checkpoints = hvd.Checkpoints(folder, every_steps=1, keep=2)
    restored = checkpoints.restore(state) or 0
    assert state["n"] == restored
    for tensor in (state["x"], state["y"]):
        assert bool((tensor == restored).all()), "a torn checkpoint was loaded"
    print(restored, flush=True)
    for number in range(restored + 1, restored + 100_000):
        state["x"].fill_(number)
        state["y"].fill_(number)
        state["n"] = number
        checkpoints.step(state)
        checkpoints.wait()


main(sys.argv[1], int(sys.argv[2]))
