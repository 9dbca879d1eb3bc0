"""The Python side of the shared step: which optimizers can share it, and their update rules."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import torch

from ciranda import _C
from ciranda.errors import InvalidArgumentError
from ciranda.torch.compressed_reducer import NamedParameters
from ciranda.torch.compression import native_of
from ciranda.torch.optim import Lion

SharedStepMode = Literal["auto", "host", False]
State = dict[torch.Tensor, dict[str, Any]]  # of an optimizer

AUTO_PARAMETERS_MIN = _C.AUTO_PARAMETERS_MIN


def _options(own: str) -> tuple[str, ...]:
    return ("lr", "weight_decay", "maximize", *own.split())


# The optimizers that can share their step, with the update rule and its options.
_RULES: dict[type, tuple[Any, tuple[str, ...]]] = {
    torch.optim.SGD: (_C.RuleKind.sgd, _options("momentum dampening nesterov")),
    torch.optim.Adam: (_C.RuleKind.adam, _options("betas eps amsgrad")),
    torch.optim.AdamW: (_C.RuleKind.adamw, _options("betas eps amsgrad")),
    torch.optim.Adagrad: (
        _C.RuleKind.adagrad,
        _options("lr_decay eps initial_accumulator_value"),
    ),
    torch.optim.RMSprop: (_C.RuleKind.rmsprop, _options("alpha eps momentum centered")),
    Lion: (_C.RuleKind.lion, _options("betas")),
}


def rule_values(inner_class: type, group: dict[str, Any]) -> dict[str, Any]:
    """Returns a parameter group's hyper-parameters as plain values, also if one is a tensor."""
    kind, options = _RULES[inner_class]
    if group.get("decoupled_weight_decay", False):  # an Adam that decays as AdamW
        kind = _C.RuleKind.adamw
    values = {name: group[name] for name in options}
    if "betas" in values:
        values["beta1"], values["beta2"] = values.pop("betas")
    values["kind"] = kind
    return {
        name: float(value) if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }


def update_rule(values: dict[str, Any]) -> Any:
    """Returns the rule by which the ranks update the parameters of a group."""
    rule = _C.UpdateRule(values["kind"])
    for name, value in values.items():
        if name != "kind":
            setattr(rule, name, value)
    return rule


def obstacle(
    inner_class: type, groups: list[dict[str, Any]], named: NamedParameters, compression: Any
) -> str | None:
    """Returns why the optimizer cannot share its step, as the rest of a sentence, or None."""
    if (name := first_complex(named)) is not None:
        return f"parameter '{name}' is complex"
    if inner_class not in _RULES:
        known = ", ".join(known.__name__ for known in _RULES)
        return f"{inner_class.__name__} is not one of {known}"
    if native_of(compression) is None:
        return "a compressor in Python sees the gradients"
    return obstacle_of_groups(groups)


def obstacle_of_groups(groups: list[dict[str, Any]]) -> str | None:
    for group in groups:
        for option in ("differentiable", "capturable"):
            if group.get(option):
                return f"the optimizer is {option}"
    return None


def first_complex(named: NamedParameters) -> str | None:
    """Returns the name of the first complex parameter: no bucket takes its gradient."""
    return next((name for name, parameter in named if parameter.is_complex()), None)


def pairs_of_state(held: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Returns the state of one parameter as C++ takes it."""
    return [
        (name, torch.as_tensor(value, device="cpu"))
        for name, value in held.items()
        if value is not None
    ]


class SharedStep:
    """The Python side of a step that others make: passes rules in and state out.

    `maker` is the OptimizerCore, or the PsStep of a job with servers. `parameters` are those that
    it has already.
    """

    def __init__(
        self, inner_class: type, maker: Any, parameters: Sequence[torch.Tensor] = ()
    ) -> None:
        self._inner_class = inner_class
        self._maker = maker
        self._parameters = list(parameters)
        self._rules: dict[int, dict[str, Any]] = {}
        self._thread: dict[str, int] = {}  # the thread that is in a step

    def __enter__(self) -> SharedStep:
        """Begins a step. One thread makes it, because its writes reach every rank."""
        own = threading.get_ident()
        if self._thread.setdefault("ident", own) != own:
            raise InvalidArgumentError(
                "DistributedOptimizer: step() was called while another thread of this rank is in "
                "step() of the same optimizer; call it from one thread at a time, in the same "
                "order on every rank"
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.clear()

    def set_rules(self, groups: list[dict[str, Any]]) -> None:
        for number, group in enumerate(groups):
            values = rule_values(self._inner_class, group)
            if self._rules.get(number) != values:
                self._maker.set_rule(number, update_rule(values))
                self._rules[number] = values

    def add_state(self, named: NamedParameters, state: State) -> None:
        """Passes on the state of parameters that were just added to the maker."""
        first = len(self._parameters)
        self._parameters += [parameter for _, parameter in named]
        self.adopt_state(state, first)

    def adopt_state(self, state: State, first: int = 0) -> None:
        """Makes `state` the state of all ranks of the host, from parameter number `first` on."""
        for position in range(first, len(self._parameters)):
            pairs = pairs_of_state(state.get(self._parameters[position], {}))
            self._maker.adopt_state(position, pairs)

    def run(
        self, groups: list[dict[str, Any]], gradient_scale: float, reduce: bool, objection: str
    ) -> str:
        """Makes the step. Returns "", or why the ranks stop sharing, as the rest of a sentence."""
        self.set_rules(groups)
        return str(self._maker.step(gradient_scale, reduce, objection))

    def norm(self) -> float:
        return float(self._maker.norm())

    def copied_state(self) -> State:
        """Returns a copy of the state, as torch's optimizer would hold it."""
        state: State = defaultdict(dict)
        for position, parameter in enumerate(self._parameters):
            held = dict(self._maker.state(position))
            if held:
                state[parameter] = held
        return state

    def end(self, why: str) -> None:
        self._maker.end_shared_step(why)
