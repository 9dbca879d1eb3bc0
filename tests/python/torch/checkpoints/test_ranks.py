"""Checkpoints of several ranks: breaks when a share of the bytes is missing, when ranks wait for
each other for ever, or when only some of them raise."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

import torch
from disks import needs_root
from ranks import run_ranks, values_of

import ciranda.torch as hvd
from ciranda.torch.checkpoints.folder import name_of
from ciranda.torch.checkpoints.writer import HostBuffer


def trained(steps: int) -> dict[str, Any]:
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(50, 40), torch.nn.BatchNorm1d(40)).double()
    model[1].weight.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters()), model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    sampler = hvd.data.DistributedSampler(range(100), seed=5)
    state = {"model": model, "optimizer": optimizer, "sampler": sampler, "rate": 0.5}
    for _ in range(steps):
        step(state)
    return state


def step(state: dict[str, Any]) -> None:
    state["optimizer"].zero_grad()
    state["model"](torch.randn(4, 50).double()).square().mean().backward()
    state["optimizer"].step()
    state["sampler"].advance(4)


def numbers(state: dict[str, Any]) -> list[float]:
    parameters = torch.nn.utils.parameters_to_vector(state["model"].parameters())
    first = next(iter(state["optimizer"].state_dict()["state"].values()))
    return [*parameters.tolist(), *first["exp_avg"].flatten().tolist()]


def said_by(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def save(folder: str) -> dict[str, Any]:
    """On three ranks."""
    hvd.init()
    state = trained(steps=2)
    checkpoints = hvd.Checkpoints(folder, every_steps=2, keep=9)
    begun = []
    for _ in range(4):
        step(state)
        begun.append(checkpoints.step(state))
        checkpoints.wait()
    share = checkpoints._buffer._tensor.numel()
    found = {"begun": begun, "numbers": numbers(state), "share": share}

    # What goes wrong on one rank is raised by all, and the next checkpoint works.
    other = {**state, "rate": print} if hvd.rank() == 1 else state
    found["refused"] = said_by(lambda: checkpoints.save(other))
    other = {**state, "more": torch.zeros(3)} if hvd.rank() == 2 else state
    found["mismatch"] = said_by(lambda: checkpoints.save(other))
    if hvd.rank() == 2:
        fill, HostBuffer.fill = HostBuffer.fill, lambda *_: memoryview(b"")  # type: ignore[method-assign, assignment]
        write = checkpoints._folder.write
        checkpoints._folder.write = broken_write  # type: ignore[method-assign]
    checkpoints.save(state)
    found["failed"] = said_by(checkpoints.wait)
    if hvd.rank() == 2:
        HostBuffer.fill = fill  # type: ignore[method-assign]
        checkpoints._folder.write = write  # type: ignore[method-assign]
    checkpoints.save(state)
    found["closed"] = said_by(checkpoints.close)
    found["drawn"] = torch.rand(3).tolist()
    settings = hvd.Checkpoints(folder, every_steps=1 + hvd.rank())
    found["settings"] = said_by(lambda: settings.step(state))
    return found


def broken_write(*_: Any) -> None:
    raise OSError("the cable is out")


def restore(folder: str) -> dict[str, Any]:
    """On two ranks, and on three."""
    hvd.init()
    state = trained(steps=1)
    checkpoints = hvd.Checkpoints(folder)
    number = checkpoints.restore(state)
    found = {
        "step": number,
        "numbers": numbers(state),
        "sampler": state["sampler"].state_dict(),
        "drawn": torch.rand(3).tolist(),
        "mean": state["model"][1].running_mean.tolist(),
    }
    step(state)
    if hvd.rank() == 1:
        state["rate"] = torch.zeros(2)
        state["optimizer"] = torch.optim.SGD([torch.zeros(1)])
    found["misfit"] = said_by(lambda: checkpoints.restore(state))
    return found


def test_shares_of_three_ranks_are_read_by_two_and_by_three(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    saved = values_of(run_ranks(save, 3, args=[folder]))
    first = saved[0]
    whole = sum(each["share"] for each in saved)
    for rank, each in enumerate(saved):
        assert each["begun"] == [False, True, False, True]
        assert each["numbers"] == first["numbers"]
        assert abs(each["share"] - whole / 3) <= 2, "shares are equal"
        assert "'rate' is a function" in each["refused"]
        assert rank == 1 or "(on rank 1)" in each["refused"]
        assert "rank 2 has 'more' (torch.float32, (3,)) where rank 0 has" in each["mismatch"]
        assert "the checkpoint of step 4 failed on rank 2" in each["failed"]
        assert "the cable is out" in each["failed"]
        assert each["closed"] == ""
        assert "rank 1 has path, every_steps, every_s, keep" in each["settings"]
    assert sorted(os.listdir(folder)) == ["owner", name_of(2), name_of(4)]
    plain = torch.load(Path(folder) / name_of(4), weights_only=True)
    model = trained_alone()
    model.load_state_dict(plain["model"])
    assert (
        torch.nn.utils.parameters_to_vector(model.parameters()).tolist()
        == first["numbers"][: sum(each.numel() for each in model.parameters())]
    )
    for size in (2, 3):
        found = values_of(run_ranks(restore, size, args=[folder]))
        for rank, each in enumerate(found):
            assert each["step"] == 4 and each["numbers"] == first["numbers"]
            assert each["sampler"] == plain["sampler"]
            assert each["mean"] == plain["model"]["1.running_mean"].tolist()
            assert "has groups of [1] parameters" in each["misfit"]
            assert rank == 1 or "(rank 1 on host" in each["misfit"]
            if size == 3:
                assert each["drawn"] == saved[rank]["drawn"]


def trained_alone() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(50, 40), torch.nn.BatchNorm1d(40)).double()


def save_where_rank_1_sees_another(folder: str) -> list[str]:
    hvd.init()
    if hvd.rank() == 1:
        assert ctypes.CDLL(None).unshare(0x00020000) == 0  # CLONE_NEWNS
        for command in (["--make-rprivate", "/"], ["-t", "tmpfs", "none", folder]):
            subprocess.run(["mount", *command], check=True)
    state = {"x": torch.ones(3)}
    checkpoints = hvd.Checkpoints(folder, every_steps=1)
    return [said_by(lambda: checkpoints.restore(state)), said_by(lambda: checkpoints.step(state))]


@needs_root
def test_a_folder_that_only_some_ranks_see_is_named(tmp_path: Path) -> None:
    folder = str(tmp_path)
    with hvd.Checkpoints(folder) as checkpoints:
        checkpoints.save({"x": torch.zeros(3)})
    for restored, stepped in values_of(run_ranks(save_where_rank_1_sees_another, 2, args=[folder])):
        assert name_of(0) in restored and "rank 1 on host" in restored
        assert "rank 1 on host" in stepped and f"does not see the folder {folder}" in stepped


def test_rank_0_writes_alone_where_files_have_no_places(tmp_path: Path) -> None:
    found = values_of(run_ranks(save, 3, args=[f"local://{tmp_path}/run"]))
    assert [each["closed"] for each in found] == [""] * 3
    assert [each["share"] > 0 for each in found] == [True, False, False]
