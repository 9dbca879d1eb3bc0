"""Who stands on the path between two hosts: writes all packets of a device into a file.

Ends when its input ends and no packet is left.
"""

from __future__ import annotations

import select
import socket
import sys

_ALL_PROTOCOLS = 3  # ETH_P_ALL
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 64 << 20  # more than passes in the whole test: nothing is missed
_PACKET_BYTES_MAX = 1 << 17


def main() -> None:
    device, path = sys.argv[1:]
    network = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    with network, open(path, "wb") as file:
        network.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        network.bind((device, 0))
        print("ready", flush=True)
        while network in select.select([network, sys.stdin], [], [])[0]:
            file.write(network.recv(_PACKET_BYTES_MAX))


if __name__ == "__main__":
    main()
