"""Every collective in every form: the right numbers on every rank, whatever the rank count."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends import over_backends_of_the_cpu, over_every_backend
from rank_checks import on_ranks
from ranks import run_ranks, values_of
from samples import close, reduced, same, sample, samples

import ciranda.torch as hvd
from ciranda.errors import UnsupportedError
from ciranda.torch import ops

SIZES = [1, 2, 3, 4, 8]
REDUCIBLE = [
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int16,
    torch.uint16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
MOVABLE = [*REDUCIBLE, torch.bool, torch.complex64, torch.complex128]
SHAPES = [(), (1,), (5,), (3, 4), (2, 1, 3), (0,), (4, 0, 2)]


def on_every_size(check: Callable[[], None]) -> Callable[..., None]:
    return over_every_backend(on_ranks(*SIZES, one_elsewhere=True)(check))


# --- allreduce -----------------------------------------------------------------------------------


@on_every_size
def test_allreduce_every_op_and_dtype() -> None:
    for dtype in REDUCIBLE:
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max):
            # The average of many ranks is rounded once, in single precision for half dtypes.
            inputs = samples((3, 4), dtype)
            close(hvd.allreduce(inputs[hvd.rank()], op=op), reduced(inputs, op))


@on_every_size
def test_allreduce_multiplies() -> None:
    for dtype in REDUCIBLE:
        # Factors of 2 on three ranks and of 3 on one: 24 fits every dtype.
        factors = [1] * hvd.size()
        for rank, factor in zip((0, 1, 3, 6), (2, 3, 2, 2), strict=True):
            if rank < hvd.size():
                factors[rank] = factor
        inputs = [torch.full((4,), factor).to(dtype) for factor in factors]
        same(hvd.allreduce(inputs[hvd.rank()], op=hvd.Product), reduced(inputs, hvd.Product), dtype)


@on_every_size
def test_allreduce_every_shape() -> None:
    for shape in SHAPES:
        inputs = samples(shape)
        same(hvd.allreduce(inputs[hvd.rank()], op=hvd.Sum), reduced(inputs, hvd.Sum), shape)
        same(hvd.allreduce_(inputs[hvd.rank()], op=hvd.Sum), reduced(samples(shape), hvd.Sum))


@on_every_size
def test_allreduce_of_many_rounds() -> None:
    for count in (1023, 262_145, 3_000_001):
        inputs = samples((count,))
        same(hvd.allreduce(inputs[hvd.rank()], op=hvd.Sum), reduced(inputs, hvd.Sum), count)


@over_every_backend
@on_ranks(2)
def test_allreduce_forms() -> None:
    rank = hvd.rank()
    average = reduced(samples((5,)), hvd.Average)

    mine = sample(rank, (5,))
    same(hvd.allreduce(mine), average, "blocking, average by default")
    same(mine, sample(rank, (5,)), "the input is left alone")
    same(hvd.allreduce(mine, False), reduced(samples((5,)), hvd.Sum), "average=False is Sum")
    same(hvd.allreduce(mine, True), average, "average=True")
    same(hvd.allreduce(mine, None, "named", hvd.Compression.none, hvd.Sum), average * hvd.size())

    handle = hvd.allreduce_async(mine, name="a")
    same(hvd.synchronize(handle), average, "async")
    same(mine, sample(rank, (5,)), "the input of async is left alone")

    mine = sample(rank, (5,))
    assert hvd.allreduce_(mine, name="b") is mine
    same(mine, average, "in place")

    mine = sample(rank, (5,))
    assert hvd.synchronize(hvd.allreduce_async_(mine, None, "c", hvd.Average)) is mine
    same(mine, average, "async in place")


def on_a_gpu() -> bool:
    """Where this rank makes its tensors."""
    return torch.get_default_device().type != "cpu"


@over_every_backend
@on_ranks(1, 2, 3, one_elsewhere=True)
def test_allreduce_scaled_before_and_after() -> None:
    floats = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    for dtype in floats if on_a_gpu() else [*floats, torch.int32]:
        inputs = [sample(rank, (6,), dtype) * 4 for rank in range(hvd.size())]
        total = reduced(inputs, hvd.Sum)
        mine = inputs[hvd.rank()]
        close(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5), (total / 2).to(dtype))
        close(hvd.allreduce(mine, op=hvd.Sum, postscale_factor=2.0), total * 2)
        both = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.25, postscale_factor=4.0)
        close(both, total)
        close(
            hvd.allreduce(mine, prescale_factor=2.0), reduced([t * 2 for t in inputs], hvd.Average)
        )
        if not on_a_gpu():
            close(
                hvd.allreduce_(mine.clone(), op=hvd.Max, postscale_factor=2.0),
                reduced(inputs, hvd.Max) * 2,
            )
    if on_a_gpu():
        for what, dtype, op in (
            ("Max of float32", torch.float32, hvd.Max),
            ("Sum of int32", torch.int32, hvd.Sum),
        ):
            with pytest.raises(UnsupportedError, match=f"NCCL has no {what} with scale factors"):
                hvd.allreduce(torch.ones(6, dtype=dtype), op=op, postscale_factor=2.0)
    # The prescaled value is stored in the tensor's dtype: without it this overflows.
    big = torch.full((4,), 60000.0, dtype=torch.float16)
    same(hvd.allreduce(big, op=hvd.Sum, prescale_factor=1 / hvd.size()), big)


@over_every_backend
@on_ranks(3)
def test_integer_average_is_truncated_toward_zero() -> None:
    inputs = [[7, -7, 1, 100], [2, -2, 0, 101], [1, -1, 1, 101]][hvd.rank()]
    for dtype in (torch.int8, torch.int32, torch.int64):
        assert hvd.allreduce(torch.tensor(inputs, dtype=dtype)).tolist() == [3, -3, 0, 100]


@over_backends_of_the_cpu
@on_ranks(3)
def test_averages_do_not_pass_the_limits_of_their_dtype() -> None:
    forms: list[Callable[[torch.Tensor], torch.Tensor]] = [
        hvd.allreduce,
        lambda tensor: hvd.allreduce_(tensor.clone()),
        lambda tensor: hvd.grouped_allreduce([tensor, torch.ones(2)])[0],
        lambda tensor: hvd.reducescatter(tensor.expand(3).contiguous()),
    ]
    limits = {dtype: torch.iinfo(dtype) for dtype in (torch.uint8, torch.int8, torch.int32)}
    cases = [(dtype, value) for dtype, its in limits.items() for value in (its.min, its.max)]
    cases += [(torch.int64, 2**61), (torch.int64, -(2**61)), (torch.float16, 60000)]
    for dtype, value in cases:
        mine = torch.full((1,), value, dtype=dtype)
        for form in forms:
            same(form(mine), mine, (dtype, value))
    large = torch.full((1,), 2**62)
    for form in forms:
        with pytest.raises(
            ValueError, match="the average over 3 ranks divides their sum, which may"
        ):
            form(large)
    same(hvd.allreduce(large, prescale_factor=0.25), large // 4)
    same(hvd.allreduce(torch.ones(1, dtype=torch.int8), op=hvd.Sum), torch.tensor([3]).char())


@over_backends_of_the_cpu
@on_ranks(2)
def test_factors_of_whole_numbers_are_truncated() -> None:
    odd = torch.tensor([3, -3], dtype=torch.int32)
    assert hvd.allreduce(odd, op=hvd.Sum, postscale_factor=0.25).tolist() == [1, -1]
    assert hvd.allreduce(odd, op=hvd.Sum, prescale_factor=0.5).tolist() == [2, -2]


@over_every_backend
@on_ranks(2)
def test_allreduce_keeps_infinities_and_nans() -> None:
    inf, nan = math.inf, math.nan
    mine = torch.tensor([inf, -inf, nan, 1.0]) if hvd.rank() == 0 else torch.ones(4)
    total = hvd.allreduce(mine, op=hvd.Sum)
    assert total[0] == inf and total[1] == -inf and total[2].isnan() and total[3] == 2
    for op in () if on_a_gpu() else (hvd.Min, hvd.Max):
        assert hvd.allreduce(mine, op=op)[2].isnan(), "as torch.minimum does"


@over_every_backend
@on_ranks(2)
def test_compression_gives_back_the_dtype() -> None:
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        for dtype in (torch.float32, torch.float64, torch.int64):
            inputs = samples((4,), dtype)
            mine = inputs[hvd.rank()]
            close(hvd.allreduce(mine, compression=compression), reduced(inputs, hvd.Average))
            outputs = hvd.grouped_allreduce([mine, mine], compression=compression, op=hvd.Sum)
            for output in outputs:
                close(output, reduced(inputs, hvd.Sum))
            rows = hvd.reducescatter(mine, compression=compression, op=hvd.Sum)
            close(rows, reduced(inputs, hvd.Sum).chunk(hvd.size())[hvd.rank()])


@over_every_backend
@on_ranks(1, 2, 3, one_elsewhere=True)
def test_grouped_allreduce_forms() -> None:
    rank = hvd.rank()
    shapes = [(5,), (), (2, 3), (0,)]
    dtypes = [torch.float32, torch.float64, torch.int32, torch.float16]

    def mine() -> list[torch.Tensor]:
        return [sample(rank, s, d) for s, d in zip(shapes, dtypes, strict=True)]

    totals = [reduced(samples(s, d), hvd.Sum) for s, d in zip(shapes, dtypes, strict=True)]
    given = mine()
    for found in (
        hvd.grouped_allreduce(given, op=hvd.Sum),
        hvd.grouped_allreduce(tuple(given), None, "g", op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async(given, op=hvd.Sum, name="h")),
    ):
        assert isinstance(found, list)
        for one, expected in zip(found, totals, strict=True):
            same(one, expected)
    for kept, before in zip(given, mine(), strict=True):
        same(kept, before, "inputs are left alone")

    for start in (
        lambda tensors: hvd.grouped_allreduce_(tensors, op=hvd.Sum),
        lambda tensors: hvd.synchronize(hvd.grouped_allreduce_async_(tensors, op=hvd.Sum)),
    ):
        given = mine()
        found = start(given)
        for one, changed, expected in zip(found, given, totals, strict=True):
            assert one is changed
            same(changed, expected)


@over_every_backend
@on_ranks(2)
def test_group_of_three_thousand_tensors() -> None:
    given = [torch.full((3,), float(i + hvd.rank())) for i in range(3000)]
    for i, found in enumerate(hvd.grouped_allreduce(given, op=hvd.Sum)):
        same(found, torch.full((3,), 2.0 * i + 1))


# --- names, order, handles -----------------------------------------------------------------------


@over_every_backend
@on_ranks(2, 3, one_elsewhere=True)
def test_named_operations_meet_in_any_order() -> None:
    names = [f"tensor.{i}" for i in range(50)]
    order = names if hvd.rank() == 0 else list(reversed(names))
    handles = {
        name: hvd.allreduce_async(torch.tensor([float(names.index(name))]), op=hvd.Sum, name=name)
        for name in order
    }
    for name in names:
        assert hvd.synchronize(handles[name]).item() == hvd.size() * names.index(name)


@over_every_backend
@on_ranks(3)
def test_unnamed_operations_of_a_kind_meet_by_their_number() -> None:
    handles = []
    for i in range(20):
        handles.append(hvd.allreduce_async(torch.tensor([i]), op=hvd.Sum))
        handles.append(hvd.broadcast_async(torch.tensor([i + hvd.rank()]), 0))
    found = [hvd.synchronize(handle).item() for handle in reversed(handles)]
    assert found == [x for i in reversed(range(20)) for x in (i, i * hvd.size())]


@over_every_backend
@on_ranks(2)
def test_a_name_can_be_used_again_with_another_shape_or_kind() -> None:
    for i in range(200):
        shape = (1 + i % 3,)  # another shape under the same name is fine once the last is done
        found = hvd.allreduce(torch.full(shape, float(i)), name="again", op=hvd.Sum)
        same(found, torch.full(shape, float(i * hvd.size())))
    hvd.allreduce(torch.ones(1), name="kind")
    hvd.broadcast(torch.ones(2), 0, name="kind")
    hvd.allgather(torch.ones(2), name="kind")


@over_every_backend
@on_ranks(2)
def test_kinds_in_flight_under_one_name_do_not_meet() -> None:
    size, rank = hvd.size(), hvd.rank()
    mine = torch.arange(size) + 10.0 * rank
    starts = {
        "allreduce": lambda: hvd.allreduce_async(mine, name="w", op=hvd.Sum),
        "broadcast": lambda: hvd.broadcast_async(mine, 0, name="w"),
        "allgather": lambda: hvd.allgather_async(mine, name="w"),
        "alltoall": lambda: hvd.alltoall_async(mine, name="w"),
        "reducescatter": lambda: hvd.reducescatter_async(mine, name="w", op=hvd.Sum),
    }
    for _ in range(3):  # known ones, from the second time on
        order = list(starts) if rank == 0 else list(reversed(starts))
        handles = {kind: starts[kind]() for kind in order}
        found = {kind: hvd.synchronize(handles[kind]) for kind in starts}
        all_of = [torch.arange(size) + 10.0 * r for r in range(size)]
        same(found["allreduce"], sum(all_of, torch.zeros(size)))
        same(found["broadcast"], all_of[0])
        same(found["allgather"], torch.cat(all_of))
        same(found["alltoall"][0], torch.stack(all_of)[:, rank].contiguous())
        same(found["reducescatter"], sum(all_of, torch.zeros(size))[rank : rank + 1])


def more_names_than_the_cache_holds() -> None:
    hvd.init()
    for _ in range(3):
        for i in range(40):
            assert hvd.allreduce(torch.tensor([i]), op=hvd.Sum, name=f"n{i}").item() == 2 * i


@pytest.mark.parametrize("capacity", [0, 7])
def test_more_names_than_the_response_cache_holds(capacity: int) -> None:
    env = {"CIRANDA_CACHE_CAPACITY": str(capacity)}
    values_of(run_ranks(more_names_than_the_cache_holds, 2, env=env))


@over_backends_of_the_cpu
@on_ranks(2)
def test_a_list_may_be_longer_than_a_request() -> None:
    rank, size = hvd.rank(), hvd.size()
    given = [torch.tensor([float(i + rank)]) for i in range(9000)]
    total = [torch.tensor([float(size * i + 1)]) for i in range(9000)]

    def check(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
        assert len(found) == len(wanted)
        same(torch.cat(found), torch.cat(wanted))

    check(hvd.grouped_allreduce(given, op=hvd.Sum), total)
    check(hvd.grouped_allgather(given, name="a"), [torch.tensor([i, i + 1.0]) for i in range(9000)])
    rows = [torch.tensor([i, 2.0 * i]) for i in range(9000)]
    mine = [torch.tensor([2.0 * i * (1 + rank)]) for i in range(9000)]
    check(hvd.grouped_reducescatter(rows, op=hvd.Sum), mine)
    handle = hvd.grouped_allreduce_async_(given, op=hvd.Sum, name="b")
    hvd.barrier()
    while not hvd.poll(handle):
        pass
    check(hvd.synchronize(handle), total)
    check(given, total)
    given[8999] = torch.ones(2 + rank)
    with pytest.raises(hvd.HorovodInternalError, match="allreduce 'c'"):
        hvd.grouped_allreduce(given, name="c")


@over_every_backend
@on_ranks(2)
def test_poll_tells_and_a_second_synchronize_gives_none() -> None:
    if hvd.rank() == 1:
        hvd.barrier()
    handle = hvd.allreduce_async(torch.ones(3), name="late", op=hvd.Sum)
    assert isinstance(handle, int)
    if hvd.rank() == 0:
        assert not hvd.poll(handle), "rank 1 waits in the barrier"
        hvd.barrier()
    deadline = time.monotonic() + 30
    while not hvd.poll(handle):
        assert time.monotonic() < deadline
    same(hvd.synchronize(handle), torch.full((3,), 2.0))
    assert hvd.synchronize(handle) is None, "the second time there is nothing"
    for never in (123456, -1):
        with pytest.raises(ValueError, match=f"no operation has had the handle {never}; pass"):
            hvd.synchronize(never)
    with pytest.raises(ValueError, match=f"no unfinished operation with handle {handle}"):
        hvd.poll(handle)


@over_every_backend
@on_ranks(2)
def test_a_handle_is_its_number_in_any_form() -> None:
    import numpy

    forms: dict[str, Callable[[int], Any]] = {
        "int": int,
        "text": lambda handle: int(str(handle)),
        "array": lambda handle: numpy.array([handle])[0],
        "tensor": lambda handle: torch.tensor([handle])[0],
    }
    for count in (3, 3_000_000):
        for form, keep in forms.items():
            mine = torch.full((count,), float(hvd.rank()))
            numbers = [
                keep(hvd.allreduce_async_(mine, op=hvd.Sum)),
                keep(hvd.allreduce_async(torch.ones(count), op=hvd.Sum)),
            ]
            hvd.barrier()
            assert hvd.synchronize(numbers[0]) is mine, form
            same(mine, torch.ones(count), form)
            assert isinstance(hvd.poll(numbers[1]), bool)
            same(hvd.synchronize(numbers[1]), torch.full((count,), 2.0), form)


@on_ranks(2)
def test_what_an_operation_writes_to_stays_although_its_tensor_has_other_memory() -> None:
    if hvd.rank() == 1:
        hvd.barrier()
    memory = torch.ones(4_000_000)  # of its own mapping, which its end unmaps
    mine, handle = memory.data, None
    if hvd.rank() == 0:
        handle = hvd.allreduce_async_(mine, name="moved", op=hvd.Sum)
        del memory
        mine.data = torch.zeros(4_000_000)
        hvd.barrier()
    else:
        handle = hvd.allreduce_async_(mine, name="moved", op=hvd.Sum)
    assert hvd.synchronize(handle) is mine
    same(mine, torch.full((4_000_000,), 2.0 * hvd.rank()))


@on_ranks(1)
def test_many_handles_that_nobody_synchronizes_are_told_of() -> None:
    tensor = torch.ones(1)
    with pytest.warns(UserWarning, match="10000 asynchronous operations .*; each operation keeps"):
        handles = [hvd.allreduce_async_(tensor) for _ in range(10_000)]
    for handle in handles:
        hvd.synchronize(handle)


def threads() -> None:
    import threading

    hvd.init()
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for i in range(100):
                name = f"thread{thread}.{i}"
                found = hvd.allreduce(torch.full((7,), float(thread)), name=name, op=hvd.Sum)
                same(found, torch.full((7,), float(thread * hvd.size())))
        except BaseException as failure:
            failures.append(failure)

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_four_threads_a_rank(overlap: str) -> None:
    values_of(run_ranks(threads, 2, env={"CIRANDA_OVERLAP": overlap}))


def fused_and_not() -> str:
    hvd.init()
    generator = torch.Generator().manual_seed(hvd.rank())
    mine = [torch.randn(i * 37 % 4001, generator=generator) for i in range(60)]
    found = []
    for _ in range(3):
        handles = [hvd.allreduce_async(t, name=f"t{i}") for i, t in enumerate(mine)]
        found.append(torch.cat([hvd.synchronize(handle) for handle in handles]))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert len(set(hvd.allgather_object(found[0].sum().item()))) == 1, "equal bits on every rank"
    return found[0].numpy().tobytes().hex()[:4000]


def test_fusion_does_not_change_the_bits() -> None:  # a promise of our own backends only
    fused = values_of(run_ranks(fused_and_not, 3))
    alone = values_of(run_ranks(fused_and_not, 3, env={"CIRANDA_FUSION_THRESHOLD": "0"}))
    assert fused == alone and len(set(fused)) == 1


# --- broadcast -----------------------------------------------------------------------------------


@on_every_size
def test_broadcast_every_dtype_and_shape() -> None:
    for root in {0, hvd.size() - 1, hvd.size() // 2}:
        for dtype in MOVABLE:
            expected = sample(root, (3, 4), dtype)
            same(hvd.broadcast(sample(hvd.rank(), (3, 4), dtype), root), expected, dtype)
        for shape in SHAPES:
            mine = sample(hvd.rank(), shape)
            same(hvd.broadcast(mine, root, name=f"b{shape}"), sample(root, shape), shape)
            same(mine, sample(hvd.rank(), shape), "the input is left alone")
        for dtype in (torch.bool, torch.complex128):
            same(hvd.broadcast(sample(hvd.rank(), (), dtype), root), sample(root, (), dtype))


@over_every_backend
@on_ranks(3)
def test_broadcast_forms() -> None:
    expected = sample(1, (5,), torch.bool)

    def mine() -> torch.Tensor:
        return sample(hvd.rank(), (5,), torch.bool)

    same(hvd.broadcast(mine(), 1, "a"), expected)
    same(hvd.broadcast(mine(), root_rank=1), expected)
    same(hvd.synchronize(hvd.broadcast_async(mine(), 1, "b")), expected)
    changed = mine()
    assert hvd.broadcast_(changed, 1, "c") is changed
    same(changed, expected)
    changed = mine()
    assert hvd.synchronize(hvd.broadcast_async_(changed, 1)) is changed
    same(changed, expected)
    parameter = torch.nn.Parameter(sample(hvd.rank(), (5,)))
    hvd.broadcast_(parameter, 1)
    same(parameter.detach(), sample(1, (5,)), "a leaf that requires grad")


# --- allgather -----------------------------------------------------------------------------------


@on_every_size
def test_allgather_unequal_rows() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in MOVABLE:
        for rest in ((), (3,), (2, 2)):
            # Rank 1 has none at all.
            pieces = [sample(r, ((r * 2 + 1) if r != 1 else 0, *rest), dtype) for r in range(size)]
            same(hvd.allgather(pieces[rank]), torch.cat(pieces), (dtype, rest))


@on_every_size
def test_allgather_shapes() -> None:
    size, rank = hvd.size(), hvd.rank()
    for shape in ((1,), (2, 3), (0,), (0, 4), (3, 0)):
        pieces = samples(shape)
        same(hvd.allgather(pieces[rank], name=f"g{shape}"), torch.cat(pieces), shape)
    pieces = [sample(r, (100_003 + r,)) for r in range(size)]
    same(hvd.allgather(pieces[rank]), torch.cat(pieces), "many rounds")


@over_every_backend
@on_ranks(1, 2, 3, one_elsewhere=True)
def test_allgather_forms() -> None:
    rank = hvd.rank()
    bools = [sample(r, (r + 1,), torch.bool) for r in range(hvd.size())]
    longs = [sample(r, (2, r), torch.int64).T.contiguous() for r in range(hvd.size())]
    same(hvd.synchronize(hvd.allgather_async(bools[rank], name="a")), torch.cat(bools))
    for found in (
        hvd.grouped_allgather([bools[rank], longs[rank]], name="g"),
        hvd.synchronize(hvd.grouped_allgather_async([bools[rank], longs[rank]])),
    ):
        assert isinstance(found, list)
        same(found[0], torch.cat(bools))
        same(found[1], torch.cat(longs))


# --- alltoall ------------------------------------------------------------------------------------


@on_every_size
def test_alltoall_even() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in MOVABLE:
        inputs = samples((size * 2, 3), dtype)
        found = hvd.alltoall(inputs[rank], name=f"even.{dtype}")
        same(found, torch.cat([inputs[r][rank * 2 : rank * 2 + 2] for r in range(size)]), dtype)
    same(hvd.alltoall(torch.empty(0, 3)), torch.empty(0, 3))


@on_every_size
def test_alltoall_splits() -> None:
    size, rank = hvd.size(), hvd.rank()
    splits = [[(sender + to) % 3 for to in range(size)] for sender in range(size)]  # some zeros
    for dtype in (torch.float32, torch.bool, torch.complex128):
        for rest in ((), (2,)):
            inputs = [sample(r, (sum(splits[r]), *rest), dtype) for r in range(size)]
            expected = torch.cat([inputs[r].split(splits[r])[rank] for r in range(size)])
            received = [splits[r][rank] for r in range(size)]
            for own in (splits[rank], torch.tensor(splits[rank], dtype=torch.int32)):
                output, rows = hvd.alltoall(inputs[rank], own)
                same(output, expected)
                same(rows, torch.tensor(received, dtype=torch.int32, device="cpu"))


@over_every_backend
@on_ranks(2)
def test_async_alltoall_gives_output_and_splits() -> None:
    mine = torch.arange(4) + 10 * hvd.rank()
    output, rows = hvd.synchronize(hvd.alltoall_async(mine, name="a"))
    assert rows.tolist() == [2, 2], "the pair, also without splits"
    begin = 2 * hvd.rank()
    assert output.tolist() == [begin, begin + 1, 10 + begin, 11 + begin]
    output, rows = hvd.synchronize(hvd.alltoall_async(mine, [0, 4] if hvd.rank() == 0 else [1, 3]))
    assert rows.tolist() == ([0, 1] if hvd.rank() == 0 else [4, 3])
    assert output.tolist() == ([10] if hvd.rank() == 0 else [0, 1, 2, 3, 11, 12, 13])


# --- reducescatter -------------------------------------------------------------------------------


def pieces_of(total: torch.Tensor) -> list[torch.Tensor]:
    """By rank; the first ranks get one row more."""
    rows, more = divmod(total.shape[0], hvd.size())
    return list(total.split([rows + (rank < more) for rank in range(hvd.size())]))


@on_every_size
def test_reducescatter_every_dtype_and_shape() -> None:
    size, rank = hvd.size(), hvd.rank()
    for op in (hvd.Sum, hvd.Average):
        for dtype in REDUCIBLE:
            inputs = samples((size * 2, 3), dtype)
            close(hvd.reducescatter(inputs[rank], op=op), pieces_of(reduced(inputs, op))[rank])
    # Fewer rows than ranks, a remainder, none at all, rows of nothing, many rounds.
    for shape in ((1,), (size + 1, 2), (3 * size - 1,), (0, 2), (4, 0), (50_001, 3)):
        inputs = samples(shape)
        found = hvd.reducescatter(inputs[rank], op=hvd.Sum, name=f"r{shape}")
        same(found, pieces_of(reduced(inputs, hvd.Sum))[rank], shape)


@over_every_backend
@on_ranks(1, 2, 3, one_elsewhere=True)
def test_reducescatter_forms() -> None:
    rank = hvd.rank()
    inputs = samples((4, 2))
    mine = inputs[rank]
    average = pieces_of(reduced(inputs, hvd.Average))[rank]
    close(hvd.reducescatter(mine), average)
    close(hvd.synchronize(hvd.reducescatter_async(mine, "a", hvd.Average)), average)
    scaled = hvd.reducescatter(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    close(scaled, average * hvd.size() * 2)
    others = samples((5,), torch.int32)
    total = pieces_of(reduced(others, hvd.Sum))[rank]
    for found in (
        hvd.grouped_reducescatter([mine, others[rank]], op=hvd.Sum),
        hvd.synchronize(hvd.grouped_reducescatter_async([mine, others[rank]], "g", hvd.Sum)),
    ):
        assert isinstance(found, list)
        close(found[0], average * hvd.size())
        same(found[1], total)
    same(mine, sample(rank, (4, 2)), "the input is left alone")


# --- barrier -------------------------------------------------------------------------------------


@on_ranks(1, 2, 3, 8)
def test_nobody_leaves_a_barrier_before_the_last_came() -> None:
    for late in range(20):
        if hvd.rank() == late % hvd.size():
            time.sleep(0.005)
        came = time.monotonic()
        hvd.barrier()
        left = time.monotonic()
        assert left >= max(hvd.allgather_object(came))


# --- mixed ---------------------------------------------------------------------------------------


@over_every_backend
@on_ranks(2, 3, 8, one_elsewhere=True)
def test_many_kinds_in_flight_in_any_order() -> None:
    """Random operations in flight together, submitted in another order on each rank."""
    size, rank = hvd.size(), hvd.rank()
    plan, order = random.Random(7), random.Random(rank)
    for step in range(15):
        todo = []
        for i in range(plan.randint(1, 12)):
            kind = plan.choice(["allreduce", "broadcast", "allgather", "alltoall", "scatter"])
            rows = plan.choice([0, 1, 3, 400, 40_000]) * size
            todo.append((kind, f"s{step}.{i}", rows))
        order.shuffle(todo)
        running = []
        for kind, name, rows in todo:
            inputs = samples((rows,))
            mine = inputs[rank]
            if kind == "allreduce":
                handle = hvd.allreduce_async(mine, name=name, op=hvd.Sum)
                expected = reduced(inputs, hvd.Sum)
            elif kind == "broadcast":
                handle = hvd.broadcast_async(mine, rows % size, name)
                expected = inputs[rows % size]
            elif kind == "allgather":
                handle = hvd.allgather_async(mine, name)
                expected = torch.cat(inputs)
            elif kind == "alltoall":
                handle = hvd.alltoall_async(mine, None, name)
                expected = torch.cat([t.chunk(size)[rank] for t in inputs]) if rows else mine
            else:
                handle = hvd.reducescatter_async(mine, name, hvd.Sum)
                expected = pieces_of(reduced(inputs, hvd.Sum))[rank]
            running.append((kind, handle, expected))
        order.shuffle(running)
        for kind, handle, expected in running:
            found = hvd.synchronize(handle)
            same(found[0] if kind == "alltoall" else found, expected, kind)


# --- arena ---------------------------------------------------------------------------------------


@on_ranks(1, 2, 3)
def test_tensors_of_the_arena_are_reduced_where_they_lie() -> None:
    for dtype in (torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float64):
        tensor = ops.arena_empty([3, 5], dtype)
        tensor.copy_(sample(hvd.rank(), (3, 5), dtype))
        assert ops.arena_allreduce_(tensor, op=hvd.Sum) is tensor
        same(tensor, reduced(samples((3, 5), dtype), hvd.Sum), dtype)
    with pytest.raises(ValueError, match="was not made by arena_empty"):
        ops.arena_allreduce_(torch.ones(3))
