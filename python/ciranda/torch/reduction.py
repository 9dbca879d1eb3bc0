"""The options by which an optimizer's gradients are reduced, and the reducer for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ciranda import _C
from ciranda.torch.buffers import Buffers, described
from ciranda.torch.compressed_reducer import CompressedReducer, NamedParameters
from ciranda.torch.compression import native_of
from ciranda.torch.optimizer_classes import (
    Distributed,
    NoReducer,
    SharedStepOptimizer,
    distributed_class,
)
from ciranda.torch.process_sets import ProcessSet, number_of
from ciranda.torch.shared_step import (
    SharedStep,
    SharedStepMode,
    demanded_by,
    first_complex,
    obstacle_to_sharing,
)


@dataclass(frozen=True)
class Reduction:
    """DistributedOptimizer()'s options about gradients, the same on every member of the set."""

    op: int
    predivide_factor: float
    backward_passes_per_step: int
    compression: Any
    sparse_as_dense: bool
    groups: int | Sequence[Sequence[torch.Tensor]]  # 0: none
    bucket_bytes: int | None
    shared_step: SharedStepMode
    share_parameters: bool
    streams: int  # between hosts; 0: as CIRANDA_STREAMS says
    max_grad_norm: float | None
    buffers: Buffers | None
    process_set: ProcessSet


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


def reduce_gradients(optimizer: Any, named: NamedParameters, how: Reduction) -> None:
    """Makes the user's plain `optimizer` step on reduced gradients.

    Every member of the set calls it. Blocks until they have agreed.
    """
    positions = _group_positions(how.groups, named)
    process_set = how.process_set
    members = number_of(process_set)
    # Every member makes its optimizers in the same order, and each set has its own names.
    name = f"DistributedOptimizer.{process_set.optimizers_made}"
    native = native_of(how.compression)
    demanded = demanded_by(how.shared_step, how.share_parameters)

    options = [
        f"shared_step={how.shared_step!r}",
        how.op,
        how.predivide_factor,
        how.backward_passes_per_step,
        getattr(how.compression, "__name__", type(how.compression).__name__),
        how.sparse_as_dense,
        how.bucket_bytes,
        how.max_grad_norm,
        how.share_parameters,
        described(how.buffers),
        positions,
    ]
    alone = process_set.alone()
    why_not_shared = "there is one rank"
    if not alone:
        obstacle = obstacle_to_sharing(
            how.shared_step, optimizer, named, how.compression, how.share_parameters
        )
        why_not_shared = _C.require_agreement(name, str(options), named, obstacle, members)
        if why_not_shared and demanded:
            raise ValueError(f"DistributedOptimizer: {demanded} is not possible: {why_not_shared}")
    elif not process_set.included():
        why_not_shared = "this rank is not a member of the process set"
    # Counts successes alone: if other ranks had joined, only this rank has tried.
    process_set.optimizers_made += 1
    shared = not why_not_shared

    reducer: Any
    if alone:
        reducer = NoReducer()
    elif native is None or first_complex(named) is not None:
        reducer = CompressedReducer(
            name,
            how.op,
            how.predivide_factor,
            how.backward_passes_per_step,
            how.compression,
            process_set,
        )
    else:
        reducer = _C.GradientReducer(
            name=name,
            op=how.op,
            predivide_factor=how.predivide_factor,
            backward_passes_per_step=how.backward_passes_per_step,
            compression=native,
            streams=how.streams,
            sparse_as_dense=how.sparse_as_dense or shared,
            bucket_bytes=how.bucket_bytes,
            groups=positions,
            shared_step=shared,
            reduce_in_backward=how.shared_step != "host",
            share_parameters=how.share_parameters,
            process_set=members,
        )

    inner_class: Any = type(optimizer)
    shared_step = SharedStep(inner_class, reducer) if shared else None
    if shared_step is None:
        reducer.add_parameters(named)
    else:
        shared_step.add_parameters(named, optimizer.param_groups, optimizer.state)
        optimizer.state = defaultdict(dict)
    optimizer._ciranda_how = how
    optimizer._ciranda_reducer = reducer
    optimizer._ciranda_name = name
    optimizer._ciranda_process_set = process_set
    optimizer._ciranda_shared_step = shared_step
    optimizer._ciranda_why_not_shared = why_not_shared
    optimizer.__class__ = distributed_class(
        inner_class, SharedStepOptimizer if shared else Distributed
    )


def reduce_otherwise(optimizer: Any, how: Reduction) -> None:
    """Applies other options to an optimizer that reduces gradients already.

    Every member of the set calls it between two steps. State, parameters and gradients keep their
    values. With a shared step, no rank may have used the optimizer's state.
    """
    shared_step = optimizer._ciranda_shared_step
    if shared_step is not None:
        vars(optimizer)["state"] = shared_step.copied_state()
        shared_step.end()
    optimizer.__class__ = optimizer._ciranda_inner_class
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    names = optimizer._parameter_names.items()
    named = [(name, parameter) for parameter, name in names if id(parameter) in owned]
    reduce_gradients(optimizer, named, how)
