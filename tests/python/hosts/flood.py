"""A stranger: `flood.py ADDRESS PORT RATE` makes so many connections a second, says nothing on them
and hangs up, until its input ends. Then prints how many it
made a second, and how many of them were not refused."""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from collections import deque

_OPEN_MOST = 256  # so that each is accepted before it is given up
_TOGETHER = 20
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: no address and port stays behind


def main() -> None:
    host, port, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    open_calls: deque[socket.socket] = deque()
    made = not_refused = 0
    print("ready", flush=True)
    began_s = time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        due = int((time.monotonic() - began_s) * rate)
        if made >= due:
            time.sleep(_TOGETHER / rate)
        for _ in range(min(due - made, _TOGETHER)):
            call = socket.socket(family, socket.SOCK_STREAM)
            call.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            call.setblocking(False)
            call.connect_ex((host, port))
            open_calls.append(call)
            made += 1
            if len(open_calls) > _OPEN_MOST:
                oldest = open_calls.popleft()
                not_refused += oldest.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
                oldest.close()
    print(made / (time.monotonic() - began_s), not_refused)


if __name__ == "__main__":
    main()
