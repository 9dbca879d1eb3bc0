"""DistributedOptimizer: the user's optimizer, stepping on gradients that all ranks share."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch

from ciranda import _C
from ciranda.torch import adasum_optimizer, autotune
from ciranda.torch.buffers import Buffers
from ciranda.torch.compressed_reducer import NamedParameters
from ciranda.torch.compression import Compression
from ciranda.torch.ops import Adasum, Average
from ciranda.torch.optimizer_classes import Distributed, begin, names_of_groups, train_together
from ciranda.torch.plain_tensors import require_plain
from ciranda.torch.process_sets import ProcessSet, global_process_set
from ciranda.torch.ps import Mode
from ciranda.torch.ps.served_optimizer import UpdateOn, distribute, refuse_options
from ciranda.torch.reduction import Reduction, reduce_gradients
from ciranda.torch.shared_step import SharedStepMode


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> NamedParameters:
    """The optimizer's parameters with the user's names, in the user's order."""
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
    backend: Literal["ring", "ps"] = "ring",
    mode: Mode | None = None,
    update_on: UpdateOn = "server",
    force: bool = False,
    shard_step: SharedStepMode | None = None,
) -> Any:
    """Makes `optimizer` step on gradients reduced over the ranks; call it on every rank.

    Returns the same object: its class becomes a subclass of its own, so `isinstance`, its
    attributes, step hooks and learning-rate schedulers made before stay what they are. Large
    gradients lie in memory that the ranks of the host share, and backward() returns with the
    reduced ones in p.grad (with backward_passes_per_step=n, every n-th backward(); step() and
    synchronize() reduce what fewer have added up). A parameter that only other ranks used has zeros
    here; one that no rank used keeps p.grad as it is. Of several optimizers over one parameter the
    latest reduces its gradient. Training does what plain torch does in one process with the joined
    batch; docs/optimizer.md lists the exceptions.

    named_parameters: usually model.named_parameters(); names errors and orders the buckets.
    compression: .fp16 and .bf16 of Compression halve what float32 gradients take between hosts
    (each message is rounded, sums are float32); or a class with compress() and decompress().
    backward_passes_per_step: gradients of so many backward passes are added up before reducing.
    op: Average, Sum or Adasum. With Adasum each rank makes a step with its own gradients, and
    step() combines what that has changed; p.grad stays the rank's own, and the options below that
    speak of reduced gradients are refused.
    gradient_predivide_factor f (Average only): gradients are divided by f before the sum and by
    size()/f after it. groups: a number of groups, or lists of parameters
    that are reduced together. sparse_as_dense: sparse gradients are densified instead of gathered.
    bucket_bytes: gradients reduced together where `groups` does not say; by itself 4 MiB, on a GPU
    25 MiB.
    shared_step: the ranks of a host share the optimizer's step, each updates a part of the
    parameters for all, and the optimizer's state exists once a host (SGD, Adam, AdamW, Adagrad,
    RMSprop). "auto", the default: where that changes nothing else; optimizer.why_not_shared() says
    why not. "host": always, and backward() leaves p.grad this rank's own, so that step() reduces
    and updates in one pass; synchronize() reduces before. False: never. A shared step densifies
    sparse gradients, and ends for good, on all ranks with a warning, where a program uses
    optimizer.state, moves a parameter or edits param_groups' lists. shard_step: its former name.
    max_grad_norm: step() clips the reduced gradients to this global 2-norm, as torch's
    clip_grad_norm_ does, and sets optimizer.grad_norm to the norm before. A shared step leaves
    p.grad unclipped.
    share_parameters: with a shared step, the ranks of a host keep one copy of the parameters for
    all, for models whose copies do not fit: here rank 0's values become everybody's, and what one
    rank writes into a parameter, all see.
    broadcast_buffers: the model, when its buffers, as the running statistics of BatchNorm, shall be
    those of the first rank on all: step() ends with their broadcast, as DDP's forward begins with
    it. By itself they are each rank's own, as in Horovod. model.buffers() too, as long as the model
    never puts another tensor in the place of one.
    process_set: its ranks train together; op and gradient_predivide_factor count them. On a rank
    that is no member the optimizer steps by itself.
    backend: "ps" pushes gradients to parameter servers (`ciranda run --ps N`), which hold the
    parameters and the optimizer's state; docs/parameter-server.md. mode: ps.Async(), ps.SSP(s) or
    ps.Sync(), the same on every rank. update_on: "worker" lets each worker step by itself and
    pushes what that has changed, for optimizers that servers do not know. force: also with a
    momentum that stale gradients usually make diverge. The first parameters are rank 0's.
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
    if backend not in ("ring", "ps"):
        raise ValueError(f"DistributedOptimizer: backend must be 'ring' or 'ps', not {backend!r}")
    if backend == "ps":
        _C.check_options(
            op, gradient_predivide_factor, backward_passes_per_step, None, max_grad_norm
        )
        of_a_ring = {
            "compression": compression is Compression.none,
            "op": op == Average,
            "gradient_predivide_factor": gradient_predivide_factor == 1.0,
            "num_groups": not num_groups,
            "groups": groups is None,
            "process_set": process_set is global_process_set,
            "bucket_bytes": bucket_bytes is None,
            "shared_step": shared_step == "auto",
            "share_parameters": not share_parameters,
            "broadcast_buffers": broadcast_buffers is None,
        }
        refuse_options([name for name, left_out in of_a_ring.items() if not left_out])
        named = _named(optimizer, named_parameters)
        require_plain("DistributedOptimizer", named)
        return distribute(optimizer, named, mode, update_on, force, max_grad_norm)
    if mode is not None or update_on != "server" or force:
        raise ValueError(
            "DistributedOptimizer: mode, update_on and force are of parameter servers; pass "
            "backend='ps'"
        )
    if _C.server_count():
        raise ValueError(
            "DistributedOptimizer: this job has parameter servers; pass backend='ps', or start it "
            "without --ps"
        )
    of_reduced_gradients = {
        "gradient_predivide_factor": gradient_predivide_factor != 1.0,
        "num_groups": num_groups != 0,
        "groups": groups is not None,
        "bucket_bytes": bucket_bytes is not None,
        "max_grad_norm": max_grad_norm is not None,
        "shared_step": shared_step == "host",
        "share_parameters": share_parameters,
    }
    if op == Adasum and any(of_reduced_gradients.values()):
        given = [option for option, is_given in of_reduced_gradients.items() if is_given]
        raise ValueError(
            f"DistributedOptimizer: with op=Adasum no gradients are reduced, so leave out "
            f"{', '.join(given)}"
        )
    _C.check_options(
        Average if op == Adasum else op,
        gradient_predivide_factor,
        backward_passes_per_step,
        bucket_bytes,
        max_grad_norm,
    )
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
    if op == Adasum:
        return adasum_optimizer.distribute(
            optimizer, named, compression, backward_passes_per_step, buffers, process_set
        )
    how = Reduction(
        op=op,
        predivide_factor=gradient_predivide_factor,
        backward_passes_per_step=backward_passes_per_step,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        groups=groups if groups is not None else num_groups,
        bucket_bytes=bucket_bytes,
        shared_step=shared_step,
        share_parameters=share_parameters,
        streams=0,
        max_grad_norm=max_grad_norm,
        buffers=buffers,
        process_set=process_set,
    )
    reduce_gradients(optimizer, named, how)
    begin(optimizer, named, max_grad_norm)
    if not process_set.alone():
        train_together(optimizer, named, buffers, apart=not share_parameters)
    autotune.begin(optimizer)
    return optimizer
