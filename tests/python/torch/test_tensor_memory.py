"""What collectives write, where it lies: overlapping tensors, views that show other values than
their memory, what autograd has saved, tensors of an earlier arena."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rank_checks import on_ranks
from torch import nn

import ciranda.torch as hvd
from ciranda.torch import ops


def mine(*shape: int) -> torch.Tensor:
    return torch.full(shape, 1.0 + hvd.rank())


def in_every_form(tensors: Callable[[], list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """The averages of `tensors()` by each grouped form of allreduce."""
    return [
        hvd.grouped_allreduce(tensors()),
        hvd.synchronize(hvd.grouped_allreduce_async(tensors())),
        hvd.grouped_allreduce_(tensors()),
        hvd.synchronize(hvd.grouped_allreduce_async_(tensors())),
    ]


# --- overlapping tensors -------------------------------------------------------------------------


@on_ranks(2, 3)
def test_a_tensor_twice_in_a_group_is_reduced_once() -> None:
    average = (hvd.size() + 1) / 2

    def twice() -> list[torch.Tensor]:
        one = mine(5)
        return [one, mine(2), one]

    for first, other, second in in_every_form(twice):
        assert (first == average).all() and (second == average).all() and (other == average).all()


@on_ranks(2, 3)
def test_views_that_overlap_are_all_read_before_one_is_written() -> None:
    def views() -> list[torch.Tensor]:
        base = torch.arange(8.0) * (1 + hvd.rank())
        return [base[:5], base[3:], base[4:6], base[0:0]]

    average = torch.arange(8.0) * (hvd.size() + 1) / 2
    for found in in_every_form(views):
        for view, wanted in zip(found, (average[:5], average[3:], average[4:6]), strict=False):
            torch.testing.assert_close(view, wanted)


@on_ranks(2)
def test_ranks_need_not_agree_about_what_overlaps() -> None:
    one = mine(4)
    first, second = hvd.grouped_allreduce_([one, one if hvd.rank() == 0 else mine(4)])
    assert first is one
    assert (first == 1.5).all() and (second == 1.5).all()


@on_ranks(2)
def test_tied_parameters_are_broadcast_as_they_are() -> None:
    embedding, head = nn.Embedding(3, 4), nn.Linear(4, 3, bias=False)
    head.weight = embedding.weight
    with torch.no_grad():
        head.weight.fill_(float(hvd.rank()))
    flat = mine(6)
    hvd.broadcast_parameters(
        {"a": embedding.weight, "b": head.weight, "c": flat[:4], "d": flat[2:]}, root_rank=1
    )
    assert (embedding.weight == 1).all() and (flat == 2).all()


# --- views that show other values than their memory ----------------------------------------------


def complex_of(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.complex(torch.arange(4.0), torch.arange(4.0) + 1 + rank).to(dtype)


@on_ranks(2)
def test_a_conjugated_view_is_sent_as_it_looks() -> None:
    for dtype in (torch.complex64, torch.complex128):
        view = complex_of(hvd.rank(), dtype).conj()
        assert view.is_conj()
        all_of = [complex_of(r, dtype).conj().resolve_conj() for r in range(2)]
        assert torch.equal(hvd.broadcast(view, 1), all_of[1])
        assert torch.equal(hvd.allgather(view), torch.cat(all_of))
        swapped = torch.cat([part[2 * hvd.rank() :][:2] for part in all_of])
        assert torch.equal(hvd.alltoall(view), swapped)
        assert torch.equal(hvd.grouped_allgather([view, mine(1)])[0], torch.cat(all_of))


@on_ranks(2)
def test_a_conjugated_view_is_written_as_it_looks() -> None:
    for dtype in (torch.complex64, torch.complex128):
        wanted = complex_of(1, dtype).conj()
        for broadcast in (
            lambda view: hvd.broadcast_(view, 1),
            lambda view: hvd.synchronize(hvd.broadcast_async_(view, 1)),
            lambda view: hvd.broadcast_parameters({"view": view}, 1),
        ):
            base = complex_of(hvd.rank(), dtype)
            view = base.conj()
            broadcast(view)
            assert torch.equal(view, wanted)
            assert torch.equal(base, wanted.conj().resolve_conj()), "the memory behind it"
        grid = complex_of(hvd.rank(), dtype).reshape(2, 2)
        hvd.broadcast_parameters({"transposed": grid.conj().t()}, 1)
        assert torch.equal(grid.conj().flatten(), wanted)


@on_ranks(2)
def test_a_negated_view_is_reduced_as_it_looks() -> None:
    def views() -> list[torch.Tensor]:
        return [complex_of(hvd.rank(), torch.complex64).conj().imag, torch._neg_view(mine(3))]

    assert all(view.is_neg() for view in views())
    imag = -(torch.arange(4.0) + 1.5)
    for first, second in in_every_form(views):
        assert torch.equal(first.resolve_neg(), imag)
        assert (second == -1.5).all()
    first, second = views()
    assert torch.equal(hvd.allreduce(first), imag)
    assert hvd.allreduce_(first) is first and torch.equal(first, imag)
    assert torch.equal(hvd.reducescatter(second), torch.full((2 - hvd.rank(),), -1.5))


# --- what autograd has saved ---------------------------------------------------------------------

IN_PLACE: dict[str, Callable[[torch.Tensor], object]] = {
    "allreduce_": hvd.allreduce_,
    "allreduce_async_": lambda w: hvd.synchronize(hvd.allreduce_async_(w)),
    "grouped_allreduce_": lambda w: hvd.grouped_allreduce_([mine(2), w]),
    "grouped_allreduce_ of overlapping": lambda w: hvd.grouped_allreduce_([w, w]),
    "broadcast_": lambda w: hvd.broadcast_(w, 0),
    "broadcast_async_": lambda w: hvd.synchronize(hvd.broadcast_async_(w, 0)),
    "broadcast_parameters": lambda w: hvd.broadcast_parameters({"w": w}, 0),
}


@on_ranks(2)
def test_a_backward_that_needs_what_was_overwritten_raises() -> None:
    for name, write in IN_PLACE.items():
        for guard in (torch.no_grad, torch.enable_grad):  # a leaf may be written, as in Horovod
            w = mine(3).requires_grad_()
            y = (w * w).sum()
            with guard():
                write(w)
            assert w.is_leaf and w.requires_grad, name
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.backward()


@on_ranks(2)
def test_a_write_counts_once_and_at_once() -> None:
    w = mine(3)
    hvd.allreduce_(w)
    assert w._version == 1
    handle = hvd.allreduce_async_(w)
    assert w._version == 2, "it is being written from here on"
    hvd.synchronize(handle)
    hvd.broadcast_(w, 0)
    hvd.broadcast_parameters({"w": w}, 0)
    assert w._version == 4
    hvd.allreduce(w)
    hvd.broadcast(w, 0)
    assert w._version == 4, "nothing is written"
    tensor = ops.arena_empty([3])
    before = tensor._version
    ops.arena_allreduce_(tensor)
    assert tensor._version == before + 1


@on_ranks(2)
def test_tensors_of_inference_mode_may_be_written() -> None:
    with torch.inference_mode():
        w = mine(3)
        transposed = mine(2, 3).t()
    hvd.allreduce_(w)
    hvd.broadcast_(w, 0)
    hvd.grouped_allreduce_([w, w])
    hvd.broadcast_parameters({"w": w, "transposed": transposed}, 1)
    assert (w == 1.5).all() and (transposed == 2).all()
    with torch.inference_mode():
        ordinary = hvd.grouped_allreduce_([w, w])[0]
    assert (ordinary == 1.5).all()


# --- tensors of an earlier arena -----------------------------------------------------------------


@on_ranks(2)
def test_an_arena_tensor_does_not_outlive_its_world() -> None:  # the last: it joins anew
    tensor = ops.arena_empty([3])
    hvd.shutdown()
    hvd.init()
    with pytest.raises(ValueError, match=r"before shutdown\(\); make a new tensor after init\(\)"):
        ops.arena_allreduce_(tensor)
    again = ops.arena_empty([3]).fill_(1.0 + hvd.rank())
    assert (ops.arena_allreduce_(again) == 1.5).all()
