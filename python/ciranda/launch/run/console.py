"""Shows the ranks' output on one console, with prefixes, colours, whole bars and tracebacks.

bytes of a rank -> LineSplitter -> OutputStream (holds partial lines, tracebacks) -> Sink
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from ciranda.launch.plan.processes import is_rank, label_of

PARTIAL_QUIET_S = 0.1  # a line without an end is shown after this pause, as it may be a prompt
TRACEBACK_QUIET_S = 0.1  # after its last line, as more of the message or a cause may follow
TRACEBACK_STALL_S = 1.0  # inside a traceback, as the machine may be busy
_HELD_MAX_S = 3.0
_HELD_MAX_PIECES = 2000
_LINE_BYTES_MAX = 64 * 1024  # a longer line is shown in parts
_LIVE_LINES_MAX = 8  # progress bars drawn at once on a terminal
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_ERROR_COLOUR = 31

_TRACEBACK = re.compile(rb"[ |+]*(?:Exception Group )?Traceback \(most recent call last\):")
# All escape sequences except colours. A moved cursor would draw into the lines of other ranks.
_CURSOR_MOVES = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-ln-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-OQ-WYZ\\`-~])"
)
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Piece(NamedTuple):
    """Text up to an end: LF, CR (the line will be drawn again), or empty if not known yet."""

    text: bytes
    end: bytes


class LineSplitter:
    """Cuts a stream of bytes into pieces, and keeps a line that has no end yet."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def has_rest(self) -> bool:
        return bool(self._rest)

    def feed(self, chunk: bytes) -> list[Piece]:
        text = (self._rest + chunk).replace(b"\r\n", b"\n")
        # A CR as the very last byte may be the first half of CR LF.
        held = b"\r" if text.endswith(b"\r") else b""
        *lines, rest = text[: len(text) - len(held)].split(b"\n")
        pieces: list[Piece] = []
        for line in lines:
            *redrawn, last = line.split(b"\r")
            pieces += [Piece(part, b"\r") for part in redrawn]
            pieces.append(Piece(last, b"\n"))
        *redrawn, rest = rest.split(b"\r")
        pieces += [Piece(part, b"\r") for part in redrawn]
        self._rest = rest + held
        if len(self._rest) > _LINE_BYTES_MAX:
            pieces += self.flush()
        return pieces

    def flush(self) -> list[Piece]:
        """Returns the unfinished line, but keeps an incomplete UTF-8 character at its end."""
        text = self._rest
        if text.endswith(b"\r"):
            self._rest = b""
            return [Piece(text[:-1], b"\r")]
        keep = _cut_character_bytes(text)
        self._rest = text[len(text) - keep :]
        text = text[: len(text) - keep]
        return [Piece(text, b"")] if text else []

    def finish(self) -> list[Piece]:
        pieces = self.flush()
        if self._rest:
            pieces.append(Piece(self._rest, b""))
            self._rest = b""
        return pieces


