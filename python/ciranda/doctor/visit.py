"""Starts the probe on a host, by ssh if it is another host, and asks it questions.

Its findings between hosts are facts too; hosts_checks.py judges them.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import ciranda
from ciranda.doctor import tcp
from ciranda.doctor.facts import Facts, module_command
from ciranda.launch.plan.hosts import Host
from ciranda.launch.remote import ssh
from ciranda.launch.remote.meeting import Ports

_Found = TypeVar("_Found")

_FACTS_LIMIT_S = 90.0  # includes 60 s for torch
_ASK_LIMIT_S = 10.0
_CALL_LIMIT_S = 20.0
_END_LIMIT_S = 2.0
_CLOCK_TRIES = 7
_AT_ONCE_MAX = 64
_ALL_DISTANCES_MAX = 8  # with more distances, only powers of two are used
_GREETING = re.compile(rb"^ciranda \S+\r?$")
_LINE_BYTES_MAX = 1024 * 1024


class VisitError(Exception):
    """A host could not be visited; the message is in the words of launch.remote.ssh.

    `by_ssh`: ssh itself failed.
    """

    def __init__(self, host: Host, problem: str, *, by_ssh: bool) -> None:
        super().__init__(problem.removeprefix(f"{host.destination}: "))
        self.by_ssh = by_ssh


class Visit:
    """A probe on one host."""

    def __init__(self, host: Host, *, here: bool, python: str) -> None:
        self.host = host
        self.here = here
        self.greeted_s = 0.0  # seconds until the greeting
        self._command = module_command(sys.executable if here else python, "ciranda.doctor.probe")
        argv = self._command if here else ssh.ssh_argv(host, self._command)
        if shutil.which(argv[0]) is None:
            raise VisitError(
                host,
                f"there is no program {argv[0]} here; install it: apt install openssh-client",
                by_ssh=True,
            )
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        stdin, self._questions = os.pipe()
        self._answers, stdout = os.pipe()
        self._process = subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=self._errors)
        os.close(stdin)
        os.close(stdout)
        self._began = time.monotonic()
        self._read = b""

    def greet(self) -> None:
        """Blocks until the probe greets; raises VisitError if it does not."""
        said: list[bytes] = []
        deadline = self._began + ssh.ANSWER_LIMIT_S
        while not (said and _GREETING.match(said[-1])):
            try:
                said.append(self._line(deadline))
            except TimeoutError:
                raise VisitError(self.host, ssh.no_answer(self.host), by_ssh=True) from None
            except EOFError:
                break
        code = 0 if said and _GREETING.match(said[-1]) else self._exit_code()
        answer = self._answer(b"\n".join(said), code)
        problem = ssh.start_problem(answer, self._command, ciranda.__version__)
        if problem:
            raise VisitError(
                self.host, problem, by_ssh=not self.here and code == ssh.EXIT_SSH_FAILED
            )
        self.greeted_s = time.monotonic() - self._began

    def ask(
        self, what: str, more: Mapping[str, Any] | None = None, limit_s: float = _ASK_LIMIT_S
    ) -> dict[str, Any]:
        """Returns the probe's answer; if none arrives in time, {"why_not": …}. Blocks."""
        question = json.dumps({"ask": what, **(more or {})}) + "\n"
        try:
            os.write(self._questions, question.encode())
            found: dict[str, Any] = json.loads(self._line(time.monotonic() + limit_s))
        except TimeoutError:
            return {"why_not": f"{self.host.name} has not answered for {limit_s:g} s"}
        except (EOFError, BrokenPipeError):
            return {"why_not": f"the doctor's program on {self.host.name} has ended"}
        except ValueError:
            return {"why_not": f"the doctor's program on {self.host.name} has sent no answer"}
        return found

    def clock_offset(self) -> dict[str, float]:
        """Returns how far the host's clock is ahead of ours, by the quickest of several answers."""
        best: dict[str, float] = {}
        for _ in range(_CLOCK_TRIES):
            sent = time.time()
            theirs = self.ask("time").get("time_s")
            received = time.time()
            error_s = abs(received - sent) / 2
            if theirs is not None and error_s < best.get("error_s", float("inf")):
                best = {"offset_s": theirs - (sent + received) / 2, "error_s": error_s}
        return best

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()
        os.close(self._questions)
        os.close(self._answers)

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self._read and len(self._read) < _LINE_BYTES_MAX:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([self._answers], [], [], left_s)[0]:
                raise TimeoutError
            chunk = os.read(self._answers, 64 * 1024)
            if not chunk:
                raise EOFError
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _exit_code(self) -> int:
        """Returns the exit code of a process that has closed its output and is about to end."""
        try:
            return self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _answer(self, output: bytes, code: int) -> ssh.Answer:
        self._errors.seek(0)
        errors = self._errors.read().decode("utf-8", "replace")
        return ssh.Answer(self.host, code, output.decode("utf-8", "replace") + "\n", errors)


