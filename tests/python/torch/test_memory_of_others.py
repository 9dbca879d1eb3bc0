"""Parameters in memory that others look at too: another process, an array, a file. Breaks when
training goes on elsewhere and they see the first values for ever."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_checks import on_ranks
from ranks import run_ranks, values_of
from sharing import any_size
from torch import nn

import ciranda.torch as hvd
from ciranda.torch import ps

COUNT = 2000


class Watched:
    """A parameter of ones, and what somebody else sees of it."""

    def __init__(self, parameter: nn.Parameter, look: Callable[[], float]) -> None:
        self.parameter, self.look = parameter, look

    def step(self, **options: Any) -> Any:
        """With a gradient of ones on every rank."""
        with any_size():
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([self.parameter], lr=0.25), [("w", self.parameter)], **options
            )
        self.parameter.sum().backward()
        optimizer.step()
        assert (self.parameter == 0.75).all()
        return optimizer


def as_array() -> Iterator[Watched]:
    array = np.ones(COUNT, np.float32)
    yield Watched(nn.Parameter(torch.from_numpy(array)), lambda: float(array.mean()))


def as_file() -> Iterator[Watched]:
    with tempfile.NamedTemporaryFile() as file:
        parameter = nn.Parameter(torch.from_file(file.name, shared=True, size=COUNT))
        nn.init.ones_(parameter)
        yield Watched(parameter, lambda: float(np.fromfile(file.name, np.float32).mean()))


def as_slice() -> Iterator[Watched]:
    whole = torch.ones(COUNT).untyped_storage()

    def slice_of_all() -> nn.Parameter:
        return nn.Parameter(torch.empty(0).set_(whole[:], 0, (COUNT,)))  # type: ignore[call-overload]

    other = slice_of_all()
    yield Watched(slice_of_all(), lambda: float(other.mean()))


def as_process() -> Iterator[Watched]:
    """A child tells what it sees for each byte that it is sent."""
    layer = nn.Linear(COUNT, 1, bias=False)
    nn.init.ones_(layer.weight)
    layer.share_memory()
    here, there = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(here[1])
        while os.read(here[0], 1):
            os.write(there[1], layer.weight.detach().numpy().mean().tobytes())
        os._exit(0)

    def look() -> float:
        os.write(here[1], b"?")
        return float(np.frombuffer(os.read(there[0], 4), np.float32)[0])

    try:
        yield Watched(layer.weight, look)
    finally:
        for end in (*here, *there):
            os.close(end)
        os.waitpid(child, 0)


OTHERS = {
    as_array: r"memory that torch has not allocated",
    as_file: r"memory that other processes may see",
    as_slice: r"memory that torch has not allocated",
    as_process: r"memory that other processes may see",
}


@on_ranks(2)
def test_who_looks_at_the_weights_sees_the_steps() -> None:
    for kind, text in OTHERS.items():
        with contextmanager(kind)() as watched:
            optimizer = watched.step()
            assert watched.look() == 0.75, kind.__name__
            assert f"parameter 'w' lies in {text}" in optimizer.why_not_shared()


@on_ranks(2)
def test_a_step_that_must_be_shared_is_refused() -> None:
    for options in ({"shared_step": "host"}, {"share_parameters": True}):
        for kind, text in OTHERS.items():
            with (
                contextmanager(kind)() as watched,
                pytest.raises(ValueError, match=f"is not possible: parameter 'w' lies in {text}"),
            ):
                watched.step(**options)


@on_ranks(2)
def test_memory_that_nobody_else_sees_is_shared() -> None:
    def ordinary() -> nn.Module:
        return nn.Linear(8, 4)

    def from_meta() -> nn.Module:
        return nn.Linear(8, 4, device="meta").to_empty(device="cpu")

    def copied() -> nn.Module:
        return copy.deepcopy(ordinary().share_memory())

    def loaded() -> nn.Module:
        with tempfile.NamedTemporaryFile() as file:
            torch.save(ordinary().state_dict(), file.name)
            model = nn.Linear(8, 4, device="meta")
            model.load_state_dict(torch.load(file.name), assign=True)
        return model

    def made_of_an_array() -> nn.Module:
        return nn.Embedding.from_pretrained(torch.tensor(np.ones((8, 4))), freeze=False)

    for make in (ordinary, from_meta, copied, loaded, made_of_an_array):
        model = make()
        hvd.broadcast_parameters(model.state_dict(), 0)
        for options in ({}, {"shared_step": "host"}, {"share_parameters": True}, {}):
            with any_size():
                optimizer = hvd.DistributedOptimizer(
                    torch.optim.SGD(model.parameters(), lr=0.1), **options
                )
            assert optimizer.why_not_shared() == "", make.__name__
            del optimizer  # what it leaves behind may move again


@on_ranks(2)
def test_a_file_that_is_mapped_for_one_process_is_named() -> None:
    with tempfile.NamedTemporaryFile() as file:
        torch.save(nn.Linear(8, 4).state_dict(), file.name)
        model = nn.Linear(8, 4, device="meta")
        model.load_state_dict(torch.load(file.name, mmap=True), assign=True)
    with any_size():
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    assert "torch.load(mmap=True)" in optimizer.why_not_shared()


@on_ranks(2)
def test_ranks_that_have_the_same_memory_are_refused() -> None:
    path = hvd.broadcast_object(tempfile.mkstemp()[1])
    weight = nn.Parameter(torch.from_file(path, shared=True, size=COUNT))
    hvd.barrier()
    Path(path).unlink(missing_ok=True)
    for options in ({}, {"shared_step": False}, {"op": hvd.Adasum}):
        with pytest.raises(ValueError, match="'w' lies in memory that ranks 0 and 1"):
            hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)], **options)


@on_ranks(2)
def test_what_share_parameters_has_made_one_is_not_stepped_twice() -> None:
    weight = nn.Parameter(torch.ones(COUNT))
    with any_size():
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=0.1), [("w", weight)], share_parameters=True
        )
    del optimizer
    with pytest.raises(ValueError, match="'w' lies in memory that ranks 0 and 1"):
        hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=0.1), [("w", weight)], shared_step=False
        )


def served(update_on: str) -> list[float]:
    hvd.init()
    with contextmanager(as_array)() as array, contextmanager(as_process)() as process:
        parameters = [array.parameter, process.parameter]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=0.25),
            ps=ps.Sync(update_on=update_on),  # type: ignore[arg-type]
        )
        sum(p.sum() for p in parameters).backward()  # type: ignore[union-attr]
        optimizer.step()
        seen = [array.look(), process.look()]
        hvd.shutdown()
        return seen


def test_with_servers_who_looks_at_the_weights_sees_the_steps() -> None:
    assert values_of(run_ranks(served, 1, args=("server",), servers=1)) == [[0.75, 0.75]]


class Sharing:
    """A weight in the memory of a shared step, with what a next one does to who looks at it."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(torch.ones(COUNT))
        self.optimizer: Any = None
        self.share()
        self.view = self.weight.detach()[1:]
        self.graph = (self.weight * self.weight).sum()  # holds the weight as a value
        self.graph_of_view = (self.weight[1:] * self.weight[1:]).sum()  # holds a view of it

    def share(self) -> None:
        """Makes a new optimizer, in a new World. The one before is gone."""
        self.optimizer = None
        hvd.shutdown()
        hvd.init()
        sgd = torch.optim.SGD([self.weight], lr=0.25)
        with any_size():
            self.optimizer = hvd.DistributedOptimizer(sgd, [("w", self.weight)])

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.weight.sum().backward()
        self.optimizer.step()


