"""broadcast_parameters, broadcast_optimizer_state, broadcast_object and allgather_object."""

from __future__ import annotations

import collections
import math
from typing import Any

import pytest
import torch
from backends import over_backends_of_the_cpu
from rank_checks import on_ranks
from torch import nn

import ciranda.torch as hvd

pytestmark = over_backends_of_the_cpu


class Custom:
    """Something that only pickle can carry."""

    def __init__(self, number: int) -> None:
        self.number = number


def equal_everywhere(tensor: torch.Tensor) -> bool:
    """Whether all ranks hold the same bits."""
    gathered = hvd.allgather(tensor.detach().contiguous().unsqueeze(0))
    return all(torch.equal(gathered[0], row) for row in gathered)


# --- parameters ----------------------------------------------------------------------------------


def model_of(rank: int) -> nn.Module:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    model.to(memory_format=torch.channels_last)
    model[1].num_batches_tracked.fill_(rank)  # an integer buffer of no dimension
    model.register_buffer("mask", torch.tensor([rank == 1, True]))
    return model


@on_ranks(1, 2, 3)
def test_parameters_become_those_of_the_root() -> None:
    for root in range(hvd.size()):
        model, expected = model_of(hvd.rank()), model_of(root)
        strides = [p.stride() for p in model.parameters()]
        before = [p.data_ptr() for p in model.parameters()]
        hvd.broadcast_parameters(model.state_dict(), root_rank=root)
        for (name, found), wanted in zip(
            model.state_dict().items(), expected.state_dict().values(), strict=True
        ):
            assert torch.equal(found, wanted), name
        assert before == [p.data_ptr() for p in model.parameters()], "in place"
        assert strides == [p.stride() for p in model.parameters()], "channels_last is kept"
    model = model_of(hvd.rank())
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    assert all(equal_everywhere(p) for p in model.parameters())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


@on_ranks(2)
def test_parameters_that_are_no_tensors_or_very_many() -> None:
    hvd.broadcast_parameters({}, 0)
    mixed: dict[str, Any] = {"epoch": 3, "w": torch.full((2,), float(hvd.rank())), "none": None}
    hvd.broadcast_parameters(mixed, 1)
    assert mixed["w"].tolist() == [1, 1] and mixed["epoch"] == 3
    many = {f"p{i}": torch.full((1,), i + hvd.rank()) for i in range(5000)}
    hvd.broadcast_parameters(many, 1)
    assert [int(many[f"p{i}"]) for i in range(5000)] == list(range(1, 5001))
    with pytest.raises(ValueError, match="params must be a dict or"):
        hvd.broadcast_parameters([torch.ones(1)], 0)
    with pytest.raises(ValueError, match="root_rank 2 is not a rank"):
        hvd.broadcast_parameters({"w": torch.ones(1)}, 2)


def sparse_of(rank: int, layout: torch.layout) -> torch.Tensor:
    """Five elements, in other places and of other values on each rank."""
    dense = torch.zeros(6, 6)
    dense[torch.arange(5), (torch.arange(5) + rank) % 6 // 2 * 2] = rank + 1.0
    blocks = (1, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return dense.to_sparse(layout=layout, blocksize=blocks)


@pytest.mark.filterwarnings("ignore:Sparse")
@on_ranks(2, 3)
def test_sparse_parameters_become_those_of_the_root() -> None:
    rank, root = hvd.rank(), hvd.size() - 1
    layouts = (
        torch.sparse_coo,
        torch.sparse_csr,
        torch.sparse_csc,
        torch.sparse_bsr,
        torch.sparse_bsc,
    )
    model = torch.nn.Linear(2, 2)
    for layout in layouts:
        model.register_buffer(str(layout)[-3:], sparse_of(rank, layout))
    twice = torch.sparse_coo_tensor([[0, 0], [rank, rank]], [1.0, 2.0], (3, 3))
    model.weights = torch.nn.Parameter(twice)
    hvd.broadcast_parameters(model.state_dict(), root)
    assert equal_everywhere(model.weight)
    for layout in layouts:
        found, wanted = getattr(model, str(layout)[-3:]), sparse_of(root, layout)
        assert found.layout is layout and torch.equal(found.to_dense(), wanted.to_dense()), layout
    assert model.weights.to_dense()[0, root] == 3 and model.weights.requires_grad
    other = {"w": torch.ones(1), "a": torch.eye(2 + rank).to_sparse()}
    with pytest.raises(
        hvd.HorovodInternalError, match=r"the sparse 'a' has 3 elements of .* on ran"
    ):
        hvd.broadcast_parameters(other, root)


@on_ranks(2)
def test_tensors_whose_values_cannot_be_reached_are_named() -> None:
    ragged = [torch.ones(2), torch.ones(3)]
    for tensor, kind in (
        (torch.nested.nested_tensor(ragged), "'x' is a nested tensor, whose values cannot"),
        (torch.nested.nested_tensor(ragged, layout=torch.jagged), "'x' is a NestedTensor, whose"),
        (torch.ones(2, 2).to_mkldnn(), "'x' is of layout torch._mkldnn, whose values cannot"),
    ):
        with pytest.raises(ValueError, match=f"broadcast_parameters: {kind}"):
            hvd.broadcast_parameters({"w": torch.ones(1), "x": tensor}, 0)


# --- optimizer state -----------------------------------------------------------------------------

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1)),
    "RMSprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "Adagrad": torch.optim.Adagrad,
    "Rprop": torch.optim.Rprop,
}


