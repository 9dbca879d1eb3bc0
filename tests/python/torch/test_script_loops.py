"""Loops that something else than the script drives, or that look into gradients: as
test_script_kinds.py, one process with the joined batch against 2 and 3 ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from joined_batch import ALL_MODES, Run, compare, values
from rank_checks import on_ranks
from torch import nn
from torch.nn import functional as F


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3)
    )


# --- Lightning ----------------------------------------------------------------------------------


def do_nothing() -> None:
    pass


class CopyingWrapper:
    """As LightningOptimizer: a subclass of the optimizer's class, with a copy of its dictionary."""

    def __init__(self, optimizer: Any) -> None:
        self.__dict__ = {k: v for k, v in vars(optimizer).items() if k != "step"}
        self.__class__ = type(
            f"Lightning{type(optimizer).__name__}", (type(self), type(optimizer)), {}
        )
        self._optimizer = optimizer

    def step(self, closure: Callable[[], Any] = do_nothing) -> Any:
        """Lightning always gives a closure; in a manual loop one that computes nothing."""
        return self._optimizer.step(closure)


class AskingWrapper:
    """As Fabric's: what it does not have it asks the optimizer for."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return self._optimizer.step(*(() if closure is None else (closure,)))


class Adversaries:
    """A LightningModule with automatic_optimization = False."""

    def __init__(self, run: Run, wrapper: Any, passes: int) -> None:
        self.run, self.passes = run, passes
        self.generator, self.judge = (
            mlp(),
            nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 1)),
        )
        options = {"backward_passes_per_step": passes}
        self.wrapped = [
            wrapper(run.distribute(torch.optim.Adam(m.parameters(), lr=0.01), m, **options))
            for m in (self.generator, self.judge)
        ]

    def optimizers(self) -> list[Any]:
        return self.wrapped

    @contextmanager
    def toggled(self, optimizer: Any) -> Iterator[None]:
        """toggle_optimizer() and untoggle_optimizer()"""
        kept = {p: p.requires_grad for o in self.wrapped for p in _parameters(o)}
        for p in kept:
            p.requires_grad_(False)
        for p in _parameters(optimizer):
            p.requires_grad_(kept[p])
        yield
        for p, before in kept.items():
            p.requires_grad_(before)

    def manual_backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def training_step(self, number: int) -> None:
        of_generator, of_judge = self.optimizers()
        batches = [self.run.batch(self.passes * number + i)[0] for i in range(self.passes)]
        with self.toggled(of_generator):
            for x in batches:
                self.manual_backward(-self.judge(self.generator(x)).mean() / self.passes)
            of_generator.step()
            of_generator.zero_grad()
        with self.toggled(of_judge):
            for x in batches:
                score = self.judge(self.generator(x).detach())
                self.manual_backward((score + score.square()).mean() / self.passes)
            of_judge.step()
            of_judge.zero_grad()


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


@on_ranks(2, 3)
def test_lightnings_manual_optimization() -> None:
    for wrapper, passes in itertools.product((CopyingWrapper, AskingWrapper), (1, 2)):

        def script(run: Run, wrapper: Any = wrapper, passes: int = passes) -> list[torch.Tensor]:
            module = Adversaries(run, wrapper, passes)
            for number in range(4):
                module.training_step(number)
            return values(module.generator, module.judge)

        compare(script)


@on_ranks(2, 3)
def test_lightnings_automatic_optimization() -> None:
    """The closure is training_step(), zero_grad() and backward(), and the step is the wrapper's."""
    for wrapper in (CopyingWrapper, AskingWrapper):

        def script(run: Run, wrapper: Any = wrapper) -> list[torch.Tensor]:
            model = mlp()
            inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            optimizer = wrapper(run.distribute(inner, model))
            for step in range(4):
                x, y = run.batch(step)

                def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                    loss = F.cross_entropy(model(x), y)
                    optimizer.zero_grad()
                    loss.backward()
                    return loss.detach()

                optimizer.step(closure)
            return values(model)

        compare(script)


# --- optimizers around ours -----------------------------------------------------------------------


