"""Ranks that meet on a network that only one host has, or on a container's bridge, never meet."""

from __future__ import annotations

import ipaddress
import os
import socket

import pytest

from ciranda.launch.errors import LaunchError
from ciranda.launch.remote.interfaces import HostAddress, choose_addresses, list_addresses

HERE = [
    HostAddress(interface, ipaddress.ip_address(address))
    for interface, address in [
        ("lo", "127.0.0.1"),
        ("docker0", "172.17.0.1"),
        ("eth0", "192.0.2.2"),
        ("eth1", "10.0.0.2"),
        ("eth0", "fe80::2"),
        ("eth0", "2001:db8::2"),
        ("lo", "::1"),
    ]
]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("", ["192.0.2.2", "10.0.0.2", "2001:db8::2", "172.17.0.1"]),
        ("eth0", ["192.0.2.2", "2001:db8::2"]),
        ("eth*", ["192.0.2.2", "10.0.0.2", "2001:db8::2"]),
        ("10.0.0.0/8", ["10.0.0.2"]),
        ("10.0.0.2", ["10.0.0.2"]),
        ("2001:db8::/32", ["2001:db8::2"]),
        ("!docker*,!eth0", ["10.0.0.2"]),
        ("eth*,!10.0.0.0/8", ["192.0.2.2", "2001:db8::2"]),
        ("docker0", ["172.17.0.1"]),
    ],
)
def test_patterns_choose_addresses_the_best_first(wanted, chosen):
    assert choose_addresses(HERE, wanted) == chosen


@pytest.mark.parametrize("wanted", ["eth7", "lo", "fe80::/10", "!eth*,!docker0"])
def test_where_nothing_fits_the_error_says_what_there_is(wanted):
    with pytest.raises(LaunchError, match=r"no address of this host fits.*eth1 10\.0\.0\.2"):
        choose_addresses(HERE, wanted)


@pytest.mark.parametrize("wanted", ["10.0.0.0/33", "10.0.0/8", "!", "*", "!!eth0", "fe80:::1"])
def test_what_is_no_pattern_costs_a_sentence(wanted):
    with pytest.raises(LaunchError, match="is neither an interface nor a network"):
        choose_addresses(HERE, wanted)


def test_the_addresses_of_this_host_are_found():
    found = list_addresses()
    assert HostAddress("lo", ipaddress.IPv4Address("127.0.0.1")) in found
    assert {each.interface for each in found} <= set(os.listdir("/sys/class/net"))
    for each in found:
        if not each.address.is_link_local:
            family = socket.AF_INET6 if each.address.version == 6 else socket.AF_INET
            with socket.socket(family) as probe:
                probe.bind((str(each.address), 0))
