"""horovod.run(): Horovod's signature around ciranda.run()."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import ciranda
from ciranda.errors import UnsupportedError
from ciranda.launch.horovod.horovodrun import ANSWERS, ELASTIC_CALL

_Result = TypeVar("_Result")


def run(
    func: Callable[..., _Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[_Result]:
    """Calls `func` on `num_proc` ranks; returns the results by rank.

    Blocks until all ranks have ended. `disable_cache` and `use_gloo` have no effect. Arguments that
    ciranda does not support raise UnsupportedError.
    """
    absent = {
        "min_num_proc": (min_num_proc, ELASTIC_CALL),
        "max_num_proc": (max_num_proc, ELASTIC_CALL),
        "min_np": (min_np, ELASTIC_CALL),
        "max_np": (max_np, ELASTIC_CALL),
        "slots": (slots, ELASTIC_CALL),
        "reset_limit": (reset_limit, ELASTIC_CALL),
        "cooldown_range": (cooldown_range, ELASTIC_CALL),
        "host_discovery_script": (host_discovery_script, ELASTIC_CALL),
        "use_mpi": (use_mpi or None, ANSWERS["--mpi"]),
        "mpi_args": (mpi_args, ANSWERS["--mpi-args"]),
    }
    for name, (value, answer) in absent.items():
        if value is not None:
            raise UnsupportedError(f"horovod.run(): {name}: {answer}")
    told = {
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--output-filename": output_filename,
        "--network-interfaces": network_interface or ",".join(network_interfaces or ()) or None,
    }
    options = [f"{name}={value}" for name, value in told.items() if value is not None]
    if verbose:
        options += ["--verbose"]
    return ciranda.run(
        func,
        args,
        kwargs,
        num_proc if np is None else np,
        hosts=hosts,
        hostfile=hostfile,
        options=options,
        executable=executable,
    )
