"""Failures that elastic jobs meet on one host, each once: breaks when one of them hangs a job, ends
it without a reason, or changes what it learns.

| failure | test |
|---|---|
| a rank is killed | test_elastic.py::test_a_spare_takes_the_place, test_fewer_ranks_go_on_alone |
| a rank stands still | test_elastic.py::test_a_rank_that_stands_still_is_replaced |
| a connection that is half open | here: an elastic job on one host has no TCP socket |
| other shapes, dtypes, operations | here: a mismatch ends the job |
| another order of tensors | here: what harms nothing |
| a rank raises | here: an error once, an error each time |
| a rank finishes early | here |
| NaN and inf in gradients | here: what harms nothing |
| fork after init() | here: what harms nothing, a lost worker |
| an exit without shutdown() | here |
| init() twice, and after shutdown() | here: what harms nothing, what is refused after shutdown() |
| an interpreter that ends with threads | here: a real interpreter |
| an exception in a hook | here: an error once |
| the kernel kills for memory | here |
| the clock jumps | tests/tidy: "wall-clock time" in rules.py |
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from warm import run as run_warm

HEAD = """
import json, hashlib, torch
import ciranda.torch as hvd
from ciranda import _C
from ciranda.torch import elastic
from torch.utils.data import DataLoader, TensorDataset

own = int(os.environ["CIRANDA_INCARNATION"])

def once(name):
    # True for the first process that asks.
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

hvd.init()
torch.manual_seed(1)
model = torch.nn.Linear(4, 1).double()
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters())
samples = TensorDataset(torch.randn(32, 4, dtype=torch.float64))
loader = DataLoader(samples, 4, shuffle=True, **json.loads(os.environ.get("LOADER", "{}")))
"""
LOOP = """
state = elastic.TorchState(model, optimizer)

def train(failure):
    for step in elastic.steps(loader, state):
        with step as (x,):
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            if step.number == 2:
                failure()
            loss.backward()
            optimizer.step()
"""
REPORT = """
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
with open(f"result-{own}", "w") as file:
    json.dump([hvd.rank(), digest.hexdigest()], file)
"""
SPARE = ("-np", "2", "--min-np", "2", "--spares", "1", "--reset-limit", "0")


def run(launcher: Any, *options: str, text: str, **environment: str) -> tuple[int, str]:
    done = launcher.run(*options, launcher.script(HEAD + LOOP + text), environment=environment)
    return done.returncode, done.stdout + done.stderr


def digests(folder: Path) -> dict[int, str]:
    """What each rank has learnt."""
    return dict(json.loads(each.read_text()) for each in folder.glob("result-*"))


@pytest.fixture
def warm(launcher: Any) -> Any:
    launcher.is_warm = True
    return launcher


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What two ranks learn if nothing fails."""
    from launch.conftest import Launcher

    launcher = Launcher(tmp_path_factory.mktemp("quiet"))
    launcher.is_warm = True
    code, said = run(launcher, "-np", "2", "--min-np", "1", text="train(lambda: None)" + REPORT)
    assert code == 0, said
    found = digests(launcher.folder)
    assert sorted(found) == [0, 1]
    assert found[0] == found[1]
    return found[0]


# --- What harms nothing ---------------------------------------------------------------------------

HARMLESS = """
from ciranda import errors

def other_orders():
    names = ["a", "b", "c", "d"][:: -1 if hvd.rank() else 1]
    handles = {name: hvd.allreduce_async(torch.ones(3), name=name, op=hvd.Sum) for name in names}
    sums = [hvd.synchronize(handle).tolist() for handle in handles.values()]
    assert sums == [[float(hvd.size())] * 3] * 4, sums

def init_again():
    before = _C.own_epoch()
    hvd.init()
    assert _C.own_epoch() == before

def no_tcp_socket():
    ours = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        if not os.path.exists(f"/proc/self/net/{table}"):
            continue
        with open(f"/proc/self/net/{table}") as file:
            nodes = {f"socket:[{line.split()[9]}]" for line in list(file)[1:]}
        assert not ours & nodes, ours & nodes

def fork():
    # The child leaves as any program does, and its parent stays a member.
    child = os.fork()
    if child == 0:
        try:
            hvd.allreduce(torch.ones(1))
        except errors.ForkedError:
            sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

def harmless():
    other_orders()
    init_again()
    no_tcp_socket()
    fork()
    if hvd.rank() == 1 and once("killed"):
        os.kill(os.getpid(), signal.SIGKILL)

train(harmless)
elastic.agreed(other_orders)
"""