def _cut_character_bytes(text: bytes) -> int:
    """Returns how many bytes at the end begin an incomplete UTF-8 character."""
    for back in range(1, min(4, len(text) + 1)):
        byte = text[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if length > back else 0
        if byte < 0x80:
            return 0
    return 0


class Sink(Protocol):
    """Writes the pieces of all streams. `source` is a stream's number, `prefix` precedes a line."""

    def write(self, source: int, prefix: bytes, pieces: Iterable[Piece]) -> None: ...

    def end_line(self, source: int, prefix: bytes) -> None:
        """Finishes the unfinished line of a stream that has ended."""


class PlainSink:
    """A file or a pipe. It keeps all text, and ends a line before it writes another stream's."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._open: int | None = None  # the stream whose line has not ended
        self._redraw = False  # the open line's last piece ended with CR
        self._cut_off: set[int] = set()  # streams with an open line that we had to end

    def write(self, source: int, prefix: bytes, pieces: Iterable[Piece]) -> None:
        out: list[bytes] = []
        for text, end in pieces:
            mine = self._open == source
            if not text and not mine and (end == b"\r" or source in self._cut_off):
                self._cut_off.discard(source)  # an empty redraw, or a line that has ended already
                continue
            if self._open is not None and not mine:
                out.append(b"\n")
                self._cut_off.add(self._open)
            self._cut_off.discard(source)
            ends_bar = mine and self._redraw and not text
            if not ends_bar:
                out += [b"" if mine and not self._redraw else prefix, text]
            if end and not (ends_bar and end == b"\r"):
                out.append(end)
            self._open = None if end == b"\n" else source
            self._redraw = end == b"\r"
        if out:
            self._write(b"".join(out))

    def end_line(self, source: int, prefix: bytes) -> None:
        if self._open == source:
            self._write(b"\n")
            self._open = None


class TerminalSink:
    """A terminal. Finished lines scroll; unfinished lines (bars, prompts) stay at the bottom."""

    def __init__(self, write: Callable[[bytes], None], width: Callable[[], int]) -> None:
        self._write = write
        self._width = width
        self._live: dict[int, _LiveLine] = {}
        self._drawn = 0  # live lines on the screen; the cursor is at the end of the last one

    def write(self, source: int, prefix: bytes, pieces: Iterable[Piece]) -> None:
        done: list[bytes] = []
        for raw, end in pieces:
            text = _CURSOR_MOVES.sub(b"", raw)
            line = self._live.get(source) or _LiveLine(prefix)
            line.add(text)
            if end == b"\n":
                done.append(prefix + line.text + b"\n")
                self._live.pop(source, None)
            elif end == b"\r":
                line.at_start = True
                self._live[source] = line
            else:  # the newest partial line goes last, so that a prompt has the cursor behind it
                self._live.pop(source, None)
                self._live[source] = line
        self._redraw(done)

    def end_line(self, source: int, prefix: bytes) -> None:
        line = self._live.pop(source, None)
        if line is not None:
            self._redraw([prefix + line.text + b"\n"] if line.text.strip() else [])

    def _redraw(self, done: list[bytes]) -> None:
        erase = b""
        if self._drawn:
            up = b"\x1b[%dA" % (self._drawn - 1) if self._drawn > 1 else b""
            erase = b"\r" + up + b"\x1b[J"
        width = self._width() - 1
        shown = [line for line in self._live.values() if line.text.strip()][-_LIVE_LINES_MAX:]
        live = b"\n".join(_cut(line.prefix + line.text, width) for line in shown)
        self._drawn = len(shown)
        text = erase + b"".join(done) + live
        if text:
            self._write(text)


class _LiveLine:
    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.text = b""
        self.at_start = False  # CR was seen, so the next text replaces this one

    def add(self, text: bytes) -> None:
        if self.at_start and text:
            self.text = b""
            self.at_start = False
        self.text += text


def _cut(line: bytes, width: int) -> bytes:
    """Cuts the line to `width` columns, as a wrapped line could not be erased."""
    text = line.decode("utf-8", "replace")
    if len(text) <= width and text.isascii():
        return line
    columns = 0
    position = 0
    while position < len(text):
        escape = _ESCAPES.match(text, position)
        if escape:
            position = escape.end()
            continue
        columns += _columns(text[position])
        if columns > width:
            return text[:position].encode("utf-8", "replace") + b"\x1b[0m"
        position += 1
    return line


def _columns(character: str) -> int:
    if character.isascii():
        return 1
    import unicodedata  # only for text beyond ASCII

    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class OutputStream:
    """The stdout or stderr of one process on its way to the console."""

    def __init__(self, source: int, label: bytes, sink: Sink, timestamps: bool = False) -> None:
        self._source = source
        self._label = label
        self._timestamps = timestamps
        self._sink = sink
        self._splitter = LineSplitter()
        self._held: list[Piece] = []  # a traceback, shown in one go
        self._held_since = 0.0
        self._last_fed = 0.0
        self.hide_interrupts = False

    @property
    def _prefix(self) -> bytes:
        return time.strftime("%F %T ").encode() + self._label if self._timestamps else self._label

    def feed(self, chunk: bytes, now: float) -> None:
        pieces = self._splitter.feed(chunk)
        self._last_fed = now
        if not self._held:
            start = _traceback_start(pieces)
            self._sink.write(self._source, self._prefix, pieces[:start])
            pieces = pieces[start:]
            self._held_since = now
        self._held += pieces
        if len(self._held) > _HELD_MAX_PIECES:
            self._release()

    def deadline(self) -> float | None:
        """Returns when `tick` has something to show; None: never."""
        if self._held:
            stalled = self._splitter.has_rest or _inside_traceback(self._held)
            quiet_s = TRACEBACK_STALL_S if stalled else TRACEBACK_QUIET_S
            return min(self._last_fed + quiet_s, self._held_since + _HELD_MAX_S)
        return self._last_fed + PARTIAL_QUIET_S if self._splitter.has_rest else None

    def tick(self, now: float) -> None:
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return
        self._release()
        # An incomplete character that has had no more bytes until now never gets them.
        pieces = self._splitter.flush() or self._splitter.finish()
        self._sink.write(self._source, self._prefix, pieces)
        self._last_fed = now

    def finish(self) -> None:
        self._held += self._splitter.finish()
        self._release()
        self._sink.end_line(self._source, self._prefix)

    def _release(self) -> None:
        held, self._held = self._held, []
        if held and not (self.hide_interrupts and _ends_with_interrupt(held)):
            self._sink.write(self._source, self._prefix, held)


def _traceback_start(pieces: list[Piece]) -> int:
    for index, piece in enumerate(pieces):
        if b"Traceback" in piece.text and _TRACEBACK.match(piece.text):
            return index
    return len(pieces)


def _inside_traceback(pieces: list[Piece]) -> bool:
    """Returns true if the exception is still to come: the last line is indented or empty."""
    text = pieces[-1].text
    return text[:1] in (b"", b" ", b"\t", b"|", b"+") or bool(_TRACEBACK.match(text))


def _ends_with_interrupt(pieces: list[Piece]) -> bool:
    lines = [piece.text for piece in pieces if piece.text.strip()]
    return bool(_TRACEBACK.match(lines[0])) and lines[-1].startswith(b"KeyboardInterrupt")


class Console:
    """Shows the streams of all processes and the launcher's messages on stdout and stderr."""

    def __init__(
        self,
        *,
        size: int,
        ranks: Iterable[int],
        shown: frozenset[int] | None,
        stdout: int,
        stderr: int,
        colour: bool,
        timestamps: bool = False,
    ) -> None:
        """`ranks` are the numbers of all processes to expect, of a job of `size` ranks. `shown`
        None: all ranks are shown."""
        self._writers = {fd: _Writer(fd) for fd in (stdout, stderr)}
        self._sinks, self._terminal = _make_sinks(*self._writers.values())
        self._colour = colour
        self._streams: dict[tuple[int, int], OutputStream] = {}
        width = len(str(size - 1))
        for index, rank in enumerate(ranks):
            if shown is not None and is_rank(rank) and rank not in shown:
                continue
            label = f"[{label_of(rank):>{width}}]"
            for fd, sink in zip((1, 2), self._sinks, strict=True):
                paint = colour and self._terminal[fd - 1]
                prefix = _painted(label, _COLOURS[rank % len(_COLOURS)]) if paint else label
                stream = OutputStream(2 * index + fd, prefix.encode() + b" ", sink, timestamps)
                self._streams[rank, fd] = stream

    def feed(self, rank: int, fd: int, chunk: bytes, now: float) -> None:
        stream = self._streams.get((rank, fd))
        if stream is not None:
            stream.feed(chunk, now)

    def finish(self, rank: int, fd: int) -> None:
        stream = self._streams.pop((rank, fd), None)
        if stream is not None:
            stream.finish()

    def settle(self, rank: int) -> None:
        """Shows what is held back, before another process of this number prints."""
        for fd in (1, 2):
            stream = self._streams.get((rank, fd))
            if stream is not None:
                stream.finish()

    def hide_interrupts(self) -> None:
        """Hides KeyboardInterrupt tracebacks from now on. After Ctrl-C they are only noise."""
        for stream in self._streams.values():
            stream.hide_interrupts = True

    def deadline(self) -> float | None:
        deadlines = [stream.deadline() for stream in self._streams.values()]
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, now: float) -> None:
        for stream in self._streams.values():
            stream.tick(now)

    def lost(self) -> str:
        """Returns why output was lost that the user thinks to have; empty: none was lost."""
        return next((each.problem for each in self._writers.values() if each.problem), "")

    def say(self, text: str, *, error: bool = False) -> None:
        """Writes a message of the launcher to stderr."""
        lines = text.splitlines()
        if error and self._colour and self._terminal[1]:
            lines = [_painted(line, _ERROR_COLOUR) if line[:1] in "╭╰+" else line for line in lines]
        pieces = [Piece(line.encode("utf-8", "replace"), b"\n") for line in lines]
        self._sinks[1].write(0, b"", pieces)


