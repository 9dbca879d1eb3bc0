"""Commands on other hosts, by the system's ssh and the user's own configuration of it.

What ssh is told and what its failures mean is decided without I/O; ask_hosts() runs it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ciranda.run.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, LaunchError
from ciranda.run.hosts import Host

CONNECT_TIMEOUT_S = 5  # for each address that a name has
ANSWER_LIMIT_S = 20.0  # connecting, logging in, and a Python that starts on a busy host
_HOSTS_AT_ONCE = 32
_EXIT_SSH_FAILED = 255
_SAID_CHARACTERS_MAX = 200
_VERSION = re.compile(r"^ciranda (\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """How a command on another host ended."""

    host: Host
    exit_code: int | None  # None: not within the limit
    output: str
    errors: str


def ssh_argv(host: Host, command: Sequence[str]) -> tuple[str, ...]:
    """ssh that asks nothing and gives up soon. All else is as the user has configured it: user
    names, ports, keys, jump hosts, and above all how host keys are checked."""
    options = ("-oBatchMode=yes", f"-oConnectTimeout={CONNECT_TIMEOUT_S}")
    return ("ssh", *options, "--", host.destination, quote_command(command))


def quote_command(command: Sequence[str]) -> str:
    """The one string that ssh hands to the other side's shell; the program there gets `command`.

    Tested with sh and bash. What is secret does not belong here: others see it in their list of
    processes.
    """
    if any("\0" in word for word in command):
        raise LaunchError("the command holds a zero byte, and no program can be given one")
    return shlex.join(command)


def version_command(interpreter: str) -> tuple[str, ...]:
    """The command whose answer version_problem() reads."""
    return (interpreter, "-m", "ciranda", "--version")


def version_problem(answer: Answer, interpreter: str, version: str) -> str | None:
    """Why a host cannot take part, in one sentence; None if it has this version of ciranda."""
    name = answer.host.destination
    if answer.exit_code in (None, _EXIT_SSH_FAILED):
        return _ssh_problem(answer)
    if answer.exit_code in (EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE):
        return (
            f"{name}: there is no Python at {interpreter}; install it and ciranda at the same "
            "place as here"
        )
    found = _VERSION.search(answer.output)
    if answer.exit_code != 0 or found is None:
        if "No module named" in answer.errors:
            return f"{name}: {interpreter} has no ciranda; install ciranda {version} there too"
        said = f" and says: {_last_line(answer)}" if _last_line(answer) else ""
        return (
            f"{name}: {shlex.join(version_command(interpreter))} ends with exit code "
            f"{answer.exit_code}{said}"
        )
    if found[1] != version:
        return f"{name}: ciranda is {found[1]} there and {version} here; install the same"
    return None


def _ssh_problem(answer: Answer) -> str:
    if answer.exit_code is None:
        return f"{answer.host.destination}: {_NO_ANSWER.format(login=answer.host.destination)}"
    for pattern, sentence in _SSH_PROBLEMS:
        if re.search(pattern, answer.errors, re.MULTILINE):
            name, login = answer.host.name, answer.host.destination
            return f"{login}: {sentence.format(name=name, login=login)}"
    return f"{answer.host.destination}: ssh failed: {_last_line(answer) or 'without a word'}"


_NO_ANSWER = (
    f"no answer within {CONNECT_TIMEOUT_S} s; see that it is up and that no firewall is in the "
    "way of: ssh {login}"
)
# What OpenSSH prints, in the order of trust: a changed host key is followed by a refused one.
_SSH_PROBLEMS = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the known one, so it may be another machine; if that is expected, "
        "forget the old key with: ssh-keygen -R {name}",
    ),
    (
        r"^Host key verification failed|host key is known for",
        "its host key is not known here yet; look at it and accept it once with: ssh {login} true",
    ),
    (
        r"UNPROTECTED PRIVATE KEY FILE",
        "ssh ignores a private key that others may read; take their rights away with chmod 600",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "the login is refused, and nobody is there to type a password; bring your key there with: "
        "ssh-copy-id {login}",
    ),
    (
        r"Could not resolve hostname",
        "there is no host of this name; look for a typing error, or add it to /etc/hosts or to "
        "your ~/.ssh/config",
    ),
    (
        r"Connection refused",
        "it is up but refuses ssh; see that sshd runs there, and that the port is right",
    ),
    (r"timed out|Timeout", _NO_ANSWER),
    (
        r"No route to host|Network is unreachable",
        "no network leads there; see that it is up and that its address is right",
    ),
)


def _last_line(answer: Answer) -> str:
    lines = [line.strip() for line in answer.errors.splitlines() if line.strip()]
    text = lines[-1] if lines else ""
    return "".join(each for each in text if each.isprintable())[:_SAID_CHARACTERS_MAX]


# --- what runs ssh -----------------------------------------------------------------------------


def check_hosts(hosts: Sequence[Host], interpreter: str, version: str) -> list[str]:
    """One sentence for each host that cannot be reached or has not this ciranda. Blocks for
    ANSWER_LIMIT_S at most for every 32 hosts."""
    answers = ask_hosts(hosts, version_command(interpreter))
    problems = (version_problem(answer, interpreter, version) for answer in answers)
    return [problem for problem in problems if problem is not None]


def ask_hosts(hosts: Sequence[Host], command: Sequence[str]) -> list[Answer]:
    """Runs a command on each host, many at once. Raises LaunchError where there is no ssh."""
    with ThreadPoolExecutor(_HOSTS_AT_ONCE) as pool:
        return list(pool.map(lambda host: _ask(host, command), hosts))


def _ask(host: Host, command: Sequence[str]) -> Answer:
    try:
        done = subprocess.run(
            ssh_argv(host, command),
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=ANSWER_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return Answer(host, None, "", "")
    except FileNotFoundError:
        raise LaunchError(
            "other hosts need the program ssh, which is not on PATH; install OpenSSH's client",
            EXIT_NOT_FOUND,
        ) from None
    return Answer(host, done.returncode, done.stdout, done.stderr)
