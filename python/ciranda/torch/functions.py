"""Broadcast of models, optimizers and objects, and allgather of objects."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ciranda import _C
from ciranda.errors import InvalidArgumentError, MismatchError
from ciranda.torch.large_bytes import LargeBytes
from ciranda.torch.optimizer_classes import names_of_groups
from ciranda.torch.plain_tensors import require_plain
from ciranda.torch.process_sets import ProcessSet, global_process_set, number_of


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank the root's values of a state_dict or of named parameters, in place.

    Blocking; tensors of any shape and dtype, also sparse ones with as many elements on every rank;
    values that are no tensors are left alone.
    `root_rank` is a rank of the job. ValueError where this rank is no member of `process_set`.
    With parameter servers: takes the newest parameters that they hold, waiting for nobody; the
    first are rank 0's. Buffers stay this rank's.
    """
    if _C.server_count():
        all_ranks = process_set is global_process_set
        return _C.pull_newest(root_rank, all_ranks, "broadcast_parameters")
    members = number_of(process_set)
    pairs = sorted(params.items()) if isinstance(params, Mapping) else list(params)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ValueError(
                "broadcast_parameters: params must be a dict or (name, tensor) pairs, usually "
                "model.state_dict()"
            )
    named = [(name, value) for name, value in pairs if isinstance(value, torch.Tensor)]
    require_plain("broadcast_parameters", named)
    for name, tensor in named:
        if tensor.is_nested or tensor.layout not in (torch.strided, *_SPARSE):
            kind = "a nested tensor" if tensor.is_nested else f"of layout {tensor.layout}"
            raise ValueError(
                f"broadcast_parameters: '{name}' is {kind}, whose values cannot be reached; give "
                "dense or sparse tensors, such as those that it was made of"
            )
    sparse = [(name, tensor) for name, tensor in named if tensor.layout in _SPARSE]
    if sparse:
        _check_elements(sparse, process_set)
    tensors = [part for _, tensor in named for part in _SPARSE.get(tensor.layout, _itself)(tensor)]
    if tensors:
        _C.broadcast_tensors(tensors, root_rank, "broadcast_parameters", members)


