"""Gradients of the collectives: Horovod's, on every rank and to any order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from backends import over_every_backend
from rank_checks import on_ranks
from samples import close, reduced, same, sample

import ciranda.torch as hvd

pytestmark = over_every_backend


def leaf(shape: tuple[int, ...]) -> torch.Tensor:
    return sample(hvd.rank(), shape).requires_grad_()


def weight(rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    """What the loss of `rank` multiplies the output with."""
    return sample(rank + 4, shape)


def grad_of(output: torch.Tensor, leaf_tensor: torch.Tensor) -> torch.Tensor:
    (output * weight(hvd.rank(), tuple(output.shape))).sum().backward()
    assert leaf_tensor.grad is not None
    return leaf_tensor.grad


@on_ranks(2, 3)
def test_allreduce() -> None:
    weights = [weight(rank, (3, 4)) for rank in range(hvd.size())]
    for op in (hvd.Average, hvd.Sum):
        x = leaf((3, 4))
        output = hvd.allreduce(x, op=op)
        assert output.requires_grad
        close(grad_of(output, x), reduced(weights, op))
    x = leaf((3, 4))
    output = hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25)
    close(grad_of(output, x), reduced(weights, hvd.Sum) * 0.5)
    x = leaf((3, 4))
    close(
        grad_of(hvd.allreduce(x, compression=hvd.Compression.fp16), x),
        reduced(weights, hvd.Average),
    )
    x = leaf((3, 4))
    with torch.no_grad():
        assert not hvd.allreduce(x).requires_grad
    # A gradient that is not contiguous: that of a sum over a transposed view.
    x = leaf((3, 4))
    hvd.allreduce(x, op=hvd.Sum).T.sum().backward()
    close(x.grad, torch.full((3, 4), float(hvd.size())))


@on_ranks(2, 3)
def test_broadcast() -> None:
    weights = [weight(rank, (5,)) for rank in range(hvd.size())]
    x = leaf((5,))
    expected = reduced(weights, hvd.Average) if hvd.rank() == 1 else torch.zeros(5)
    close(grad_of(hvd.broadcast(x, 1), x), expected)


@on_ranks(2, 3)
def test_allgather() -> None:
    rows = [rank + 1 for rank in range(hvd.size())]
    total = sum(rows)
    weights = [weight(rank, (total, 2)) for rank in range(hvd.size())]
    x = leaf((rows[hvd.rank()], 2))
    expected = reduced(weights, hvd.Average).split(rows)[hvd.rank()]
    close(grad_of(hvd.allgather(x), x), expected)


@on_ranks(2, 3)
def test_alltoall() -> None:
    size, rank = hvd.size(), hvd.rank()
    splits = [[(sender + 2 * to) % 3 for to in range(size)] for sender in range(size)]
    received = [[splits[sender][to] for sender in range(size)] for to in range(size)]
    weights = [weight(r, (sum(received[r]), 2)) for r in range(size)]
    x = leaf((sum(splits[rank]), 2))
    output, rows = hvd.alltoall(x, splits[rank])
    assert rows.tolist() == received[rank]
    expected = torch.cat([weights[to].split(received[to])[rank] for to in range(size)])
    close(grad_of(output, x), expected)
    x = leaf((size, 2))
    hvd.alltoall(x).sum().backward()
    close(x.grad, torch.ones(size, 2))


@on_ranks(2, 3)
def test_reducescatter() -> None:
    size, rank = hvd.size(), hvd.rank()
    rows = [2 + (r < 1) for r in range(size)]  # with a remainder
    gathered = torch.cat([weight(r, (rows[r], 2)) for r in range(size)])
    x = leaf((sum(rows), 2))
    close(grad_of(hvd.reducescatter(x), x), gathered)
    x = leaf((sum(rows), 2))
    close(grad_of(hvd.reducescatter(x, op=hvd.Sum), x), gathered * size)
    assert rank < size


@on_ranks(2, 3)
def test_groups() -> None:
    """Groups have the gradients of single operations, also where one does not need all of them."""
    size, rank = hvd.size(), hvd.rank()
    rows = [r + 1 for r in range(size)]
    forms = [
        (
            lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5),
            lambda xs: hvd.grouped_allreduce(xs, op=hvd.Sum, prescale_factor=0.5),
        ),
        (hvd.allreduce, hvd.grouped_allreduce),
        (hvd.allgather, hvd.grouped_allgather),
        (hvd.reducescatter, hvd.grouped_reducescatter),
        (
            lambda x: hvd.reducescatter(x, op=hvd.Sum, postscale_factor=2.0),
            lambda xs: hvd.grouped_reducescatter(xs, op=hvd.Sum, postscale_factor=2.0),
        ),
    ]
    for single, grouped in forms:
        first = rows[rank] if single is hvd.allgather else size + 1
        leaves = [leaf((first, 2)), leaf((size, 3)), leaf((size,)), leaf((4,))]
        alone = [x.detach().clone().requires_grad_() for x in leaves]
        frozen, whole = sample(rank, (3,)), sample(rank, (2,), torch.int64)
        outputs = grouped([leaves[0], frozen, leaves[1], whole, leaves[2], leaves[3]])
        assert isinstance(outputs, list)
        singles = [single(x) for x in alone]
        same(outputs[3], single(whole))
        assert not outputs[3].requires_grad, "whole numbers have no gradient"
        used = [outputs[0], outputs[2], outputs[4]]
        # What the ranks' losses use differs: the last member on rank 0 alone, the third on others.
        loss, loss_alone = used[0].sum() * 0, singles[0].sum() * 0
        for i in (0, 1, 2) if rank == 0 else (0, 1):
            loss = loss + (used[i] * weight(rank, tuple(used[i].shape))).sum()
            loss_alone = loss_alone + (singles[i] * weight(rank, tuple(used[i].shape))).sum()
        for other in singles[2:]:
            loss_alone = loss_alone + 0 * other.sum()  # as a single operation wants it
        loss.backward()
        loss_alone.backward()
        for x, y in zip(leaves, alone, strict=True):
            close(x.grad, y.grad)
        assert frozen.grad is None
    with torch.no_grad():
        assert not hvd.grouped_allreduce([leaf((2,))])[0].requires_grad
    # A rank that has frozen what another trains takes part all the same.
    x, y = leaf((2,)), sample(rank, (3,)).requires_grad_(rank == 0)
    sum(out.sum() for out in hvd.grouped_allreduce([x, y], op=hvd.Sum)).backward()
    close(x.grad, torch.full((2,), float(size)))
    assert (y.grad is None) == (rank != 0)
    halves = hvd.grouped_allreduce([x, x], compression=hvd.Compression.fp16)
    assert all(half.requires_grad and half.dtype == torch.float32 for half in halves)


@on_ranks(2, 3)
def test_groups_by_differences() -> None:
    """Against differences of the sum of all ranks' losses, and their gradients once more."""
    rank = hvd.rank()

    def loss(xs: list[torch.Tensor]) -> torch.Tensor:
        a, b = hvd.grouped_allreduce(xs, op=hvd.Sum, postscale_factor=0.5)
        return (a.pow(3) * (rank + 1)).sum() + (b.square() * a[0]).sum()

    xs = [sample(rank, (shape,), torch.float64).div(9).requires_grad_() for shape in (2, 3)]
    grads = torch.autograd.grad(loss(xs), xs, create_graph=True)
    directions = [sample(rank + 2, (shape,), torch.float64) for shape in (2, 3)]
    slope = sum((g * d).sum() for g, d in zip(grads, directions, strict=True))
    second = torch.autograd.grad(slope, xs)

    def near(step: float) -> list[torch.Tensor]:
        return [(x + step * d).detach() for x, d in zip(xs, directions, strict=True)]

    def gradient_near(step: float) -> tuple[torch.Tensor, ...]:
        moved = [x.requires_grad_() for x in near(step)]
        return torch.autograd.grad(loss(moved), moved)

    # All ranks move at once: what changes is the sum of the ranks' slopes, and of their losses.
    h = 1e-5
    with torch.no_grad():
        change = (loss(near(h)) - loss(near(-h))) / (2 * h)
    totals = hvd.allreduce(torch.stack([slope.detach(), change]), op=hvd.Sum)
    torch.testing.assert_close(totals[0], totals[1], rtol=1e-6, atol=1e-6)
    for found, up, down in zip(second, gradient_near(h), gradient_near(-h), strict=True):
        torch.testing.assert_close(found, (up - down) / (2 * h), rtol=1e-5, atol=1e-5)


