"""A block that blames a victim sends the reader to the wrong rank's log."""

from __future__ import annotations

import json
import time

import pytest

from ciranda.launch.run.ending import Reason
from ciranda.launch.run.failure import (
    ErrorReport,
    Evidence,
    LostHost,
    Pending,
    RankEnd,
    clean_tail,
    judge,
    parse_error_file,
)

# Writes an error file as the runtime's excepthook does, then fails as told.
FAIL = """
import json
def fail(exception, message, victim_of=None, during=None, pending=(), code=1):
    ours = {"rank": rank, "pid": os.getpid(), "exception": exception, "victim_of": victim_of,
            "pending": list(pending), "in": during}
    extra = {"py_callstack": "Traceback: from the file\\n" + message, "timestamp": "1"}
    content = {"message": {"message": f"{exception}: {message}", "extraInfo": extra},
               "ciranda": ours}
    with open(os.environ["CIRANDA_ERROR_FILE"], "w") as file:
        json.dump(content, file)
    sys.exit(code)
def lost(culprit, name):
    waited = {"op": "allreduce", "name": name, "missing_ranks": [culprit]}
    fail("RankLostError", f"rank {culprit} was lost", culprit, f"allreduce '{name}'", [waited])
"""


def block_of(result):
    lines = result.stderr.splitlines()
    (start,) = [index for index, line in enumerate(lines) if line.startswith("╭")]
    assert lines[-1].startswith("╰")
    return "\n".join(lines[start:])


def field(block, label):
    (line,) = [line for line in block.splitlines() if line[2:].startswith(label)]
    return line[2 + len(label) :].strip()


def test_the_culprit_is_not_the_victim_that_died_first(launcher):
    script = launcher.script(
        FAIL + "if rank == 0: lost(1, 'grad.w')\n"
        "time.sleep(0.7)\n"
        "print('about to fail')\n"
        "if rank == 1: fail('ValueError', 'boom', during=\"broadcast 'weights'\", code=7)\n"
        "time.sleep(60)\n"
    )
    result = launcher.run("-np", "3", "-x", "TOKEN=hunter2", script, "--lr", "1 2")
    block = block_of(result)
    assert result.returncode == 7
    assert field(block, "culprit").startswith("rank 1 on ")
    assert field(block, "cause") == "ValueError: boom (exit code 7)"
    assert field(block, "in ") == "broadcast 'weights'"
    assert field(block, "victims") == "rank 0: failed only because rank 1 was lost"
    assert field(block, "ended") == "rank 2: by the launcher"
    assert "about to fail" in block and "Traceback: from the file" in block
    assert field(block, "log").endswith("/rank-1.log")
    again = field(block, "run again")
    assert again == f"ciranda run -np 3 -x TOKEN=... {script} --lr '1 2'"
    assert "hunter2" not in result.stderr


def test_ranks_that_raise_alike_are_all_named(launcher):
    script = launcher.script(
        FAIL + "if rank == 2: lost(0, 'grad.w')\n"
        "fail('MismatchError', \"allreduce 'x': rank 1 has another shape\")\n"
    )
    block = block_of(launcher.run("-np", "3", script))
    assert field(block, "culprit").startswith("ranks 0, 1, which raised alike; shown is rank ")
    assert field(block, "cause") == (
        "MismatchError: allreduce 'x': rank 1 has another shape (exit code 1)"
    )
    assert "also failed" not in block
    assert field(block, "victims").startswith("rank 2: ")


def test_another_sentence_is_another_failure():
    ends = [RankEnd(rank, 10 + rank, 1) for rank in range(3)]
    reports = {0: ErrorReport("a"), 1: ErrorReport("b"), 2: ErrorReport("a", victim_of=0)}
    verdict = judge(Evidence(3, ends, reports), Reason.FAILED)
    assert verdict.culprit == 0
    assert verdict.alike == ()
    assert verdict.also_failed == ("rank 1: b (exit code 1)",)


def test_a_killed_rank_is_named_with_what_its_victims_waited_for(launcher):
    script = launcher.script(
        FAIL + "print('step 17')\n"
        "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(0.3)\n"
        "lost(1, 'grad.' + 'ab'[rank // 2])\n"
    )
    result = launcher.run("-np", "3", script)
    block = block_of(result)
    assert result.returncode == 128 + 9
    assert field(block, "culprit").startswith("rank 1 on ")
    assert field(block, "cause") == "Killed, SIGKILL (9)"
    assert "memory runs out" in block
    assert field(block, "victims") == "ranks 0, 2: failed only because rank 1 was lost"
    assert "allreduce 'grad.a'  (missing: rank 1)" in block
    assert "allreduce 'grad.b'  (missing: rank 1)" in block
    assert field(block, "last lines") == "step 17"


def test_a_rank_that_left_early_is_the_culprit(launcher):
    script = launcher.script(FAIL + "if rank == 0: sys.exit(0)\ntime.sleep(0.2)\nlost(0, 'w')\n")
    result = launcher.run("-np", "2", script)
    block = block_of(result)
    assert result.returncode == 1
    assert field(block, "culprit").startswith("rank 0 on ")
    assert "left early with exit code 0" in field(block, "cause")
    assert "allreduce 'w'  (missing: rank 0)" in block


def test_a_rank_that_hangs_is_the_culprit_of_those_that_lost_it(launcher):
    script = launcher.script(FAIL + "if rank == 0: time.sleep(60)\nlost(0, 'w')\n")
    result = launcher.run("-np", "2", script)
    block = block_of(result)
    assert result.returncode == 1
    assert field(block, "culprit").startswith("rank 0 on ")
    assert "it stopped answering" in field(block, "cause")


