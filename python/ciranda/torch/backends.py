"""Which libraries run operations here: the questions of Horovod's scripts."""

from __future__ import annotations

from typing import Any

from ciranda import _C


def found() -> list[dict[str, Any]]:
    """A row for each backend: name, built, available, version, path, why_not. Needs no init()."""
    return list(_C.backends())


def library() -> str:
    """The file of ciranda's own backends."""
    return str(_C.__file__)


def _row(name: str) -> dict[str, Any]:
    return next(row for row in found() if row["name"] == name)


def gloo_built() -> bool:
    """True where CIRANDA_CPU_OPERATIONS=gloo works."""
    return bool(_row("gloo")["available"])


def gloo_enabled() -> bool:
    """True if Gloo runs operations on tensors of the CPU, in this job."""
    return _C.cpu_operations() == "gloo"


def nccl_built() -> int:
    """NCCL's version as one number, 22703 for 2.27.3, where it can run operations; else 0."""
    row = _row("nccl")
    if not row["available"]:
        return 0
    major, minor, patch = (int(number) for number in row["version"].split(".")[:3])
    return major * 10_000 + minor * 100 + patch


def cuda_built() -> bool:
    """True if this build reduces tensors of NVIDIA GPUs."""
    return bool(_row("nccl")["built"])


def _no() -> bool:
    """False: ciranda does without that library."""
    return False


mpi_built = mpi_enabled = ddl_built = ccl_built = rocm_built = _no


def mpi_threads_supported() -> bool:
    """True: ciranda never calls MPI, so a program may use it from any of its threads."""
    return True
