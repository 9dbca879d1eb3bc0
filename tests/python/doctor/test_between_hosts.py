"""The doctor visits hosts by ssh, finds the ways between them, and names what is wrong with one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ciranda
from ciranda.doctor import tcp

PACKAGES = str(Path(ciranda.__file__).resolve().parents[1])
LIMIT_S = 100.0


def doctor(network: Any, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`ciranda doctor --json` on the first host."""
    # For the hosts, whom sshd gives no PYTHONPATH: the ciranda that is tested.
    python = folder / "python"
    words = shlex.join(["env", f"PYTHONPATH={PACKAGES}", sys.executable])
    python.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    python.chmod(0o755)
    return network.hosts[0].run(
        [sys.executable, "-m", "ciranda", "doctor", f"--python={python}", "--json", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PACKAGES, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
        timeout=LIMIT_S,
    )


def status_of(lines: Sequence[dict[str, Any]], check: str) -> dict[str | None, str]:
    return {each["host"]: each["status"] for each in lines if each["check"] == check}


def test_two_hosts_that_are_well_are_measured_and_reduce_together(make_network, tmp_path):
    network = make_network(2, ssh=True)
    done = doctor(network, tmp_path, "-H", "node0:1,node1:1")
    found = json.loads(done.stdout)
    assert [each for each in found["lines"] if each["status"] == "fail"] == [], done.stderr
    assert done.returncode == 0
    for check in ("ssh", "same_folder", "networks", "torch", "ciranda"):
        assert status_of(found["lines"], check) == {"node0": "ok", "node1": "ok"}, check
    assert status_of(found["lines"], "same_software") == {"node1": "ok"}
    assert status_of(found["lines"], "clock_offset") == {"node1": "ok"}
    assert {(way["from"], way["to"]) for way in found["figures"]["tcp"]} == {
        ("node0", "node1"),
        ("node1", "node0"),
    }
    assert all(way["bytes_per_s"] > 0 and way["rtt_s"] > 0 for way in found["figures"]["tcp"])
    assert status_of(found["lines"], "allreduce") == {None: "ok"}
    assert found["figures"]["allreduce"]["ranks"] == 2


def test_a_host_that_cannot_be_visited_is_named_and_the_others_are_examined(make_network, tmp_path):
    """node1 has another key than the known one, node2 no ciranda, and node9 is nowhere."""
    network = make_network(3, ssh=True)
    known_hosts = network.folder / "ssh" / "known_hosts"
    first, second, *rest = known_hosts.read_text().splitlines()
    names = second.split()[0]
    known_hosts.write_text("\n".join([first, f"{names} {first.split(' ', 1)[1]}", *rest]) + "\n")
    network.hosts[2].run(["mount", "-t", "tmpfs", "tmpfs", PACKAGES])

    done = doctor(network, tmp_path, "-H", "node0,node1,node2,node9")
    lines = json.loads(done.stdout)["lines"]
    assert done.returncode == 1, done.stderr
    assert status_of(lines, "ssh") == {"node0": "ok", "node1": "fail", "node9": "fail"}
    assert status_of(lines, "agent") == {"node2": "fail"}
    failed = {each["host"]: each for each in lines if each["status"] == "fail"}
    assert "host key is not the known one" in failed["node1"]["found"]
    assert "ssh-keygen -R node1" in failed["node1"]["mend"]
    assert "no ciranda" in failed["node2"]["found"]
    assert "no host of this name" in failed["node9"]["found"]
    assert status_of(lines, "torch") == {"node0": "ok"}
    (job,) = [each for each in lines if each["check"] == "allreduce"]
    assert job["status"] == "skip"
    assert "ssh node1, ssh node9, agent node2" in job["found"]


CALL = """
import json, sys
from ciranda.doctor import tcp
print(json.dumps([tcp.call(address, 9, tcp.draw_token()) for address in sys.argv[1:]]))
"""


def test_a_refusal_a_silence_and_a_missing_way_are_told_apart(make_network):
    network = make_network(2, addresses=("ipv4",))
    here, there = network.hosts
    here.ip(f"neigh replace {there.address()} lladdr 02:00:00:00:00:01 dev eth0 nud permanent")
    nowhere = "198.51.100.1"  # no route leads out of this network
    addresses = (here.address(), there.address(), nowhere)
    environment = {**os.environ, "PYTHONPATH": PACKAGES}
    said = here.check([sys.executable, "-c", CALL, *addresses], env=environment)
    ends = [each["end"] for each in json.loads(said)]
    assert ends == [tcp.REFUSED, tcp.TIMED_OUT, tcp.UNREACHABLE]