def test_a_segmentation_fault_has_its_name(launcher):
    script = launcher.script(
        "import ctypes, resource\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "if rank == 1: ctypes.string_at(8)\n"
    )
    result = launcher.run("-np", "2", script)
    assert result.returncode == 128 + 11
    assert field(block_of(result), "cause") == "Segmentation fault, SIGSEGV (11)"


def test_an_exception_before_init_is_read_from_the_last_lines(launcher):
    script = launcher.script("if rank == 1: import no_such_module\n")
    result = launcher.run("-np", "2", script)
    cause = field(block_of(result), "cause")
    assert cause == "ModuleNotFoundError: No module named 'no_such_module' (exit code 1)"


@pytest.mark.timing
def test_a_failure_with_nobody_left_does_not_wait(launcher):
    started = time.monotonic()
    result = launcher.run("-np", "2", "sh", "-c", "exit $((3 + RANK))")
    assert result.returncode in (3, 4)
    assert "also failed" in block_of(result)
    assert time.monotonic() - started < 2.0


def test_a_rank_in_a_grandchild_of_a_shell_shows_the_signal_behind_its_code(launcher):
    result = launcher.run("-np", "1", "sh", "-c", "sh -c 'kill -9 $$'; exit $?")
    assert result.returncode == 137
    assert "137 is 128 + 9: a child of it died of Killed, SIGKILL (9)" in block_of(result)


def test_the_block_is_plain_where_the_terminal_is(launcher):
    result = launcher.run("-np", "1", "false", environment={"PYTHONIOENCODING": "ascii"})
    assert "+- ciranda: the job failed ---" in result.stderr
    assert result.stderr.isascii()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "null", '{"message": 7}', '{"ciranda": []}', "[" * 100_000, "\0"],
)
def test_a_broken_error_file_is_no_error_file(text):
    assert parse_error_file(text) is None


def test_torchelastics_own_error_files_are_read():
    content = {"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "T"}}}
    assert parse_error_file(json.dumps(content)) == ErrorReport("ValueError: x", "T")
    assert parse_error_file('{"message": "short"}') == ErrorReport("short")


def test_wrong_types_inside_an_error_file_are_left_out():
    content = {
        "message": {"message": "m", "extraInfo": 3},
        "ciranda": {
            "victim_of": "1",
            "pending": [None, {"missing_ranks": [True, 2, "3"]}],
            "in": 4,
        },
    }
    report = parse_error_file(json.dumps(content))
    assert report == ErrorReport(
        "m", pending=(Pending("collective", "", ()), Pending("collective", "", (2,)))
    )


def test_blame_follows_the_majority_of_victims_to_a_rank_that_is_none():
    ends = [RankEnd(rank, 10 + rank, 1) for rank in (2, 0, 3)] + [RankEnd(1, 11, 0)]
    reports = {
        2: ErrorReport("lost", victim_of=0),
        0: ErrorReport("lost", victim_of=1),
        3: ErrorReport("lost", victim_of=0),
    }
    verdict = judge(Evidence(4, ends, reports), Reason.FAILED)
    assert (verdict.culprit, verdict.victims, verdict.exit_code) == (1, (0, 2, 3), 1)


def test_ranks_that_the_launcher_ended_are_never_the_culprit():
    ends = [RankEnd(0, 1, -15, by_launcher=True), RankEnd(1, 2, 3)]
    verdict = judge(Evidence(2, ends), Reason.FAILED)
    assert (verdict.culprit, verdict.exit_code, verdict.ended) == (1, 3, (0,))


def test_the_tail_shows_bars_as_a_terminal_would():
    text = "\x1b[32mgreen\x1b[0m\r\n 0%\r 50%\r100%\nend\r\n\n\n"
    assert clean_tail(text) == ["green", "100%", "end"]
    assert clean_tail("\n".join(map(str, range(50))), 2) == ["48", "49"]


def lost(after):
    return [LostHost("node1", (2, 3), "its agent has sent nothing for 3 s", after)]


def test_a_lost_host_is_the_cause_although_ranks_noticed_it_first():
    ends = [RankEnd(0, 5, 1), RankEnd(1, 6, -15, by_launcher=True)]
    reports = {0: ErrorReport("rank 2 was lost", victim_of=2)}
    verdict = judge(Evidence(4, ends, reports, lost_hosts=lost(after=1)), Reason.FAILED)
    assert (verdict.culprit, verdict.exit_code) == (None, 1)
    assert verdict.cause == (
        "the host node1 was lost, and with it ranks 2, 3: its agent has sent nothing for 3 s"
    )
    assert (verdict.victims, verdict.ended) == ((0,), (1,))


def test_a_rank_that_failed_before_its_host_was_lost_stays_the_culprit():
    ends = [RankEnd(2, 5, 7), RankEnd(0, 5, -15, by_launcher=True)]
    verdict = judge(Evidence(4, ends, lost_hosts=lost(after=1)), Reason.FAILED)
    assert (verdict.culprit, verdict.exit_code) == (2, 7)


def test_a_rank_that_failed_after_a_host_was_lost_is_not_the_culprit():
    ends = [RankEnd(0, 5, 9)]
    verdict = judge(Evidence(4, ends, lost_hosts=lost(after=0)), Reason.FAILED)
    assert verdict.culprit is None and verdict.also_failed == ("rank 0: exit code 9",)
