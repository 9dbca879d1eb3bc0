"""Scripts that train, on one process with the joined batch and on ranks with a part each.

A script is a function of a Run that returns the tensors to compare. Its ranks begin with other
parameters than rank 0's, so that it has to broadcast them; `Run.distribute` does what a user does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from sharing import any_size
from torch import nn

import ciranda.torch as hvd

Mode = Literal["auto", "host", False]
ALL_MODES: tuple[Mode, ...] = ("auto", "host", False)
OWN_STEP: tuple[Mode, ...] = ("auto", False)  # for what no ranks can share: "host" refuses it
GLOBAL_BATCH = 12  # to be divided by 2 and by 3

Batch = tuple[torch.Tensor, torch.Tensor]


class Run:
    """Plain torch in one process with the joined batch."""

    def parts(self) -> Iterable[int]:
        """The ranks whose samples this process has."""
        return range(hvd.size())

    def batch(self, step: int, inputs: int = 6, classes: int = 3) -> Batch:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(GLOBAL_BATCH, inputs, generator=generator, dtype=torch.float64)
        y = torch.randint(0, classes, (GLOBAL_BATCH,), generator=generator)
        own = self.parts()
        return tuple(
            torch.cat([t.chunk(hvd.size())[rank] for rank in own])
            for t in (x.to(torch.get_default_dtype()), y)
        )  # type: ignore[return-value]

    def distribute(self, optimizer: Any, model: nn.Module | None = None, **options: Any) -> Any:
        return optimizer

    def synchronize(self, optimizer: Any) -> None:
        """Before a script looks at p.grad, or edits it."""

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Over the ranks, of what each has computed from its part."""
        return value


class OnRanks(Run):
    """ciranda, on this rank."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.optimizers: list[Any] = []

    def parts(self) -> Iterable[int]:
        return [hvd.rank()]

    def distribute(self, optimizer: Any, model: nn.Module | None = None, **options: Any) -> Any:
        with any_size():
            made = hvd.DistributedOptimizer(
                optimizer,
                model.named_parameters() if model is not None else None,
                shared_step=self.mode,
                **options,
            )
        if model is not None:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(hvd.rank())
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            if not isinstance(optimizer, torch.optim.LBFGS):
                hvd.broadcast_optimizer_state(made, root_rank=0)
        self.optimizers.append(made)
        return made

    def synchronize(self, optimizer: Any) -> None:
        optimizer.synchronize()

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        return hvd.allreduce(value)


Script = Callable[[Run], list[torch.Tensor]]


def compare(
    script: Script,
    modes: Iterable[Mode] = ALL_MODES,
    tolerance: float = 1e-9,
    dtype: torch.dtype = torch.float64,
    shares: bool = True,
) -> None:
    """With "auto" and "host" the ranks share the step to the end, if the script `shares`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        torch.manual_seed(1)
        wanted = script(Run())
        for mode in modes:
            torch.manual_seed(1)
            run = OnRanks(mode)
            found = script(run)
            for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
                where = f"shared_step={mode!r}, tensor {number} of the script"
                torch.testing.assert_close(
                    ours.detach(),
                    theirs.detach(),
                    rtol=tolerance,
                    atol=tolerance,
                    msg=lambda text, where=where: f"{where}: {text}",
                )
                everybodys = hvd.allgather(ours.detach().unsqueeze(0).contiguous())
                assert (everybodys == everybodys[0]).all(), where
            for optimizer in run.optimizers:
                why = optimizer.why_not_shared()
                assert (not why) == (shares and mode is not False), (mode, why)
    finally:
        torch.set_default_dtype(before)


def values(*modules: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for module in modules for p in module.parameters()]
