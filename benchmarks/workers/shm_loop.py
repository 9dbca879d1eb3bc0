"""The limit: two processes, two buffers in memory both of them map, a loop, nothing else.

Each process adds its half of both buffers and writes the sum to both. A block stays in the L2
cache between the addition and the copy, so memory is read twice and written twice, no more.
"""

from __future__ import annotations

import mmap
import os

import control
import numpy as np

BLOCK_FLOATS = 64 * 1024  # 256 KiB: the fastest of 16 KiB to 32 MiB on a core with 1 MiB of L2
BARRIER_BYTES = 4096
BUFFER_BYTES_MAX = 64 * 1024 * 1024
LINE_INT64 = 8  # a counter a cache line


class SpinBarrier:
    """Each rank counts up its own word and watches the other's."""

    def __init__(self, memory: mmap.mmap, rank: int) -> None:
        words = np.frombuffer(memory, np.int64, BARRIER_BYTES // 8)
        self._mine, self._other = (words[LINE_INT64 * r :][:1] for r in (rank, 1 - rank))
        self._count = 0

    def wait(self) -> None:
        self._count += 1
        self._mine[0] = self._count
        while self._other[0] < self._count:
            os.sched_yield()


def main() -> None:
    parser = control.make_parser()
    parser.add_argument("--shared", required=True, help="a file in /dev/shm")
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    with open(args.shared, "r+b") as file:
        os.ftruncate(file.fileno(), BARRIER_BYTES + 2 * BUFFER_BYTES_MAX)  # both do it, once counts
        memory = mmap.mmap(file.fileno(), 0)
    memory.madvise(mmap.MADV_HUGEPAGE)
    barrier = SpinBarrier(memory, rank)

    def handle(command: control.Command) -> control.Reply:
        count = command["bytes"] // 4
        half = count // 2
        mine = slice(rank * half, count if rank else half)
        first, second = (
            np.frombuffer(memory, np.float32, count, BARRIER_BYTES + i * command["bytes"])
            for i in (0, 1)
        )
        (second if rank else first).fill(rank + 1)
        blocks = [
            (first[mine][at : at + BLOCK_FLOATS], second[mine][at : at + BLOCK_FLOATS])
            for at in range(0, first[mine].size, BLOCK_FLOATS)
        ]

        def reduce() -> None:
            for a, b in blocks:
                np.add(a, b, out=a)
                np.copyto(b, a)
            barrier.wait()  # the end: before it the other half is not there

        barrier.wait()
        reduce()
        control.check_sum(first, 2)
        control.check_sum(second, 2)
        barrier.wait()
        (second if rank else first).fill(0)
        barrier.wait()
        return control.time_calls(reduce, command)

    control.serve(args, rank, handle)


if __name__ == "__main__":
    main()
