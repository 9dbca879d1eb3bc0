"""What workers are told, and which there are. Imports no torch, for the harness."""

from __future__ import annotations

LIBRARIES = ("ciranda", "c10d", "mpi", "memcpy")
DEVICES = ("cpu", "cuda")
VERIFY, TIME = "verify", "time"  # a command's "do"; its other members are a Case's
MEMCPY = "memcpy"  # the side that is no collective
