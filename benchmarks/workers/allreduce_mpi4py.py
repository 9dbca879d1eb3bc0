"""All-reduce of a float32 array in place, called from Python: mpi4py on whichever MPI it finds."""

from __future__ import annotations

import control
import numpy as np
from mpi4py import MPI


def main() -> None:
    args = control.make_parser().parse_args()
    world = MPI.COMM_WORLD
    arrays: dict[int, np.ndarray] = {}

    def handle(command: control.Command) -> control.Reply:
        count = command["bytes"] // 4
        if count not in arrays:
            array = np.full(count, world.rank + 1, dtype=np.float32)
            world.Allreduce(MPI.IN_PLACE, array)
            control.check_sum(array, world.size)
            array.fill(0)
            arrays[count] = array
        # With count and type given, mpi4py need not ask the array.
        buffer = [arrays[count], count, MPI.FLOAT]
        return control.time_calls(lambda: world.Allreduce(MPI.IN_PLACE, buffer), command)

    control.serve(args, world.rank, handle)


if __name__ == "__main__":
    main()
