"""What Horovod's users know, and what it is here: names of horovod.torch, variables.

The options of horovodrun are in ciranda.launch.horovod.horovodrun. make_migration_page.py makes
docs/migrate-from-horovod.md of both; tests/python/compat holds page, table and code together.
"""

from __future__ import annotations

from typing import NamedTuple

SAME = ""


class Symbols(NamedTuple):
    names: tuple[str, ...]
    remark: str = SAME  # how they differ once they are there


class Variable(NamedTuple):
    names: tuple[str, ...]
    is_read: bool
    remark: str


def _symbols(names: str, remark: str = SAME) -> Symbols:
    return Symbols(tuple(names.split()), remark)


def _read(names: str, remark: str = SAME) -> Variable:
    return Variable(tuple(f"HOROVOD_{name}" for name in names.split()), True, remark)


def _unread(names: str, instead: str) -> Variable:
    return Variable(tuple(f"HOROVOD_{name}" for name in names.split()), False, instead)


# Sections of the page.
SYMBOLS: dict[str, list[Symbols]] = {
    "Start and end": [
        _symbols(
            "init",
            "also called by ranks that torchrun, mpirun or srun starts; `comm=` is given by every "
            "process, a list that it is in ([process-sets.md](process-sets.md)); `process_sets=` "
            '`"dynamic"` changes nothing, sets may always be added',
        ),
        _symbols("shutdown is_initialized"),
        _symbols("size rank local_size local_rank"),
        _symbols("cross_size cross_rank is_homogeneous"),
        _symbols(
            "start_timeline stop_timeline",
            "whatever `HOROVOD_TIMELINE` says; the file has all ranks that call them, on several "
            "hosts all do",
        ),
        _symbols(
            "mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built "
            "ddl_built ccl_built cuda_built rocm_built",
            "answer for ciranda: there is no MPI, DDL, CCL or ROCm; `mpi_threads_supported()` is "
            "True, as nothing keeps a script from MPI in any of its threads",
        ),
        _symbols(
            "HorovodInternalError",
            "the base of classes that tell more: [errors.md](errors.md)",
        ),
    ],
    "Collectives": [
        _symbols("Average Sum Min Max Product"),
        _symbols(
            "Adasum",
            "without MPI, on any number of ranks up to 256, and in process sets; also GPUs of one "
            "host are combined, where Horovod with NCCL averages them ([optimizer.md]"
            "(optimizer.md#adasum))",
        ),
        _symbols(
            "allreduce allreduce_async allreduce_ allreduce_async_",
            "also of bfloat16, int8 and uint8",
        ),
        _symbols(
            "grouped_allreduce grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_"
        ),
        _symbols("sparse_allreduce_async", "the result is coalesced"),
        _symbols(
            "allgather allgather_async grouped_allgather grouped_allgather_async",
            "of any dtype, as all that only moves data",
        ),
        _symbols("broadcast broadcast_async broadcast_ broadcast_async_"),
        _symbols("alltoall alltoall_async"),
        _symbols(
            "reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async"
        ),
        _symbols("join", "not for tensors of GPUs, nor with Gloo"),
        _symbols("barrier"),
        _symbols("poll synchronize", "a number that never was a handle is an error"),
    ],
    "Training": [
        _symbols(
            "DistributedOptimizer",
            "gives back the same object, whose class is now a subclass of its own, with its state; "
            "`p.grad` holds the average when `backward()` returns, so clipping needs no "
            "`synchronize()`; `zero_grad(set_to_none=...)` is taken; `step()` may be shared by the "
            "ranks ([optimizer.md](optimizer.md))",
        ),
        _symbols("broadcast_parameters", "also takes `process_set=`"),
        _symbols(
            "broadcast_optimizer_state",
            "runs no step, so parameters and step counts stay; also takes `process_set=`; leaves "
            "gradients of zeros where Horovod does",
        ),
        _symbols(
            "broadcast_object allgather_object",
            "numbers, strings, lists, dicts and tensors; what only pickle can send needs "
            "`allow_pickle=True`, and between hosts TLS as well",
        ),
        _symbols(
            "Compression",
            "`.none`, `.fp16`, and `.bf16`; round what goes between hosts, sums stay float32",
        ),
        _symbols(
            "SyncBatchNorm",
            "also on the CPU, for batches of different sizes, in process sets; "
            "`SyncBatchNorm.convert_sync_batchnorm(model)`",
        ),
        _symbols(
            "ProcessSet global_process_set add_process_set remove_process_set",
            "may be added whatever `init()` was told",
        ),
    ],
    "Elastic training": [
        _symbols(
            "elastic.run",
            "also on one host, and no host is given up for a lost process; all ranks leave the "
            "function together ([elastic.md](elastic.md#horovods-loop))",
        ),
        _symbols(
            "elastic.TorchState",
            "newest commit of a rank that is left wins; `restore()` before any commit or `sync()` "
            "is an error",
        ),
        _symbols(
            "elastic.State elastic.ObjectState",
            "`sync(self, root_rank=0)`: rank 0 may be the one that has just joined",
        ),
        _symbols(
            "elastic.ElasticSampler",
            "another order; `record_indices()` counts samples by name, instead of `record_batch()`",
        ),
    ],
}

