"""DistributedOptimizer over ranks, which reduce gradients or combine changes among themselves."""

from __future__ import annotations

import time
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ciranda import _C
from ciranda.errors import CirandaError, InvalidArgumentError, UnsupportedError
from ciranda.torch import shared_step as sharing
from ciranda.torch.buffers import Buffers, described
from ciranda.torch.compressed_reducer import CompressedReducer, NamedParameters
from ciranda.torch.compression import native_of
from ciranda.torch.ops import Adasum, Average, Min, allreduce, barrier
from ciranda.torch.optimizer_classes import (
    Distributed,
    begin,
    distributed_class,
    numbers_of_groups,
)
from ciranda.torch.plain_tensors import require_plain
from ciranda.torch.process_sets import ProcessSet, global_process_set, number_of
from ciranda.torch.shared_step import (
    SharedStep,
    SharedStepMode,
    first_complex,
    obstacle,
    pairs_of_state,
)


class OverRanks(Distributed):
    """An optimizer that trains with the other ranks of a process set; see OptimizerCore in C++."""

    _ciranda_core: Any
    _ciranda_reducer: Any  # the core, or the reducer of a compressor in Python
    _ciranda_compression: Any
    _ciranda_buffers: Buffers | None  # broadcast by each step
    _ciranda_options: dict[str, Any]  # of train_together()
    _ciranda_left_sharing: bool  # as of the latest _leave_ranks()

    def why_not_shared(self) -> str:
        return str(self._ciranda_core.why_not_shared())

    why_not_shared.__doc__ = Distributed.why_not_shared.__doc__

    def _set_backward_passes(self, passes: int) -> None:
        self._ciranda_core.set_backward_passes_per_step(passes)
        self._ciranda_options["backward_passes_per_step"] = passes  # for train_anew()
        if self._ciranda_reducer is not self._ciranda_core:
            self._ciranda_reducer.set_backward_passes_per_step(passes)

    def _reduce(self) -> None:
        self._ciranda_reducer.synchronize()

    def _finish_gradients(self) -> None:
        self._ciranda_reducer.finish_step()

    def _discard_gradients(self) -> None:
        self._ciranda_reducer.discard_step()

    def _loss_of_all(self, loss: Any) -> Any:
        """Reduces the loss for LBFGS: its search depends on it, and all ranks must decide alike."""
        if not isinstance(self, torch.optim.LBFGS):
            return loss
        return self._ciranda_core.loss_of_all(torch.as_tensor(loss))

    def _begin_step(self) -> None:
        core = self._ciranda_core
        if not core.begin_step():
            return
        if self._ciranda_reducer is not core and not self._ciranda_skip_synchronize:
            self._reduce()  # first: other ranks may still wait in backward()
        way = way_of_steps(self._ciranda_inner_class, self.defaults, self.param_groups)  # type: ignore[attr-defined]
        if difference := core.compare(way):
            warnings.warn(f"DistributedOptimizer: {difference}", stacklevel=4)

    def _end_step(self) -> None:
        core = self._ciranda_core
        if self._ciranda_buffers is not None:
            core.broadcast_buffers(self._ciranda_buffers.now())
        if core.end_step(self._ciranda_objection != ""):
            self._retune()

    def _retune(self) -> None:
        """Applies autotuning's settings, and moves the state if sharing begins or ends."""
        core, shared_step = self._ciranda_core, self._ciranda_shared_step
        state = vars(self)["state"] if shared_step is None else shared_step.copied_state()
        parameters = list(self._parameter_names)
        core.retune(
            [pairs_of_state(state.get(parameter, {})) for parameter in parameters],
            obstacle(
                self._ciranda_inner_class,
                self.param_groups,  # type: ignore[attr-defined]
                [],  # complex parameters are not tuned
                self._ciranda_compression,
            ),
        )
        shares = core.why_not_shared() == ""
        self._ciranda_shared_step = (
            SharedStep(self._ciranda_inner_class, core, parameters) if shares else None
        )
        vars(self)["state"] = defaultdict(dict) if shares else state
        base = SharedStepOptimizer if shares else OverRanks
        self.__class__ = distributed_class(self._ciranda_inner_class, base)

    def _end_shared_step(self, why: str) -> None:
        super()._end_shared_step(why)
        if type(self) is distributed_class(self._ciranda_inner_class, SharedStepOptimizer):
            self.__class__ = distributed_class(self._ciranda_inner_class, OverRanks)

    def _add_parameters(self, added: NamedParameters) -> None:
        require_plain("DistributedOptimizer", added)
        if why := self._ciranda_core.agree_on(added):  # sharing ended while this rank had joined
            self._end_shared_step(why)
        super()._add_parameters(added)
        groups = self.param_groups  # type: ignore[attr-defined]
        if self._ciranda_shared_step is not None:
            self._ciranda_shared_step.set_rules(groups)
        self._ciranda_core.add_parameters(added, numbers_of_groups(added, groups))
        if self._ciranda_shared_step is not None:
            self._ciranda_shared_step.add_state(added, vars(self)["state"])
        if self._ciranda_reducer is not self._ciranda_core:
            self._ciranda_reducer.add_parameters(added)

    def _leave_ranks(self) -> None:
        """Becomes the user's plain optimizer again, with its own state, until train_anew()."""
        self._ciranda_left_sharing = self._shares_state()
        if self._ciranda_left_sharing:
            vars(self)["state"] = self._ciranda_shared_step.copied_state()  # type: ignore[union-attr]
        self._ciranda_shared_step = None
        self.__class__ = self._ciranda_inner_class
        # The reducer's hooks end with it.
        del self._ciranda_core, self._ciranda_reducer

    def _end_completed_step(self) -> None:
        """Does what step() does after the shared step, which was completed after a loss."""
        self._ciranda_core.end_completed_step()
        if self._ciranda_max_norm:
            self._ciranda_norm = self._ciranda_core.norm()
        if self._ciranda_guard is not None:
            self._ciranda_guard.applied()


