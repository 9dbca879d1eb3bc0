"""A rank of the tests here: `lost.py FILE` waits for the ranks of host 1, which wait for FILE."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import ciranda.torch as hvd

LIMIT_S = 20.0


def lost_in_thought(until: Path) -> None:
    give_up_s = time.monotonic() + LIMIT_S
    while not until.exists() and time.monotonic() < give_up_s:
        time.sleep(0.05)


hvd.init()
if hvd.cross_rank() == 1:
    lost_in_thought(Path(sys.argv[1]))
hvd.barrier()
