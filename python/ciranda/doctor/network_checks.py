"""Judges a host for a job by its interfaces, name and ports. Pure."""

from __future__ import annotations

import ipaddress

from ciranda.doctor.lines import Verdict, fail, ok, warn
from ciranda.doctor.setting import Facts, Setting
from ciranda.launch.remote.interfaces import BRIDGES

_SLOW_NAME_S = 1.0
_EPHEMERAL_WANTED = 1000


def interfaces(facts: Facts, setting: Setting) -> Verdict:
    found = facts["interfaces"]
    interface_of = {address: name for name, address in found["addresses"]}
    if found["problem"]:
        if setting.alone and not setting.nic:
            return ok("none but the loopback, and one host needs no other")
        return fail(
            found["problem"],
            "Bring up a network, or name one that is there with --nic: ip -brief address",
        )
    best = found["chosen"][0]
    words = f"{interface_of[best]} {best}"
    others = sorted({interface_of[each] for each in found["chosen"]} - {interface_of[best]})
    if others:
        words += f", before {', '.join(others)}"
    if interface_of[best].startswith(BRIDGES) and not setting.alone:
        return warn(
            f"{words}: a bridge of containers or virtual machines, and there is no other",
            "Bring up the network between the hosts, or name it with --nic: ip -brief address",
        )
    return ok(words)


def hostname(facts: Facts, setting: Setting) -> Verdict:
    name, addresses = facts["hostname"]["name"], facts["hostname"]["addresses"]
    chosen = facts.get("interfaces", {}).get("chosen", [])
    add = f"Write it into /etc/hosts: {chosen[0] if chosen else 'ADDRESS'} {name}"
    if not addresses:
        return warn(f"'{name}' leads to no address (torch.distributed looks for one)", add)
    if all(_is_loopback(each) for each in addresses):
        if setting.alone or not chosen:
            return ok(f"'{name}' is {addresses[0]}, and one host needs no other")
        return warn(
            f"'{name}' is {addresses[0]}, at which no other host reaches this one "
            "(torch.distributed's Gloo would give that address)",
            add,
        )
    seconds = facts["hostname"]["seconds"]
    if seconds > _SLOW_NAME_S:
        return warn(f"'{name}' takes {seconds:.1f} s to resolve", add)
    return ok(f"'{name}' is {addresses[0]}")


def ports(facts: Facts, setting: Setting) -> Verdict:
    ports, wanted = facts["ports"], setting.ports
    first, last = ports["ephemeral"]
    for address, problem in ports["problems"].items():
        return fail(
            f"cannot listen on {address}: {problem}",
            "Free a port, or name others with --port-range: ss -ltnp"
            if wanted.first
            else "See that the interface is up: ip -brief address",
        )
    if wanted.first and wanted.first <= last and first <= wanted.last:
        return warn(
            f"--port-range {wanted.first}-{wanted.last} meets {first}-{last}, which the kernel "
            "gives to connections that go out",
            "Name ports outside of it, for example --port-range 20000-20099.",
        )
    if last - first < _EPHEMERAL_WANTED:
        return warn(
            f"only {last - first + 1} ports for connections that go out ({first}-{last})",
            "Widen the range: sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
        )
    return ok(f"listens on {', '.join(ports['listened'])}")


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
