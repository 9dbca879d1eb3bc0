"""Collectives with Horovod's names, argument order and promises.

Each collective has up to four forms: `op` (blocking, returns a new tensor), `op_` (in place),
`op_async` and `op_async_`. An async form returns a handle for `poll` and `synchronize`; its tensors
must not be touched until then.

Every rank calls a collective with the same name, shape, dtype and op. Ranks may submit operations
in different orders. A disagreement is a MismatchError on every rank. Each kind of operation has its
own names. Without a name, the n-th unnamed call of a kind on one rank belongs to the n-th on every
other rank.

Tensors are dense and contiguous, or lazily conjugated or negated views. The tensors of a call are
on one device, the CPU or a CUDA GPU. Operations that only move data (broadcast, allgather,
alltoall, gather, scatter, send) take any dtype. Reductions take uint8, int8 to int64, uint16,
uint32, bool (Sum is "any", Min and Product "all"; no Average), float16/32/64, bfloat16, float8
(summed in float32) and complex (Sum and Average). Thread-safe; a blocked call has released the GIL.

The blocking forms that return new tensors are differentiable, except gather, scatter and reduce.
Autograd treats a tensor that an operation overwrites in place as written, also a parameter with
`requires_grad`.

Sums of integers wrap around as torch's do. Averages do not, because they sum in a wider dtype. On
the CPU, an average of int64 is refused if its sum may pass 2^63.

The ranks of one host sum float16 and bfloat16 in float32 and round once. Between hosts the sum is
rounded to 16 bits again at each host that it passes; reduce float32 tensors if that matters.

On a GPU an operation starts after the work that the current stream has queued before the call. The
host waits until all ranks have queued the operation, never for the GPU; later work of the current
stream sees the result.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ciranda import _C
from ciranda.errors import InvalidArgumentError, UnsupportedError
from ciranda.torch.compression import Compression
from ciranda.torch.process_sets import ProcessSet, global_process_set, number_of

Average: int = _C.AVERAGE
Sum: int = _C.SUM
Min: int = _C.MIN
Max: int = _C.MAX
Product: int = _C.PRODUCT
Adasum: int = _C.ADASUM

# Maps a handle to the function that makes synchronize()'s result of outputs and received rows.
_finish: dict[int, Callable[[list[torch.Tensor], list[int]], Any]] = {}
_HANDLES_WITHOUT_WARNING = 10_000
_latest = -1  # the highest handle so far


def _reduce_op(average: bool | None, op: int | None) -> int:
    if average is not None:
        if op is not None:
            raise ValueError("give either op or average (deprecated), not both")
        return Average if average else Sum
    return Average if op is None else op


def _first(outputs: list[torch.Tensor], _rows: list[int]) -> torch.Tensor:
    return outputs[0]


def _all(outputs: list[torch.Tensor], _rows: list[int]) -> list[torch.Tensor]:
    return outputs


def _keep(handle: int, finish: Callable[[list[torch.Tensor], list[int]], Any]) -> int:
    global _latest
    _finish[handle] = finish
    _latest = max(_latest, handle)
    if len(_finish) == _HANDLES_WITHOUT_WARNING:
        warnings.warn(
            f"{len(_finish)} asynchronous operations were started whose handles have not been "
            "synchronized; each operation keeps its tensors until then: call synchronize(handle)",
            stacklevel=3,
        )
    return handle


def _output_for(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return tensor  # the engine's error is better than torch's
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _wants_grad(tensors: Sequence[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _whole_numbers(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [out for out in outputs if not (out.is_floating_point() or out.is_complex())]


def _grads_of(
    ctx: Any, grads: Sequence[Any], reduce: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
) -> list[Any]:
    """Reduces the gradients in one call of `reduce`; a tensor that needs no gradient gets None.

    Every tensor that can have a gradient takes part, even if this rank does not need it: another
    rank may. An output that the loss does not use has a gradient of zeros.
    """
    members = [i for i, grad in enumerate(grads) if grad is not None and not _whole_numbers([grad])]
    needs = ctx.needs_input_grad[-len(grads) :]
    results: list[Any] = [None] * len(grads)
    reduced = reduce([grads[i].contiguous() for i in members])
    for i, grad in zip(members, reduced, strict=True):
        results[i] = grad if needs[i] else None
    return results


def poll(handle: int) -> bool:
    """Returns True once synchronize() would not block and a GPU has the result. Does not block."""
    return _C.poll(operator.index(handle))


def synchronize(handle: int) -> Any:
    """Blocks until the operation is done; returns its result or raises its error.

    A handle is an integer, and may be passed as any type that converts to one. It keeps the
    operation's tensors alive until it is synchronized; a second call returns None. Raises
    ValueError for a number that never was a handle.
    """
    return synchronize_and(handle, None)


def synchronize_and(handle: int, look: Callable[[], None] | None) -> Any:
    """Does what synchronize() does, and calls `look` about a hundred times a second while it waits.

    `look` may block.
    """
    number = operator.index(handle)
    if not 0 <= number <= _latest:
        raise InvalidArgumentError(
            f"synchronize: no operation has had the handle {number}; pass a handle that an async "
            "operation has returned"
        )
    finish = _finish.pop(number, None)
    result = _C.synchronize(number, look)
    if result is None or finish is None:
        return None
    return finish(*result)


# --- allreduce ---------------------------------------------------------------------------------


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts allreduce(); the result is a new tensor."""
    return grouped_allreduce_async(
        [tensor], average, name, op, prescale_factor, postscale_factor, process_set, _first
    )


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts allreduce_()."""
    return grouped_allreduce_async_(
        [tensor], average, name, op, prescale_factor, postscale_factor, process_set, _first
    )


def _allreduced(
    name: str, op: int, pre: float, post: float, members: int, *tensors: torch.Tensor
) -> list[torch.Tensor]:
    outputs = [_output_for(tensor) for tensor in tensors]
    if len(outputs) == 1:  # needs no handle
        _C.allreduce(tensors[0], outputs[0], name, op, pre, post, members)
    else:
        _C.synchronize(_C.allreduce_async(list(tensors), outputs, name, op, pre, post, members))
    return outputs


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str, op: int, pre: float, post: float, members: int, *tensors: torch.Tensor
    ) -> Any:
        ctx.arguments = (op, pre, post, members)
        outputs = _allreduced(name, op, pre, post, members, *tensors)
        ctx.mark_non_differentiable(*_whole_numbers(outputs))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        def again(group: list[torch.Tensor]) -> Any:
            return _Allreduce.apply("", *ctx.arguments, *group)

        return None, None, None, None, None, *_grads_of(ctx, grads, again)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the reduction of `tensor` over the ranks (default: Average) as a new tensor.

    Differentiable: the gradient is the same allreduce of the gradient. The tensor is multiplied by
    `prescale_factor` before the sum and by `postscale_factor` after it.

    Adasum (Maleki et al., MLSys 2021) adds orthogonal tensors and averages parallel ones:
    (1 - ab/2|a|^2) a + (1 - ab/2|b|^2) b for two ranks. More ranks combine in a tree, four as ((0,
    1), (2, 3)). Adasum takes floating tensors, and treats each tensor of a list separately. It
    allows at most 256 ranks, because it computes dot products of each rank with each. The CPU
    computes it, so for tensors on a GPU the host waits for the GPU.
    """
    members = number_of(process_set)
    packed, context = compression.compress(tensor)
    reduce = _Allreduce.apply if packed.requires_grad and torch.is_grad_enabled() else _allreduced
    arguments = (name or "", _reduce_op(average, op), prescale_factor, postscale_factor, members)
    (output,) = reduce(*arguments, packed)
    return compression.decompress(output, context)  # type: ignore[no-any-return]


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Does allreduce() in place; returns `tensor`."""
    _C.allreduce(
        tensor,
        tensor,
        name or "",
        _reduce_op(average, op),
        prescale_factor,
        postscale_factor,
        number_of(process_set),
    )
    return tensor


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Starts to reduce a sparse COO tensor; the returned function waits and returns the result.

    It gathers every rank's indices and values; their number may differ. The result is coalesced.
    `op` is Average or Sum; an Average of integers is truncated.
    """
    if op not in (Average, Sum):
        raise ValueError("sparse_allreduce_async: op must be Average or Sum")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(
            f"sparse_allreduce_async: the tensor's layout is {tensor.layout}, not sparse_coo; use "
            "allreduce_async()"
        )
    pieces = [tensor._indices().t().contiguous(), tensor._values().contiguous()]
    handle = grouped_allgather_async(pieces, name, process_set)
    shape, ranks = tensor.shape, process_set.size()

    def result() -> torch.Tensor:
        indices, values = synchronize(handle)
        checked = torch.sparse_coo_tensor(indices.t(), values, shape, check_invariants=True)
        total = checked.coalesce()
        if op == Average and (values.is_floating_point() or values.is_complex()):
            total.values().div_(ranks)
        elif op == Average:
            total.values().div_(ranks, rounding_mode="trunc")
        return total

    return result


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    _finish_with: Callable[[list[torch.Tensor], list[int]], Any] = _all,
) -> int:
    """Starts grouped_allreduce(); returns one handle for the list."""
    members = number_of(process_set)
    outputs = [_output_for(t) for t in tensors]
    handle = _C.allreduce_async(
        list(tensors),
        outputs,
        name or "",
        _reduce_op(average, op),
        prescale_factor,
        postscale_factor,
        members,
    )
    return _keep(handle, _finish_with)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    _finish_with: Callable[[list[torch.Tensor], list[int]], Any] = _all,
) -> int:
    """Starts grouped_allreduce_(); returns one handle for the list."""
    members = number_of(process_set)
    inputs = list(tensors)
    handle = _C.allreduce_async(
        inputs,
        inputs,
        name or "",
        _reduce_op(average, op),
        prescale_factor,
        postscale_factor,
        members,
    )
    return _keep(handle, _finish_with)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Does allreduce() of a list as one request, run when every tensor is ready on every rank.

    Differentiable; the gradients are one request too.
    """
    members = number_of(process_set)
    packed = [compression.compress(tensor) for tensor in tensors]
    inputs = [tensor for tensor, _ in packed]
    reduce = _Allreduce.apply if _wants_grad(inputs) else _allreduced
    arguments = (name or "", _reduce_op(average, op), prescale_factor, postscale_factor, members)
    outputs = reduce(*arguments, *inputs)
    return [
        compression.decompress(output, context)
        for output, (_, context) in zip(outputs, packed, strict=True)
    ]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Does grouped_allreduce() in place."""
    handle = grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    return synchronize(handle)  # type: ignore[no-any-return]


