"""Measures how long ranks take from one World to the next, with an arbiter that names epochs.

Forks RANKS processes, which enter EPOCHS Worlds together, and prints for each epoch the
milliseconds until the last of them was in it.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time

import ciranda.torch as cr
from ciranda import _C


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sockets = [_start(rank, args.ranks, folder) for rank in range(args.ranks)]
        for each in sockets:
            _hear_formed(each)
        for epoch in range(1, args.epochs + 1):
            members = bytes(range(1, args.ranks + 1))
            on_one_host = bytes(2)
            begun = time.monotonic_ns()
            for each in sockets:
                each.send(bytes([0, epoch, 0, args.ranks]) + members + on_one_host)
            ends = [_hear_formed(each) for each in sockets]
            print(f"{(max(ends) - begun) / 1e6:.3f}", flush=True)
        for each in sockets:
            each.send(bytes([1]))
        for _ in sockets:
            os.wait()


def _start(rank: int, ranks: int, folder: str) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() > 0:
        theirs.close()
        return ours
    ours.close()
    os.environ |= {
        "CIRANDA_MEMBER_FD": str(theirs.detach()),
        "CIRANDA_INCARNATION": str(rank + 1),
        "CIRANDA_RANK": str(rank),
        "CIRANDA_SIZE": str(ranks),
        "CIRANDA_LOCAL_RANK": str(rank),
        "CIRANDA_LOCAL_SIZE": str(ranks),
        "CIRANDA_JOB_DIR": folder,
        "CIRANDA_JOB_ID": "rebuild",
    }
    cr.init()
    _C.say_ready()
    while not _C.newest_order().over:
        if _C.newest_order().epoch > _C.own_epoch():
            _C.begin_epoch()
            _C.say_formed(time.monotonic_ns())
        _C.wait_for_order(1000)
    cr.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _hear_formed(member: socket.socket) -> int:
    """Returns the time that Ready or Formed names: when the rank was in the World."""
    while (message := member.recv(64))[0] == 3:  # Beat
        pass
    return _varint(message[2:]) if message[0] == 1 else 0


def _varint(data: bytes) -> int:
    number = 0
    for at, byte in enumerate(data):
        number |= (byte & 0x7F) << (7 * at)
    return number


if __name__ == "__main__":
    main()
