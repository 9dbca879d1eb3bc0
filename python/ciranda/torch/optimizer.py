"""DistributedOptimizer: the user's optimizer, which steps on gradients reduced over the ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from ciranda import _C
from ciranda.torch.buffers import Buffers
from ciranda.torch.compressed_reducer import NamedParameters
from ciranda.torch.compression import Compression
from ciranda.torch.ops import Adasum, Average
from ciranda.torch.optimizer_classes import Distributed, names_of_groups
from ciranda.torch.plain_tensors import require_plain
from ciranda.torch.process_sets import ProcessSet, global_process_set
from ciranda.torch.ps import EASGD, Downpour, Mode, UpdateOn
from ciranda.torch.ps.served_optimizer import distribute
from ciranda.torch.rank_optimizer import train_together
from ciranda.torch.shared_step import SharedStepMode


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> NamedParameters:
    """Returns the optimizer's parameters with the user's names, in the user's order."""
    owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named_parameters is None:
        return names_of_groups(optimizer.param_groups)
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
        raise ValueError(
            "DistributedOptimizer: named_parameters must be (name, parameter) pairs, usually "
            "model.named_parameters()"
        )
    return _C.names_of(owned, named)


def _former_mode(
    ps: Mode | None,
    backend: str | None,
    mode: Mode | None,
    update_on: UpdateOn | None,
    force: bool,
) -> Mode | None:
    """Returns the mode that the former options describe; `ps` has replaced them."""
    if ps is not None:
        raise ValueError(
            "DistributedOptimizer: backend, mode, update_on and force are the former form of ps; "
            "give ps alone"
        )
    if backend not in (None, "ring", "ps"):
        raise ValueError(f"DistributedOptimizer: backend must be 'ring' or 'ps', not {backend!r}")
    if backend != "ps":
        if mode is not None or update_on is not None or force:
            raise ValueError(
                "DistributedOptimizer: mode, update_on and force are of parameter servers; pass a "
                "mode, such as ps=ps.Async()"
            )
        return None
    if not isinstance(mode, Mode):
        raise ValueError(
            "DistributedOptimizer: backend='ps' needs a mode; pass one as ps alone, such as "
            f"ps=ps.Async(), not {mode!r}"
        )
    warnings.warn(
        "DistributedOptimizer: backend, mode, update_on and force are deprecated; pass "
        "ps=mode, which has update_on and force",
        DeprecationWarning,
        stacklevel=3,
    )
    if isinstance(mode, EASGD):
        return mode  # the worker steps
    if isinstance(mode, Downpour):
        if update_on == "worker":
            raise ValueError("DistributedOptimizer: with Downpour the servers make the step")
        return replace(mode, force=force or mode.force)
    return replace(mode, update_on=update_on or mode.update_on, force=force or mode.force)


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
    shared_step: SharedStepMode | None = None,
    max_grad_norm: float | None = None,
    share_parameters: bool = False,
    broadcast_buffers: torch.nn.Module | Iterable[torch.Tensor] | None = None,
    ps: Mode | None = None,
    shard_step: SharedStepMode | None = None,
    backend: Literal["ring", "ps"] | None = None,
    mode: Mode | None = None,
    update_on: UpdateOn | None = None,
    force: bool = False,
) -> Any:
    """Makes `optimizer` step on gradients reduced over the ranks; call it on every rank.

    Returns the same object: its class becomes a subclass of the user's class, so `isinstance`,
    attributes, step hooks and learning-rate schedulers made before keep working. Large gradients
    lie in memory that the ranks of the host share. backward() returns with the reduced gradients in
    p.grad; with backward_passes_per_step=n every n-th backward() does. step() and synchronize()
    reduce the gradients of fewer passes. For a parameter that only other ranks used, this rank
    contributes zeros; if no rank used a parameter, its p.grad stays as it is. If several optimizers
    have the same parameter, the latest one reduces its gradient. Training does what plain torch
    does in one process with the joined batch; docs/optimizer.md lists the exceptions.

    named_parameters: usually model.named_parameters(). Errors use the names, and the order of the
    buckets follows theirs.
    compression: Compression.fp16 and .bf16 halve the bytes of float32 gradients between hosts (each
    message is rounded, sums are float32); or a class with compress() and decompress().
    backward_passes_per_step: number of backward passes to add up before gradients are reduced.
    op: Average, Sum or Adasum. With Adasum each rank steps with its own gradients, and step()
    combines the changes of all ranks. p.grad stays the rank's own, and options about reduced
    gradients are refused.
    gradient_predivide_factor f (Average only): gradients are divided by f before the sum and by
    size()/f after it.
    groups: a number of groups, or lists of parameters that are reduced together. num_groups: its
    deprecated form.
    sparse_as_dense: densifies sparse gradients instead of gathering them.
    bucket_bytes: size of a bucket of gradients that are reduced together, outside of `groups`;
    default 4 MiB, on a GPU 25 MiB.
    shared_step: the ranks of a host share the optimizer's step (SGD, Adam, AdamW, Adagrad,
    RMSprop, ciranda's Lion). Each rank updates a part of the parameters for all, and the
    optimizer's state exists once a host. "auto" (the default): with 65,536 parameters or more, if
    sharing changes nothing else; optimizer.why_not_shared() says why not. "host": always;
    backward() leaves this rank's own gradient in p.grad, so that step() reduces and updates in one
    pass, and synchronize() reduces before. False: never. A shared step densifies sparse gradients.
    It ends for good, on all ranks and with a warning, if a program uses optimizer.state, moves a
    parameter or edits the lists of param_groups. shard_step: its former name.
    max_grad_norm: step() clips the reduced gradients to this global 2-norm, as torch's
    clip_grad_norm_ does, and sets optimizer.grad_norm to the norm before clipping. A shared step
    leaves p.grad unclipped.
    share_parameters: with a shared step, the ranks of a host keep one copy of the parameters, for
    models too large for a copy in each rank. Rank 0's values become every rank's, and all ranks see
    a write of any rank to a parameter.
    broadcast_buffers: the model, if all ranks shall have the first rank's buffers, such as
    BatchNorm's running statistics. step() ends with their broadcast, whereas DDP's forward begins
    with it. Without it the buffers are each rank's own, as in Horovod. model.buffers() is possible
    too if the model never replaces one by another tensor.
    process_set: the ranks that train together; op and gradient_predivide_factor count these ranks.
    On a rank that is not a member the optimizer steps without other ranks.
    ps: a mode pushes gradients to parameter servers (`ciranda run --ps N`), which hold the
    parameters and the optimizer's state: ps.Async(), ps.SSP(s), ps.Sync(),
    ps.Downpour(n_push, n_fetch) or ps.EASGD(rho, period), the same on every rank;
    docs/parameter-server.md. The first parameters are rank 0's. backend="ps", mode, update_on and
    force: its former form, deprecated.

    Blocks until all ranks of the process set have called it, or with ps until the servers have
    answered. Raises ValueError for options that do not fit, and MismatchError on every rank if
    the ranks' parameters or options differ.
    """
    if shard_step is not None:
        if shared_step is not None and shared_step != shard_step:
            raise ValueError(
                f"DistributedOptimizer: shard_step={shard_step!r} is the former name of "
                f"shared_step={shared_step!r}; give shared_step alone"
            )
        shared_step = shard_step
    shared_step = "auto" if shared_step is None else shared_step
    if isinstance(optimizer, Distributed):
        raise ValueError("DistributedOptimizer: this optimizer is distributed already")
    replaced = vars(optimizer).get("step")
    if replaced is not None and not hasattr(replaced, "_wrapped_by_lr_sched"):
        raise ValueError(
            "DistributedOptimizer: optimizer.step was replaced on this object, and what it calls "
            "knows no other ranks; replace it after DistributedOptimizer() instead of before"
        )
    if backend is not None or mode is not None or update_on is not None or force:
        ps = _former_mode(ps, backend, mode, update_on, force)
    if ps is None and _C.server_count():
        raise ValueError(
            "DistributedOptimizer: this job has parameter servers; pass a mode, such as "
            "ps=ps.Async(), or start it without --ps"
        )
    usual = {
        "compression": compression is Compression.none,
        "op": op == Average,
        "gradient_predivide_factor": gradient_predivide_factor == 1.0,
        "num_groups": not num_groups,
        "groups": groups is None,
        "process_set": process_set is global_process_set,
        "bucket_bytes": bucket_bytes is None,
        "shared_step": shared_step == "auto" or (shared_step is False and op == Adasum),
        "max_grad_norm": max_grad_norm is None,
        "share_parameters": not share_parameters,
        "broadcast_buffers": broadcast_buffers is None,
    }
    training = _C.Training.ring if ps is None else _C.Training.servers
    if op == Adasum and ps is None:
        training = _C.Training.adasum
    _C.refuse_options(training, [option for option, is_usual in usual.items() if not is_usual])
    if ps is not None:
        _C.check_values(backward_passes_per_step, max_grad_norm)
        named = _named(optimizer, named_parameters)
        require_plain("DistributedOptimizer", named)
        return distribute(optimizer, named, ps, max_grad_norm)
    if num_groups:
        warnings.warn(
            "DistributedOptimizer: num_groups is deprecated; pass groups=" + str(num_groups),
            DeprecationWarning,
            stacklevel=2,
        )
        if groups is not None:
            raise ValueError("DistributedOptimizer: give groups, not num_groups (deprecated) too")
    named = _named(optimizer, named_parameters)
    require_plain("DistributedOptimizer", named)
    buffers = None if broadcast_buffers is None else Buffers(broadcast_buffers)
    train_together(
        optimizer,
        named,
        op=op,
        predivide_factor=gradient_predivide_factor,
        backward_passes_per_step=backward_passes_per_step,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        groups=groups if groups is not None else num_groups,
        bucket_bytes=bucket_bytes,
        shared_step=shared_step,
        share_parameters=share_parameters,
        max_grad_norm=max_grad_norm,
        buffers=buffers,
        process_set=process_set,
    )
    return optimizer
