"""The main job on a terminal: one bar, rank 0's, and a table that the bar leaves whole."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from idx_files import write_small_data_set
from terminal import Screen, run_in_terminal

TABLE = [
    r"mlp: 669,706 parameters; \d rank\(s\) with 1 thread\(s\) and a batch of 8 each",
    r"",
    r"\| epoch \|   loss \| accuracy \|  images/s \| compute \| communication \| waiting \|",
    r"\|------:\|-------:\|---------:\|----------:\|--------:\|--------------:\|--------:\|",
    r"\|     1 \| \d\.\d{4} \| +\d+\.\d\d % \| +[\d,]+ \|( +-?\d+\.\d % \|){3}",
    r"\|     2 \| \d\.\d{4} \| +\d+\.\d\d % \| +[\d,]+ \|( +-?\d+\.\d % \|){3}",
    r"",
    r"\d+\.\d s in all",
]


def show_on_terminal(launcher: list[str], example_file: Path, folder: Path) -> str:
    data = write_small_data_set(folder, train=2400, test=203)
    options = ["--data", str(data), "--epochs", "2", "--threads", "1", "--batch-size", "8"]
    command = [sys.executable, *launcher, str(example_file), *options]
    environment = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    environment |= {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    shown, code = run_in_terminal(command, folder, environment, 100, is_warm=True)
    assert code == 0, shown
    return shown


def assert_table_is_whole(shown: str, prefix: str) -> None:
    screen = Screen(width=100)
    screen.write(shown.encode())
    *lines, cursor = screen.lines()
    assert cursor == ""
    assert len(lines) == len(TABLE), lines
    for line, wanted in zip(lines, TABLE, strict=True):
        assert re.fullmatch(re.escape(prefix) + wanted + " *", line), lines


@pytest.mark.soak
def test_one_process_draws_a_bar_and_a_table(example_file: Path, tmp_path: Path) -> None:
    shown = show_on_terminal([], example_file, tmp_path)
    assert re.search(r"\repoch 1: +\d+%\|.*\d+/300 \[", shown)
    assert_table_is_whole(shown, "")


def test_below_the_launcher_only_rank_0_draws_a_bar(example_file: Path, tmp_path: Path) -> None:
    launcher = ["-m", "ciranda", "run", "-np", "2", "--no-color"]
    shown = show_on_terminal(launcher, example_file, tmp_path)
    assert re.search(r"\[0\] epoch 1: +\d+%\|.*\d+/150 \[", shown)
    assert "[1]" not in shown
    assert_table_is_whole(shown, "[0] ")
