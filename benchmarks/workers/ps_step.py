"""One worker's step through one parameter server, one of several ways.

ciranda  DistributedOptimizer.step(), below `ciranda run -np 1 --ps 1`
rpc      torch.distributed.rpc: a remote call takes the gradient and gives the parameters back
ray      a method of a Ray actor does
sockets  no server: as many bytes to another process and back, through a TCP connection
plain    no server: torch's own optimizer steps in the worker
passes   no server: the passes over memory that cannot be left out, by one thread of one process

All make SGD's step on one parameter. What is timed begins with the gradient where backward() leaves
it and ends with the new values in the worker's own parameter.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import control
import torch

# A power of two that keeps the parameters away from denormals for any number of steps.
LEARNING_RATE = 2.0**-20
# Enough for the objects of a few steps of 64 MiB.
RAY_STORE_BYTES = 2**31
RAY_JOIN_S = 60


def make_parameter(elements: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(elements))


def make_optimizer(parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter], lr=LEARNING_RATE)


class Server:
    """What both peers keep on their server: as PyTorch's and Ray's tutorials do."""

    def __init__(self, elements: int) -> None:
        torch.set_num_threads(1)
        self.parameter = make_parameter(elements)
        self.optimizer = make_optimizer(self.parameter)

    def update(self, gradient: torch.Tensor) -> torch.Tensor:
        self.parameter.grad = gradient
        self.optimizer.step()
        return self.parameter.detach()


class CirandaWorker:
    def __init__(self, elements: int) -> None:
        import ciranda.torch as hvd

        self.hvd = hvd
        hvd.init()
        self.rank = hvd.rank()
        self.parameter = make_parameter(elements)
        optimizer = hvd.DistributedOptimizer(
            make_optimizer(self.parameter),
            [("parameter", self.parameter)],
            ps=hvd.ps.Async(),
        )
        self.zero_grad, self.step = optimizer.zero_grad, optimizer.step
        self.cores = sorted(os.sched_getaffinity(0))

    def hold(self, cores: int) -> None:
        """This process and the server on one core, or each on one of two."""
        os.sched_setaffinity(0, self.cores[:1])
        for process in control.servers_of_this_job():
            os.sched_setaffinity(int(process.name), [self.cores[cores - 1]])

    def servers(self) -> list[dict[str, float]]:
        """What each has done so far."""
        return [
            {
                "bytes": each["gradient_bytes"] + each["parameter_bytes"],
                "busy_s": each["busy_s"],
            }
            for each in self.hvd.ps.stats()["servers"]
        ]

    def close(self) -> None:
        self.hvd.shutdown()


class Worker:
    """Without ciranda."""

    rank = 0

    def __init__(self, elements: int) -> None:
        self.parameter = make_parameter(elements)

    def zero_grad(self) -> None:
        self.parameter.grad = None

    def step(self) -> None:
        assert self.parameter.grad is not None
        with torch.no_grad():
            self.parameter.copy_(self.exchange(self.parameter.grad))

    def exchange(self, gradient: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def close(self) -> None:
        pass


rpc_server: Server  # of the process that is one


def rpc_update(gradient: torch.Tensor) -> torch.Tensor:
    return rpc_server.update(gradient)


class RpcWorker(Worker):
    """Rank 1 is the server: its thread here only waits for the end."""

    NAMES = ("worker", "server")

    def __init__(self, elements: int) -> None:
        from torch.distributed import rpc

        global rpc_server
        super().__init__(elements)
        self.rpc = rpc
        self.rank = int(os.environ["RANK"])
        rpc_server = Server(elements)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch.distributed.rpc is to go some day
            rpc.init_rpc(self.NAMES[self.rank], rank=self.rank, world_size=len(self.NAMES))

    def exchange(self, gradient: torch.Tensor) -> torch.Tensor:
        updated: torch.Tensor = self.rpc.rpc_sync("server", rpc_update, args=(gradient,))
        return updated

    def close(self) -> None:
        self.rpc.shutdown()


class RayServer(Server):
    """Takes and gives NumPy's arrays, which Ray's store hands over without a copy of its own."""

    def apply_gradients(self, gradient: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the store's memory is read-only
            return self.update(torch.from_numpy(gradient)).numpy()


class RayWorker(Worker):
    def __init__(self, elements: int) -> None:
        import ray

        super().__init__(elements)
        self.ray = ray
        server = ray.remote(RayServer)
        if address := os.environ.get("RAY_ADDRESS"):  # nodes that others have started
            self._join(address)
            server = server.options(resources={"server": 1})
        else:
            ray.init(
                num_cpus=2,
                include_dashboard=False,
                object_store_memory=RAY_STORE_BYTES,
                log_to_driver=False,
            )
        self.server = server.remote(elements)

    def _join(self, address: str) -> None:
        for _ in range(RAY_JOIN_S):
            try:
                self.ray.init(address=address, log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError):
                time.sleep(1.0)
            else:
                return
        self.ray.init(address=address)

    def exchange(self, gradient: torch.Tensor) -> torch.Tensor:
        answer = self.server.apply_gradients.remote(gradient.numpy())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.from_numpy(self.ray.get(answer))

    def close(self) -> None:
        self.ray.shutdown()


class SocketsWorker(Worker):
    """Rank 1 sends back what it gets, once it has all of it."""

    def __init__(self, elements: int) -> None:
        super().__init__(elements)
        self.rank = int(os.environ["RANK"])
        self.bytes = memoryview(bytearray(elements * 4))
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if self.rank == 0:
            with socket.create_server(address) as listener:
                self.socket, _ = listener.accept()
        else:
            self.socket = self._call(address)
            threading.Thread(target=self._serve, daemon=True).start()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @staticmethod
    def _call(address: tuple[str, int]) -> socket.socket:
        while True:
            with contextlib.suppress(ConnectionError):
                return socket.create_connection(address)
            time.sleep(0.05)

    def _serve(self) -> None:
        while self._receive():
            self.socket.sendall(self.bytes)

    def _receive(self) -> bool:
        got = 0
        while got < len(self.bytes):
            count = self.socket.recv_into(self.bytes[got:])
            if count == 0:
                return False
            got += count
        return True

    def step(self) -> None:
        self.socket.sendall(self.bytes)
        self._receive()

    def close(self) -> None:
        self.socket.close()


class PlainWorker(Worker):
    def __init__(self, elements: int) -> None:
        super().__init__(elements)
        self.step = make_optimizer(self.parameter).step  # type: ignore[method-assign]


class PassesWorker(Worker):
    """Reads the gradient and the parameters, writes the parameters, and writes the worker's."""

    def __init__(self, elements: int) -> None:
        super().__init__(elements)
        self.served = torch.ones(elements)

    def step(self) -> None:
        assert self.parameter.grad is not None
        with torch.no_grad():
            self.served.add_(self.parameter.grad, alpha=-LEARNING_RATE)
            self.parameter.fill_(1.0)


