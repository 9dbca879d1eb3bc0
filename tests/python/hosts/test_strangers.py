"""Strangers on a rank's own host who call as fast as they can: breaks when they keep ranks out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host_ranks import PORT, Start, outputs

HERE = Path(__file__).parent
CALLS_PER_SECOND = 20_000


@pytest.mark.timing
@pytest.mark.parametrize(("family", "tls"), [("ipv4", "0"), ("ipv6", "1")], ids=["clear", "tls"])
def test_ranks_start_and_connect_in_a_flood_from_their_own_address(
    make_network: Callable[..., Any],
    start: Start,
    record_property: Callable[[str, object], None],
    family: str,
    tls: str,
) -> None:
    network = make_network(2, addresses=(family,))
    address = network.hosts[0].address()
    flood = network.hosts[1].popen(
        [sys.executable, str(HERE / "flood.py"), address, str(PORT), str(CALLS_PER_SECOND)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert flood.stdout.readline() == "ready\n"
    results = [
        json.loads(text.splitlines()[-1])
        for text in outputs(start(network, HERE / "join.py", CIRANDA_TLS=tls))
    ]
    said, _ = flood.communicate()
    calls_per_second, not_refused = (float(word) for word in said.split())
    record_property("calls a second", f"{calls_per_second:.0f}")
    record_property("ranks", results)
    assert calls_per_second > 0.25 * CALLS_PER_SECOND  # a slow machine makes fewer
    assert not_refused > 1000
    for result in results:
        assert result["start_s"] <= 2.0
        assert result["exchange_s"] <= 2.0
    assert results[0]["core"] <= 0.1
