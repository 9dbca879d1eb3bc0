"""A rank of the tests here: `fall.py ELEMENTS PAUSE_S` reduces until it fails, and says how."""

from __future__ import annotations

import os
import sys
import time

import torch

import ciranda.torch as hvd
from ciranda.errors import CirandaError

hvd.init()
tensor = torch.ones(int(sys.argv[1]))
pause_s = float(sys.argv[2])
print("started", flush=True)
while True:
    try:
        hvd.allreduce_(tensor, name="t")
        if pause_s > 0:
            print("reduced", flush=True)
            time.sleep(pause_s)
    except CirandaError as error:
        print(f"{type(error).__name__}: {error} at {time.monotonic()}", flush=True)
        os._exit(3)
