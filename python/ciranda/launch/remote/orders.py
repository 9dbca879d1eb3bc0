"""What the launcher tells a host's agent to do: JSON, but for the key, which travels alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ciranda.launch.plan.environment import may_travel
from ciranda.launch.plan.hosts import NO_SERVER_FILES, Host, Place, ServerFiles, ServerPlace
from ciranda.launch.remote.meeting import Ports

# Variables that go to other hosts by themselves, for they are meant for the ranks; all else, such
# as PATH, belongs to the host, and -x sends it. A name, or a beginning of names.
_NAMES = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD", "GLIBC_TUNABLES", "LANG", "TZ", "NO_COLOR"})
_BEGINNINGS = (
    "CIRANDA_",
    "HOROVOD_",
    "PYTHON",
    "TORCH",
    "PYTORCH_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "MALLOC_",
    "CUDA_",
    "NCCL_",
    "GLOO_",
    "LC_",
)


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the launcher's environment that goes to other hosts."""
    return {
        name: text
        for name, text in environment.items()
        if (name in _NAMES or name.startswith(_BEGINNINGS)) and may_travel(name, environment)
    }


@dataclass(frozen=True)
class Listen:
    """What a host listens on: the address, unless `nic` says how to choose one."""

    address: str
    nic: str
    ports: Ports


@dataclass(frozen=True)
class Orders:
    """One host's part of a job."""

    argv: Sequence[str]
    folder: str  # where to run it
    places: Sequence[Place]  # of this host's ranks
    size: int
    job_id: str
    environment: Mapping[str, str]  # the launcher's
    user: Mapping[str, str]
    columns: int | None
    meets: bool  # other hosts: the key and the place to meet follow
    listen: Listen | None  # rank 0 runs here and is met, or servers run here
    servers: Sequence[ServerPlace] = ()  # of this host
    server_files: ServerFiles = NO_SERVER_FILES
    restarts: int = 0
    roles: Sequence[int] = ()  # of the job: COORDINATOR, EVALUATOR, which run where server 0 does
    horovod_names: bool = False
    calls: bool = False  # a function, which follows


def encode_orders(orders: Orders) -> dict[str, Any]:
    return asdict(orders)


def decode_orders(content: dict[str, Any]) -> Orders:
    """The peer is of this version, so its orders have this form."""
    listen = content["listen"]
    return Orders(
        **{
            **content,
            "places": [
                Place(**{**each, "host": Host(**each["host"])}) for each in content["places"]
            ],
            "servers": [
                ServerPlace(**{**each, "host": Host(**each["host"])}) for each in content["servers"]
            ],
            "server_files": ServerFiles(**content["server_files"]),
            "listen": listen and Listen(**{**listen, "ports": Ports(**listen["ports"])}),
        }
    )