class SharedStepOptimizer(OverRanks):
    """An OverRanks while the ranks share its step, and its state in shared memory."""

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


class StepsByAdasum(OverRanks):
    """Each rank steps with its own gradients; Adasum combines the changes of all ranks.

    As in Horovod's delta optimizer, p = start + adasum over the ranks of (stepped - start).
    """

    _ciranda_steps_by_itself = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises ValueError: nothing is synchronized before the step."""
        raise ValueError(
            "skip_synchronize: with op=Adasum step() combines what the step of each rank has "
            "changed, and there is nothing to skip; call step() without it"
        )
        yield

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Steps with this rank's gradients, then combines the changes of all ranks.

        If combining raises, the parameters keep their values from before the step.
        """
        guard = self._ciranda_guard
        if guard is not None and not guard.is_in_step:
            return guard.step(self, closure, args, kwargs)  # which calls this method again
        self._find_new_parameters()
        self._begin_step()
        groups = self.param_groups  # type: ignore[attr-defined]
        parameters = [p for group in groups for p in group["params"] if p.requires_grad]
        starts = [parameter.detach().clone() for parameter in parameters]
        self._opt_called = True  # learning-rate schedulers look for it
        arguments = args if closure is None else (closure, *args)
        result = super(Distributed, self).step(*arguments, **kwargs)  # type: ignore[misc]
        if not self._ciranda_core.alone():
            self._combine_changes(parameters, starts)
        if guard is None:
            self._end_step()
        else:
            guard.end(self)
        return result

    def _combine_changes(self, parameters: list[torch.Tensor], starts: list[torch.Tensor]) -> None:
        compression = self._ciranda_compression
        changes = self._ciranda_core.take_changes(parameters, starts)
        packed = [compression.compress(change) for change in changes]
        combined = self._ciranda_core.combine([change.contiguous() for change, _ in packed])
        with torch.no_grad():
            for parameter, change, (_, context) in zip(parameters, combined, packed, strict=True):
                parameter.add_(compression.decompress(change, context))

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    step.hooked = True  # type: ignore[attr-defined]


def train_together(
    optimizer: Any,
    named: NamedParameters,
    *,
    op: int,
    predivide_factor: float,
    backward_passes_per_step: int,
    compression: Any,
    sparse_as_dense: bool,
    groups: int | Sequence[Sequence[torch.Tensor]],
    bucket_bytes: int | None,
    shared_step: SharedStepMode,
    share_parameters: bool,
    max_grad_norm: float | None,
    buffers: Buffers | None,
    process_set: ProcessSet,
) -> None:
    """Makes the user's plain `optimizer` train with the ranks of the set.

    Every member calls it, with the same options and parameters. Blocks until they have agreed.
    """
    options = {name: value for name, value in locals().items() if name not in _OF_THE_CALL}
    if shared_step not in _MODES:
        raise ValueError(
            f"DistributedOptimizer: shared_step must be 'auto', 'host' or False, "
            f"not {shared_step!r}"
        )
    elastic = _C.in_elastic_job()
    if elastic:
        _refuse_in_elastic_job(share_parameters=share_parameters, process_set=process_set)
    native = native_of(compression)
    by_adasum = op == Adasum
    compresses = native is None or first_complex(named) is not None
    others = [getattr(compression, "__name__", type(compression).__name__), described(buffers)]
    core = _C.OptimizerCore(
        process_set=number_of(process_set),
        named_parameters=named,
        obstacle=obstacle(type(optimizer), optimizer.param_groups, named, compression),
        op=Average if by_adasum else op,
        adasum=by_adasum,
        reduces=not compresses,
        predivide_factor=predivide_factor,
        backward_passes_per_step=backward_passes_per_step,
        compression=_C.Compression.none if native is None else native,
        sparse_as_dense=sparse_as_dense,
        bucket_bytes=bucket_bytes,
        groups=_group_positions(groups, named),
        shared_step=_MODES[shared_step],
        auto_parameters_min=sharing.AUTO_PARAMETERS_MIN,
        share_parameters=share_parameters,
        max_grad_norm=max_grad_norm,
        others=str(others),
    )
    inner_class: Any = type(optimizer)
    shares = core.why_not_shared() == ""
    optimizer._ciranda_core = core
    optimizer._ciranda_compression = compression
    optimizer._ciranda_buffers = buffers
    optimizer._ciranda_reducer = core
    if compresses and not core.alone() and not by_adasum:
        optimizer._ciranda_reducer = CompressedReducer(
            core.name(), op, predivide_factor, backward_passes_per_step, compression, process_set
        )
        optimizer._ciranda_reducer.add_parameters(named)
    step = SharedStep(inner_class, core) if shares else None
    if step is not None:
        step.set_rules(optimizer.param_groups)
    core.add_parameters(named, numbers_of_groups(named, optimizer.param_groups))
    if step is not None:
        step.add_state(named, optimizer.state)
        optimizer.state = defaultdict(dict)
    optimizer._ciranda_shared_step = step
    optimizer._ciranda_options = options
    begin(optimizer, named, max_grad_norm)
    base = StepsByAdasum if by_adasum else SharedStepOptimizer if shares else OverRanks
    optimizer.__class__ = distributed_class(inner_class, base)
    if not elastic:
        core.tune(inner_class.__name__, time.perf_counter)
    _distributed.setdefault(id(optimizer), optimizer)


