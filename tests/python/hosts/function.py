"""Calls a function on ranks of two hosts."""

import sys

import ciranda
import ciranda.errors


def train(text: str) -> tuple[int, float, str]:
    import torch

    import ciranda.torch as cr

    cr.init()
    total = cr.allreduce(torch.ones(1), op=cr.Sum).item()
    if text == "fail" and cr.rank() == 3:
        raise ValueError("rank 3 had enough")
    return cr.cross_rank(), total, text


if __name__ == "__main__":
    import function  # by name: ranks need no cloudpickle then

    try:
        print(ciranda.run(function.train, (sys.argv[1],), np=4, hosts="node0:2,node1:2"))
    except ciranda.errors.RankFailedError as error:
        print(error)
