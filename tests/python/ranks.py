"""Runs a function of a test module, or a script, on N ranks: real processes, as a launcher would.

    def average():                      # at the top of the test module; runs on every rank
        hvd.init()
        return hvd.allreduce(torch.tensor([float(hvd.rank())])).item()

    def test_allreduce_averages():
        assert values_of(run_ranks(average, 2)) == [0.5, 0.5]

`run_ranks` waits for all ranks; `start_ranks` gives the live processes, to be killed or stopped.
A rank's return value travels back as JSON. A script given as text has `report(value)` for that.
`mark(name)` in a rank tells the test how far it is: `job.wait_for_mark(rank, name)`.

Importing torch takes seconds, so it happens once: ranks are forked from a nursery, a process that
has imported torch and done nothing else: it has no thread, no World and no CUDA. Ranks skip the
interpreter's own end, and end with the nursery, which ends with pytest. `fresh=True` starts and
ends a real interpreter for each instead. `OnHost` forks one in a machine of a test network.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib.util
import json
import multiprocessing.util
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from backends import DEVICE, OURS, Backend

from ciranda.netns import namespace

chosen: Backend = OURS  # of the ranks that are started next; a fixture sets it

_FOLDER = "CIRANDA_TEST_FOLDER"  # where a rank leaves its value and marks
_SOURCE = str(Path(__file__).resolve().parents[2] / "python")
_GRACE_S = 2.0  # between the request for stack traces and SIGKILL
_ROOM = {"CIRANDA_TEST_ROOM": "-" * 100_000}  # for the environments of warm programs, see warm.py

# Nobody else's variables may tell a rank its place.
_PREFIXES = ("CIRANDA_", "HOROVOD_", "OMPI_", "PMI_", "PMIX_", "MPI_", "SLURM_", "TORCHELASTIC_")
_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class RankResult:
    """How one rank ended."""

    rank: int
    exit_code: int  # negative: minus the signal that ended it
    stdout: str
    stderr: str
    value: Any  # what the function returned or the script reported
    error_report: dict[str, Any] | None  # what the rank left for the launcher


def clean_environment() -> dict[str, str]:
    """The tests' own environment, in which `ciranda` can be imported, without any rank's place."""
    environment = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(_PREFIXES) and name not in _PLACE
    }
    environment["OMP_NUM_THREADS"] = "1"
    # The ciranda of this process, which need not be installed.
    spec = importlib.util.find_spec("ciranda")
    folder = str(Path(spec.origin).parents[1]) if spec is not None and spec.origin else _SOURCE
    if Path(folder).name not in ("site-packages", "dist-packages"):
        paths = (folder, environment.get("PYTHONPATH"))
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def _command(what: Path | Callable[..., Any], arguments: Sequence[Any]) -> list[str]:
    """The arguments of _run(), for a program or a function."""
    if isinstance(what, Path):
        return [str(what), "", json.dumps(list(arguments))]
    return [what.__code__.co_filename, what.__qualname__, json.dumps(list(arguments))]


def _start_fresh(
    command: list[str], environment: dict[str, str], folder: Path
) -> subprocess.Popen[bytes]:
    with open(folder / "stdout", "wb") as stdout, open(folder / "stderr", "wb") as stderr:
        return subprocess.Popen(
            [sys.executable, __file__, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # so that its children can be ended with it
        )


class _Forked:
    """What tests use of Popen, for a process that the nursery forked."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._exit = folder / "exit"

    def poll(self) -> int | None:
        if self.returncode is None:
            with contextlib.suppress(FileNotFoundError):
                self.returncode = int(self._exit.read_text())
        return self.returncode

    def wait(self, timeout: float | None = 60) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(0.002)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Nursery:
    """The process that ranks are forked from. It ends when its stdin does."""

    def __init__(self, preload: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=clean_environment() | _preloading(preload) | _ROOM,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def start(
        self,
        command: list[str],
        environment: dict[str, str],
        folder: Path,
        *,
        machine: int | None = None,
        stdin: str = os.devnull,
        outputs: Sequence[str] = ("stdout", "stderr"),
    ) -> _Forked:
        """`machine`: the pid of a Namespace to run in; `stdin` and `outputs` lie in `folder`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        task = {"command": command, "environment": environment, "folder": str(folder)}
        task |= {"machine": machine, "streams": [stdin, *outputs]}
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return _Forked(int(self._process.stdout.readline()), folder)


@functools.cache
def _nursery(preload: str) -> _Nursery:
    return _Nursery(preload)


def start_in_nursery(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    environment: dict[str, str],
    folder: Path,
    streams: Sequence[str],
) -> _Forked:
    """Calls a top-level function in a child of the nursery. `streams`: files for its stdin, stdout
    and stderr; `folder`: for a file that tells its end."""
    command, (stdin, *outputs) = _command(function, arguments), streams
    return _nursery("").start(command, environment, folder, stdin=stdin, outputs=outputs)


class OnHost:
    """A Python program or function in a machine of a test network, with what tests use of Popen.

    The machine's end is its own. `stdout` has what it writes to stdout and stderr.
    """

    def __init__(
        self,
        host: namespace.Namespace,
        what: Path | Callable[..., Any],
        arguments: Sequence[Any],
        env: Mapping[str, str],
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cr-")
        read, write = os.pipe()
        self.stdout = open(read, encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = _nursery("").start(
            _command(what, arguments),
            {**clean_environment(), "PATH": namespace.SBIN_PATH, **env},
            Path(self._folder.name),
            machine=host.pid,
            outputs=[f"/proc/{os.getpid()}/fd/{write}"] * 2,
        )
        os.close(write)
        self.pid = self._process.pid  # of the process that stands in for it outside the machine
        self.poll, self.wait, self.kill = (
            self._process.poll,
            self._process.wait,
            self._process.kill,
        )

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def communicate(self, timeout: float = 60) -> tuple[str, None]:
        """What is left of its output, when it has ended; it is killed after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        late = threading.Timer(timeout, self.kill)
        late.start()
        text = self.stdout.read()
        self.wait()
        late.cancel()
        if time.monotonic() >= deadline:
            raise subprocess.TimeoutExpired(text, timeout)
        return text, None


def _preloading(library: str) -> dict[str, str]:
    return {"LD_PRELOAD": library} if library else {}


class Job:
    """Live ranks. As a context manager it leaves no process and no file behind."""

    def __init__(
        self,
        what: str | Callable[..., Any],
        size: int,
        *,
        args: Sequence[Any] = (),
        env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
        place: bool = True,
        fresh: bool = False,
        servers: int = 0,
        durability: str = "",
        server_env: Callable[[int], Mapping[str, str]] | None = None,
        preload: str = "",
    ) -> None:
        self.size = size
        self.folder = Path(tempfile.mkdtemp(prefix="cr-"))  # short: a Unix socket lies in it
        self.job_dir = self.folder / "job"
        self.job_dir.mkdir(mode=0o700)
        if isinstance(what, str):
            target = self.folder / "script.py"
            target.write_text(what, encoding="utf-8")
            self._command = _command(target, [])
        else:
            self._command = _command(what, args)
        self._env, self._place, self._fresh = env, place, fresh
        self._lives = [1] * size
        self._durability, self._server_env, self._preload = durability, server_env, preload
        self._of_job = {
            "CIRANDA_SIZE": str(size),
            "CIRANDA_JOB_ID": uuid.uuid4().hex,
            "CIRANDA_JOB_DIR": str(self.job_dir),
        }
        if servers:
            self._of_job["CIRANDA_PS_SERVERS"] = ",".join(["here"] * servers)
        self.servers = [self._start_server(server) for server in range(servers)]
        self.processes: list[subprocess.Popen[bytes] | _Forked] = []
        for rank in range(size):
            self._own(rank).mkdir()
            self.processes.append(self._start(rank))

    def _start(self, rank: int) -> subprocess.Popen[bytes] | _Forked:
        environment = clean_environment()
        environment[_FOLDER] = str(self._own(rank))
        if self._place:
            environment |= {
                **self._of_job,
                "CIRANDA_RANK": str(rank),
                "CIRANDA_ERROR_FILE": str(self._own(rank) / "error.json"),
                "CIRANDA_LIFE": str(self._lives[rank]),
            }
        environment |= chosen.environment(rank)
        environment |= (self._env(rank) if callable(self._env) else self._env) or {}
        start = _start_fresh if self._fresh else _nursery(self._preload).start
        return start(self._command, environment, self._own(rank))

    def _servers_at(self) -> list[str]:
        return self._of_job["CIRANDA_PS_SERVERS"].split(",")

    def _start_server(self, server: int) -> subprocess.Popen[bytes]:
        import ciranda

        program = Path(ciranda.__file__).parent / "bin" / "ciranda-ps"
        of_job = {"workers": self._of_job["CIRANDA_SIZE"], "servers": len(self._servers_at())}
        arguments = [f"--{name}={value}" for name, value in {**of_job, "server": server}.items()]
        if self._durability:
            arguments.append(f"--durability={self._durability}")
            arguments.append(f"--dir={self.folder / 'state' / str(server)}")
        output = open(self.folder / f"server-{server}", "ab")  # noqa: SIM115 - the child's
        with output:
            return subprocess.Popen(
                [program, *arguments],
                env={
                    **clean_environment(),
                    **self._of_job,
                    **_preloading(self._preload),
                    **(self._server_env(server) if self._server_env else {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def start_again(self, rank: int) -> None:
        """A rank that has ended, in its next life."""
        self.processes[rank].wait(60)
        self._lives[rank] += 1
        (self._own(rank) / "exit").unlink(missing_ok=True)
        self.processes[rank] = self._start(rank)

    def kill_server(self, server: int) -> None:
        """Another one takes its place, and what it finds of its state."""
        self.servers[server].kill()
        self.servers[server].wait()
        self.servers[server] = self._start_server(server)

    def server_said(self, server: int) -> str:
        return (self.folder / f"server-{server}").read_text(encoding="utf-8", errors="replace")

    def _own(self, rank: int) -> Path:
        return self.folder / str(rank)

    def _text(self, rank: int, name: str) -> str:
        return (self._own(rank) / name).read_text(encoding="utf-8", errors="replace")

    def _json(self, rank: int, name: str) -> Any:
        try:
            return json.loads(self._text(rank, name))
        except FileNotFoundError:
            return None

    def stderr(self, rank: int) -> str:
        """What the rank has written to stderr so far."""
        return self._text(rank, "stderr")

    def wait_for_mark(self, rank: int, name: str, timeout: float = 60) -> None:
        """Until the rank has called mark(name)."""
        deadline = time.monotonic() + timeout
        while not self.has_marked(rank, name):
            assert self.processes[rank].poll() is None, (
                f"rank {rank} ended before it said {name!r}:\n{self.stderr(rank)}"
            )
            assert time.monotonic() < deadline, (
                f"rank {rank} did not say {name!r} within {timeout} s:\n{self.stderr(rank)}"
            )
            time.sleep(0.005)

    def has_marked(self, rank: int, name: str) -> bool:
        """Whether the rank has called mark(name)."""
        return (self._own(rank) / f"mark-{name}").exists()

    def tell(self, name: str) -> None:
        """Lets wait_until_told(name) return in every rank."""
        for rank in range(self.size):
            (self._own(rank) / f"told-{name}").touch()

    def wait(self, timeout: float = 60) -> list[RankResult]:
        """Until every rank has ended; a rank that does not is a failure with all stacks in it."""
        deadline = time.monotonic() + timeout
        for process in self.processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                self._fail_with_stacks(timeout)
        return [
            RankResult(
                rank=rank,
                exit_code=process.wait(),
                stdout=self._text(rank, "stdout"),
                stderr=self._text(rank, "stderr"),
                value=self._json(rank, "value.json"),
                error_report=self._json(rank, "error.json"),
            )
            for rank, process in enumerate(self.processes)
        ]

    def _fail_with_stacks(self, timeout: float) -> None:
        hung = [rank for rank, process in enumerate(self.processes) if process.poll() is None]
        for rank in hung:
            self.processes[rank].send_signal(signal.SIGCONT)
            self.processes[rank].send_signal(signal.SIGABRT)  # faulthandler prints every thread
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and any(
            self.processes[rank].poll() is None for rank in hung
        ):
            time.sleep(0.02)
        self.kill()
        texts = [
            f"--- rank {rank}, exit code {process.returncode}\n{self.stderr(rank)}"
            for rank, process in enumerate(self.processes)
        ]
        raise AssertionError(f"ranks {hung} did not end within {timeout} s\n" + "\n".join(texts))

    def kill(self) -> None:
        """Ends this job's processes, and the children that they forked."""
        for process in [*self.processes, *self.servers]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def start_ranks(
    source_or_function: str | Callable[..., Any],
    size: int,
    *,
    args: Sequence[Any] = (),
    env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
    place: bool = True,
    fresh: bool = False,
    servers: int = 0,
    durability: str = "",
    server_env: Callable[[int], Mapping[str, str]] | None = None,
    preload: str = "",
) -> Job:
    """Starts the ranks and returns at once; use it in a `with`. See run_ranks(). Servers keep what
    they hold where there is a `durability`; server_env(server) is added to the environment of each.
    Ranks and servers load the library `preload` before their own."""
    return Job(
        source_or_function,
        size,
        args=args,
        env=env,
        place=place,
        fresh=fresh,
        servers=servers,
        durability=durability,
        server_env=server_env,
        preload=preload,
    )


def run_ranks(
    source_or_function: str | Callable[..., Any],
    size: int,
    *,
    args: Sequence[Any] = (),
    env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
    timeout: float = 60,
    place: bool = True,
    fresh: bool = False,
    servers: int = 0,
) -> list[RankResult]:
    """Runs a script or a top-level function (with JSON-able `args`) on `size` ranks.

    `env` is added to each rank's environment, or env(rank). Without `place` no CIRANDA_ variables
    are set; with `fresh` each rank is an interpreter of its own; so many parameter servers beside
    them. A rank that fails is in the result; one that does not end is an AssertionError.
    """
    with Job(
        source_or_function, size, args=args, env=env, place=place, fresh=fresh, servers=servers
    ) as job:
        return job.wait(timeout)


def values_of(results: Sequence[RankResult]) -> list[Any]:
    """What the ranks returned; an AssertionError with their stderr if one of them failed."""
    failed = [result for result in results if result.exit_code != 0]
    failed.sort(key=lambda result: "RankLostError" in result.stderr)  # the culprit first
    assert not failed, "\n".join(
        f"--- rank {result.rank}, exit code {result.exit_code}\n{result.stdout}{result.stderr}"
        for result in failed
    )
    return [result.value for result in results]


# --- within a rank -------------------------------------------------------------------------------


def report(value: Any) -> None:
    """Sends the rank's value to the test, now. Returning it from the function does the same."""
    path = Path(os.environ[_FOLDER]) / "value.json"
    path.with_suffix(".new").write_text(json.dumps(value), encoding="utf-8")
    path.with_suffix(".new").rename(path)


def mark(name: str) -> None:
    """Tells the test that this rank has come so far."""
    (Path(os.environ[_FOLDER]) / f"mark-{name}").touch()


def wait_until_told(name: str, timeout: float = 60) -> None:
    """Until the test calls job.tell(name)."""
    path = Path(os.environ[_FOLDER]) / f"told-{name}"
    deadline = time.monotonic() + timeout
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the test did not say {name!r} within {timeout} s")
        time.sleep(0.005)


def _run(path: str, function: str, arguments: str) -> None:
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if device := os.environ.get(DEVICE):
        import torch

        torch.set_default_device(device)
    if not function:
        sys.argv = [path, *json.loads(arguments)]
        sys.path.insert(0, str(Path(path).parent))
        program = types.ModuleType("__main__")
        vars(program).update(__file__=path, report=report, mark=mark)
        sys.modules["__main__"] = program  # where pickle looks
        exec(compile(Path(path).read_text(encoding="utf-8"), path, "exec"), vars(program))  # noqa: S102
        return
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    value = getattr(module, function)(*json.loads(arguments))
    if value is not None:
        report(value)


def _next_task() -> dict[str, Any]:
    """In the nursery: never returns but in a forked rank, with what it shall run."""
    # torch.optim imports torch._dynamo when the first optimizer is made.
    for module in ("torch.utils.data", "torch._dynamo", "ciranda.torch", "pytest"):
        importlib.import_module(module)
    importlib.import_module("ciranda.launch.cli.commands")  # for launchers, see warm.py
    gc.freeze()  # a collection in a rank would write to, and so copy, all that was imported
    atexit._clear()  # triton's bindings look for leaks, which takes longer than all else of a rank
    atexit.register(multiprocessing.util._exit_function)  # it ends the workers of a DataLoader
    living: dict[int, tuple[int, Path]] = {}  # pid and folder of each rank, by its pidfd
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in living:
                poll.unregister(fd)
                os.close(fd)
                _write_down_the_end_of(*living.pop(fd))
                continue
            line = sys.stdin.readline()  # the only one: the next comes after the answer to it
            if not line:
                os._exit(0)
            task = json.loads(line)
            ready_read, ready_write = os.pipe()
            rank = os.fork()
            if rank == 0:
                for each in (ready_read, *living):
                    os.close(each)
                task["ready"] = ready_write
                return dict(task)
            os.close(ready_write)
            os.read(ready_read, 1)
            os.close(ready_read)
            print(rank, flush=True)
            pidfd = os.pidfd_open(rank)
            living[pidfd] = (rank, Path(task["folder"]))
            poll.register(pidfd, select.POLLIN)


def _become_a_rank(task: dict[str, Any]) -> None:
    """In a child of the nursery, whose end is its own too: so no rank outlives pytest."""
    for number, name in enumerate(task["streams"]):
        how = os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY
        fd = os.open(Path(task["folder"]) / name, how, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    namespace.die_with_parent()
    os.setsid()
    if task["machine"] is not None:
        entrances = namespace.entrances_of(task["machine"])
        namespace.enter(entrances)
        for entrance in entrances:
            os.close(entrance)
    os.close(task["ready"])  # which tells the nursery
    os.environ.clear()
    os.environ.update(task["environment"])


def _write_down_the_end_of(rank: int, folder: Path) -> None:
    _, status = os.waitpid(rank, 0)
    with contextlib.suppress(OSError):  # the test may be over
        (folder / "exit.new").write_text(str(os.waitstatus_to_exitcode(status)))
        (folder / "exit.new").rename(folder / "exit")


def _run_and_leave(task: dict[str, Any]) -> NoReturn:
    """As the interpreter would end, but without tearing torch down: that takes a second."""
    code: Any = 0
    try:
        _become_a_rank(task)
        _run(*task["command"])
    except SystemExit as leave:
        code = leave.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _run(*sys.argv[1:])
    else:
        _run_and_leave(_next_task())