_OF_THE_CALL = ("optimizer", "named")
# The optimizers that train over ranks, by id, in the order of their making.
_distributed: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def distributed() -> list[Any]:
    """Returns this process's optimizers over ranks, in the order of their making."""
    return list(_distributed.values())


def complete_steps(optimizers: list[Any]) -> None:
    """Completes the shared steps that ranks of the World before had begun when it failed.

    One rank does what is left of each, in the memory of all; then every rank that was in the step
    counts it. Collective over the ranks of now, which have equally many optimizers. Blocks. If
    another rank is lost meanwhile, it is called again, and the rest is done then.
    """
    optimizers = [each for each in optimizers if each._ciranda_options["shared_step"]]
    if not optimizers:  # nor on any other rank
        return
    lost = _lost_steps(optimizers)
    nobody = _C.size()
    able = [_C.rank() if each == _C.LostStep.begun else nobody for each in lost]
    chosen = allreduce(torch.tensor(able, device="cpu"), op=Min, name="elastic.steps").tolist()
    if chosen == [nobody] * len(optimizers):
        return
    for optimizer, how, rank in zip(optimizers, lost, chosen, strict=True):
        if how != _C.LostStep.none and rank == nobody:
            raise CirandaError(
                "elastic: no rank that is left can complete the step in which a rank was lost; "
                "start the job again from a checkpoint, and report this as an error of ciranda"
            )
        if rank == _C.rank():
            optimizer._ciranda_core.complete_step()
    barrier()
    for optimizer, how in zip(optimizers, lost, strict=True):
        if how != _C.LostStep.none:
            optimizer._end_completed_step()


def _lost_steps(optimizers: list[Any]) -> list[_C.LostStep]:
    return [
        each._ciranda_core.lost_step() if isinstance(each, OverRanks) else _C.LostStep.none
        for each in optimizers
    ]


def train_anew(optimizer: Any) -> None:
    """Makes an optimizer that has left the ranks train with those of the World of now.

    If they cannot share a step that they have shared, or that the program demands, each rank makes
    its own, with a warning: as where they stop to share it in the middle of a training.
    """
    options = optimizer._ciranda_options
    try:
        train_together(optimizer, _named(optimizer), **options)
    except InvalidArgumentError as refusal:
        if options["shared_step"] != "host":
            raise
        _warn_of_own_steps(str(refusal))
        train_together(optimizer, _named(optimizer), **{**options, "shared_step": False})
        optimizer._ciranda_options = options  # those of ranks that join later
        return
    why = optimizer.why_not_shared()
    if why and optimizer._ciranda_left_sharing and _C.size() > 1:
        _warn_of_own_steps(f"DistributedOptimizer: the ranks no longer share the step: {why}")


def _warn_of_own_steps(why: str) -> None:
    warnings.warn(
        f"{why}. Training goes on as with shared_step=False: each rank makes the whole step, with "
        "its own copy of the state.",
        stacklevel=3,
    )


def _named(optimizer: Any) -> NamedParameters:
    return [(name, parameter) for parameter, name in optimizer._parameter_names.items()]


def _refuse_in_elastic_job(*, share_parameters: bool, process_set: ProcessSet) -> None:
    """Raises UnsupportedError for what cannot go on yet when ranks change."""
    why = ""
    if share_parameters:
        why = "share_parameters"
    elif process_set is not global_process_set:
        why = "process_set"
    if why:
        raise UnsupportedError(
            f"DistributedOptimizer: {why} does not work in an elastic job (ciranda run --min-np) "
            "yet; leave it out, or start the job without --min-np, --max-np and --spares"
        )


_MODES: dict[SharedStepMode, _C.SharedStepMode] = {
    "auto": _C.SharedStepMode.auto,
    "host": _C.SharedStepMode.host,
    False: _C.SharedStepMode.off,
}


def _group_positions(
    groups: int | Sequence[Sequence[torch.Tensor]], named: NamedParameters
) -> list[list[int]]:
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
