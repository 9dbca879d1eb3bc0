"""Facts of a host that is well, and the same with something changed."""

from __future__ import annotations

import copy
from typing import Any

GIB = 1 << 30
WELL: dict[str, Any] = {
    "host": "node0",
    "python": {"version": "3.11.7", "path": "/usr/bin/python3"},
    "ciranda": {"version": "0.1.0", "built_for": "2.15.0"},
    "ssh_connection": [],
    "cores": {"machine": 8, "affinity": 8, "usable": 8},
    "load": {"load_1min": 0.5},
    "threads": {"OMP_NUM_THREADS": None, "MKL_NUM_THREADS": None},
    "memory": {
        "total_bytes": 64 * GIB,
        "available_bytes": 60 * GIB,
        "cgroup_left_bytes": None,
    },
    "memfd": {"works": True},
    "dev_shm": {"path": "/dev/shm", "size_bytes": 32 * GIB, "free_bytes": 32 * GIB},
    "limits": {
        "open_files": [65_536, 65_536],
        "processes": [None, None],
        "address_space": [None, None],
        "file_size": [None, None],
        "locked_memory": [8 << 20, 8 << 20],
    },
    "pids": {"cgroup_left": None},
    "job_folder": {"path": "/run/user/1000"},
    "log_folder": {"path": "/tmp", "size_bytes": GIB, "free_bytes": GIB, "writable": True},
    "clock": {"source": "tsc", "synchronised": True},
    "interfaces": {
        "addresses": [["lo", "127.0.0.1"], ["eth0", "10.0.0.1"], ["docker0", "172.17.0.1"]],
        "chosen": ["10.0.0.1", "172.17.0.1"],
        "problem": None,
        "mtu_bytes": {"lo": 65_536, "eth0": 1500, "docker0": 1500},
    },
    "hostname": {"name": "node0", "addresses": ["10.0.0.1"], "seconds": 0.001},
    "names": {},
    "ports": {"listened": ["127.0.0.1:33333"], "problems": {}, "ephemeral": [32_768, 60_999]},
    "infiniband": {"devices": []},
    "driver": {"cards": 0, "version": None, "device_files": 0, "smi": None},
    "folder": {"path": "/data", "is_there": True},
    "torch": {
        "version": "2.15.0+cpu",
        "path": "/usr/lib/torch",
        "cuda": None,
        "ciranda": {
            "library": "/usr/lib/ciranda/_C.so",
            "backends": [
                {
                    "name": "gloo",
                    "built": True,
                    "available": True,
                    "version": "0.5.0",
                    "path": "/usr/lib/libcgloo.so",
                    "why_not": "",
                },
                {
                    "name": "nccl",
                    "built": True,
                    "available": False,
                    "version": "2.30.7",
                    "path": "",
                    "why_not": "no GPU",
                },
            ],
        },
        "libraries": {"openmp": ["/usr/lib/libgomp.so.1"], "nccl": []},
    },
}
# With a GPU that works.
WITH_GPU: dict[str, Any] = copy.deepcopy(WELL)
WITH_GPU["driver"] = {"cards": 1, "version": "570.1", "device_files": 1, "smi": "/bin/nvidia-smi"}
WITH_GPU["torch"] |= {
    "version": "2.15.0+cu132",
    "cuda": "13.2",
    "gpu": {"count": 1, "driver_cuda": "13.2", "error": None, "torch_nccl": "2.30.7"},
}
WITH_GPU["torch"]["ciranda"]["backends"][1] |= {"available": True, "path": "/usr/lib/libnccl.so.2"}


def changed(facts: dict[str, Any], *changes: tuple[str, Any]) -> dict[str, Any]:
    """A copy in which `torch.gpu.count` and so on have other values; None takes a group away."""
    facts = copy.deepcopy(facts)
    for path, value in changes:
        *way, last = path.split(".")
        at: Any = facts
        for each in way:
            at = at[int(each)] if isinstance(at, list) else at[each]
        at[int(last) if isinstance(at, list) else last] = value
    return facts