# --- operations that only move bytes -----------------------------------------------------------


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts broadcast(); the result is a new tensor."""
    members = number_of(process_set)
    handle = _C.broadcast_async([tensor], [_output_for(tensor)], root_rank, name or "", members)
    return _keep(handle, _first)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts broadcast_()."""
    members = number_of(process_set)
    handle = _C.broadcast_async([tensor], [tensor], root_rank, name or "", members)
    return _keep(handle, _first)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str, process_set: ProcessSet
    ) -> Any:
        ctx.root_rank = root_rank
        ctx.process_set = process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = allreduce(grads[0].contiguous(), op=Average, process_set=ctx.process_set)
        if ctx.root_rank != _C.rank():
            # Keeps the graph: if gradients are differentiated again, every rank takes part.
            grad = grad.masked_fill(grad.new_ones((), dtype=torch.bool), 0)
        return grad, None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the root's tensor as a new tensor on every rank. `root_rank` is a rank of the job.

    Differentiable: the root's gradient is the average over the ranks, other ranks' gradient is
    zero.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-any-return]
    return synchronize(broadcast_async(tensor, root_rank, name, process_set))  # type: ignore[no-any-return]


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Does broadcast() in place; returns `tensor`."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))  # type: ignore[no-any-return]


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts allgather()."""
    return grouped_allgather_async([tensor], name, process_set, _first)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.process_set = process_set
        outputs = synchronize(grouped_allgather_async(tensors, name, process_set))
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        ctx.mark_non_differentiable(*_whole_numbers(outputs))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        members = ctx.process_set
        own = torch.tensor([ctx.rows], device="cpu")
        rows = synchronize(allgather_async(own, process_set=members))
        begins = rows[: members.rank()].sum(0).tolist()
        average_of = functools.partial(grouped_allreduce, op=Average, process_set=members)
        averages = _grads_of(ctx, grads, average_of)
        return (
            None,
            None,
            *(
                None if average is None else average[begin : begin + count]
                for average, begin, count in zip(averages, begins, ctx.rows, strict=True)
            ),
        )


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Returns the ranks' tensors concatenated along dimension 0, whose size may differ by rank.

    Differentiable: the gradient is this rank's slice of the averaged gradient.
    """
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    _finish_with: Callable[[list[torch.Tensor], list[int]], Any] = _all,
) -> int:
    """Starts grouped_allgather(); returns one handle for the list."""
    handle = _C.allgather_async(list(tensors), name or "", number_of(process_set))
    return _keep(handle, _finish_with)


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Does allgather() of a list as one request. Differentiable."""
    if _wants_grad(tensors):
        return list(_Allgather.apply(name, process_set, *tensors))
    return synchronize(grouped_allgather_async(tensors, name, process_set))  # type: ignore[no-any-return]


def _splits(what: str, splits: torch.Tensor | Sequence[int] | None) -> list[int] | None:
    if splits is None:
        return None
    counts = splits.tolist() if isinstance(splits, torch.Tensor) else splits
    try:
        return [operator.index(count) for count in counts]
    except TypeError:
        raise ValueError(f"{what}: splits must be whole numbers, but are {counts}") from None


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts alltoall(); synchronize() returns (output, received_splits), also without splits."""
    counts = _splits("alltoall", splits)
    handle = _C.alltoall_async(tensor, counts, name or "", number_of(process_set))
    return _keep(
        handle,
        lambda outputs, rows: (outputs[0], torch.tensor(rows, dtype=torch.int32, device="cpu")),
    )


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Any, name: str, process_set: ProcessSet
    ) -> Any:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.received = received
        ctx.process_set = process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0].contiguous()
        back, _ = alltoall(grad, ctx.received, process_set=ctx.process_set)
        return back, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends `splits[r]` rows to each rank r; returns the received rows in rank order.

    Without splits, dimension 0 is divided evenly and only the output is returned. With splits, it
    returns (output, received_splits), where received_splits is an int32 tensor on the CPU.
    Differentiable: gradients travel back.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        output, received = _Alltoall.apply(tensor, splits, name, process_set)
    else:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, received)


