"""The launcher of elastic jobs: breaks when a lost rank ends the job, or comes back as another one,
when a process is left behind, or when nobody says what happened.

The ranks have no torch: fake_member.py talks to the arbiter as a real rank does.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from ciranda._member import EndReason, NewsKind
from ciranda.launch.cli.run import run_command
from ciranda.launch.plan.elastic import ElasticLimits, ElasticOptions, choose_np, start_timeout_s
from ciranda.launch.plan.environment import without_identity
from ciranda.launch.run.elastic_lines import Changes, Departure

HERE = Path(__file__).resolve().parent
HEAD = "import fake_member as member\nme = member.INCARNATION\n"
DIES_FIRST = """
epoch = member.join()
print("rank", epoch.rank, "of", epoch.size)
if me == 2:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def script(launcher):
    shutil.copy(HERE / "fake_member.py", launcher.folder)
    return lambda text: launcher.script(HEAD + text)


@pytest.fixture
def run(launcher, script):
    return lambda *options, text: launcher.run("--no-color", *options, script(text))


def lines_of(result):
    """The launcher's lines, with every time as T."""
    lines = [each for each in result.stderr.splitlines() if each.startswith("ciranda: ")]
    return [re.sub(r"after [0-9.]+ s", "after T s", each[len("ciranda: ") :]) for each in lines]


def test_a_job_without_losses_says_nothing(run):
    result = run("-np", "3", "--min-np", "1", text="member.train(member.join(), until=1)")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_killed_rank_is_started_again_in_its_place(launcher, run):
    text = DIES_FIRST + "member.train(epoch, until=3, step=4812)"
    result = run("-np", "3", "--min-np", "1", "--log-dir", "logs", text=text)
    assert result.returncode == 0, result.stderr
    killed, back, summary = lines_of(result)
    assert killed == "rank 1 was killed by SIGKILL; 2 ranks go on after T s at step 4,812"
    assert re.fullmatch(r"back to 3 ranks after T s at step (0|4,812)", back)
    assert summary == "1 rank was lost and 1 joined: rank 1 (SIGKILL)"
    assert (launcher.folder / "logs" / "rank-1.log").read_text() == (
        "rank 1 of 3\n"
        "--- ciranda: process 4 of the job takes the place of process 2, which was killed by "
        "SIGKILL ---\n"
        "rank 1 of 3\n"
    )


def test_a_spare_takes_the_place_at_once(run):
    text = (
        "for each in (1, 2, 3) if me == 4 else ():\n    member.wait_for(f'ready-{each}')\n"
        + DIES_FIRST.replace("if me == 2:", "if me == 2:\n    member.wait_for('ready-4')")
        + "member.train(epoch, until=2)"
    )
    result = run("-np", "3", "--min-np", "3", "--spares", "1", text=text)
    assert result.returncode == 0, result.stderr
    assert lines_of(result)[0] == (
        "rank 1 was killed by SIGKILL; a spare takes its place; 3 ranks go on after T s at step 0"
    )
    assert "[3] rank 1 of 3\n" in result.stdout


def test_too_few_ranks_wait_for_a_new_one(run):
    text = DIES_FIRST + "member.train(epoch, until=2, step=7)"
    result = run("-np", "2", "--min-np", "2", text=text)
    assert result.returncode == 0, result.stderr
    waits, goes_on, _ = lines_of(result)
    assert waits == (
        "rank 1 was killed by SIGKILL; 1 rank waits up to 600 s for others, as --min-np is 2"
    )
    assert re.fullmatch(r"2 ranks go on after T s at step [07]", goes_on)


def test_spares_join_up_to_the_most_ranks(run):
    text = "epoch = member.join()\nmember.train(epoch, until=epoch.number + (epoch.size < 3))"
    result = run("-np", "2", "--max-np", "3", "--spares", "1", text=text)
    assert result.returncode == 0, result.stderr
    assert lines_of(result) in ([], ["3 ranks go on at step 0"])  # the spare may be ready first


