"""Every collective in every form: the right numbers on every rank, whatever the rank count."""

from __future__ import annotations

import math
import time

import pytest
import torch
from backends import over_every_backend, over_every_backend_and_size
from ranks import run_ranks, values_of

import ciranda.torch as hvd
from ciranda.errors import UnsupportedError

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


def sample(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values 1 to 9 that differ by rank and position: their sums are exact in every dtype."""
    count = math.prod(shape)
    return ((torch.arange(count) * 5 + rank * 3) % 9 + 1).reshape(shape).to(dtype)


def samples(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [sample(rank, shape, dtype) for rank in range(hvd.size())]


def reduced(tensors: list[torch.Tensor], op: int) -> torch.Tensor:
    """The reduction in double precision, then in the tensors' dtype (toward zero)."""
    stack = torch.stack([tensor.double() for tensor in tensors])
    result = {
        hvd.Sum: lambda: stack.sum(0),
        hvd.Average: lambda: stack.sum(0) / len(tensors),
        hvd.Min: lambda: stack.amin(0),
        hvd.Max: lambda: stack.amax(0),
        hvd.Product: lambda: stack.prod(0),
    }[op]()
    return result.to(tensors[0].dtype)


def same(found: torch.Tensor, expected: torch.Tensor, what: object = "") -> None:
    """Equal in dtype, shape and every bit."""
    assert found.dtype == expected.dtype, (what, found.dtype, expected.dtype)
    assert found.shape == expected.shape, (what, found.shape, expected.shape)
    bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (found, expected)]
    assert torch.equal(*bits), (what, found, expected)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected)


def on_every_size(function):  # type: ignore[no-untyped-def]
    """Makes a test of a function of this module that runs on 1, 2, 3, 4 and 8 ranks."""

    @over_every_backend_and_size(SIZES)
    def test(size: int) -> None:
        values_of(run_ranks(function, size))

    return test


# --- allreduce -----------------------------------------------------------------------------------


def allreduce_every_op_and_dtype() -> None:
    hvd.init()
    for dtype in REDUCIBLE:
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max):
            # The average of many ranks is rounded once, in single precision for half dtypes.
            inputs = samples((3, 4), dtype)
            close(hvd.allreduce(inputs[hvd.rank()], op=op), reduced(inputs, op))


def allreduce_multiplies() -> None:
    hvd.init()
    for dtype in REDUCIBLE:
        # Factors of 2 on three ranks and of 3 on one: 24 fits every dtype.
        factors = [1] * hvd.size()
        for rank, factor in zip((0, 1, 3, 6), (2, 3, 2, 2), strict=True):
            if rank < hvd.size():
                factors[rank] = factor
        inputs = [torch.full((4,), factor).to(dtype) for factor in factors]
        same(hvd.allreduce(inputs[hvd.rank()], op=hvd.Product), reduced(inputs, hvd.Product), dtype)


def allreduce_every_shape() -> None:
    hvd.init()
    for shape in SHAPES:
        inputs = samples(shape)
        same(hvd.allreduce(inputs[hvd.rank()], op=hvd.Sum), reduced(inputs, hvd.Sum), shape)
        same(hvd.allreduce_(inputs[hvd.rank()], op=hvd.Sum), reduced(samples(shape), hvd.Sum))


def allreduce_large() -> None:
    hvd.init()
    for count in (1023, 262_145, 3_000_001):
        inputs = samples((count,))
        same(hvd.allreduce(inputs[hvd.rank()], op=hvd.Sum), reduced(inputs, hvd.Sum), count)


test_allreduce_every_op_and_dtype = on_every_size(allreduce_every_op_and_dtype)
test_allreduce_multiplies = on_every_size(allreduce_multiplies)
test_allreduce_every_shape = on_every_size(allreduce_every_shape)
test_allreduce_of_many_rounds = on_every_size(allreduce_large)


def allreduce_forms() -> None:
    hvd.init()
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


@over_every_backend
def test_allreduce_forms() -> None:
    values_of(run_ranks(allreduce_forms, 2))


def on_a_gpu() -> bool:
    """Where this rank makes its tensors."""
    return torch.get_default_device().type != "cpu"


def allreduce_scaled() -> None:
    hvd.init()
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


@over_every_backend_and_size([1, 2, 4])
def test_allreduce_scaled_before_and_after(size: int) -> None:
    values_of(run_ranks(allreduce_scaled, size))


