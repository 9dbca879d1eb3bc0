"""What p.grad holds after backward(): breaks when hooks, buckets or the end of a pass go wrong."""

from __future__ import annotations

import copy
import mmap
from pathlib import Path

import pytest
import torch
from backends import over_backends_of_the_cpu
from rank_checks import on_ranks
from torch import nn
from torch.utils.checkpoint import checkpoint

import ciranda.torch as hvd
from ciranda.errors import InvalidArgumentError

pytestmark = over_backends_of_the_cpu


def mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3)).to(dtype)


WIDTH = 360  # gradients of weights are large enough to lie in the arena, those of biases are not


def large_gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.numel() * p.element_size() >= 4096]


def batch(rank: int, step: int = 0) -> torch.Tensor:
    """The same numbers wherever rank's batch of a step is needed."""
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * step + rank))


def mean_gradients(model: nn.Module, *, steps: tuple[int, ...] = (0,)) -> list[torch.Tensor]:
    """What the ranks must agree on, computed alone with a plain copy of the model."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    for step in steps:
        for rank in range(hvd.size()):
            (alone(batch(rank, step)).square().mean() / hvd.size()).backward()
    return [p.grad for p in alone.parameters()]


def backward(model: nn.Module, step: int = 0) -> None:
    model(batch(hvd.rank(), step)).square().mean().backward()


def assert_mean_gradients(model: nn.Module, **expected: tuple[int, ...]) -> None:
    for parameter, gradient in zip(
        model.parameters(), mean_gradients(model, **expected), strict=True
    ):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-7)


def in_shared_memory(tensor: torch.Tensor) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= tensor.data_ptr() < last:
            return "/memfd:" in line and " rw-s " in line
    return False


def all_gradients_shared(model: nn.Module) -> bool:
    return all(in_shared_memory(gradient) for gradient in large_gradients(model))


def distributed_sgd(model: nn.Module, lr: float = 0.1, **options: object) -> torch.optim.SGD:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


@on_ranks(2, 3)
def test_backward_returns_with_the_mean_in_shared_memory() -> None:
    for clear in (
        lambda model, optimizer: optimizer.zero_grad(set_to_none=True),
        lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
        lambda model, optimizer: optimizer.zero_grad(),
        lambda model, optimizer: model.zero_grad(),
        lambda model, optimizer: model.zero_grad(set_to_none=False),
    ):
        model = mlp()
        optimizer = distributed_sgd(model)
        for step in range(3):
            clear(model, optimizer)
            backward(model, step)
            assert all_gradients_shared(model)
            assert_mean_gradients(model, steps=(step,))
            optimizer.step()


@on_ranks(2)
def test_gradients_keep_their_memory_from_step_to_step() -> None:
    model = mlp()
    optimizer = distributed_sgd(model)
    places = set()
    for step in range(4):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        backward(model, step)
        optimizer.step()
        places.add(tuple(gradient.data_ptr() for gradient in large_gradients(model)))
    assert len(places) == 1


@on_ranks(2)
def test_memory_above_the_gradients_is_small() -> None:
    for shared_step, copies in ((False, 1), ("auto", 2)):  # a shared step moves the parameters too
        model = nn.Linear(1000, 1000)
        optimizer = distributed_sgd(model, shared_step=shared_step)
        bytes_each = sum(p.numel() * 4 for p in model.parameters())
        limit = copies * 1.005 * bytes_each + copies * mmap.PAGESIZE
        assert optimizer._ciranda_reducer.arena_bytes() <= limit


class TwoBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 4)
        self.left, self.right, self.never = (nn.Linear(4, 2) for _ in range(3))

    def forward(self, x: torch.Tensor, branch: str) -> torch.Tensor:
        return getattr(self, branch)(self.trunk(x))


@on_ranks(2)
def test_parameters_that_one_rank_does_not_use_count_as_zeros_there() -> None:
    model = TwoBranches()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = distributed_sgd(model)
    branch = ("left", "right")[hvd.rank()]
    model(batch(hvd.rank()), branch).sum().backward()

    alone = copy.deepcopy(model)
    alone.zero_grad()
    sum(alone(batch(r), b).sum() / 2 for r, b in enumerate(("left", "right"))).backward()
    for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)
    optimizer.step()


@on_ranks(2)
def test_parameters_that_no_rank_uses_have_no_gradient_and_no_state() -> None:
    model = TwoBranches()
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    before = model.never.weight.clone()
    for _ in range(2):
        optimizer.zero_grad()
        model(batch(hvd.rank()), "left").sum().backward()
        optimizer.step()
    assert model.never.weight.grad is None
    assert model.never.weight not in optimizer.state
    assert torch.equal(model.never.weight, before)
    assert model.left.weight in optimizer.state


@on_ranks(2)
def test_a_parameter_shared_by_two_modules_is_reduced_once() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    hvd.broadcast_parameters(model.state_dict(), 0)
    twice = list(model.named_parameters(remove_duplicate=False))
    assert len(twice) == 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, twice)
    for step in range(2):
        optimizer.zero_grad()
        backward(model, step)
        assert_mean_gradients(model, steps=(step,))
        optimizer.step()


@on_ranks(2)
def test_frozen_parameters_are_reduced_from_when_they_are_unfrozen() -> None:
    model = mlp()
    model[0].weight.requires_grad_(False)
    optimizer = distributed_sgd(model)
    backward(model)
    assert model[0].weight.grad is None
    optimizer.step()
    optimizer.zero_grad()
    model[0].weight.requires_grad_(True)
    for step in range(2):
        backward(model, step)
        assert_mean_gradients(model, steps=(step,))
        assert all_gradients_shared(model)
        optimizer.step()
        optimizer.zero_grad()


@on_ranks(2)
def test_parameters_unfrozen_after_zero_grad_are_reduced_too() -> None:
    model = mlp()
    model[0].weight.requires_grad_(False)
    optimizer = distributed_sgd(model)
    optimizer.zero_grad()
    model[0].weight.requires_grad_(True)
    backward(model)
    assert_mean_gradients(model)


@on_ranks(2)
def test_parameters_frozen_after_wrapping_stay_as_they_are() -> None:
    model = mlp()
    optimizer = distributed_sgd(model)
    for step in range(3):
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            model[0].weight.requires_grad_(False)
            before = model[0].weight.clone()
    assert torch.equal(model[0].weight, before)
    assert model[0].weight.grad is None


@on_ranks(2)
def test_declared_passes_add_up_before_they_are_reduced() -> None:
    model = mlp()
    optimizer = distributed_sgd(model, backward_passes_per_step=2)
    for first in (0, 2):
        optimizer.zero_grad()
        operations = hvd.stats()["operations"]
        backward(model, first)
        assert hvd.stats()["operations"] == operations
        backward(model, first + 1)
        assert hvd.stats()["operations"] == operations + 1
        assert_mean_gradients(model, steps=(first, first + 1))
        optimizer.step()


@on_ranks(2)
def test_a_step_takes_fewer_passes_than_declared() -> None:
    """The last batches of an epoch."""
    model = mlp()
    optimizer = distributed_sgd(model, lr=0.0, backward_passes_per_step=3)
    for passes in ((0, 1), (2, 3, 4)):
        optimizer.zero_grad()
        for step in passes:
            backward(model, step)
        optimizer.step()
        assert_mean_gradients(model, steps=passes)


class OwnCompressor(hvd.Compression.none):
    """Reduced in Python, as any that a user writes."""


def sums_over_ranks(model: nn.Module, passes: tuple[int, ...]) -> list[torch.Tensor]:
    alone = copy.deepcopy(model)
    alone.zero_grad()
    for rank in range(hvd.size()):
        for step in range(passes[rank]):
            alone(batch(rank, step)).square().mean().backward()
    return [p.grad for p in alone.parameters()]


@on_ranks(2, 3)
def test_ranks_may_make_different_numbers_of_passes() -> None:
    """Whoever comes to the step first gives his gradients to those who still wait in backward()."""
    for options in (
        {"backward_passes_per_step": 3},
        {"backward_passes_per_step": 3, "op": hvd.Sum},
        {"backward_passes_per_step": 3, "compression": OwnCompressor},
        {"backward_passes_per_step": 3, "op": hvd.Sum, "compression": OwnCompressor},
        {},  # each pass ends with reduced gradients
        {"compression": OwnCompressor},
    ):
        model = mlp()
        optimizer = distributed_sgd(model, lr=0.0, **options)
        for passes in ((3, 2, 2), (1, 3, 2), (0, 3, 3), (3, 0, 1), (3, 3, 3)):
            optimizer.zero_grad()
            for step in range(passes[hvd.rank()]):
                backward(model, step)
            optimizer.step()
            divisor = 1 if options.get("op") == hvd.Sum else hvd.size()
            for parameter, total in zip(
                model.parameters(), sums_over_ranks(model, passes), strict=True
            ):
                torch.testing.assert_close(parameter.grad, total / divisor)


@on_ranks(2)
def test_the_number_of_passes_can_change() -> None:
    model = mlp()
    optimizer = distributed_sgd(model)
    optimizer.set_backward_passes_per_step(2)
    backward(model, 0)
    backward(model, 1)
    assert_mean_gradients(model, steps=(0, 1))
    with pytest.raises(ValueError, match="at least 1"):
        optimizer.set_backward_passes_per_step(0)


@on_ranks(2, 3)
def test_undeclared_passes_add_up_exactly() -> None:
    model = mlp()
    optimizer = distributed_sgd(model)
    for step in range(3):
        backward(model, step)
    assert_mean_gradients(model, steps=(0, 1, 2))
    optimizer.step()


@on_ranks(2)
def test_several_losses_may_share_a_trunk() -> None:
    model = TwoBranches()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = distributed_sgd(model)
    alone = copy.deepcopy(model)
    for branch in ("left", "right"):
        model(batch(hvd.rank()), branch).sum().backward()
        sum(alone(batch(rank), branch).sum() / 2 for rank in range(2)).backward()
    for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)
    optimizer.step()


@on_ranks(2)
def test_sums_are_not_summed_again() -> None:
    model = mlp()
    optimizer = distributed_sgd(model, op=hvd.Sum)
    for step in range(2):
        optimizer.zero_grad()
        backward(model, step)
        for parameter, mean in zip(
            model.parameters(), mean_gradients(model, steps=(step,)), strict=True
        ):
            torch.testing.assert_close(parameter.grad, mean * hvd.size())
    backward(model, 2)
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    backward(model, 3)
    optimizer.step()


@on_ranks(2)
def test_gradients_that_are_views_of_one_tensor_are_reduced_once() -> None:
    # backward of torch.cat gives views: one count of versions for all.
    weights = [nn.Parameter(torch.ones(8)) for _ in range(3)]
    optimizer = distributed_sgd(nn.ParameterList(weights))
    (torch.cat(weights) * (hvd.rank() + 1)).sum().backward()
    versions = [weight.grad._version for weight in weights]
    optimizer.synchronize()
    optimizer.step()
    assert [weight.grad._version for weight in weights] == versions
    assert all(torch.equal(weight.grad, torch.full((8,), 1.5)) for weight in weights)


@on_ranks(2)
def test_zero_grad_forgets_passes() -> None:
    model = mlp()
    optimizer = distributed_sgd(model, backward_passes_per_step=2)
    backward(model, 7)
    optimizer.zero_grad()
    backward(model, 0)
    backward(model, 1)
    assert_mean_gradients(model, steps=(0, 1))


@on_ranks(2)
def test_a_step_without_backward_reduces_what_the_user_put_there() -> None:
    model = mlp()
    optimizer = distributed_sgd(model)
    put = [torch.full_like(parameter, float(hvd.rank())) for parameter in model.parameters()]
    for parameter, gradient in zip(model.parameters(), put, strict=True):
        parameter.grad = gradient
    optimizer.synchronize()
    assert all((gradient == 0.5).all() for gradient in put)
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), put, strict=True))
    optimizer.step()
    model[0].weight.grad = torch.full_like(model[0].weight, 2.0 * hvd.rank())
    optimizer.step()
    assert (model[0].weight.grad == 1.0).all()


@on_ranks(2)
def test_channels_last_weights_keep_their_strides() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)).to(
        memory_format=torch.channels_last
    )
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = distributed_sgd(model)
    images = [torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last) for _ in range(2)]
    for none in (True, False):
        optimizer.zero_grad(set_to_none=none)
        model(images[hvd.rank()]).sum().backward()
        alone = copy.deepcopy(model)
        alone.zero_grad()
        (sum(alone(images[rank]).sum() for rank in range(2)) / 2).backward()
        for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-4, atol=1e-4)
        assert model[0].weight.grad.is_contiguous(memory_format=torch.channels_last)
        assert all_gradients_shared(model)
        optimizer.step()


@on_ranks(2)
def test_odd_shapes() -> None:
    parameters = [
        nn.Parameter(torch.ones(())),
        nn.Parameter(torch.ones(0, 3)),
        nn.Parameter(torch.ones(4, 5).t()),
        nn.Parameter(torch.ones(1).expand(3)),
        nn.Parameter(torch.ones(2, 2, dtype=torch.float64)),
    ]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.0))
    for none in (True, False):
        optimizer.zero_grad(set_to_none=none)
        sum((p * (hvd.rank() + 1)).sum().double() for p in parameters).backward()
        for parameter in parameters:
            assert (parameter.grad == 1.5).all()
            assert parameter.grad.shape == parameter.shape
        optimizer.synchronize()


@on_ranks(2)
def test_half_precision_parameters() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model = mlp(dtype)
        optimizer = distributed_sgd(model)
        model(batch(hvd.rank()).to(dtype)).sum().backward()
        alone = mlp(dtype).float()
        (sum(alone(batch(rank)).sum() for rank in range(2)) / 2).backward()
        for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
            assert parameter.grad.dtype == dtype
            torch.testing.assert_close(parameter.grad.float(), expected.grad, rtol=0.05, atol=0.05)
        optimizer.step()


@on_ranks(2)
def test_second_derivatives() -> None:
    model = mlp()
    optimizer = distributed_sgd(model)
    for step in range(2):
        optimizer.zero_grad()
        x = batch(hvd.rank(), step).requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().mean().backward(create_graph=True)
        assert model[0].weight.grad.abs().sum() > 0
        optimizer.step()
    with torch.no_grad():
        mine = torch.cat([p.flatten() for p in model.parameters()])
        assert torch.equal(hvd.broadcast(mine, 0), mine)


class Differentiates(torch.optim.SGD):
    """As AdaHessian and others, with the derivatives of p.grad."""

    def step(self, closure: object = None) -> None:
        held = self.param_groups[0]["params"]
        with torch.enable_grad():
            slopes = [p.grad.sum() for p in held if p.grad is not None]
            torch.autograd.grad(sum(slopes), held, retain_graph=True, allow_unused=True)


@on_ranks(2)
def test_a_step_that_differentiates_reduced_gradients_is_refused() -> None:
    for compression in (hvd.Compression.none, Doubles):
        model = mlp()
        optimizer = hvd.DistributedOptimizer(
            Differentiates(model.parameters(), lr=0.1),
            model.named_parameters(),
            compression=compression,
        )
        model(batch(hvd.rank())).square().mean().backward(create_graph=True)
        # The program's own derivatives may be averaged by hand, and a second backward() is reduced.
        first = model[0].weight
        torch.autograd.grad(first.grad.sum(), first, retain_graph=True)
        first.grad.square().sum().backward(retain_graph=True)
        with pytest.raises(RuntimeError, match=r"differentiates the gradient of '.*drift apart"):
            optimizer.step()


class Doubles:
    """A compressor of the user's own."""

    compress = staticmethod(lambda tensor: (tensor * 2, None))
    decompress = staticmethod(lambda tensor, context: tensor / 2)


