"""The wrapped optimizer stays the user's optimizer; what cannot work is refused in a sentence."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rank_checks import on_ranks
from ranks import run_ranks, values_of
from torch import nn

import ciranda.torch as hvd
from ciranda.errors import MismatchError


def mlp() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def train(model: nn.Module, optimizer: Any, steps: int = 2) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((3, 4), float(hvd.rank() + step))).sum().backward()
        optimizer.step()


class Unusual(torch.optim.SGD):
    """With constructor-only attributes, and a zero_grad of its own."""

    def __init__(self, parameters: Any, lr: float, note: str) -> None:
        super().__init__(parameters, lr=lr)
        self.note = note

    def zero_grad(self) -> None:
        super().zero_grad()

    def step(self, closure: Any = None, times: int = 1) -> str:
        for _ in range(times):
            super().step(closure)
        return f"{self.note} {times}"


@on_ranks(1, 2)
def test_the_object_stays_what_it_is() -> None:
    model = mlp()
    original = Unusual(model.parameters(), 0.1, "mine")
    optimizer = hvd.DistributedOptimizer(original, model.named_parameters())
    assert optimizer is original
    assert isinstance(optimizer, Unusual)
    assert type(optimizer).__name__ == "Unusual"
    assert optimizer.note == "mine"
    assert list(optimizer._parameter_names.values()) == [n for n, _ in model.named_parameters()]
    train(model, optimizer)
    assert optimizer.step(times=2) == "mine 2"
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer)


@on_ranks(1, 2)
def test_state_from_before_is_kept() -> None:
    model = mlp()
    earlier = torch.optim.Adam(model.parameters())
    train(model, earlier)
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.load_state_dict(earlier.state_dict())
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    for parameter in model.parameters():
        assert optimizer.state[parameter]["step"] == 2
    hvd.broadcast_parameters(model.state_dict(), 0)
    train(model, optimizer, steps=1)
    assert optimizer.state[model[0].weight]["step"] == 3


@on_ranks(2)
def test_state_dicts_are_those_of_the_plain_optimizer() -> None:
    model = mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.1), model.named_parameters()
    )
    train(model, optimizer)
    state = optimizer.state_dict()
    assert state.keys() == torch.optim.Adam(mlp().parameters()).state_dict().keys()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    train(model, optimizer)
    optimizer.load_state_dict(loaded)
    assert optimizer.state[model[0].weight]["step"] == 2
    train(model, optimizer, steps=1)
    plain = torch.optim.Adam(mlp().parameters())
    plain.load_state_dict(loaded)


@on_ranks(2)
def test_copies_and_pickles_are_plain_optimizers() -> None:
    model = mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.3), model.named_parameters()
    )
    train(model, optimizer)
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):  # noqa: S301
        assert type(other) is torch.optim.Adam
        assert other.param_groups[0]["lr"] == 0.3
        assert other.param_groups[0]["params"][0] is not model[0].weight
        assert len(other.state) == 4
        if hvd.rank() == 0:  # nothing is reduced
            other.zero_grad()
            sum(p.sum() for p in other.param_groups[0]["params"]).backward()
            other.step()
    train(model, optimizer)


@on_ranks(2)
def test_schedulers_made_before_and_after() -> None:
    for before in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = mlp()
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            if before:
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            if not before:
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            for expected in (0.5, 0.25):
                train(model, optimizer, steps=1)
                scheduler.step()
                assert optimizer.param_groups[0]["lr"] == expected
        gathered = hvd.allgather(model[0].weight.detach().unsqueeze(0))
        assert torch.equal(gathered[0], gathered[1])


@on_ranks(2)
def test_a_step_that_was_replaced_before_is_refused_and_after_runs() -> None:
    """As libraries do to count steps. One from before would step with this rank's gradients."""
    steps = []

    def count(optimizer: Any) -> None:
        step = optimizer.step

        def counted(*args: Any) -> Any:
            steps.append(optimizer)
            return step(*args)

        optimizer.step = counted

    for shared_step in ("auto", "host", False):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        count(optimizer)
        with pytest.raises(ValueError, match=r"optimizer\.step was replaced on this object"):
            hvd.DistributedOptimizer(optimizer, shared_step=shared_step)
        del optimizer.step
        optimizer = hvd.DistributedOptimizer(optimizer, shared_step=shared_step)
        count(optimizer)
        steps.clear()
        train(model, optimizer, steps=3)
        assert len(steps) == 3
        gathered = hvd.allgather(model[0].weight.detach().unsqueeze(0))
        assert torch.equal(gathered[0], gathered[1])


