"""A list of hosts is typed by hand: each form must be read, each mistake must cost a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.hosts import (
    RANKS_MAX,
    Host,
    assign_ranks,
    gather_here,
    parse_hostfile,
    parse_hosts,
)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [Host("a")]),
        ("a:2,b:4", [Host("a", 2), Host("b", 4)]),
        (" a:2 , b.example.org:004 ", [Host("a", 2), Host("b.example.org", 4)]),
        ("me@a:2", [Host("a", 2, "me")]),
        ("10.0.0.1:2", [Host("10.0.0.1", 2)]),
        ("[fd00::1]:2,me@[::1]", [Host("fd00::1", 2), Host("::1", 1, "me")]),
        ("[FD00:0:0::1]", [Host("fd00::1")]),
        ("[fe80::1%eth0]:3", [Host("fe80::1%eth0", 3)]),
        ("n[01-03,7]:2", [Host(name, 2) for name in ("n01", "n02", "n03", "n7")]),
        ("n[8-11]", [Host(name) for name in ("n8", "n9", "n10", "n11")]),
        ("n[08-10].x,m", [Host(name) for name in ("n08.x", "n09.x", "n10.x", "m")]),
        ("r[1-2]n[3,4]", [Host(name) for name in ("r1n3", "r1n4", "r2n3", "r2n4")]),
        ("a:1,b:2,A:3", [Host("a", 4), Host("b", 2)]),
        ("n[1-2],n2:3", [Host("n1"), Host("n2", 4)]),
    ],
)
def test_every_form_of_a_list_is_read(text, hosts):
    assert list(parse_hosts(text)) == hosts


def test_every_form_of_a_hostfile_is_read():
    text = "\ufeff# ours\r\n\r\na slots=2 max_slots=4\r\n  b max-slots=9  # one\n"
    text += "me@c slots=3 # three\n[fd00::1] slots=4\n"
    text += "n[1-2]:2\nn[3-4] slots=5\nd:6,e\na"
    assert parse_hostfile(text, "hosts") == (
        Host("a", 3),
        Host("b"),
        Host("c", 3, "me"),
        Host("fd00::1", 4),
        Host("n1", 2),
        Host("n2", 2),
        Host("n3", 5),
        Host("n4", 5),
        Host("d", 6),
        Host("e"),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a host is missing"),
        ("a,,b", "a host is missing"),
        ("a,", "a host is missing; write host:slots with commas"),
        ("a:", "the slots '' in 'a:' must be a number from 1 to 999999, as in node1:2"),
        ("a:two", "the slots 'two' in 'a:two' must be a number"),
        ("a:0", "the slots '0' in 'a:0' must be"),
        ("a:-1", "the slots '-1'"),
        ("a:٣", "the slots '٣'"),
        ("a:1000000", "the slots '1000000'"),
        ("fd00::1", "'fd00::1' holds more than one ':'; write an IPv6 address in brackets"),
        ("a:2:3", "'a:2:3' holds more than one ':'"),
        ("[fd00::g]:2", "'fd00::g' in brackets is not an IPv6 address"),
        ("[fe80::1%a b]", "in brackets is not an IPv6 address"),
        ("[a:2", "the brackets in '[a' do not match"),
        ("10.0.0.256", "'10.0.0.256' is not an IPv4 address"),
        ("1.2", "'1.2' is not an IPv4 address"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' is not the name of a host"),
        ("a;b", "'a;b' is not the name of a host; letters, digits and ._- may be in it"),
        ("$(b)", "is not the name of a host"),
        ("a b", "'a b' is not the name of a host"),
        ("a\nb", r"'a\nb' is not the name of a host"),
        ("bücher", "'bücher' is not the name of a host"),
        ("a..b", "is not the name of a host"),
        ("a" * 300, "aaa…' is not the name of a host"),
        ("@a", "'' in '@a' is not the name of a user"),
        ("-l@a", "'-l' in '-l@a' is not the name of a user"),
        ("a@b@c", "'a@b' in 'a@b@c' is not the name of a user"),
        ("n[1-2", "the brackets in 'n[1-2' do not match"),
        ("n]1[", "the brackets in 'n]1[' do not match"),
        ("n[[1]]", "the brackets in"),
        ("n[]", "'' in 'n[]' is neither a number nor a range"),
        ("n[a-b]", "'a-b' in 'n[a-b]' is neither a number nor a range; a list is written as"),
        ("n[4-1]", "the range 4-1 in 'n[4-1]' runs backwards; write 1-4"),
        ("n[0-999999999]", "more than 4096 hosts"),
        ("n[0-999][0-999]", "more than 4096 hosts"),
        ("me@a,you@a", "the host 'a' is named with two users"),
        ("a:999999,a", "the host 'a' is named with more than 999999 slots in all; give it fewer"),
    ],
)
def test_a_mistake_costs_one_sentence(text, words):
    with pytest.raises(LaunchError) as refused:
        parse_hosts(text)
    assert str(refused.value).startswith("-H: ") and words in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "hosts: it names no host; write one host a line, such as: node1 slots=2"),
        ("# a\n\n", "hosts: it names no host"),
        ("a\nb slots=x", "hosts, line 2: the slots 'x' in 'slots=x' must be a number"),
        ("a slots", "hosts, line 1: 'slots' is not understood; write host slots=N"),
        ("a slots = 2", "hosts, line 1: 'slots' is not understood"),
        ("a most=2", "hosts, line 1: 'most=2' is not understood"),
        ("a slots=3 max_slots=2", "hosts, line 1: max_slots=2 is less than the slots; raise it"),
        ("a max_slots=2 max-slots=3", "hosts, line 1: the slots are given twice"),
        ("a:2 slots=2", "hosts, line 1: the slots are given twice"),
        ("a slots=2 slots=2", "hosts, line 1: the slots are given twice"),
        ("a\nme@a", "hosts: the host 'a' is named with two users"),
    ],
)
def test_a_mistake_in_a_file_names_the_line(text, words):
    with pytest.raises(LaunchError) as refused:
        parse_hostfile(text, "hosts")
    assert words in str(refused.value)


NAMES = st.one_of(
    st.from_regex(r"[a-z][a-z0-9-]{0,8}(\.[a-z0-9]{1,3}){0,2}", fullmatch=True),
    st.ip_addresses().map(str),
)
HOSTS = st.lists(
    st.builds(
        Host,
        NAMES,
        st.integers(1, 300),
        st.none() | st.from_regex(r"[a-z_][a-z0-9_.-]{0,5}", fullmatch=True),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda host: host.name,
)
TEXT = st.one_of(st.text(), st.text(alphabet="ab01[]-,:@%. =#\n", max_size=30))


@given(HOSTS)
def test_hosts_survive_being_written_and_read(hosts):
    assert parse_hosts(",".join(map(str, hosts))) == tuple(hosts)
    assert parse_hostfile("\n".join(map(str, hosts)), "hosts") == tuple(hosts)


@given(TEXT)
def test_any_text_is_read_or_refused_in_one_line(text):
    for parse in (parse_hosts, parse_hostfile):
        try:
            hosts = parse(text, "here")
        except LaunchError as refused:
            assert str(refused).startswith("here")
            assert str(refused).isprintable()
        else:
            assert parse_hosts(",".join(map(str, hosts))) == hosts
            for host in hosts:
                assert not host.name.startswith("-")
                assert not set(host.name + (host.user or "")) & set(" '\"\\$`;&|<>()*?\n")


@given(HOSTS, st.data())
def test_places_fill_the_hosts_in_order(hosts, data):
    hosts = [replace(host, slots=1 + host.slots % 6) for host in hosts]
    slots = sum(host.slots for host in hosts)
    size = data.draw(st.none() | st.integers(1, slots))
    places = assign_ranks(hosts, size)
    assert [place.rank for place in places] == list(range(size or slots))
    assert [place.host_index for place in places] == sorted(place.host_index for place in places)
    for place in places:
        assert place.host is hosts[place.host_index]
        here = [other for other in places if other.host is place.host]
        across = [other for other in places if other.local_rank == place.local_rank]
        assert here[place.local_rank] is place and across[place.cross_rank] is place
        assert (place.local_size, place.cross_size) == (len(here), len(across))
        assert place.local_size <= place.host.slots
    before_last = hosts[: places[-1].host_index]
    assert all(places.count(place) == 1 for place in places)
    assert sum(host.slots for host in before_last) == sum(p.host in before_last for p in places)


@pytest.mark.parametrize(
    ("hosts", "size", "words"),
    [
        ("a:2,b:2", 5, "-np 5 asks for more ranks than the 4 slots of -H; add hosts or slots"),
        ("a:2", 0, "must be between 1 and 4096, not 0"),
        ("a:257", None, "the host 'a' would get 257 ranks, but at most 256 run on one host"),
        ("n[1-17]:256", None, "must be between 1 and 4096, not 4352"),
    ],
)
def test_what_does_not_fit_is_refused(hosts, size, words):
    with pytest.raises(LaunchError) as refused:
        assign_ranks(parse_hosts(hosts), size)
    assert words in str(refused.value)


def test_the_largest_job_is_assigned_quickly():
    assert len(assign_ranks(parse_hosts("n[1-4096]"), None)) == RANKS_MAX


def test_the_names_of_this_host_are_one_host():
    hosts = parse_hosts("localhost:1,B:2,node1.x,127.0.0.1:4,[::1]:8,NODE1,me@a")
    assert gather_here(hosts, "node1.x") == (
        Host("node1.x", 15),
        Host("B", 2),
        Host("a", 1, "me"),
    )
