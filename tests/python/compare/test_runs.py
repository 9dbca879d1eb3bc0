"""How a run hears of its ranks: none may be missing, whatever the launcher makes of their lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ciranda.compare import machine, protocol, runs
from ciranda.compare.setting import Setting
from ciranda.compare.starts import Start
from ciranda.compare.system import Processes, System

SAY = "from ciranda.compare.protocol import say; say(rank={rank}, size=2, outcome={{}})"


class _Said(System):
    """Programs that only say something."""

    processes = Processes("python")


def run(monkeypatch: pytest.MonkeyPatch, *programs: str) -> runs.Outcome:
    commands = [Start([sys.executable, "-c", program]) for program in programs]
    monkeypatch.setattr(runs.starts, "on_one_host", lambda *_: commands)
    return runs.run(_Said(), Setting(), threading.Event())


def test_all_ranks_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run(monkeypatch, SAY.format(rank=0), SAY.format(rank=1))["ranks"]) == 2


def test_a_rank_that_says_nothing_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(runs.RunFailedError, match="1 of 2 ranks said nothing"):
        run(monkeypatch, SAY.format(rank=0), "pass")


def test_ranks_begin_together(tmp_path: Path) -> None:
    meet = "from ciranda.compare.protocol import meet; meet({rank}, 2); "
    look = "from pathlib import Path; print(Path(r'{late}').exists())"
    first = (meet + look).format(rank=0, late=tmp_path / "late")
    env = {**os.environ, protocol.FOLDER: str(tmp_path)}
    command = [sys.executable, "-c", first]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as waiting:
        while not (tmp_path / "here-0").exists():
            assert waiting.poll() is None
        (tmp_path / "late").touch()
        subprocess.run([sys.executable, "-c", meet.format(rank=1)], env=env, check=True)
        assert waiting.communicate()[0] == "True\n"


def test_a_run_that_ends_leaves_no_process_of_another_session(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rank = f"open({str(tmp_path / 'rank')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    command = [sys.executable, "-c", f"import os, time; {rank}"]
    launcher = f"import subprocess; subprocess.run({command!r}, start_new_session=True)"
    fails = (
        f"import os, time\nwhile not os.path.exists({str(tmp_path / 'rank')!r}): time.sleep(0.01)"
    )
    with pytest.raises(runs.RunFailedError):
        run(monkeypatch, launcher, f"{fails}\ntime.sleep(0.1); raise SystemExit(1)")
    pid = int((tmp_path / "rank").read_text())
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "a rank is left"
        time.sleep(0.02)


def test_what_a_run_computes_is_not_counted_as_that_of_others() -> None:
    compute = "import time\nwhile time.process_time() < 1.0: pass"
    with subprocess.Popen([sys.executable, "-c", compute]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        as_of_others_s, _ = machine.Others._since_boot()
        process.wait()
        as_ours_s, _ = machine.Others._since_boot()
    assert as_of_others_s - as_ours_s > 0.5


def test_a_program_that_fails_is_heard_with_its_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(runs.RunFailedError, match="ZeroDivisionError"):
        run(monkeypatch, SAY.format(rank=0), "1 / 0")


def test_a_program_that_fails_when_it_has_said_all_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = "; import os, time; os.close(1); os.close(2); time.sleep(1.0); os._exit(3)"
    with pytest.raises(runs.RunFailedError):
        run(monkeypatch, SAY.format(rank=0) + late, SAY.format(rank=1))


def test_lines_that_ran_into_each_other_say_nothing() -> None:
    one = f"{protocol.MARK} {json.dumps({'rank': 0, 'size': 1, 'outcome': {}})}"
    assert protocol.heard(f"[0] {one}\n") == {"rank": 0, "size": 1, "outcome": {}}
    assert protocol.heard(one[:30] + one) is None
    assert protocol.heard("epoch 1: fine") is None


def test_outcomes_come_from_files_where_there_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(protocol.FOLDER, str(tmp_path))
    protocol.say(rank=1, epoch=1)
    protocol.say(rank=1, size=2, outcome={"total_s": 3.0})
    assert protocol.heard(capsys.readouterr().out) == {"rank": 1, "epoch": 1}
    assert list(protocol.read(tmp_path)) == [{"rank": 1, "size": 2, "outcome": {"total_s": 3.0}}]
