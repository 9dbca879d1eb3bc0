"""The backends and devices that one test runs over, as a parameter.

    @over_every_backend
    def test_x() -> None: ...                       # its ranks get the choice by themselves

    @over_every_backend
    @on_ranks(1, 2, 3, 8, one_elsewhere=True)       # ours on each of these, the others on one
    def test_y() -> None: ...

A new backend is a row below. A row that this machine cannot run skips with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

DEVICE = "CIRANDA_TEST_DEVICE"  # where a rank makes its tensors


@dataclass(frozen=True)
class Backend:
    """What a test's ranks are told."""

    name: str  # as _C.backends() has it
    size: int  # ranks, where only one number of them is tried
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self, rank: int) -> dict[str, str]:
        # NCCL refuses two ranks on one GPU unless they seem to be on two hosts.
        own = {"NCCL_HOSTID": str(rank)} if self.name == "nccl" else {}
        return {**self.variables, **own}

    def missing(self) -> str | None:
        """Why it cannot run here, if so."""
        import torch  # noqa: F401 - its libraries, before ours

        from ciranda import _C

        row = next(row for row in _C.backends() if row["name"] == self.name)
        return None if row["available"] else str(row["why_not"])


OURS = Backend("native", 2)
GLOO = Backend("gloo", 3, {"CIRANDA_CPU_OPERATIONS": "gloo", "CIRANDA_TRUSTED_NETWORK": "1"})
NCCL = Backend("nccl", 2, {DEVICE: "cuda"})
_ON_CPU = [pytest.param(OURS, id="ours"), pytest.param(GLOO, id="gloo")]
_ALL = [*_ON_CPU, pytest.param(NCCL, id="nccl", marks=pytest.mark.gpu)]

over_every_backend = pytest.mark.parametrize("backend", _ALL, indirect=True)
over_backends_of_the_cpu = pytest.mark.parametrize("backend", _ON_CPU, indirect=True)
