"""What the conftest.py of a folder imports whose tests need hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ciranda.netns import namespace, sshd
from ciranda.netns.network import Network


@pytest.fixture
def make_network(tmp_path: Path) -> Iterator[Callable[..., Network]]:
    """`make_network(2, …)` with the arguments of Network; up until the test ends."""
    obstacle = namespace.obstacle()
    if obstacle:
        pytest.skip(f"no hosts can be made here: {obstacle}")
    with ExitStack() as networks:

        def make(count: int, **options: Any) -> Network:
            if options.get("ssh") and sshd.obstacle():
                pytest.skip(f"no ssh between hosts: {sshd.obstacle()}")
            folder = tmp_path / f"net{len(list(tmp_path.glob('net*')))}"
            return networks.enter_context(Network(count, folder, **options))

        yield make
