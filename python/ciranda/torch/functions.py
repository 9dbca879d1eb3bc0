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

    Blocking. Tensors may have any shape and dtype. Sparse tensors need the same number of elements
    on every rank, otherwise every rank gets a MismatchError. Values that are not tensors are
    ignored. `root_rank` is a rank of the job. Raises ValueError on a rank that is not a member of
    `process_set`, and for a nested tensor, a DTensor or a layout that is neither dense nor sparse.

    With parameter servers it fetches their newest parameters instead, and waits for no other
    worker; the first parameters are rank 0's, so `root_rank` has to be 0, with no process set.
    Buffers keep this rank's values.
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
                "dense or sparse tensors, such as those of which it was made"
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


# Maps a sparse layout to the function that returns the dense tensors of such a tensor.
_SPARSE: dict[torch.layout, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    torch.sparse_coo: lambda tensor: (tensor.detach()._indices(), tensor.detach()._values()),
    torch.sparse_csr: _of_rows,
    torch.sparse_bsr: _of_rows,
    torch.sparse_csc: _of_columns,
    torch.sparse_bsc: _of_columns,
}


def _check_elements(sparse: list[tuple[str, torch.Tensor]], process_set: ProcessSet) -> None:
    """Raises MismatchError unless the ranks' sparse tensors agree in layout and element count.

    The broadcast overwrites the elements in place, so their number and order are the receiver's.
    """
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
                    f"{wanted} on rank {first}; give it the same number of elements on every "
                    "rank, or send it by broadcast_object()"
                )


class _Placeholder:
    """Keys of the dicts that replace values which a structure cannot carry itself."""

    TENSOR = "__ciranda_tensor__"
    OWN = "__ciranda_own__"  # for a function: each rank keeps its own


def _is_numpy_scalar(value: Any) -> bool:
    numpy = sys.modules.get("numpy")  # a program that has not imported numpy has no such scalars
    return numpy is not None and isinstance(value, numpy.generic)


def _take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns `value` with a shape and dtype in place of each tensor.

    Appends the tensors to `tensors`, in order. They are copied to the CPU: load_state_dict() moves
    each to the device of its parameter, on every rank. NumPy scalars, such as a scheduler's
    learning rate, become Python numbers.
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
    """Undoes _take_tensors() with new, empty tensors, which it also appends to `tensors`."""
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
    """Replaces the marks of functions in the root's `groups` by this rank's own functions."""
    for number, (group, own) in enumerate(zip(groups, optimizer.param_groups, strict=False)):
        for key, value in group.items():
            if not isinstance(value, dict) or _Placeholder.OWN not in value:
                continue
            if not callable(own.get(key)):
                raise InvalidArgumentError(
                    f"{what}: param_groups[{number}]['{key}'] of the root is "
                    f"{value[_Placeholder.OWN]}, which cannot be sent; set the option on every "
                    "rank before this call"
                )
            group[key] = own[key]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: Any = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank the root's optimizer state and hyper-parameters. Blocking.

    It runs no step: the root's parameters and step counts stay as they are, and ranks without state
    get the root's. As in Horovod, if the root has no state, parameters without a gradient have a
    gradient of zeros afterwards. `model` is accepted for Horovod's scripts and ignored. If the
    root's state_dict() raises, every rank raises. `root_rank` is a rank of the job. Raises
    ValueError on a rank that is not a member of `process_set`, and for LBFGS.

    With parameter servers, which hold the state, it does what broadcast_parameters() does.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("broadcast_optimizer_state: LBFGS keeps state that cannot be broadcast")
    what = "broadcast_optimizer_state"
    if _C.server_count():  # the servers hold the state
        return _C.pull_newest(root_rank, process_set is global_process_set, what)
    groups = [{**group, "param_names": None} for group in optimizer.param_groups]
    require_plain(what, names_of_groups(groups))  # a program may have edited the lists
    tensors: list[torch.Tensor] = []
    structure, problem = None, None
    if _C.rank() == root_rank:
        try:
            # The root loads its state too: loading may convert values, and all ranks need the same.
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
    """Returns `obj` as bytes; raises InvalidArgumentError if the receivers would refuse them.

    `kind` is the type of the user's object, for the error.
    """
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
    # Maps to the CPU: GPUs may have other numbers on this rank, or be absent.
    return torch.load(buffer, weights_only=not allow_pickle, map_location="cpu")


def _check_pickle(allow_pickle: bool, what: str) -> None:
    if allow_pickle and not _C.hosts_are_trusted():
        raise InvalidArgumentError(
            f"{what}: allow_pickle=True runs code that other ranks send; between hosts it needs "
            "--tls (CIRANDA_TLS=1), or --trusted-network (CIRANDA_TRUSTED_NETWORK=1) if only "
            "trusted hosts are in the network"
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
    """Returns the root's `obj` on every rank. Blocking.

    `obj` consists of numbers, strings, bytes, lists, tuples, dicts and tensors; tensors arrive on
    the CPU. With allow_pickle=True on every rank it may be anything that pickles. Unpickling runs
    code of the sender, so between hosts allow_pickle needs TLS or a network that is declared
    trusted. Data that was changed on the way is an error.
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
    # The first four bytes of a rank's message are the rank that it takes for the root.
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
    """Returns every rank's `obj`, by rank. Blocking. broadcast_object() says what may be sent."""
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