@on_ranks(2)
def test_tensors_that_share_the_storage_move_along() -> None:
    sharing = Sharing()
    sharing.step()
    addresses = {sharing.weight.data_ptr()}
    seen = torch.from_dlpack(sharing.weight.detach())  # knows the address alone
    for _ in range(2):  # the second one before any step
        sharing.share()
        assert sharing.optimizer.why_not_shared() == ""
        addresses.add(sharing.weight.data_ptr())
        assert sharing.view.data_ptr() == sharing.weight.data_ptr() + 4
        assert (seen == 0.75).all()
    assert len(addresses) == 3
    sharing.step()
    assert (sharing.weight == 0.5).all() and (sharing.view == 0.5).all()
    assert (seen == 0.75).all()  # old, but there
    for graph in (sharing.graph, sharing.graph_of_view):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            graph.backward()


@on_ranks(2)
def test_graphs_run_backward_after_the_move() -> None:
    sharing = Sharing()
    sharing.share()
    for graph in (sharing.graph, sharing.graph_of_view):
        (gradient,) = torch.autograd.grad(graph, sharing.weight)
        assert (gradient[1:] == 2).all()
    assert sharing.optimizer.why_not_shared() == ""


@on_ranks(2)
def test_a_weight_whose_address_is_known_stays() -> None:
    by_step, by_array = Sharing(), Sharing()
    by_step.share()
    by_step.step()  # `view` is none of a graph that is about to go
    array = by_array.weight.detach().numpy()
    for sharing in (by_step, by_array):
        sharing.share()
        assert "shares its memory with another tensor" in sharing.optimizer.why_not_shared()
        sharing.step()
    assert (by_step.view == 0.5).all()
    assert (array == 0.75).all()
    del by_step.view, by_step.graph, by_step.graph_of_view
    by_step.share()
    assert by_step.optimizer.why_not_shared() == ""