def powers(of: torch.Tensor) -> torch.Tensor:
    """A loss whose second derivative depends on the tensor, and on the rank."""
    return (of.pow(3) * (hvd.rank() + 1)).sum()


@on_ranks(2, 3)
def test_second_derivatives() -> None:
    """That of a sum of cubes, by the rules of the first: each is applied twice."""
    size, rank = hvd.size(), hvd.rank()
    all_weights = size * (size + 1) / 2  # of all ranks' losses

    def second(run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        (first,) = torch.autograd.grad(powers(run(x)), x, create_graph=True)
        assert first.requires_grad
        (found,) = torch.autograd.grad(first.sum(), x)
        return found

    own = sample(rank, (size, 2))
    total = sum(sample(r, (size, 2)) for r in range(size))
    x = own.clone().requires_grad_()
    close(second(lambda x: hvd.allreduce(x, op=hvd.Sum), x), 6 * size * all_weights * total)
    close(
        second(lambda x: hvd.grouped_allreduce([x], op=hvd.Sum)[0], x),
        6 * size * all_weights * total,
    )
    close(second(hvd.allgather, x), 6 * own * all_weights / size / size)
    at_root = 6 * own * all_weights / size / size
    close(second(lambda x: hvd.broadcast(x, 1), x), at_root if rank == 1 else torch.zeros_like(own))
    receivers = torch.arange(1.0, size + 1).unsqueeze(1)
    close(second(hvd.alltoall, x), 6 * own * receivers)
    close(second(lambda x: hvd.alltoall(x, [1] * size)[0], x), 6 * own * receivers)
    scattered = 6 * size * size * receivers * total
    close(second(lambda x: hvd.reducescatter(x, op=hvd.Sum), x), scattered)


@on_ranks(3)
def test_scales_and_sets() -> None:
    last = hvd.add_process_set([0, 2])
    if last.included():
        others = [weight(r, (2,)) for r in last.ranks]
        factors = {"prescale_factor": 0.5, "postscale_factor": 4.0, "process_set": last}
        x = leaf((2,))
        close(grad_of(hvd.allreduce(x, op=hvd.Sum, **factors), x), 2 * reduced(others, hvd.Sum))
        x = leaf((2,))
        close(
            grad_of(hvd.grouped_allreduce([x], **factors)[0], x), 2 * reduced(others, hvd.Average)
        )
        x = leaf((4,))
        gathered = torch.cat([weight(r, (2,)) for r in last.ranks])
        (out,) = hvd.grouped_reducescatter([x], op=hvd.Sum, **factors)
        close(grad_of(out, x), 2 * 2 * gathered)
    hvd.remove_process_set(last)


@on_ranks(2)
def test_what_needs_a_gradient() -> None:
    """An output does exactly if its input does, and nothing whole or asynchronous."""
    operations = [
        hvd.allreduce,
        hvd.allgather,
        hvd.reducescatter,
        hvd.alltoall,
        lambda x: hvd.broadcast(x, 0),
        lambda x: hvd.grouped_allreduce([x])[0],
        lambda x: hvd.grouped_allgather([x])[0],
        lambda x: hvd.grouped_reducescatter([x])[0],
    ]
    for run in operations:
        assert run(leaf((2,))).requires_grad
        assert run(leaf((2,)) * 2).requires_grad
        assert not run(leaf((2,)).detach()).requires_grad
        with torch.no_grad():
            assert not run(leaf((2,))).requires_grad
    _, received = hvd.alltoall(leaf((2,)), [1, 1])
    assert not received.requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(leaf((2,)))).requires_grad
