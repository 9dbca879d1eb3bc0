"""DistributedOptimizer in a job with parameter servers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from ciranda import _C
from ciranda.errors import InvalidArgumentError, UnsupportedError
from ciranda.torch.compressed_reducer import NamedParameters
from ciranda.torch.compression import Compression
from ciranda.torch.optimizer_classes import (
    Distributed,
    begin,
    distributed_class,
    numbers_of_groups,
)
from ciranda.torch.ps import EASGD, Async, Downpour, Mode, embedding, layer
from ciranda.torch.ps.stand_in import NOTHING, StandIn
from ciranda.torch.ps.tasks import refuse_in_task
from ciranda.torch.shared_step import SharedStep, State, obstacle


class ServerStep(SharedStep):
    """A shared step that the servers make."""

    def __init__(
        self, inner_class: type, maker: Any, nothing: torch.Tensor | None, max_norm: float
    ) -> None:
        super().__init__(inner_class, maker)
        self._nothing = nothing
        self._max_norm = max_norm

    def run(
        self, groups: list[dict[str, Any]], gradient_scale: float, reduce: bool, objection: str
    ) -> str:
        """Makes the step; the norm includes the gradients of tables of rows. Always returns ""."""
        self.set_rules(groups)
        if self._max_norm:
            self._maker.add_squares(embedding.squares() * gradient_scale**2)
        self._maker.step(gradient_scale, self._max_norm, objection)
        return ""

    def copied_state(self) -> State:
        """Returns a copy of the state, as torch's optimizer would hold it."""
        state = super().copied_state()
        if self._nothing is not None:
            state.pop(self._nothing, None)
        return state