def integer_average() -> list[list[int]]:
    hvd.init()
    inputs = [[7, -7, 1, 100], [2, -2, 0, 101], [1, -1, 1, 101]][hvd.rank()]
    return [
        hvd.allreduce(torch.tensor(inputs, dtype=dtype)).tolist()
        for dtype in (torch.int8, torch.int32, torch.int64)
    ]


@over_every_backend
def test_integer_average_is_truncated_toward_zero() -> None:
    # int8: the sum wraps as it would in torch; nobody averages bytes near their limit.
    for value in values_of(run_ranks(integer_average, 3)):
        assert value[1:] == [[3, -3, 0, 100]] * 2
        assert value[0][:3] == [3, -3, 0]


def allreduce_special_values() -> None:
    hvd.init()
    inf, nan = math.inf, math.nan
    mine = torch.tensor([inf, -inf, nan, 1.0]) if hvd.rank() == 0 else torch.ones(4)
    total = hvd.allreduce(mine, op=hvd.Sum)
    assert total[0] == inf and total[1] == -inf and total[2].isnan() and total[3] == 2
    for op in () if on_a_gpu() else (hvd.Min, hvd.Max):
        assert hvd.allreduce(mine, op=op)[2].isnan(), "as torch.minimum does"


@over_every_backend
def test_allreduce_keeps_infinities_and_nans() -> None:
    values_of(run_ranks(allreduce_special_values, 2))


def compressed() -> None:
    hvd.init()
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
def test_compression_gives_back_the_dtype() -> None:
    values_of(run_ranks(compressed, 2))


def grouped_allreduce_forms() -> None:
    hvd.init()
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


@over_every_backend_and_size([1, 2, 3])
def test_grouped_allreduce_forms(size: int) -> None:
    values_of(run_ranks(grouped_allreduce_forms, size))


def large_group() -> None:
    hvd.init()
    given = [torch.full((3,), float(i + hvd.rank())) for i in range(3000)]
    for i, found in enumerate(hvd.grouped_allreduce(given, op=hvd.Sum)):
        same(found, torch.full((3,), 2.0 * i + 1))


@over_every_backend
def test_group_of_three_thousand_tensors() -> None:
    values_of(run_ranks(large_group, 2))


# --- names, order, handles -----------------------------------------------------------------------


def any_order() -> None:
    hvd.init()
    names = [f"tensor.{i}" for i in range(50)]
    order = names if hvd.rank() == 0 else list(reversed(names))
    handles = {
        name: hvd.allreduce_async(torch.tensor([float(names.index(name))]), op=hvd.Sum, name=name)
        for name in order
    }
    for name in names:
        assert hvd.synchronize(handles[name]).item() == hvd.size() * names.index(name)


@over_every_backend_and_size([2, 4])
def test_named_operations_meet_in_any_order(size: int) -> None:
    values_of(run_ranks(any_order, size))


def unnamed_in_order() -> None:
    hvd.init()
    handles = []
    for i in range(20):
        handles.append(hvd.allreduce_async(torch.tensor([i]), op=hvd.Sum))
        handles.append(hvd.broadcast_async(torch.tensor([i + hvd.rank()]), 0))
    found = [hvd.synchronize(handle).item() for handle in reversed(handles)]
    assert found == [x for i in reversed(range(20)) for x in (i, i * hvd.size())]


@over_every_backend
def test_unnamed_operations_of_a_kind_meet_by_their_number() -> None:
    values_of(run_ranks(unnamed_in_order, 3))


def name_again() -> None:
    hvd.init()
    for i in range(200):
        shape = (1 + i % 3,)  # another shape under the same name is fine once the last is done
        found = hvd.allreduce(torch.full(shape, float(i)), name="again", op=hvd.Sum)
        same(found, torch.full(shape, float(i * hvd.size())))
    hvd.allreduce(torch.ones(1), name="kind")
    hvd.broadcast(torch.ones(2), 0, name="kind")
    hvd.allgather(torch.ones(2), name="kind")


@over_every_backend
def test_a_name_can_be_used_again_with_another_shape_or_kind() -> None:
    values_of(run_ranks(name_again, 2))


def one_name_for_every_kind() -> None:
    hvd.init()
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


@over_every_backend
def test_kinds_in_flight_under_one_name_do_not_meet() -> None:
    values_of(run_ranks(one_name_for_every_kind, 2))


def more_names_than_the_cache_holds() -> None:
    hvd.init()
    for _ in range(3):
        for i in range(40):
            assert hvd.allreduce(torch.tensor([i]), op=hvd.Sum, name=f"n{i}").item() == 2 * i


