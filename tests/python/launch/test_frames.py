"""Launcher and agent understand each other only as long as each finds where a frame ends."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciranda.launch.plan.elastic import ElasticLimits
from ciranda.launch.plan.hosts import assign_ranks, assign_servers, assign_spares, parse_hosts
from ciranda.launch.plan.processes import COORDINATOR, EVALUATOR, server_number
from ciranda.launch.remote import frames
from ciranda.launch.remote.agent import Agent
from ciranda.launch.remote.frames import Frame, FrameError, FrameReader
from ciranda.launch.remote.meeting import Ports
from ciranda.launch.remote.orders import (
    Listen,
    Orders,
    allowed_environment,
    decode_orders,
    encode_orders,
)
from ciranda.launch.remote.outbox import Outbox
from ciranda.launch.run.event_loop import EventLoop

FRAMES = st.lists(
    st.tuples(st.sampled_from([frames.BEAT, frames.NEWS, frames.ORDER]), st.binary(max_size=40)),
    max_size=6,
)


@given(sent=FRAMES, cuts=st.lists(st.integers(1, 30)))
def test_frames_survive_any_cut(sent, cuts):
    stream = b"".join(frames.frame(kind, payload) for kind, payload in sent)
    reader, found = FrameReader(), []
    for cut in [*cuts, len(stream)]:
        found += reader.feed(stream[:cut])
        stream = stream[cut:]
    assert found == [Frame(*each) for each in sent]


def test_what_is_no_frame_is_refused():
    with pytest.raises(FrameError, match="a frame of 4294967295 bytes"):
        FrameReader().feed(b"P\xff\xff\xff\xff")
    for payload in (b"", b"[]", b"{", b"\xff"):
        with pytest.raises(FrameError):
            frames.read_json(payload)
    with pytest.raises(FrameError, match="without a rank"):
        frames.read_rank(b"\0\0\0")


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"P\xff\xff\xff\xff", b"the launcher sent a frame of 4294967295 bytes"),
        (frames.frame(frames.PLAN, b"{"), b"the launcher sent a frame that is not JSON"),
    ],
)
def test_an_agent_answers_what_no_launcher_sends_with_a_sentence(sent, problem):
    (commands, to_agent), (from_agent, output) = os.pipe(), os.pipe()
    os.write(to_agent, sent)
    with EventLoop() as loop, contextlib.ExitStack() as stack:
        Agent(commands, output, loop, stack).run()
    said = os.read(from_agent, 65536)
    for fd in (commands, to_agent, from_agent):
        os.close(fd)
    assert frames.frame(frames.PROBLEM, problem) in said


def test_the_launcher_understands_all_news_of_an_agent():
    told: list[str] = []
    agent = Agent.__new__(Agent)
    agent._paths, agent._tell, agent._ranks = None, told.append, None
    agent.started(1, 4321)
    agent.starts_again(1, -9)
    agent.ended_late(1, -9, 1)
    agent.ended(1, 0)
    agent.refused(1, 12)
    agent.left_behind(3)
    news = [frames.read_news(line.encode()) for line in [*told, "done"]]
    assert {word for word, _ in news} == set(frames._NEWS_NUMBERS)
    assert ("late", [1, -9, 1]) in news


def test_no_two_kinds_of_frames_are_alike():
    kinds = [each for name, each in vars(frames).items() if name.isupper() and name[0] != "_"]
    letters = [each for kind in kinds for each in (kind if isinstance(kind, tuple) else (kind,))]
    letters = [each for each in letters if isinstance(each, bytes)]
    assert len(letters) == len(set(letters)) > 10


@pytest.mark.parametrize("number", [4095, server_number(63), COORDINATOR, EVALUATOR])
def test_a_processs_frame_names_it(number):
    (found,) = FrameReader().feed(frames.rank_frame(frames.OUTPUT[0], number, b"text"))
    assert frames.read_rank(found.payload) == (number, b"text")


def test_a_start_names_a_process_and_its_incarnation():
    (found,) = FrameReader().feed(frames.start_frame(3, 1_000_000))
    assert frames.read_start(found.payload) == (3, 1_000_000)
    with pytest.raises(FrameError):
        frames.read_start(found.payload[:6])


@pytest.mark.parametrize("listen", [None, Listen("fd00::1", "", Ports(1, 2))])
def test_orders_arrive_as_they_were_given(listen):
    ranks = list(assign_ranks(parse_hosts("a:2,me@b"), None))
    orders = Orders(
        argv=["python", "a b"],
        folder="/",
        places=ranks,
        size=3,
        job_id="1",
        environment={"A": "\udcff"},
        user={},
        columns=None,
        meets=True,
        listen=listen,
        servers=list(assign_servers(2, ranks, parse_hosts("me@b,c"))),
        roles=[COORDINATOR],
        elastic=ElasticLimits(
            np=3, min_np=2, max_np=4, spares=1, reset_limit=None, elastic_timeout_s=1.0
        ),
        spares=list(assign_spares(1, ranks, parse_hosts("a:2,me@b:2"))),
    )
    (found,) = FrameReader().feed(frames.json_frame(frames.PLAN, encode_orders(orders)))
    assert decode_orders(frames.read_json(found.payload)) == orders


def test_only_what_is_meant_for_ranks_goes_to_other_hosts():
    stays = {"PATH": "1", "HOME": "1", "AWS_SECRET": "1", "CIRANDA_RANK": "1", "WORLD_SIZE": "1"}
    stays |= {"CIRANDA_KEY_FILE": "1", "CIRANDA_KEY_FD": "1", "CIRANDA_RENDEZVOUS": "1"}
    goes = {"CIRANDA_OVERLAP": "1", "HOROVOD_TIMELINE": "1", "PYTHONPATH": "1", "LC_ALL": "C"}
    assert allowed_environment({**stays, **goes}) == goes


def test_an_outbox_never_blocks_and_loses_nothing():
    read, write = os.pipe()
    with EventLoop() as loop:
        outbox = Outbox(write, loop)
        sent = os.urandom(300_000)
        for start in range(0, len(sent), 1000):
            outbox.send(sent[start : start + 1000])
        assert outbox.size_bytes > 100_000
        received = bytearray()
        while len(received) < len(sent):
            received += os.read(read, 65536)
            loop.turn(0)
        assert (received, outbox.size_bytes) == (sent, 0)
        os.close(read)
        outbox.send(b"nobody reads this")
        outbox.close()
        outbox.close()


def test_a_descriptor_that_an_earlier_call_gave_up_is_not_called():
    with EventLoop() as loop:
        ends = [os.pipe() for _ in range(2)]
        called = []

        def give_up_both(fd):
            called.append(fd)
            for read, _ in ends:
                loop.unwatch(read)

        for read, write in ends:
            loop.watch(read, give_up_both)
            os.close(write)
        loop.turn(1)
    assert called == [min(read for read, _ in ends)]
