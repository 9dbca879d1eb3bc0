"""Facts of torch, ciranda's compiled module and the GPU's driver, as JSON on stdout.

This is a separate program, because importing torch takes seconds and a broken installation may kill
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from typing import Any

_LIBRARIES = {"openmp": ("libgomp", "libomp", "libiomp5"), "nccl": ("libnccl.so", "libnccl-")}


def main() -> None:
    answer = os.dup(1)
    os.dup2(2, 1)  # keeps output of libraries out of the answer
    with open(answer, "w", encoding="utf-8") as file:
        json.dump(torch_facts(), file)


def torch_facts() -> dict[str, Any]:
    try:
        import torch
    except Exception as error:  # a broken installation may raise anything
        return {"error": _words(error)}
    facts: dict[str, Any] = {
        "version": torch.__version__,
        "path": os.path.dirname(torch.__file__),
        "cuda": torch.version.cuda,
        "ciranda": _ciranda_facts(),
    }
    if torch.version.cuda is not None and os.path.exists("/proc/driver/nvidia/version"):
        facts["gpu"] = _gpu_facts()
    facts["libraries"] = {kind: _loaded(names) for kind, names in _LIBRARIES.items()}
    return facts


def _ciranda_facts() -> dict[str, Any]:
    try:
        from ciranda.torch import backends
    except Exception as error:
        return {"error": _words(error)}
    return {"library": backends.library(), "backends": backends.found()}


def _gpu_facts() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {"count": 0, "driver_cuda": None, "error": None, "torch_nccl": None}
    version = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0:
            facts["driver_cuda"] = f"{version.value // 1000}.{version.value % 1000 // 10}"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        facts["count"] = torch.cuda.device_count()
        facts["names"] = [torch.cuda.get_device_name(i) for i in range(facts["count"])]
    except Exception as error:
        facts["error"] = _words(error)
    with contextlib.suppress(Exception):
        facts["torch_nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return facts


def _loaded(names: tuple[str, ...]) -> list[str]:
    """Returns the files of these libraries that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = {line.split(maxsplit=5)[-1].strip() for line in file if "/" in line}
    return sorted({os.path.realpath(p) for p in paths if os.path.basename(p).startswith(names)})


def _words(error: Exception) -> str:
    """Returns type and message on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


if __name__ == "__main__":
    main()