@on_ranks(2)
def test_step_hooks_run_once() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    calls = []
    optimizer.register_step_pre_hook(
        lambda *_: calls.append(("before", model[2].bias.grad.clone()))
    )
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    optimizer.register_step_post_hook(lambda *_: calls.append(("after", None)))
    (model[2].bias * hvd.rank()).sum().backward()
    optimizer.step()
    assert [name for name, _ in calls] == ["before", "after"]
    assert (calls[0][1] == 0.5).all()


@on_ranks(2)
def test_other_optimizers_of_the_class_are_untouched() -> None:
    model = mlp()
    hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    plain = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    if hvd.rank() == 0:
        plain.param_groups[0]["params"][0].sum().backward()
        plain.step()
        assert plain.param_groups[0]["params"][0] == 0


@on_ranks(1, 2)
def test_wrong_arguments_are_refused() -> None:
    model = mlp()
    named = list(model.named_parameters())

    def refused(text: str, **arguments: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(optimizer, **arguments)
        assert type(optimizer) is torch.optim.SGD

    refused("occur twice: 0.weight", named_parameters=[*named, ("0.weight", named[1][1])])
    refused("1 of the optimizer's 4 parameters have no name", named_parameters=named[1:])
    refused("name, parameter", named_parameters=list(model.parameters()))
    refused("name, parameter", named_parameters=[("a", "b", "c")])
    refused("op must be Average, Sum or Adasum", op=hvd.Max)
    refused("needs op=Average", op=hvd.Sum, gradient_predivide_factor=2.0)
    refused("at least 1", backward_passes_per_step=0)
    refused("at least 1", bucket_bytes=0)
    refused("not num_groups", num_groups=2, groups=3)
    refused("not be negative", groups=-1)
    refused("in two groups", groups=[[named[0][1]], [named[0][1]]])
    refused("does not train", groups=[[torch.ones(1)]])
    refused("must be 'auto', 'host' or False", shared_step="hots")
    refused("must be 'auto', 'host' or False", shard_step="hots")
    refused("is the former name of shared_step=False", shared_step=False, shard_step="host")


@on_ranks(2)
def test_the_former_name_of_the_shared_step_means_the_same() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, shard_step=False)
    assert optimizer.why_not_shared() == "shared_step is off"


@on_ranks(2)
def test_parameters_that_cannot_be_reduced_are_named() -> None:
    parameter = nn.Parameter(torch.ones(2, device="meta"))
    with pytest.raises(ValueError, match=r"'odd'.*meta"):
        hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), [("odd", parameter)])


@on_ranks(2)
def test_parameters_of_lazy_modules_are_refused_until_they_have_values() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(2))
    says = r"'0\.weight' has no values yet; run its lazy module once"
    with pytest.raises(ValueError, match=f"DistributedOptimizer: {says}"):
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
    with pytest.raises(ValueError, match=f"broadcast_parameters: {says}"):
        hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    model(torch.ones(1, 4))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    train(model, hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)))


@on_ranks(2, 3)
def test_different_models_are_named_on_every_rank() -> None:
    last = hvd.size() - 1
    odd = hvd.rank() == last

    def mismatch(text: str, parameters: list[nn.Parameter], **options: Any) -> None:
        named = [(f"p{i}", parameter) for i, parameter in enumerate(parameters)]
        with pytest.raises(MismatchError, match=text):
            hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), named, **options)

    def of(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
        return [nn.Parameter(torch.zeros(shape)) for shape in shapes]

    mismatch(
        rf"parameter 1: rank 0 has 'p1' float32\[3, 2\].*rank {last} has 'p1' float32\[3, 4\]",
        of((2,), (3, 4 if odd else 2)),
    )
    mismatch(f"parameter 2: .*rank {last} has nothing", of(*[(2,)] * (2 if odd else 3)))
    mismatch("the options: .*4096", of((2,)), bucket_bytes=4096 if odd else 8192)
    mismatch(
        "parameter 0: .*strides",
        [nn.Parameter(torch.zeros(2, 3).t() if odd else torch.zeros(3, 2))],
    )
    frozen = of((2,), (2,))
    frozen[0].requires_grad_(not odd)
    mismatch("parameter 0: .*trained.*frozen", frozen)
    train(model := mlp(), hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)))