@on_ranks(2)
def test_a_backward_inside_a_modules_hook_is_part_of_the_pass() -> None:
    model = mlp()
    optimizer = distributed_sgd(model)
    is_inside = False

    def hook(*_: object) -> None:
        nonlocal is_inside
        if not is_inside:
            is_inside = True
            with torch.enable_grad():
                backward(model, step=1)
            is_inside = False

    for _ in range(2):
        handle = model[2].register_full_backward_hook(hook)
        optimizer.zero_grad()
        model(batch(hvd.rank()).requires_grad_()).square().mean().backward()
        handle.remove()  # a copy of the model would have it too
        assert_mean_gradients(model, steps=(0, 1))
        optimizer.step()


@on_ranks(2)
def test_a_new_hook_that_writes_a_gradient_in_flight_is_an_error() -> None:
    model = mlp()
    optimizer = distributed_sgd(model, bucket_bytes=1)
    backward(model)
    optimizer.step()

    def halve(gradient: torch.Tensor) -> torch.Tensor:
        model[2].weight.grad.mul_(0.5)  # reduced while the first layer's is computed
        return gradient

    hook = model[0].weight.register_hook(halve)
    optimizer.zero_grad()
    backward(model)
    with pytest.raises(InvalidArgumentError, match=r"'2.weight' was written to while it was"):
        optimizer.step()
    hook.remove()
    optimizer.zero_grad()
    backward(model)
    assert_mean_gradients(model)
    optimizer.step()


