"""Checkpoints that parameter servers have made, in plain PyTorch."""

from __future__ import annotations

import os
from typing import Any

import torch

from ciranda import _C
from ciranda.errors import InvalidArgumentError


def load_checkpoint(
    path: str | os.PathLike[str],
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> dict[str, dict[str, Any]]:
    """Reads a checkpoint that parameter servers have made, of any number of them, in any process.

    path: a checkpoint's folder, or that of `--checkpoint-dir`: then the newest that is whole.
    model, optimizer: plain ones, which are given its parameters and its state; an optimizer needs
    the model, whose parameters have the names that DistributedOptimizer was told. Buffers, which
    servers do not hold, stay.

    Returns what torch.save() takes: `model`, the parameters by name, and `optimizer`, the state of
    each by the same names. Blocks for the disk. InvalidArgumentError where there is none, or where
    names or shapes are others; a damaged file is named in a CirandaError.
    """
    saved = _C.read_checkpoint(os.path.abspath(path))
    values = {name: value for name, value, _ in saved}
    states = {name: state for name, _, state in saved}
    if model is not None:
        _load_model(values, model)
    if optimizer is not None:
        if model is None:
            raise InvalidArgumentError(
                "load_checkpoint: an optimizer needs the model, which has its parameters' names"
            )
        _load_optimizer(states, model, optimizer)
    return {"model": values, "optimizer": states}


def _load_model(values: dict[str, torch.Tensor], model: torch.nn.Module) -> None:
    own = dict(model.named_parameters())
    for name, value in values.items():
        if name not in own:
            raise InvalidArgumentError(f"load_checkpoint: the model has no parameter '{name}'")
        if own[name].shape != value.shape:
            raise InvalidArgumentError(
                f"load_checkpoint: parameter '{name}' is {tuple(own[name].shape)} in the model and "
                f"{tuple(value.shape)} in the checkpoint"
            )
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)


def _load_optimizer(
    states: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    content = optimizer.state_dict()
    named = ((i, name_of.get(id(parameter), "")) for i, parameter in enumerate(order))
    content["state"] = {i: states[name] for i, name in named if states.get(name)}
    optimizer.load_state_dict(content)