def test_a_process_that_was_no_rank_yet_is_started_again(run):
    text = (
        "if me == 2: os.kill(os.getpid(), signal.SIGKILL)\nmember.train(member.join(), until=1)\n"
    )
    result = run("-np", "2", "--min-np", "2", text=text)
    assert result.returncode == 0, result.stderr
    assert lines_of(result) == [
        "the process in slot 1, which was no rank yet, was killed by SIGKILL; it is started again"
    ]


def test_the_reset_limit_ends_the_starts(run):
    text = DIES_FIRST + "member.train(epoch, until=2)"
    result = run("-np", "2", "--min-np", "1", "--reset-limit", "0", text=text)
    assert result.returncode == 0, result.stderr
    assert lines_of(result) == [
        "rank 1 was killed by SIGKILL; it is not started again, as --reset-limit is 0",
        "1 rank goes on after T s at step 0",
        "1 rank was lost: rank 1 (SIGKILL)",
    ]


def test_the_reset_limit_may_leave_too_few_ranks(run):
    text = DIES_FIRST + "member.train(epoch, until=2)"
    result = run("-np", "3", "--min-np", "3", "--reset-limit", "0", text=text)
    assert result.returncode == 1
    assert (
        "│ cause      2 ranks are left, --min-np is 3, and --reset-limit 0 allows no more starts\n"
        "│ lost       rank 1 (SIGKILL)\n"
    ) in result.stderr


def test_too_few_ranks_end_the_job(run):
    text = "if me > 3: time.sleep(60)\n" + DIES_FIRST + "member.train(epoch, until=2)"
    options = ["-np", "3", "--min-np", "3", "--elastic-timeout", "0.3"]
    result = run(*options, text=text)
    assert result.returncode == 1
    assert (
        "│ cause      2 ranks are left, --min-np is 3, and too few others were ready after 0.3 s "
        "(--elastic-timeout)\n│ lost       rank 1 (SIGKILL)\n"
    ) in result.stderr


HANGS = "if me == 2: time.sleep(60)\nmember.train(member.join(), until=1)"


def test_a_job_begins_with_fewer_ranks_when_one_does_not_come(run):
    options = ["-np", "2", "--min-np", "1", "--elastic-timeout", "0.3"]
    result = run(*options, text=HANGS)
    assert result.returncode == 0, result.stderr
    assert lines_of(result) == ["1 rank begins after T s, as 1 other is not ready"]


def test_a_job_that_too_few_ranks_join_ends(run):
    options = ["-np", "2", "--min-np", "2", "--elastic-timeout", "0.3", "--start-timeout", "1"]
    result = run(*options, text=HANGS)
    assert result.returncode == 1
    said = "fewer than 2 ranks (--min-np) were ready in time: --elastic-timeout is 0.3 s"
    assert re.search(f"│ cause +{re.escape(said)}\n", result.stderr)


def test_the_state_may_be_lost(run):
    text = "member.join()\nif me == 1: time.sleep(0.1)\nos.kill(os.getpid(), signal.SIGKILL)"
    result = run("-np", "1", "--min-np", "1", text=text)
    assert result.returncode == 1
    assert "cause      no rank is left that holds the state of the training\n" in result.stderr


def test_an_error_at_the_start_ends_the_job_with_the_usual_block(run):
    text = "if rank == 1: raise ValueError('a wrong script')\nmember.join()\ntime.sleep(60)"
    result = run("-np", "2", "--min-np", "1", text=text)
    assert result.returncode == 1
    assert re.search("│ culprit +rank 1 on .*, pid", result.stderr)
    assert re.search(r"│ cause +ValueError: a wrong script \(exit code 1\)", result.stderr)
    assert re.search("│ ended +rank 0: by the launcher", result.stderr)


