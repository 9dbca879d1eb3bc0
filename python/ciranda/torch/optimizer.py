"""DistributedOptimizer: the user's optimizer, stepping on gradients that all ranks share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from ciranda import _C
from ciranda.torch import ops
from ciranda.torch.compressed_reducer import CompressedReducer, NamedParameters
from ciranda.torch.compression import Compression, native_of
from ciranda.torch.host_step import HostStep, ShardStep, decide
from ciranda.torch.ops import Average
from ciranda.torch.process_sets import ProcessSet, global_process_set, require_global

# Distinguishes the optimizers of a process; every rank makes them in the same order.
_numbers = itertools.count()


class _Distributed:
    """What DistributedOptimizer adds to the user's optimizer class."""

    _ciranda_reducer: Any
    _ciranda_name: str  # of its reductions
    _ciranda_op: int
    _ciranda_skip_synchronize: bool
    _ciranda_host_step: HostStep | None
    _ciranda_max_norm: float  # 0: no clipping
    _ciranda_norm: Any  # of the latest step's gradients, before clipping; a tensor on a GPU
    _parameter_names: dict[torch.Tensor, str]

    @property
    def grad_norm(self) -> float:
        """With max_grad_norm: of the latest step's gradients, before clipping. Waits for a GPU."""
        return float(self._ciranda_norm)

    def synchronize(self) -> None:
        """Blocks until every p.grad holds the gradient reduced over the ranks.

        backward() has done it where it ran backward_passes_per_step times, and step() does it by
        itself. Calling it twice does no harm.
        """
        self._ciranda_reducer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within: step() uses the gradients as they are. For Horovod's scripts; step() after
        synchronize() does not reduce twice anyway."""
        self._ciranda_skip_synchronize = True
        try:
            yield
        finally:
            self._ciranda_skip_synchronize = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """backward() reduces once it has added up the gradients of `passes` passes."""
        if passes < 1:
            raise ValueError("backward_passes_per_step must be at least 1")
        self._ciranda_reducer.set_backward_passes_per_step(passes)

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """synchronize(), then the optimizer's own step(), or the one that the ranks share."""
        reducer = self._ciranda_reducer
        if self._ciranda_host_step is not None:
            return self._hooked_shared_step(*(() if closure is None else (closure,)))
        inner = super().step  # type: ignore[misc]
        self._opt_called = True  # learning-rate schedulers look for it
        if closure is not None:
            user_closure = closure

            def reduced_closure() -> Any:
                reducer.finish_step()  # it computes new gradients
                with torch.enable_grad():
                    loss = user_closure()
                reducer.synchronize()
                self._clip()
                if isinstance(self, torch.optim.LBFGS):
                    # Its search depends on the loss, and all ranks must decide alike.
                    loss = ops.allreduce(
                        torch.as_tensor(loss).detach(),
                        name=f"{self._ciranda_name}/loss",
                        op=self._ciranda_op,
                    )
                return loss

            result = inner(reduced_closure, *args, **kwargs)
        else:
            if not self._ciranda_skip_synchronize:
                reducer.synchronize()
            self._clip()
            result = inner(*args, **kwargs)
        reducer.finish_step()
        return result

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """torch's GradScaler.step() asks for this before it looks at the gradients for inf: all
        ranks must see the same, and decide alike. Where backward() has reduced them, nothing is
        left to do."""
        self._ciranda_reducer.synchronize()
        return bool(vars(self).get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        vars(self)["_step_supports_amp_scaling"] = value

    # Schedulers need not wrap it, and the step hooks run in the inner step.
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
        # What torch's GradScaler leaves to a fused step to unscale.
        scale = getattr(self, "grad_scale", None)
        self._ciranda_norm = norm if scale is None else norm / scale
        torch.nn.utils.clip_grads_with_norm_(parameters, self._ciranda_max_norm, self._ciranda_norm)

    @torch.no_grad()
    def _shared_step(self, closure: Callable[[], Any] | None = None) -> Any:
        host_step = cast(HostStep, self._ciranda_host_step)
        self._opt_called = True
        loss = None
        if closure is not None:
            self._ciranda_reducer.finish_step()  # it computes new gradients
            with torch.enable_grad():
                loss = closure()
        # torch's GradScaler sets these for a fused optimizer.
        grad_scale = getattr(self, "grad_scale", None)
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None or not float(found_inf):
            scale = 1.0 if grad_scale is None else 1.0 / float(grad_scale)
            host_step.run(scale, not self._ciranda_skip_synchronize, self._ciranda_max_norm)
            if self._ciranda_max_norm:
                self._ciranda_norm = self._ciranda_reducer.norm()
        self._ciranda_reducer.finish_step()
        return loss

    _hooked_shared_step = torch.optim.Optimizer.profile_hook_step(_shared_step)

    def load_state_dict(self, state_dict: Any) -> None:
        """As the optimizer's own. With a shared step the state of every rank of this host."""
        super().load_state_dict(state_dict)  # type: ignore[misc]
        if self._ciranda_host_step is not None:
            self._ciranda_host_step.adopt_state()

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own. What backward passes have added up for this step is forgotten."""
        self._ciranda_reducer.settle()
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own, on every rank; the new parameters' gradients are reduced too."""
        super().add_param_group(param_group)  # type: ignore[misc]
        groups = self.param_groups  # type: ignore[attr-defined]
        added = _default_names(groups[-1], len(groups) - 1)
        _C.require_agreement(self._ciranda_name, "", added)
        self._parameter_names.update({parameter: name for name, parameter in added})
        (self._ciranda_host_step or self._ciranda_reducer).add_parameters(added)

    def __reduce__(self) -> Any:
        # Copies and pickles are the plain optimizer: a reducer belongs to this process.
        inner_class = type(self).__mro__[2]
        state = self.__getstate__()  # type: ignore[attr-defined]
        return inner_class.__new__, (inner_class,), state


class _NoReducer:
    """A world of one rank: nothing to reduce."""

    def add_parameters(self, named_parameters: NamedParameters) -> None:
        pass

    synchronize = finish_step = settle = lambda self: None

    def set_backward_passes_per_step(self, passes: int) -> None:
        pass


def _default_names(group: dict[str, Any], number: int) -> NamedParameters:
    names = group.get("param_names") or [
        f"group.{number}.param.{index}" for index in range(len(group["params"]))
    ]
    return list(zip(names, group["params"], strict=True))


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> NamedParameters:
    """The optimizer's parameters with the user's names, in the user's order."""
    owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named_parameters is None:
        return [
            pair
            for number, group in enumerate(optimizer.param_groups)
            for pair in _default_names(group, number)
        ]
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
        raise ValueError(
            "DistributedOptimizer: named_parameters must be (name, parameter) pairs, usually "
            "model.named_parameters()"
        )
    return _C.names_of(owned, named)


def _group_positions(
    groups: int | Sequence[Sequence[torch.Tensor]] | None, named: NamedParameters
) -> list[list[int]]:
    if groups is None or groups == 0:
        return []
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError("DistributedOptimizer: groups must not be negative")
        count = min(groups, len(named))
        return [
            list(range(len(named) * g // count, len(named) * (g + 1) // count))
            for g in range(count)
        ]
    position = {id(parameter): index for index, (_, parameter) in enumerate(named)}
    result = []
    for group in groups:
        missing = [p for p in group if id(p) not in position]
        if missing:
            raise ValueError(
                "DistributedOptimizer: groups names a tensor that the optimizer does not train"
            )
        result.append([position[id(p)] for p in group])
    flat = [index for group in result for index in group]
    if len(set(flat)) != len(flat):
        raise ValueError("DistributedOptimizer: a parameter is in two groups")
    return result


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    bucket_bytes: int | None = None,
    shard_step: ShardStep = "auto",
    max_grad_norm: float | None = None,
    share_parameters: bool = False,
) -> Any:
    """Makes `optimizer` step on gradients reduced over the ranks; call it on every rank.

    Returns the same object: its class becomes a subclass of its own, so `isinstance`, its state,
    attributes, step hooks and learning-rate schedulers made before stay what they are. Gradients
    become views of memory that the ranks of the host share, and backward() returns with the reduced
    ones in p.grad (with backward_passes_per_step=n, every n-th backward(); step() and synchronize()
    reduce what fewer have added up). A parameter that only other ranks used has zeros here; one
    that no rank used keeps p.grad as it is.

    named_parameters: usually model.named_parameters(); names errors and orders the buckets.
    compression: .fp16 and .bf16 of Compression halve what float32 gradients take between hosts
    (each message is rounded, sums are float32); or a class with compress() and decompress().
    backward_passes_per_step: gradients of so many backward passes are added up before reducing.
    op: Average or Sum. gradient_predivide_factor f (Average only): gradients are divided by f
    before the sum and by size()/f after it. groups: a number of groups, or lists of parameters
    that are reduced together. sparse_as_dense: sparse gradients are densified instead of gathered.
    bucket_bytes: gradients reduced together where `groups` does not say; by itself 4 MiB, on a GPU
    25 MiB.
    shard_step: the ranks of a host share the optimizer's step, each updates a part of the
    parameters for all, and the optimizer's state exists once a host (SGD, Adam, AdamW, Adagrad,
    RMSprop). "auto": where that changes nothing else; the logger ciranda.torch.host_step says at
    level debug whether, and why not. "host": always, and backward() leaves p.grad this rank's own,
    so that step() reduces and updates in one pass; synchronize() reduces before. False: never. A
    shared step densifies sparse gradients.
    max_grad_norm: step() clips the reduced gradients to this global 2-norm, as torch's
    clip_grad_norm_ does, and sets optimizer.grad_norm to the norm before. A shared step leaves
    p.grad unclipped.
    share_parameters: with a shared step, the ranks of a host keep one copy of the parameters for
    all, for models whose copies do not fit: here rank 0's values become everybody's, and what one
    rank writes into a parameter, all see.
    """
    require_global(process_set)
    if isinstance(optimizer, _Distributed):
        raise ValueError("DistributedOptimizer: this optimizer is distributed already")
    _C.check_options(
        op, gradient_predivide_factor, backward_passes_per_step, bucket_bytes, max_grad_norm
    )
    if num_groups and groups is not None:
        raise ValueError("DistributedOptimizer: give groups, not num_groups (deprecated) too")
    named = _named(optimizer, named_parameters)
    positions = _group_positions(groups if groups is not None else num_groups, named)
    name = f"DistributedOptimizer.{next(_numbers)}"
    native = native_of(compression)
    shared = _C.size() > 1 and decide(shard_step, optimizer, named, compression, share_parameters)

    options = [
        f"shard_step={shard_step!r}, {'sharded' if shared else 'not sharded'}",
        op,
        gradient_predivide_factor,
        backward_passes_per_step,
        getattr(compression, "__name__", type(compression).__name__),
        sparse_as_dense,
        bucket_bytes,
        max_grad_norm,
        share_parameters,
        positions,
    ]
    _C.require_agreement(name, str(options), named)

    reducer: Any
    if _C.size() == 1:
        reducer = _NoReducer()
    elif native is None:
        reducer = CompressedReducer(
            name, op, gradient_predivide_factor, backward_passes_per_step, compression
        )
    else:
        reducer = _C.GradientReducer(
            name,
            op,
            gradient_predivide_factor,
            backward_passes_per_step,
            native,
            sparse_as_dense or shared,
            bucket_bytes,
            positions,
            shared,
            shard_step != "host",
            share_parameters,
        )

    inner_class = type(optimizer)
    host_step = HostStep(optimizer, inner_class, reducer) if shared else None
    (host_step or reducer).add_parameters(named)
    optimizer.__class__ = type(inner_class.__name__, (_Distributed, inner_class), {})
    if hasattr(vars(optimizer).get("step"), "_wrapped_by_lr_sched"):
        del optimizer.step  # a scheduler's wrapper around the inner class's step
    distributed: Any = optimizer
    distributed._ciranda_reducer = reducer
    distributed._ciranda_name = name
    distributed._ciranda_op = op
    distributed._ciranda_skip_synchronize = False
    distributed._ciranda_host_step = host_step
    distributed._ciranda_max_norm = max_grad_norm or 0.0
    distributed._parameter_names = {parameter: name for name, parameter in named}
    return distributed
