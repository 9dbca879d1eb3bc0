"""Joins the ranks of a peer on torch.distributed. Runs in a worker."""

from __future__ import annotations

import ipaddress
import os
import socket


def join(backend: str) -> None:
    """Calls init_process_group(). Blocks until all ranks have joined.

    Its store and Gloo would listen on all addresses. If all ranks are on this host (MASTER_ADDR is
    a loopback address), both listen on loopback only.
    """
    import torch.distributed as dist

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not _is_loopback(host):
        dist.init_process_group(backend)
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    listener = -1
    if rank == 0:
        with socket.socket() as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
            bound.listen(size)
            listener = bound.detach()
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port,
        size,
        is_master=rank == 0,
        master_listen_fd=None if listener < 0 else listener,
        wait_for_workers=False,
    )
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
