"""A pseudo-terminal to run a command in, and a screen that shows what it wrote."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

import warm


class Screen:
    """What was written, and what a terminal would show for it."""

    def __init__(self, width: int = 40) -> None:
        self.written = b""
        self.width = width

    def write(self, text: bytes) -> None:
        self.written += text

    def lines(self) -> list[str]:
        rows, row, column = [""], 0, 0
        text = re.sub(r"\x1b\[[0-9;]*m", "", self.written.decode())
        for mark in re.findall(r"\x1b\[\d*[AJK]|[^\x1b]", text):
            if mark == "\n":
                row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
            elif mark == "\r":
                column = 0
            elif mark.endswith("A") and len(mark) > 1:
                row -= int(mark[2:-1])
            elif mark.endswith("J") and len(mark) > 1:
                rows[row] = rows[row][:column]
                del rows[row + 1 :]
            else:
                rows[row] = rows[row][:column].ljust(column) + mark + rows[row][column + 1 :]
                column += 1
                assert column < self.width or len(mark) > 1, "a live line would wrap"
        return rows


def run_in_terminal(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    columns: int = 80,
    *,
    is_warm: bool = False,
) -> tuple[str, int]:
    """Everything that the command showed on a terminal, and its exit code. `is_warm`: the command
    is of this Python and starts with torch imported, see warm.py."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, columns))
    process: subprocess.Popen[bytes] | warm.Process
    if is_warm:
        process = warm.Process(command[1:], environment, folder, streams=(slave, slave, slave))
    else:
        process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    os.close(slave)
    shown = b""
    while True:
        try:
            shown += os.read(master, 65536)
        except OSError:  # the last holder of the terminal has closed it
            break
    os.close(master)
    return shown.decode().replace("\r\n", "\n"), process.wait()
