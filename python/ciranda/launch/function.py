"""ciranda.run(): calls a Python function on N ranks of a launcher and returns the results.

The function and the results travel in files that only this user can read, in a private folder. To
and from other hosts they go through ssh, in the agents' frames. Nothing listens, and bytes of
another user are never unpickled.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from ciranda.errors import CirandaError, InvalidArgumentError, RankFailedError
from ciranda.launch import call_files
from ciranda.launch.errors import LaunchError
from ciranda.launch.plan import launch_plan
from ciranda.launch.plan.hosts import HostSource, parse_hostfile, parse_hosts
from ciranda.launch.run import process_tree
from ciranda.launch.run.folders import private_folder

_Result = TypeVar("_Result")

_SPAWNED_MAIN = "__mp_main__"  # the main module of a process that multiprocessing spawned

_LAUNCH = "from ciranda.launch.function import be_launcher; be_launcher()"
_START = "from ciranda.launch.function import be_rank; be_rank()"


class _Outcome(NamedTuple):
    """The content of a rank's outcome file: a result, or an exception's title and traceback."""

    result: Any = None
    title: str = ""
    text: str = ""
    victim: bool = False


class RemoteTraceback(Exception):
    """The cause of a RankFailedError: the traceback of the rank."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def run(
    fn: Callable[..., _Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 1,
    *,
    hosts: str | None = None,
    hostfile: str | None = None,
    options: Sequence[str] = (),
    executable: str | None = None,
) -> list[_Result]:
    """Calls `fn(*args, **kwargs)` on `np` ranks; returns the results by rank.

    Blocks until the job has ended. `hosts` and `hostfile` are the options of `ciranda run`; without
    them all ranks run on this host. `options` are further options of `ciranda run`, such as
    `["--timeout", "600"]`. `executable` is the Python of the ranks (default: this one). Raises
    RankFailedError if a rank or the job fails, with the rank's traceback as its cause, and
    InvalidArgumentError if an argument is invalid or cannot be pickled.
    """
    placement = _placement(np, hosts, hostfile)
    call = _pack(fn, tuple(args), dict(kwargs or {}))
    with private_folder() as folder:
        modules = [os.path.abspath(part) for part in sys.path] if executable is None else []
        call_files.write(call_files.call_file(folder), pickle.dumps((modules, call)))
        ranks = [executable or sys.executable, "-c", _START]
        launcher = [sys.executable, "-c", _LAUNCH, str(os.getpid())]
        command = [*launcher, *placement, *options, "--", *ranks]
        # The launcher inherits our streams, so that output of ranks appears at once.
        environment = {**os.environ, call_files.FOLDER: folder}
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, env=environment, check=False
        ).returncode
        outcomes = [_read_outcome(folder, rank) for rank in range(np)]
    _raise_first_failure(outcomes)
    if code != 0 or None in outcomes:
        silent = [rank for rank, outcome in enumerate(outcomes) if outcome is None]
        rank = silent[0] if silent else None
        what = f"before rank {rank} returned" if silent else "after all ranks had returned"
        raise RankFailedError(
            f"the job ended with exit code {code} {what}; the launcher has said why on stderr",
            rank=rank,
        )
    return [outcome.result for outcome in outcomes if outcome is not None]


def _placement(np: int, hosts: str | None, hostfile: str | None) -> list[str]:
    """Returns the launcher's host options. Raises errors that the launcher would only print."""
    if hosts is not None and hostfile is not None:
        raise InvalidArgumentError("run(): hosts and hostfile both name the hosts; give one")
    try:
        if hostfile is not None:
            with open(hostfile, encoding="utf-8") as file:
                named = parse_hostfile(file.read(), hostfile)
        else:
            named = parse_hosts(hosts or f"localhost:{np}")
        source = HostSource(named, "run()")
        launch_plan.choose_places(np, source, cores=1, host=os.uname().nodename)
    except OSError as error:
        raise InvalidArgumentError(f"run(): hostfile {hostfile}: {error.strerror}") from error
    except LaunchError as error:
        raise InvalidArgumentError(f"run(): {error}") from None
    named_by = ["--hostfile", hostfile] if hostfile else ["-H", hosts or f"localhost:{np}"]
    return ["-np", str(np), *named_by]


