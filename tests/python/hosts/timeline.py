"""A rank of the tests here: `timeline.py STEPS` reduces so often, and leaves the timeline to the
end of the program."""

from __future__ import annotations

import sys

import torch

import ciranda.torch as hvd

hvd.init()
tensor = torch.ones(1000)
for _ in range(int(sys.argv[1])):
    hvd.allreduce_(tensor, name="step")
