"""A network of hosts:

    with Network(2, folder, addresses=("ipv6",), ssh=True) as network:
        a, b = network.hosts
        a.run(["ssh", b.name, "hostname"])
        network.unplug(b)

Hosts share the machine's file system, except /run and /dev/shm. Everything else is their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from ciranda.netns import sshd
from ciranda.netns.bridge import Bridge
from ciranda.netns.link import Link
from ciranda.netns.namespace import Namespace
from ciranda.netns.router import Router

HOSTS_MAX = 254  # as many as fit into an IPv4 network of 24 bits
Family = Literal["ipv4", "ipv6"]
_PREFIX_BITS = {"ipv4": 24, "ipv6": 64}
_DISABLE_IPV6 = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
# Hosts do not use the machine's DNS or its directory of users.
_NOBODYS_MAC = "02:00:00:00:00:ff"
_NSSWITCH = "passwd: files\ngroup: files\nshadow: files\nhosts: files\n"


def address_of(family: Family, lan: int, host: int) -> str:
    if family == "ipv4":
        return f"10.77.{lan + 1}.{host + 1}"
    return f"fd77:{lan + 1}::{host + 1:x}"


class Host(Namespace):
    """A host; eth0 and further devices lead to the other hosts, whose names it can resolve."""

    def __init__(
        self, index: int, families: Sequence[Family], folder: Path, etc: Mapping[str, str]
    ) -> None:
        super().__init__(f"node{index}", folder, etc)
        self.index = index
        self.families = families
        self.ports: list[int] = []  # the network's port of each device

    def address(self, family: Family | None = None, *, nic: int = 0) -> str:
        """Returns the host's address of this family, by default of the network's first family."""
        return address_of(family or self.families[0], nic, self.index)


class Network:
    """`count` hosts node0, node1, … with `nics` devices each, eth0 in one LAN, eth1 in the next.

    node0 is the name of the addresses on eth0, node0-eth1 of those on eth1. `router` joins the
    hosts by a router in user space: slower (about 100 Mbit/s), but it can delay and lose packets.
    The network makes `folder`, and needs it as long as it lives.
    """

    def __init__(
        self,
        count: int,
        folder: Path,
        *,
        addresses: Sequence[Family] = ("ipv4", "ipv6"),
        nics: int = 1,
        router: bool = False,
        seed: int = 0,
        ssh: bool = False,
    ) -> None:
        if not 1 <= count <= HOSTS_MAX or not addresses:
            raise ValueError(f"1 to {HOSTS_MAX} hosts with addresses, not {count}")
        self.folder = folder
        self.hosts: list[Host] = []
        self._families = tuple(addresses)
        self._nics = nics
        self._seed = seed
        self._names = [f"node{index}" for index in range(count)]
        self._with_router = router
        self._with_ssh = ssh

    def __enter__(self) -> Network:
        with ExitStack() as undo:  # ends the started parts if a later step fails
            self.folder.mkdir()
            self._cables = Router(self._seed) if self._with_router else self._start_bridge()
            undo.callback(self._cables.close)
            if self._with_ssh:
                sshd.make_keys(self._ssh_folder, self._all_addresses())
            for index, name in enumerate(self._names):
                host = self._start_host(index, name)
                undo.callback(host.crash)
                self.hosts.append(host)
            self._cables.start()
            for host in self.hosts:
                self._bring_up(host)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def set_link(self, link: Link, *hosts: Host, nic: int | None = None) -> None:
        """Changes the cables of these hosts, by default of all, from now on."""
        for port in self._ports(hosts, nic):
            self._cables.set_link(port, link)

    def unplug(self, *hosts: Host, nic: int | None = None) -> None:
        """Drops packets from and to these hosts, by default all; nothing reports the loss."""
        for port in self._ports(hosts, nic):
            self._cables.set_plugged(port, False)

    def plug(self, *hosts: Host, nic: int | None = None) -> None:
        for port in self._ports(hosts, nic):
            self._cables.set_plugged(port, True)

    def cut(self, sender: Host, receiver: Host) -> None:
        """Loses what one host sends to another one, which still reaches it. Not with a router."""
        self._lead(sender, receiver, "replace", f"lladdr {_NOBODYS_MAC} nud permanent ")

    def mend(self, sender: Host, receiver: Host) -> None:
        """Undoes cut()."""
        self._lead(sender, receiver, "del", "")

    def _lead(self, sender: Host, receiver: Host, verb: str, where: str) -> None:
        sender.ip(
            *(
                f"neigh {verb} {address_of(family, lan, receiver.index)} {where}dev eth{lan}"
                for lan in range(self._nics)
                for family in self._families
            )
        )

    def _ports(self, hosts: Sequence[Host], nic: int | None) -> list[int]:
        chosen = hosts or self.hosts
        return [
            port for host in chosen for port in (host.ports if nic is None else [host.ports[nic]])
        ]

    def _start_bridge(self) -> Bridge:
        folder = self.folder / "switch"
        folder.mkdir()
        return Bridge(folder)

    @property
    def _ssh_folder(self) -> Path:
        return self.folder / "ssh"

    def _start_host(self, index: int, name: str) -> Host:
        etc = {"hosts": self._hosts_file(), "nsswitch.conf": _NSSWITCH}
        if self._with_ssh:
            etc |= sshd.client_files(self._ssh_folder)
        folder = self.folder / name
        folder.mkdir()
        host = Host(index, self._families, folder, etc)
        host.ports = [
            self._cables.attach(host, f"eth{lan}", lan, self._addresses(lan, index))
            for lan in range(self._nics)
        ]
        return host

    def _bring_up(self, host: Host) -> None:
        if "ipv6" not in self._families:
            host.check(["sh", "-c", f"echo 1 >{_DISABLE_IPV6}"])
        for lan in range(self._nics):
            lines = [f"link set eth{lan} up"]
            for family in self._families:
                address = f"{address_of(family, lan, host.index)}/{_PREFIX_BITS[family]}"
                # No other host can have the address, so it needs no duplicate detection.
                lines += [f"addr add {address} dev eth{lan}{' nodad' if family == 'ipv6' else ''}"]
            host.ip(*lines)
        if self._with_ssh:
            sshd.start_sshd(host, self._ssh_folder)

    def _addresses(self, lan: int, index: int) -> list[str]:
        return [address_of(family, lan, index) for family in self._families]

    def _all_addresses(self) -> dict[str, list[str]]:
        return {
            name: [each for lan in range(self._nics) for each in self._addresses(lan, index)]
            for index, name in enumerate(self._names)
        }

    def _hosts_file(self) -> str:
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        for lan in range(self._nics):
            suffix = f"-eth{lan}" if lan else ""
            for index, name in enumerate(self._names):
                lines += [f"{each} {name}{suffix}" for each in self._addresses(lan, index)]
        return "\n".join(lines) + "\n"