def test_what_harms_nothing(warm: Any, quiet: str, tmp_path: Path) -> None:
    """In an epoch, and in the one after it."""
    timeline = str(tmp_path / "trace.json")
    code, said = run(warm, *SPARE, "--timeline", timeline, text=HARMLESS + REPORT)
    assert code == 0, said
    assert ranks_in(tmp_path / "trace.json.epoch1") == ["rank 0"]  # rank 1 was killed
    assert ranks_in(tmp_path / "trace.json.epoch2") == ["rank 0", "rank 1"]
    assert not list(tmp_path.glob("trace.json.*.part"))
    assert digests(warm.folder) == {0: quiet, 1: quiet}
    assert re.search(r"rank 1 (\(slot \d\) )?was killed by SIGKILL", said)


def ranks_in(timeline: Path) -> list[str]:
    """The ranks whose operations the file has."""
    events = json.loads(timeline.read_text())["traceEvents"]
    at_work = {each["pid"] for each in events if each["name"] == "ALLREDUCE"}
    return sorted(
        each["args"]["name"]
        for each in events
        if each["name"] == "process_name" and each["pid"] in at_work
    )


SCALED = """
scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
state = elastic.TorchState(model, optimizer, scaler=scaler)
skipped = []
for step in elastic.steps(loader, state):
    with step as (x,):
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        if step.number == 1 and hvd.rank() == 1:
            loss = loss * float("inf")
        before = model.weight.detach().clone()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step.number == 2 and hvd.rank() == 1 and once("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
    if step.done and torch.equal(before, model.weight):
        skipped.append(step.number)
assert state.step == 4
assert skipped in ([1], []), skipped  # a newcomer has seen nothing
assert scaler.get_scale() == 2.0, scaler.get_scale()
assert torch.isfinite(model.weight).all()
print("skipped", skipped)
"""


def test_all_ranks_skip_an_infinite_gradient(warm: Any) -> None:
    """Also after a loss, since the scaler is part of the state."""
    code, said = run(warm, *SPARE, text=SCALED + REPORT)
    assert code == 0, said
    found = digests(warm.folder)
    assert sorted(found) == [0, 1]
    assert found[0] == found[1]
    assert "] skipped [1]\n" in said  # any process may be the spare


TWO_OPTIMIZERS = """
second = torch.nn.Linear(4, 1).double()
of_second = hvd.DistributedOptimizer(
    torch.optim.Adam(second.parameters(), lr=0.01), second.named_parameters("second"))
state = elastic.TorchState(model, second, optimizer, of_second)
for step in elastic.steps(loader, state):
    with step as (x,):
        optimizer.zero_grad()
        of_second.zero_grad()
        ((model(x) + second(x) - 1) ** 2).mean().backward()
        optimizer.step()
        if "DIES" in os.environ and step.number == 2 and hvd.rank() == 1 and once("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        of_second.step()
with torch.no_grad():
    model.weight += 1000 * second.weight  # so that the digest is that of both
"""


def test_a_block_of_two_steps_counts_whole_or_not_at_all(warm: Any, tmp_path: Path) -> None:
    """A gradient of parameters that half of the block has changed would be another one."""
    found = []
    for environment in ({}, {"DIES": "1"}):
        code, said = run(warm, *SPARE, text=TWO_OPTIMIZERS + REPORT, **environment)
        assert code == 0, said
        found.append(digests(warm.folder))
        for each in warm.folder.glob("result-*"):
            each.unlink()
    assert (tmp_path / "killed").exists()
    assert found[0] == found[1]
    assert found[0][0] == found[0][1]


# --- What costs a rank ----------------------------------------------------------------------------

RAISES = "raise ValueError('no such file')"
LOSSES = {
    "an error in a step": (RAISES, r"failed: ValueError: no such file \(exit code 1\)"),
    "an error in a hook": (
        "model.weight.register_hook(lambda gradient: 1 / 0)",
        r"failed: ZeroDivisionError: division by zero \(exit code 1\)",
    ),
    "an exit without shutdown": ("os._exit(0)", "left early with exit code 0"),
    "an exit with a code": ("os._exit(3)", r"failed: exit code 3"),
    "an end with a code": ("sys.exit(4)", r"failed: exit code 4"),
}
FAILS_ONCE = """
def fail():
    if hvd.rank() == 1 and once("failed"):
        {failure}

train(fail)
"""