OPTIMIZER_METHODS = ("synchronize", "skip_synchronize", "set_backward_passes_per_step", "zero_grad")

VARIABLES = [
    _read("FUSION_THRESHOLD", "the default is 64 MiB"),
    _read("CACHE_CAPACITY", "the default is 4096"),
    _read("TIMELINE", "all ranks are in the file; `DYNAMIC` writes none"),
    _read("TIMELINE_MARK_CYCLES"),
    _read("STALL_CHECK_TIME_SECONDS STALL_CHECK_DISABLE STALL_SHUTDOWN_TIME_SECONDS"),
    _read(
        "AUTOTUNE AUTOTUNE_LOG AUTOTUNE_WARMUP_SAMPLES AUTOTUNE_STEPS_PER_SAMPLE",
        "tunes what there is here, and the log is for people ([training.md](training.md#autotune))",
    ),
    _read("START_TIMEOUT"),
    _read(
        "CPU_OPERATIONS",
        "`gloo` chooses Gloo for tensors of the CPU; `mpi` and `ccl` mean ciranda's own ways",
    ),
    _read(
        "GPU_OPERATIONS GPU_ALLREDUCE GPU_ALLGATHER GPU_BROADCAST GPU_ALLTOALL GPU_REDUCESCATTER",
        "NCCL in every case",
    ),
    _read(
        "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE",
        "`ciranda run` sets them, and ranks that Horovod's own launcher starts are understood",
    ),
    _read("GLOO_RENDEZVOUS_PORT", "tells that Horovod's own launcher has started the rank"),
    _unread("HOSTNAME", "`ciranda run` sets it for scripts"),
    _unread("GLOO_RENDEZVOUS_ADDR", "`CIRANDA_RENDEZVOUS`, which the launcher sets"),
    _unread("CYCLE_TIME", "there are no cycles, an operation starts at once"),
    _unread(
        "HIERARCHICAL_ALLREDUCE HIERARCHICAL_ALLGATHER TORUS_ALLREDUCE",
        "gradients are always reduced inside each host first",
    ),
    _unread(
        "AUTOTUNE_BAYES_OPT_MAX_SAMPLES AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        "autotuning takes samples of each setting and of the best so far, in turns",
    ),
    _unread("CONTROLLER", "there is one, and it is ciranda's"),
    _unread("GLOO_IFACE", "`CIRANDA_NIC` chooses the networks between hosts"),
    _unread("GLOO_TIMEOUT_SECONDS", "`CIRANDA_START_TIMEOUT_SECONDS`, `CIRANDA_PEER_TIMEOUT`"),
    _unread("THREAD_AFFINITY", "start the ranks through `taskset` or `numactl`"),
    _unread("NUM_NCCL_STREAMS", "each GPU has one stream of ciranda's"),
    _unread("BATCH_D2D_MEMCOPIES", "gradients are born in their bucket, or copied into it once"),
    _unread("ENABLE_ASYNC_COMPLETION", "always so: the host never waits for a GPU's reduction"),
    _unread("DISABLE_GROUP_FUSION", "`CIRANDA_FUSION_THRESHOLD=0` fuses nothing"),
    _unread("DISABLE_NVTX_RANGES", "there are none"),
    _unread("DYNAMIC_PROCESS_SETS", "sets may always be added"),
    _unread("ELASTIC ELASTIC_TIMEOUT", "`ciranda run --min-np`, `--elastic-timeout`"),
    _unread("LOG_LEVEL LOG_HIDE_TIME", "warnings go to stderr; `ciranda run --verbose` says more"),
    _unread("ADASUM_MPI_CHUNK_SIZE MPI_THREADS_DISABLE", "there is no MPI"),
]