# --- gather and scatter ------------------------------------------------------------------------


def gather_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts gather()."""
    handle = _C.gather_async(tensor, root_rank, name or "", number_of(process_set))
    return _keep(handle, _first)


def gather(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Does allgather() for the root alone; other ranks get a tensor of 0 rows.

    Dimension 0 may differ by rank; `root_rank` is a rank of the job. Not differentiable.
    """
    return synchronize(gather_async(tensor, root_rank, name, process_set))  # type: ignore[no-any-return]


def scatter_async(
    tensor: torch.Tensor,
    root_rank: int,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts scatter()."""
    counts = _splits("scatter", splits)
    handle = _C.scatter_async(tensor, root_rank, counts, name or "", number_of(process_set))
    return _keep(handle, _first)


def scatter(
    tensor: torch.Tensor,
    root_rank: int,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns this rank's piece of the root's tensor: `splits[r]` rows for each rank r.

    Without splits, dimension 0 is divided evenly. Every other rank passes a tensor too: its dtype
    and its sizes after dimension 0 must be the root's, but it may have 0 rows. The splits of other
    ranks are ignored. `root_rank` is a rank of the job. Splits that do not fit the root's tensor
    raise on all ranks. Not differentiable.
    """
    return synchronize(scatter_async(tensor, root_rank, splits, name, process_set))  # type: ignore[no-any-return]


# --- reduce ------------------------------------------------------------------------------------


def _reduce_async(
    tensor: torch.Tensor,
    output: torch.Tensor,
    root_rank: int,
    name: str | None,
    op: int,
    process_set: ProcessSet,
    factors: tuple[float, float],
) -> int:
    members = number_of(process_set)
    handle = _C.reduce_async(tensor, output, root_rank, name or "", op, *factors, members)
    return _keep(handle, lambda _outputs, _rows: output)


def reduce_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts reduce()."""
    output = _output_for(tensor) if root_rank == _C.rank() else tensor.detach()
    factors = (prescale_factor, postscale_factor)
    return _reduce_async(tensor, output, root_rank, name, op, process_set, factors)


def reduce_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts reduce_()."""
    factors = (prescale_factor, postscale_factor)
    return _reduce_async(tensor, tensor, root_rank, name, op, process_set, factors)


def reduce(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Does allreduce() for one rank: the root gets the reduction as a new tensor.

    Other ranks get `tensor` itself, without its graph. `root_rank` is a rank of the job. Not
    differentiable.
    """
    factors = (prescale_factor, postscale_factor)
    return synchronize(reduce_async(tensor, root_rank, name, op, process_set, *factors))  # type: ignore[no-any-return]


def reduce_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Does reduce() in place on the root; other ranks' tensors do not change. Returns `tensor`."""
    factors = (prescale_factor, postscale_factor)
    return synchronize(reduce_async_(tensor, root_rank, name, op, process_set, *factors))  # type: ignore[no-any-return]


# --- send and recv -----------------------------------------------------------------------------


def _nothing(_outputs: list[torch.Tensor], _rows: list[int]) -> None:
    return None


def send_async(tensor: torch.Tensor, dst: int, name: str | None = None) -> int:
    """Starts send()."""
    return _keep(_C.send_async(tensor, dst, name or ""), _nothing)


def send(tensor: torch.Tensor, dst: int, name: str | None = None) -> None:
    """Sends the tensor to rank `dst`; returns when `dst` has received it.

    The n-th send without a name from one rank to another matches the n-th recv() without a name
    there; `name` takes the place of torch.distributed's tag. No other rank takes part. If ranks
    send to each other at the same time, one of them must use send_async() or recv_async(). Not
    differentiable.
    """
    synchronize(send_async(tensor, dst, name))


def recv_async(tensor: torch.Tensor, src: int, name: str | None = None) -> int:
    """Starts recv()."""
    return _keep(_C.recv_async(tensor, src, name or ""), _first)


def recv(tensor: torch.Tensor, src: int, name: str | None = None) -> torch.Tensor:
    """Receives rank `src`'s tensor into `tensor`; returns `tensor`.

    Dtype and shape must be those of the sent tensor, otherwise both ranks get a MismatchError.
    """
    return synchronize(recv_async(tensor, src, name))  # type: ignore[no-any-return]


# --- reducescatter and barrier -----------------------------------------------------------------


def _scatter_op(op: int) -> int:
    if op == Adasum:
        raise UnsupportedError(
            "reducescatter: op=Adasum needs whole tensors and not pieces; call allreduce()"
        )
    if op not in (Average, Sum):
        raise ValueError("reducescatter: op must be Average or Sum")
    return op


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts reducescatter()."""
    return grouped_reducescatter_async(
        [tensor], name, op, process_set, prescale_factor, postscale_factor, _first
    )


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        pre: float,
        post: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.process_set = process_set
        ctx.scale = pre * post * (process_set.size() if op == Sum else 1)
        handle = grouped_reducescatter_async(tensors, name, op, process_set, pre, post)
        outputs = synchronize(handle)
        ctx.mark_non_differentiable(*_whole_numbers(outputs))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        gather = functools.partial(grouped_allgather, process_set=ctx.process_set)
        gathered = _grads_of(ctx, grads, gather)
        scaled = (None if grad is None else grad * ctx.scale for grad in gathered)
        return None, None, None, None, None, *scaled


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Returns this rank's piece of the reduction along dimension 0.

    The first ranks get one row more if the rows do not divide evenly. `op` is Average or Sum.
    Differentiable: the gradient is the allgather of the gradients (times the number of ranks for
    Sum), as in Horovod.
    """
    return grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )[0]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    _finish_with: Callable[[list[torch.Tensor], list[int]], Any] = _all,
) -> int:
    """Starts grouped_reducescatter(); returns one handle for the list."""
    members = number_of(process_set)
    handle = _C.reducescatter_async(
        list(tensors), name or "", _scatter_op(op), prescale_factor, postscale_factor, members
    )
    return _keep(handle, _finish_with)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Does reducescatter() of a list as one request. Differentiable."""
    packed = [compression.compress(tensor) for tensor in tensors]
    inputs = [tensor for tensor, _ in packed]
    if _wants_grad(inputs):
        arguments = (name, _scatter_op(op), prescale_factor, postscale_factor, process_set)
        outputs = _Reducescatter.apply(*arguments, *inputs)
    else:
        handle = grouped_reducescatter_async(
            inputs, name, op, process_set, prescale_factor, postscale_factor
        )
        outputs = synchronize(handle)
    return [
        compression.decompress(output, context)
        for output, (_, context) in zip(outputs, packed, strict=True)
    ]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until every rank of the set has called it or has joined."""
    _C.synchronize(_C.barrier_async("", number_of(process_set)))