@on_ranks(2, 3)
def test_optimizer_state_becomes_that_of_the_root() -> None:
    for name, make in OPTIMIZERS.items():
        model = model_of(0)
        groups = [{"params": [p]} for p in model.parameters()]
        optimizer = make(groups)
        root = 1
        if hvd.rank() == root:  # the others have no state at all
            for _ in range(2):
                model(torch.rand(2, 3, 3, 3)).sum().backward()
                optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.025
            optimizer.param_groups[0]["note"] = ("a", 1.5, None, True)
        values = [p.detach().clone() for p in model.parameters()]
        hvd.broadcast_optimizer_state(optimizer, root)
        assert float(optimizer.param_groups[0]["lr"]) == 0.025, name
        assert optimizer.param_groups[0]["note"] == ("a", 1.5, None, True), name
        for before, after in zip(values, model.parameters(), strict=True):
            assert torch.equal(before, after), "no step was run"
        state = optimizer.state_dict()["state"]
        assert bool(state) == (name not in ("SGD",)) or all(
            value is None for row in state.values() for value in row.values()
        ), (name, state)
        for row in state.values():
            for key, value in row.items():
                if isinstance(value, torch.Tensor):
                    assert equal_everywhere(value.float()), (name, key)
                    assert key != "step" or value.item() == 2, name
        # Training goes on from there, the same on every rank.
        hvd.broadcast_parameters(model.state_dict(), root)
        optimizer.zero_grad()
        torch.manual_seed(3)
        model(torch.rand(2, 3, 3, 3)).sum().backward()
        optimizer.step()
        assert all(equal_everywhere(p) for p in model.parameters()), name


@on_ranks(2)
def test_functions_of_a_group_are_each_ranks_own() -> None:
    def optimizer_of(own: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0 + hvd.rank())
        optimizer.param_groups[0]["schedule"] = own
        return optimizer

    optimizer = optimizer_of(hvd.rank)
    hvd.broadcast_optimizer_state(optimizer, 1)
    group = optimizer.param_groups[0]
    assert group["lr"] == 2.0 and group["schedule"]() == hvd.rank()
    optimizer = optimizer_of(math.cos if hvd.rank() == 0 else None)
    if hvd.rank() == 0:
        hvd.broadcast_optimizer_state(optimizer, 0)
    else:
        with pytest.raises(ValueError, match=r"\['schedule'\] of the root is <built-in .* cos>, w"):
            hvd.broadcast_optimizer_state(optimizer, 0)


@on_ranks(1)
def test_lbfgs_is_refused() -> None:
    optimizer = torch.optim.LBFGS([nn.Parameter(torch.ones(1))])
    with pytest.raises(ValueError, match="LBFGS keeps state that cannot be broadcast"):
        hvd.broadcast_optimizer_state(optimizer, 0)


# --- objects -------------------------------------------------------------------------------------


def thing(rank: int) -> Any:
    return {
        "epoch": rank,
        "name": f"rank {rank} ü",
        "list": [1, 2.5, None, True, b"bytes", (1, 2)],
        "nested": collections.OrderedDict(a={"b": [rank] * rank}),
    }


@on_ranks(1, 2, 3)
def test_objects_travel() -> None:
    size, rank = hvd.size(), hvd.rank()
    for root in range(size):
        assert hvd.broadcast_object(thing(rank), root) == thing(root)
        assert hvd.broadcast_object(thing(rank), root_rank=root, name="named") == thing(root)
    for empty in (None, 0, "", [], {}):
        assert hvd.broadcast_object(empty if rank == 0 else "else", 0) == empty
    assert hvd.broadcast_object("x" * 3_000_000 if rank == 0 else None) == "x" * 3_000_000
    found = hvd.broadcast_object({"w": torch.full((3,), float(rank))}, size - 1)
    assert torch.equal(found["w"], torch.full((3,), size - 1.0))

    assert hvd.allgather_object(thing(rank)) == [thing(r) for r in range(size)]
    assert hvd.allgather_object("y" * rank * 10_000, name="a") == [
        "y" * r * 10_000 for r in range(size)
    ]