@contextmanager
def visits(
    hosts: Sequence[Host], here: str, python: str
) -> Iterator[tuple[list[Visit], dict[str, VisitError]]]:
    """Visits all hosts at once; yields the visits, and the errors by host name."""
    made: list[Visit] = []
    problems: dict[str, VisitError] = {}
    with ExitStack() as stack:
        for host in hosts:
            is_here = host.name == here and host.user is None
            try:
                visit = Visit(host, here=is_here, python=python)
            except VisitError as error:
                problems[host.name] = error
                continue
            stack.callback(visit.close)
            made.append(visit)

        def greet(visit: Visit) -> VisitError | None:
            try:
                visit.greet()
            except VisitError as error:
                return error
            return None

        for visit, problem in zip(made, at_once(greet, made), strict=True):
            if problem is not None:
                problems[visit.host.name] = problem
        yield [visit for visit in made if visit.host.name not in problems], problems


def at_once(do: Callable[[Any], _Found], items: Sequence[Any]) -> list[_Found]:
    """Calls `do` with each item, each in a thread; returns the results in order. Blocks."""
    if not items:
        return []
    pool = ThreadPoolExecutor(min(len(items), _AT_ONCE_MAX))
    try:
        return list(pool.map(do, items))
    finally:  # does not wait after Ctrl-C; the end of the visits ends the threads
        pool.shutdown(wait=False, cancel_futures=True)


def facts_of(
    there: Sequence[Visit], *, names: Sequence[str], nic: str, ports: Ports, folder: str
) -> dict[str, Facts]:
    """Returns the facts of each host, by its name."""

    question = {
        "names": names,
        "nic": nic,
        "ports": [ports.first, ports.last],
        "folder": folder,
    }
    found = at_once(lambda visit: visit.ask("facts", question, _FACTS_LIMIT_S), there)
    return {visit.host.name: facts for visit, facts in zip(there, found, strict=True)}


def call_each_other(
    there: Sequence[Visit], addresses: Mapping[str, str], ports: Ports
) -> dict[tuple[str, str], dict[str, Any]]:
    """Has hosts call each other; returns the callers' findings, by (caller, called).

    In each round every host calls one other host and is called by one, as in a ring.
    """
    ready = [visit for visit in there if visit.host.name in addresses]
    ways: dict[tuple[str, str], dict[str, Any]] = {}

    def call(pair: tuple[Visit, Visit]) -> dict[str, Any]:
        caller, called = pair
        at = listening[called.host.name]
        if "port" not in at:
            return {"end": tcp.FAILED, "why": at["why_not"], "address": at["address"], "port": 0}
        return caller.ask("call", at, _CALL_LIMIT_S)

    def listen(visit: Visit) -> dict[str, Any]:
        at = {"address": addresses[visit.host.name], "token": tcp.draw_token()}
        question = at | {"ports": [ports.first, ports.last]}
        return at | visit.ask("listen", question)

    for distance in distances(len(ready)):
        found = at_once(listen, ready)
        listening = {visit.host.name: at for visit, at in zip(ready, found, strict=True)}
        pairs = list(zip(ready, [*ready[distance:], *ready[:distance]], strict=True))
        for (caller, called), way in zip(pairs, at_once(call, pairs), strict=True):
            ways[caller.host.name, called.host.name] = way
    return ways


def distances(host_count: int) -> list[int]:
    """Returns the distance between caller and called host in each round.

    All pairs call both ways; among many hosts only some pairs do.
    """
    if host_count <= _ALL_DISTANCES_MAX + 1:
        return list(range(1, host_count))
    return [1 << power for power in range((host_count - 1).bit_length())]
