"""The optimizer's step, shared out over the ranks of a host: for which optimizers, by what rule."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

import torch

from ciranda import _C
from ciranda.torch.compressed_reducer import NamedParameters
from ciranda.torch.compression import native_of

ShardStep = Literal["auto", "host", False]

_log = logging.getLogger(__name__)

AUTO_PARAMETERS_MIN = _C.AUTO_PARAMETERS_MIN


def _sgd(group: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": _C.RuleKind.sgd,
        "momentum": group["momentum"],
        "dampening": group["dampening"],
        "nesterov": group["nesterov"],
    }


def _adam(group: dict[str, Any]) -> dict[str, Any]:
    decoupled = group.get("decoupled_weight_decay", False)
    return {
        "kind": _C.RuleKind.adamw if decoupled else _C.RuleKind.adam,
        "beta1": group["betas"][0],
        "beta2": group["betas"][1],
        "eps": group["eps"],
        "amsgrad": group["amsgrad"],
    }


def _adamw(group: dict[str, Any]) -> dict[str, Any]:
    return {**_adam(group), "kind": _C.RuleKind.adamw}


def _adagrad(group: dict[str, Any]) -> dict[str, Any]:
    names = ("lr_decay", "eps", "initial_accumulator_value")
    return {"kind": _C.RuleKind.adagrad, **{name: group[name] for name in names}}


def _rmsprop(group: dict[str, Any]) -> dict[str, Any]:
    names = ("alpha", "eps", "momentum", "centered")
    return {"kind": _C.RuleKind.rmsprop, **{name: group[name] for name in names}}


_RULES: dict[type, Callable[[dict[str, Any]], dict[str, Any]]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
    torch.optim.Adagrad: _adagrad,
    torch.optim.RMSprop: _rmsprop,
}


def rule_values(inner_class: type, group: dict[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of a group as plain values: a learning rate may be a tensor."""
    values = _RULES[inner_class](group)
    values |= {name: group[name] for name in ("lr", "weight_decay", "maximize")}
    return {
        name: float(value) if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }


def update_rule(values: dict[str, Any]) -> Any:
    """The rule by which the ranks update the parameters of a group."""
    rule = _C.UpdateRule(values["kind"])
    for name, value in values.items():
        if name != "kind":
            setattr(rule, name, value)
    return rule


def obstacle(optimizer: torch.optim.Optimizer, compression: Any) -> str | None:
    """What the optimizer has against sharing its step, as the rest of a sentence."""
    inner_class = type(optimizer)
    if inner_class not in _RULES:
        known = ", ".join(known.__name__ for known in _RULES)
        return f"{inner_class.__name__} is none of {known}"
    if native_of(compression) is None:
        return "a compressor in Python sees the gradients"
    for group in optimizer.param_groups:
        for option in ("differentiable", "capturable"):
            if group.get(option):
                return f"the optimizer is {option}"
    return None


def decide(
    shard_step: ShardStep,
    optimizer: torch.optim.Optimizer,
    named: NamedParameters,
    compression: Any,
    share_parameters: bool,
) -> bool:
    """Whether to share the step out; a ValueError if it must be and cannot."""
    if shard_step is False:
        if share_parameters:
            raise ValueError(
                "DistributedOptimizer: share_parameters=True needs a shared step; pass "
                "shard_step='auto' or 'host'"
            )
        return False
    if shard_step not in ("auto", "host"):
        raise ValueError(
            f"DistributedOptimizer: shard_step must be 'auto', 'host' or False, not {shard_step!r}"
        )
    demanded_by = None
    if shard_step == "host":
        demanded_by = "shard_step='host'"
    elif share_parameters:
        demanded_by = "share_parameters=True"
    why = _C.why_not_shared(
        demanded_by, obstacle(optimizer, compression), named, AUTO_PARAMETERS_MIN
    )
    _log.debug("DistributedOptimizer: the step is %s", f"not sharded: {why}" if why else "sharded")
    return why is None


class HostStep:
    """The Python side of a shared step: rules in, state out."""

    def __init__(self, optimizer: torch.optim.Optimizer, inner_class: type, reducer: Any) -> None:
        self._optimizer = optimizer
        self._inner_class = inner_class
        self._reducer = reducer
        self._parameters: list[torch.Tensor] = []
        self._rules: dict[int, dict[str, Any]] = {}

    def add_parameters(self, named: NamedParameters) -> None:
        """To the reducer. Their state, if any, goes along."""
        self._reducer.add_parameters(named, self._rules_of(named))
        first = len(self._parameters)
        self._parameters += [parameter for _, parameter in named]
        self.adopt_state(first)

    def _rules_of(self, named: NamedParameters) -> list[int]:
        """The number of each parameter's group."""
        group_of = {
            id(parameter): number
            for number, group in enumerate(self._optimizer.param_groups)
            for parameter in group["params"]
        }
        return [group_of[id(parameter)] for _, parameter in named]

    def adopt_state(self, first: int = 0) -> None:
        """The state that the optimizer holds now is the state of all ranks of the host."""
        state = self._optimizer.state
        for position in range(first, len(self._parameters)):
            held = state.get(self._parameters[position], {})
            pairs = [
                (name, torch.as_tensor(value, device="cpu"))
                for name, value in held.items()
                if value is not None
            ]
            self._reducer.adopt_state(position, pairs)
            self._show_state(position)

    def run(self, gradient_scale: float, reduce: bool, max_norm: float) -> None:
        for number, group in enumerate(self._optimizer.param_groups):
            values = rule_values(self._inner_class, group)
            if self._rules.get(number) != values:
                self._reducer.set_rule(number, update_rule(values))
                self._rules[number] = values
        for position in self._reducer.step(gradient_scale, reduce, max_norm):
            self._show_state(position)

    def _show_state(self, position: int) -> None:
        shared = self._reducer.state(position)
        if shared:
            self._optimizer.state[self._parameters[position]] = dict(shared)