def join(device: int = -1) -> int:
    """Says that this rank has no more data; blocks until every rank has called it.

    Meanwhile this rank adds zeros to the sums and averages of other ranks, and averages still count
    it. Operations without a zero (Min, Max, Product, Adasum, and all except allreduce and barrier)
    raise on the ranks that call them. Returns the rank that joined last, on every rank. `device` is
    accepted for Horovod's scripts and ignored. Raises InvalidArgumentError in a block of
    elastic.steps(), in which each rank has a batch.
    """
    del device
    if _C.in_elastic_job():
        from ciranda.torch.elastic import state  # not at the start: it costs an import

        if getattr(state.current, "undo_block", None) is not None:
            raise InvalidArgumentError(
                "join: in a block of elastic.steps() each rank has a batch, and the others wait "
                "for its step; leave join() out"
            )
    return _C.join()


# --- arena -------------------------------------------------------------------------------------


def arena_empty(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns a tensor in memory that all ranks of the host share; see arena_allreduce_()."""
    return _C.arena_empty(list(shape), torch.empty(0, dtype=dtype))


def arena_allreduce_(
    tensor: torch.Tensor, name: str | None = None, op: int = Average
) -> torch.Tensor:
    """Does allreduce_() of a tensor from arena_empty(), where it lies. Every rank calls it."""
    _C.synchronize(_C.arena_allreduce_async(tensor, name or "", op))
    return tensor
