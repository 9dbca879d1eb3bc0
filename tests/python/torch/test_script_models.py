"""Models and backward passes of which autograd makes something else than a plain graph: as
test_script_kinds.py, one process with the joined batch against 2 and 3 ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from joined_batch import Run, compare, values
from rank_checks import on_ranks
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))


def adam(run: Run, model: nn.Module) -> Any:
    return run.distribute(torch.optim.Adam(model.parameters(), lr=0.01), model)


def fit(run: Run, model: Callable[..., Any], optimizer: Any, steps: int = 4) -> None:
    for step in range(steps):
        x, y = run.batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@on_ranks(2, 3)
def test_parametrized_and_pruned_weights() -> None:
    """Which replace a module's parameter, before the optimizer is made."""

    def script(run: Run, change: Callable[[nn.Module], Any]) -> list[torch.Tensor]:
        model = mlp()
        change(model[0])
        fit(run, model, adam(run, model))
        return values(model)

    changes: list[Callable[[Any], Any]] = [
        parametrizations.weight_norm,
        parametrizations.orthogonal,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ]
    for change in changes:
        compare(lambda run, change=change: script(run, change))


@on_ranks(2, 3)
def test_pruning_in_the_middle_of_training() -> None:
    """The optimizer's parameter goes by another name, and gets other memory, which ends sharing."""

    def script(run: Run) -> list[torch.Tensor]:
        model = mlp()
        optimizer = adam(run, model)
        fit(run, model, optimizer)
        prune.l1_unstructured(model[0], "weight", 0.5)
        fit(run, model, optimizer)
        prune.remove(model[0], "weight")
        fit(run, model, optimizer)
        return values(model)

    compare(script, shares=False)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 20, num_layers=2, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(20, 2, 30, dropout=0.0, batch_first=True)
        self.head = nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sequence = torch.stack([x, x.roll(1, dims=1), -x], dim=1)
        return self.head(self.attention(self.lstm(sequence)[0]).mean(1))


@on_ranks(2, 3)
def test_recurrent_layers_and_attention() -> None:
    def script(run: Run) -> list[torch.Tensor]:
        model = Recurrent()
        fit(run, model, adam(run, model))
        return values(model)

    compare(script)


@on_ranks(2, 3)
def test_gradients_of_torch_func_are_put_in_place() -> None:
    def script(run: Run) -> list[torch.Tensor]:
        model = mlp()
        optimizer = adam(run, model)

        def loss(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(functional_call(model, weights, (x,)), y)

        for step in range(4):
            weights = {name: p.detach() for name, p in model.named_parameters()}
            gradients = torch.func.grad(loss)(weights, *run.batch(step))
            optimizer.zero_grad()
            for name, p in model.named_parameters():
                p.grad = gradients[name]
            optimizer.step()
        return values(model)

    compare(script)


@on_ranks(2, 3)
def test_each_sample_adapts_the_weights_first() -> None:
    """As MAML: the outer backward pass goes through an inner step."""

    def script(run: Run) -> list[torch.Tensor]:
        model = mlp()
        optimizer = adam(run, model)
        weights = dict(model.named_parameters())

        def adapted_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            inner = F.cross_entropy(functional_call(model, weights, (x,)), y)
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            adapted = {
                name: p - 0.1 * slope
                for (name, p), slope in zip(weights.items(), slopes, strict=True)
            }
            return F.cross_entropy(functional_call(model, adapted, (2 * x,)), y)

        for step in range(3):
            samples = zip(*(part.split(1) for part in run.batch(step)), strict=True)
            optimizer.zero_grad()
            torch.stack([adapted_loss(x, y) for x, y in samples]).mean().backward()
            optimizer.step()
        return values(model)

    compare(script)


@on_ranks(2, 3)
def test_other_ways_to_run_a_backward_pass() -> None:
    def of_a_part(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
        torch.autograd.backward(loss(), inputs=list(model.get_submodule("2").parameters()))

    def in_a_thread(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
        thread = threading.Thread(target=loss().backward)
        thread.start()
        thread.join()

    def from_saved_copies(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
        with save_on_cpu():
            computed = loss()
        computed.backward()

    def twice(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
        computed = loss()
        computed.backward(retain_graph=True)
        (2 * computed).backward()

    for backward in (of_a_part, in_a_thread, from_saved_copies, twice):

        def script(run: Run, backward: Any = backward) -> list[torch.Tensor]:
            model = mlp()
            optimizer = adam(run, model)
            for step in range(3):
                x, y = run.batch(step)
                optimizer.zero_grad()
                backward(model, lambda x=x, y=y: F.cross_entropy(model(x), y))
                optimizer.step()
            return values(model)

        compare(script)


# dynamo takes a second for each graph: on two ranks only


@on_ranks(2)
def test_a_backward_pass_that_is_compiled() -> None:
    def script(run: Run) -> list[torch.Tensor]:
        torch._dynamo.reset()
        model = mlp()
        optimizer = adam(run, model)
        for step in range(3):
            x, y = run.batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
                loss.backward()
            optimizer.step()
        return values(model)

    compare(script)


@on_ranks(2)
def test_a_step_that_is_compiled_as_a_whole() -> None:
    """A step that dynamo traces sees a capturable Adam, which no ranks share."""

    def script(run: Run) -> list[torch.Tensor]:
        torch._dynamo.reset()
        model = mlp()
        optimizer = adam(run, model)

        @torch.compile(backend="eager")
        def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        for step in range(4):
            train_step(*run.batch(step))
        return values(model)

    # Adam counts steps in float32 where it is capturable.
    compare(script, tolerance=1e-6)