@on_ranks(2)
def test_a_converted_model_is_refused_by_name() -> None:
    model = mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    model.double()
    model(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
    with pytest.raises(ValueError, match=r"gradient of '2.bias' is Double but was Float"):
        optimizer.step()


@on_ranks(1)
def test_one_rank_needs_no_reduction() -> None:
    operations = hvd.stats()["operations"]
    model = mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        backward_passes_per_step=2,
    )
    train(model, optimizer)
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.set_backward_passes_per_step(1)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert hvd.stats()["operations"] == operations


@on_ranks(2)
def test_a_step_after_synchronize_that_would_reduce_again_warns() -> None:
    for shared_step in (False, "host"):
        model = mlp()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), shared_step=shared_step
        )
        words = r"step\(\) called without optimizer.skip_synchronize\(\) after"
        for synchronizes in (True, False, True):
            model(torch.ones(1, 4)).sum().backward()
            if not synchronizes:
                with warnings.catch_warnings(action="error"):
                    optimizer.step()
                continue
            optimizer.synchronize()
            with pytest.warns(UserWarning, match=words):
                optimizer.step()
        optimizer.synchronize()
        with warnings.catch_warnings(action="error"), optimizer.skip_synchronize():
            optimizer.step()


@on_ranks(2)
def test_a_rank_outside_the_set_steps_by_itself() -> None:
    first = hvd.add_process_set([0])
    second = hvd.add_process_set([1])
    model, alone = mlp(), mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), process_set=first
    )
    assert ("not a member" in optimizer.why_not_shared()) == (hvd.rank() == 1)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for of, step in ((model, optimizer), (alone, plain)):
        step.zero_grad()
        of(torch.full((1, 4), 1.0 + hvd.rank())).sum().backward()
        step.step()
    for found, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(found, wanted)
    hvd.remove_process_set(second)
    hvd.remove_process_set(first)


@on_ranks(2)
def test_buffers_are_each_ranks_own_or_the_first_ranks() -> None:
    def statistics(shared_step: Any, op: int, broadcasts: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        options: dict[str, Any] = {"shared_step": shared_step, "op": op}
        if broadcasts:
            options["broadcast_buffers"] = model
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(6, 4) + hvd.rank()).square().sum().backward()
            optimizer.step()
        assert model[1].num_batches_tracked == 2
        return hvd.allgather(model[1].running_mean.unsqueeze(0))

    for shared_step, op in ((False, hvd.Average), ("host", hvd.Average), (False, hvd.Adasum)):
        own = statistics(shared_step, op, broadcasts=False)
        assert not torch.equal(own[0], own[1])
        same = statistics(shared_step, op, broadcasts=True)
        assert torch.equal(same[0], same[1])


class Centred(nn.Module):
    """Its forward() puts another tensor in the place of its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * images.mean(0)
        scores: torch.Tensor = self.layer(images - self.mean)
        return scores


@on_ranks(2)
def test_buffers_that_are_replaced_are_followed_or_refused() -> None:
    def load(model: Centred) -> None:
        model.load_state_dict({"mean": torch.zeros(4)}, strict=False, assign=True)

    ways: list[Callable[[Centred], object]] = [
        lambda model: model(torch.ones(1, 4)),
        load,
        lambda model: model.double().float(),
    ]

    def step(model: Centred, optimizer: Any) -> None:
        optimizer.zero_grad()
        model.layer(torch.ones(1, 4)).sum().backward()
        model.mean.add_(hvd.rank())
        optimizer.step()

    for op in (hvd.Average, hvd.Adasum):
        for replace in ways:
            for listed in (False, True):
                torch.manual_seed(0)
                model = Centred()
                optimizer = hvd.DistributedOptimizer(
                    torch.optim.SGD(model.parameters(), lr=0.1),
                    op=op,
                    broadcast_buffers=model.buffers() if listed else model,
                )
                step(model, optimizer)
                replace(model)
                if listed:
                    with pytest.raises(
                        ValueError, match="pass the model instead: broadcast_buffers=model"
                    ):
                        step(model, optimizer)
                    continue
                step(model, optimizer)
                both = hvd.allgather(model.mean[None])
                assert torch.equal(both[0], both[1])


# --- what happens when something raises, or ends -----------------------------------------------


class Boom(Exception):
    pass


@on_ranks(2)
def test_a_backward_pass_that_raises_leaves_the_next_step_usable() -> None:
    """At a place where some buckets are complete and others are not."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), bucket_bytes=80
    )

    def fail(*_: Any) -> None:
        raise Boom

    for layer in (1, 2, 3):
        handle = model[layer].register_full_backward_pre_hook(fail)
        with pytest.raises(Boom):
            model(torch.ones(2, 4)).sum().backward()
        handle.remove()
        optimizer.zero_grad()
        assert model[3].weight.grad is None
        alone = copy.deepcopy(model)
        model(torch.full((2, 4), 1.0 + hvd.rank())).sum().backward()
        sum(alone(torch.full((2, 4), 1.0 + rank)).sum() / 2 for rank in range(2)).backward()
        for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-5, atol=1e-5)
        optimizer.step()


