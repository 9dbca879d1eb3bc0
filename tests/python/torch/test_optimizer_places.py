"""Gradients born in the arena: breaks when backward gets memory that something else still needs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from rank_checks import on_ranks
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import ciranda.torch as hvd

WIDTH = 64  # 64 * 64 floats: large enough to have a place
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def batch(rank: int, step: int, rows: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(rows, WIDTH, generator=generator)


def chain(layers: int = 3) -> nn.Sequential:
    torch.manual_seed(1)
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*parts)


def square(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return model(images).square().mean()


class Training:
    """A model under DistributedOptimizer beside a plain copy that sees every rank's batch."""

    def __init__(
        self, model: nn.Module, loss: Loss = square, rows: int = 5, **options: object
    ) -> None:
        self.model, self.loss, self.rows = model, loss, rows
        self.alone = copy.deepcopy(model)
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
        )
        self.alone_optimizer = torch.optim.SGD(self.alone.parameters(), lr=0.1)
        self.steps = 0

    def backward(self) -> None:
        self.steps += 1
        self.loss(self.model, batch(hvd.rank(), self.steps, self.rows)).backward()
        for rank in range(hvd.size()):
            images = batch(rank, self.steps, self.rows)
            (self.loss(self.alone, images) / hvd.size()).backward()

    def check(self) -> None:
        pairs = zip(self.model.named_parameters(), self.alone.parameters(), strict=True)
        for (name, ours), theirs in pairs:
            torch.testing.assert_close(
                ours.grad,
                theirs.grad,
                rtol=1e-5,
                atol=1e-7,
                msg=lambda m, name=name: f"{name}: {m}",
            )

    def step(self, **clear: bool) -> None:
        self.optimizer.zero_grad(**clear)
        self.alone_optimizer.zero_grad(**clear)
        self.backward()
        self.check()
        self.optimizer.step()
        self.alone_optimizer.step()

    def moved_in(self, steps: int, **clear: bool) -> int:
        """Bytes of gradients that were not born in their places."""
        before = self.optimizer._ciranda_reducer.moved_bytes()
        for _ in range(steps):
            self.step(**clear)
        return int(self.optimizer._ciranda_reducer.moved_bytes() - before)


BIASES = 3 * WIDTH * 4  # of a chain(); below the size for which a place is sought


@on_ranks(2)
def test_only_the_first_step_moves_large_gradients() -> None:
    training = Training(chain())
    assert training.moved_in(1) == 3 * WIDTH * WIDTH * 4 + BIASES
    assert training.moved_in(5) == 5 * BIASES


@on_ranks(2)
def test_the_gradient_of_an_input_with_the_size_of_the_weight() -> None:
    # The node asks for both; only one of them may get the place.
    training = Training(chain(), rows=WIDTH)
    training.step()
    assert training.moved_in(5) == 5 * BIASES


@on_ranks(2)
def test_convolutions_and_embeddings() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.words = nn.Embedding(40, 64)
            self.convolution = nn.Conv1d(64, 32, 3)
            self.norm = nn.LayerNorm([32, 62])
            self.head = nn.Linear(32 * 62, 5)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            words = self.words((images.abs() * 10).long() % 40).transpose(1, 2)
            return self.head(self.norm(self.convolution(words)).flatten(1))

    training = Training(Model())
    for _ in range(4):
        training.step()


@on_ranks(2)
def test_a_weight_used_twice_and_checkpointed() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = chain(2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            once = self.body(images)
            again = checkpoint(self.body, once, use_reentrant=False)
            return F.linear(again, self.body[0].weight)

    training = Training(Tied())
    for _ in range(4):
        training.step()


@on_ranks(2)
def test_accumulation_and_gradients_that_are_zeroed_in_place() -> None:
    training = Training(chain(), backward_passes_per_step=2)
    for _ in range(4):
        training.optimizer.zero_grad()
        training.alone_optimizer.zero_grad()
        training.backward()
        training.backward()
        training.check()
        training.optimizer.step()
        training.alone_optimizer.step()
    zeroed = Training(chain())
    for _ in range(4):
        zeroed.step(set_to_none=False)
    for _ in range(4):
        zeroed.step()


@on_ranks(2)
def test_what_a_hook_of_the_user_keeps_stays_as_it_was() -> None:
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(gradient: torch.Tensor) -> None:
        kept.append((gradient, gradient.clone()))

    training = Training(chain())
    training.step()
    training.step()
    handle = training.model[2].weight.register_hook(keep)
    for _ in range(4):
        training.step()
    handle.remove()
    training.step()
    assert len(kept) == 4
    for gradient, copied in kept:
        torch.testing.assert_close(gradient, copied, rtol=0, atol=0)


@on_ranks(2)
def test_gradients_that_autograd_returns_stay_as_they_were() -> None:
    training = Training(chain())
    for _ in range(3):
        training.step()
    training.optimizer.zero_grad()
    weights = [training.model[0].weight, training.model[2].weight]
    mine = torch.autograd.grad(square(training.model, batch(hvd.rank(), 50)), weights)
    copies = [gradient.clone() for gradient in mine]
    for _ in range(3):
        training.step()
    for gradient, copied in zip(mine, copies, strict=True):
        torch.testing.assert_close(gradient, copied, rtol=0, atol=0)


@on_ranks(2)
def test_second_derivatives_of_large_weights() -> None:
    def penalty(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        weights = [p for p in model.parameters() if p.dim() == 2]
        first = torch.autograd.grad(square(model, images), weights, create_graph=True)
        return square(model, images) + sum(g.square().sum() for g in first)

    training = Training(chain(), loss=penalty)
    for _ in range(4):
        training.step()


@on_ranks(2)
def test_a_graph_that_changes_from_step_to_step() -> None:
    class Changing(nn.Module):
        step = 0

        def __init__(self) -> None:
            super().__init__()
            self.layers = chain(4)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            order = list(range(0, 8, 2))
            for index in order[:: 1 if self.step % 2 else -1]:
                images = torch.tanh(self.layers[index](images))
                if index == 2 * (self.step % 4):
                    images = images + self.layers[index](images) @ self.layers[index].weight
            return images

    training = Training(Changing(), rows=WIDTH)
    for Changing.step in range(12):
        training.step()


@on_ranks(2)
def test_a_gradient_outlives_optimizer_and_world() -> None:
    training = Training(chain())
    for _ in range(3):
        training.step()
    gradients = [p.grad for p in training.model.parameters()]
    copies = [g.clone() for g in gradients]
    del training
    hvd.shutdown()
    other = chain()
    square(other, batch(0, 1)).backward()
    for gradient, copied in zip(gradients, copies, strict=True):
        torch.testing.assert_close(gradient, copied, rtol=0, atol=0)
    hvd.init()
