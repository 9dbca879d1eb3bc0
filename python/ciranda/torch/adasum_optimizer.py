"""The subclass of the user's optimizer class that DistributedOptimizer uses with op=Adasum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ciranda import _C
from ciranda.torch import ops
from ciranda.torch.buffers import Buffers, described
from ciranda.torch.compressed_reducer import NamedParameters
from ciranda.torch.optimizer_classes import (
    Distributed,
    NoReducer,
    begin,
    distributed_class,
    train_together,
)
from ciranda.torch.process_sets import ProcessSet, number_of

_WHY_NOT_SHARED = "with op=Adasum each rank makes a step of its own"


class StepsByAdasum(Distributed):
    """Each rank steps with its own gradients; Adasum combines the changes of all ranks.

    As in Horovod's delta optimizer, p = start + adasum over the ranks of (stepped - start).
    """

    _ciranda_compression: Any

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
        self._find_new_parameters()
        if self._ciranda_comparison is not None and self._ciranda_comparison.begin_step():
            self._compare_ranks(self._ciranda_comparison)
        groups = self.param_groups  # type: ignore[attr-defined]
        parameters = [p for group in groups for p in group["params"] if p.requires_grad]
        with torch.no_grad():
            starts = [parameter.clone() for parameter in parameters]
        arguments = args if closure is None else (closure, *args)
        loss = self._inner_step(*arguments, **kwargs)
        with torch.no_grad():
            changes = [p - start for p, start in zip(parameters, starts, strict=True)]
            for parameter, start in zip(parameters, starts, strict=True):
                parameter.copy_(start)
            for parameter, change in zip(parameters, self._combined(changes), strict=True):
                parameter.add_(change)
        self._end_step()
        return loss

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    step.hooked = True  # type: ignore[attr-defined]

    def _inner_step(self, *args: Any, **kwargs: Any) -> Any:
        self._opt_called = True  # learning-rate schedulers look for it
        return super(Distributed, self).step(*args, **kwargs)  # type: ignore[misc]

    def _combined(self, changes: list[torch.Tensor]) -> list[torch.Tensor]:
        process_set = self._ciranda_process_set
        if not changes or process_set.alone():
            return changes
        return ops.grouped_allreduce(
            [change.contiguous() for change in changes],
            name=f"{self._ciranda_name}/changes",
            op=ops.Adasum,
            compression=self._ciranda_compression,
            process_set=process_set,
        )


def distribute(
    optimizer: torch.optim.Optimizer,
    named: NamedParameters,
    compression: Any,
    backward_passes_per_step: int,
    buffers: Buffers | None,
    process_set: ProcessSet,
) -> Any:
    """Makes `optimizer` a StepsByAdasum.

    Every member of the set calls it, with the same parameters. Blocks until they have agreed.
    """
    name = f"DistributedOptimizer.{process_set.optimizers_made}"
    alone = process_set.alone()
    if not alone:
        options = ["op=Adasum", getattr(compression, "__name__", type(compression).__name__)]
        _C.require_agreement(
            name,
            str([*options, backward_passes_per_step, described(buffers)]),
            named,
            _WHY_NOT_SHARED,
            number_of(process_set),
        )
    process_set.optimizers_made += 1
    distributed: Any = optimizer
    distributed._ciranda_reducer = NoReducer()
    distributed._ciranda_name = name
    distributed._ciranda_process_set = process_set
    distributed._ciranda_shared_step = None
    distributed._ciranda_why_not_shared = _WHY_NOT_SHARED
    distributed._ciranda_compression = compression
    begin(optimizer, named, None)
    if not alone:
        train_together(optimizer, named, buffers, apart=True)
    inner_class: Any = type(optimizer)
    optimizer.__class__ = distributed_class(inner_class, StepsByAdasum)
    return distributed
