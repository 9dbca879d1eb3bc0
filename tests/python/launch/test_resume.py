"""A job whose launcher is gone with all its processes is taken up by the same command: breaks when
an answered push is lost, or counts twice, or when it goes on with what is not its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("warm_start")

STEPS = 60
PROGRAM = """
import json, torch, ciranda.torch as cr
answered = os.open(f"answered-{rank}", os.O_RDWR | os.O_CREAT)
cr.init()
x = torch.nn.Parameter(torch.zeros(600_000))  # on both servers
optimizer = cr.DistributedOptimizer(
    torch.optim.SGD([x], lr=1.0), [("x", x)], ps=MODE)
def servers():
    return cr.ps.stats()["servers"]
begun = [each["workers"][rank]["pushes"] for each in servers()]
pushes = begun[0]
killed_before = STEPS - 5  # in the first two runs
while pushes < STEPS:
    while pushes == killed_before and not os.path.exists("last"):
        time.sleep(0.01)
    x.grad = torch.ones_like(x)
    optimizer.step()
    pushes += 1
    own = pushes - begun[0]  # a push before them may have come to one of the servers alone
    os.pwrite(answered, b" ".join(b"%03d" % (each + own) for each in begun), 0)
    time.sleep(0.02)
others = [f"done-{other}" for other in range(cr.size())]
open(others[rank], "w").close()
while not all(map(os.path.exists, others)):
    time.sleep(0.01)
cr.broadcast_parameters({"x": x}, root_rank=0)
print(json.dumps({
    "begun": begun,
    "values": sorted(set(x.detach()[::999].tolist())),
    "versions": [each["version"] for each in servers()],
    "pushes": [[worker["pushes"] for worker in each["workers"]] for each in servers()],
}))
"""


def kill_all(launcher, process) -> None:
    """As where a machine loses its power: nobody cleans up behind anybody."""
    for pid in (launcher.supervisor_of(process), process.pid, *launcher.processes()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=30)
    for folder in launcher.job_dirs():
        shutil.rmtree(folder, ignore_errors=True)


def answered(launcher, rank: int) -> list[int]:
    """The pushes of a rank that each server has answered."""
    file = launcher.folder / f"answered-{rank}"
    words = file.read_bytes().split() if file.exists() else []
    return [int(each) for each in words] or [0, 0]


def results(done) -> dict[int, dict]:
    """By rank."""
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if '"begun"' in line]
    return {int(line[1]): json.loads(line[4:]) for line in lines}


@pytest.mark.parametrize("durability", ["log", "disk"])
def test_a_job_that_is_killed_with_all_of_it_goes_on(launcher, gone, durability):
    script = launcher.script(PROGRAM.replace("STEPS", str(STEPS)).replace("MODE", "cr.ps.Async()"))
    state = launcher.folder / "state"
    job = ["-np", "2", "--ps", "2", "--ps-dir", str(state), "--durability", durability]
    for kills in range(2):
        resume = ["--resume"] if kills else []
        process = launcher.start(*job, *resume, script)
        enough = 15 * (kills + 1)
        for rank in range(2):
            launcher.wait_until(lambda: min(answered(launcher, rank)) >= enough, 50)  # noqa: B023
        kill_all(launcher, process)
        gone(launcher)
    known = [answered(launcher, rank) for rank in range(2)]
    (launcher.folder / "last").touch()
    done = launcher.run(*job, "--resume", script)
    said = results(done)
    assert "of a job that is over" in done.stderr
    for rank in range(2):
        for answers, begun in zip(known[rank], said[rank]["begun"], strict=True):
            assert answers <= begun <= answers + 1
    end = said[0]
    assert end["pushes"][0] == [STEPS, STEPS]
    assert end["versions"] == [sum(pushes) for pushes in end["pushes"]]
    assert end["values"] == sorted({-version for version in end["versions"]})
    assert not list(state.glob("*/*"))


def test_what_is_not_there_or_another_jobs_is_not_gone_on_with(launcher, tmp_path):
    unfinished = launcher.script(
        "import torch, ciranda.torch as cr\n"
        "cr.init()\n"
        "x = torch.nn.Parameter(torch.zeros(int(sys.argv[1])))\n"
        "cr.DistributedOptimizer(\n"
        "    torch.optim.SGD([x], lr=1.0), [('x', x)], ps=cr.ps.Async())\n"
        "os._exit(3)\n"  # without leaving
    )
    state = ["--ps-dir", str(tmp_path / "state")]

    def refusal(*options: str, size: str = "4") -> str:
        done = launcher.run(*options, *state, unfinished, size)
        assert done.returncode != 0
        return done.stderr

    job = ("-np", "1", "--ps", "1")
    nothing = f"there is no state to resume in {tmp_path}/state/server-0: a job leaves no state"
    assert nothing in refusal(*job, "--resume")
    refusal(*job)
    assert "'; give --resume to continue it; name another folder, or" in refusal(*job)
    other = "it belongs to server 0 of 1 with 1 workers, and this server is server 0 of "
    assert other + "1 with 2" in refusal("-np", "2", "--ps", "1", "--resume")
    assert other + "2 with 1" in refusal("-np", "1", "--ps", "2", "--resume")
    model = "worker 0 trains another model than the workers before it: parameter 'x' is [5] instead"
    assert model in refusal(*job, "--resume", size="5")
    done = launcher.run("-np", "1", "--ps", "1", "--resume", unfinished, "4")
    assert done.returncode == 2
    assert "--resume goes with --ps-dir, where the job before has left its state" in done.stderr


def test_tasks_go_on_too(launcher, gone):
    """Those that were done are not done again, and each push of the others counts once."""
    program = Path(launcher.script("", "train.py"))
    program.write_text(
        "import os, time, torch, ciranda.torch as cr\n"
        "from ciranda.torch import ps\n"
        "cr.init()\n"
        "@ps.per_worker\n"
        "def trainer():\n"
        "    x = torch.nn.Parameter(torch.zeros(40_000))\n"
        "    return x, cr.DistributedOptimizer(\n"
        "        torch.optim.SGD([x], lr=1.0), [('x', x)], ps=ps.Async())\n"
        "@ps.task\n"
        "def push(number):\n"
        "    x, optimizer = trainer()\n"
        "    for _ in range(3):\n"
        "        x.grad = torch.ones_like(x)\n"
        "        optimizer.step()\n"
        "        time.sleep(0.02)\n"
        "    with open('done', 'a') as file:\n"
        "        file.write(f'{number}\\n')\n"
        "    return number\n"
        "@ps.task\n"
        "def value():\n"
        "    return trainer()[0][0].item()\n"
        "def main():\n"
        "    futures = [ps.schedule(push, number) for number in range(20)]\n"
        "    ps.join()\n"
        "    assert [each.result() for each in futures] == list(range(20))\n"
        "    print('value', ps.schedule(value).result())\n"
        "ps.run(main)\n"
    )
    job = ["-np", "2", "--ps", "2", "--coordinator", "--ps-dir", str(launcher.folder / "state")]
    done = launcher.folder / "done"
    process = launcher.start(*job, str(program))
    launcher.wait_until(lambda: done.exists() and len(done.read_text().splitlines()) >= 6, 40)
    kill_all(launcher, process)
    gone(launcher)
    resumed = launcher.run(*job, "--resume", str(program))
    assert resumed.returncode == 0, resumed.stderr
    assert "value -60.0" in resumed.stdout
    # The task that each worker had was not done, or its outcome not told, when all was killed.
    assert 20 <= len(done.read_text().splitlines()) <= 22
