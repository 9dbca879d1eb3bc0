"""Scripts of Horovod's users find each name, with its arguments and their order."""

from __future__ import annotations

import inspect
import operator
import re

import pytest

import ciranda.torch as hvd

HOROVOD = re.findall(
    r"\w+",
    """
    init shutdown is_initialized start_timeline stop_timeline size local_size cross_size rank
    local_rank cross_rank is_homogeneous mpi_threads_supported mpi_enabled mpi_built
    gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built Average Sum
    Adasum Min Max Product HorovodInternalError allreduce allreduce_async allreduce_
    allreduce_async_ grouped_allreduce grouped_allreduce_async grouped_allreduce_
    grouped_allreduce_async_ sparse_allreduce_async allgather allgather_async
    grouped_allgather grouped_allgather_async broadcast broadcast_async broadcast_
    broadcast_async_ alltoall alltoall_async reducescatter reducescatter_async
    grouped_reducescatter grouped_reducescatter_async join barrier poll synchronize
    DistributedOptimizer broadcast_parameters broadcast_optimizer_state broadcast_object
    allgather_object Compression SyncBatchNorm ProcessSet global_process_set add_process_set
    remove_process_set
    """,
)


ELASTIC = ("ElasticSampler", "ObjectState", "State", "TorchState", "run", "run_fn")


@pytest.mark.parametrize("name", HOROVOD)
def test_each_name_is_there(name: str) -> None:
    assert name in hvd.__all__
    assert hasattr(hvd, name)


@pytest.mark.parametrize("name", ELASTIC)
def test_each_name_of_elastic_is_there(name: str) -> None:
    assert name in hvd.elastic.__all__
    assert hasattr(hvd.elastic, name)


_REDUCE = "average=None, name=None, {}op=None, prescale_factor=1.0, postscale_factor=1.0, all"
_SCATTER = "name=None, {}op=Average, all, prescale_factor=1.0, postscale_factor=1.0"
_FP = "compression=none, "
ARGUMENTS = {
    "init": "comm=None, process_sets=None",
    "start_timeline": "file_path, mark_cycles=False",
    "allreduce": f"tensor, {_REDUCE.format(_FP)}",
    "allreduce_async": f"tensor, {_REDUCE.format('')}",
    "allreduce_": f"tensor, {_REDUCE.format('')}",
    "allreduce_async_": f"tensor, {_REDUCE.format('')}",
    "grouped_allreduce": f"tensors, {_REDUCE.format(_FP)}",
    "grouped_allreduce_async": f"tensors, {_REDUCE.format('')}",
    "grouped_allreduce_": f"tensors, {_REDUCE.format('')}",
    "grouped_allreduce_async_": f"tensors, {_REDUCE.format('')}",
    "sparse_allreduce_async": "tensor, name=None, op=Average, all",
    "allgather": "tensor, name=None, all",
    "allgather_async": "tensor, name=None, all",
    "grouped_allgather": "tensors, name=None, all",
    "grouped_allgather_async": "tensors, name=None, all",
    "broadcast": "tensor, root_rank, name=None, all",
    "broadcast_async": "tensor, root_rank, name=None, all",
    "broadcast_": "tensor, root_rank, name=None, all",
    "broadcast_async_": "tensor, root_rank, name=None, all",
    "alltoall": "tensor, splits=None, name=None, all",
    "alltoall_async": "tensor, splits=None, name=None, all",
    "reducescatter": f"tensor, {_SCATTER.format(_FP)}",
    "reducescatter_async": f"tensor, {_SCATTER.format('')}",
    "grouped_reducescatter": f"tensors, {_SCATTER.format(_FP)}",
    "grouped_reducescatter_async": f"tensors, {_SCATTER.format('')}",
    "join": "device=-1",
    "barrier": "all",
    "poll": "handle",
    "synchronize": "handle",
    "DistributedOptimizer": "optimizer, named_parameters=None, compression=none, "
    "backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, num_groups=0, "
    "groups=None, sparse_as_dense=False, all",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": "obj, root_rank=0, name=None, all",
    "allgather_object": "obj, name=None",
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True",
    "ProcessSet": "ranks_or_comm",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "elastic.run": "func",
    "elastic.ElasticSampler": "dataset, shuffle=True, seed=0",
    "elastic.State": "bcast_object=broadcast_object, get_rank=rank",
}


def shown(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is hvd.global_process_set:
        return "all"
    if parameter.name == "op" and default is not None:
        default = {hvd.Average: "Average"}[default]
    name = "none" if default is hvd.Compression.none else getattr(default, "__name__", default)
    return parameter.name if default is inspect.Parameter.empty else f"{parameter.name}={name}"


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_horovods(name: str) -> None:
    """In their order and with their defaults; ours follow."""
    found = inspect.signature(operator.attrgetter(name)(hvd)).parameters.values()
    assert ", ".join(map(shown, found)).startswith(ARGUMENTS[name])


def test_reduce_ops_are_different_ints() -> None:
    ops = [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product]
    assert all(type(op) is int for op in ops)
    assert len(set(ops)) == len(ops)
