"""Many ranks on one console: lines must not mix, and nothing may be lost."""

from __future__ import annotations

import random
import re
import sys
import threading
import time

from terminal import Screen, run_in_terminal

from ciranda.launch.run.console import LineSplitter, OutputStream, Piece, PlainSink, TerminalSink

SEED = 0xC1A4
BAR = "for i in range(0, 101, 10):\n    sys.stderr.write(f'\\r{i:3d}%|{\"#\" * (i // 10)}|')\n"


def streams_into(sink, count=2):
    return [OutputStream(i + 1, b"[%d] " % i, sink) for i in range(count)]


def test_any_cut_of_the_bytes_gives_the_same_pieces():
    print(f"seed {SEED:#x}")
    source = random.Random(SEED)
    text = "one\ntwo\r\nthree\r 50%\r100%\n\n\r\rünï — €\nend".encode()
    whole = LineSplitter()
    expected = whole.feed(text) + whole.finish()
    for _ in range(300):
        splitter, pieces, rest = LineSplitter(), [], text
        while rest:
            cut = source.randint(1, 6)
            pieces += splitter.feed(rest[:cut])
            rest = rest[cut:]
        assert pieces + splitter.finish() == expected
    assert Piece(b"two", b"\n") in expected and Piece(b" 50%", b"\r") in expected


def test_half_a_character_is_not_given_away():
    splitter = LineSplitter()
    euro = "€".encode()
    assert splitter.feed(b"5 " + euro[:2]) == []
    assert splitter.flush() == [Piece(b"5 ", b"")]
    assert splitter.feed(euro[2:] + b"\n") == [Piece(euro, b"\n")]


def test_a_line_without_end_is_bounded():
    splitter = LineSplitter()
    pieces = [piece for _ in range(100) for piece in splitter.feed(b"x" * 4096)]
    assert sum(len(piece.text) for piece in pieces) > 300_000


def test_a_prompt_appears_after_a_short_quiet_time():
    screen = Screen()
    (stream,) = streams_into(PlainSink(screen.write), 1)
    stream.feed(b"name? ", now=0.0)
    stream.tick(0.05)
    assert screen.written == b""
    stream.tick(0.11)
    assert screen.written == b"[0] name? "
    stream.feed(b"thanks\n", now=1.0)
    assert screen.written == b"[0] name? thanks\n"


def test_another_rank_ends_an_open_line_first():
    screen = Screen()
    first, second = streams_into(PlainSink(screen.write))
    first.feed(b"half", now=0.0)
    first.tick(1.0)
    second.feed(b"whole\n", now=1.0)
    first.feed(b" and half\n", now=1.1)
    assert screen.written == b"[0] half\n[1] whole\n[0]  and half\n"


def test_a_file_keeps_every_state_of_a_bar_on_its_own():
    screen = Screen()
    first, second = streams_into(PlainSink(screen.write))
    first.feed(b"\r  0%", now=0.0)
    first.feed(b"\r 50%", now=0.1)
    second.feed(b"between\n", now=0.2)
    first.tick(0.3)
    first.feed(b"\r100%", now=0.4)
    first.tick(0.6)
    first.feed(b"\n", now=0.7)
    assert screen.written == b"[0]   0%\r\n[1] between\n[0]  50%\r[0] 100%\n"


def test_a_terminal_shows_one_bar_for_each_rank_below_the_lines():
    screen = Screen()
    first, second = streams_into(TerminalSink(screen.write, lambda: 40))
    for step in range(0, 100, 10):
        now = step / 10
        first.feed(b"\r%d%%" % step, now)
        second.feed(b"\r%d of 100" % step, now)
        first.tick(now + 0.5)
        second.tick(now + 0.5)
    assert screen.lines() == ["[0] 90%", "[1] 90 of 100"]
    second.feed(b"\rdone\nmore\n", 20.0)
    assert screen.lines() == ["[1] done", "[1] more", "[0] 90%"]
    first.feed(b"\r" + b"#" * 100, 21.0)
    first.tick(22.0)
    assert screen.lines() == ["[1] done", "[1] more", "[0] " + "#" * 35]
    first.feed(b"\r       \r", 23.0)
    first.finish()
    assert screen.lines()[:2] == ["[1] done", "[1] more"]
    assert "#" not in "".join(screen.lines())


