"""horovod.common.util: facts of a build, for scripts and launchers."""

from __future__ import annotations


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    return ext_base_name == "torch"


def check_extension(ext_name: str, *_: object) -> None:
    if ext_name != "horovod.torch":
        raise ImportError(f"{ext_name} is not there: ciranda is for PyTorch")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    import torch

    return torch.cuda.is_available()


def mpi_built(verbose: bool = False) -> bool:
    import ciranda.torch

    return ciranda.torch.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    import ciranda.torch

    return ciranda.torch.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    import ciranda.torch

    return bool(ciranda.torch.nccl_built())