def _painted(text: str, colour: int) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m"


def _make_sinks(stdout: _Writer, stderr: _Writer) -> tuple[tuple[Sink, Sink], tuple[bool, bool]]:
    """Returns the sinks of stdout and stderr, and for each whether it is a terminal.

    There is one sink if both lead to the same terminal, file or pipe.
    """
    terminal = (os.isatty(stdout.fd), os.isatty(stderr.fd))
    same = os.path.sameopenfile(stdout.fd, stderr.fd)
    out = _make_sink(stdout, terminal[0])
    return (out, out if same else _make_sink(stderr, terminal[1])), terminal


def _make_sink(writer: _Writer, terminal: bool) -> Sink:
    if not terminal:
        return PlainSink(writer)
    return TerminalSink(writer, lambda: terminal_width(writer.fd))


def terminal_width(fd: int) -> int:
    try:
        return os.get_terminal_size(fd).columns or 80
    except OSError:
        return 80


class _Writer:
    """Writes all bytes. It drops them after an error, such as a reader that left (`| head`)."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.problem = ""  # why the file takes no more; empty for a reader that left
        self._broken = False

    def __call__(self, text: bytes) -> None:
        view = memoryview(text)
        while view and not self._broken:
            try:
                view = view[os.write(self.fd, view) :]
            except BlockingIOError:  # someone made our terminal non-blocking
                self._wait()
            except OSError as error:
                self._broken = True
                if error.errno not in (errno.EPIPE, errno.EIO):
                    self.problem = error.strerror or "?"

    def _wait(self) -> None:
        import select  # rarely needed

        with contextlib.suppress(OSError):
            select.select([], [self.fd], [], 1.0)
