"""A rank of one side: makes buffers, verifies a collective, times its calls. Waits for commands.

By hand, without the harness; rank 0 prints a JSON line for each command:

    ciranda run -np 2 -m ciranda.bench.worker --library ciranda \\
        '{"do": "verify", "op": "allreduce", "count": 1024, "dtype": "float32", "redop": "sum"}'
"""

from __future__ import annotations

import importlib

import torch

from ciranda.bench import check
from ciranda.bench.case import DTYPE_BYTES, IN_PIECES, REDUCING, Case
from ciranda.bench.commands import DEVICES, LIBRARIES, VERIFY
from ciranda.bench.library import Call, Library, Refused
from ciranda.measure import control


class Buffers:
    """Memory that all cases share, so that the sides fit into memory together.

    It is written before its first use, because reads of unwritten memory would not leave the cache.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._memory: dict[str, torch.Tensor] = {}

    def _get(self, key: str, case: Case, count: int) -> torch.Tensor:
        size = count * DTYPE_BYTES[case.dtype]
        found = self._memory.pop(key, None)
        if found is None or found.numel() < size:
            del found  # frees memory before it takes more
            found = torch.empty(size, dtype=torch.uint8, device=self._device).zero_()
        self._memory[key] = found
        dtype: torch.dtype = getattr(torch, case.dtype)
        return found[:size].view(dtype)

    def pair(self, case: Case, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the sent and the received tensor, which are one for allreduce and broadcast."""
        large = case.elements(size)
        sent = self._get("sent", case, case.count if case.op == "allgather" else large)
        if case.op not in IN_PIECES:
            return sent, sent
        received = self._get("received", case, case.count if case.op in REDUCING else large)
        return sent, received


class Worker:
    def __init__(self, library: Library, device: str) -> None:
        self._library = library
        self._cuda = device == "cuda"
        self._buffers = Buffers(device)

    def handle(self, command: control.Command) -> control.Reply:
        case = Case.of_command(command)
        sent, received = self._buffers.pair(case, self._library.size)
        try:
            call = self._library.call(case, sent, received)
        except Refused as why:
            return {"refused": str(why)}
        if command["do"] == VERIFY:
            return self._verify(case, call, sent, received)
        return self._time(call, command)

    def _verify(
        self, case: Case, call: Call, sent: torch.Tensor, received: torch.Tensor
    ) -> control.Reply:
        rank, size = self._library.rank, self._library.size
        received.fill_(check.UNTOUCHED)
        check.fill(sent, case, rank, size)
        try:
            result = call()
            return {"wrong": check.count_wrong(result, case, rank, size)}
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            return {"refused": (str(error).splitlines() or [type(error).__name__])[0]}
        finally:
            # Zeros stay zeros when they are added or multiplied.
            sent.zero_()
            received.zero_()

    def _time(self, call: Call, command: control.Command) -> control.Reply:
        if not self._cuda:
            return control.time_calls(call, command)

        def until_done() -> None:
            call()
            torch.cuda.synchronize()

        return control.time_calls(until_done, command)


def main() -> None:
    parser = control.make_parser()
    parser.add_argument("--library", choices=LIBRARIES, required=True)
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    library: Library = importlib.import_module(f"ciranda.bench.with_{args.library}").open_library(
        args.device
    )
    control.serve(args, library.rank, Worker(library, args.device).handle)
    library.close()


if __name__ == "__main__":
    main()
