"""Scripts of Horovod's users: a name that is not there costs a sentence, and no guess."""

from __future__ import annotations

import re

import pytest

import ciranda.torch as hvd
from ciranda.errors import UnsupportedError
from ciranda.torch.absent import NAMES

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
    remove_process_set elastic
    """,
)


@pytest.mark.parametrize("name", HOROVOD)
def test_each_name_is_there_or_says_what_to_do(name: str) -> None:
    if name in NAMES:
        with pytest.raises(UnsupportedError, match=f"{name} is not there yet; "):
            getattr(hvd, name)
        assert not hasattr(hvd, name)
        assert name not in hvd.__all__
    else:
        assert name in hvd.__all__


def test_no_name_is_answered_that_horovod_has_not() -> None:
    assert set(NAMES) <= set(HOROVOD)
