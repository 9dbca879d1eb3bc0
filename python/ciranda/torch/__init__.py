"""Data-parallel training for PyTorch with Horovod's names: `import ciranda.torch as hvd` works.

Each function is documented in its module: `ops` (collectives), `optimizer` (DistributedOptimizer),
`functions` (broadcast of models, optimizers and objects). The helpers of a training script are in
`data`, `metrics`, `progress` and `schedules`, which are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from ciranda import _build, _version_gate

_version_gate.check(built_for=_build.TORCH_VERSION, found=torch.__version__)
try:
    from ciranda import _C  # noqa: F401
except ImportError as error:
    raise _version_gate.explain_missing_library(error) from None

from ciranda.errors import HorovodInternalError  # noqa: E402 - after the version gate
from ciranda.torch import ps  # noqa: E402
from ciranda.torch.backends import (  # noqa: E402
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from ciranda.torch.basics import (  # noqa: E402
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stats,
    stop_timeline,
)
from ciranda.torch.compression import Compression, Compressor  # noqa: E402
from ciranda.torch.functions import (  # noqa: E402
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ciranda.torch.ops import (  # noqa: E402
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    gather,
    gather_async,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    recv,
    recv_async,
    reduce,
    reduce_,
    reduce_async,
    reduce_async_,
    reducescatter,
    reducescatter_async,
    scatter,
    scatter_async,
    send,
    send_async,
    sparse_allreduce_async,
    synchronize,
)
from ciranda.torch.optimizer import DistributedOptimizer  # noqa: E402
from ciranda.torch.process_sets import (  # noqa: E402
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from ciranda.torch.sync_batch_norm import SyncBatchNorm  # noqa: E402

if TYPE_CHECKING:
    from ciranda.torch import checkpoints as checkpoints
    from ciranda.torch import data as data
    from ciranda.torch import elastic as elastic
    from ciranda.torch import metrics as metrics
    from ciranda.torch import optim as optim
    from ciranda.torch import progress as progress
    from ciranda.torch import schedules as schedules
    from ciranda.torch.checkpoints import Checkpoints as Checkpoints

_HELPERS = ("checkpoints", "data", "elastic", "metrics", "progress", "schedules")


def __getattr__(name: str) -> Any:
    if name in _HELPERS:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "Checkpoints":
        return importlib.import_module(f"{__name__}.checkpoints").Checkpoints
    raise AttributeError(f"module 'ciranda.torch' has no attribute {name!r}")


__all__ = [
    "Adasum",
    "Average",
    "Checkpoints",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "gather",
    "gather_async",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "ps",
    "rank",
    "recv",
    "recv_async",
    "reduce",
    "reduce_",
    "reduce_async",
    "reduce_async_",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stats",
    "stop_timeline",
    "synchronize",
]
