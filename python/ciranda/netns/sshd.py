"""An sshd in every host, and clients that know all hosts. `ssh NAME` just works.

Keys, known hosts and configurations are made for one network, in its folder. A host sees them as
the machine's configuration (/etc/ssh), and has an empty ~/.ssh.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ciranda.netns.namespace import SBIN_PATH, Namespace

_CLIENT = """\
Host *
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  IdentityAgent none
  GlobalKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
"""
# Only keys count; the machine's PAM modules and accounts are not used. StrictModes would reject a
# folder below /tmp, which is writable for all users.
_SERVER = """\
HostKey {folder}/{name}_key
AuthorizedKeysFile {folder}/user_key.pub
AuthenticationMethods publickey
StrictModes no
UsePAM no
PidFile none
PrintMotd no
LogLevel VERBOSE
"""
# UsePAM no refuses an account with a password field that begins with "!", as root's does on Ubuntu.
_SHADOW = "root:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n"


def obstacle() -> str | None:
    """Returns why sshd cannot run here; None if it can."""
    for program in ("sshd", "ssh", "ssh-keygen"):
        if shutil.which(program, path=SBIN_PATH) is None:
            return f"the program {program} is not installed (tools/setup.sh starters)"
    return None


def make_keys(folder: Path, hosts: Mapping[str, Sequence[str]]) -> None:
    """Makes keys of the user and of the hosts. `hosts` maps each name to its addresses."""
    folder.mkdir()
    _make_key(folder / "user_key")
    known = []
    for name, addresses in hosts.items():
        public = _make_key(folder / f"{name}_key")
        known.append(f"{','.join([name, *addresses])} {public}")
    (folder / "known_hosts").write_text("".join(known))


def client_files(folder: Path) -> dict[str, str]:
    """Returns the files that a host sees in its /etc."""
    return {"ssh/ssh_config": _CLIENT.format(folder=folder), "shadow": _SHADOW}


def start_sshd(host: Namespace, folder: Path) -> None:
    """Starts sshd in a host; returns when it listens. It ends with the host."""
    configuration = folder / f"{host.name}_sshd_config"
    configuration.write_text(_SERVER.format(folder=folder, name=host.name))
    program = shutil.which("sshd", path=SBIN_PATH)  # sshd demands an absolute path
    if program is None:
        raise OSError(str(obstacle()))
    host.check([program, "-f", str(configuration), "-E", str(folder / f"{host.name}_sshd.log")])


def _make_key(path: Path) -> str:
    """Makes a pair of keys without a passphrase; returns the public one."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path.with_name(path.name + ".pub").read_text()