def test_a_rank_cannot_move_the_terminals_cursor():
    screen = Screen()
    (stream,) = streams_into(TerminalSink(screen.write, lambda: 40), 1)
    stream.feed(b"\x1b[2J\x1b[5Aup \x1b[31mred\x1b[0m\n", 0.0)
    assert screen.written == b"[0] up \x1b[31mred\x1b[0m\n"


def test_a_traceback_stays_whole_while_others_talk():
    screen = Screen()
    first, second = streams_into(PlainSink(screen.write))
    first.feed(b"before\nTraceback (most recent call last):\n", 0.0)
    second.feed(b"noise 1\n", 0.1)
    first.tick(0.5)
    first.feed(b'  File "x", line 1\n    boom()\n', 0.6)
    second.feed(b"noise 2\n", 0.7)
    first.feed(b"ValueError: boom\n", 0.8)
    second.feed(b"noise 3\n", 0.85)
    first.tick(0.95)
    text = screen.written.decode()
    assert text.startswith("[0] before\n[1] noise 1\n[1] noise 2\n[1] noise 3\n[0] Traceback")
    assert text.endswith('[0]   File "x", line 1\n[0]     boom()\n[0] ValueError: boom\n')


def test_interrupt_tracebacks_are_hidden_after_ctrl_c_and_others_are_not():
    screen = Screen()
    (stream,) = streams_into(PlainSink(screen.write), 1)
    stream.hide_interrupts = True
    stream.feed(b"Traceback (most recent call last):\n  x\nKeyboardInterrupt\n", 0.0)
    stream.tick(1.0)
    assert screen.written == b""
    stream.feed(b"Traceback (most recent call last):\n  x\nValueError: y\n", 2.0)
    stream.finish()
    assert b"ValueError: y" in screen.written


def test_tracebacks_of_many_ranks_do_not_mix(launcher):
    script = launcher.script(
        "def deep(n):\n"
        "    if n: deep(n - 1)\n"
        "    else: raise ValueError(f'boom {rank}\\nwith a second' + ' line')\n"
        "for i in range(30): print('line', i)\n"
        "deep(3)\n"
    )
    result = launcher.run("-np", "4", script)
    lines = [line for line in result.stderr.splitlines() if line.startswith("[")]
    ranks = [line[1] for line in lines]
    runs = [rank for index, rank in enumerate(ranks) if index == 0 or ranks[index - 1] != rank]
    assert sorted(runs) == ["0", "1", "2", "3"], result.stderr
    assert sum("with a second line" in line for line in lines) == 4
    assert len(result.stdout.splitlines()) == 4 * 30


def test_nothing_is_lost_of_a_large_output(launcher):
    count = 50_000
    script = launcher.script(f"for i in range({count}): print(rank, i)", "lines.py")
    result = launcher.run("-np", "2", "-x", "PYTHONUNBUFFERED=", script)
    lines = result.stdout.splitlines()
    for rank in ("0", "1"):
        # A rank that is held up in the middle of a line has it shown in two parts.
        mine = [line.removeprefix(f"[{rank}] ") for line in lines if line.startswith(f"[{rank}]")]
        assert "".join(mine) == "".join(f"{rank} {i}" for i in range(count))


def test_output_of_a_rank_that_is_killed_is_kept(launcher):
    script = launcher.script("print('last words')\nos.kill(os.getpid(), 9)")
    result = launcher.run("-np", "1", script)
    assert result.stdout == "[0] last words\n"


