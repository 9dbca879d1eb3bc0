"""A rank of test_hosts.py: trains with gradients that travel in 16 bits, and counts what its host
sends."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import torch
from torch import nn

import ciranda.torch as hvd

STEPS = 20


def sent_bytes() -> int:
    links = subprocess.run(
        ["ip", "-json", "-s", "link", "show", "eth0"], capture_output=True, check=True
    )
    return int(json.loads(links.stdout)[0]["stats64"]["tx"]["bytes"])


def main() -> None:
    hvd.init()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 300), nn.Linear(300, 5))
    alone = copy.deepcopy(model)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        model.named_parameters(),
        compression=getattr(hvd.Compression, sys.argv[1]),
    )
    plain = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
    before = sent_bytes()
    for step in range(STEPS):
        batch = torch.randn(hvd.size(), 8, 64, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(batch[hvd.rank()]).square().mean().backward()
        optimizer.step()
        plain.zero_grad()
        alone(batch.flatten(0, 1)).square().mean().backward()
        plain.step()
    sent = sent_bytes() - before
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    off = max(
        float((ours - theirs).detach().abs().max() / theirs.detach().abs().max())
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True)
    )
    everybodys = hvd.allgather_object([p.detach().sum().item() for p in model.parameters()])
    equal = all(each == everybodys[0] for each in everybodys)
    print(json.dumps({"off": off, "equal": equal, "sent": sent / size / STEPS}))
    hvd.shutdown()


if __name__ == "__main__":
    main()
