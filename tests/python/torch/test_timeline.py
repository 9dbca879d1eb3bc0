"""start_timeline(), stop_timeline(), CIRANDA_TIMELINE: one Chrome trace of all ranks of a host."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks, values_of

import ciranda.torch as hvd


def work(name: str) -> None:
    handles = [hvd.allreduce_async(torch.ones(1000)) for _ in range(3)]
    for handle in handles:
        hvd.synchronize(handle)
    hvd.allreduce(torch.ones(3), name=name)
    hvd.allgather(torch.ones(2, 2), name=name)
    hvd.broadcast(torch.ones(5), 0, name=name)


def events_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["traceEvents"]


def check_trace(path: Path, name: str, ranks: int, cycles: bool = False) -> None:
    events = events_of(path)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert sorted(names) == [f"rank {rank}" for rank in range(ranks)]
    for rank in range(ranks):
        own = [event for event in events if event["pid"] == rank]
        kinds = [event["name"] for event in own if event["ph"] == "X"]
        for kind in ("ALLREDUCE", "ALLGATHER", "BROADCAST"):
            assert kinds.count(kind) == kinds.count(f"NEGOTIATE_{kind}")
        assert kinds.count("ALLREDUCE") == 4
        rows = {event["args"]["name"] for event in own if event["name"] == "thread_name"}
        assert {f"allreduce.{name}", f"allgather.{name}", "allreduce.noname"} <= rows
        assert any(event["name"] == "CYCLE_START" for event in own) == cycles
        by_row: dict[int, list[dict[str, Any]]] = {}
        for event in own:
            if event["ph"] == "X":
                by_row.setdefault(event["tid"], []).append(event)
        for row in by_row.values():  # what overlaps would hide each other in a viewer
            row.sort(key=lambda event: event["ts"])
            for before, after in itertools.pairwise(row):
                assert before["ts"] + before["dur"] <= after["ts"] + 0.002
    # One clock: no rank has done a named operation before another one has asked for it.
    asked = [e["ts"] for e in events if e["name"] == "NEGOTIATE_ALLGATHER"]
    done = [e["ts"] + e["dur"] for e in events if e["name"] == "ALLGATHER"]
    assert len(asked) == ranks and max(asked) <= min(done)


def started_by_calls(folder: str) -> str:
    hvd.init()
    own = Path(folder)
    work("before")
    for step, cycles in enumerate([True, False]):
        hvd.start_timeline(own / f"{step}.json", mark_cycles=cycles)
        hvd.start_timeline(own / f"{step}.json", mark_cycles=cycles)
        with pytest.raises(ValueError, match=r"goes to .*\.json already; stop it first"):
            hvd.start_timeline(own / "other.json")
        work(f"step{step}")
        hvd.stop_timeline()
        hvd.stop_timeline()
        json.loads((own / f"{step}.json").read_text())  # always whole
        hvd.barrier()
        check_trace(own / f"{step}.json", f"step{step}", hvd.size(), cycles)
    with pytest.raises(RuntimeError, match="cannot write the timeline /nowhere/at/all"):
        hvd.start_timeline("/nowhere/at/all")
    return "all"


@pytest.mark.parametrize("size", [1, 3])
def test_calls_start_and_stop_it(tmp_path: Path, size: int) -> None:
    assert values_of(run_ranks(started_by_calls, size, args=[str(tmp_path)])) == ["all"] * size


def of_a_whole_job() -> None:
    hvd.init()
    work("job")


@pytest.mark.parametrize("prefix", ["CIRANDA", "HOROVOD"])
def test_a_variable_records_the_whole_job(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text("of an earlier job")
    variables = {f"{prefix}_TIMELINE": str(path), f"{prefix}_TIMELINE_MARK_CYCLES": "1"}
    values_of(run_ranks(of_a_whole_job, 2, env=variables))
    check_trace(path, "job", 2, cycles=True)
    assert list(tmp_path.iterdir()) == [path]