@on_ranks(2)
def test_large_bytes_travel_wherever_they_are() -> None:
    rank = hvd.rank()
    big, small = bytes([rank]) * 200_000, bytes([rank]) * 100
    wanted = [bytes([1]) * 200_000, bytes([1]) * 100]
    assert hvd.broadcast_object(big, 1) == wanted[0]
    for obj, theirs in (
        (
            [big, small, (big, {3: big, "n": 0})],
            [*wanted, (wanted[0], {3: wanted[0], "n": 0})],
        ),
        (collections.OrderedDict(a=big), collections.OrderedDict(a=wanted[0])),
        ({"a": [small], "b": bytearray(big)}, {"a": wanted[1:], "b": bytearray(wanted[0])}),
    ):
        pickles = "b" in obj
        found = hvd.broadcast_object(obj, 1, allow_pickle=pickles)
        assert found == theirs and type(found) is type(theirs)
    shared = [big]
    ring: list[Any] = [shared, shared]
    ring.append(ring)
    found = hvd.broadcast_object(ring, 1)
    assert found[0] is found[1] and found[2] is found and found[0] == wanted[:1]


@on_ranks(2)
def test_only_plain_values_travel_without_leave() -> None:
    rank = hvd.rank()
    found = hvd.broadcast_object(Custom(rank), 1, allow_pickle=True)
    assert type(found) is Custom and found.number == 1
    gathered = hvd.allgather_object(Custom(rank), allow_pickle=True)
    assert [one.number for one in gathered] == [0, 1]

    # Without leave: an error on both, and nobody waits for ever.
    with pytest.raises(ValueError) as refused:
        hvd.broadcast_object(Custom(rank), 1, name="c")
    text = str(refused.value)
    if rank == 1:
        assert "a Custom holds more than numbers, strings, lists, dicts and tensors" in text
        assert "pass allow_pickle=True on every rank to send it" in text
    else:
        assert text == "broadcast_object.c: rank 1 could not send its object"
    with pytest.raises(ValueError) as refused:
        hvd.allgather_object(Custom(rank) if rank == 1 else 5, name="g")
    if rank == 0:
        assert str(refused.value) == "allgather_object.g: ranks [1] could not send their objects"
    # What does not pickle at all.
    with pytest.raises((ValueError, AttributeError, TypeError)):
        hvd.broadcast_object(lambda: None, 1, allow_pickle=True)
    with pytest.raises(
        hvd.HorovodInternalError, match="differ in root_rank: rank 0 has 0, rank 1 has 1; give"
    ):
        hvd.broadcast_object(1, root_rank=rank)
    with pytest.raises(ValueError, match="root_rank 5 is not a rank; ranks are 0 to 1"):
        hvd.broadcast_object(1, root_rank=5)
    assert hvd.broadcast_object(rank, 1) == 1, "the World goes on"


# --- another default device ----------------------------------------------------------------------


class Halving:
    """Compression that only Python knows."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        return tensor / 2, None

    @staticmethod
    def decompress(tensor: torch.Tensor, _: None) -> torch.Tensor:
        return tensor * 2


@on_ranks(2)
def test_the_default_device_of_the_script_changes_nothing() -> None:
    rank, host = hvd.rank(), torch.device("cpu")
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if rank == 1:
        model(torch.ones(2)).sum().backward()
        optimizer.step()
    with torch.device("meta"):  # by default, as "cuda" would be, but here on any machine
        assert hvd.broadcast_object({"epoch": rank}, 1) == {"epoch": 1}
        assert hvd.allgather_object(rank) == list(range(hvd.size()))
        hvd.broadcast_optimizer_state(optimizer, 1)
        assert all(row["momentum_buffer"].device == host for row in optimizer.state.values())

        rows = torch.ones(rank + 1, 2, device=host, requires_grad=True)
        hvd.allgather(rows).sum().backward()
        assert rows.grad is not None and rows.grad.tolist() == [[1.0, 1.0]] * (rank + 1)
        _, received = hvd.alltoall(torch.ones(hvd.size(), device=host), [1] * hvd.size())
        assert received.tolist() == [1] * hvd.size()

        distributed = hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), compression=Halving, op=hvd.Sum
        )
        distributed.zero_grad()
        model(torch.ones(2, device=host)).sum().backward()
        distributed.synchronize()
        assert model.bias.grad.tolist() == [hvd.size()]
