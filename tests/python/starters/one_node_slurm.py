"""Slurm on this machine alone, in a folder of its own: munged, slurmctld and slurmd.

It needs no root and leaves the system's Slurm alone. Every message carries a credential that needs
this folder's key.
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
from contextlib import ExitStack
from pathlib import Path

_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  # daemons are in sbin
_IDLE_S = 20.0
_END_S = 10.0

CONFIGURATION = """\
ClusterName=ciranda
SlurmctldHost=localhost(127.0.0.1)
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
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
NodeName=localhost NodeAddr=127.0.0.1 NodeHostname={host} CPUs=8
PartitionName=all Nodes=localhost Default=YES
"""


def missing_program() -> str | None:
    programs = ("munged", "slurmctld", "slurmd", "srun")
    return next((name for name in programs if not shutil.which(name, path=_PATH)), None)


class OneNodeSlurm:
    """In a `with`: a cluster that takes jobs. `environment` makes srun find it."""

    def __enter__(self) -> OneNodeSlurm:
        with ExitStack() as undo:  # what was started when something fails
            self.folder = Path(tempfile.mkdtemp(prefix="cs-"))  # short: a Unix socket lies in it
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            for name in ("state", "spool"):
                (self.folder / name).mkdir()
            (self.folder / "key").touch(mode=0o600)
            (self.folder / "key").write_bytes(os.urandom(128))
            configuration = self.folder / "slurm.conf"
            configuration.write_text(self._configuration())
            self.environment = {"SLURM_CONF": str(configuration)}
            self._start(undo, "munged", *self._munge_options())
            self._start(undo, "slurmctld", "-D")
            self._start(undo, "slurmd", "-D", "-N", "localhost")
            self.wait_until_idle()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _configuration(self) -> str:
        loopback = "127.0.0.1"
        with socket.create_server((loopback, 0)) as a, socket.create_server((loopback, 0)) as b:
            ports = [listener.getsockname()[1] for listener in (a, b)]
        # config_overrides: Slurm believes in eight CPUs, however many there are.
        return CONFIGURATION.format(
            controller_port=ports[0],
            node_port=ports[1],
            listen_options=_listen_options(loopback),
            user=getpass.getuser(),
            folder=self.folder,
            host=socket.gethostname().partition(".")[0],
        )

    def _munge_options(self) -> list[str]:
        places = {"key-file": "key", "socket": "munge", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={self.folder / name}" for option, name in places.items()]
        # --force: nobody else may enter the folder, and it lies in one that all may write to.
        return ["--foreground", "--force", *options]

    def _start(self, undo: ExitStack, program: str, *options: str) -> None:
        with open(self.folder / f"{program}.log", "wb") as log:
            process = subprocess.Popen(
                [program, *options],
                env={**os.environ, "PATH": _PATH, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is for pytest
            )
        undo.callback(_end, process)

    def wait_until_idle(self) -> None:
        """Until the node has come up, or has ended what it runs."""
        deadline = time.monotonic() + _IDLE_S
        state = ""
        while state != "idle":
            logs = [path.read_text() for path in sorted(self.folder.glob("*.log"))]
            assert time.monotonic() < deadline, f"Slurm's node is {state!r}\n" + "\n".join(logs)
            time.sleep(0.05)
            state = subprocess.run(
                ["sinfo", "--noheader", "--format=%T"],
                env={**os.environ, **self.environment},
                capture_output=True,
                text=True,
                timeout=_IDLE_S,
            ).stdout.strip()


def _listen_options(loopback: str) -> str:
    """Slurm can be told to listen at one address, but that is always the one of the host's name."""
    with contextlib.suppress(OSError):
        if socket.gethostbyname(socket.gethostname()) == loopback:
            return "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny"
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
