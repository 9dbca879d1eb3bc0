"""A rank of the tests here: `place.py [stay]` prints its place and a sum over all ranks, and with
`stay` goes on summing until it fails."""

from __future__ import annotations

import json
import os
import sys

import torch

import ciranda.torch as hvd
from ciranda import _C

hvd.init()
names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
place = {name: getattr(hvd, name)() for name in names}
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
found = {"starter": _C.starter(), "host": os.uname().nodename, "pid": os.getpid(), "sum": total}
print(json.dumps({**place, **found}), flush=True)
while sys.argv[1:] == ["stay"]:
    hvd.allreduce(torch.ones(1000), name="t")
hvd.shutdown()
