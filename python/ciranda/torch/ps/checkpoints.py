"""Loads the checkpoints of parameter servers in plain PyTorch."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import torch

from ciranda import _C
from ciranda.errors import InvalidArgumentError
from ciranda.torch.compression import Compression
from ciranda.torch.ps.stand_in import NOTHING, StandIn
from ciranda.torch.shared_step import obstacle, rule_values


def load_checkpoint(
    path: str | os.PathLike[str],
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    strict: bool = True,
) -> dict[str, dict[str, Any]]:
    """Reads a checkpoint that any number of parameter servers have made, in any process.

    path: a checkpoint's folder; or the folder of `--checkpoint-dir`, for its newest whole
    checkpoint.
    model, optimizer: plain ones, which get the checkpoint's parameters and state. An optimizer
    needs the model. The model's parameters have the names that DistributedOptimizer was given.
    Buffers, which servers do not hold, keep their values.
    strict: with False it loads only the parameters that model and checkpoint both have.

    Returns a dict for torch.save(): `model` has the parameters by name, `optimizer` the state of
    each by the same names. Blocks for the disk. Raises InvalidArgumentError, before anything is
    changed, if there is no checkpoint, or if names, shapes, dtypes or the optimizer differ. Raises
    CirandaError that names a damaged file.
    """
    saved = [each for each in _C.read_checkpoint(os.path.abspath(path)) if each[0] != NOTHING]
    values = {name: value for name, value, _, _ in saved}
    states = {name: state for name, _, state, _ in saved}
    if optimizer is not None and model is None:
        _refuse("give the model too: the names of the optimizer's parameters are in it")
    if model is not None:
        own = {n: p for n, p in model.named_parameters() if not isinstance(p, StandIn)}
        _check_model(values, own, strict)
        if optimizer is not None:
            names = _names_of(optimizer, own)
            _check_optimizer({name: rule for name, _, _, rule in saved}, names, optimizer, strict)
            _load_optimizer(states, names, optimizer)
        with torch.no_grad():
            for name in values.keys() & own.keys():
                own[name].copy_(values[name])
    return {"model": values, "optimizer": states}


def _refuse(why: str) -> NoReturn:
    raise InvalidArgumentError(f"load_checkpoint: {why}")


def _check_model(
    values: dict[str, torch.Tensor], own: dict[str, torch.nn.Parameter], strict: bool
) -> None:
    for name, value in values.items():
        if name not in own:
            if strict:
                _refuse(
                    f"the model has no parameter '{name}' of the checkpoint; strict=False "
                    "ignores it"
                )
            continue
        if own[name].shape != value.shape:
            _refuse(
                f"parameter '{name}' is {tuple(own[name].shape)} in the model and "
                f"{tuple(value.shape)} in the checkpoint"
            )
        if own[name].dtype != value.dtype:
            _refuse(
                f"parameter '{name}' is {own[name].dtype} in the model and {value.dtype} in the "
                "checkpoint; convert the model after it is loaded"
            )
    for name in own:
        if strict and name not in values:
            _refuse(
                f"the checkpoint has no parameter '{name}'; strict=False keeps the model's value"
            )


def _names_of(
    optimizer: torch.optim.Optimizer, own: dict[str, torch.nn.Parameter]
) -> list[list[str]]:
    """Returns the names of each group's parameters; "" for a parameter that is not in the model."""
    name_of = {id(parameter): name for name, parameter in own.items()}
    return [[name_of.get(id(each), "") for each in g["params"]] for g in optimizer.param_groups]


def _check_optimizer(
    rules: dict[str, Any], names: list[list[str]], optimizer: torch.optim.Optimizer, strict: bool
) -> None:
    why = obstacle(type(optimizer), optimizer.param_groups, [], Compression.none)
    if why is not None:
        _refuse(f"servers have no state for the optimizer, because {why}")
    for group, of_group in zip(optimizer.param_groups, names, strict=True):
        wanted = _words(rule_values(type(optimizer), group))
        for name in of_group:
            rule = rules.get(name)
            if rule is None:
                if strict:
                    _refuse(
                        f"the checkpoint has no parameter '{name}' of the optimizer; "
                        "strict=False keeps the state of that parameter"
                    )
                continue
            there = _words({key: getattr(rule, key) for key in _KEEPING} | {"kind": rule.kind})
            if wanted != there:
                _refuse(
                    f"the optimizer of parameter '{name}' is {wanted}, and the checkpoint's is "
                    f"{there} (which with update_on='worker' adds up what workers have changed)"
                )


_KEEPING = ("momentum", "amsgrad", "centered")  # options that need more state
_KEPT_BY = {"sgd": ("momentum",), "rmsprop": ("momentum", "centered")}


def _words(rule: dict[str, Any]) -> str:
    """Returns a rule's kind, with the options that need more state, in words."""
    kind = rule["kind"].name
    keeping = [each for each in _KEPT_BY.get(kind, ("amsgrad",)) if rule.get(each)]
    return " and ".join([kind, *keeping]).replace(" and ", " with ", 1)


def _load_optimizer(
    states: dict[str, Any], names: list[list[str]], optimizer: torch.optim.Optimizer
) -> None:
    content = optimizer.state_dict()
    order = [name for of_group in names for name in of_group]
    for position, name in enumerate(order):
        if name not in states:
            continue
        content["state"].pop(position, None)
        if states[name]:
            content["state"][position] = states[name]
    optimizer.load_state_dict(content)
