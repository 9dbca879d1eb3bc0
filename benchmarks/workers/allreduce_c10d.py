"""All-reduce of a float32 tensor in place, called from Python: torch.distributed over Gloo."""

from __future__ import annotations

import control
import torch
import torch.distributed as dist


def main() -> None:
    args = control.make_parser().parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensors: dict[int, torch.Tensor] = {}

    def handle(command: control.Command) -> control.Reply:
        count = command["bytes"] // 4
        if count not in tensors:
            tensor = torch.full((count,), dist.get_rank() + 1.0)
            dist.all_reduce(tensor)
            control.check_sum(tensor.numpy(), dist.get_world_size())
            tensors[count] = tensor.zero_()
        tensor = tensors[count]
        return control.time_calls(lambda: dist.all_reduce(tensor), command)

    control.serve(args, dist.get_rank(), handle)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
