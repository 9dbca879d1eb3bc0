"""All-reduce of a float32 tensor in place, called from Python: ciranda."""

from __future__ import annotations

import control
import torch

import ciranda.torch as hvd
from ciranda.torch import ops


def main() -> None:
    parser = control.make_parser()
    parser.add_argument("--arena", action="store_true", help="default of a command's `arena`")
    args = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    tensors: dict[tuple[int, bool], torch.Tensor] = {}

    def handle(command: control.Command) -> control.Reply:
        if "tensors" in command:
            group = [
                torch.zeros(n) for n in control.shares(command["bytes"] // 4, command["tensors"])
            ]
            return control.time_calls(
                lambda: hvd.grouped_allreduce_(group, name="bench.group", op=hvd.Sum), command
            )
        count, arena = command["bytes"] // 4, command.get("arena", args.arena)
        name = f"bench.{'arena' if arena else 'user'}.{count}"
        allreduce_ = ops.arena_allreduce_ if arena else hvd.allreduce_
        if (count, arena) not in tensors:
            empty = ops.arena_empty if arena else torch.empty
            tensor = empty((count,), dtype=torch.float32)
            allreduce_(tensor.fill_(hvd.rank() + 1), name=name, op=hvd.Sum)
            control.check_sum(tensor.numpy(), hvd.size())
            tensors[count, arena] = tensor.zero_()  # zeros stay zeros, however often they are added
        tensor = tensors[count, arena]
        return control.time_calls(lambda: allreduce_(tensor, name=name, op=hvd.Sum), command)

    control.serve(args, hvd.rank(), handle)
    hvd.shutdown()


if __name__ == "__main__":
    main()
