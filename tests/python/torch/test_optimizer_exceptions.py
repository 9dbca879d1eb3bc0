"""What differs from plain torch, as docs/optimizer.md lists it: one test for each line of the list,
which breaks when the line is no longer true, or a line has no test."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_checks import on_ranks
from torch.nn import Parameter
from torch.optim import SGD, Adam

import ciranda.torch as hvd

_PAGE = Path(__file__).resolve().parents[3] / "docs" / "optimizer.md"
LARGE = 70_000  # "auto" shares the step


def zeros(count: int = 700) -> Parameter:
    return Parameter(torch.zeros(count))


def slope(*parameters: torch.Tensor) -> torch.Tensor:
    """Its gradient is 1 on rank 0 and 2 on rank 1: 1.5 on the average, 3 in the sum."""
    return torch.stack([(p * (hvd.rank() + 1)).sum() for p in parameters]).sum()


def is_all(tensor: torch.Tensor | None, value: float) -> bool:
    return tensor is not None and bool((tensor == value).all())


@on_ranks(2)
def test_a_gradients_graph_is_this_ranks_own() -> None:
    p = Parameter(torch.ones(700))
    optimizer = hvd.DistributedOptimizer(SGD([p], lr=1.0), shared_step=False)
    slope(p.square()).backward(create_graph=True)
    assert is_all(p.grad, 3.0)  # 2 and 4
    (curvature,) = torch.autograd.grad(p.grad.sum(), p, retain_graph=True)
    assert is_all(curvature, 2.0 * (hvd.rank() + 1))  # 3 where it is averaged
    p.grad.sum().backward()
    assert is_all(p.grad.detach(), 6.0)
    optimizer.step()


@on_ranks(2)
def test_a_hidden_write_in_flight_is_not_noticed() -> None:
    first, second = zeros(), zeros()
    optimizer = hvd.DistributedOptimizer(SGD([first, second], lr=1.0), bucket_bytes=1)
    for hidden in (False, True):
        optimizer.zero_grad()
        for written, hook_of in ((first, second), (second, first)):
            if hidden:
                hook_of.register_hook(
                    lambda _, p=written: None if p.grad is None else p.grad.data.zero_()
                )
        slope(first, second).backward()
        optimizer.step()  # no error, whichever of the two was written


@on_ranks(2)
def test_state_dict_gives_copies() -> None:
    p = zeros(LARGE)
    optimizer = hvd.DistributedOptimizer(SGD([p], lr=1.0, momentum=0.5))
    assert optimizer.why_not_shared() == ""
    slope(p).backward()
    optimizer.step()
    kept = optimizer.state_dict()["state"][0]["momentum_buffer"]
    optimizer.step()
    assert is_all(kept, 1.5)  # torch's would be 2.25 now
    assert is_all(optimizer.state_dict()["state"][0]["momentum_buffer"], 2.25)


@on_ranks(2)
def test_host_leaves_each_ranks_own_gradient() -> None:
    p = zeros()
    optimizer = hvd.DistributedOptimizer(SGD([p], lr=1.0), shared_step="host")
    slope(p).backward()
    assert is_all(p.grad, hvd.rank() + 1)
    optimizer.synchronize()
    assert is_all(p.grad, 1.5)


@on_ranks(2)
def test_edited_averages_are_averaged_again() -> None:
    for mode in ("auto", "host", False):
        p = zeros(LARGE)
        optimizer = hvd.DistributedOptimizer(SGD([p], lr=1.0), shared_step=mode)
        slope(p).backward()
        optimizer.synchronize()
        p.grad.mul_(2.0 if hvd.rank() == 0 else 4.0)
        optimizer.step()
        assert is_all(p.detach(), -4.5)


@on_ranks(2)
def test_edits_through_data_are_each_ranks_own() -> None:
    for mode in ("auto", False):
        p = zeros(LARGE)
        optimizer = hvd.DistributedOptimizer(SGD([p], lr=1.0), shared_step=mode)
        slope(p).backward()
        p.grad.data.mul_(2.0 if hvd.rank() == 0 else 4.0)
        optimizer.step()
        both = hvd.allgather(p.detach()[None])
        assert bool(((both == -3.0) | (both == -6.0)).all())
        assert torch.equal(both[0], both[1]) == (mode == "auto")


@on_ranks(2)
def test_edited_sums_count_as_they_are() -> None:
    p = zeros()
    optimizer = hvd.DistributedOptimizer(SGD([p], lr=1.0), op=hvd.Sum)
    slope(p).backward()
    p.grad.mul_(2.0)
    optimizer.step()
    assert is_all(p.detach(), -6.0)
    p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match="was replaced after gradients had been summed"):
        optimizer.step()


@on_ranks(2)
def test_a_sum_cannot_be_added_to() -> None:
    p = zeros()
    optimizer = hvd.DistributedOptimizer(SGD([p], lr=1.0), op=hvd.Sum)
    slope(p).backward()
    slope(p).backward()
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        optimizer.step()
    optimizer.zero_grad()
    slope(p).backward()
    optimizer.step()
    assert is_all(p.detach(), -3.0)


@on_ranks(2)
def test_another_dtype_for_good_is_an_error() -> None:
    module = torch.nn.Linear(30, 30)
    optimizer = hvd.DistributedOptimizer(SGD(module.parameters(), lr=1.0), shared_step=False)
    slope(*module.parameters()).backward()
    optimizer.step()
    module.double().float()
    slope(*module.parameters()).backward()
    optimizer.step()
    module.double()
    optimizer.zero_grad()
    slope(*module.parameters()).backward()
    with pytest.raises(ValueError, match="convert the model before that"):
        optimizer.step()


@on_ranks(2)
def test_hooks_of_the_user_on_a_converted_parameter() -> None:
    module = torch.nn.Linear(30, 30, bias=False)
    p = module.weight
    p.data.zero_()
    p.register_post_accumulate_grad_hook(lambda _: None)
    p.register_hook(lambda _: None)
    optimizer = hvd.DistributedOptimizer(SGD([p], lr=1.0), shared_step=False)
    slope(p).backward()
    assert is_all(p.grad, 1.5)
    optimizer.step()
    module.zero_grad()
    module.double().float()
    slope(p).backward()
    assert is_all(p.grad, hvd.rank() + 1)
    optimizer.step()
    assert is_all(p.grad, 1.5)
    assert is_all(p.detach(), -3.0)
    module.zero_grad()
    slope(p).backward()
    assert is_all(p.grad, 1.5)


@on_ranks(2)
def test_sparse_gradients_are_densified() -> None:
    for mode, dense in (("host", True), (False, False)):
        table = torch.nn.Embedding(50, 4, sparse=True)
        optimizer = hvd.DistributedOptimizer(SGD(table.parameters(), lr=1.0), shared_step=mode)
        slope(table(torch.tensor([hvd.rank()]))).backward()
        optimizer.synchronize()
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse != dense
        if not dense and hvd.rank() == 0:
            table.weight.grad = table.weight.grad.to_dense()
        optimizer.step()
        assert not table.weight.grad.is_sparse


@on_ranks(2)
def test_a_densified_row_of_zeros_is_not_stepped_by_sparse_adam() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(table.parameters(), lr=0.1), sparse_as_dense=True
    )
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    before = table.weight[1, 0].item()
    optimizer.zero_grad()
    (table(torch.tensor([1, 2])) * torch.tensor([[0.0], [1.0]])).sum().backward()
    optimizer.step()
    assert table.weight[1, 0].item() == before  # torch goes on by its momentum
    assert table.weight[2, 0].item() < before


@on_ranks(2)
def test_tiny_state_becomes_zero() -> None:
    p = zeros()
    optimizer = hvd.DistributedOptimizer(Adam([p], lr=0.1), shared_step="host")
    (p * 1e-18).sum().backward()
    optimizer.step()
    (state,) = optimizer.state_dict()["state"].values()
    assert is_all(state["exp_avg_sq"], 0.0)  # 1e-39; torch keeps it as a denormal
    assert bool((state["exp_avg"] > 0).all())


@on_ranks(2)
def test_a_forked_child_cannot_step() -> None:
    p = zeros(LARGE)
    optimizer = hvd.DistributedOptimizer(SGD([p], lr=1.0))
    slope(p).backward()
    optimizer.step()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            slope(p).backward()
            own = float(p.grad[0])  # written here, so it is the child's
            optimizer.step()
        except Exception as error:
            os.write(write_end, f"{own} {error}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read_end, 1000).decode()
    assert said.startswith(f"{2.5 + hvd.rank()} this process was forked from a rank"), said
    assert is_all(p.grad, 1.5)
    assert is_all(p.detach(), -1.5)


@on_ranks(2)
def test_deleting_ends_an_optimizer() -> None:
    p = zeros()
    first = hvd.DistributedOptimizer(SGD([p], lr=1.0))
    second = hvd.DistributedOptimizer(SGD([p], lr=1.0), op=hvd.Sum)  # the latest reduces
    slope(p).backward()
    assert is_all(p.grad, 3.0)
    second.zero_grad()
    del second  # on every rank here
    gc.collect()
    slope(p).backward()
    assert is_all(p.grad, 1.5)
    del first


@on_ranks(2)
def test_a_parameter_cannot_be_swapped() -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = hvd.DistributedOptimizer(SGD(model.parameters(), lr=1.0))
    with pytest.raises(RuntimeError, match="Expected use_count of t1"):
        torch.utils.swap_tensors(model.weight, zeros(9))
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with pytest.raises(RuntimeError, match=r"Couldn't swap Linear\.weight"):
            model.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


# How each line of the list begins, and what holds it.
TESTS: dict[str, tuple[Any, ...]] = {
    "After `backward(create_graph=True)`": (test_a_gradients_graph_is_this_ranks_own,),
    "A hook that is added after the first pass": (test_a_hidden_write_in_flight_is_not_noticed,),
    "`optimizer.state_dict()` of a shared step gives copies": (test_state_dict_gives_copies,),
    '`"host"` leaves each rank\'s own gradient': (test_host_leaves_each_ranks_own_gradient,),
    "Gradients that are edited in place": (
        test_edited_averages_are_averaged_again,
        test_edited_sums_count_as_they_are,
    ),
    "Gradients that are edited through `.data`": (test_edits_through_data_are_each_ranks_own,),
    "`op=Sum`: a gradient that has been summed": (test_a_sum_cannot_be_added_to,),
    "A model that is converted to another dtype": (test_another_dtype_for_good_is_an_error,),
    "`torch.utils.swap_tensors()` of a parameter": (test_a_parameter_cannot_be_swapped,),
    "After a conversion, and without a call": (test_hooks_of_the_user_on_a_converted_parameter,),
    "Sparse gradients are densified": (test_sparse_gradients_are_densified,),
    "`sparse_as_dense=True` with SparseAdam": (
        test_a_densified_row_of_zeros_is_not_stepped_by_sparse_adam,
    ),
    "State below 2^-126": (test_tiny_state_becomes_zero,),
    "A child made by fork": (test_a_forked_child_cannot_step,),
    "Python's `del` must end an optimizer": (test_deleting_ends_an_optimizer,),
}


def test_each_exception_of_the_page_is_tested() -> None:
    _, _, after = _PAGE.read_text().partition("\n## As plain torch, but\n")
    section, _, _ = after.partition("\n## ")
    listed = re.findall(r"^- (.*)", section, flags=re.MULTILINE)
    untested = [line for line in listed if not line.startswith(tuple(TESTS))]
    gone = [start for start in TESTS if not any(line.startswith(start) for line in listed)]
    assert (untested, gone) == ([], [])
