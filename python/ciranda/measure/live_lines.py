"""Lines that a terminal shows below those that stay, drawn again and again."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from typing import TextIO


class LiveLines:
    """Writes lines that stay, and on a terminal draws others below them.

    Elsewhere nothing is drawn. A stream whose reader has left is no error.
    """

    def __init__(self, stream: TextIO, every_s: float) -> None:
        self._stream = stream
        self._every_s = every_s
        self._drawn = 0
        self._drawn_at = float("-inf")
        self.are_shown = stream.isatty()

    def say(self, text: str) -> None:
        """Writes a line that stays."""
        self._write(f"{self._erasing()}{text}\n")

    def is_due(self) -> bool:
        """Returns whether draw() would draw: it does so every `every_s` seconds at most."""
        return self.are_shown and time.monotonic() - self._drawn_at >= self._every_s

    def draw(self, lines: Sequence[str]) -> None:
        """Draws the lines in place of those drawn before, each cut at the terminal's width."""
        if self.is_due():
            width = shutil.get_terminal_size().columns - 1
            erasing = self._erasing()
            self._drawn, self._drawn_at = len(lines), time.monotonic()
            self._write(erasing + "\n".join(line[:width] for line in lines))

    def erase(self) -> None:
        self._write(self._erasing())

    def _erasing(self) -> str:
        """Returns what erases the drawn lines. The cursor is at the end of the last of them."""
        drawn, self._drawn = self._drawn, 0
        up = f"\x1b[{drawn - 1}A" if drawn > 1 else ""
        return f"\r{up}\x1b[J" if drawn else ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()
