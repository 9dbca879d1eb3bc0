"""Commands to the processes of a benchmark: JSON lines over a Unix socket.

The processes of all sides live at the same time and sleep in recv() while another side measures. So
sides alternate within seconds of each other, and a slow minute of the machine hits them all.

Without --control a worker runs the commands given as arguments, and rank 0 prints one JSON line for
each. That is enough to look at one side by hand:

    ciranda run -np 2 benchmarks/workers/allreduce_ciranda.py '{"bytes": 4}'
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Command = dict[str, Any]
Reply = dict[str, Any]


def servers_of_this_job() -> list[Path]:
    """Returns the folders in /proc of the job's parameter servers, by server number.

    Returns none if the launcher did not start the servers.
    """
    if "CIRANDA_JOB_DIR" not in os.environ:
        return []
    job = f"CIRANDA_JOB_DIR={os.environ['CIRANDA_JOB_DIR']}"
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("comm").read_text() != "ciranda-ps\n":
                continue
            environment = process.joinpath("environ").read_text().split("\0")
        except OSError:  # the process has just ended
            continue
        if job in environment:
            arguments = process.joinpath("cmdline").read_text().split("\0")
            found[int(arguments[arguments.index("--server") + 1])] = process
    return [found[server] for server in sorted(found)]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", help="path of the harness's socket")
    parser.add_argument("commands", nargs="*", help="without --control: commands as JSON")
    return parser


def serve(args: argparse.Namespace, rank: int, handle: Callable[[Command], Reply]) -> None:
    """Answers commands until the harness hangs up."""
    if args.control is None:
        for text in args.commands:
            reply = handle(json.loads(text))
            if rank == 0:
                print(json.dumps(reply), flush=True)
        return
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(args.control)
        lines = connection.makefile("rw", encoding="utf-8")
        print(json.dumps({"rank": rank, "pid": os.getpid()}), file=lines, flush=True)
        for line in lines:
            print(json.dumps(handle(json.loads(line))), file=lines, flush=True)


def time_calls(call: Callable[[], object], command: Command) -> Reply:
    """Returns the seconds of each of `iterations` calls, made without a pause."""
    iterations = command.get("iterations", 100)
    for _ in range(command.get("warm_up", 3)):
        call()
    clock = time.perf_counter_ns
    stamps = [clock()]
    for _ in range(iterations):
        call()
        stamps.append(clock())
    return {"seconds": [(b - a) / 1e9 for a, b in itertools.pairwise(stamps)]}


def shares(total: int, parts: int) -> list[int]:
    """Returns sizes like a convolutional network's tensors: many small, few large; sum `total`."""
    weights = [1 + (part * part if part % 3 == 0 else 0) for part in range(parts)]
    sizes = [max(1, total * weight // sum(weights)) for weight in weights]
    sizes[-1] += total - sum(sizes)
    return sizes


def check_sum(array: Any, size: int) -> None:
    """Raises AssertionError if the sum is wrong: a library that is fast without adding is no peer.

    `array` is numpy's; each rank filled its array with rank + 1.
    """
    expected = size * (size + 1) / 2
    if not (array == expected).all():
        raise AssertionError(f"allreduce gave {array[:4]}..., not {expected}")
