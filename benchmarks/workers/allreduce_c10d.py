"""All-reduce of a float32 tensor in place, called from Python: torch.distributed over Gloo."""

from __future__ import annotations

import control
import torch
import torch.distributed as dist


def in_a_bucket(group: list[torch.Tensor]) -> None:
    bucket = torch.cat(group)
    dist.all_reduce(bucket)
    for tensor, part in zip(group, bucket.split([t.numel() for t in group]), strict=True):
        tensor.copy_(part)


def main() -> None:
    args = control.make_parser().parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensors: dict[int, torch.Tensor] = {}

    def handle(command: control.Command) -> control.Reply:
        if "tensors" in command:
            group = [
                torch.zeros(n) for n in control.shares(command["bytes"] // 4, command["tensors"])
            ]
            # As DDP does: side by side in a bucket, and back.
            return control.time_calls(lambda: in_a_bucket(group), command)
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