def _itself(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (tensor,)


def _of_rows(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    own = tensor.detach()
    return own.crow_indices(), own.col_indices(), own.values()


def _of_columns(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    own = tensor.detach()
    return own.ccol_indices(), own.row_indices(), own.values()


# Of each layout the dense tensors that hold it.
_SPARSE: dict[torch.layout, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    torch.sparse_coo: lambda tensor: (tensor.detach()._indices(), tensor.detach()._values()),
    torch.sparse_csr: _of_rows,
    torch.sparse_bsr: _of_rows,
    torch.sparse_csc: _of_columns,
    torch.sparse_bsc: _of_columns,
}


def _check_elements(sparse: list[tuple[str, torch.Tensor]], process_set: ProcessSet) -> None:
    """What is received goes where elements are: their number is the tensor's, as is the order."""
    mine = [
        [
            str(name),
            f"{tensor._nnz()} elements of {list(tensor.shape)}, {tensor.layout}"
            + (
                ", coalesced" if tensor.layout is torch.sparse_coo and tensor.is_coalesced() else ""
            ),
        ]
        for name, tensor in sparse
    ]
    by_rank = allgather_object(mine, "broadcast_parameters.sparse", process_set)
    first = process_set.ranks[0]
    for rank, theirs in zip(process_set.ranks, by_rank, strict=True):
        for (name, its), (_, wanted) in zip(theirs, by_rank[0], strict=False):
            if its != wanted:
                raise MismatchError(
                    f"broadcast_parameters: the sparse '{name}' has {its} on rank {rank} and "
                    f"{wanted} on rank {first}; make it with as many everywhere, or send it by "
                    "broadcast_object()"
                )


class _Placeholder:
    """Keys that mark a tensor within a structure that travels without its data."""

    TENSOR = "__ciranda_tensor__"
    OWN = "__ciranda_own__"  # a function, of which each rank has its own


def _is_numpy_scalar(value: Any) -> bool:
    numpy = sys.modules.get("numpy")  # without it nobody has one
    return numpy is not None and isinstance(value, numpy.generic)


def _take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """`value` with each tensor replaced by its shape and dtype; the tensors in order.

    All on the CPU: load_state_dict() puts each where its parameter is, on every rank. Numbers of
    NumPy, such as a scheduler's learning rate, become Python's.
    """
    if isinstance(value, torch.Tensor):
        tensors.append(value.cpu())
        return {_Placeholder.TENSOR: [list(value.shape), str(value.dtype).removeprefix("torch.")]}
    if isinstance(value, dict):
        return {key: _take_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_take_tensors(item, tensors) for item in value)
    if callable(value):
        return {_Placeholder.OWN: repr(value)}
    return value.item() if _is_numpy_scalar(value) else value


def _put_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The opposite, with fresh tensors, which are also appended to `tensors`."""
    if isinstance(value, dict):
        if _Placeholder.TENSOR in value:
            shape, dtype = value[_Placeholder.TENSOR]
            tensors.append(torch.empty(shape, dtype=getattr(torch, dtype), device="cpu"))
            return tensors[-1]
        return {key: _put_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_put_tensors(item, tensors) for item in value)
    return value


def _keep_own(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], what: str) -> None:
    """Functions in the root's `groups` are what this rank has in their place."""
    for number, (group, own) in enumerate(zip(groups, optimizer.param_groups, strict=False)):
        for key, value in group.items():
            if not isinstance(value, dict) or _Placeholder.OWN not in value:
                continue
            if not callable(own.get(key)):
                raise InvalidArgumentError(
                    f"{what}: param_groups[{number}]['{key}'] of the root is "
                    f"{value[_Placeholder.OWN]}, which cannot be sent; set it on every rank before"
                )
            group[key] = own[key]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: Any = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank the root's optimizer state and hyper-parameters. Blocking.

    No step is run: parameters and step counts of the root stay as they are, and ranks without
    state get the root's. As in Horovod, parameters have gradients of zeros afterwards, where they
    had none and the root had no state. `model` is accepted for Horovod's scripts and not needed.
    Where the root's state_dict() raises, every rank does. `root_rank` is a rank of the job.
    ValueError where this rank is no member of `process_set`.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("broadcast_optimizer_state: LBFGS keeps state that cannot be broadcast")
    what = "broadcast_optimizer_state"
    if _C.server_count():  # which hold it
        return _C.pull_newest(root_rank, process_set is global_process_set, what)
    groups = [{**group, "param_names": None} for group in optimizer.param_groups]
    require_plain(what, names_of_groups(groups))  # a program may have edited the lists
    tensors: list[torch.Tensor] = []
    structure, problem = None, None
    if _C.rank() == root_rank:
        try:
            # Also here: it may convert what it loads, and all ranks shall have the same.
            optimizer.load_state_dict(optimizer.state_dict())
            structure = _take_tensors(optimizer.state_dict(), tensors)
        except Exception as error:
            problem = error
    said = problem and f"{type(problem).__name__}: {problem}"
    structure, said = broadcast_object((structure, said), root_rank, what, process_set)
    if problem is not None:
        raise problem
    if said is not None:
        raise InvalidArgumentError(f"{what}: rank {root_rank} has no state to send ({said})")
    if _C.rank() != root_rank:
        state = _put_tensors(structure, tensors)
        _keep_own(optimizer, state["param_groups"], what)
    if tensors:
        _C.broadcast_tensors(tensors, root_rank, f"{what}.tensors", number_of(process_set))
    if _C.rank() != root_rank:
        optimizer.load_state_dict(state)
    if not structure["state"]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and parameter.grad is None:
                    zeros = torch.zeros_like(parameter)
                    is_sparse = isinstance(optimizer, torch.optim.SparseAdam)
                    parameter.grad = zeros.to_sparse(1) if is_sparse else zeros


def _encode(obj: Any, allow_pickle: bool, what: str, kind: type) -> torch.Tensor:
    """Bytes of `obj`, made of one of `kind`; an error if the other ranks would refuse them."""
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    encoded = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)
    if not allow_pickle:
        try:
            _decode(encoded, allow_pickle)
        except Exception as problem:
            raise InvalidArgumentError(
                f"{what}: a {kind.__name__} holds more than numbers, strings, lists, dicts "
                f"and tensors; pass allow_pickle=True on every rank to send it ({problem})"
            ) from problem
    return encoded


def _decode(encoded: torch.Tensor, allow_pickle: bool) -> Any:
    buffer = io.BytesIO(encoded.numpy().tobytes())
    # On another rank a GPU has another number, or there is none.
    return torch.load(buffer, weights_only=not allow_pickle, map_location="cpu")


def _check_pickle(allow_pickle: bool, what: str) -> None:
    if allow_pickle and not _C.hosts_are_trusted():
        raise InvalidArgumentError(
            f"{what}: allow_pickle=True runs code that other ranks send; between hosts it needs "
            "--tls (CIRANDA_TLS=1), or --trusted-network (CIRANDA_TRUSTED_NETWORK=1) where nobody "
            "else is"
        )


def _listed(ranks: list[int]) -> str:
    whole = ranks == list(range(len(ranks)))
    return f"0 to {len(ranks) - 1}" if whole else ", ".join(map(str, ranks))


_NOTHING = torch.empty(0, dtype=torch.uint8, device="cpu")


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> Any:
    """The root's `obj` on every rank. Blocking.

    Numbers, strings, bytes, lists, tuples, dicts and tensors, which arrive on the CPU; anything
    that pickles with allow_pickle=True (on every rank: unpickling runs code of the sender; between
    hosts only with TLS, or in a network that is said to be trusted). What somebody on the way has
    changed is an error.
    """
    members = number_of(process_set)
    label = f"broadcast_object.{name or 'noname'}"
    _check_pickle(allow_pickle, label)
    ranks = process_set.ranks
    if root_rank not in ranks:
        raise InvalidArgumentError(
            f"{label}: root_rank {root_rank} is not a rank; ranks are {_listed(ranks)}"
        )
    at_root = _C.rank() == root_rank
    problem: Exception | None = None
    encoded, large = _NOTHING, LargeBytes()
    if at_root:
        try:
            taken = large.take(obj)
            encoded = _encode([taken, large.description()], allow_pickle, label, type(obj))
        except Exception as error:
            problem = error
    # Each says who it takes for the root, in four bytes.
    root = torch.frombuffer(bytearray(root_rank.to_bytes(4, "little")), dtype=torch.uint8)
    pieces = _C.allgather_bytes(torch.cat([root, encoded]), label, members)
    roots = [int.from_bytes(piece[:4].numpy().tobytes(), "little") for piece in pieces]
    for rank, its_root in zip(ranks, roots, strict=True):
        if its_root != roots[0]:
            raise MismatchError(
                f"{label}: the ranks differ in root_rank: rank {ranks[0]} has {roots[0]}, rank "
                f"{rank} has {its_root}; give the same on every rank"
            )
    if problem is not None:
        raise problem
    theirs = pieces[ranks.index(root_rank)][4:]
    if not theirs.numel():
        raise InvalidArgumentError(f"{label}: rank {root_rank} could not send its object")
    if at_root:
        large.broadcast(root_rank, label, members)
        return obj
    taken, description = _decode(theirs, allow_pickle)
    large = LargeBytes.described(description)
    large.broadcast(root_rank, label, members)
    return large.put(taken)


def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> list[Any]:
    """Every rank's `obj`, by rank. Blocking. What may be sent: see broadcast_object()."""
    members = number_of(process_set)
    label = f"allgather_object.{name or 'noname'}"
    _check_pickle(allow_pickle, label)
    problem: Exception | None = None
    encoded = _NOTHING
    try:
        encoded = _encode(obj, allow_pickle, label, type(obj))
    except Exception as error:
        problem = error
    pieces = _C.allgather_bytes(encoded, label, members)
    if problem is not None:
        raise problem
    by_rank = zip(process_set.ranks, pieces, strict=True)
    failed = [rank for rank, piece in by_rank if not piece.numel()]
    if failed:
        raise InvalidArgumentError(f"{label}: ranks {failed} could not send their objects")
    return [_decode(piece, allow_pickle) for piece in pieces]
