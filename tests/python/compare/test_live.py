"""The line that shows a run: on a terminal, within its width, and gone when a line stays."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from terminal import Screen, run_in_terminal

from ciranda.compare.comparison import place_text
from ciranda.compare.setting import Setting
from ciranda.measure.live_lines import LiveLines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, width: int) -> list[str]:
    screen = Screen(width)
    screen.write(stream.getvalue().encode())
    return [line.rstrip() for line in screen.lines()]


def test_a_live_line_fits_and_goes_when_a_line_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    line = LiveLines(stream, every_s=60.0)
    line.draw(["x" * 50])
    assert shown(stream, 20) == ["x" * 19]
    line.draw(["too soon to be drawn"])
    assert shown(stream, 20) == ["x" * 19]
    line.say("done")
    assert shown(stream, 20) == ["done", ""]


def test_more_lines_are_drawn_over_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    lines = LiveLines(stream, every_s=0.0)
    lines.say("began")
    lines.draw(["a 1", "b 1", "c 1"])
    lines.draw(["a 2", "b 2"])
    assert shown(stream, 20) == ["began", "a 2", "b 2"]
    lines.say("a ended")
    lines.draw(["b 3"])
    lines.erase()
    assert shown(stream, 20) == ["began", "a ended", ""]


def test_elsewhere_nothing_is_live() -> None:
    stream = io.StringIO()
    line = LiveLines(stream, every_s=60.0)
    line.draw(["x"])
    line.erase()
    line.say("done")
    assert stream.getvalue() == "done\n"


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (None, "starting"),
        ({"rank": 0, "epoch": 1, "step": 3, "steps": 9}, "epoch 1 of 2, step 3 of 9"),
        ({"rank": 0, "epoch": 1}, "epoch 2 of 2"),
        ({"rank": 0, "epoch": 2}, "trained"),
    ],
)
def test_the_last_message_says_where_a_run_is(told: Any, text: str) -> None:
    assert place_text(Setting(epochs=2), told) == text


def test_a_terminal_shows_system_round_epoch_and_step(made_up: Path) -> None:
    study = made_up / "study.toml"
    study.write_text(study.read_text().replace("epochs = 2, epoch_s = 0.2", "epochs = 1"))
    command = [sys.executable, "-m", "ciranda", "compare", "--study", "study.toml", "--quick"]
    command += ["--systems", "one", "--ranks", "1", "--rounds", "1", "--epoch", "1.5"]
    seen, code = run_in_terminal(command, made_up, os.environ, is_warm=True)
    assert code == 0, seen
    assert "[1/1] one, small-mlp, 1 rank, round 1: starting, 0 s" in seen
    assert "[1/1] one, small-mlp, 1 rank, round 1: epoch 1 of 1, step 1 of " in seen
    assert "\r\x1b[J[1/1] one: small-mlp, ×1, batch 64, 1 rank: " in seen
    _, _, table = seen.partition("# A table\n")
    assert re.search(r"^ranks +epochs +system +images/s", table, re.MULTILINE), seen
    assert "| ranks" not in seen
    lines = table.partition("Machine:")[0].splitlines()
    assert max(map(len, lines)) <= 80, table