@pytest.mark.parametrize("failure", LOSSES)
def test_a_failure_costs_one_rank(warm: Any, quiet: str, failure: str) -> None:
    action, sentence = LOSSES[failure]
    code, said = run(warm, *SPARE, text=FAILS_ONCE.format(failure=action) + REPORT)
    assert code == 0, said
    assert digests(warm.folder) == {0: quiet, 1: quiet}
    assert re.search(r"ciranda: rank 1 (\(slot \d\) )?" + sentence, said), said


MEMORY_BYTES = 256 << 20
IN_GROUP = """
with open(os.environ["GROUP"] + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
os.execve(sys.executable, [sys.executable, "-m", "ciranda", "run", *sys.argv[1:]], os.environ)
"""


def memory_groups() -> Iterator[tuple[Path, dict[str, int]]]:
    """Folders that can have a group with a limit of memory, and what its files are told."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
            yield Path("/sys/fs/cgroup/memory"), dict.fromkeys(limits, MEMORY_BYTES)
        elif not controllers:
            own = Path("/sys/fs/cgroup") / path[1:]
            for each in (own, *own.parents[:-3]):
                enabled = each / "cgroup.subtree_control"
                if enabled.exists() and "memory" in enabled.read_text().split():
                    yield each, {"memory.max": MEMORY_BYTES, "memory.swap.max": 0}


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A group of processes with a limit of memory, of version 1 or 2. Beside it is one without."""
    for parent, limits in memory_groups():
        folder = parent / f"ciranda-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            for name, limit in limits.items():
                if (folder / name).exists():  # the second one not where there is no swap
                    (folder / name).write_text(str(limit))
            beside(folder).mkdir()
            yield folder
        finally:
            for each in (folder, beside(folder)):
                if each.exists():
                    each.rmdir()
        return
    pytest.skip("may make no group of processes with a limit of memory")


def beside(folder: Path) -> Path:
    return folder.with_name(folder.name + "-free")


# While the killed process frees its memory, the kernel may kill another one that needs some: the
# launcher in one of 60 jobs on a loaded machine, though only it and the rank that takes too much
# are in the group. So this is no test for each change; test_local_members.py is.
TAKES_MEMORY = """
def move(group):
    with open(group + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))

move("{free}")
"""