@on_ranks(2)
def test_going_on_after_a_raise_without_zero_grad_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), bucket_bytes=16
    )
    model(torch.ones(2, 4)).sum().backward()  # later passes reduce while they go on
    optimizer.step()
    optimizer.zero_grad()

    def fail(*_: Any) -> None:
        raise Boom

    handle = model[0].register_full_backward_pre_hook(fail)
    with pytest.raises(Boom):
        model(torch.ones(2, 4)).sum().backward()
    handle.remove()
    model(torch.ones(2, 4)).sum().backward()
    with pytest.raises(ValueError, match="zero_grad"):
        optimizer.step()
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


@on_ranks(2)
def test_threads_may_look_while_backward_waits() -> None:
    """No thread may hold the GIL while it waits for the reducer, or the reducer for the GIL."""
    import threading
    import time

    model = mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            optimizer._ciranda_reducer.arena_bytes()
            # Not p.grad: torch 2.15 crashes by itself if that is read while backward sets it.
            [p.data_ptr() for p in model.parameters()]

    thread = threading.Thread(target=look)
    thread.start()
    for step in range(30):
        optimizer.zero_grad(set_to_none=step % 3 > 0)
        model(torch.ones(1, 4)).sum().backward()
        if hvd.rank() == step % 2:
            time.sleep(0.002)
        optimizer.step()
    stop.set()
    thread.join()


@on_ranks(2)
def test_reducers_go_away_with_their_optimizer() -> None:
    model = mlp()
    for _ in range(20):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        loss = model(torch.ones(1, 4)).sum()
        if hvd.rank() == 0:
            kept = model[0].weight.grad  # noqa: F841 - outlives the bucket
        del optimizer
        if hvd.rank() == 0:
            loss.backward()  # reduces nothing
        model.zero_grad()


def end_in_some_way(how: str) -> list[float]:
    hvd.init()
    model = mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    train(model, optimizer)
    gradient = model[0].weight.grad
    before = gradient.tolist()
    if how == "exit":
        globals()["kept"] = (optimizer, model, gradient)  # until the interpreter is gone
        model(torch.ones(1, 4)).sum().backward()
        return []
    hvd.shutdown()
    assert gradient.tolist() == before
    gradient.add_(1.0)
    if how == "backward":
        model(torch.ones(1, 4)).sum().backward()
        with pytest.raises((hvd.HorovodInternalError, ValueError), match="shut down"):
            optimizer.step()
    if how == "again":
        hvd.init()
        model = mlp()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        train(model, optimizer)
    del optimizer, model
    return gradient.flatten().tolist()


@pytest.mark.parametrize("how", ["exit", "shutdown", "backward", "again"])
def test_gradients_outlive_the_job(how: str) -> None:
    results = run_ranks(end_in_some_way, 2, args=[how])
    values_of(results)
    assert [result.stderr for result in results] == ["", ""]


def lose_a_rank() -> str:
    import os

    hvd.init()
    model = mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), bucket_bytes=16
    )
    train(model, optimizer)
    optimizer.zero_grad()
    loss = model(torch.ones(3, 4)).sum()
    if hvd.rank() == 1:
        os._exit(7)
    try:
        loss.backward()
        optimizer.step()
    except hvd.HorovodInternalError as error:
        assert isinstance(error, hvd.HorovodInternalError)
        return f"{type(error).__name__} {error.rank}"
    return "nothing"


def test_a_lost_rank_is_an_error_of_its_class_in_step() -> None:
    survivor, lost = run_ranks(lose_a_rank, 2)
    assert lost.exit_code == 7
    assert survivor.value == "RankLostError 1", survivor.stderr
