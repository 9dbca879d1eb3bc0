"""Shows which run is going on: on a terminal one line at the bottom, elsewhere nothing."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping
from typing import Any, TextIO

from ciranda.compare.setting import Setting

_DRAW_EVERY_S = 0.2


class LiveLine:
    """One line that is drawn again and again, below lines that stay."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._drawn_at = float("-inf")
        self._is_drawn = False

    def say(self, text: str) -> None:
        """Writes a line that stays."""
        self.erase()
        self._write(f"{text}\n")

    def show(self, text: str) -> None:
        """Draws the live line on a terminal, at most five times a second."""
        now = time.monotonic()
        if self._is_terminal and now - self._drawn_at >= _DRAW_EVERY_S:
            self._drawn_at, self._is_drawn = now, True
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r{text[:width]}\x1b[K")

    def erase(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a reader that has left must not end the comparison
            self._stream.write(text)
            self._stream.flush()


def place_text(setting: Setting, told: Mapping[str, Any] | None) -> str:
    """Formats the last message of rank 0 (protocol.say): `epoch 1 of 2, step 30 of 938`."""
    if told is None:
        return "starting"
    if "step" in told:
        epoch = f"epoch {told['epoch']} of {setting.epochs}"
        return f"{epoch}, step {told['step']} of {told['steps']}"
    if told["epoch"] < setting.epochs:
        return f"epoch {told['epoch'] + 1} of {setting.epochs}"
    return "trained"
