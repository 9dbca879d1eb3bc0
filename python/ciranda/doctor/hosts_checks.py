"""Judges the facts of several hosts together, and the ways (network paths) between them. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ciranda._version_gate import minor_version
from ciranda.doctor import tcp
from ciranda.doctor.lines import Line, Verdict, fail, line, ok, skip, warn
from ciranda.doctor.setting import Facts
from ciranda.launch.remote.meeting import format_endpoint

_OFFSET_MAX_S = 0.5  # a larger offset makes times in logs misleading
_SPREAD_MAX = 4.0  # ratio of the fastest way to the slowest
_SLOW_BYTES_PER_S = 12.5e6  # 100 Mbit/s
_LONG_RTT_S = 0.002  # hosts in one place have less


@dataclass(frozen=True)
class Reached:
    """How a visit to a host began. `problem` is in the words of launch.remote.ssh."""

    here: bool = False
    greeted_s: float = 0.0
    problem: str = ""
    by_ssh: bool = False


@dataclass(frozen=True)
class Found:
    """All findings, by host name in the order of -H. Hosts without a finding are missing."""

    reached: Mapping[str, Reached]
    facts: Mapping[str, Facts]
    clocks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)  # where ranks call a host
    ways: Mapping[tuple[str, str], Facts] = field(default_factory=dict)  # by caller and called host


def hosts_lines(found: Found) -> list[Line]:
    lines = _visit_lines(found)
    if len(found.facts) > 1:
        lines += [*_software_lines(found), *_folder_lines(found), *_clock_lines(found)]
        lines += [*_name_lines(found), *_network_lines(found), *_tcp_lines(found)]
    return lines


# --- each host, from here ----------------------------------------------------------------------


def _visit_lines(found: Found) -> list[Line]:
    lines = []
    for host, reached in found.reached.items():
        found_words, _, mend = reached.problem.partition("; ")
        if not reached.problem:
            how = "here, without ssh" if reached.here else f"answers in {reached.greeted_s:.1f} s"
            lines.append(line("ssh", host, ok(how)))
        elif reached.by_ssh:
            mend = mend or f"See what ssh says: ssh -v {host} true"
            lines.append(line("ssh", host, fail(found_words, _sentence(mend))))
        else:
            mend = mend or f"See what it says: ssh {host} python -m ciranda --version"
            lines.append(line("agent", host, fail(found_words, _sentence(mend))))
    return lines


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _software_lines(found: Found) -> list[Line]:
    """Compares each other host with the first."""
    first, *others = found.facts
    reference = _software(found.facts[first])
    lines = []
    for host in others:
        theirs = _software(found.facts[host])
        differ = [what for what in reference if theirs[what] != reference[what]]
        words = "; ".join(f"{what} {theirs[what]}, on {first} {reference[what]}" for what in differ)
        verdict = ok(", ".join(f"{what} {version}" for what, version in theirs.items()))
        mend = f"Install the same on all hosts, into the same place: ssh {host} pip list"
        if any(_must_agree(what, theirs[what], reference[what]) for what in differ):
            verdict = fail(words, mend)
        elif differ:
            verdict = warn(words, mend)
        lines.append(line("same_software", host, verdict))
    return lines


def _software(facts: Facts) -> dict[str, str]:
    return {
        "ciranda": facts["ciranda"]["version"],
        "torch": facts.get("torch", {}).get("version", "none"),
        "Python": facts["python"]["version"],
    }


def _must_agree(what: str, one: str, other: str) -> bool:
    if what == "torch" and "none" not in (one, other):
        return minor_version(one) != minor_version(other)
    return what != "Python"


def _folder_lines(found: Found) -> list[Line]:
    lines = []
    for host, facts in found.facts.items():
        folder = facts.get("folder", {})
        if "path" not in folder:
            lines.append(line("same_folder", host, skip("same_folder", "this host did not say")))
        elif folder["is_there"]:
            lines.append(line("same_folder", host, ok(folder["path"])))
        else:
            lines.append(
                line(
                    "same_folder",
                    host,
                    warn(
                        f"{folder['path']} is not there",
                        "Start jobs in a folder that all hosts have, with the program in it: "
                        f"rsync -a {folder['path']}/ {host}:{folder['path']}/",
                    ),
                )
            )
    return lines


def _clock_lines(found: Found) -> list[Line]:
    lines = []
    for host, clock in found.clocks.items():
        if "offset_s" not in clock:
            lines.append(line("clock_offset", host, skip("clock_offset", "it did not answer")))
            continue
        offset_s, error_s = clock["offset_s"], clock["error_s"]
        words = f"{offset_s * 1e3:+.1f} ms from here, to {error_s * 1e3:.1f} ms"
        far = abs(offset_s) - error_s > _OFFSET_MAX_S
        mend = f"Let NTP set the clock, so that times in logs compare: ssh {host} timedatectl"
        lines.append(line("clock_offset", host, warn(words, mend) if far else ok(words)))
    return lines


# --- names and networks ------------------------------------------------------------------------


def _name_lines(found: Found) -> list[Line]:
    """Returns a line for each name, as all hosts resolve it."""
    lines = []
    for name in found.reached:
        if _is_address(name):
            continue
        seen = {
            host: tuple(facts["names"].get(name, ()))
            for host, facts in found.facts.items()
            if "why_not" not in facts.get("names", {"why_not": ""})
        }
        if seen:
            lines.append(line("names", name, _name_verdict(name, seen)))
    return lines


def _name_verdict(name: str, seen: Mapping[str, Sequence[str]]) -> Verdict:
    others = {host: addresses for host, addresses in seen.items() if host != name}
    outside = {address for each in others.values() for address in each if not _is_loopback(address)}
    add = f"Write it into /etc/hosts of each host, or into DNS: {min(outside, default='ADDRESS')} "
    if not any(seen.values()):
        return ok("no host resolves it: a name of ssh's own configuration")
    for host, addresses in others.items():
        if not addresses:
            return warn(f"leads to no address on {host}", add + name)
        if all(_is_loopback(each) for each in addresses):
            return warn(f"means {addresses[0]} on {host}, which is that host itself", add + name)
    if len({frozenset(each) for each in others.values()}) > 1:
        words = "; ".join(f"on {host} {', '.join(each)}" for host, each in others.items())
        return warn(f"means different addresses: {words}", add + name)
    return ok(", ".join(sorted(outside)) or "only known to itself")


def _network_lines(found: Found) -> list[Line]:
    lines = []
    families = {_family(address) for address in found.addresses.values()}
    mtus = {host: _mtu(found.facts[host], each) for host, each in found.addresses.items()}
    for host, facts in found.facts.items():
        if host not in found.addresses:
            verdict = fail(
                "it is not known by which address other hosts reach it",
                "Name the interface or network between the hosts: --nic eth0",
            )
        else:
            address, mtu = found.addresses[host], mtus[host]
            name = _interface(facts, address)
            words = f"{name or 'no interface of it'} {address}"
            words += f", MTU {mtu}" if mtu else ""
            verdict = ok(words)
            if len(families) > 1:
                verdict = fail(
                    f"{words}, and hosts mix IPv4 and IPv6",
                    "Name one network that all hosts have: --nic 10.0.0.0/8",
                )
            elif len({each for each in mtus.values() if each}) > 1:
                verdict = warn(
                    f"{words}, and hosts differ in it",
                    "Set the same MTU on all hosts, or large packets may vanish: "
                    f"ip link set dev {name} mtu {min(each for each in mtus.values() if each)}",
                )
        lines.append(line("networks", host, verdict))
    return lines


def _interface(facts: Facts, address: str) -> str | None:
    addresses = facts.get("interfaces", {}).get("addresses", [])
    return next((name for name, each in addresses if each == address), None)


def _mtu(facts: Facts, address: str) -> int | None:
    mtus: Mapping[str, int] = facts.get("interfaces", {}).get("mtu_bytes", {})
    return mtus.get(_interface(facts, address) or "")


def choose_addresses(facts: Mapping[str, Facts], here: str, nic: str) -> dict[str, str]:
    """Returns the address of each host, at which ranks would call it.

    That is the first address by --nic. Without --nic it is the address that ssh reached; the host
    without ssh has the address from which ssh reached another.
    """
    if nic:
        chosen = {
            host: each.get("interfaces", {}).get("chosen", []) for host, each in facts.items()
        }
        return {host: addresses[0] for host, addresses in chosen.items() if addresses}
    by_ssh = {
        host: each["ssh_connection"]
        for host, each in facts.items()
        if host != here and len(each.get("ssh_connection", [])) == 4
    }
    found = {host: connection[2] for host, connection in by_ssh.items()}
    if here in facts and by_ssh:
        found[here] = next(iter(by_ssh.values()))[0]
    return {host: found[host] for host in facts if host in found and "%" not in found[host]}


def _family(address: str) -> int:
    return ipaddress.ip_address(address).version


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


# --- the ways between them ---------------------------------------------------------------------


def _tcp_lines(found: Found) -> list[Line]:
    best = max((way.get("bytes_per_s", 0.0) for way in found.ways.values()), default=0.0)
    return [
        line("tcp", f"{caller} -> {called}", _tcp_verdict(caller, called, way, best))
        for (caller, called), way in found.ways.items()
    ]


def _tcp_verdict(caller: str, called: str, way: Facts, best: float) -> Verdict:
    if "why_not" in way:
        return skip("tcp", way["why_not"])
    if "end" in way:
        return _tcp_failure(caller, called, way)
    rate = way["bytes_per_s"]
    words = f"{way['rtt_s'] * 1e3:.2f} ms, {rate / 1e6:,.0f} MB/s"
    if rate * _SPREAD_MAX < best:
        return warn(
            f"{words}; the fastest way makes {best / 1e6:,.0f}",
            f"Look at the cable, port and driver of the slower host: ethtool on {caller} and "
            f"{called}",
        )
    if rate < _SLOW_BYTES_PER_S:
        return warn(
            f"{words}: slow for gradients",
            "Name a faster network with --nic, or send less: Compression.bf16.",
        )
    if way["rtt_s"] > _LONG_RTT_S:
        return warn(
            f"{words}: a long way",
            "Place the hosts near each other, or use larger batches, for every step waits for it.",
        )
    return ok(words)


def _tcp_failure(caller: str, called: str, way: Facts) -> Verdict:
    end, at = way["end"], format_endpoint(way["address"], way["port"])
    if end == tcp.REFUSED:
        return fail(
            f"{at} refuses, although it listens",
            f"Let a firewall on {called} or on the way accept instead of reject TCP from {caller}, "
            "for ports that you name with --port-range 20000-20099.",
        )
    if end == tcp.TIMED_OUT:
        return fail(
            f"{at} does not answer",
            f"Open ports in the firewall of {called} or of the network, and name them: "
            "--port-range 20000-20099",
        )
    if end == tcp.UNREACHABLE:
        return fail(
            f"no way leads to {at}",
            "Choose a network that joins both hosts with --nic, or add a route: ip route get "
            f"{way['address']}",
        )
    if end == tcp.STALLED:
        return fail(
            f"{at} gets small messages, and large ones vanish",
            "Lower the MTU on both hosts, for something between them drops large packets: "
            "ip link set dev eth0 mtu 1400",
        )
    if end == tcp.CUT:
        return fail(
            f"the connection to {at} breaks: {way['why']}",
            f"See what stands between them (proxies, load balancers): ss -tn on {called}",
        )
    return fail(f"{at}: {way['why']}", "Free a port, or name others: --port-range 20000-20099")