def test_an_error_later_is_a_loss_that_names_its_cause(run):
    text = (
        "epoch = member.join()\nif me == 2: raise ValueError('nan')\nmember.train(epoch, until=3)"
    )
    result = run("-np", "2", "--min-np", "1", text=text)
    assert result.returncode == 0, result.stderr
    said = "ValueError: nan (exit code 1)"
    failed, _, summary = lines_of(result)
    assert failed == f"rank 1 failed: {said}; 1 rank goes on after T s at step 0"
    assert summary == f"1 rank was lost and 1 joined: rank 1 ({said})"


def test_children_of_a_lost_rank_go_with_it(run):
    text = """
import subprocess
epoch = member.join()
if me == 2:
    child = subprocess.Popen(["sleep", "60"])
    with open("child", "w") as file:
        file.write(str(child.pid))
    os.kill(os.getpid(), signal.SIGKILL)
epoch = member.hear()
with open("child") as file:
    child = file.read()
while os.path.exists(f"/proc/{child}"):
    time.sleep(0.002)
print("the child is gone")
member.formed(epoch)
member.leave()
"""
    result = run("-np", "2", "--min-np", "1", "--reset-limit", "0", text=text)
    assert (result.returncode, result.stdout) == (0, "[0] the child is gone\n")


def test_bytes_that_are_no_message_cost_only_their_sender(run):
    text = "epoch = member.join()\nif me == 2: member.say(b'\\xff')\nmember.train(epoch, until=2)"
    result = run("-np", "2", "--min-np", "1", "--reset-limit", "0", text=text)
    assert result.returncode == 0, result.stderr
    assert lines_of(result)[0] == (
        "rank 1 sent bytes that are no message, and is killed; does the program use another "
        "version of ciranda?"
    )


def test_a_kill_after_the_end_of_the_program_counts_as_done(run):
    text = "member.train(member.join(), until=1)\nif me == 2: os.kill(os.getpid(), signal.SIGKILL)"
    result = run("-np", "2", "--min-np", "2", text=text)
    assert result.returncode == 0
    assert lines_of(result) == [
        "rank 1 was killed by SIGKILL after its program had ended; that counts"
    ]


def test_an_error_after_the_end_of_the_program_fails_the_job(run):
    text = "member.train(member.join(), until=1)\nif me == 2: sys.exit(3)"
    result = run("-np", "2", "--min-np", "2", text=text)
    assert result.returncode == 3
    assert re.search("│ culprit +rank 1 on .*, pid", result.stderr)
    assert re.search("│ cause +exit code 3", result.stderr)


def test_a_rank_that_has_ended_before_the_others_ends_the_job(run):
    text = """
epoch = member.join()
if epoch.rank == 1:
    member.leave()
member.needs(epoch.members[1], step=4812)
member.hear()
"""
    result = run("-np", "2", "--min-np", "1", text=text)
    assert result.returncode == 1
    assert (
        "rank 1 has ended its program, and others need it at step 4,812; let every rank do the "
        "same steps before it ends"
    ) in re.sub(r"\n│ +", " ", result.stderr)


def test_a_program_without_a_loop_runs_as_always(run):
    result = run("-np", "2", "--min-np", "1", "--spares", "1", text="print('done', rank)")
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(result.stdout.splitlines()) == ["[0] done 0", "[1] done 1", "[2] done 1"]


def test_a_spare_has_the_variables_of_the_last_rank(run):
    text = (
        "print([os.environ['CIRANDA_' + name] for name in ('RANK', 'SIZE', 'LOCAL_RANK', "
        "'LOCAL_SIZE', 'INCARNATION')], os.environ['CIRANDA_ERROR_FILE'][-17:])"
    )
    result = run("-np", "2", "--spares", "1", text=text)
    assert "[1] ['1', '2', '1', '2', '2'] rank-1.error.json\n" in result.stdout
    assert "[2] ['1', '2', '1', '2', '3'] rank-2.error.json\n" in result.stdout


