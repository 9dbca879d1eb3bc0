"""A rank of test_hosts.py: reduces until it fails, and says how."""

from __future__ import annotations

import os
import time

import torch

import ciranda.torch as hvd
from ciranda.errors import CirandaError

hvd.init()
tensor = torch.ones(1000)
print("started", flush=True)
while True:
    try:
        hvd.allreduce_(tensor, name="t")
    except CirandaError as error:
        print(f"{type(error).__name__}: {error} at {time.monotonic()}", flush=True)
        os._exit(3)
