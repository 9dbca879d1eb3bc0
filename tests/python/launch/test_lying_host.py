"""A host that lies, or is broken: whatever its agent sends ends the job with a sentence. What could
break: a traceback, another host's rank that is taken for dead, and what a terminal obeys."""

from __future__ import annotations

import sys

import pytest

import ciranda
from ciranda.launch.remote import frames

HELLO = frames.json_frame(frames.HELLO, {"ssh": "192.0.2.1 1 192.0.2.2 22"})
READY = frames.json_frame(frames.READY, {"rendezvous": "", "servers": {}})
EVIL = "\x1b]0;evil\x07\x1b[2Jword"

# Speaks like an agent up to the start, says what it is to say, and waits for the end.
LIAR = """
import os, sys
os.write(1, {greeting!r})
os.write(1, {before!r})
if {ends}:
    sys.exit(2)
said = b""
while b"rendezvous" not in said or b'"servers": []' not in said:  # GO
    chunk = os.read(0, 65536)
    if not chunk:
        sys.exit(3)
    said = (said + chunk)[-4096:]
os.write(1, {after!r})
while os.read(0, 65536):
    pass
"""


@pytest.fixture
def lie(launcher):
    """Runs one rank on such a host; what it says before and after GO."""

    def lie(before, after=b"", version=ciranda.__version__, ends=False):
        greeting = f"ciranda {version}\n".encode()
        text = LIAR.format(greeting=greeting, before=before, after=after, ends=ends)
        (launcher.folder / "liar.py").write_text(text)
        (launcher.folder / "ssh").write_text(f"#!/bin/sh\nexec {sys.executable} liar.py\n")
        (launcher.folder / "ssh").chmod(0o755)
        launcher.environment["PATH"] = f"{launcher.folder}:{launcher.environment['PATH']}"
        result = launcher.run("-H", "node7:1", "true")
        assert "Traceback" not in result.stderr, result.stderr
        assert "\x1b" not in result.stderr
        assert "\x07" not in result.stderr
        return result

    return lie


def news(line):
    return frames.frame(frames.NEWS, line)


@pytest.mark.parametrize(
    "before",
    [
        HELLO + HELLO,
        READY,
        frames.frame(frames.HELLO, b"[" * 100_000),
        HELLO + frames.json_frame(frames.READY, {"rendezvous": 1}),
        HELLO + frames.json_frame(frames.READY, {"rendezvous": "", "servers": [1]}),
        HELLO + frames.json_frame(frames.READY, {"rendezvous": "", "servers": {"x": "y"}}),
        HELLO + frames.json_frame(frames.READY, {"rendezvous": "192.0.2.9:1", "servers": {}}),
        HELLO + news(b"start 0 1"),
        HELLO + frames.rank_frame(frames.OUTPUT[0], 0, b"too soon"),
    ],
)
def test_what_no_agent_says_before_the_start_is_refused(lie, before):
    result = lie(before)
    assert result.returncode == 2
    assert result.stderr.startswith("ciranda run: node7: its agent sent ")


@pytest.mark.parametrize(
    "after",
    [
        news(b""),
        news(b"\xff"),
        news(b"exit 0 0"),
        news(b"exit 0 0 0"),
        news(b"start 1 1"),
        news(b"start 0 1") + news(b"start 0 1"),
        news(b"start 0 1") + news(b"exit 0 999 0"),
        news(b"start 0 " + b"9" * 5000),
        HELLO,
    ],
)
def test_what_no_agent_says_of_ranks_loses_the_host(lie, after):
    result = lie(HELLO + READY, after)
    assert result.returncode == 1
    assert "the host node7 was lost" in result.stderr
    assert ": its agent sent " in result.stderr


def test_no_terminal_obeys_another_host(lie):
    problem = frames.frame(frames.PROBLEM, EVIL.encode())
    assert lie(HELLO + problem, ends=True).stderr == "ciranda run: node7: ]0;evil[2Jword\n"
    assert "evil" in lie(b"", version="\x1b]0;evil\x07").stderr
    report = frames.json_frame(frames.REPORT, {})
    report = frames.rank_frame(frames.REPORT, 0, b'{"message": "' + rb"\u001b]0;evil\u0007" + b'"}')
    result = lie(HELLO + READY, news(b"start 0 1") + report + news(b"exit 0 4 0"))
    assert "exit code 4" in result.stderr
