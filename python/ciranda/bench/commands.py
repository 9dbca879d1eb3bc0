"""The libraries, devices and commands of workers. Imports no torch, for the harness."""

from __future__ import annotations

LIBRARIES = ("ciranda", "c10d", "mpi", "memcpy")
DEVICES = ("cpu", "cuda")
VERIFY, TIME = "verify", "time"  # values of a command's "do"; its other members describe a Case
MEMCPY = "memcpy"  # the side that is no collective
