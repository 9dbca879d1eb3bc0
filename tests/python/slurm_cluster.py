"""Slurm in a folder of its own: munged, slurmctld, and a slurmd on each of its nodes, which are
this machine alone or the hosts of a test's network.

It leaves the system's Slurm alone, and on this machine needs no root. Every message carries a
credential that needs this folder's key.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  # daemons are in sbin
_LOOPBACK = "127.0.0.1"
_IDLE_S = 20.0
_END_S = 10.0

CONFIGURATION = """\
ClusterName=ciranda
SlurmctldHost={controller}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
{listen_options}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
LaunchParameters=use_interactive_step
{nodes}
PartitionName=all Nodes=ALL Default=YES
"""


def skip_where_missing() -> None:
    """Skips the test on a machine without Slurm, which no set-up brings unasked."""
    for name in ("munged", "slurmctld", "slurmd", "srun"):
        if not shutil.which(name, path=_PATH):
            pytest.skip(f"{name} is not installed (slurmctld, slurmd)")


@dataclass(frozen=True)
class Node:
    """Where a slurmd runs. `popen`: subprocess.Popen there."""

    name: str
    address: str
    host_name: str
    popen: Callable[..., subprocess.Popen[Any]]


def this_machine() -> Node:
    # A session of its own: a Ctrl-C is for pytest.
    popen = partial(subprocess.Popen, start_new_session=True)
    return Node("localhost", _LOOPBACK, socket.gethostname().partition(".")[0], popen)


class SlurmCluster:
    """In a `with`: a cluster that takes jobs. `environment` makes srun find it.

    `hosts`: of a network with IPv4, which know each other's names; none: this machine. The first
    one also has the controller and takes commands.
    """

    def __init__(self, hosts: Sequence[Any] = ()) -> None:
        here = [Node(each.name, each.address("ipv4"), each.name, each.popen) for each in hosts]
        self._nodes = here or [this_machine()]

    def __enter__(self) -> SlurmCluster:
        with ExitStack() as undo:  # what was started when something fails
            self.folder = Path(tempfile.mkdtemp(prefix="cs-"))  # short: a Unix socket lies in it
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            (self.folder / "state").mkdir()
            (self.folder / "key").touch(mode=0o600)
            (self.folder / "key").write_bytes(os.urandom(128))
            configuration = self.folder / "slurm.conf"
            configuration.write_text(self._configuration())
            self.environment = {"SLURM_CONF": str(configuration)}
            first = self._nodes[0]
            self._start(undo, first, "munged", *self._munge_options())
            self._start(undo, first, "slurmctld", "-D")
            for node in self._nodes:
                self._start(undo, node, "slurmd", "-D", "-N", node.name)
            self.wait_until_idle()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _configuration(self) -> str:
        with socket.create_server((_LOOPBACK, 0)) as a, socket.create_server((_LOOPBACK, 0)) as b:
            ports = [listener.getsockname()[1] for listener in (a, b)]
        first = self._nodes[0]
        # config_overrides: Slurm believes in eight CPUs, however many there are.
        nodes = [
            f"NodeName={node.name} NodeAddr={node.address} NodeHostname={node.host_name} CPUs=8"
            for node in self._nodes
        ]
        return CONFIGURATION.format(
            controller=f"{first.name}({first.address})",
            controller_port=ports[0],
            node_port=ports[1],
            listen_options=_listen_options(first.address),
            user=getpass.getuser(),
            folder=self.folder,
            nodes="\n".join(nodes),
        )

    def _munge_options(self) -> list[str]:
        places = {"key-file": "key", "socket": "munge", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={self.folder / name}" for option, name in places.items()]
        # --force: nobody else may enter the folder, and it lies in one that all may write to.
        return ["--foreground", "--force", *options]

    def _start(self, undo: ExitStack, node: Node, program: str, *options: str) -> None:
        with open(self.folder / f"{program}-{node.name}.log", "wb") as log:
            process = node.popen(
                [program, *options],
                env={**os.environ, "PATH": _PATH, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        undo.callback(_end, process)

    def wait_until_idle(self) -> None:
        """Until all nodes have come up, or have ended what they run."""
        deadline = time.monotonic() + _IDLE_S
        state = ""
        while state != "idle":
            logs = [path.read_text() for path in sorted(self.folder.glob("*.log"))]
            assert time.monotonic() < deadline, f"Slurm's nodes are {state!r}\n" + "\n".join(logs)
            time.sleep(0.05)
            state = self._states()

    def _states(self) -> str:
        """Each once."""
        sinfo = self._nodes[0].popen(
            ["sinfo", "--noheader", "--format=%T"],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return str(sinfo.communicate(timeout=_IDLE_S)[0]).strip()


def _listen_options(address: str) -> str:
    """Slurm can be told to listen at one address, but that is always the one of the host's name."""
    with contextlib.suppress(OSError):
        if socket.gethostbyname(socket.gethostname()) == address:
            return "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny"
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
