"""The frames between the launcher and a host's agent, in a pipe each way. Pure.

A frame is its kind (1 byte), the length of its payload (4 bytes, little-endian), and the payload.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any, NamedTuple

PAYLOAD_BYTES_MAX = 64 * 1024 * 1024  # enough for a plan of 256 ranks with a large environment

# Both ways
BEAT = b"."  # the sender is alive
# To the agent
PLAN = b"P"  # JSON: what to run
KEY = b"K"  # the key of a job with several hosts
GO = b"G"  # JSON: where the hosts meet; start now
ORDER = b"O"  # a command for the supervisor
CALL = b"F"  # a chunk of the call file; an empty one is its end
START = b"S"  # of an elastic job: the number of a process, and its incarnation (4 bytes); start it
STOP = b"X"  # of an elastic job: the number of a process; kill it
FINISH = b"Z"  # of an elastic job: nothing is started from now on
# Both ways, of an elastic job
MEMBER = b"M"  # an incarnation, and a message between its process and the arbiter
# From the agent
HELLO = b"H"  # JSON: the agent's SSH_CONNECTION
READY = b"R"  # JSON: the endpoints on which it listens
NEWS = b"N"  # a line from the supervisor
OUTPUT = b"1", b"2"  # the rank's number (4 bytes), and output; without output: its end
REPORT = b"E"  # the rank's number, and its error file
OUTCOME = b"="  # the rank's number, and a chunk of its outcome file; an empty one is its end
LEAVING = b"L"  # of an elastic job: the host will be gone soon
PROBLEM = b"!"  # a sentence; the agent then ends

_HEADER = struct.Struct("<cI")
_NEWS_LINE = re.compile(rb"[a-z]+(?: -?[0-9]{1,9})*")
_NEWS_NUMBERS = {
    "start": 2,
    "exit": 3,
    "again": 2,
    "late": 3,
    "fail": 2,
    "left": 1,
    "done": 0,
}
_SIGNALS = 64
_RANK = struct.Struct("<i")
HEADER_BYTES = _HEADER.size


class Frame(NamedTuple):
    kind: bytes
    payload: bytes


class FrameError(Exception):
    """Raised for bytes that no peer of this version sends."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return _HEADER.pack(kind, len(payload)) + payload


def json_frame(kind: bytes, content: Any) -> bytes:
    return frame(kind, json.dumps(content).encode())


def rank_frame(kind: bytes, rank: int, content: bytes) -> bytes:
    return frame(kind, _RANK.pack(rank) + content)


def read_rank(payload: bytes) -> tuple[int, bytes]:
    if len(payload) < _RANK.size:
        raise FrameError("a rank's frame without a rank")
    return _RANK.unpack_from(payload)[0], payload[_RANK.size :]


def start_frame(number: int, incarnation: int) -> bytes:
    return rank_frame(START, number, _RANK.pack(incarnation))


def read_start(payload: bytes) -> tuple[int, int]:
    """Returns the number of a process, and its incarnation."""
    number, rest = read_rank(payload)
    return number, read_rank(rest)[0]


def read_json(payload: bytes) -> dict[str, Any]:
    try:
        content = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise FrameError("a frame that is not JSON") from error
    if not isinstance(content, dict):
        raise FrameError("a frame of another form")
    return content


def read_news(payload: bytes) -> tuple[str, list[int]]:
    """Returns the word and the numbers of a supervisor's line."""
    match = _NEWS_LINE.fullmatch(payload)
    word, *texts = payload.decode().split() if match else ("",)
    numbers = [int(text) for text in texts]
    if len(numbers) != _NEWS_NUMBERS.get(word):
        raise FrameError("an event that no supervisor sends")
    if word in ("exit", "again", "late") and not -_SIGNALS <= numbers[1] <= 255:
        raise FrameError("an impossible exit code")
    return word, numbers


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Frame]:
        """Returns the frames that `chunk` completes. Raises FrameError for one that is too long."""
        rest = self._rest + chunk
        frames = []
        at = 0
        while len(rest) - at >= HEADER_BYTES:
            kind, length = _HEADER.unpack_from(rest, at)
            if length > PAYLOAD_BYTES_MAX:
                raise FrameError(f"a frame of {length} bytes")
            end = at + HEADER_BYTES + length
            if end > len(rest):
                break
            frames.append(Frame(kind, rest[at + HEADER_BYTES : end]))
            at = end
        self._rest = rest[at:]
        return frames
