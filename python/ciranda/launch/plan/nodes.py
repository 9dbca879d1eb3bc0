"""Nodes: hosts with a launcher on each (--no-ssh), started by hand or by srun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan import hosts as host_list
from ciranda.launch.plan import slurm
from ciranda.launch.plan.hosts import Host, HostSource, Place
from ciranda.launch.remote.meeting import (
    Meeting,
    Ports,
    addresses_of,
    open_listener,
    parse_endpoint,
    read_key_file,
)
from ciranda.launch.run import process_tree


@dataclass(frozen=True)
class Node:
    """This host among hosts that have a launcher each."""

    index: int
    count: int
    rendezvous: str = ""  # HOST:PORT where the ranks of several hosts meet
    key_file: str = ""


def parse_node(
    index: int | None,
    count: int | None,
    rendezvous: str | None,
    key_file: str | None,
    environ: Mapping[str, str],
) -> Node:
    """Reads the options of --no-ssh. Variables of srun stand in for options left out."""
    if count is None:
        _check_srun(environ)
    count = _number(count, "--nodes", environ, slurm.STEP_NODES)
    index = _number(index, "--node-rank", environ, slurm.NODE)
    if not 1 <= count <= host_list.RANKS_MAX:
        raise LaunchError(f"--nodes must be between 1 and {host_list.RANKS_MAX}, not {count}")
    if not 0 <= index < count:
        raise LaunchError(f"--node-rank must be between 0 and {count - 1}, not {index}")
    if count == 1:
        return Node(index, count)
    rendezvous = rendezvous or slurm.step_rendezvous(environ)
    if not rendezvous:
        raise LaunchError("--no-ssh needs --rendezvous HOST:PORT, an address of node 0 and a port")
    if not key_file:
        raise LaunchError("--no-ssh needs --key-file FILE; make one with: ciranda key FILE")
    parse_endpoint(rendezvous, "--rendezvous")
    return Node(index, count, rendezvous, key_file)


def _check_srun(environ: Mapping[str, str]) -> None:
    """Raises LaunchError if srun has started several launchers on a node.

    They would be two jobs, or one job that waits for itself.
    """
    tasks, nodes = environ.get(slurm.STEP_TASKS), environ.get(slurm.STEP_NODES)
    if nodes is not None and tasks != nodes:
        raise LaunchError(
            f"srun has started {tasks} tasks on {nodes} node{'s' if nodes != '1' else ''}, but "
            f"one launcher starts all ranks of a node; give srun --nodes={nodes} "
            f"--ntasks={nodes}, and give -np to this launcher"
        )


def _number(given: int | None, option: str, environ: Mapping[str, str], variable: str) -> int:
    if given is not None:
        return given
    text = environ.get(variable, "")
    if not text.isdecimal():
        raise LaunchError(f"--no-ssh needs {option}, or {variable} as srun sets it")
    return int(text)


def choose_places(
    np: int | None, named: HostSource | None, node: Node, *, host: str
) -> tuple[Place, ...]:
    """Returns a place for each rank of the job. `np` counts the ranks of each host, or those of the
    job if hosts are named. `host` is the name of this host."""
    if named is not None:
        places = host_list.assign_ranks(named.hosts, np, named.words)
        if places[0].host_count != node.count:
            raise LaunchError(
                f"--nodes {node.count}: the ranks fill {places[0].host_count} hosts of "
                f"{named.words}; --nodes must be the number of hosts that get ranks"
            )
        return places
    if np is None:
        raise LaunchError("--no-ssh needs -np, the number of ranks on each host, or -H")
    host_list.check_local_size(np)
    names = [host if index == node.index else f"node-{index}" for index in range(node.count)]
    return host_list.assign_ranks([Host(name, np) for name in names], np * node.count)


def places_on(node: Node, places: Sequence[Place]) -> tuple[Place, ...]:
    return tuple(place for place in places if place.host_index == node.index)


def shown_meeting(node: Node | None) -> Meeting | None:
    """Returns the meeting for --dry-run, without the key; None on a single host."""
    return Meeting(node.rendezvous, b"") if node is not None and node.count > 1 else None


def open_meeting(node: Node) -> Meeting | None:
    """Reads the key, and listens on node 0. Returns None for one host, which needs neither."""
    if node.count == 1:
        return None
    process_tree.leave_no_core()
    key = read_key_file(node.key_file)
    if node.index > 0:
        return Meeting(node.rendezvous, key)
    host, port = parse_endpoint(node.rendezvous, "--rendezvous")
    listener = open_listener(addresses_of(host, "--rendezvous"), Ports(port, port), "--rendezvous")
    return Meeting(node.rendezvous, key, {0: listener.detach()})
