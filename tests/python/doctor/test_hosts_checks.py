"""What the facts of several hosts mean together, and the ways between them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import WELL, changed

from ciranda.doctor import tcp
from ciranda.doctor.hosts_checks import Found, Reached, choose_addresses, hosts_lines
from ciranda.doctor.lines import Status
from ciranda.launch.plan.hosts import Host
from ciranda.launch.remote import ssh

WARN, FAIL, OK = Status.WARN, Status.FAIL, Status.OK
NODE0 = changed(WELL, ("names", {"node0": ["10.0.0.1"], "node1": ["10.0.0.2"]}))
NODE1 = changed(
    NODE0,
    ("interfaces.addresses", [["eth0", "10.0.0.2"]]),
    ("interfaces.chosen", ["10.0.0.2"]),
    ("ssh_connection", ["10.0.0.1", "40000", "10.0.0.2", "22"]),
)
WAY = {"rtt_s": 50e-6, "bytes_per_s": 1e9, "address": "10.0.0.2", "port": 20_000}
FOUND = Found(
    reached={"node0": Reached(here=True), "node1": Reached(greeted_s=0.3)},
    facts={"node0": NODE0, "node1": NODE1},
    clocks={"node1": {"offset_s": 0.001, "error_s": 0.0005}},
    addresses={"node0": "10.0.0.1", "node1": "10.0.0.2"},
    ways={("node0", "node1"): WAY, ("node1", "node0"): WAY},
)


def of(found: Found, check: str, host: str):
    (verdict,) = [
        each.verdict for each in hosts_lines(found) if (each.check.name, each.host) == (check, host)
    ]
    return verdict


def node1(*changes):
    return replace(FOUND, facts={"node0": NODE0, "node1": changed(NODE1, *changes)})


def way(**facts):
    """node0 has called node1, and this came of it."""
    kept = {"address": "10.0.0.2", "port": 20_000}
    return replace(FOUND, ways={**FOUND.ways, ("node0", "node1"): {**kept, **facts}})


def test_hosts_that_are_well_have_only_lines_that_are_ok():
    lines = hosts_lines(FOUND)
    assert {each.verdict.status for each in lines} == {OK}
    assert {each.check.name for each in lines} == {
        "ssh",
        "same_software",
        "same_folder",
        "clock_offset",
        "names",
        "networks",
        "tcp",
    }


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ("ssh: connect to host node1 port 22: Connection refused", "refuses ssh"),
        ("ssh: connect to host node1 port 22: Connection timed out", "no answer"),
        ("Host key verification failed.", "host key is not known"),
        ("me@node1: Permission denied (publickey).", "the login is refused"),
        (
            "ssh: Could not resolve hostname node1: Name or service not known",
            "no host of this name",
        ),
    ],
)
def test_each_way_in_which_ssh_fails_has_its_own_sentence(errors, words):
    answer = ssh.Answer(Host("node1"), ssh.EXIT_SSH_FAILED, "", errors)
    problem = ssh.start_problem(answer, ["python"], "0.1.0").removeprefix("node1: ")
    reached = {"node0": Reached(here=True), "node1": Reached(problem=problem, by_ssh=True)}
    verdict = of(Found(reached, {"node0": NODE0}), "ssh", "node1")
    assert verdict.status is FAIL
    assert words in verdict.found
    assert verdict.mend[0].isupper()


def test_a_host_without_ciranda_is_told_from_one_without_ssh():
    problem = "/opt/python has no ciranda 0.1.0; install it there too"
    reached = {"node0": Reached(here=True), "node1": Reached(problem=problem)}
    verdict = of(Found(reached, {"node0": NODE0}), "agent", "node1")
    assert (verdict.status, verdict.mend) == (FAIL, "Install it there too")


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ([("ciranda.version", "0.0.9")], FAIL, "ciranda 0.0.9, on node0 0.1.0"),
        ([("torch.version", "2.11.0")], FAIL, "torch 2.11.0"),
        ([("torch", {"error": "none"})], FAIL, "torch none"),
        ([("torch.version", "2.15.1")], WARN, "torch 2.15.1"),
        ([("python.version", "3.12.0")], WARN, "Python 3.12.0"),
    ],
)
def test_versions_that_differ_are_named(changes, status, words):
    verdict = of(node1(*changes), "same_software", "node1")
    assert verdict.status is status
    assert words in verdict.found
    assert "Install the same" in verdict.mend


def test_a_folder_that_another_host_lacks_is_named():
    verdict = of(node1(("folder.is_there", False)), "same_folder", "node1")
    assert verdict.status is WARN
    assert "/data" in verdict.found
    assert "rsync" in verdict.mend


@pytest.mark.parametrize(("error_s", "status"), [(0.1, WARN), (1.0, OK)])
def test_a_clock_is_wrong_only_beyond_what_is_not_known_of_it(error_s, status):
    found = replace(FOUND, clocks={"node1": {"offset_s": -0.9, "error_s": error_s}})
    verdict = of(found, "clock_offset", "node1")
    assert verdict.status is status
    assert "-900.0 ms" in verdict.found


def test_a_clock_that_nobody_could_read_is_skipped():
    assert of(replace(FOUND, clocks={"node1": {}}), "clock_offset", "node1").status is Status.SKIP


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ([], "no address on node1"),
        (["127.0.1.1"], "127.0.1.1 on node1"),
    ],
)
def test_a_name_that_leads_another_host_astray_is_named(seen, words):
    verdict = of(node1(("names.node0", seen)), "names", "node0")
    assert verdict.status is WARN
    assert words in verdict.found
    assert "/etc/hosts" in verdict.mend


def test_a_name_that_means_different_hosts_is_named():
    facts = {**FOUND.facts, "node2": changed(NODE1, ("names.node0", ["10.9.9.9"]))}
    verdict = of(replace(FOUND, facts=facts), "names", "node0")
    assert verdict.status is WARN
    assert "on node1 10.0.0.1; on node2 10.9.9.9" in verdict.found


def test_a_name_that_only_ssh_knows_is_no_fault():
    facts = {host: changed(each, ("names.node1", [])) for host, each in FOUND.facts.items()}
    assert of(replace(FOUND, facts=facts), "names", "node1").status is OK


@pytest.mark.parametrize(
    ("found", "status", "words", "mend"),
    [
        (replace(FOUND, addresses={"node0": "10.0.0.1"}), FAIL, "not known", "--nic"),
        (
            replace(FOUND, addresses={"node0": "fd00::1", "node1": "10.0.0.2"}),
            FAIL,
            "IPv4 and IPv6",
            "--nic",
        ),
        (node1(("interfaces.mtu_bytes.eth0", 9000)), WARN, "MTU 9000", "mtu 1500"),
    ],
)
def test_networks_that_do_not_fit_are_named(found, status, words, mend):
    verdict = of(found, "networks", "node1")
    assert verdict.status is status
    assert words in verdict.found
    assert mend in verdict.mend


@pytest.mark.parametrize(
    ("facts", "status", "words", "mend"),
    [
        ({"end": tcp.REFUSED, "why": ""}, FAIL, "10.0.0.2:20000 refuses", "instead of reject"),
        ({"end": tcp.TIMED_OUT, "why": ""}, FAIL, "does not answer", "Open ports"),
        ({"end": tcp.UNREACHABLE, "why": ""}, FAIL, "no way leads", "route"),
        ({"end": tcp.STALLED, "why": ""}, FAIL, "large ones vanish", "MTU"),
        ({"end": tcp.CUT, "why": "reset"}, FAIL, "breaks: reset", "proxies"),
        ({"end": tcp.FAILED, "why": "all in use"}, FAIL, "all in use", "--port-range"),
        ({"rtt_s": 50e-6, "bytes_per_s": 1e8}, WARN, "fastest", "ethtool"),
        ({"rtt_s": 0.02, "bytes_per_s": 1e9}, WARN, "20.00 ms", "larger batches"),
        ({"why_not": "node0 has ended"}, Status.SKIP, "node0 has ended", "nc"),
    ],
)
def test_each_way_in_which_a_connection_fails_has_its_own_sentence(facts, status, words, mend):
    verdict = of(way(**facts), "tcp", "node0 -> node1")
    assert verdict.status is status
    assert words in verdict.found
    assert mend in verdict.mend


def test_a_network_that_is_slow_everywhere_is_named():
    slow = {**WAY, "bytes_per_s": 2e6}
    found = replace(FOUND, ways={("node0", "node1"): slow, ("node1", "node0"): slow})
    verdict = of(found, "tcp", "node1 -> node0")
    assert verdict.status is WARN
    assert "slow for gradients" in verdict.found


def test_hosts_are_called_where_ssh_has_reached_them_or_by_nic():
    facts = FOUND.facts
    by_ssh = {"node0": "10.0.0.1", "node1": "10.0.0.2"}
    assert choose_addresses(facts, "node0", "") == by_ssh
    # A user's own login to this host tells nothing.
    own = {**facts, "node0": changed(NODE0, ("ssh_connection", ["9.9.9.9", "1", "8.8.8.8", "22"]))}
    assert choose_addresses(own, "node0", "") == by_ssh
    chosen = {**facts, "node1": changed(NODE1, ("interfaces.chosen", ["10.1.0.2"]))}
    assert choose_addresses(chosen, "node0", "eth1")["node1"] == "10.1.0.2"