def test_a_program_that_cannot_be_started_is_named(launcher):
    (launcher.folder / "broken").write_text("#!/no/such/interpreter\n")
    (launcher.folder / "broken").chmod(0o755)
    result = launcher.run("-np", "2", "--min-np", "1", "./broken")
    assert result.returncode == 126
    assert result.stderr.startswith("ciranda run: cannot start './broken'")


WAITS = "epoch = member.join()\nopen(f'on-{rank}', 'w').close()\nmember.hear()\n"


def test_ctrl_c_ends_all_and_starts_nothing_again(launcher, script, gone):
    job = launcher.start("--verbose", "-np", "2", "--min-np", "1", script(WAITS))
    launcher.wait_for_files("on-0", "on-1")
    job.send_signal(signal.SIGINT)
    _, errors = job.communicate(timeout=20)
    assert job.returncode == 128 + signal.SIGINT
    assert errors.count("is pid") == 2
    gone(launcher)


def test_who_waits_for_the_others_leaves_when_the_job_ends(launcher, script):
    """A program that catches Ctrl-C comes to its end, and then waits for ranks that do not."""
    text = (
        "epoch = member.join()\nopen(f'on-{rank}', 'w').close()\n"
        "try:\n    member.hear()\n"
        "except KeyboardInterrupt:\n    member.leave()\n    print('left')\n"
    )
    job = launcher.start("-np", "2", "--min-np", "1", script(text))
    launcher.wait_for_files("on-0", "on-1")
    job.send_signal(signal.SIGINT)
    output, _ = job.communicate(timeout=20)
    assert sorted(output.splitlines()) == ["[0] left", "[1] left"]


def test_the_death_of_the_launcher_ends_all(launcher, script, gone):
    job = launcher.start("-np", "2", "--min-np", "1", script(WAITS))
    launcher.wait_for_files("on-0", "on-1")
    job.kill()
    job.communicate()
    gone(launcher)


def test_the_death_of_the_supervisor_ends_all(launcher, script, gone):
    job = launcher.start("-np", "2", "--min-np", "1", script(WAITS))
    launcher.wait_for_files("on-0", "on-1")
    os.kill(launcher.supervisor_of(job), signal.SIGKILL)
    _, errors = job.communicate(timeout=20)
    assert job.returncode == 1
    assert "supervisor" in errors
    gone(launcher)


def test_a_time_limit_ends_the_job(run):
    result = run("-np", "2", "--min-np", "1", "--timeout", "0.5", text=WAITS)
    assert result.returncode == 124
    assert "not finished after 0.5 s (--timeout)" in result.stderr


