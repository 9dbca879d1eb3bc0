"""The meeting of several hosts: its endpoint, its key and the listening sockets."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ciranda.launch.errors import LaunchError

KEY_BYTES = 32  # as in the core (base/secret.h)
PORT_MAX = 65_535
_BACKLOG = 1024  # ranks that connect at once; more try again
_ENDPOINT = re.compile(r"(?:\[([^][]+)\]|([^][:]+)):([0-9]{1,5})")
_PORT_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")


@dataclass(frozen=True)
class Ports:
    """A range of ports to listen on; both 0: any port that the kernel gives."""

    first: int = 0
    last: int = 0


@dataclass(frozen=True)
class Meeting:
    """The values by which a host's ranks and servers find those of other hosts."""

    endpoint: str  # HOST:PORT where rank 0 listens; empty if ranks do not meet
    key: bytes = field(repr=False)  # hidden, so that no traceback shows it
    # The listening sockets of processes on this host, by the number of the process: rank 0's, at
    # the endpoint, and those of servers.
    listeners: Mapping[int, int] = field(default_factory=dict)


def parse_endpoint(text: str, option: str) -> tuple[str, int]:
    """Parses `host:port` or `[fd00::1]:port`."""
    match = _ENDPOINT.fullmatch(text)
    port = int(match[3]) if match else 0
    if match is None or not 1 <= port <= PORT_MAX:
        raise LaunchError(
            f"{option} {text}: expected HOST:PORT with a port from 1 to {PORT_MAX}, "
            "and an IPv6 address in brackets"
        )
    return match[1] or match[2], port


def format_endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_ports(text: str, option: str) -> Ports:
    """Parses a range such as `20000-20099`."""
    match = _PORT_RANGE.fullmatch(text)
    ports = Ports(int(match[1]), int(match[2])) if match else Ports()
    if not 1 <= ports.first <= ports.last <= PORT_MAX:
        raise LaunchError(f"{option} {text}: expected two ports, such as 20000-20099")
    return ports


# --- the key -----------------------------------------------------------------------------------


def draw_key() -> bytes:
    return os.urandom(KEY_BYTES)


def job_id_of(key: bytes) -> str:
    """Returns an id that is the same on all hosts with the key and does not reveal the key."""
    import hashlib  # 3 ms, and only --no-ssh needs it
    import hmac

    return hmac.new(key, b"ciranda job id", hashlib.sha256).hexdigest()[:32]


def make_key_file(path: str) -> None:
    """Writes a new key into a file that only this user can read."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise LaunchError(f"{path} is there already; remove it or name another file") from None
    except OSError as error:
        raise LaunchError(f"cannot make the key file {path}: {error.strerror}") from error
    with open(fd, "wb") as file:
        file.write(draw_key())


def read_key_file(path: str) -> bytes:
    """Reads a key from a file of this user or root that nobody else can read."""
    try:
        # A mounted secret is a symbolic link, so the opened file is checked and not its name.
        # O_NONBLOCK keeps open() from waiting if the file is a pipe.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise LaunchError(f"cannot open the key file {path}: {error.strerror}") from error
    try:
        problem = _key_file_problem(os.fstat(fd))
        key = b"" if problem else os.read(fd, KEY_BYTES + 1)
    finally:
        os.close(fd)
    if not problem and len(key) != KEY_BYTES:
        problem = f"does not hold exactly {KEY_BYTES} bytes"
    if problem:
        raise LaunchError(f"the key file {path} {problem}; make one with: ciranda key FILE")
    return key


def _key_file_problem(facts: os.stat_result) -> str:
    if not stat.S_ISREG(facts.st_mode):
        return "is not a regular file"
    if facts.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {facts.st_uid}, not to this user"
    if facts.st_mode & 0o077:
        return "can be read or written by other users (if nobody has read it, chmod 600 the file)"
    return ""


def key_pipe(key: bytes) -> int:
    """Returns the read end of a pipe that gives the key once and then ends."""
    read, write = os.pipe()
    os.write(write, key)  # does not block, as a pipe holds far more
    os.close(write)
    return read


# --- the sockets that others call -------------------------------------------------------------


def addresses_of(host: str, option: str) -> list[str]:
    """Returns every address at which others can reach a host. Blocks while it resolves names."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not the name of a host"
        raise LaunchError(f"{option}: the name '{host}' leads to no address: {why}") from error
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    if any(ipaddress.ip_address(each.partition("%")[0]).is_unspecified for each in addresses):
        raise LaunchError(f"{option}: {host} means every address of a host; name one of them")
    # Other hosts cannot use a name for a loopback address, such as Debian's 127.0.1.1.
    literal = host in addresses or host == "localhost"
    outside = [each for each in addresses if literal or not ipaddress.ip_address(each).is_loopback]
    if not outside:
        raise LaunchError(
            f"{option}: on this host '{host}' means {addresses[0]}, where others cannot reach it; "
            "write its address instead"
        )
    return outside


def open_listener(addresses: Sequence[str], ports: Ports, option: str) -> socket.socket:
    """Returns a socket that listens on the first address that works, at a free port of `ports`."""
    problem = ""
    for address in addresses:
        for port in range(ports.first, ports.last + 1):
            try:
                return _listen(address, port)
            except OSError as error:
                problem = f"{format_endpoint(address, port)}: {_listen_problem(error)}"
                if error.errno != errno.EADDRINUSE:
                    break
    raise LaunchError(f"{option}: cannot listen on {problem}")


def _listen(address: str, port: int) -> socket.socket:
    family, kind, protocol, _, name = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
    )[0]
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(socket.socket(family, kind, protocol))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(name)
        listener.listen(_BACKLOG)
        undo.pop_all()
    return listener


def _listen_problem(error: OSError) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return "this host does not have that address, and rank 0 runs here"
    if error.errno == errno.EADDRINUSE:
        return "another program listens there; choose another port"
    return error.strerror or "unknown"