@pytest.mark.parametrize("capacity", [0, 7])
def test_more_names_than_the_response_cache_holds(capacity: int) -> None:
    env = {"CIRANDA_CACHE_CAPACITY": str(capacity)}
    values_of(run_ranks(more_names_than_the_cache_holds, 2, env=env))


def poll_and_synchronize() -> None:
    hvd.init()
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
    assert hvd.synchronize(123456) is None
    with pytest.raises(ValueError, match=f"no unfinished operation with handle {handle}"):
        hvd.poll(handle)


@over_every_backend
def test_poll_tells_and_a_second_synchronize_gives_none() -> None:
    values_of(run_ranks(poll_and_synchronize, 2))


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


def broadcast_every_dtype_and_shape() -> None:
    hvd.init()
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


test_broadcast_every_dtype_and_shape = on_every_size(broadcast_every_dtype_and_shape)


def broadcast_forms() -> None:
    hvd.init()
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


@over_every_backend
def test_broadcast_forms() -> None:
    values_of(run_ranks(broadcast_forms, 3))


# --- allgather -----------------------------------------------------------------------------------


def allgather_unequal_rows() -> None:
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for dtype in MOVABLE:
        for rest in ((), (3,), (2, 2)):
            # Rank 1 has none at all.
            pieces = [sample(r, ((r * 2 + 1) if r != 1 else 0, *rest), dtype) for r in range(size)]
            same(hvd.allgather(pieces[rank]), torch.cat(pieces), (dtype, rest))


def allgather_shapes() -> None:
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for shape in ((1,), (2, 3), (0,), (0, 4), (3, 0)):
        pieces = samples(shape)
        same(hvd.allgather(pieces[rank], name=f"g{shape}"), torch.cat(pieces), shape)
    pieces = [sample(r, (100_003 + r,)) for r in range(size)]
    same(hvd.allgather(pieces[rank]), torch.cat(pieces), "many rounds")


test_allgather_unequal_rows = on_every_size(allgather_unequal_rows)
test_allgather_shapes = on_every_size(allgather_shapes)


def allgather_forms() -> None:
    hvd.init()
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


@over_every_backend_and_size([1, 2, 3])
def test_allgather_forms(size: int) -> None:
    values_of(run_ranks(allgather_forms, size))


# --- alltoall ------------------------------------------------------------------------------------


def alltoall_even() -> None:
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for dtype in MOVABLE:
        inputs = samples((size * 2, 3), dtype)
        found = hvd.alltoall(inputs[rank], name=f"even.{dtype}")
        same(found, torch.cat([inputs[r][rank * 2 : rank * 2 + 2] for r in range(size)]), dtype)
    same(hvd.alltoall(torch.empty(0, 3)), torch.empty(0, 3))


def alltoall_splits() -> None:
    hvd.init()
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


test_alltoall_even = on_every_size(alltoall_even)
test_alltoall_splits = on_every_size(alltoall_splits)


def alltoall_async_form() -> None:
    hvd.init()
    mine = torch.arange(4) + 10 * hvd.rank()
    output, rows = hvd.synchronize(hvd.alltoall_async(mine, name="a"))
    assert rows.tolist() == [2, 2], "the pair, also without splits"
    begin = 2 * hvd.rank()
    assert output.tolist() == [begin, begin + 1, 10 + begin, 11 + begin]
    output, rows = hvd.synchronize(hvd.alltoall_async(mine, [0, 4] if hvd.rank() == 0 else [1, 3]))
    assert rows.tolist() == ([0, 1] if hvd.rank() == 0 else [4, 3])
    assert output.tolist() == ([10] if hvd.rank() == 0 else [0, 1, 2, 3, 11, 12, 13])


@over_every_backend
def test_async_alltoall_gives_output_and_splits() -> None:
    values_of(run_ranks(alltoall_async_form, 2))


# --- reducescatter -------------------------------------------------------------------------------


def pieces_of(total: torch.Tensor) -> list[torch.Tensor]:
    """By rank; the first ranks get one row more."""
    rows, more = divmod(total.shape[0], hvd.size())
    return list(total.split([rows + (rank < more) for rank in range(hvd.size())]))


def reducescatter_every_dtype_and_shape() -> None:
    hvd.init()
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


test_reducescatter_every_dtype_and_shape = on_every_size(reducescatter_every_dtype_and_shape)