SIDES: dict[str, Callable[[int], Any]] = {
    "ciranda": CirandaWorker,
    "rpc": RpcWorker,
    "ray": RayWorker,
    "sockets": SocketsWorker,
    "plain": PlainWorker,
    "passes": PassesWorker,
}


def time_steps(worker: Any, command: control.Command) -> control.Reply:
    clock = time.perf_counter_ns
    inputs = torch.ones_like(worker.parameter)
    seconds = []
    for _ in range(command["iterations"]):
        worker.zero_grad()
        (worker.parameter * inputs).sum().backward()
        begin = clock()
        worker.step()
        seconds.append((clock() - begin) / 1e9)
    return {"seconds": seconds}


def main() -> None:
    parser = control.make_parser()
    parser.add_argument("--side", choices=sorted(SIDES), required=True)
    parser.add_argument("--bytes", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    worker = SIDES[args.side](args.bytes // 4)

    def handle(command: control.Command) -> control.Reply:
        """{"cores": n}, {"servers": true} or {"iterations": n}; a server's own process has nothing
        to time."""
        if "servers" in command:
            return {"servers": worker.servers()}
        if "cores" in command:
            worker.hold(command["cores"])
            return {}
        return time_steps(worker, command) if worker.rank == 0 else {}

    control.serve(args, worker.rank, handle)
    worker.close()


if __name__ == "__main__":
    main()