def test_horovodruns_names_of_the_options_mean_the_same(launcher, script):
    shown = []
    code = "from ciranda.launch.cli.commands import as_horovodrun; as_horovodrun()"
    for least, most in (("--min-np", "--max-np"), ("--min-num-proc", "--max-num-proc")):
        command = ["-np", "2", least, "1", most, "3", "--reset-limit", "1", "--dry-run", "true"]
        done = subprocess.run(
            [sys.executable, "-c", code, *command, "--elastic-timeout", "5"][:-2],
            env=launcher.environment,
            capture_output=True,
            text=True,
        )
        shown.append(done.stdout.splitlines()[0])
    assert set(shown) == {shown[0]}
    assert shown[0].startswith("2 ranks (1 to 3) on ")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["-np", "2", "--min-np", "3"], "--min-np must be between 1 and the number of ranks"),
        (["-np", "2", "--min-np", "0"], "--min-np must be between 1 and the number of ranks"),
        (["-np", "2", "--max-np", "1"], "--max-np must be at least the number of ranks (-np), 2"),
        (["-np", "2", "--spares", "-1"], "--spares must be at least 0, not -1"),
        (
            ["-np", "2", "--spares", "255"],
            "at most 256 ranks and spares, not 257",
        ),
        (["--spares", "1", "--reset-limit", "-1"], "--reset-limit must be at least 0, not -1"),
        (
            ["--spares", "1", "--elastic-timeout", "0"],
            "--elastic-timeout must be more than 0 seconds, not 0",
        ),
        (["--reset-limit", "1"], "--reset-limit goes with --min-np, --max-np or --spares"),
        (["--elastic-timeout", "1"], "--elastic-timeout goes with --min-np, --max-np or --spares"),
        (["--ps", "1", "--spares", "1"], "--spares does not go with --ps: a lost worker"),
        (["--ps", "1", "--min-np", "1", "--lease", "1"], "--lease does not go with --ps"),
        (["-np", "2", "--ps", "1", "--min-np", "3"], "--min-np must be between 1 and the number"),
        (["-np", "2", "--ps", "1", "--max-np", "3"], "the workers that it starts with; give them"),
        (["--ps", "1", "--min-np", "1", "--restarts", "1"], "--min-np goes with --reset-limit"),
        (["--ps", "1", "--reset-limit", "1"], "--reset-limit goes with --min-np, --max-np or"),
        (["--min-np", "1", "--restarts", "1"], "--reset-limit, and not --restarts, says how often"),
        (
            ["--min-np", "1", "--no-ssh"],
            "one launcher starts the ranks of all hosts (-H); leave out --no-ssh",
        ),
        (
            ["--min-np", "1", "-H", "n1:2,n2:1", "--spares", "1"],
            "--spares 1 and 3 ranks ask for more than the 3 slots of -H; add hosts or slots",
        ),
        (["-H", "n1:2,n2:1", "--max-np", "2", "--min-np", "3"], "--max-np must be at least the"),
        (
            ["--min-np", "1", "--blacklist-cooldown-range", "5", "1"],
            "takes two numbers of seconds, the smaller one first, and not 5 1",
        ),
    ],
)
def test_wrong_use_is_a_sentence(options, sentence):
    found = CliRunner().invoke(run_command, [*options, "true"])
    assert found.exit_code == 2
    (line,) = found.stderr.splitlines()
    assert sentence in line


def test_a_function_is_not_elastic():
    found = CliRunner().invoke(run_command, ["--min-np", "1", "true"], prog_name="ciranda.run()")
    assert "an elastic job runs a script: ciranda.run() has none" in found.stderr


def test_the_help_has_the_options_together():
    text = CliRunner().invoke(run_command, ["--help"]).output
    group = text.partition("\nElastic jobs:\n")[2].partition("\n\n")[0]
    names = ["--min-np", "--max-np", "--spares", "--reset-limit", "--elastic-timeout", "--lease"]
    names += ["--blacklist-cooldown-range", "--host-discovery-script", "--slots-per-host"]
    assert re.findall(r"(?m)^  (--[a-z-]+)", group) == names


def test_a_dry_run_shows_the_spares(launcher):
    found = launcher.run("-np", "2", "--spares", "1", "--dry-run", "true")
    assert found.stdout.startswith("2 ranks (2 to 2) and 1 spare on ")
    assert re.search("(?m)^spare 2 .* /dev/null", found.stdout)


def test_the_number_of_ranks_lies_within_the_limits():
    def choose(cores, least=None, most=None):
        options = ElasticOptions(
            min_np=least, max_np=most, spares=None, reset_limit=None, elastic_timeout=None
        )
        return choose_np(options, cores)

    assert [choose(4), choose(4, least=6), choose(4, most=2), choose(4, 1, 8)] == [4, 6, 2, 4]


def test_a_launcher_inside_a_rank_starts_another_job():
    given = {"CIRANDA_MEMBER_FD": "7", "CIRANDA_INCARNATION": "3", "HOME": "/root"}
    assert without_identity(given) == {"HOME": "/root"}