@on_ranks(2)
def test_hooks_of_the_user_run_before_the_reduction() -> None:
    model = mlp()
    optimizer = distributed_sgd(model)
    accumulated = []
    model[0].weight.register_hook(lambda gradient: torch.full_like(gradient, float(hvd.rank())))
    model[0].weight.register_post_accumulate_grad_hook(lambda p: accumulated.append(p.grad.max()))
    backward(model)
    assert (model[0].weight.grad == 0.5).all()
    assert accumulated == [hvd.rank()]
    optimizer.step()


@on_ranks(2)
def test_reentrant_checkpoints_are_part_of_one_pass() -> None:
    """Each checkpointed segment runs a backward pass within the backward pass."""
    for passes, segments in ((2, 2), (1, 3)):
        model = mlp()
        optimizer = distributed_sgd(model, backward_passes_per_step=passes)
        for step in range(4):
            if step % passes == 0:
                optimizer.zero_grad()
                operations = hvd.stats()["operations"]
            x = batch(hvd.rank(), step).requires_grad_()
            for layer in model[:segments]:
                x = checkpoint(layer, x, use_reentrant=True)
            model[segments:](x).square().mean().backward()
            if (step + 1) % passes == 0:
                assert hvd.stats()["operations"] - operations == 1
                assert_mean_gradients(model, steps=tuple(range(step + 1 - passes, step + 1)))
                optimizer.step()
            else:
                assert hvd.stats()["operations"] == operations


