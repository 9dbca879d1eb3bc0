"""Lists of hosts come from files, -H and Slurm: any text gives hosts or costs one line that says
where. hostfile_fuzz.py makes up the texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.hosts import Host, gather_here, parse_hostfile, parse_hosts
from ciranda.launch.plan.slurm import allocated_hosts, step_rendezvous

CORPUS = sorted((Path(__file__).parent / "corpus/hostfile").iterdir())
NAME_CHARACTERS = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:%@")


def read(data: bytes) -> None:
    """The first character says who wrote the rest: `f` a file, `h` -H, `s` Slurm, a variable a
    line."""
    text = data.decode(errors="ignore")
    who, text = text[:1], text[1:]
    try:
        if who == "f":
            _check_hosts(parse_hostfile(text, "hosts"))
        elif who == "s":
            _read_variables(text)
        else:
            _check_hosts(parse_hosts(text))
    except LaunchError as refused:
        sentence = str(refused)
        assert sentence.startswith({"f": "hosts", "s": "SLURM_"}.get(who, "-H: ")), sentence
        assert sentence.isprintable() and len(sentence) < 1500, sentence


def _check_hosts(hosts: tuple[Host, ...]) -> None:
    assert hosts
    for host in hosts:
        assert host.slots > 0
        assert not host.destination.startswith("-")  # for ssh an option
        assert set(host.destination) <= NAME_CHARACTERS, host
    written = ",".join(map(str, hosts))
    assert parse_hosts(written) == hosts
    assert parse_hostfile(written.replace(",", "\n"), "hosts") == hosts
    gather_here(hosts, "node1.example")


def _read_variables(text: str) -> None:
    names = ("JOB_NODELIST", "TASKS_PER_NODE", "STEP_NODELIST", "JOB_ID", "STEP_ID")
    environ = {f"SLURM_{name}": value for name, value in zip(names, text.split("\n"), strict=False)}
    if named := allocated_hosts(environ):
        _check_hosts(named.hosts)
    rendezvous = step_rendezvous(environ)
    assert rendezvous is None or 20_000 <= int(rendezvous.rpartition(":")[2]) < 30_000


@pytest.mark.parametrize("seed", CORPUS, ids=lambda path: path.name)
def test_what_was_found_stays_mended(seed: Path) -> None:
    read(seed.read_bytes())
