"""The subclasses of the user's optimizer class that DistributedOptimizer uses."""

from __future__ import annotations

import functools
import itertools
import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch._compile import _disable_dynamo
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ciranda import _C
from ciranda.torch import ops
from ciranda.torch.buffers import Buffers
from ciranda.torch.compressed_reducer import NamedParameters
from ciranda.torch.plain_tensors import require_plain
from ciranda.torch.process_sets import ProcessSet, number_of
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

    _ciranda_reducer: Any
    _ciranda_name: str  # prefix of its operations' names
    _ciranda_how: Any = None  # Reduction; None with Adasum or servers
    _ciranda_tuner: Any = None  # Tuner, while it runs
    _ciranda_process_set: ProcessSet
    _ciranda_skip_synchronize: bool
    _ciranda_synchronized: bool  # synchronize() was called since the latest step
    _ciranda_shared_step: SharedStep | None  # None: each rank makes its own step
    _ciranda_why_not_shared: str  # the rest of a sentence
    _ciranda_objection: str  # this rank's objection to the next shared step, or ""
    _ciranda_parameters: list[torch.Tensor]  # of all groups, as last seen
    _ciranda_buffers: Buffers | None  # broadcast by each step
    _ciranda_comparison: Any  # RankComparison; None: one rank, or servers
    _ciranda_max_norm: float  # 0: no clipping
    _ciranda_norm: Any  # of the latest step's gradients, before clipping; a tensor on a GPU
    _ciranda_inner_class: Any  # the user's class
    _parameter_names: dict[torch.Tensor, str]

    @property
    def grad_norm(self) -> float:
        """The norm of the latest step's gradients before clipping, with max_grad_norm.

        It is 0 before the first step. Waits for a GPU that has not computed it yet.
        """
        return float(self._ciranda_norm)

    def why_not_shared(self) -> str:
        """Returns why the ranks do not share the step, as the rest of a sentence; "" if they do."""
        return self._ciranda_why_not_shared

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
        self._ciranda_reducer.synchronize()
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
        self._ciranda_reducer.set_backward_passes_per_step(passes)
        if self._ciranda_how is not None:
            self._ciranda_how = replace(self._ciranda_how, backward_passes_per_step=passes)

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Calls synchronize(), then makes the optimizer's own step() or the shared step."""
        reducer = self._ciranda_reducer
        self._find_new_parameters()
        if self._ciranda_synchronized:
            self._note_synchronized()
        reducer.confirm_sharing()
        if self._ciranda_comparison is not None and self._ciranda_comparison.begin_step():
            self._compare_ranks(self._ciranda_comparison)
        if self._ciranda_shared_step is not None:
            shared_step = self._hooked_shared_step if self._is_watched() else self._shared_step
            arguments = () if closure is None else (closure,)
            if torch.compiler.is_dynamo_compiling():
                loss = _outside_of_graphs(shared_step, *arguments)
            else:
                loss = shared_step(*arguments)
            self._end_step()
            return loss
        inner = super().step  # type: ignore[misc]
        self._opt_called = True  # learning-rate schedulers check it
        if closure is not None:
            user_closure = closure

            def reduced_closure() -> Any:
                reducer.finish_step()  # the closure computes new gradients
                with torch.enable_grad():
                    loss = user_closure()
                reducer.synchronize()
                self._clip()
                self._make_sparse()
                return self._loss_of_all(loss)

            arguments = (reduced_closure, *args)
        else:
            if not self._ciranda_skip_synchronize:
                reducer.synchronize()
            self._clip()
            self._make_sparse()
            arguments = args
        _C.begin_rank_step()
        try:
            result = inner(*arguments, **kwargs)
        finally:
            _C.end_rank_step()
        reducer.finish_step()
        self._end_step()
        return result

    def _compare_ranks(self, comparison: _C.RankComparison) -> None:
        inner_class = self._ciranda_inner_class
        way = way_of_steps(inner_class, self.defaults, self.param_groups)  # type: ignore[attr-defined]
        reducer = self._ciranda_reducer
        native = isinstance(reducer, _C.Reducer)
        if not native and not self._ciranda_skip_synchronize:
            reducer.synchronize()  # reduces first: other ranks may still wait in backward()
        if difference := comparison.compare(way, reducer if native else None):
            warnings.warn(f"DistributedOptimizer: {difference}", stacklevel=4)

    def _end_step(self) -> None:
        if self._ciranda_buffers is not None:
            self._broadcast_buffers(self._ciranda_buffers.now())
        if self._ciranda_comparison is not None:
            self._ciranda_comparison.end_step()
        if self._ciranda_tuner is not None:
            self._ciranda_tuner.stepped(self)

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

    def _broadcast_buffers(self, buffers: list[torch.Tensor]) -> None:
        if not buffers:
            return
        process_set = self._ciranda_process_set
        _C.broadcast_tensors(
            buffers,
            process_set.ranks[0],
            f"{self._ciranda_name}/buffers",
            number_of(process_set),
        )

    def _make_sparse(self) -> None:
        """Makes densified gradients sparse again for SparseAdam, which takes no others."""
        if not isinstance(self, torch.optim.SparseAdam):
            return
        for parameter in (p for group in self.param_groups for p in group["params"]):
            if parameter.grad is not None and parameter.grad.layout is torch.strided:
                parameter.grad = parameter.grad.to_sparse(1)

    def _loss_of_all(self, loss: Any) -> Any:
        """Reduces the loss for LBFGS: its search depends on it, and all ranks must decide alike."""
        if not isinstance(self, torch.optim.LBFGS):
            return loss
        return ops.allreduce(
            torch.as_tensor(loss).detach(),
            name=f"{self._ciranda_name}/loss",
            op=self._ciranda_how.op,
            process_set=self._ciranda_process_set,
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
        self._ciranda_reducer.synchronize()

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
            self._ciranda_reducer.finish_step()  # the closure computes new gradients
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
                self._ciranda_max_norm,
                self._ciranda_objection or obstacle_of_groups(groups) or "",
            )
            if why_not:
                self._end_shared_step(why_not)
                self._clip()
                inner = self._ciranda_inner_class.step
                getattr(inner, "__wrapped__", inner)(self)  # the wrapper's hooks have run already
            elif self._ciranda_max_norm:
                self._ciranda_norm = self._ciranda_reducer.norm()
        self._ciranda_reducer.finish_step()
        return loss

    def _end_shared_step(self, why: str) -> None:
        """Gives each rank its own state and step, after all ranks have agreed on that."""
        shared_step = cast(SharedStep, self._ciranda_shared_step)
        if self._shares_state():
            vars(self)["state"] = shared_step.copied_state()
        self._ciranda_shared_step = None
        if type(self) is distributed_class(self._ciranda_inner_class, SharedStepOptimizer):
            self.__class__ = distributed_class(self._ciranda_inner_class, Distributed)
        self._ciranda_why_not_shared = why
        shared_step.end()
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
        self._ciranda_reducer.discard_step()
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
        require_plain("DistributedOptimizer", added)
        why = _C.require_agreement(
            self._ciranda_name,
            "",
            added,
            self._ciranda_why_not_shared,
            number_of(self._ciranda_process_set),
        )
        if why and self._ciranda_shared_step is not None:  # while this rank had joined
            self._end_shared_step(why)
        self._parameter_names.update({parameter: name for name, parameter in added})
        self._ciranda_parameters = [p for group in groups for p in group["params"]]
        if self._ciranda_shared_step is not None:
            self._ciranda_shared_step.add_parameters(added, groups, vars(self)["state"])
        else:
            self._ciranda_reducer.add_parameters(added)
        if self._ciranda_comparison is not None:
            self._ciranda_comparison.add(added)

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


