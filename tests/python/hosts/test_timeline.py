"""One timeline of several hosts: breaks when a rank is not in it, or an effect stands before its
cause by more than the file says that clocks may be off."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host_ranks import outputs, places_of_ranks, start_each

PROGRAM = Path(__file__).parent / "timeline.py"
STEPS = 20
RANKS = 4
# Host 1 seems to have started so much earlier than host 0.
OTHER_CLOCK = ["unshare", "--time", "--monotonic", "5000"]


def spans_of(events: list[dict[str, Any]], rank: int, kind: str) -> list[tuple[float, float]]:
    """Beginning and end of each operation of the kind, in microseconds."""
    found = [event for event in events if event["pid"] == rank and event["name"] == kind]
    return sorted((event["ts"], event["ts"] + event["dur"]) for event in found)


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*OTHER_CLOCK, "true"], capture_output=True).returncode != 0,
    reason="this kernel, or this user, makes no time namespaces",
)
def test_hosts_with_other_clocks_are_in_one_timeline(
    make_network: Callable[..., Any], tmp_path: Path
) -> None:
    network = make_network(2, addresses=("ipv4",))
    trace = tmp_path / "traces" / "trace.json"
    trace.parent.mkdir()
    places = places_of_ranks(network, tmp_path, ranks_per_host=2)
    command = [sys.executable, str(PROGRAM), str(STEPS)]
    commands = command, [*OTHER_CLOCK, *command]
    ranks = start_each(network, places, *commands, CIRANDA_TIMELINE=str(trace))
    texts = outputs(ranks)
    assert [rank.returncode for rank in ranks] == [0] * RANKS, texts
    assert list(trace.parent.iterdir()) == [trace], texts

    events = json.loads(trace.read_text())["traceEvents"]
    told = {event["pid"]: event["args"] for event in events if event["name"] == "process_name"}
    names = [told[rank]["name"] for rank in sorted(told)]
    assert names == [f"rank {rank}" for rank in range(RANKS)]
    errors = [told[rank]["clock_error_in_micros"] for rank in range(RANKS)]
    assert errors[:2] == [0, 0]
    assert 0 < errors[2] == errors[3] < 1e6  # the clocks are 5e9 apart
    asked = [spans_of(events, rank, "NEGOTIATE_ALLREDUCE") for rank in range(RANKS)]
    done = [spans_of(events, rank, "ALLREDUCE") for rank in range(RANKS)]
    assert [len(spans) for spans in asked + done] == [STEPS] * 2 * RANKS
    for step in range(STEPS):
        last_begin = max(spans[step][0] for spans in asked)
        first_end = min(spans[step][1] for spans in done)
        assert last_begin <= first_end + errors[2], step