class _OnServers(Distributed):
    """An optimizer of parameters that servers hold: those that it had when it was made."""

    _ciranda_hidden: list[tuple[StandIn, torch.Tensor | None]]

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Makes the optimizer's step and the step of tables of rows (ps.Embedding)."""
        if closure is None:
            layer.refuse_changes()
        if self._ciranda_max_norm:
            self._require_all("max_grad_norm clips")
        try:
            result = super().step(closure, *args, **kwargs)
        finally:
            for stand_in, gradient in self._ciranda_hidden:
                stand_in.grad = gradient
            self._ciranda_hidden = []
        layer.refuse_changes()
        # torch's GradScaler sets these for a fused optimizer.
        found_inf, grad_scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is None or not float(found_inf):
            scale = 1.0 if grad_scale is None else 1.0 / float(grad_scale)
            embedding.push_all(scale * self._clip_coefficient())
        layer.end_step()
        return result

    def _clip_coefficient(self) -> float:
        """Returns the factor by which the servers have clipped; 1 if torch has clipped."""
        return 1.0

    def _require_all(self, what: str) -> None:
        unknown = embedding.not_among(self._ciranda_parameters)
        if unknown is not None:
            raise InvalidArgumentError(
                f"Embedding '{unknown.name}': {what} the gradients of the optimizer's "
                "parameters, but its weight is not one of them; give the optimizer the "
                "parameters() of the model that it is in"
            )

    def _before_scaled_step(self) -> None:
        layer.refuse_scaled()
        self._require_all("GradScaler unscales")
        super()._before_scaled_step()

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Does what the optimizer's own zero_grad() does, also for tables of rows."""
        layer.refuse_zeros()
        embedding.forget_all()
        super().zero_grad(*args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    step.hooked = True  # type: ignore[attr-defined]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises UnsupportedError: servers take no further parameters."""
        self._add_parameters([])

    def _add_parameters(self, added: NamedParameters) -> None:
        raise UnsupportedError(
            "DistributedOptimizer: parameter servers hold the parameters that the optimizer had "
            "when DistributedOptimizer was made; give it all parameters before that"
        )


class _Served(_OnServers):
    """The servers make the optimizer's step and hold its state."""

    @property
    def state(self) -> Any:
        """Raises InvalidArgumentError: servers hold the state, and state_dict() fetches a copy."""
        if self._ciranda_shared_step is not None:
            raise InvalidArgumentError(
                "DistributedOptimizer: the parameter servers hold the optimizer's state; "
                "state_dict() fetches a copy of it"
            )
        return vars(self)["state"]

    def why_not_shared(self) -> str:
        """Returns "": the servers make the step for all."""
        return ""

    def _clip_coefficient(self) -> float:
        most = self._ciranda_max_norm
        coefficient = most / (float(self._ciranda_norm) + 1e-6) if most else 1.0
        return 1.0 if coefficient > 1.0 else coefficient  # keeps NaN

    def load_state_dict(self, state_dict: Any) -> None:
        """Raises UnsupportedError: servers cannot take state over yet."""
        raise UnsupportedError(
            "DistributedOptimizer: parameter servers hold the optimizer's state and cannot load "
            "one yet; start with a new optimizer, or train with the ring"
        )


class _Pushes(_OnServers):
    """The worker makes the optimizer's step; the servers add up the changes."""

    _ciranda_differences: Any
    _ciranda_pushed: list[int]  # ids of the parameters; empty if rates are not needed

    def why_not_shared(self) -> str:
        """Returns why the servers do not make the step."""
        return "each worker makes its own step"

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Makes the optimizer's own step; the parameters are the servers' afterwards.

        With EASGD they are this worker's own, and move towards the servers' every `period` steps.
        """
        self._ciranda_differences.begin()
        result = super().step(closure, *args, **kwargs)
        self._ciranda_differences.push(self._ciranda_rates())
        return result

    def _ciranda_rates(self) -> list[float]:
        """Returns the learning rate of each parameter, in the order in which they were added.

        Returns an empty list if rates are not needed, since an optimizer may have none.
        """
        if not self._ciranda_pushed:
            return []
        groups: Any = self.param_groups  # type: ignore[attr-defined]
        rate_of = {id(p): float(group["lr"]) for group in groups for p in group["params"]}
        return [rate_of.get(each, 0.0) for each in self._ciranda_pushed]

    def _clip(self) -> None:
        super()._clip()
        layer.refuse_changes()
        self._ciranda_hidden = [
            (each, each.grad) for each in self._ciranda_parameters if isinstance(each, StandIn)
        ]
        for each, _ in self._ciranda_hidden:
            each.grad = None  # the optimizer's own step must not see it

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    step.hooked = True  # type: ignore[attr-defined]


def distribute(
    optimizer: torch.optim.Optimizer,
    named: NamedParameters,
    mode: Mode,
    max_grad_norm: float | None,
) -> Any:
    """Makes `optimizer` push to the servers. Blocks until they have its parameters."""
    refuse_in_task("DistributedOptimizer")
    if not isinstance(mode, Mode):
        raise InvalidArgumentError(
            "DistributedOptimizer: ps must be a mode: ps.Async(), ps.SSP(staleness), ps.Sync(), "
            f"ps.Downpour(n_push, n_fetch) or ps.EASGD(rho, period), not {mode!r}"
        )
    if not isinstance(mode, Async) or mode.policy != "apply":
        layer.refuse_all(
            "its pushes take effect at once, which only ps.Async() without a policy allows"
        )
    if max_grad_norm is not None:
        layer.refuse_all(
            "its gradients are pushed before the norm of all gradients is known; leave out "
            "max_grad_norm"
        )
    trained = [pair for pair in named if not isinstance(pair[1], StandIn)]
    holds_elsewhere = len(trained) < len(named)
    empty = not any(parameter.numel() for _, parameter in trained)
    nothing = torch.nn.Parameter(torch.zeros(1)) if empty else None
    if nothing is not None:
        trained.append((NOTHING, nothing))
    inner_class: Any = type(optimizer)
    distributed: Any = optimizer
    shared_step, pushes = None, None
    elastic = mode if isinstance(mode, EASGD) else None
    if not isinstance(mode, EASGD) and (isinstance(mode, Downpour) or mode.update_on == "server"):
        problem = obstacle(inner_class, optimizer.param_groups, [], Compression.none)
        if problem:
            raise InvalidArgumentError(
                f"DistributedOptimizer: parameter servers cannot make the step, because {problem}; "
                "choose a mode with update_on='worker'"
            )
        downpour = mode if isinstance(mode, Downpour) else None
        maker = _C.PsStep(
            mode=mode._native(),
            ahead=isinstance(mode, Async) and mode.ahead == 1,
            force=mode.force,
            push_every=downpour.n_push if downpour else 0,
            fetch_every=downpour.n_fetch if downpour else 0,
        )
        shared_step = ServerStep(inner_class, maker, nothing, max_grad_norm or 0.0)
        first, *others = optimizer.param_groups
        if nothing is not None:
            first = {**first, "params": [*first["params"], nothing]}
        shared_step.set_rules(optimizer.param_groups)
        maker.add_parameters(trained, numbers_of_groups(trained, [first, *others]))
        shared_step.add_state(trained, optimizer.state)
        optimizer.state = defaultdict(dict)
    else:
        if holds_elsewhere and isinstance(optimizer, torch.optim.LBFGS):
            raise InvalidArgumentError(
                "DistributedOptimizer: LBFGS makes one vector of all gradients, and those of a "
                "ps.Embedding or ps.Layer are not here; give it the model's other parameters"
            )
        pushes = _C.PsDifferences(
            mode=mode._native(),
            rho=elastic.rho if elastic else 0.0,
            period=elastic.period if elastic else 0,
        )
        pushes.add_parameters(trained)
        for _, parameter in named:
            if isinstance(parameter, StandIn):
                optimizer.state.pop(parameter, None)  # torch's Adagrad has it from the start
        distributed._ciranda_pushed = [id(parameter) for _, parameter in trained] if elastic else []
    layer.begin_all()
    distributed._ciranda_hidden = []
    distributed._ciranda_differences = pushes
    distributed._ciranda_shared_step = shared_step
    begin(optimizer, named, max_grad_norm)
    base = _Pushes if shared_step is None else _Served
    optimizer.__class__ = distributed_class(inner_class, base)
    return distributed
