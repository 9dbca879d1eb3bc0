"""Collects facts of this host, as JSON. All I/O and no judgement; host_checks.py judges.

A fact that cannot be found is {"why_not": "…"}. By hand: python -m ciranda.doctor.facts
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import mmap
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ciranda
from ciranda import _build
from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.environment import count_cores
from ciranda.launch.remote.interfaces import choose_addresses, list_addresses
from ciranda.launch.remote.meeting import Ports, format_endpoint, open_listener
from ciranda.launch.run.folders import private_folder

Facts = dict[str, Any]

_TORCH_LIMIT_S = 60.0  # enough for a cold disk
_NAMES_AT_ONCE_MAX = 32
_MEMFD_BYTES = 1024 * 1024
_LIMITS = {
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "address_space": resource.RLIMIT_AS,
    "file_size": resource.RLIMIT_FSIZE,
    "locked_memory": resource.RLIMIT_MEMLOCK,
}
_NVIDIA = "0x10de"
_STA_UNSYNC = 0x40
_TIME_ERROR = 5


def module_command(interpreter: str, module: str) -> tuple[str, ...]:
    """Returns the command that runs a module's main().

    It avoids -m, which would let modules of the current folder shadow Python's own (see
    ssh.agent_command).
    """
    path = "sys.path = [folder for folder in sys.path if folder]"
    return (interpreter, "-c", f"import sys; {path}; import {module} as module; module.main()")


def host_facts(
    *, nic: str = "", ports: Ports | None = None, names: Sequence[str] = (), folder: str = ""
) -> Facts:
    """Returns all facts of this host. Blocks, for up to a minute while torch is imported.

    `nic` and `ports` are those of `ciranda run`. `names` are the names of all hosts, which are
    resolved here. `folder` is where the job would run.
    """
    ports = ports or Ports()
    groups: dict[str, Callable[[], Facts]] = {
        "cores": _cores,
        "load": lambda: {"load_1min": os.getloadavg()[0]},
        "threads": _threads,
        "memory": _memory,
        "memfd": _memfd,
        "dev_shm": lambda: _space("/dev/shm"),  # noqa: S108 - looked at, not used
        "limits": _limits,
        "pids": _pids,
        "job_folder": _job_folder,
        "log_folder": lambda: _space(tempfile.gettempdir()),
        "clock": _clock,
        "interfaces": lambda: _interfaces(nic),
        "hostname": _hostname,
        "names": lambda: _names(names),
        "ports": lambda: _ports(nic, ports),
        "infiniband": lambda: {"devices": sorted(os.listdir("/sys/class/infiniband"))},
        "driver": _driver,
        "folder": lambda: {"path": folder, "is_there": os.path.isdir(folder)},
        "torch": _torch,
    }
    facts: Facts = {
        "host": os.uname().nodename,
        "python": {"version": platform.python_version(), "path": sys.executable},
        "ciranda": {"version": ciranda.__version__, "built_for": _build.TORCH_VERSION},
        "ssh_connection": os.environ.get("SSH_CONNECTION", "").split(),
    }
    return facts | {name: _fact(look) for name, look in groups.items()}


def _fact(look: Callable[[], Facts]) -> Facts:
    try:
        return look()
    except (OSError, ValueError, LookupError, AttributeError) as error:
        return {"why_not": " ".join(str(error).split()) or type(error).__name__}


# --- the machine -------------------------------------------------------------------------------


def _cores() -> Facts:
    return {
        "machine": os.cpu_count(),
        "affinity": len(os.sched_getaffinity(0)),
        "usable": count_cores(),
    }


def _threads() -> Facts:
    return {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}


def _memory() -> Facts:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (each.partition(":") for each in lines)}
    return {
        "total_bytes": kib["MemTotal"] * 1024,
        "available_bytes": kib["MemAvailable"] * 1024,
        "cgroup_left_bytes": _cgroup_left("memory.max", "memory.current", "memory"),
    }


def _cgroup_left(limit: str, used: str, controller: str) -> int | None:
    """Returns what the tightest control group leaves, from ours up to the root; None: no limit.

    Reads cgroup v2, or a container's own v1.
    """
    left: list[int] = []
    for folder in _own_cgroups():
        with contextlib.suppress(OSError, ValueError):
            left.append(_number(folder / limit) - _number(folder / used))
    old = Path("/sys/fs/cgroup", controller)
    with contextlib.suppress(OSError, ValueError):
        limit_bytes = _number(old / "memory.limit_in_bytes")
        if limit_bytes < 1 << 60:  # more means no limit
            left.append(limit_bytes - _number(old / "memory.usage_in_bytes"))
    return min(left, default=None)


def _own_cgroups() -> list[Path]:
    """Returns the folders of cgroup v2 from ours up to the root."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    root = Path("/sys/fs/cgroup")
    path = next((each[3:].lstrip("/") for each in lines if each.startswith("0::")), "")
    if ".." in path.split("/"):
        path = ""
    return [root / path, *(root / path).parents][: len(Path(path).parts) + 1]


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


