"""A worker of the tests here: `served.py MODE STEPS` trains with parameter servers, beside a copy
that sees the joined batch, and prints each step and, at last, how far it is off."""

from __future__ import annotations

import copy
import json
import os
import sys
import time

import torch
from train import make_model

import ciranda.torch as cr


def main() -> None:
    mode = {"sync": cr.ps.Sync(), "async": cr.ps.Async(), "ahead": cr.ps.Async(ahead=1)}[
        sys.argv[1]
    ]
    steps, pause_s = int(sys.argv[2]), float(os.environ.get("PAUSE_S", "0"))
    cr.init()
    assert cr.local_rank() == 0 and cr.cross_size() == cr.size()
    model = make_model()
    alone = copy.deepcopy(model)
    optimizer = cr.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=1e-3),
        model.named_parameters(),
        ps=mode,
    )
    plain = torch.optim.Adam(alone.parameters(), lr=1e-3)
    for step in range(steps):
        batch = torch.randn(cr.size(), 8, 64, generator=torch.Generator().manual_seed(step))
        batch = batch.double()
        optimizer.zero_grad()
        model(batch[cr.rank()]).square().mean().backward()
        optimizer.step()
        plain.zero_grad()
        alone(batch.flatten(0, 1)).square().mean().backward()
        plain.step()
        print(f"step {step}", flush=True)
        time.sleep(pause_s)
    off = max(
        float((ours - theirs).detach().abs().max() / theirs.detach().abs().max())
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True)
    )
    # What servers hold comes through the network, too.
    state = optimizer.state_dict()["state"]
    moments = zip(state.values(), plain.state_dict()["state"].values(), strict=True)
    state_off = max(float((a["exp_avg"] - b["exp_avg"]).abs().max()) for a, b in moments)
    pushes = [each["pushes"] for each in cr.ps.stats()["servers"][0]["workers"]]
    print(json.dumps({"off": off, "state_off": state_off, "pushes": pushes}), flush=True)


if __name__ == "__main__":
    main()