def reducescatter_forms() -> None:
    hvd.init()
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


@over_every_backend_and_size([1, 2, 3])
def test_reducescatter_forms(size: int) -> None:
    values_of(run_ranks(reducescatter_forms, size))


# --- barrier -------------------------------------------------------------------------------------


def barrier() -> list[float]:
    hvd.init()
    for _ in range(50):
        hvd.barrier()
    if hvd.rank() == 1:
        time.sleep(0.5)
    came = time.monotonic()
    hvd.barrier()
    return [came, time.monotonic()]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_nobody_leaves_a_barrier_before_the_last_came(size: int) -> None:
    times = values_of(run_ranks(barrier, size))
    last_came = max(came for came, _ in times)
    assert all(left >= last_came for _, left in times)


# --- autograd ------------------------------------------------------------------------------------


def leaf(shape: tuple[int, ...]) -> torch.Tensor:
    return sample(hvd.rank(), shape).requires_grad_()


def weight(rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    """What the loss of `rank` multiplies the output with."""
    return sample(rank + 4, shape)


def grad_of(output: torch.Tensor, leaf_tensor: torch.Tensor) -> torch.Tensor:
    (output * weight(hvd.rank(), tuple(output.shape))).sum().backward()
    assert leaf_tensor.grad is not None
    return leaf_tensor.grad


def allreduce_gradient() -> None:
    hvd.init()
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


def broadcast_gradient() -> None:
    hvd.init()
    weights = [weight(rank, (5,)) for rank in range(hvd.size())]
    x = leaf((5,))
    expected = reduced(weights, hvd.Average) if hvd.rank() == 1 else torch.zeros(5)
    close(grad_of(hvd.broadcast(x, 1), x), expected)


def allgather_gradient() -> None:
    hvd.init()
    rows = [rank + 1 for rank in range(hvd.size())]
    total = sum(rows)
    weights = [weight(rank, (total, 2)) for rank in range(hvd.size())]
    x = leaf((rows[hvd.rank()], 2))
    expected = reduced(weights, hvd.Average).split(rows)[hvd.rank()]
    close(grad_of(hvd.allgather(x), x), expected)


def alltoall_gradient() -> None:
    hvd.init()
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


def reducescatter_gradient() -> None:
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    rows = [2 + (r < 1) for r in range(size)]  # with a remainder
    gathered = torch.cat([weight(r, (rows[r], 2)) for r in range(size)])
    x = leaf((sum(rows), 2))
    close(grad_of(hvd.reducescatter(x), x), gathered)
    x = leaf((sum(rows), 2))
    close(grad_of(hvd.reducescatter(x, op=hvd.Sum), x), gathered * size)
    assert rank < size


def group_gradients() -> None:
    """Groups have the gradients of single operations, also where one does not need all of them."""
    hvd.init()
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


def group_gradients_by_differences() -> None:
    """Against differences of the sum of all ranks' losses, and their gradients once more."""
    hvd.init()
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


@pytest.mark.parametrize(
    "function",
    [
        group_gradients,
        group_gradients_by_differences,
        allreduce_gradient,
        broadcast_gradient,
        allgather_gradient,
        alltoall_gradient,
        reducescatter_gradient,
    ],
)
@over_every_backend_and_size([2, 3])
def test_gradients(function, size: int) -> None:  # type: ignore[no-untyped-def]
    values_of(run_ranks(function, size))


# --- mixed ---------------------------------------------------------------------------------------


def mixed_traffic() -> None:
    """Random operations in flight together, submitted in another order on each rank."""
    import random

    hvd.init()
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


@over_every_backend_and_size([2, 3, 8])
def test_many_kinds_in_flight_in_any_order(size: int) -> None:
    values_of(run_ranks(mixed_traffic, size))


# --- arena ---------------------------------------------------------------------------------------


def arena() -> None:
    from ciranda.torch import ops

    hvd.init()
    for dtype in (torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float64):
        tensor = ops.arena_empty([3, 5], dtype)
        tensor.copy_(sample(hvd.rank(), (3, 5), dtype))
        assert ops.arena_allreduce_(tensor, op=hvd.Sum) is tensor
        same(tensor, reduced(samples((3, 5), dtype), hvd.Sum), dtype)
    with pytest.raises(ValueError, match="was not made by arena_empty"):
        ops.arena_allreduce_(torch.ones(3))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tensors_of_the_arena_are_reduced_where_they_lie(size: int) -> None:
    values_of(run_ranks(arena, size))