def test_bars_are_whole_when_the_output_is_a_pipe(launcher):
    result = launcher.run("-np", "2", launcher.script(BAR + "    time.sleep(0.01)\nprint()"))
    states = [text for text in re.split(r"[\r\n]+", result.stderr) if text]
    for state in states:
        assert re.fullmatch(r"\[[01]\] +(\d+)%\|#*\|", state), state
    assert {state[:3] for state in states if "100%" in state} == {"[0]", "[1]"}


def test_only_the_ranks_asked_for_are_shown_and_all_are_logged(launcher):
    arguments = ("--show-ranks", "0,2-3", "--log-dir", "logs")
    result = launcher.run("-np", "5", *arguments, "sh", "-c", "echo rank $RANK")
    expected = [f"[{rank}] rank {rank}" for rank in (0, 2, 3)]
    assert sorted(result.stdout.splitlines()) == expected
    logs = sorted((launcher.folder / "logs").iterdir())
    assert [path.read_text() for path in logs] == [f"rank {rank}\n" for rank in range(5)]


def test_stdout_and_stderr_stay_apart(launcher):
    result = launcher.run("-np", "1", "sh", "-c", "echo out; echo err >&2")
    assert (result.stdout, result.stderr) == ("[0] out\n", "[0] err\n")


def test_prefixes_are_aligned(launcher):
    result = launcher.run("-np", "11", "echo", "x")
    assert "[ 3] x" in result.stdout.splitlines() and "[10] x" in result.stdout.splitlines()


def in_terminal(launcher, *arguments, environment=None):
    """Runs the launcher in a terminal; returns everything it showed, and its code."""
    command = [sys.executable, "-m", "ciranda", "run", *arguments]
    variables = {**launcher.environment, **(environment or {})}
    return run_in_terminal(command, launcher.folder, variables)


def test_a_terminal_gets_colours_unless_told_not_to(launcher):
    coloured, _ = in_terminal(launcher, "-np", "2", "echo", "x")
    assert "\x1b[36m[0]\x1b[0m x\n" in coloured and "\x1b[33m[1]\x1b[0m x\n" in coloured
    for options, environment in ((["--no-color"], {}), ([], {"NO_COLOR": "1"})):
        plain, _ = in_terminal(launcher, "-np", "1", *options, "echo", "x", environment=environment)
        assert "[0] x\n" in plain and "\x1b[3" not in plain


def test_pipes_get_no_colours(launcher):
    assert launcher.run("-np", "1", "echo", "x").stdout == "[0] x\n"


def test_a_bar_in_a_terminal_is_redrawn_in_place(launcher):
    script = launcher.script(BAR + "    time.sleep(0.03)\nsys.stderr.write('\\n')\nprint('end')")
    shown, code = in_terminal(launcher, "-np", "2", "--no-color", script)
    screen = Screen(width=200)
    screen.write(shown.encode())
    lines = [line for line in screen.lines() if line]
    assert code == 0
    assert sorted(lines) == sorted(
        [f"[{rank}] {text}" for rank in (0, 1) for text in ("100%|##########|", "end")]
    )


def test_a_reader_that_leaves_does_not_end_the_job(launcher):
    script = launcher.script(
        "for i in range(200): print('x' * 1000)\nopen('finished', 'w').close()"
    )
    process = launcher.start("-np", "1", script)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    reader = threading.Thread(target=process.stderr.read)
    reader.start()
    assert process.wait(timeout=20) == 0
    reader.join()
    process.stderr.close()
    assert (launcher.folder / "finished").exists()


def test_a_full_log_disk_does_not_end_the_job(launcher):
    logs = launcher.folder / "logs"
    logs.mkdir()
    (logs / "rank-0.log").symlink_to("/dev/full")
    result = launcher.run("-np", "1", "--log-dir", "logs", "echo", "shown")
    assert (result.returncode, result.stdout) == (0, "[0] shown\n")
    assert "the log of rank 0 ends here: No space left on device" in result.stderr


def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_launcher(launcher):
    started = time.monotonic()
    result = launcher.run("-np", "2", "sh", "-c", "sleep 60 & echo started")
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == ["[0] started", "[1] started"]
    assert time.monotonic() - started < 5
