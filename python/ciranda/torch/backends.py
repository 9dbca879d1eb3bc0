"""Horovod's questions about the libraries that run operations here."""

from __future__ import annotations

from typing import Any

from ciranda import _C


def found() -> list[dict[str, Any]]:
    """Returns a row for each backend: name, built, available, version, path, why_not.

    It needs no init().
    """
    return list(_C.backends())


def library() -> str:
    """Returns the path of ciranda's own shared library."""
    return str(_C.__file__)


def _row(name: str) -> dict[str, Any]:
    return next(row for row in found() if row["name"] == name)


def gloo_built() -> bool:
    """Returns True if CIRANDA_CPU_OPERATIONS=gloo works."""
    return bool(_row("gloo")["available"])


def gloo_enabled() -> bool:
    """Returns True if Gloo runs operations on tensors of the CPU in this job."""
    return _C.cpu_operations() == "gloo"


def nccl_built() -> int:
    """Returns NCCL's version as one number, 22703 for 2.27.3; 0 if it cannot run operations."""
    row = _row("nccl")
    if not row["available"]:
        return 0
    major, minor, patch = (int(number) for number in row["version"].split(".")[:3])
    return major * 10_000 + minor * 100 + patch


def cuda_built() -> bool:
    """Returns True if this build reduces tensors of NVIDIA GPUs."""
    return bool(_row("nccl")["built"])


def _no() -> bool:
    """Returns False: ciranda does not use that library."""
    return False


mpi_built = mpi_enabled = ddl_built = ccl_built = rocm_built = _no


def mpi_threads_supported() -> bool:
    """Returns True: ciranda never calls MPI, so any thread of a program may call it."""
    return True