def test_the_start_timeout_is_that_of_the_ranks():
    assert start_timeout_s({}) == 30.0
    assert start_timeout_s({"HOROVOD_START_TIMEOUT": "7"}) == 7.0
    ours = {"CIRANDA_START_TIMEOUT_SECONDS": "5", "HOROVOD_START_TIMEOUT": "7"}
    assert start_timeout_s(ours) == 5.0
    assert start_timeout_s({"CIRANDA_START_TIMEOUT_SECONDS": "soon"}) == 30.0


# --- The words, without processes --------------------------------------------------------------


def changes(np=4, min_np=2, spares=1, reset_limit=None):
    """Four ranks and a spare, in an epoch of four."""
    limits = ElasticLimits(
        np=np,
        min_np=min_np,
        max_np=np,
        spares=spares,
        reset_limit=reset_limit,
        elastic_timeout_s=600.0,
    )
    found = Changes(limits)
    for slot in range(np + spares):
        assert found.started(slot + 1, slot) == ""
    assert found.told(formed(range(1, np + 1), joined=range(1, np + 1))) == ""
    return found


def formed(members, *, joined=(), lost=(), step=0, since_s=0.0, planned=False):
    return SimpleNamespace(
        kind=NewsKind.formed,
        members=list(members),
        joined=list(joined),
        lost=list(lost),
        step=step,
        since_s=since_s,
        planned=planned,
    )


KILLED = Departure(-signal.SIGKILL, "Killed, SIGKILL (9)")
FOR_MEMORY = Departure(-signal.SIGKILL, "Killed, SIGKILL (9)", for_memory=True)
FAILED = Departure(1, "ValueError: nan (exit code 1)")


def test_two_losses_are_one_line():
    found = changes()
    found.ended(2, KILLED)
    found.ended(3, FAILED)
    news = formed([1, 5, 4], joined=[5], lost=[(2, 1), (3, 2)], step=1234567, since_s=0.214)
    assert found.told(news) == (
        "rank 1 was killed by SIGKILL, rank 2 failed: ValueError: nan (exit code 1); a spare "
        "joins; 3 ranks go on after 0.21 s at step 1,234,567"
    )
    assert found.summary() == (
        "2 ranks were lost and 1 joined: rank 1 (SIGKILL), rank 2 (ValueError: nan (exit code 1))"
    )


def test_a_rank_that_is_not_in_its_slot_is_named_with_both():
    found = changes()
    found.ended(2, KILLED)
    found.told(formed([1, 3, 4], lost=[(2, 1)]))
    found.ended(3, FOR_MEMORY)
    line = found.told(formed([1, 4], lost=[(3, 1)], since_s=0.5))
    assert line == (
        "rank 1 (slot 2) was killed by SIGKILL, as memory ran out; 2 ranks go on after 0.50 s at "
        "step 0"
    )


def test_a_start_without_all_ranks_is_told():
    limits = ElasticLimits(
        np=4, min_np=1, max_np=4, spares=0, reset_limit=None, elastic_timeout_s=600.0
    )
    found = Changes(limits)
    for slot in range(4):
        found.started(slot + 1, slot)
    line = found.told(formed([1, 2], joined=[1, 2], since_s=600.2))
    assert line == "2 ranks begin after 600 s, as 2 others are not ready"


def test_the_cause_of_the_end_counts_who_is_left():
    found = changes(min_np=3, reset_limit=2)
    for incarnation in (2, 3):
        found.ended(incarnation, KILLED)
    assert found.end_cause(EndReason.too_few_ranks) == (
        "2 ranks are left, --min-np is 3, and too few others were ready after 600 s "
        "(--elastic-timeout)"
    )
    assert found.end_cause(EndReason.reset_limit) == (
        "2 ranks are left, --min-np is 3, and --reset-limit 2 allows no more starts"
    )
    assert found.losses() == ("rank 1 (SIGKILL)", "rank 2 (SIGKILL)")
