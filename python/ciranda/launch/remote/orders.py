"""The launcher's orders to a host's agent, as JSON. The key travels in a separate frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ciranda.launch.plan.elastic import ElasticLimits
from ciranda.launch.plan.environment import may_travel
from ciranda.launch.plan.hosts import (
    NO_SERVER_FILES,
    Host,
    Place,
    ServerFiles,
    ServerPlace,
    SparePlace,
)
from ciranda.launch.remote.meeting import Ports

# Names, and prefixes of names, of variables that go to other hosts without -x, as they are meant
# for ranks. Other variables, such as PATH, belong to their host.
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
    """Returns the part of the launcher's environment that goes to other hosts."""
    return {
        name: text
        for name, text in environment.items()
        if (name in _NAMES or name.startswith(_BEGINNINGS)) and may_travel(name, environment)
    }


@dataclass(frozen=True)
class Listen:
    """The address and ports on which a host listens. `nic`, if set, chooses the address."""

    address: str
    nic: str
    ports: Ports


@dataclass(frozen=True)
class Orders:
    """One host's part of a job."""

    argv: Sequence[str]
    folder: str  # working folder
    places: Sequence[Place]  # of this host's ranks
    size: int
    job_id: str
    environment: Mapping[str, str]  # the launcher's part for all hosts
    user: Mapping[str, str]
    columns: int | None
    meets: bool  # true: there are other hosts, and the key and the endpoints follow
    listen: Listen | None  # set if rank 0 or servers of this host must listen
    servers: Sequence[ServerPlace] = ()  # of this host
    server_files: ServerFiles = NO_SERVER_FILES
    restarts: int = 0
    roles: Sequence[int] = ()  # COORDINATOR and EVALUATOR of the job, on server 0's host
    horovod_names: bool = False
    calls: bool = False  # true: ranks call a function, which follows
    elastic: ElasticLimits | None = None  # set: single processes are started, by further frames
    spares: Sequence[SparePlace] = ()  # of this host


def encode_orders(orders: Orders) -> dict[str, Any]:
    return asdict(orders)


def _place(content: dict[str, Any]) -> Place:
    return Place(**{**content, "host": Host(**content["host"])})


def decode_orders(content: dict[str, Any]) -> Orders:
    """Decodes orders without checks, as they come from a peer of this version."""
    listen = content["listen"]
    return Orders(
        **{
            **content,
            "places": [_place(each) for each in content["places"]],
            "servers": [
                ServerPlace(**{**each, "host": Host(**each["host"])}) for each in content["servers"]
            ],
            "spares": [
                SparePlace(each["number"], _place(each["place"]), each["host_index"])
                for each in content["spares"]
            ],
            "elastic": content["elastic"] and ElasticLimits(**content["elastic"]),
            "server_files": ServerFiles(**content["server_files"]),
            "listen": listen and Listen(**{**listen, "ports": Ports(**listen["ports"])}),
        }
    )
