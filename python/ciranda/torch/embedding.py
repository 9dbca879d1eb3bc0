"""Tables of rows on parameter servers, of which a worker has only those that it looks up."""

from __future__ import annotations

import weakref
from typing import Literal

import torch
from torch.nn import functional as F

from ciranda import _C
from ciranda.errors import InvalidArgumentError

# By table, in the order in which they were made.
_all: weakref.WeakValueDictionary[int, Embedding] = weakref.WeakValueDictionary()


class Embedding(torch.nn.Module):
    """torch.nn.Embedding whose table lies on the parameter servers alone, row r on server r mod N:
    forward() fetches the rows that are looked up, and the optimizer's step() pushes their
    gradients, which make the table's own step there. Rows that nobody has looked up take no memory.

    num_embeddings, embedding_dim: as in torch; at most 2**40 rows of 65,536 float32. optimizer:
    "sgd" or "adagrad", as torch.optim's for sparse gradients, with `lr`, which may be changed at
    any time (`table.lr = 0.1`), and Adagrad's initial_accumulator_value and eps. deviation: of the
    normal distribution that rows begin with, from `seed`, the same for any number of servers; 0:
    zeros. name: the same in all workers, another one for each table.

    Made on every worker, before DistributedOptimizer(..., backend="ps"), which declares it. Ids may
    have any shape, on any device; the result is float32 on theirs. Gradients are those of
    backward() since the step before, and are neither clipped nor unscaled: not for GradScaler.
    Only in modes in which nobody waits (ps.Async(), ps.Downpour()) is their step of the same time
    as the parameters' own; rows are always updated at once.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        lr: float,
        optimizer: Literal["sgd", "adagrad"] = "sgd",
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        deviation: float = 1.0,
        seed: int = 0,
        name: str = "embedding",
    ) -> None:
        super().__init__()
        if optimizer not in ("sgd", "adagrad"):
            raise InvalidArgumentError(
                f"Embedding: optimizer must be 'sgd' or 'adagrad', not {optimizer!r}; others "
                "change a row also when it has no gradient"
            )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.lr = lr
        self._gradients: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._table = _C.add_row_table(
            name=name,
            rows=num_embeddings,
            columns=embedding_dim,
            adagrad=optimizer == "adagrad",
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
            deviation=deviation,
            seed=seed,
        )
        _all[self._table] = self

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of these ids (any integer dtype), shape ids.shape + (embedding_dim,). Blocks
        for the servers."""
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise InvalidArgumentError(f"Embedding: ids must be integers, not {ids.dtype}")
        looked_up, places = torch.unique(ids.detach().cpu().long(), return_inverse=True)
        if looked_up.numel() and not 0 <= looked_up[0] <= looked_up[-1] < self.num_embeddings:
            raise InvalidArgumentError(
                f"Embedding: ids must be 0 to {self.num_embeddings - 1}, not {looked_up[0].item()} "
                f"to {looked_up[-1].item()}"
            )
        rows = _C.pull_rows(self._table, looked_up).to(ids.device)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            rows.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self._keep(looked_up, gradient)
            )
        return F.embedding(places.to(ids.device), rows)

    def _keep(self, looked_up: torch.Tensor, gradient: torch.Tensor) -> None:
        self._gradients.append((looked_up, gradient.detach().cpu()))

    def push(self) -> None:
        """Pushes the gradients since the latest; step() of DistributedOptimizer does so. Blocks."""
        gradients, self._gradients = self._gradients, []
        if not gradients:
            return
        looked_up, summed = gradients[0]
        if len(gradients) > 1:
            looked_up, places = torch.unique(
                torch.cat([rows for rows, _ in gradients]), return_inverse=True
            )
            summed = torch.zeros(len(looked_up), self.embedding_dim)
            summed.index_add_(0, places, torch.cat([each for _, each in gradients]))
        _C.push_rows(self._table, looked_up, summed, self.lr)

    def forget(self) -> None:
        """Drops the gradients since the latest push; zero_grad() of DistributedOptimizer does."""
        self._gradients = []


def push_all() -> None:
    """Of every table of this process, in the order in which they were made."""
    for each in _all.values():
        each.push()


def forget_all() -> None:
    """Of every table."""
    for each in _all.values():
        each.forget()