@on_ranks(2)
def test_reentrant_checkpoints_with_unused_parameters() -> None:
    model = TwoBranches()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = distributed_sgd(model, op=hvd.Sum)
    for _ in range(2):
        optimizer.zero_grad()
        x = batch(0).requires_grad_()
        x = checkpoint(model.trunk, x, use_reentrant=True)
        checkpoint(model.left, x, use_reentrant=True).sum().backward()
        alone = copy.deepcopy(model)
        alone.zero_grad()
        (alone(batch(0), "left").sum() * 2).backward()
        optimizer.synchronize()
        torch.testing.assert_close(model.trunk.weight.grad, alone.trunk.weight.grad)
        assert model.right.weight.grad is None
        optimizer.step()


@on_ranks(2)
def test_a_compiled_module_trains() -> None:
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        model = mlp()
        optimizer = distributed_sgd(model)
        compiled = torch.compile(model, backend=backend)
        for step in range(2):
            optimizer.zero_grad()
            compiled(batch(hvd.rank(), step)).square().mean().backward()
            assert_mean_gradients(model, steps=(step,))
            assert all_gradients_shared(model)
            optimizer.step()


@on_ranks(2)
def test_buckets_follow_bytes_and_groups() -> None:
    def buckets(**options: object) -> int:
        model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(6)))
        hvd.broadcast_parameters(model.state_dict(), 0)
        if "lists" in options:
            weights = list(model.parameters())
            options = {"groups": [[weights[i] for i in group] for group in options["lists"]]}
        optimizer = distributed_sgd(model, **options)
        model(torch.full((1, 4), 1.0 + hvd.rank())).sum().backward()
        for parameter in model.parameters():
            assert torch.equal(hvd.broadcast(parameter.grad, 0), parameter.grad)
        optimizer.step()
        return optimizer._ciranda_reducer.bucket_count()

    assert buckets() == 1
    assert buckets(bucket_bytes=64) == 6
    assert buckets(bucket_bytes=128) == 3
    assert buckets(groups=4) == 4
    with pytest.warns(DeprecationWarning, match="num_groups is deprecated; pass groups=2"):
        assert buckets(num_groups=2) == 2
    assert buckets(groups=100) == 6
    assert buckets(lists=[[0, 5], [2, 3]]) == 3  # and one of the rest


@on_ranks(2, 4)
def test_hundreds_of_small_parameters_in_one_bucket() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(202)))
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = distributed_sgd(model)
    assert optimizer._ciranda_reducer.bucket_count() == 1
    for _ in range(2):
        optimizer.zero_grad()
        sum((p * (hvd.rank() + i)).sum() for i, p in enumerate(model.parameters())).backward()
        for i, parameter in enumerate(model.parameters()):
            assert (parameter.grad == i + (hvd.size() - 1) / 2).all()
        optimizer.step()
