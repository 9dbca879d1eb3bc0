"""A rank of an elastic job without torch, which talks to the arbiter itself; see docs/protocol.md.

A test copies this file beside its script, which imports it.
"""

from __future__ import annotations

import os
import socket
import time

INCARNATION = int(os.environ["CIRANDA_INCARNATION"])
_READY, _FORMED, _AT_END, _LEFT_EARLY, _UNREACHABLE = 0, 1, 2, 5, 6
_NEW_EPOCH, _OVER = 0, 1
_newest = 0  # the epoch that this rank has formed last
_socket = socket.socket(fileno=int(os.environ["CIRANDA_MEMBER_FD"]))


class Epoch:
    def __init__(self, message: bytes) -> None:
        self.number, planned, size, *rest = _varints(message[1:])
        self.members = rest[:size]
        count, *rest = rest[size:]
        self.hosts = rest[:count]  # of the members; none: all are on one
        self.meet_at = bytes(rest[count + 1 :]).decode()
        self.planned = bool(planned)
        self.rank = self.members.index(INCARNATION)
        self.size = len(self.members)


def ready() -> None:
    _socket.send(bytes([_READY]))


def formed(epoch: Epoch, step: int = 0) -> None:
    global _newest
    _newest = epoch.number
    _socket.send(bytes([_FORMED]) + _varint(epoch.number) + _varint(step))


def at_end() -> None:
    """Says that the program is at its end, and has been in its last loop in the newest epoch."""
    _socket.send(bytes([_AT_END]) + _varint(_newest))


def needs(who: int, step: int) -> None:
    """Says that this rank needs another one, which has left the World of the newest epoch."""
    _socket.send(bytes([_LEFT_EARLY]) + _varint(who) + _varint(_newest) + _varint(step))


def cannot_reach(who: int) -> None:
    """Says that this rank cannot reach another one of the newest epoch."""
    _socket.send(bytes([_UNREACHABLE]) + _varint(who) + _varint(_newest))


def say(message: bytes) -> None:
    _socket.send(message)


def hear() -> Epoch | None:
    """Waits for a message: an epoch, or None for the end of the job."""
    message = _socket.recv(65536)
    if not message or message[0] == _OVER:
        return None
    assert message[0] == _NEW_EPOCH
    return Epoch(message)


def join(step: int = 0) -> Epoch:
    """Says that this rank is ready, and forms its first epoch, which all its members form."""
    ready()
    mark(f"ready-{INCARNATION}")
    epoch = hear()
    assert epoch is not None
    formed(epoch, step)
    mark(f"formed-{epoch.number}-{INCARNATION}")
    for each in epoch.members if epoch.number == 1 else ():
        wait_for(f"formed-1-{each}")
    return epoch


def mark(name: str) -> None:
    open(name, "w").close()


def wait_for(name: str) -> None:
    while not os.path.exists(name):
        time.sleep(0.002)


def train(epoch: Epoch, until: int, step: int = 0) -> None:
    """Forms each epoch up to the number `until`, and leaves with all members."""
    while epoch.number < until:
        follows = hear()
        if follows is None:
            return
        epoch = follows
        formed(epoch, step)
    leave(step)


def leave(step: int = 0) -> None:
    """Says that the program is at its end, again in each epoch, until the job is over."""
    at_end()
    while (epoch := hear()) is not None:
        formed(epoch, step)
        at_end()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _varints(data: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number, shift = 0, 0
    return numbers