class CountingWrapper:
    """As Accelerate's: puts a step that notes its calls on the object, and takes it off again."""

    def __init__(self, optimizer: Any, scaler: torch.amp.GradScaler) -> None:
        self._optimizer, self._scaler = optimizer, scaler
        self._original, self.calls = optimizer.step, 0

    def _counted(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self._original(*args, **kwargs)

    def step(self) -> None:
        self._optimizer.step = self._counted
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.step = self._original


@on_ranks(2, 3)
def test_a_step_that_is_replaced_for_each_call() -> None:
    def script(run: Run) -> list[torch.Tensor]:
        model = mlp()
        optimizer = run.distribute(torch.optim.AdamW(model.parameters(), lr=0.01), model)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        wrapper = CountingWrapper(optimizer, scaler)
        for step in range(5):
            x, y = run.batch(step)
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            run.synchronize(optimizer)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            wrapper.step()
            optimizer.zero_grad()
        assert wrapper.calls == 5
        return values(model)

    compare(script)


@on_ranks(2, 3)
def test_sharpness_aware_steps() -> None:
    """As SAM: up along the gradient, a second gradient there, back, and the step."""

    def script(run: Run) -> list[torch.Tensor]:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = run.distribute(optimizer, model)
        for step in range(4):
            x, y = run.batch(step)
            F.cross_entropy(model(x), y).backward()
            run.synchronize(optimizer)
            kept = values(model)
            with torch.no_grad():
                norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
                for p in model.parameters():
                    p.add_(p.grad, alpha=float(0.05 / norm))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for p, before in zip(model.parameters(), kept, strict=True):
                p.data.copy_(before)
            optimizer.step()
            optimizer.zero_grad()
        return values(model)

    compare(script)


@on_ranks(2, 3)
def test_slow_weights() -> None:
    """As Lookahead: every second step goes half the way only."""

    def script(run: Run) -> list[torch.Tensor]:
        model = mlp()
        optimizer = run.distribute(torch.optim.Adam(model.parameters(), lr=0.01), model)
        slow = values(model)
        for step in range(6):
            x, y = run.batch(step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if step % 2 == 1:
                for p, behind in zip(model.parameters(), slow, strict=True):
                    p.data.copy_(behind.lerp_(p.data, 0.5))
        return values(model)

    compare(script)


@on_ranks(2, 3)
def test_layerwise_rates_with_a_weight_decay_that_is_away_during_the_step() -> None:
    """As LARC."""

    def script(run: Run) -> list[torch.Tensor]:
        model = mlp()
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        optimizer = run.distribute(inner, model)
        for step in range(4):
            x, y = run.batch(step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            run.synchronize(optimizer)
            group = optimizer.param_groups[0]
            decay, group["weight_decay"] = group["weight_decay"], 0.0
            for p in model.parameters():
                rate = 0.02 * p.data.norm() / (p.grad.norm() + decay * p.data.norm())
                p.grad.data += decay * p.data
                p.grad.data *= min(float(rate) / group["lr"], 1.0)
            optimizer.step()
            group["weight_decay"] = decay
        return values(model)

    compare(script)


@on_ranks(2, 3)
def test_several_epochs_over_a_batch_with_clipping_in_the_step() -> None:
    """As PPO: policy and value share an optimizer."""

    def script(run: Run) -> list[torch.Tensor]:
        model = nn.ModuleDict({"policy": mlp(), "value": nn.Linear(6, 1)})
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-5)
        optimizer = run.distribute(optimizer, model, max_grad_norm=0.5)
        for rollout in range(3):
            x, y = run.batch(rollout)
            with torch.no_grad():
                old = F.log_softmax(model["policy"](x), -1).gather(1, y[:, None])
            for _ in range(3):
                now = F.log_softmax(model["policy"](x), -1).gather(1, y[:, None])
                ratio, gain = (now - old).exp(), x[:, :1]
                surrogate = torch.min(ratio * gain, ratio.clamp(0.9, 1.1) * gain).mean()
                optimizer.zero_grad()
                (F.mse_loss(model["value"](x), gain) - surrogate).backward()
                if type(run) is Run:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        return values(model)

    compare(script)


# --- gradients that scripts look at --------------------------------------------------------------


@on_ranks(2, 3)
def test_gradients_edited_alike_on_all_ranks() -> None:
    for set_to_none in (True, False):

        def script(run: Run, set_to_none: bool = set_to_none) -> list[torch.Tensor]:
            model = mlp()
            optimizer = run.distribute(torch.optim.Adam(model.parameters(), lr=0.01), model)
            norms = []
            for step in range(6):
                x, y = run.batch(step)
                F.cross_entropy(model(x), y).backward()
                run.synchronize(optimizer)
                norms += [p.grad.norm() for p in model.parameters()]
                with torch.no_grad():
                    for p in model.parameters():
                        if step % 3 == 0:
                            p.grad.add_(p, alpha=0.1)
                        elif step % 3 == 1:
                            p.grad = p.grad.sign()
                        else:
                            p.grad.nan_to_num_(0.0).clamp_(-0.01, 0.01)
                optimizer.step()
                norms += [p.grad.norm() for p in model.parameters()]
                optimizer.zero_grad(set_to_none=set_to_none)
                norms += [p.grad.norm() for p in model.parameters() if p.grad is not None]
            return [*values(model), *norms]

        compare(script)


@on_ranks(2, 3)
def test_hooks_on_gradients() -> None:
    """Hooks see this rank's gradients: what they do to them has to be linear."""

    def triple(parameter: torch.Tensor) -> None:
        parameter.grad *= 3  # type: ignore[operator]

    def script(run: Run) -> list[torch.Tensor]:
        model = mlp()
        model[0].weight.register_hook(lambda gradient: 2 * gradient)
        model[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))
        optimizer = run.distribute(torch.optim.Adam(model.parameters(), lr=0.01), model)
        model[2].weight.register_hook(lambda gradient: -gradient)
        model[4].weight.register_post_accumulate_grad_hook(triple)
        for step in range(5):
            x, y = run.batch(step)
            model.zero_grad(set_to_none=step % 2 == 0)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return values(model)

    compare(script)


@on_ranks(2, 3)
def test_hooks_on_steps_that_edit_gradients() -> None:
    """Before a step is where libraries clip and add noise; with "host" after synchronize()."""

    def script(run: Run) -> list[torch.Tensor]:
        model = mlp()
        optimizer = run.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)

        def centralize(optimizer: Any, args: Any, kwargs: Any) -> None:
            for p in _parameters(optimizer):
                p.grad -= p.grad.mean()

        optimizer.register_step_pre_hook(centralize)
        for step in range(5):
            x, y = run.batch(step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            run.synchronize(optimizer)
            optimizer.step()
        return values(model)

    compare(script, ALL_MODES)