def _by_value() -> ModuleType:
    """Returns cloudpickle, which pickles functions that are in no module, or else pickle."""
    try:
        import cloudpickle
    except ImportError:
        return pickle
    if _SPAWNED_MAIN in sys.modules:
        cloudpickle.register_pickle_by_value(sys.modules[_SPAWNED_MAIN])
    return cloudpickle  # type: ignore[no-any-return]


def _pack(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    pickler = _by_value()
    name = getattr(fn, "__qualname__", repr(fn))
    if pickler is pickle and getattr(fn, "__module__", "") in ("__main__", _SPAWNED_MAIN):
        raise InvalidArgumentError(
            f"run(): '{name}' is not in a module that ranks can import; pip install cloudpickle, "
            "or move it into a module"
        )
    try:
        packed: bytes = pickler.dumps((fn, args, kwargs))
    except Exception as error:
        hint = "; pip install cloudpickle sends more" if pickler is pickle else ""
        raise InvalidArgumentError(
            f"run(): '{name}' and its arguments cannot be pickled: {error}{hint}"
        ) from error
    return packed


def _read_outcome(folder: str, rank: int) -> _Outcome | None:
    try:
        content = call_files.read(call_files.outcome_file(folder, rank))
    except FileNotFoundError:
        return None
    try:
        outcome: _Outcome = pickle.loads(content)  # noqa: S301 - our own rank's, see above
    except Exception as error:
        raise RankFailedError(
            f"the result of rank {rank} cannot be unpickled here: {error}", rank=rank
        ) from error
    return outcome


def _raise_first_failure(outcomes: Sequence[_Outcome | None]) -> None:
    """Raises the failure of the first rank that failed, if possible one that is no victim."""
    failed = [
        (outcome.victim, rank, outcome)
        for rank, outcome in enumerate(outcomes)
        if outcome is not None and outcome.title
    ]
    silent = any(outcome is None for outcome in outcomes)
    if failed:
        victim, rank, outcome = min(failed, key=lambda each: each[:2])
        if victim and silent:  # a silent rank is the culprit
            return
        raise RankFailedError(
            f"rank {rank} raised {outcome.title}", rank=rank
        ) from RemoteTraceback(outcome.text)


def be_launcher() -> None:
    """Runs `ciranda run`, which ends with all ranks when the process that called run() dies."""
    from ciranda.launch.cli.run import AS_FUNCTION, run_command

    process_tree.die_with_parent(int(sys.argv[1]))
    run_command.main(sys.argv[2:], prog_name=AS_FUNCTION)


def be_rank() -> None:
    """The main function of each rank: makes the call and writes the outcome."""
    folder, rank = os.environ[call_files.FOLDER], int(os.environ["CIRANDA_RANK"])
    content = call_files.read(call_files.call_file(folder))
    modules, call = pickle.loads(content)  # noqa: S301 - our caller's, see above
    sys.path[:] = [*modules, *(part for part in sys.path if part not in modules)]
    try:
        fn, args, kwargs = pickle.loads(call)  # noqa: S301 - our caller's, see above
        outcome = _packed_result(fn(*args, **kwargs))
    except Exception as error:
        title = "".join(traceback.format_exception_only(error)).strip()
        failure = _Outcome(
            title=title,
            text=traceback.format_exc().rstrip(),
            victim=isinstance(error, CirandaError) and error.rank not in (None, rank),
        )
        call_files.write(call_files.outcome_file(folder, rank), pickle.dumps(failure))
        raise
    call_files.write(call_files.outcome_file(folder, rank), outcome)


def _packed_result(result: Any) -> bytes:
    try:
        packed: bytes = _by_value().dumps(_Outcome(result))
    except Exception as error:
        raise InvalidArgumentError(
            f"the result, a {type(result).__name__}, cannot be pickled: {error}"
        ) from error
    return packed
