"""The verifier behind #wrong: it accepts what is right in every dtype, and counts what is not."""

from __future__ import annotations

import pytest
import torch

from ciranda.bench import check, with_memcpy
from ciranda.bench.case import DTYPE_BYTES, IN_PIECES, OPS, REDOPS, REDUCING, Case
from ciranda.bench.commands import TIME, VERIFY
from ciranda.bench.library import Call
from ciranda.bench.worker import Worker

COUNT = check.PERIOD + 100


def inputs(case: Case, size: int) -> list[torch.Tensor]:
    count = case.count * (size if case.op in IN_PIECES and case.op != "allgather" else 1)
    tensors = [torch.empty(count, dtype=getattr(torch, case.dtype)) for _ in range(size)]
    for rank, tensor in enumerate(tensors):
        check.fill(tensor, case, rank, size)
    return tensors


def reduced(tensors: list[torch.Tensor], redop: str) -> torch.Tensor:
    stack = torch.stack([tensor.double() for tensor in tensors])
    if redop == "avg":
        return stack.mean(0)
    if redop == "prod":
        return stack.prod(0)
    return stack.sum(0) if redop == "sum" else getattr(stack, f"a{redop}")(0)


def result(case: Case, rank: int, size: int) -> torch.Tensor:
    """What plain torch makes of the inputs."""
    tensors = inputs(case, size)
    piece = slice(rank * case.count, (rank + 1) * case.count)
    if case.op == "broadcast":
        return tensors[0]
    if case.op == "allgather":
        return torch.cat(tensors)
    if case.op == "alltoall":
        return torch.cat([tensor[piece] for tensor in tensors])
    whole = reduced(tensors, case.redop).to(tensors[0].dtype)
    return whole[piece] if case.op == "reducescatter" else whole


def cases_of(dtype: str) -> list[Case]:
    return [
        Case(op, COUNT, dtype, redop)
        for op in OPS
        for redop in (REDOPS if op in REDUCING else ["none"])
    ]


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_right_results_have_nothing_wrong(dtype: str) -> None:
    for case in cases_of(dtype):
        assert check.count_wrong(result(case, 1, 3), case, 1, 3) == 0, case


@pytest.mark.parametrize("op", OPS)
def test_each_changed_element_is_counted(op: str) -> None:
    case = Case(op, COUNT, "float32", "sum" if op in REDUCING else "none")
    right = result(case, 1, 2)
    right[0] += 1
    right[5000] = float("nan")
    right[-1] -= 1
    assert check.count_wrong(right, case, 1, 2) == 3


def test_a_wrong_average_is_counted_although_it_need_not_be_exact() -> None:
    case = Case("allreduce", COUNT, "float32", "avg")
    right = result(case, 0, 3)
    right[1] *= 1 + 1e-7
    right[2] = float("nan")
    right[3] += 0.01
    assert check.count_wrong(right, case, 0, 3) == 2


@pytest.mark.parametrize("op", OPS)
def test_another_ranks_result_and_shifted_data_are_wrong(op: str) -> None:
    case = Case(op, 1 << 15, "float32", "sum" if op in REDUCING else "none")
    right = result(case, 1, 2)
    assert check.count_wrong(right.roll(1 << 12), case, 1, 2) > right.numel() // 2
    if op in ("reducescatter", "alltoall"):
        assert check.count_wrong(result(case, 0, 2), case, 1, 2) > right.numel() // 2


def test_one_ranks_input_is_not_the_sum() -> None:
    case = Case("allreduce", COUNT, "float32", "sum")
    assert check.count_wrong(inputs(case, 2)[0], case, 0, 2) > COUNT // 2


def test_missing_elements_are_wrong() -> None:
    case = Case("allgather", 10, "float32", "none")
    assert check.count_wrong(torch.zeros(10), case, 0, 2) == 20


class Forgetful:
    """A library that is fast because it does not reduce."""

    rank = 0
    size = 2

    def call(self, case: Case, sent: torch.Tensor, received: torch.Tensor) -> Call:
        return lambda: received

    def close(self) -> None:
        pass


@pytest.mark.parametrize("op", [op for op in OPS if op != "broadcast"])  # rank 0 has that before
def test_a_worker_tells_how_much_its_library_got_wrong(op: str) -> None:
    case = Case(op, 1000, "float32", "sum" if op in REDUCING else "none")
    reply = Worker(Forgetful(), "cpu").handle({**case.as_command(), "do": VERIFY})
    assert reply["wrong"] > 500


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_the_plain_copy_copies_as_many_bytes_as_the_larger_buffer_has(dtype: str) -> None:
    copied = Case("allgather", 1000, dtype, "none").as_copy(3)
    assert copied.elements(1) == 3000
    worker = Worker(with_memcpy.open_library("cpu"), "cpu")
    assert worker.handle({**copied.as_command(), "do": VERIFY}) == {"wrong": 0}
    timed = worker.handle({**copied.as_command(), "do": TIME, "iterations": 4})
    assert len(timed["seconds"]) == 4
