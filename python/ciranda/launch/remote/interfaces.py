"""Lists the addresses of this host, and chooses those at which other hosts can reach it.

The patterns and the choice are the same as in the core (transport/tcp/interfaces.h).
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ciranda.launch.errors import LaunchError

_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("16s24x")
_IFREQ_ADDRESS = slice(20, 24)
_IF_INET6 = "/proc/net/if_inet6"
# Bridges of containers and virtual machines. Many hosts share their addresses.
BRIDGES = ("docker", "br-", "virbr", "veth", "cni", "lxcbr", "lxdbr", "podman", "vmnet")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class HostAddress:
    interface: str
    address: Address


@dataclass(frozen=True)
class _Pattern:
    excludes: bool
    interface: str  # may end with '*'; not used if there is a network
    network: Network | None

    def fits(self, each: HostAddress) -> bool:
        if self.network is not None:
            return each.address in self.network
        if self.interface.endswith("*"):
            return each.interface.startswith(self.interface[:-1])
        return each.interface == self.interface


def choose_addresses(addresses: Sequence[HostAddress], wanted: str) -> list[str]:
    """Returns the addresses that fit `wanted`, the best first. Pure.

    `wanted` holds patterns such as eth0,10.0.0.0/8,!docker*. Raises LaunchError if none fits.
    """
    patterns = [_parse_pattern(text) for text in wanted.split(",") if text]
    includes = any(not pattern.excludes for pattern in patterns)
    fitting = [
        each
        for each in addresses
        if not _stays_at_home(each.address)
        and not any(pattern.excludes and pattern.fits(each) for pattern in patterns)
        and (not includes or any(not p.excludes and p.fits(each) for p in patterns))
    ]
    if not fitting:
        there = ", ".join(f"{each.interface} {each.address}" for each in addresses) or "none"
        raise LaunchError(f"--nic {wanted}: no address of this host fits; it has: {there}")
    fitting.sort(key=lambda each: each.interface.startswith(BRIDGES))
    return [str(each.address) for each in fitting]


def _stays_at_home(address: Address) -> bool:
    """Returns true if other hosts cannot reach this host at the address."""
    return address.is_loopback or (address.version == 6 and address.is_link_local)


def _parse_pattern(text: str) -> _Pattern:
    name = text.removeprefix("!")
    network: Network | None = None
    try:
        network = ipaddress.ip_network(name, strict=False)
    except ValueError:
        if not name or name[0] in "!*" or "/" in name or ":" in name:
            raise LaunchError(
                f"--nic: '{text}' is neither an interface nor a network; write for example "
                "eth0,10.0.0.0/8,!docker0"
            ) from None
    return _Pattern(text.startswith("!"), name, network)


def list_addresses() -> list[HostAddress]:
    """Returns the first IPv4 address and all IPv6 addresses of each interface."""
    return [*_ipv4(), *_ipv6()]


def _ipv4() -> Iterable[HostAddress]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, _IFREQ.pack(name.encode()))
            except OSError:  # the interface has no IPv4 address
                continue
            yield HostAddress(name, ipaddress.IPv4Address(answer[_IFREQ_ADDRESS]))


def _ipv6() -> Iterable[HostAddress]:
    try:
        with open(_IF_INET6, encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:  # no IPv6 here
        return
    for line in lines:
        digits, *_, name = line.split()
        yield HostAddress(name, ipaddress.IPv6Address(bytes.fromhex(digits)))
