"""Runs scripts on ranks and gathers what became of each: "" where ciranda did what torch does.

Many scripts share one start of the ranks. After a failure ranks may be anywhere, so they end, and
the rest runs on new ones: no failure hides another. A rank that hangs prints its stacks and ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
for folder in (_HERE, _HERE.parents[1]):  # also on a rank, which loads this file by its path
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

LIMIT_S = 60.0  # of one script; the longest takes seconds, more on a busy machine
_RANK_LOST = "RankLostError"  # what a rank says when another one failed

# What is run: {"script": name} of scripts.py, {"program": …} of programs.py, or {"served": …} of
# served_programs.py.
Case = dict[str, Any]


# --- on a rank ----------------------------------------------------------------------------------


def _load(case: Case) -> Callable[[Any], None]:
    if "script" in case:
        from scripts import SCRIPTS

        return SCRIPTS[case["script"]].run
    from programs import Program

    return Program.from_json(case["program"])


def serve(mode: Any, hosts: int, folder: str) -> None:
    """Runs the cases of `folder` one by one and writes a line for each, until one fails."""
    import torch
    from world import Ranks, Reference, digests, judge, run

    import ciranda.torch as hvd

    torch.set_num_threads(1)
    gc.freeze()  # what is imported: gc.collect() after each case would take long
    cases = json.loads((Path(folder) / "cases.json").read_text())
    lines = (Path(folder) / f"{os.environ['CIRANDA_RANK']}.jsonl").open("w", buffering=1)
    hvd.init()
    place = (hvd.rank(), hvd.size(), hosts, mode)
    for case in cases:
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        verdict, seen = "", []
        try:
            script = _load(case)
            name = case.get("script", "")
            world = Ranks(*place)
            hvd.barrier()
            ours = run(script, world, name)
            gc.collect()
            reference = run(script, Reference(*place, world.choices), name)
            verdict, seen = judge(reference, ours), digests(reference, ours)
            del reference, ours, script, world
            gc.collect()
        except BaseException:
            verdict = traceback.format_exc()
        lines.write(json.dumps({"verdict": verdict, "seen": seen}) + "\n")
        if verdict:
            raise SystemExit(1)
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    hvd.barrier()


def serve_with_servers(mode: Any, folder: str) -> None:
    """As serve(): programs of served_programs.py, each in a child with servers of its own."""
    import torch

    torch.set_num_threads(1)
    gc.freeze()
    cases = json.loads((Path(folder) / "cases.json").read_text())
    for number, case in enumerate(cases):
        child = os.fork()
        if child == 0:
            try:
                _be_a_worker(case["served"], mode, number, folder)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            raise SystemExit(1)


def _be_a_worker(case: Any, mode: Any, number: int, folder: str) -> None:
    from served_programs import PlainTorch, Workers, program_of
    from world import digests, judge, run

    import ciranda
    import ciranda.torch as hvd

    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    rank, size = int(os.environ["CIRANDA_RANK"]), int(os.environ["CIRANDA_SIZE"])
    meeting = Path(os.environ["CIRANDA_JOB_DIR"]) / str(number)
    meeting.mkdir(mode=0o700, exist_ok=True)
    os.environ["CIRANDA_JOB_DIR"] = str(meeting)
    os.environ["CIRANDA_JOB_ID"] += f"-{number}"
    os.environ["CIRANDA_PS_SERVERS"] = "here,here"
    servers = []
    if rank == 0:
        program = Path(ciranda.__file__).parent / "bin" / "ciranda-ps"
        servers = [
            subprocess.Popen(
                [program, f"--workers={size}", "--servers=2", f"--server={server}"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for server in range(2)
        ]
    verdict, seen = "", []
    try:
        hvd.init()
        place = (rank, size, 1, mode)
        script = program_of(case)
        ours = run(script, Workers(*place))
        hvd.shutdown()
        reference = run(script, PlainTorch(*place))
        verdict, seen = judge(reference, ours), digests(reference, ours)
    except BaseException:
        verdict = traceback.format_exc()
    for server in servers:
        server.kill() if verdict else server.wait(20)
    line = json.dumps({"verdict": verdict, "seen": seen}) + "\n"
    with (Path(folder) / f"{rank}.jsonl").open("a") as lines:
        lines.write(line)
    if verdict:
        raise SystemExit(1)


# --- in the test process ------------------------------------------------------------------------

# Starts ranks that call serve() with these arguments, and returns each one's stderr at its end.
Start = Callable[[Any, int, Path], list[str]]


def start_on_this_host(size: int) -> Start:
    from ranks import start_ranks

    def start(mode: Any, cases: int, folder: Path) -> list[str]:
        with start_ranks(serve, size, args=[mode, 1, str(folder)]) as job:
            with contextlib.suppress(AssertionError):  # killed: the lines tell how far they came
                job.wait(timeout=2 * LIMIT_S + cases)
            return [job.stderr(rank) for rank in range(size)]

    return start


def start_with_servers(size: int) -> Start:
    from ranks import start_ranks

    def start(mode: Any, cases: int, folder: Path) -> list[str]:
        with start_ranks(serve_with_servers, size, args=[mode, str(folder)]) as job:
            with contextlib.suppress(AssertionError):
                job.wait(timeout=2 * LIMIT_S + cases)
            return [job.stderr(rank) for rank in range(size)]

    return start


def start_on_hosts(network: Any, folder: Path, ranks_per_host: int) -> Start:
    """On the machines of a test network; `folder` holds what they share."""
    from host_ranks import outputs, places_of_ranks, ranks_on_hosts

    def start(mode: Any, cases: int, own: Path) -> list[str]:
        places = places_of_ranks(network, folder, ranks_per_host=ranks_per_host)
        ranks = ranks_on_hosts(network, places, serve, [mode, len(network.hosts), str(own)])
        return outputs(ranks, 2 * LIMIT_S + cases)

    return start


def verdicts(
    cases: Sequence[Case],
    mode: Any,
    start: Start,
    folder: Path,
    failures_max: int | None = None,
) -> list[str]:
    """What is wrong with each case; "" if nothing is. Fewer cases if too many fail."""
    found: list[str] = []
    while len(found) < len(cases):
        if failures_max is not None and sum(map(bool, found)) >= failures_max:
            break
        left = list(cases[len(found) :])
        own = folder / f"start-{len(found)}"
        own.mkdir(parents=True)
        (own / "cases.json").write_text(json.dumps(left))
        stderr = start(mode, len(left), own)
        outcomes = [_lines(own / f"{rank}.jsonl") for rank in range(len(stderr))]
        found += _until_the_first_failure(outcomes, stderr, len(left))
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True)]
    return []


def _until_the_first_failure(
    outcomes: list[list[dict[str, Any]]], stderr: list[str], count: int
) -> list[str]:
    found: list[str] = []
    for index in range(count):
        of_ranks = [lines[index] if index < len(lines) else None for lines in outcomes]
        found.append(_verdict(of_ranks, stderr))
        if any(outcome is None or outcome["verdict"] for outcome in of_ranks):
            break
    return found


def _verdict(of_ranks: list[dict[str, Any] | None], stderr: list[str]) -> str:
    texts: list[str] = []
    for rank, outcome in enumerate(of_ranks):
        if outcome is None:
            texts.append(f"rank {rank} did not come to an end:\n{stderr[rank][-4000:]}")
        elif outcome["verdict"]:
            texts.append(f"rank {rank}: {outcome['verdict']}")
    if not texts:
        seen = [outcome["seen"] for outcome in of_ranks if outcome is not None]
        for rank, own in enumerate(seen):
            for first, mine in zip(seen[0], own, strict=False):
                if first != mine:
                    return f"{mine[0]} has other bits on rank {rank} than on rank 0"
    return "\n".join(sorted(texts, key=lambda text: _RANK_LOST in text))
