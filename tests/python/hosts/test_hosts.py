"""Ranks on hosts with a network between them: breaks when training differs from one process, or a
lost host is not noticed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from backends import GLOO
from host_ranks import Start, outputs, wait_for
from train import make_model

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("operations", "shared_step"),
    [pytest.param("auto", "off", marks=pytest.mark.soak), ("auto", "host"), ("gloo", "host")],
)
def test_training_equals_one_process(
    make_network: Callable[..., Any], start: Start, operations: str, shared_step: str
) -> None:
    if operations == "gloo" and (why := GLOO.missing()):
        pytest.skip(why)
    network = make_network(2, addresses=("ipv4",))
    chosen = {"CIRANDA_CPU_OPERATIONS": operations}
    for text in outputs(start(network, HERE / "train.py", shared_step, ranks_per_host=2, **chosen)):
        result = json.loads(text.splitlines()[-1])
        assert result["off"] < 1e-6 and result["equal"]


# One rank of each host joins early; then both of host 1 do, in one epoch before their first step.
@pytest.mark.parametrize(
    "epochs",
    [
        ["5,3,2,5", "2,4,4,1"],
        pytest.param(["3,2,0,1", "1,2,2,1"], marks=pytest.mark.soak),
        ["2,3,0,0", "1,2,2,1"],
    ],
    ids=["one-of-each", "before-the-others", "a-whole-host-before-its-first-step"],
)
@pytest.mark.parametrize("shared_step", [pytest.param("auto", marks=pytest.mark.soak), "host"])
def test_ranks_with_fewer_batches_share_their_step(
    make_network: Callable[..., Any], start: Start, shared_step: str, epochs: list[str]
) -> None:
    network = make_network(2, addresses=("ipv4",))
    ranks = start(
        network, HERE / "uneven.py", shared_step, *epochs, ranks_per_host=2, PYTHONHASHSEED="0"
    )
    for text in outputs(ranks):
        result = json.loads(text.splitlines()[-1])
        assert result["off"] < 1e-6 and all(result["equal"]) and result["why"] == ""


def test_ranks_may_make_different_numbers_of_passes_or_are_told_that_they_may_not(
    make_network: Callable[..., Any], start: Start
) -> None:
    network = make_network(2, addresses=("ipv4",))
    ranks = start(network, HERE / "passes.py", ranks_per_host=2)
    texts = [rank.communicate(timeout=60)[0] for rank in ranks]
    for text in texts:
        assert '{"shared_step": false, "off": ' in text, text
        assert json.loads(text[text.index("{") :].splitlines()[0])["off"] < 1e-12
        assert "is in step() and rank" in text and "still in backward()" in text, text
        assert "pass shared_step=False" in text
        assert '{"shared_step": "host"' not in text


def test_a_process_set_on_two_hosts_shares_its_step(
    make_network: Callable[..., Any], start: Start
) -> None:
    network = make_network(2, addresses=("ipv4",))
    texts = outputs(start(network, HERE / "sets.py", ranks_per_host=2))
    assert texts.pop(2) == ""  # no member
    for text in texts:
        off, why = json.loads(text.splitlines()[-1])
        assert off < 1e-6 and why == ""


@pytest.mark.parametrize(
    ("compression", "env"),
    [
        pytest.param("fp16", {}, marks=pytest.mark.soak),
        ("none", {"CIRANDA_WIRE_DTYPE": "bfloat16"}),
    ],
)
def test_gradients_in_16_bits_take_half_the_bytes(
    make_network: Callable[..., Any], start: Start, compression: str, env: dict[str, str]
) -> None:
    network = make_network(2, addresses=("ipv4",))
    ranks = start(network, HERE / "narrow.py", compression, ranks_per_host=2, **env)
    for text in outputs(ranks):
        result = json.loads(text.splitlines()[-1])
        assert result["off"] < 1e-2 and result["equal"]
        # Headers, negotiation and acknowledgements come on top.
        assert 0.5 < result["sent"] < 1.15 * 0.5


@pytest.mark.parametrize(("wire_dtype", "rounds"), [("auto", True), ("float32", False)])
def test_autotuning_counts_streams_and_rounds_if_that_is_allowed(
    make_network: Callable[..., Any], start: Start, wire_dtype: str, rounds: bool
) -> None:
    network = make_network(2, addresses=("ipv4",))
    tuned = {
        "CIRANDA_AUTOTUNE": "1",
        "CIRANDA_AUTOTUNE_STEPS_PER_SAMPLE": "1",
        "CIRANDA_AUTOTUNE_WARMUP_SAMPLES": "0",
        "CIRANDA_WIRE_DTYPE": wire_dtype,
    }
    for text in outputs(start(network, HERE / "tuned.py", **tuned)):
        assert json.loads(text.splitlines()[-1]) == {"rounds": rounds, "streams": 4, "equal": True}


@pytest.mark.parametrize(
    ("env", "pickles"),
    [({}, False), ({"CIRANDA_TLS": "1"}, True), ({"CIRANDA_TRUSTED_NETWORK": "1"}, True)],
    ids=["clear", "tls", "trusted"],
)
def test_objects_travel_and_pickle_needs_trust(
    make_network: Callable[..., Any], start: Start, env: dict[str, str], pickles: bool
) -> None:
    network = make_network(2, addresses=("ipv4",))
    for text in outputs(start(network, HERE / "objects.py", **env)):
        result = json.loads(text.splitlines()[-1])
        assert result["found"] == [{"from": 0}, {"from": 1}, ["", "x"]]
        assert pickles == (not result["refused"])
        assert pickles or "between hosts it needs --tls" in result["refused"]


@pytest.mark.parametrize("operations", ["auto", pytest.param("gloo", marks=pytest.mark.soak)])
def test_three_hosts_with_ipv6_only(
    make_network: Callable[..., Any], start: Start, operations: str
) -> None:
    if operations == "gloo" and (why := GLOO.missing()):
        pytest.skip(why)
    network = make_network(3, addresses=("ipv6",))
    chosen = {"CIRANDA_CPU_OPERATIONS": operations}
    for text in outputs(start(network, HERE / "train.py", "auto", **chosen)):
        result = json.loads(text.splitlines()[-1])
        assert result["off"] < 1e-6 and result["equal"]


@pytest.mark.timing
def test_a_killed_rank_is_named_on_every_host(
    make_network: Callable[..., Any], start: Start
) -> None:
    network = make_network(2, addresses=("ipv4",))
    processes = start(network, HERE / "fall.py", "1000", "0", ranks_per_host=2)
    wait_for(processes, "started")
    os.kill(processes[3].pid, signal.SIGKILL)
    killed_s = time.monotonic()
    for process in processes[:3]:
        assert process.stdout is not None
        text = process.stdout.read()
        assert "RankLostError" in text and "rank 3 " in text, text
        assert float(text.split()[-1]) - killed_s < 1.0
        assert process.wait() == 3
    processes[3].wait()


@pytest.mark.parametrize("tls", ["0", "1"], ids=["clear", "tls"])
def test_who_listens_in_between_learns_nothing_with_tls(
    make_network: Callable[..., Any], start: Start, tmp_path: Path, tls: str
) -> None:
    network = make_network(2, addresses=("ipv4",))
    listener = network.hosts[0].popen(
        [sys.executable, str(HERE / "overhear.py"), "eth0", str(tmp_path / "packets")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert listener.stdout.readline() == "ready\n"
    for text in outputs(start(network, HERE / "train.py", "auto", CIRANDA_TLS=tls)):
        result = json.loads(text.splitlines()[-1])
        assert result["off"] < 1e-6 and result["equal"]
    listener.communicate()
    packets = (tmp_path / "packets").read_bytes()
    weight = make_model().state_dict()["2.weight"]
    said = bytes(weight.view(torch.uint8).flatten().tolist())
    assert len(packets) > len(said)
    heard = [said[at : at + 64] in packets for at in range(0, len(said), 8192)]
    in_clear = tls == "0"
    assert any(heard) == in_clear
    assert (b"2.weight" in packets) == in_clear


@pytest.mark.parametrize(
    ("addresses", "options"),
    [
        pytest.param(("ipv4", "ipv6"), (), marks=pytest.mark.soak),
        (("ipv6",), ("--tls",)),
    ],
)
def test_one_command_trains_on_two_hosts(
    make_network: Callable[..., Any],
    addresses: tuple[str, ...],
    options: tuple[str, ...],
    tmp_path: Path,
) -> None:
    network = make_network(2, addresses=addresses, ssh=True)
    command = [sys.executable, "-m", "ciranda", "run", "-H", "node0:2,node1:2", *options]
    command += ["--log-dir", str(tmp_path / "logs"), str(HERE / "train.py"), "auto"]
    ended = network.hosts[0].run(command, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for rank in range(4):
        text = (tmp_path / "logs" / f"rank-{rank}.log").read_text()
        result = json.loads(text.splitlines()[-1])
        assert result["off"] < 1e-6 and result["equal"]
        assert result["of_a_set"] == (1.5 if rank in (0, 3) else None)
        assert ("2 hosts met through eth0: host 0 at " in text) == (rank == 0), text


def test_a_function_runs_on_two_hosts(make_network: Callable[..., Any]) -> None:
    network = make_network(2, addresses=("ipv4",), ssh=True)

    def run(text: str) -> str:
        ended = network.hosts[0].run([sys.executable, str(HERE / "function.py"), text], timeout=60)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.rstrip()

    assert run("a") == str([(host, 4.0, "a") for host in (0, 0, 1, 1)])
    assert run("fail") == "rank 3 raised ValueError: rank 3 had enough"


def test_a_host_on_which_nobody_waits_shows_where_its_ranks_are(
    make_network: Callable[..., Any], start: Start, tmp_path: Path
) -> None:
    network = make_network(2, addresses=("ipv4",))
    found = tmp_path / "found"
    ranks = start(
        network,
        HERE / "lost.py",
        str(found),
        ranks_per_host=2,
        CIRANDA_STALL_WARNING_SECONDS="1",
    )
    for rank in (2, 3):
        stdout = ranks[rank].stdout
        assert stdout is not None
        said = ""
        for line in stdout:
            said += line
            if "in lost_in_thought\n" in line:
                break
        assert f"rank {rank}: other ranks wait for this one, which is here:\n" in said, said
        assert "in lost_in_thought\n" in said, said
    found.touch()
    for text in outputs(ranks)[:2]:
        assert "waiting for ranks 2, 3 for" in text, text
