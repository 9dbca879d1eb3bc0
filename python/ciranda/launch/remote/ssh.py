"""Commands on other hosts, through the system's ssh with the user's configuration. Pure.

Builds the arguments of ssh, and explains its failures.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ciranda.launch.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, LaunchError
from ciranda.launch.plan.hosts import Host

CONNECT_TIMEOUT_S = 5  # for each address that a name has
ANSWER_LIMIT_S = 20.0  # to connect, to log in, and to start Python on a busy host
EXIT_SSH_FAILED = 255
_SAID_CHARACTERS_MAX = 200
_VERSION = re.compile(r"^ciranda (\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """The result of a command on another host."""

    host: Host
    exit_code: int
    output: str
    errors: str


def ssh_argv(host: Host, command: Sequence[str], chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns an ssh command that asks nothing and gives up soon.

    The user's configuration and the options `chosen` decide everything else: user names, ports,
    keys, jump hosts, and above all the check of host keys.
    """
    # -T: a terminal on the other host would change the bytes.
    options = ("-T", "-oBatchMode=yes", f"-oConnectTimeout={CONNECT_TIMEOUT_S}")
    return ("ssh", *options, *chosen, "--", host.destination, quote_command(command))


def quote_command(command: Sequence[str]) -> str:
    """Returns `command` as the one string that ssh hands to the shell of the other host.

    Tested with sh and bash. The command must hold no secret, as lists of processes show it.
    """
    if any("\0" in word for word in command):
        raise LaunchError("the command holds a zero byte, and no program can be given one")
    return shlex.join(command)


def agent_command(interpreter: str) -> tuple[str, ...]:
    """Returns the command of an agent, which greets with its version for start_problem().

    The command avoids -m, which would put modules of the start folder, the user's home, before
    Python's own. (-P prevents that from Python 3.11 on.)
    """
    without_here = "sys.path = [folder for folder in sys.path if folder]"
    start = "from ciranda.launch.remote import agent; agent.main()"
    return (interpreter, "-c", f"import sys; {without_here}; {start}")


def start_problem(answer: Answer, command: Sequence[str], version: str) -> str | None:
    """Returns a sentence why a host cannot take part; None if it greeted with this version."""
    name, interpreter = answer.host.destination, command[0]
    if answer.exit_code == EXIT_SSH_FAILED:
        return _ssh_problem(answer)
    if answer.exit_code in (EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE):
        return (
            f"{name}: there is no Python at {interpreter}; install it and ciranda at the same "
            "place as here, or name its place with --python"
        )
    found = _VERSION.search(answer.output)
    if answer.exit_code != 0 or found is None:
        if "No module named" in answer.errors:
            return f"{name}: {interpreter} has no ciranda {version}; install it there too"
        said = f" and says: {last_line(answer)}" if last_line(answer) else ""
        return (
            f"{name}: ciranda's agent in {interpreter} ends with exit code {answer.exit_code}{said}"
        )
    if found[1] != version:
        there = fit_for_sentence(found[1])
        return f"{name}: ciranda is {there} there and {version} here; install the same"
    return None


def no_answer(host: Host) -> str:
    return f"{host.destination}: {_NO_ANSWER.format(login=host.destination)}"


def _ssh_problem(answer: Answer) -> str:
    for pattern, sentence in _SSH_PROBLEMS:
        if re.search(pattern, answer.errors, re.MULTILINE):
            name, login = answer.host.name, answer.host.destination
            return f"{login}: {sentence.format(name=name, login=login)}"
    return f"{answer.host.destination}: ssh failed: {last_line(answer) or 'ssh said nothing'}"


_NO_ANSWER = (
    f"no answer within {CONNECT_TIMEOUT_S} s; see that it is up and that no firewall is in the "
    "way of: ssh {login}"
)
# Messages of OpenSSH. The order matters, as a changed host key also causes the second message.
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


def last_line(answer: Answer) -> str:
    """Returns the last line of stderr, fit for a sentence."""
    lines = [line.strip() for line in answer.errors.splitlines() if line.strip()]
    return fit_for_sentence(lines[-1] if lines else "")[:_SAID_CHARACTERS_MAX]


def fit_for_sentence(text: str) -> str:
    """Returns text of another host on one line, without characters that control a terminal."""
    return "".join(each for each in " ".join(text.split()) if each.isprintable())
