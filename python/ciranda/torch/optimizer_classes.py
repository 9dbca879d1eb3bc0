"""The subclasses of the user's optimizer class that DistributedOptimizer uses."""

from __future__ import annotations

import functools
import itertools
import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch._compile import _disable_dynamo
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ciranda import _C
from ciranda.torch.compressed_reducer import NamedParameters
from ciranda.torch.shared_step import SharedStep, State, obstacle_of_groups


@_disable_dynamo
def _outside_of_graphs(step: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `step` as without torch.compile.

    While dynamo traces, every Adam is capturable, which prevents a shared step, and a graph cannot
    hold calls of the engine.
    """
    return step(*arguments)


class Distributed:
    """The methods that DistributedOptimizer adds to the user's optimizer class."""

    _ciranda_skip_synchronize: bool
    _ciranda_synchronized: bool  # synchronize() was called since the latest step
    _ciranda_shared_step: SharedStep | None  # None: each rank makes its own step
    _ciranda_objection: str  # this rank's objection to the next shared step, or ""
    _ciranda_parameters: list[torch.Tensor]  # of all groups, as last seen
    _ciranda_max_norm: float  # 0: no clipping
    _ciranda_norm: Any  # of the latest step's gradients, before clipping; a tensor on a GPU
    _ciranda_inner_class: Any  # the user's class
    _ciranda_guard: Any = None  # in a block of an elastic training; see elastic/steps.py
    # Each rank steps with its own gradients: its state is its own, and its parameters change before
    # the step's last collective.
    _ciranda_steps_by_itself = False
    _parameter_names: dict[torch.Tensor, str]

    def why_not_shared(self) -> str:
        """Returns why the ranks do not share the step, as the rest of a sentence; "" if they do."""
        raise NotImplementedError

    @property
    def grad_norm(self) -> float:
        """The norm of the latest step's gradients before clipping, with max_grad_norm.

        It is 0 before the first step. Waits for a GPU that has not computed it yet.
        """
        return float(self._ciranda_norm)

    def _shares_state(self) -> bool:
        return self._ciranda_shared_step is not None and not self._ciranda_objection

    def _own_state(self, state: Any) -> None:
        vars(self)["state"] = state
        self._ciranda_objection = "optimizer.state was used"

    @contextmanager
    def _state_of_torch(self) -> Iterator[None]:
        """Within the context, torch's methods find copies of the shared state in `state`."""
        shared_step, own = self._ciranda_shared_step, vars(self)["state"]
        shared = self._shares_state()
        if shared:
            vars(self)["state"] = cast(SharedStep, shared_step).copied_state()
            self._ciranda_shared_step = None
        try:
            yield
        finally:
            if shared:
                self._ciranda_shared_step = shared_step
                vars(self)["state"] = own

    def state_dict(self) -> Any:
        """Returns the optimizer's own state_dict(); with a shared step its tensors are copies."""
        with self._state_of_torch():
            return super().state_dict()  # type: ignore[misc]

    def load_state_dict(self, state_dict: Any) -> None:
        """Does what the optimizer's own load_state_dict() does.

        With a shared step, load the same state on every rank, or on one rank before
        broadcast_optimizer_state().
        """
        loaded: State = {}
        with self._state_of_torch():
            super().load_state_dict(state_dict)  # type: ignore[misc]
            loaded = vars(self)["state"]
        if self._shares_state():
            cast(SharedStep, self._ciranda_shared_step).adopt_state(loaded)

    def synchronize(self) -> None:
        """Blocks until every p.grad holds the reduced gradient; call it on every rank.

        Rarely needed: the backward_passes_per_step-th backward() has reduced them, and step()
        reduces what is left. It may be called repeatedly.
        """
        self._reduce()
        self._ciranda_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within the context, step() uses p.grad as it is, which synchronize() has reduced."""
        self._ciranda_skip_synchronize = True
        try:
            yield
        finally:
            self._ciranda_skip_synchronize = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes after which backward() reduces the added gradients."""
        if passes < 1:
            raise ValueError("backward_passes_per_step must be at least 1")
        self._set_backward_passes(passes)

    # OverRanks overrides these, for what training with other ranks adds to the optimizer's step.

    def _set_backward_passes(self, passes: int) -> None:
        pass

    def _reduce(self) -> None:
        """Reduces what backward() has not reduced."""

    def _finish_gradients(self) -> None:
        """Makes later backward passes belong to the next step."""

    def _discard_gradients(self) -> None:
        """Forgets the gradients that backward passes have added up for this step."""

    def _begin_step(self) -> None:
        pass

    def _end_step(self) -> None:
        pass

    def _loss_of_all(self, loss: Any) -> Any:
        return loss

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Calls synchronize(), then makes the optimizer's own step() or the shared step."""
        guard = self._ciranda_guard
        if guard is not None and not guard.is_in_step:
            return guard.step(self, closure, args, kwargs)  # which calls this method again
        self._find_new_parameters()
        if self._ciranda_synchronized:
            self._note_synchronized()
        self._begin_step()
        if self._ciranda_shared_step is not None:
            shared_step = self._hooked_shared_step if self._is_watched() else self._shared_step
            arguments = () if closure is None else (closure,)
            if torch.compiler.is_dynamo_compiling():
                result = _outside_of_graphs(shared_step, *arguments)
            else:
                result = shared_step(*arguments)
        else:
            result = self._own_step(closure, *args, **kwargs)
        if guard is None:
            self._end_step()
        else:
            guard.end(self)
        return result

    def _own_step(self, closure: Callable[[], Any] | None, *args: Any, **kwargs: Any) -> Any:
        """Makes the optimizer's own step on reduced gradients."""
        inner = super().step  # type: ignore[misc]
        self._opt_called = True  # learning-rate schedulers check it
        arguments = args
        if closure is None:
            if not self._ciranda_skip_synchronize:
                self._reduce()
            self._ready_gradients()
        else:
            user_closure = closure

            def reduced_closure() -> Any:
                self._finish_gradients()  # the closure computes new gradients
                with torch.enable_grad():
                    loss = user_closure()
                self._reduce()
                self._ready_gradients()
                return self._loss_of_all(loss)

            arguments = (reduced_closure, *args)
        _C.begin_rank_step()
        try:
            result = inner(*arguments, **kwargs)
        finally:
            _C.end_rank_step()
        self._finish_gradients()
        return result

    def _ready_gradients(self) -> None:
        """Gives the reduced gradients the form that the optimizer's own step takes."""
        self._clip()
        if isinstance(self, torch.optim.SparseAdam):  # takes no dense ones
            for parameter in (p for group in self.param_groups for p in group["params"]):
                if parameter.grad is not None and parameter.grad.layout is torch.strided:
                    parameter.grad = parameter.grad.to_sparse(1)

    def _note_synchronized(self) -> None:
        self._ciranda_synchronized = False
        if not self._ciranda_skip_synchronize:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after "
                "optimizer.synchronize(): gradients that a rank edited in between may be averaged "
                "over the ranks again; put the call into `with optimizer.skip_synchronize():`",
                stacklevel=3,
            )

    def _is_watched(self) -> bool:
        """Returns True if a profiler or hook needs torch's wrapper of step(), which costs 5 us."""
        return bool(
            torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
            or self._optimizer_step_pre_hooks  # type: ignore[attr-defined]
            or self._optimizer_step_post_hooks  # type: ignore[attr-defined]
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Reduces what backward() has not reduced, before torch's GradScaler looks for inf.

        GradScaler.step() reads this property before it looks at the gradients. All ranks must see
        the same gradients and decide alike.
        """
        self._before_scaled_step()
        return bool(vars(self).get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        vars(self)["_step_supports_amp_scaling"] = value

    def _before_scaled_step(self) -> None:
        self._reduce()

    # Schedulers need not wrap step(), and the step hooks run in the inner step.
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    step.hooked = True  # type: ignore[attr-defined]

    def _clip(self) -> None:
        if not self._ciranda_max_norm:
            return
        groups = self.param_groups  # type: ignore[attr-defined]
        parameters = [parameter for group in groups for parameter in group["params"]]
        norm = torch.nn.utils.get_total_norm(
            [parameter.grad for parameter in parameters if parameter.grad is not None]
        )
        # The scale that torch's GradScaler leaves to a fused step.
        scale = getattr(self, "grad_scale", None)
        self._ciranda_norm = norm if scale is None else norm / scale
        torch.nn.utils.clip_grads_with_norm_(parameters, self._ciranda_max_norm, self._ciranda_norm)

    @torch.no_grad()
    def _shared_step(self, closure: Callable[[], Any] | None = None) -> Any:
        with cast(SharedStep, self._ciranda_shared_step) as shared_step:
            return self._step_of_one_thread(shared_step, closure)

    def _step_of_one_thread(
        self, shared_step: SharedStep, closure: Callable[[], Any] | None
    ) -> Any:
        groups = self.param_groups  # type: ignore[attr-defined]
        self._opt_called = True
        loss = None
        if closure is not None:
            self._finish_gradients()  # the closure computes new gradients
            with torch.enable_grad():
                loss = closure()
        # torch's GradScaler sets these for a fused optimizer.
        grad_scale = getattr(self, "grad_scale", None)
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None or not float(found_inf):
            scale = 1.0 if grad_scale is None else 1.0 / float(grad_scale)
            why_not = shared_step.run(
                groups,
                scale,
                not self._ciranda_skip_synchronize,
                self._ciranda_objection or obstacle_of_groups(groups) or "",
            )
            if why_not:
                self._end_shared_step(why_not)
                self._clip()
                inner = self._ciranda_inner_class.step
                getattr(inner, "__wrapped__", inner)(self)  # the wrapper's hooks have run already
            elif self._ciranda_max_norm:
                self._ciranda_norm = shared_step.norm()
        self._finish_gradients()
        return loss

    def _end_shared_step(self, why: str) -> None:
        """Gives each rank its own state and step, after all ranks have agreed on that."""
        shared_step = cast(SharedStep, self._ciranda_shared_step)
        if self._shares_state():
            vars(self)["state"] = shared_step.copied_state()
        self._ciranda_shared_step = None
        shared_step.end(why)
        warnings.warn(
            f"DistributedOptimizer: the ranks do not share the step any more, because {why}. "
            "Training goes on as with shared_step=False: each rank makes the whole step, with its "
            "own copy of the state.",
            stacklevel=6,
        )

    _hooked_shared_step = torch.optim.Optimizer.profile_hook_step(_shared_step)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Does what the optimizer's own zero_grad() does.

        Also discards the gradients that backward passes have added up for this step.
        """
        self._find_new_parameters(lengths_only=True)
        self._discard_gradients()
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Does what the optimizer's own add_param_group() does; call it on every rank.

        The new parameters' gradients are reduced too.
        """
        super().add_param_group(param_group)  # type: ignore[misc]
        groups = self.param_groups  # type: ignore[attr-defined]
        self._add_parameters(default_names(groups[-1], len(groups) - 1))

    def _add_parameters(self, added: NamedParameters) -> None:
        groups = self.param_groups  # type: ignore[attr-defined]
        self._parameter_names.update({parameter: name for name, parameter in added})
        self._ciranda_parameters = [p for group in groups for p in group["params"]]

    def _find_new_parameters(self, lengths_only: bool = False) -> None:
        """Finds parameters that a program has put into the lists of param_groups.

        With `lengths_only` it compares the lists' lengths alone; step() finds replaced parameters.
        """
        groups = self.param_groups  # type: ignore[attr-defined]
        known = self._ciranda_parameters
        lists = [group["params"] for group in groups]
        if sum(map(len, lists)) == len(known) and (
            lengths_only or all(map(operator.is_, itertools.chain.from_iterable(lists), known))
        ):
            return
        added = [
            pair
            for number, group in enumerate(groups)
            for pair in default_names({**group, "param_names": None}, number)
            if pair[1] not in self._parameter_names
        ]
        if self._ciranda_shared_step is not None and not self._ciranda_objection:
            self._own_state(self._ciranda_shared_step.copied_state())
            self._ciranda_objection = "the parameters of optimizer.param_groups were edited"
        self._add_parameters(added)

    def __reduce__(self) -> Any:
        # Copies and pickles are plain optimizers: a reducer belongs to this process.
        inner_class = self._ciranda_inner_class
        with self._state_of_torch():
            state = self.__getstate__()  # type: ignore[attr-defined]
        return inner_class.__new__, (inner_class,), state


@functools.cache
def distributed_class(inner_class: Any, base: type[Distributed]) -> type:
    return type(inner_class.__name__, (base, inner_class), {"_ciranda_inner_class": inner_class})


def begin(
    optimizer: Any,
    named: NamedParameters,
    max_grad_norm: float | None,
) -> None:
    """Sets the attributes of a Distributed optimizer."""
    if hasattr(vars(optimizer).get("step"), "_wrapped_by_lr_sched"):
        del optimizer.step  # removes a scheduler's wrapper of the inner class's step
    optimizer._ciranda_skip_synchronize = False
    optimizer._ciranda_synchronized = False
    optimizer._ciranda_objection = ""
    optimizer._ciranda_parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer._ciranda_max_norm = max_grad_norm or 0.0
    optimizer._ciranda_norm = 0.0
    optimizer._parameter_names = {parameter: name for name, parameter in named}


def default_names(group: dict[str, Any], number: int) -> NamedParameters:
    names = group.get("param_names") or [
        f"group.{number}.param.{index}" for index in range(len(group["params"]))
    ]
    return list(zip(names, group["params"], strict=True))


def names_of_groups(groups: list[dict[str, Any]]) -> NamedParameters:
    return [pair for number, group in enumerate(groups) for pair in default_names(group, number)]


def numbers_of_groups(named: NamedParameters, groups: list[dict[str, Any]]) -> list[int]:
    """Returns the number of each parameter's group."""
    group_of = {
        id(parameter): number
        for number, group in enumerate(groups)
        for parameter in group["params"]
    }
    return [group_of[id(parameter)] for _, parameter in named]