class SharedStepOptimizer(Distributed):
    """A Distributed optimizer while the ranks share its step, and its state in shared memory."""

    @property
    def state(self) -> Any:
        """The optimizer's own state. Using it ends the shared step; each rank then has a copy."""
        if self._shares_state():
            self._own_state(self._ciranda_shared_step.copied_state())  # type: ignore[union-attr]
        return vars(self)["state"]

    @state.setter
    def state(self, state: Any) -> None:
        if self._shares_state():
            self._own_state(state)
        vars(self)["state"] = state


@functools.cache
def distributed_class(inner_class: Any, base: type[Distributed]) -> type:
    return type(inner_class.__name__, (base, inner_class), {"_ciranda_inner_class": inner_class})


def begin(
    optimizer: Any,
    named: NamedParameters,
    max_grad_norm: float | None,
) -> None:
    """Sets the attributes of a Distributed optimizer that do not depend on how it reduces."""
    if hasattr(vars(optimizer).get("step"), "_wrapped_by_lr_sched"):
        del optimizer.step  # removes a scheduler's wrapper of the inner class's step
    optimizer._ciranda_buffers = None
    optimizer._ciranda_comparison = None
    optimizer._ciranda_skip_synchronize = False
    optimizer._ciranda_synchronized = False
    optimizer._ciranda_objection = ""
    optimizer._ciranda_parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer._ciranda_max_norm = max_grad_norm or 0.0
    optimizer._ciranda_norm = 0.0
    optimizer._parameter_names = {parameter: name for name, parameter in named}


def train_together(
    optimizer: Any, named: NamedParameters, buffers: Buffers | None, apart: bool
) -> None:
    """Sets the attributes for training with other ranks.

    `apart`: each rank has its own parameters.
    """
    optimizer._ciranda_buffers = buffers
    members = number_of(optimizer._ciranda_process_set)
    optimizer._ciranda_comparison = _C.RankComparison(optimizer._ciranda_name, apart, members)
    optimizer._ciranda_comparison.add(named)


_NOT_THE_WAY = ("foreach", "fused", "capturable", "differentiable")  # they affect the speed alone


def way_of_steps(inner_class: Any, defaults: dict[str, Any], groups: list[dict[str, Any]]) -> str:
    """Returns in one line the class and settings that ranks must have alike for equal steps."""

    def told(value: Any) -> str:
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, (tuple, list)):
            return f"({', '.join(map(told, value))})"
        is_plain = value is None or isinstance(value, (bool, int, float, str))
        return repr(value) if is_plain else type(value).__name__

    names = [name for name in defaults if name not in _NOT_THE_WAY]
    ways = [
        " ".join(f"{name}={told(group[name])}" for name in names if name in group)
        for group in groups
    ]
    return f"{inner_class.__name__} {'; '.join(ways)}"


class NoReducer:
    """A reducer without other ranks, which reduces nothing."""

    def add_parameters(self, named_parameters: NamedParameters) -> None:
        pass

    confirm_sharing = synchronize = finish_step = discard_step = lambda self: None

    def set_backward_passes_per_step(self, passes: int) -> None:
        pass


def default_names(group: dict[str, Any], number: int) -> NamedParameters:
    names = group.get("param_names") or [
        f"group.{number}.param.{index}" for index in range(len(group["params"]))
    ]
    return list(zip(names, group["params"], strict=True))


def names_of_groups(groups: list[dict[str, Any]]) -> NamedParameters:
    return [pair for number, group in enumerate(groups) for pair in default_names(group, number)]
