"""The demands of a job on a host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ciranda.launch.remote.meeting import Ports

Facts = Mapping[str, Any]  # of one host, from facts.host_facts()


@dataclass(frozen=True)
class Setting:
    """The demands of the job on the host."""

    slots: int = 1
    alone: bool = True  # the job's only host
    nic: str = ""
    ports: Ports = field(default_factory=Ports)
