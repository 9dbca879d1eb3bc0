"""Tables of rows on parameter servers; a worker fetches only the rows that it looks up."""

from __future__ import annotations

import weakref
from typing import Any, Literal, NoReturn

import torch
from torch.nn import functional as F

from ciranda import _C
from ciranda.errors import InvalidArgumentError
from ciranda.torch.ps.stand_in import StandIn, next_number

# Maps a table to its Embedding, in the order in which they were made.
_all: weakref.WeakValueDictionary[int, Embedding] = weakref.WeakValueDictionary()


class Embedding(torch.nn.Module):
    """torch.nn.Embedding with its table on the servers alone, row r on server r mod N.

    forward() fetches the rows that are looked up. The optimizer's step() pushes their gradients,
    with which the servers make the table's own step. Rows that nobody has looked up take no memory.

    num_embeddings, embedding_dim: as in torch; at most 2**40 rows of 65,536 float32.
    optimizer: "sgd" or "adagrad", as torch.optim's for sparse gradients, with `lr`, which may be
    changed at any time (`table.lr = 0.1`), and Adagrad's initial_accumulator_value and eps.
    deviation: rows begin normally distributed with this standard deviation, by `seed`, the same for
    any number of servers; 0: zeros.
    name: the same in all workers, and different for each table; by default from the order in which
    they are made.

    Make it on every worker, before DistributedOptimizer(..., ps=...), which declares it. Ids
    may have any shape, on any device; the result is float32 on their device. `weight` has no values
    here, but the gradient that torch's has with sparse=True. Give it to the optimizer with the
    model's other parameters, so that GradScaler finds it. Servers update rows at once in every
    mode. So rows and parameters are updated together only in modes in which nobody waits
    (ps.Async(), ps.Downpour()).
    """

    weight: StandIn

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
        name: str | None = None,
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
        if name is None:
            number = next_number("embedding")
            name = f"embedding {number}" if number else "embedding"
        self.name = name
        self._table = _C.add_row_table(
            name=self.name,
            rows=num_embeddings,
            columns=embedding_dim,
            adagrad=optimizer == "adagrad",
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
            deviation=deviation,
            seed=seed,
        )
        self.weight = StandIn((num_embeddings, embedding_dim))
        _all[self._table] = self

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of these ids, float32 of shape ids.shape + (embedding_dim,).

        `ids` may have any integer dtype. Blocks for the servers. Raises InvalidArgumentError for
        ids that are not integers of 0 to num_embeddings - 1.
        """
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise InvalidArgumentError(f"Embedding: ids must be integers, not {ids.dtype}")
        looked_up, places = torch.unique(ids.detach().cpu().long(), return_inverse=True)
        if looked_up.numel() and not 0 <= looked_up[0] <= looked_up[-1] < self.num_embeddings:
            raise InvalidArgumentError(
                f"Embedding: ids must be 0 to {self.num_embeddings - 1}, not {looked_up[0].item()} "
                f"to {looked_up[-1].item()}"
            )
        rows = _C.pull_rows(self._table, looked_up).to(ids.device)
        rows = _Rows.apply(self.weight, rows, looked_up)
        return F.embedding(places.to(ids.device), rows)

    def push(self) -> None:
        """Pushes the gradient and drops it. Blocks. step() of DistributedOptimizer does it too."""
        self._push(1.0)
        self.forget()

    def _push(self, scale: float) -> None:
        gradient = self.weight.grad
        if gradient is None:
            return
        looked_up, values = _rows_of(gradient)
        if looked_up.numel() > 0:
            values = values if scale == 1.0 else values * scale
            _C.push_rows(self._table, looked_up, values, self.lr)

    def forget(self) -> None:
        """Drops the gradient. zero_grad() of DistributedOptimizer does it too."""
        self.weight.grad = None

    def _save_to_state_dict(self, *_: Any) -> None:
        """Saves nothing: the servers have the rows."""

    def _load_from_state_dict(self, *_: Any) -> None:
        """Loads nothing, since nothing is saved."""

    def _apply(self, *_: Any, **__: Any) -> Embedding:
        """Moves nothing: rows are fetched to the device of the ids."""
        return self

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise InvalidArgumentError(
            f"Embedding '{self.name}': it cannot be copied or pickled, since its rows are the "
            "servers'; use it itself in both models"
        )


class _Rows(torch.autograd.Function):
    """Rows of a table's weight; its gradient is sparse and has only these rows."""

    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, rows: torch.Tensor, looked_up: torch.Tensor
    ) -> torch.Tensor:
        ctx.looked_up, ctx.shape = looked_up, weight.shape
        return rows

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _sparse(ctx.looked_up[None], gradient.cpu(), ctx.shape), None, None


def _sparse(rows: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return torch.sparse_coo_tensor(rows, values, shape, check_invariants=False, is_coalesced=True)


def _rows_of(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the numbers of a gradient's rows, ascending and each once, and the rows' values."""
    if not gradient.is_sparse or gradient.sparse_dim() != 1:
        gradient = gradient.to_dense().to_sparse(1)
    gradient = gradient.detach()
    rows = gradient._indices()[0]
    if bool((rows[1:] > rows[:-1]).all()):  # autograd does not mark a first gradient as coalesced
        return rows, gradient._values()
    gradient = gradient.coalesce()
    return gradient.indices()[0], gradient.values()


def _living() -> list[Embedding]:
    return list(_all.values()) if _all else []  # each step asks, and iterating takes 2 us


def push_all(scale: float) -> None:
    """Pushes the gradients, times `scale`, of every table of this process.

    Tables are in the order in which they were made. Blocks.
    """
    for each in _living():
        each._push(scale)


def squares() -> float:
    """Returns the sum of the squares of every table's gradient."""
    gradients = [e.weight.grad for e in _living() if e.weight.grad is not None]
    return sum(float(_rows_of(each)[1].double().square().sum()) for each in gradients)


def not_among(parameters: list[torch.Tensor]) -> Embedding | None:
    """Returns a table that has a gradient and a weight outside of `parameters`, or None."""
    known = {id(parameter) for parameter in parameters}
    return next(
        (e for e in _living() if e.weight.grad is not None and id(e.weight) not in known), None
    )


def forget_all() -> None:
    """Drops the gradient of every table."""
    for each in _living():
        each.forget()
