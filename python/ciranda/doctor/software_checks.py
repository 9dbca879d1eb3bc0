"""Judges a host for a job by Python, torch, ciranda, and the software of GPUs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ciranda._version_gate import minor_version
from ciranda.doctor.lines import Verdict, fail, ok, skip, warn
from ciranda.doctor.setting import Facts, Setting

_PYTHON_MIN = (3, 10)


def python(facts: Facts, _: Setting) -> Verdict:
    version = facts["python"]["version"]
    found = f"{version}, {facts['python']['path']}"
    if tuple(int(part) for part in version.split(".")[:2]) < _PYTHON_MIN:
        return fail(found, "Install Python 3.10 or newer, and torch and ciranda into it.")
    return ok(found)


def torch(facts: Facts, _: Setting) -> Verdict:
    torch, built_for = facts["torch"], facts["ciranda"]["built_for"]
    major, minor = minor_version(built_for)
    install = f'pip install "torch=={major}.{minor}.*"'
    if "error" in torch:
        return fail(
            f"cannot be imported: {torch['error']}",
            f"See it with python -c 'import torch', and install it anew: {install}",
        )
    if minor_version(torch["version"]) != (major, minor):
        return fail(
            f"{torch['version']}, and ciranda was built for {built_for}",
            f"Rebuild ciranda, or install the torch that it was built for: {install}",
        )
    return ok(f"{torch['version']}, as ciranda was built for ({built_for})")


def ciranda(facts: Facts, _: Setting) -> Verdict:
    torch, version = facts["torch"], facts["ciranda"]["version"]
    if "error" in torch:
        return skip("ciranda", "it needs torch")
    if "error" in torch["ciranda"]:
        return fail(
            f"{version} cannot be imported: {torch['ciranda']['error']}",
            "Do what that message says, or rebuild ciranda in the folder of its source: pip "
            "install --no-build-isolation .",
        )
    return ok(version)


def openmp(facts: Facts, _: Setting) -> Verdict:
    if "error" in facts["torch"]:
        return skip("openmp", "it needs torch")
    files = facts["torch"]["libraries"]["openmp"]
    if len(files) > 1:
        return warn(
            f"{len(files)} OpenMP libraries in one process: {', '.join(files)}",
            "Install torch and ciranda into one environment of one source (pip or conda), for "
            "each library keeps threads of its own.",
        )
    return ok(files[0] if files else "none is loaded")


def _backend(facts: Facts, name: str) -> Mapping[str, Any] | None:
    rows = facts["torch"].get("ciranda", {}).get("backends", [])
    row: Mapping[str, Any] | None = next((each for each in rows if each["name"] == name), None)
    return row


def gloo(facts: Facts, _: Setting) -> Verdict:
    row = _backend(facts, "gloo")
    if row is None:
        return skip("gloo", "ciranda cannot be imported")
    if not row["built"]:
        return ok("not built, and not needed: shm and ring take its place")
    if not row["available"]:
        return warn(
            f"built, but {row['why_not']}",
            "Install what is missing, or leave --gloo away: apt install libgloo0",
        )
    return ok(f"{row['version']}, {row['path']}")


def driver(facts: Facts, _: Setting) -> Verdict:
    driver, torch = facts["driver"], facts["torch"]
    version = driver["version"]
    if version is None:
        if driver["cards"] == 0:
            return ok("no NVIDIA GPU here")
        return fail(
            f"{driver['cards']} NVIDIA cards, and no driver",
            "Install NVIDIA's driver and load it, on Debian: apt install nvidia-driver",
        )
    if "error" in torch:
        return skip(
            "driver", "the CUDA that the driver needs depends on torch, which cannot be imported"
        )
    if torch["cuda"] is None:
        return warn(
            f"driver {version}, but torch {torch['version']} is a build for CPUs",
            "Install the torch for CUDA that pytorch.org names for this driver: nvidia-smi",
        )
    gpu = torch.get("gpu", {})
    offered, wanted = gpu.get("driver_cuda"), torch["cuda"]
    if offered is not None and int(offered.split(".")[0]) < int(wanted.split(".")[0]):
        return fail(
            f"driver {version} is for CUDA {offered}, torch for {wanted}",
            f"Install a newer driver, or a torch for CUDA {offered.split('.')[0]}.",
        )
    if gpu.get("error"):
        hidden = driver["device_files"] == 0
        return fail(
            f"driver {version}, but torch finds no GPU: {gpu['error']}",
            "Hand the GPUs to the container: docker run --gpus all"
            if hidden
            else "See what the driver says: nvidia-smi",
        )
    return ok(f"{version}, CUDA {offered} (torch: {wanted}), {gpu.get('count', 0)} GPUs")


def nccl(facts: Facts, _: Setting) -> Verdict:
    row = _backend(facts, "nccl")
    if row is None:
        return skip("nccl", "ciranda cannot be imported")
    torch, has_gpu = facts["torch"], bool(facts["torch"].get("gpu", {}).get("count"))
    copies = torch["libraries"]["nccl"]
    if len(copies) > 1:
        return warn(
            f"{len(copies)} of them in one process: {', '.join(copies)}",
            "Keep the one that torch brings, and take the other from LD_LIBRARY_PATH.",
        )
    if row["available"]:
        of_torch = torch.get("gpu", {}).get("torch_nccl")
        if of_torch and row["version"] and of_torch != row["version"]:
            return warn(
                f"{row['version']} at {row['path']}, and torch has {of_torch}",
                "Keep the one that torch brings, and take the other from LD_LIBRARY_PATH.",
            )
        return ok(f"{row['version']}, {row['path']}")
    if not has_gpu:
        return ok("not needed without a GPU")
    return fail(
        row["why_not"] if row["built"] else "ciranda was built without NCCL",
        "Do what this command says: ciranda run --check"
        if row["built"]
        else "Install CUDA's headers (the wheel nvidia-cuda-crt) and build ciranda anew: pip "
        "install --no-build-isolation .",
    )
