"""gather, scatter and reduce: the root gets or gives everything, a mistake is told to all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from backends import over_every_backend
from rank_checks import on_ranks

import ciranda.torch as hvd
from ciranda.errors import MismatchError


def same(found: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape, (what, found, expected)
    assert torch.equal(found, expected), (what, found, expected)


# --- gather --------------------------------------------------------------------------------------


@over_every_backend
@on_ranks(1, 2, 3, one_elsewhere=True)
def test_gather_at_every_root() -> None:
    size, rank = hvd.size(), hvd.rank()
    for root in range(size):
        for dtype in (torch.float32, torch.bool, torch.complex64):
            for rest in ((), (2, 3)):
                # Rank 0 has no rows.
                inputs = [torch.full((2 * r, *rest), r).to(dtype) for r in range(size)]
                what = [root, dtype, rest]
                expected = torch.cat(inputs if rank == root else [inputs[rank][:0]])
                same(hvd.gather(inputs[rank], root), expected, what)
                handle = hvd.gather_async(inputs[rank], root, name=f"{what}")
                same(hvd.synchronize(handle), expected, what)
    assert not hvd.gather(torch.ones(2, requires_grad=True), 0).requires_grad


# --- scatter -------------------------------------------------------------------------------------


@over_every_backend
@on_ranks(1, 2, 3, one_elsewhere=True)
def test_scatter_from_every_root() -> None:
    size, rank = hvd.size(), hvd.rank()
    for root in range(size):
        for dtype in (torch.float32, torch.bool, torch.complex64):
            whole = torch.arange(size * 6).reshape(size * 2, 3).to(dtype)
            mine = whole if rank == root else whole[:0]
            same(hvd.scatter(mine, root), whole[rank * 2 : rank * 2 + 2], [root, dtype])
            splits = [2 * r for r in range(size)]
            splits[-1] += len(whole) - sum(splits)
            expected = whole.split(splits)[rank]
            for own in (splits, torch.tensor(splits)):
                same(hvd.scatter(mine, root, own), expected, [root, dtype, own])
        # What the others have in it, and say of it, does not matter.
        mine = whole if rank == root else torch.ones(1, 3, dtype=whole.dtype)
        handle = hvd.scatter_async(mine, root, splits if rank == root else [7], name="a")
        same(hvd.synchronize(handle), expected, root)


# --- reduce --------------------------------------------------------------------------------------


@over_every_backend
@on_ranks(1, 2, 3, one_elsewhere=True)
def test_reduce_at_every_root() -> None:
    size, rank = hvd.size(), hvd.rank()
    for root in range(size):
        for dtype in (torch.float32, torch.bfloat16, torch.int32):
            for shape in ((), (3, 4), (0, 2), (1,)):
                mine = torch.full(shape, rank + 1).to(dtype)
                total = torch.full(shape, size * (size + 1) // 2).to(dtype)
                expected = total if rank == root else mine
                what = [root, dtype, shape]
                found = hvd.reduce(mine, root, op=hvd.Sum)
                same(found, expected, what)
                assert rank != root or found is not mine
                same(mine, torch.full(shape, rank + 1).to(dtype), "the input is left alone")
                handle = hvd.reduce_async(mine, root, "m", hvd.Max)
                most = torch.full_like(mine, size if rank == root else rank + 1)
                same(hvd.synchronize(handle), most, what)
                assert hvd.reduce_(mine, root, op=hvd.Sum) is mine
                same(mine, expected, what)
    mine = torch.full((70_001,), float(rank))  # several rounds
    handle = hvd.reduce_async_(mine, 0, "a", prescale_factor=4.0, postscale_factor=0.5)
    assert hvd.synchronize(handle) is mine
    assert (mine == (size - 1.0 if rank == 0 else rank)).all()


@on_ranks(2)
def test_only_the_root_counts_as_written() -> None:
    weight = torch.ones(3, requires_grad=True)
    assert not hvd.reduce(weight, 0).requires_grad
    lazy = torch._neg_view(torch.full((3,), -1.0 - hvd.rank()))
    assert hvd.reduce_(lazy, 1, op=hvd.Sum) is lazy
    assert lazy.tolist() == [3.0 if hvd.rank() == 1 else 1.0] * 3
    square = weight * weight
    loss = (square * square).sum()
    hvd.reduce_(square.detach(), 1)
    if hvd.rank() == 1:
        try:
            loss.backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
        else:
            raise AssertionError("the root's tensor was written")
    else:
        loss.backward()  # nothing was


# --- process sets and mistakes -------------------------------------------------------------------


def said(action: Callable[[], Any]) -> str:
    try:
        return f"nothing, but {action()}"
    except (ValueError, MismatchError, RuntimeError) as error:
        return str(error)


@on_ranks(3)
def test_a_process_set_has_a_root_among_its_members() -> None:
    """Ranks 0 and 2."""
    some = hvd.add_process_set([0, 2])
    if some.included():
        at_root = hvd.rank() == 2
        own = torch.tensor([float(hvd.rank())])
        whole = torch.tensor([5.0, 6.0, 7.0])
        gathered = hvd.gather(own, 2, process_set=some)
        assert gathered.tolist() == ([0, 2] if at_root else [])
        scattered = hvd.scatter(whole, 2, [1, 2], process_set=some)
        assert scattered.tolist() == ([6, 7] if at_root else [5])
        summed = hvd.reduce(own + 1, 2, op=hvd.Sum, process_set=some)
        assert summed.item() == (4 if at_root else 1)
        for text in (
            said(lambda: hvd.gather(own, 1, name="g", process_set=some)),
            said(lambda: hvd.scatter(own, 1, name="s", process_set=some)),
            said(lambda: hvd.reduce(own, 1, name="r", process_set=some)),
        ):
            assert "its root rank 1 is not a member; the members are ranks 0, 2" in text
    else:
        text = said(lambda: hvd.gather(torch.ones(1), 0, process_set=some))
        assert f"rank 1 is not a member of process set {some.process_set_id}" in text
    hvd.remove_process_set(some)


@on_ranks(3)
def test_a_mistake_is_told_to_all_and_the_job_goes_on() -> None:
    rank = hvd.rank()
    ones = torch.ones(4)
    other = torch.ones(4, 1) if rank == 1 else ones
    texts = {
        "roots": said(lambda: hvd.gather(ones, rank % 2, name="x")),
        "roots of reduce": said(lambda: hvd.reduce(ones, rank % 2, name="x")),
        "no rank": said(lambda: hvd.scatter(ones, 7, name="x")),
        "rows": said(lambda: hvd.gather(other, 0, name="x")),
        "pieces": said(lambda: hvd.scatter(other, 0, name="x")),
        "shapes": said(lambda: hvd.reduce(other, 0, name="x")),
        "uneven": said(lambda: hvd.scatter(ones, 2, name="x")),
        "splits": said(lambda: hvd.scatter(ones, 2, [1, 2], name="x")),
        "halves": said(lambda: hvd.scatter(ones, 2, [0.5, 0.5, 3], name="x")),
    }
    # The job goes on, under the same name.
    assert hvd.scatter(torch.arange(3.0), 2, name="x").item() == rank
    for what in ("roots", "roots of reduce"):
        assert "root ranks differ: ranks 0, 2 have root rank 0, rank 1 has" in texts[what]
    assert "scatter 'x': there is no root rank 7 among 3 ranks" in texts["no rank"]
    for what in ("rows", "pieces", "shapes"):
        assert "shapes differ: ranks 0, 2 have float32 [" in texts[what]
    if rank == 2:
        assert (
            "dimension 0 (4) does not divide evenly among 3 ranks; pass splits" in texts["uneven"]
        )
        assert "splits must be 3 non-negative row counts that add up to" in texts["splits"]
        assert "scatter: splits must be whole numbers, but are [0.5, 0.5, 3]" in texts["halves"]
    else:
        told = "scatter 'x': the splits of its root, rank 2, do not fit its tensor"
        assert told in texts["uneven"] and told in texts["splits"]
