"""Measures the way from one host to another over one TCP connection.

The listener binds one address only. It serves one caller: the first that shows a random token,
which both hosts get through ssh. All data are zeros.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import secrets
import select
import socket
import statistics
import struct
import threading
import time
from typing import Any

from ciranda.launch.remote.meeting import Ports, open_listener

TOKEN_BYTES = 32
SEND_S = 0.25  # seconds of sending
LISTEN_LIMIT_S = 12.0  # seconds from listening to the end
_CONNECT_LIMIT_S = 3.0
_STEP_LIMIT_S = 6.0  # of one send or receive, while earlier bytes may queue
_STRANGER_LIMIT_S = 1.0  # for the whole token
_STRANGERS_MAX = 16  # at a time; a new caller replaces the oldest
_PINGS = 21
_LARGE = bytes(64 * 1024)  # many packets, but few seconds on any usable way
_DRAIN_S = 4.0  # seconds until sent bytes arrive, estimated with _LARGE
_CHUNK = bytes(256 * 1024)
_HEARD = struct.Struct("!Qd")  # bytes, and the seconds in which they arrived

# How a call ended.
REFUSED = "refused"
TIMED_OUT = "timed out"
UNREACHABLE = "unreachable"
CUT = "cut"  # after the connection was made
STALLED = "stalled"  # small messages pass, large ones do not
FAILED = "failed"


def draw_token() -> str:
    return secrets.token_hex(TOKEN_BYTES)


def listen(address: str, ports: Ports, token: str) -> int:
    """Serves one caller from a thread, for a limited time; returns the port at once."""
    listener = open_listener([address], ports, f"doctor, {address}")
    port: int = listener.getsockname()[1]
    threading.Thread(target=_serve, args=(listener, bytes.fromhex(token)), daemon=True).start()
    return port


def _serve(listener: socket.socket, token: bytes) -> None:
    deadline = time.monotonic() + LISTEN_LIMIT_S
    with listener, contextlib.suppress(OSError):
        caller = _who_shows(token, listener, deadline)
        if caller is not None:
            with caller:
                caller.settimeout(_STEP_LIMIT_S)
                _answer(caller)


def _who_shows(token: bytes, listener: socket.socket, deadline: float) -> socket.socket | None:
    """Returns the first caller with the token, or None at the deadline.

    Each caller has one time limit for the whole token. No caller waits for another.
    """
    callers: dict[socket.socket, tuple[bytearray, float]] = {}  # in the order of arrival
    try:
        while (now := time.monotonic()) < deadline:
            for late in [each for each, (_, limit) in callers.items() if limit <= now]:
                del callers[late]
                late.close()
            soonest = min([deadline, *(limit for _, limit in callers.values())])
            ready, _, _ = select.select([listener, *callers], [], [], max(0.0, soonest - now))
            for each in ready:
                if each is listener:
                    if len(callers) == _STRANGERS_MAX:
                        oldest = next(iter(callers))
                        del callers[oldest]
                        oldest.close()
                    caller, _ = listener.accept()
                    caller.setblocking(False)
                    callers[caller] = (bytearray(), now + _STRANGER_LIMIT_S)
                elif each in callers and _has_shown(each, callers[each][0], token):
                    del callers[each]
                    return each
                elif each in callers and not callers[each][0]:
                    del callers[each]
                    each.close()
    finally:
        for each in callers:
            each.close()
    return None


def _has_shown(caller: socket.socket, shown: bytearray, token: bytes) -> bool:
    """Reads the available bytes; returns true if the token is complete and right.

    Clears `shown` if the token is wrong or the caller has left.
    """
    try:
        chunk = caller.recv(len(token) - len(shown))
    except OSError:
        chunk = b""
    shown += chunk
    if hmac.compare_digest(bytes(shown), token):
        return True
    if not chunk or len(shown) == len(token):
        shown.clear()
    return False


def _answer(caller: socket.socket) -> None:
    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(1 + _PINGS):
        caller.sendall(_receive(caller, 1))
    _receive(caller, len(_LARGE))
    caller.sendall(b"\0")
    buffer = bytearray(len(_CHUNK))
    count_bytes = caller.recv_into(buffer)
    began = time.monotonic()
    heard_bytes = 0  # since `began`
    while count := caller.recv_into(buffer):
        heard_bytes += count
    caller.sendall(_HEARD.pack(heard_bytes if heard_bytes else count_bytes, _since(began)))


def call(address: str, port: int, token: str) -> dict[str, Any]:
    """Returns round trip and bandwidth to a listener, or "end" and "why" of a failure. Blocks."""
    began = time.monotonic()
    try:
        connection = socket.create_connection((address, port), _CONNECT_LIMIT_S)
    except OSError as error:
        return {"end": _end_of(error), "why": str(error), "address": address, "port": port}
    facts: dict[str, Any] = {
        "address": address,
        "port": port,
        "from": connection.getsockname()[0],
        "connect_s": _since(began),
    }
    with connection:
        connection.settimeout(_STEP_LIMIT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            connection.sendall(bytes.fromhex(token))
            _round_trip(connection)  # wakes up the other side
            facts["rtt_s"] = statistics.median(_round_trip(connection) for _ in range(_PINGS))
        except OSError as error:
            return facts | {"end": CUT, "why": str(error)}
        try:
            large_s = _round_trip(connection, _LARGE)
        except TimeoutError as error:
            return facts | {"end": STALLED, "why": str(error)}
        except OSError as error:
            return facts | {"end": CUT, "why": str(error)}
        try:
            facts["bytes_per_s"] = _bandwidth(connection, int(len(_LARGE) / large_s * _DRAIN_S))
        except OSError as error:
            return facts | {"end": CUT, "why": str(error)}
    return facts


def _end_of(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return TIMED_OUT
    if error.errno == errno.ECONNREFUSED:
        return REFUSED
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN):
        return UNREACHABLE
    return FAILED


def _round_trip(connection: socket.socket, message: bytes = b"\0") -> float:
    began = time.monotonic()
    connection.sendall(message)
    _receive(connection, 1)
    return _since(began)


def _bandwidth(connection: socket.socket, bytes_max: int) -> float:
    """Returns bytes a second as the listener counts them."""
    began, sent_bytes = time.monotonic(), 0
    while _since(began) < SEND_S and sent_bytes <= bytes_max:
        connection.sendall(_CHUNK)
        sent_bytes += len(_CHUNK)
    connection.shutdown(socket.SHUT_WR)
    count_bytes, seconds = _HEARD.unpack(_receive(connection, _HEARD.size))
    return float(count_bytes / max(seconds, 1e-6))


def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, "the other side has closed")
        received += chunk
    return received


def _since(began: float) -> float:
    return time.monotonic() - began