def _memfd() -> Facts:
    """Makes shared memory like ciranda's for the ranks of a host."""
    try:
        fd = os.memfd_create("ciranda-doctor")
    except OSError as error:
        return {"error": error.strerror}
    try:
        os.posix_fallocate(fd, 0, _MEMFD_BYTES)
        with mmap.mmap(fd, _MEMFD_BYTES) as memory:
            memory[_MEMFD_BYTES - 1] = 1
    except OSError as error:
        return {"error": error.strerror}
    finally:
        os.close(fd)
    return {"works": True}


def _space(folder: str) -> Facts:
    found = os.statvfs(folder)
    return {
        "path": folder,
        "size_bytes": found.f_blocks * found.f_frsize,
        "free_bytes": found.f_bavail * found.f_frsize,
        "writable": os.access(folder, os.W_OK | os.X_OK),
    }


def _limits() -> Facts:
    """Returns soft and hard limits; None means no limit."""
    return {
        name: [None if each == resource.RLIM_INFINITY else each for each in resource.getrlimit(of)]
        for name, of in _LIMITS.items()
    }


def _pids() -> Facts:
    return {"cgroup_left": _cgroup_left("pids.max", "pids.current", "pids")}


def _job_folder() -> Facts:
    """Makes a private folder with a socket, as the launcher does, and removes both."""
    try:
        with (
            private_folder() as folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        ):
            listener.bind(os.path.join(folder, "a-socket-of-a-job"))
            return {"path": os.path.dirname(folder)}
    except (LaunchError, OSError) as error:
        return {"problem": str(error)}


class _Timex(ctypes.Structure):
    """struct timex of Linux; `rest` has room for its other fields."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def _clock() -> Facts:
    timex = _Timex()  # modes 0: reads only
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    synchronised = None if state < 0 else state != _TIME_ERROR and not timex.status & _STA_UNSYNC
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    return {"source": source.read_text("ascii").strip(), "synchronised": synchronised}


# --- the network -------------------------------------------------------------------------------


def _interfaces(nic: str) -> Facts:
    addresses = list_addresses()
    facts: Facts = {
        "addresses": [[each.interface, str(each.address)] for each in addresses],
        "chosen": [],
        "problem": None,
        "mtu_bytes": {},
    }
    for name in {each.interface for each in addresses}:
        with contextlib.suppress(OSError, ValueError):
            facts["mtu_bytes"][name] = _number(Path("/sys/class/net", name, "mtu"))
    try:
        facts["chosen"] = choose_addresses(addresses, nic)
    except LaunchError as error:
        facts["problem"] = str(error)
    return facts


def _resolve(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _names(names: Sequence[str]) -> Facts:
    """Resolves all names at once, because an unknown name may take seconds."""
    if not names:
        return {}
    with ThreadPoolExecutor(min(len(names), _NAMES_AT_ONCE_MAX)) as pool:
        return dict(zip(names, pool.map(_resolve, names), strict=True))


def _hostname() -> Facts:
    name = socket.gethostname()
    began = time.monotonic()
    addresses = _resolve(name)
    return {"name": name, "addresses": addresses, "seconds": time.monotonic() - began}


def _ports(nic: str, ports: Ports) -> Facts:
    """Listens for a moment on loopback and on each address that the launcher would choose."""
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()
    listened, problems = [], {}
    for address in ["127.0.0.1", *_interfaces(nic)["chosen"]]:
        try:
            with open_listener([address], ports, "doctor") as listener:
                listened.append(format_endpoint(address, listener.getsockname()[1]))
        except LaunchError as error:
            problems[address] = str(error).removeprefix("doctor: ")
    return {"listened": listened, "problems": problems, "ephemeral": [int(first), int(last)]}


# --- the software ------------------------------------------------------------------------------


def _driver() -> Facts:
    """Returns NVIDIA's cards and their driver."""
    cards = [
        folder
        for folder in glob.glob("/sys/bus/pci/devices/*")
        if _text(folder, "vendor") == _NVIDIA and _text(folder, "class").startswith("0x03")
    ]
    version = None
    with contextlib.suppress(OSError):
        words = Path("/proc/driver/nvidia/version").read_text("utf-8").splitlines()[0].split()
        version = next((word for word in words if word[:1].isdigit() and "." in word), "unknown")
    return {
        "cards": len(cards),
        "version": version,
        "device_files": len(glob.glob("/dev/nvidia[0-9]*")),
        "smi": shutil.which("nvidia-smi"),
    }


def _text(folder: str, name: str) -> str:
    try:
        return Path(folder, name).read_text("ascii").strip()
    except OSError:
        return ""


def _torch() -> Facts:
    command = module_command(sys.executable, "ciranda.doctor.torch_facts")
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TORCH_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"importing torch takes more than {_TORCH_LIMIT_S:g} s"}
    try:
        facts: Facts = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip().splitlines()[-1:] or ["it says nothing"]
        return {"error": f"a process that imports torch ends with {done.returncode}: {said[0]}"}
    return facts


def main() -> None:
    print(json.dumps(host_facts(folder=os.getcwd()), indent=2))


if __name__ == "__main__":
    main()
