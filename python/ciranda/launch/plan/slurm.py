"""Reads hosts and the rendezvous from Slurm's variables. Pure."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import replace

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.hosts import HostSource, parse_hosts, shown
from ciranda.launch.remote.meeting import format_endpoint

NODE = "SLURM_NODEID"
STEP_NODES = "SLURM_STEP_NUM_NODES"
STEP_TASKS = "SLURM_STEP_NUM_TASKS"
_NODE_LIST = "SLURM_JOB_NODELIST"
_TASKS = "SLURM_TASKS_PER_NODE"
_STEP_NODE_LIST = "SLURM_STEP_NODELIST"
_JOB = "SLURM_JOB_ID"
_STEP = "SLURM_STEP_ID"
_INTERACTIVE_STEP = "4294967290"  # of salloc's shell, if Slurm starts it on a node

_COUNT = re.compile(r"([1-9][0-9]{0,5})(?:\(x([1-9][0-9]{0,5})\))?")
_PORTS_FIRST, _PORTS = 20_000, 10_000  # below the ephemeral ports of kernels


def allocated_hosts(environ: Mapping[str, str]) -> HostSource | None:
    """Returns the nodes of an allocation, each with a slot for each of its tasks.

    Returns None for a single node, in a step of one task that srun has started, and outside Slurm.
    Raises LaunchError in a step of several tasks.
    """
    nodes = environ.get(_NODE_LIST)
    if nodes is None:
        return None
    if STEP_TASKS in environ and environ.get(_STEP) != _INTERACTIVE_STEP:
        _check_alone(environ[STEP_TASKS])
        return None
    hosts = parse_hosts(nodes, _NODE_LIST)
    if len(hosts) == 1:
        return None
    slots = _parse_counts(environ.get(_TASKS, f"1(x{len(hosts)})"), len(hosts))
    filled = (replace(host, slots=count) for host, count in zip(hosts, slots, strict=True))
    return HostSource(tuple(filled), f"Slurm's allocation ({_NODE_LIST}, {_TASKS})")


def _check_alone(tasks: str) -> None:
    """Raises LaunchError if srun has started several launchers, which would be as many jobs."""
    if tasks != "1":
        raise LaunchError(
            f"srun has started several launchers ({STEP_TASKS} is {shown(tasks)}), and each "
            "would start its own job; for one job start one launcher without srun, or one on "
            "each node with --no-ssh"
        )


def step_rendezvous(environ: Mapping[str, str]) -> str | None:
    """Returns HOST:PORT on a step's first node, with a port derived from job and step."""
    nodes, job, step = (environ.get(each, "") for each in (_STEP_NODE_LIST, _JOB, _STEP))
    if not (nodes and job and step):
        return None
    first = parse_hosts(nodes, _STEP_NODE_LIST)[0]
    port = _PORTS_FIRST + zlib.crc32(f"{job}.{step}".encode(errors="surrogateescape")) % _PORTS
    return format_endpoint(first.name, port)


def _parse_counts(text: str, nodes: int) -> list[int]:
    """Expands `2(x3),1` to a number for each of the nodes."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None or len(counts) + int(match[2] or 1) > nodes:
            break
        counts += [int(match[1])] * int(match[2] or 1)
    else:
        if len(counts) == nodes:
            return counts
    raise LaunchError(
        f"{_TASKS} is {shown(text)}; it should be the tasks of each of {nodes} nodes, "
        "such as 2(x3),1"
    )
