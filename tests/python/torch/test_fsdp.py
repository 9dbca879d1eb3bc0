"""A model of which FSDP2 has a part: ours trains the rest and refuses that part by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed
from joined_batch import Run, compare, values
from rank_checks import on_ranks
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.nn import functional as F

import ciranda.torch as hvd


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3)
    )


@contextmanager
def mesh_of_one() -> Iterator[Any]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        torch.distributed.destroy_process_group()


@on_ranks(2)
def test_parameters_of_fsdp_are_refused_by_name() -> None:
    with mesh_of_one() as mesh:
        model = mlp()
        fully_shard(model[0], mesh=mesh)
        own = torch.optim.SGD(model[0].parameters(), lr=0.1)
        says = r"'0\.weight' is a DTensor, .* give only plain tensors here"
        for options in ({}, {"shared_step": "host"}, {"shared_step": False}, {"op": hvd.Adasum}):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with pytest.raises(ValueError, match=f"DistributedOptimizer: {says}"):
                hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
        with pytest.raises(ValueError, match=f"broadcast_parameters: {says}"):
            hvd.broadcast_parameters([("0.weight", model[0].weight)], root_rank=0)
        with pytest.raises(ValueError, match=r"broadcast_optimizer_state: .* is a DTensor"):
            hvd.broadcast_optimizer_state(own, root_rank=0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model[2].parameters(), lr=0.1))
        with pytest.raises(ValueError, match=r"DistributedOptimizer: .* is a DTensor"):
            optimizer.add_param_group({"params": list(model[0].parameters())})


@on_ranks(2)
def test_a_tensor_without_memory_of_its_own_is_refused() -> None:
    """Its data pointer is null, whatever it says of its size and device."""
    plain = torch.ones(4)
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    with FakeTensorMode() as fake:
        of_mode = fake.from_tensor(plain)
    kinds: dict[str, Callable[[torch.Tensor], Any]] = {
        "allreduce": hvd.allreduce,
        "broadcast": lambda tensor: hvd.broadcast_(tensor, 0),
        "allgather": hvd.allgather,
        "alltoall": hvd.alltoall,
        "reducescatter": hvd.reducescatter,
    }
    with mesh_of_one() as mesh:
        sharded = distribute_tensor(plain, mesh)
        for op, kind in kinds.items():
            kind(plain)  # the next call is the same again, but for the tensor
            for tensor in (sharded, sharded.to(torch.int16), of_mode, freed):
                says = rf"{op}.*: the tensor has no memory of its own; pass tensor\.to_local\(\)"
                with pytest.raises(ValueError, match=says):
                    kind(tensor)
            kind(sharded.to_local())


@on_ranks(2, 3)
def test_a_part_of_fsdp_beside_ours() -> None:
    """The part that FSDP has stays as it is; its gradients are each rank's own."""
    with mesh_of_one() as mesh:

        def script(run: Run) -> list[torch.Tensor]:
            model = mlp()
            if type(run) is not Run:
                fully_shard(model[0], mesh=mesh)
            optimizer = run.distribute(torch.optim.Adam(model[2:].parameters(), lr=0.01), model[2:])
            for step in range(4):
                x, y = run.batch(step)
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            return values(model[2:])

        compare(script)