@pytest.mark.soak
def test_a_limit_of_memory_costs_one_rank(warm: Any, quiet: str, memory_group: Path) -> None:
    failure = f"(move('{memory_group}'), bytearray({2 * MEMORY_BYTES}))"
    text = (
        TAKES_MEMORY.format(free=beside(memory_group)) + FAILS_ONCE.format(failure=failure) + REPORT
    )
    program = warm.script(HEAD + LOOP + text)
    in_group = warm.folder / "in_group.py"
    in_group.write_text("import os, sys\n" + IN_GROUP)
    done = run_warm(
        [str(in_group), *SPARE, program],
        env={**warm.environment, "GROUP": str(memory_group)},
        cwd=warm.folder,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert digests(warm.folder) == {0: quiet, 1: quiet}
    assert re.search(r"rank 1 (\(slot \d\) )?was killed by SIGKILL, as memory ran out;", said), said


LOSES_A_WORKER = """
import multiprocessing

def fail():
    if hvd.rank() == 1 and once("failed"):
        worker = multiprocessing.active_children()[0]
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()

train(fail)
"""


def test_a_lost_worker_of_a_loader_costs_its_rank(warm: Any, quiet: str) -> None:
    """The workers of the rank are gone with it; fixture `launcher` counts processes."""
    loader = json.dumps({"num_workers": 1, "persistent_workers": True})
    with tempfile.TemporaryDirectory(prefix="cr-") as short:  # a path of a socket has 107 bytes
        told = {"LOADER": loader, "TMPDIR": short}
        code, said = run(warm, *SPARE, text=LOSES_A_WORKER + REPORT, **told)
    assert code == 0, said
    assert digests(warm.folder) == {0: quiet, 1: quiet}
    assert re.search(r"rank 1 .*failed: RuntimeError: DataLoader worker .* (exited|killed)", said)


# --- What ends the job ----------------------------------------------------------------------------

ENDS = {
    "another shape": (
        "hvd.allreduce(torch.zeros(2 + hvd.rank()), name='x')",
        "allreduce 'x': shapes differ: rank 0 has float32 [2], rank 1 has float32 [3]",
    ),
    "another dtype": (
        "hvd.allreduce(torch.zeros(2, dtype=(torch.int32, torch.int64)[hvd.rank()]), name='x')",
        "allreduce 'x': dtypes differ: rank 0 has int32 [2], rank 1 has int64 [2]",
    ),
    "another operation": (
        "hvd.allreduce(torch.zeros(2), name='x', op=(hvd.Sum, hvd.Max)[hvd.rank()])",
        "allreduce 'x': ops differ: rank 0 has op Sum, rank 1 has op Max",
    ),
}


@pytest.mark.parametrize("mistake", ENDS)
def test_a_mismatch_ends_the_job_with_its_sentence(warm: Any, mistake: str) -> None:
    action, sentence = ENDS[mistake]
    text = f"def fail():\n    {action}\n\ntrain(fail)\n"
    code, said = run(warm, "-np", "2", "--min-np", "1", text=text)
    assert code == 1
    assert sentence in said
    (block,) = re.findall(r"(?ms)^╭.*^╰", said)
    assert "differ: rank 0 has" in block.replace("\n│            ", " "), block


def test_an_error_each_time_ends_the_job(warm: Any) -> None:
    text = "def fail():\n    if hvd.rank() == 1: raise ValueError('bad sample')\n\ntrain(fail)\n"
    code, said = run(warm, "-np", "2", "--min-np", "2", text=text)
    assert code == 1
    assert re.search(r"│ cause +ValueError: bad sample \(exit code 1\)", said)


LEAVES = """
def leave(ranks):
    for step in elastic.steps(loader, state):
        if step.number == 2 and hvd.rank() in ranks:
            break
        with step as (x,):
            optimizer.zero_grad()
            (model(x) ** 2).mean().backward()
            optimizer.step()
"""
FINISHES_EARLY = {
    "in a block": "train(lambda: hvd.rank() == 1 and sys.exit(0))",
    "after a loop": LEAVES + "leave([1])",
    "before a call": "train(lambda: None)\nhvd.rank() == 0 and elastic.agreed(hvd.barrier)",
}


@pytest.mark.parametrize("where", FINISHES_EARLY)
def test_a_rank_that_finishes_early_ends_the_job(warm: Any, where: str) -> None:
    """The spare could take no place, since no rank is lost."""
    code, said = run(warm, *SPARE, "--timeout", "60", text=FINISHES_EARLY[where])
    assert code == 1, said
    (block,) = re.findall(r"(?ms)^╭.*^╰", said)
    step = 4 if where == "before a call" else 2
    sentence = (
        rf"rank 1 (\(slot \d\) )?has ended its program, and others need it at step {step}; let "
        "every rank do the same steps before it ends"
    )
    assert re.search(sentence, re.sub(r"\n│ +", " ", block)), block


LEAVES_TOGETHER = """
leave([0, 1])
if hvd.rank() == 0:
    time.sleep(1)  # it evaluates, while the other one is at its end
    if once("failed"):
        raise ValueError("disk full")
"""


def test_ranks_that_leave_a_loop_together_end_when_they_like(warm: Any) -> None:
    """Also if one of them fails then, so that the spare does the rest in its place."""
    code, said = run(warm, *SPARE, text=LEAVES + LEAVES_TOGETHER + REPORT)
    assert code == 0, said
    found = digests(warm.folder)
    assert sorted(found) == [0, 1]
    assert found[0] == found[1]
    assert re.search(r"rank 0 (\(slot \d\) )?failed: ValueError: disk full", said)


AFTER_SHUTDOWN = """
hvd.shutdown()
try:
    hvd.init()
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("before", ["", "train(lambda: None)"], ids=["before a loop", "after it"])
def test_init_after_shutdown_is_refused(warm: Any, before: str) -> None:
    """It would be alone, although size() says otherwise."""
    code, said = run(warm, "-np", "2", "--min-np", "1", text=before + AFTER_SHUTDOWN)
    assert code == 0, said
    assert said.count("init: this process has left its elastic job by shutdown(), for good") == 2


def test_a_real_interpreter_ends_in_order(launcher: Any) -> None:
    """While a thread of ours beats. Warm processes skip the interpreter's end."""
    code, said = run(launcher, "-np", "1", "--min-np", "1", text="train(lambda: None)\n")
    assert (code, said) == (0, "")
