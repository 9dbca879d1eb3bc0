"""Short scripts that once differed from plain torch, or well might; each runs in every mode.

A script's loss on rank r is usually r + 1 times something, so that the average is no rank's own.
"""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from world import Mode, Script, World

ALL_MODES: tuple[Mode, ...] = ("auto", "host", False)
LARGE = 70_000  # more than "auto" asks for, and several chunks


@dataclass(frozen=True)
class Known:
    """A script and where it makes sense."""

    run: Script
    modes: tuple[Mode, ...]
    sizes: tuple[int, ...]
    on_hosts: bool = True  # also on several


SCRIPTS: dict[str, Known] = {}


def script(
    *,
    modes: tuple[Mode, ...] = ALL_MODES,
    sizes: tuple[int, ...] = (2, 3),
    on_hosts: bool = True,
) -> Callable[[Script], Script]:
    def register(run: Script) -> Script:
        SCRIPTS[run.__name__] = Known(run, modes, sizes, on_hosts)
        return run

    return register


def variants(*values: Callable[..., Any]) -> Callable[[Callable[[World, Any], None]], None]:
    """A script for each function, with its name at the end."""

    def register(run: Callable[[World, Any], None]) -> None:
        for value in values:
            name = f"{run.__name__}{value.__name__}"
            SCRIPTS[name] = Known(lambda w, value=value: run(w, value), ALL_MODES, (2, 3))

    return register


def zeros(*shape: int) -> Parameter:
    return Parameter(torch.zeros(*shape, dtype=torch.float64))


def ramp(*shape: int) -> Parameter:
    """Values that are all different, and far from 0."""
    count = torch.Size(shape).numel()
    return Parameter(torch.linspace(1, 2, count, dtype=torch.float64).view(shape))


def slope(w: World, *parameters: torch.Tensor, total: bool = False) -> torch.Tensor:
    """A loss whose gradient is r + 1 on rank r."""
    return w.loss(lambda rank: sum((p * (rank + 1)).sum() for p in parameters), total=total)


def bowl(w: World, *parameters: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient depends on the parameter, and on the rank."""
    return w.loss(lambda rank: sum(((p + rank) ** 2).sum() for p in parameters))


def train(w: World, optimizer: Any, parameters: Iterable[torch.Tensor], steps: int = 2) -> None:
    held = list(parameters)
    for _ in range(steps):
        optimizer.zero_grad()
        bowl(w, *held).backward()
        optimizer.step()


def look(w: World, **parameters: torch.Tensor) -> None:
    for name, parameter in parameters.items():
        w.look(name, parameter)


def linear(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 3)).to(dtype)


def fit(w: World, model: nn.Module) -> torch.Tensor:
    dtype = next(model.parameters()).dtype

    def of_rank(rank: int) -> torch.Tensor:
        images = torch.randn(5, 40, generator=torch.Generator().manual_seed(rank))
        return (model(images.to(dtype)) - rank).square().mean()

    return w.loss(of_rank)


def fit_steps(w: World, model: nn.Module, optimizer: Any, steps: int = 2) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        fit(w, model).backward()
        optimizer.step()


def look_at_model(w: World, model: nn.Module, label: str = "model") -> None:
    w.look(label, dict(model.named_parameters()))


def send_to_oneself(tensor: torch.Tensor) -> torch.Tensor:
    """Through a queue of torch.multiprocessing, which moves the tensor to shared memory."""
    queue = torch.multiprocessing.SimpleQueue()
    queue.put(tensor)
    return queue.get()


# --- optimizers that come and go ----------------------------------------------------------------


@script()
def another_class_after_the_first_was_deleted(w: World) -> None:
    p = zeros(LARGE)
    optimizer = w.distribute(Adam([p]))
    del optimizer
    optimizer = w.distribute(SGD([p], lr=0.1))
    for _ in range(20):
        optimizer.zero_grad()
        slope(w, p).backward()
        w.look_at_grad("p.grad", p)
        optimizer.step()
    look(w, p=p)


@script()
def another_class_while_the_first_lives(w: World) -> None:
    p = zeros(LARGE)
    first = w.distribute(Adam([p]))
    second = w.distribute(SGD([p], lr=0.1))
    for _ in range(20):
        second.zero_grad()
        slope(w, p).backward()
        w.look_at_grad("p.grad", p)
        second.step()
    first.step()
    look(w, p=p)


@script()
def two_heads_share_a_trunk(w: World) -> None:
    trunk, a, b = ramp(LARGE), ramp(7), ramp(7)
    first = w.distribute(SGD([trunk, a], lr=0.01, momentum=0.9))
    second = w.distribute(SGD([trunk, b], lr=0.02))
    for _ in range(10):
        for optimizer, head in ((first, a), (second, b)):
            optimizer.zero_grad()
            bowl(w, trunk, head).backward()
            w.look_at_grad("trunk.grad", trunk)
            optimizer.step()
            look(w, trunk=trunk, a=a, b=b)


@script()
def each_rank_uses_other_parameters_of_two_optimizers(w: World) -> None:
    p = [ramp(size) for size in (640, 5, 7, 54, 50)]
    first = w.distribute(SGD([{"params": p[:1]}, {"params": p[1:]}], lr=0.01))
    second = w.distribute(SGD([p[1], p[4]], lr=0.02))
    used = [[p[4], p[2], p[0], p[3], p[1]], [p[1], p[2]], [p[4]]]
    for optimizer in (first, second, first):
        for shift in range(3):
            first.zero_grad()
            w.loss(
                lambda rank, shift=shift: sum(
                    ((q + rank) ** 2).sum() for q in used[(rank + shift) % 3]
                )
            ).backward()
            optimizer.step()
            w.look("p", p)


@script()
def a_generator_and_a_discriminator(w: World) -> None:
    g, d = ramp(600), ramp(600)
    of_g = w.distribute(Adam([g], lr=0.01))
    of_d = w.distribute(Adam([d], lr=0.01))

    def score(rank: int, g: torch.Tensor) -> torch.Tensor:
        return ((g + rank) * d).square().mean()

    for _ in range(3):
        of_d.zero_grad()
        w.loss(lambda rank: score(rank, g.detach())).backward()
        of_d.step()
        of_g.zero_grad()
        w.loss(lambda rank: -score(rank, g)).backward()  # d gets a gradient that nobody wants
        of_g.step()
        look(w, g=g, d=d)


@script()
def rebuilding_does_not_grow(w: World) -> None:
    sizes, lives = [], []
    for _ in range(10):
        p = ramp(LARGE)
        optimizer = w.distribute(Adam([p]))
        train(w, optimizer, [p])
        alive = weakref.ref(optimizer)
        del optimizer
        lives.append(alive() is not None)
        del p
        sizes.append(w.shared_bytes())
    w.look("shared memory grew", sizes[-1] > sizes[2])
    w.look("deleted optimizers live", any(lives))


@script(on_hosts=False)  # where four ranks share two cores it takes longer than a verdict may
def five_thousand_parameters(w: World) -> None:
    many = [Parameter(torch.full((3,), float(i), dtype=torch.float64)) for i in range(5000)]
    optimizer = w.distribute(SGD(many, lr=0.1, momentum=0.9))
    train(w, optimizer, many)
    w.look("many", torch.stack([p.detach() for p in many]))


@script()
def a_parameter_of_size_zero(w: World) -> None:
    z, p = zeros(0, 3), zeros(LARGE)
    optimizer = w.distribute(SGD([z, p], lr=0.1))
    slope(w, z, p).backward()
    optimizer.step()
    look(w, z=z, p=p)


@script()
def a_parameter_without_dimensions(w: World) -> None:
    s, p = Parameter(torch.tensor(2.0, dtype=torch.float64)), ramp(9)
    optimizer = w.distribute(Adam([s, p], lr=0.1))
    train(w, optimizer, [s, p])
    look(w, s=s, p=p)


# --- gradients by hand --------------------------------------------------------------------------


@script()
def a_gradient_replaced_by_hand(w: World) -> None:
    p = zeros(LARGE)
    optimizer = w.distribute(SGD([p], lr=0.1))
    w.loss(lambda rank: p.sum()).backward()
    p.grad = None
    (p.grad,) = torch.autograd.grad(slope(w, p), p)
    optimizer.step()
    look(w, p=p)


@script()
def a_gradient_set_by_hand_without_backward(w: World) -> None:
    p, q = zeros(600), zeros(5)
    optimizer = w.distribute(SGD([p, q], lr=0.1))
    for _ in range(2):
        p.grad, q.grad = torch.autograd.grad(slope(w, p, q), (p, q))
        optimizer.step()
        look(w, p=p, q=q)
        optimizer.zero_grad()


@script()
def a_step_inside_backward(w: World) -> None:
    parameters = [ramp(600), ramp(5), ramp(LARGE)]
    optimizers = {p: w.distribute(SGD([p], lr=0.01, momentum=0.9)) for p in parameters}

    def step(p: torch.Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in parameters:
        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        bowl(w, *parameters).backward()
        w.look("parameters", parameters)


@script()
def a_gradient_kept_over_zero_grad(w: World) -> None:
    p = zeros(LARGE)
    optimizer = w.distribute(SGD([p], lr=0.1))
    slope(w, p).backward()
    w.synchronize(optimizer)
    kept = p.grad
    optimizer.zero_grad(set_to_none=True)
    w.look("kept", kept)
    (10 * slope(w, p)).backward()
    w.synchronize(optimizer)
    w.look("kept", kept)
    w.look("p.grad", p.grad)
    optimizer.step()
    w.look("kept", kept)
    look(w, p=p)


@script()
def a_gradient_kept_over_zero_grad_in_place(w: World) -> None:
    p = zeros(LARGE)
    optimizer = w.distribute(SGD([p], lr=0.1))
    slope(w, p).backward()
    w.synchronize(optimizer)
    kept = p.grad
    optimizer.zero_grad(set_to_none=False)
    w.look("kept", kept)
    (10 * slope(w, p)).backward()
    w.synchronize(optimizer)
    w.look("kept", kept)
    w.look("same object", kept is p.grad)


@script()
def gradients_kept_of_every_step(w: World) -> None:
    p = ramp(LARGE)
    optimizer = w.distribute(SGD([p], lr=0.01))
    kept = []
    for _ in range(4):
        optimizer.zero_grad()
        bowl(w, p).backward()
        w.synchronize(optimizer)
        kept.append(p.grad)
        optimizer.step()
    w.look("kept", kept)


@script()
def a_frozen_parameter_with_a_gradient(w: World) -> None:
    """torch steps it: an optimizer looks at p.grad alone."""
    p, q = ramp(700), ramp(LARGE)
    bowl(w, p, q).backward()
    q.requires_grad_(False)
    optimizer = w.distribute(SGD([p, q], lr=0.01))
    optimizer.step()
    look(w, p=p, q=q)
    optimizer.zero_grad()
    q.requires_grad_(True)
    p.grad, q.grad = torch.autograd.grad(bowl(w, p, q), (p, q))
    q.requires_grad_(False)
    optimizer.step()
    look(w, p=p, q=q)
    optimizer.zero_grad()
    q.requires_grad_(True)
    bowl(w, p, q).backward()
    q.requires_grad_(False)
    optimizer.step()
    look(w, p=p, q=q)


@script()
def a_gradient_from_before_wrapping(w: World) -> None:
    p = ramp(LARGE)
    bowl(w, p).backward()
    optimizer = w.distribute(SGD([p], lr=0.01))
    optimizer.step()
    look(w, p=p)
    bowl(w, p).backward()
    w.look_at_grad("p.grad", p)
    optimizer.step()
    look(w, p=p)


@script()
def gradients_swapped(w: World) -> None:
    a, b = zeros(LARGE), zeros(LARGE)
    optimizer = w.distribute(SGD([a, b], lr=0.1))
    w.loss(lambda rank: (a * (rank + 1)).sum() + (b * (10 * rank + 3)).sum()).backward()
    a.grad, b.grad = b.grad, a.grad
    optimizer.step()
    look(w, a=a, b=b)
    optimizer.zero_grad()
    w.loss(lambda rank: (a * (rank + 1)).sum() + (b * (10 * rank + 3)).sum()).backward()
    optimizer.step()
    look(w, a=a, b=b)


@script()
def the_data_of_a_gradient_replaced(w: World) -> None:
    p = zeros(LARGE)
    optimizer = w.distribute(SGD([p], lr=0.1))
    for _ in range(2):
        slope(w, p).backward()
        w.synchronize(optimizer)
        p.grad.data = p.grad.data * 2
        optimizer.step()
        look(w, p=p)


@script()
def a_gradient_through_a_queue(w: World) -> None:
    p = zeros(LARGE)
    optimizer = w.distribute(SGD([p], lr=0.1))
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        slope(w, p).backward()
        w.synchronize(optimizer)
        received = send_to_oneself(p.grad)
        w.look("received", received)
        optimizer.step()
        look(w, p=p)


@script()
def gradients_clipped(w: World) -> None:
    p, q = ramp(600), ramp(5)
    optimizer = w.distribute(Adam([p, q], lr=0.1))
    for _ in range(3):
        optimizer.zero_grad()
        bowl(w, p, q).backward()
        w.synchronize(optimizer)
        w.look("norm", nn.utils.clip_grad_norm_([p, q], 1.0))
        optimizer.step()
        look(w, p=p, q=q)


@script()
def gradients_projected(w: World) -> None:
    """As PCGrad: the gradients of two tasks, each less what it has against the other."""
    p = ramp(700)
    optimizer = w.distribute(SGD([p], lr=0.1))
    for _ in range(2):
        tasks = []
        for sign in (1.0, -0.5):
            optimizer.zero_grad()
            w.loss(lambda rank, sign=sign: (sign * (p + rank) ** (2 + sign)).sum()).backward()
            w.synchronize(optimizer)
            tasks.append(p.grad)
        a, b = tasks
        optimizer.zero_grad()
        p.grad = a + b - (a @ b) / (b @ b) * b - (a @ b) / (a @ a) * a
        optimizer.step()
        look(w, p=p)


@script()
def variance_reduced(w: World) -> None:
    """As SVRG: less the gradient at an old point, plus the mean gradient there."""
    p = ramp(700)
    old = copy.deepcopy(p)
    optimizer = w.distribute(SGD([p], lr=0.1))
    full = w.average(lambda rank: torch.autograd.grad(((old + rank) ** 2).sum(), old)[0])
    for _ in range(3):
        optimizer.zero_grad()
        now, then = torch.autograd.grad(bowl(w, p) + bowl(w, old), (p, old))
        p.grad = now - then + full
        optimizer.step()
        look(w, p=p)


@script()
def a_skipped_parameter_keeps_no_gradient(w: World) -> None:
    p, q = zeros(600), zeros(600)
    optimizer = w.distribute(SGD([p, q], lr=0.1))
    slope(w, p, q).backward()
    for each in (p, q):  # as model.zero_grad()
        each.grad = None
    slope(w, p).backward()
    w.synchronize(optimizer)
    w.look("p.grad", p.grad)
    w.look("q.grad", q.grad)
    optimizer.step()
    look(w, p=p, q=q)


@script()
def different_parameters_on_different_ranks(w: World) -> None:
    parameters = [ramp(600), ramp(5), ramp(7)]
    optimizer = w.distribute(Adam(parameters, lr=0.1))
    for step in range(4):
        optimizer.zero_grad()
        w.loss(lambda rank, step=step: (parameters[(rank + step) % 3] ** 2).sum()).backward()
        optimizer.step()
        w.look("parameters", parameters)


@script()
def create_graph_leaves_a_derivative(w: World) -> None:
    p = ramp(700)
    w.distribute(SGD([p], lr=0.01))
    w.loss(lambda rank: ((rank + 1) * p**3).sum()).backward(create_graph=True)
    w.look("has a graph", p.grad.requires_grad)
    (second,) = torch.autograd.grad(w.loss(lambda rank: p.grad.sum()), p)
    w.look("derivative", w.average(lambda rank: second))
    p.grad = None  # which holds a graph that holds p


@script(modes=("auto", False))
def a_penalty_on_the_gradient(w: World) -> None:
    p = ramp(700)
    optimizer = w.distribute(SGD([p], lr=0.001))
    for _ in range(2):
        optimizer.zero_grad()
        w.loss(lambda rank: ((rank + 1) * p**3).sum()).backward(create_graph=True)
        w.look("p.grad", p.grad)
        w.loss(lambda rank: (p.grad**2).sum() * 1e-3).backward()
        w.look("p.grad", p.grad)
        optimizer.step()
        look(w, p=p)
    p.grad = None


@script()
def backward_after_step_raises(w: World) -> None:
    p = ramp(700)
    optimizer = w.distribute(SGD([p], lr=0.1))
    loss = bowl(w, p * p)
    loss.backward(retain_graph=True)
    optimizer.step()
    w.doing = "backward after step"
    loss.backward()


@script()
def backward_after_step_raises_for_a_model(w: World) -> None:
    model = linear()
    optimizer = w.distribute(Adam(model.parameters(), lr=0.1), model.named_parameters())
    loss = fit(w, model)
    loss.backward(retain_graph=True)
    optimizer.step()
    w.doing = "backward after step"
    loss.backward()


@script()
def two_steps_after_one_backward(w: World) -> None:
    p = zeros(700)
    optimizer = w.distribute(SGD([p], lr=1.0))
    slope(w, p).backward()
    optimizer.step()
    optimizer.step()
    look(w, p=p)


@script()
def two_steps_after_one_backward_with_a_sum(w: World) -> None:
    import ciranda.torch as hvd

    p = zeros(700)
    optimizer = w.distribute(SGD([p], lr=1.0), op=hvd.Sum)
    slope(w, p, total=True).backward()
    optimizer.step()
    look(w, p=p)
    optimizer.step()
    look(w, p=p)


@script()
def a_gradient_that_is_negated_lazily(w: World) -> None:
    p = ramp(700)
    optimizer = w.distribute(SGD([p], lr=0.001))
    for _ in range(2):
        optimizer.zero_grad()
        (own,) = torch.autograd.grad(bowl(w, p), p)
        p.grad = torch.complex(own, own).conj().imag
        optimizer.step()
        look(w, p=p)


@script()
def a_parameter_appended_and_used_alone_on_one_rank(w: World) -> None:
    p, q = ramp(5), ramp(700)
    optimizer = w.distribute(SGD([p], lr=0.1))
    optimizer.param_groups[0]["params"].append(q)
    optimizer.zero_grad()
    w.loss(lambda rank: (q * q).sum() + ((p * rank).sum() if rank == 1 else 0)).backward()
    optimizer.step()
    look(w, p=p, q=q)


@script(modes=("auto", False))
def a_broadcast_state_that_torch_converts(w: World) -> None:
    p = ramp(700)
    optimizer = w.distribute(torch.optim.NAdam([p], lr=0.01))
    for _ in range(2):
        train(w, optimizer, [p])
        w.broadcast_optimizer_state(optimizer)
        w.look("state", optimizer.state_dict())
    look(w, p=p)


@script()
def steps_without_zero_grad(w: World) -> None:
    p = ramp(700)
    optimizer = w.distribute(SGD([p], lr=0.001))
    for _ in range(4):
        bowl(w, p).backward()
        optimizer.step()
        look(w, p=p)


@script()
def passes_declared_and_not(w: World) -> None:
    p, q = ramp(700), ramp(5)
    optimizer = w.distribute(SGD([p, q], lr=0.01), backward_passes_per_step=2)
    for passes in (2, 1, 2, 3):
        optimizer.zero_grad()
        for number in range(passes):
            bowl(w, p, *([q] if number else [])).backward()
        optimizer.step()
        look(w, p=p, q=q)


@script(sizes=(3,))
def one_rank_uses_the_unfrozen_layer_alone(w: World) -> None:
    a, b = ramp(600), ramp(600)
    b.requires_grad_(False)
    optimizer = w.distribute(SGD([a, b], lr=0.01), backward_passes_per_step=2)
    bowl(w, a).backward()
    b.requires_grad_(True)
    for p in (a, b):  # as model.zero_grad()
        p.grad = None
    w.loss(lambda rank: ((b if rank == 1 else a) ** 2).sum()).backward()
    bowl(w, a, b).backward()
    w.look("metric", w.average(lambda rank: torch.tensor([float(rank)])))
    optimizer.step()
    look(w, a=a, b=b)


@script()
def a_closure(w: World) -> None:
    p = ramp(700)
    optimizer = w.distribute(SGD([p], lr=0.01, momentum=0.9))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = bowl(w, p)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        look(w, p=p)


@script(modes=("auto", False))
def lbfgs(w: World) -> None:
    p = ramp(20)
    optimizer = w.distribute(torch.optim.LBFGS([p], lr=0.5, line_search_fn="strong_wolfe"))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = w.loss(lambda rank: ((p - rank) ** 4).sum())
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        look(w, p=p)


@script()
def a_scaler_skips_together(w: World) -> None:
    p = ramp(700)
    optimizer = w.distribute(SGD([p], lr=0.01, momentum=0.9))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for step in range(5):
        optimizer.zero_grad()
        factors = [1.0] * w.size
        if step == 2:
            factors[-1] = float("inf")
        loss = w.loss(lambda rank, by=factors: ((p + rank) ** 2).sum() * by[rank])
        scaler.scale(loss).backward()
        if step % 2:
            w.synchronize(optimizer)
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        w.look("scale", scaler.get_scale())
        look(w, p=p)


# --- hooks that write gradients ------------------------------------------------------------------


def in_place(p: torch.Tensor) -> None:
    p.grad.mul_(0.5)


def past_autograd(p: torch.Tensor) -> None:
    p.grad.data.add_(p.data, alpha=0.1)


def by_another_tensor(p: torch.Tensor) -> None:
    p.grad = p.grad * 3


EDITS = (in_place, past_autograd, by_another_tensor)


def layers() -> list[Parameter]:
    return [ramp(600), ramp(5), ramp(LARGE), ramp(70, 10)]


def passes(w: World, optimizer: Any, held: list[Parameter]) -> None:
    for _ in range(4):
        optimizer.zero_grad()
        bowl(w, *held).backward()
        w.synchronize(optimizer)
        w.look("gradients", [p.grad for p in held])
        optimizer.step()
        w.look("parameters", held)


@variants(*EDITS)
def hooks_of_accumulators_write_gradients_(w: World, edit: Callable[..., None]) -> None:
    held = layers()
    nodes = [p.expand_as(p).grad_fn.next_functions[0][0] for p in held]
    for node, p in zip(nodes, held, strict=True):
        node.register_hook(lambda *_, p=p: edit(p))
    passes(w, w.distribute(SGD(held, lr=0.01, momentum=0.9)), held)


@variants(*EDITS)
def hooks_of_accumulators_come_later_(w: World, edit: Callable[..., None]) -> None:
    held = layers()
    optimizer = w.distribute(SGD(held, lr=0.01, momentum=0.9))
    passes(w, optimizer, held)
    nodes = [p.expand_as(p).grad_fn.next_functions[0][0] for p in held]
    for node, p in zip(nodes, held, strict=True):
        node.register_hook(lambda *_, p=p: edit(p))
    passes(w, optimizer, held)


@variants(*EDITS)
def callbacks_at_the_end_of_backward_write_gradients_(w: World, edit: Callable[..., None]) -> None:
    held = layers()

    def edit_all() -> None:
        for p in held:
            edit(p)

    def queue(gradient: torch.Tensor) -> torch.Tensor:
        torch.autograd.Variable._execution_engine.queue_callback(edit_all)
        return gradient

    held[0].register_hook(queue)
    passes(w, w.distribute(SGD(held, lr=0.01, momentum=0.9)), held)


@variants(*EDITS)
def hooks_write_the_gradients_of_others_(w: World, edit: Callable[..., None]) -> None:
    held = layers()
    first_done: list[Parameter] = []

    def note(p: Parameter) -> None:
        first_done.append(p)
        if len(first_done) == len(held):  # of all, this gradient comes last
            for other in first_done[:-1]:
                edit(other)
            first_done.clear()

    for p in held:
        p.register_post_accumulate_grad_hook(note)
    passes(w, w.distribute(SGD(held, lr=0.01, momentum=0.9)), held)


@variants(*EDITS)
def a_hook_of_a_module_writes_gradients_(w: World, edit: Callable[..., None]) -> None:
    first, last = nn.Linear(40, 60).to(torch.float64), nn.Linear(60, 90).to(torch.float64)
    held = [*last.parameters(), *first.parameters()]
    for p in held:
        nn.init.constant_(p, 0.01)
    calls = 0

    def scale_the_last_layer(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if w.is_reference and calls % w.size:
            return  # the joined batch passes the module once for each rank
        for p in last.parameters():
            edit(p)

    first.register_full_backward_hook(scale_the_last_layer)
    optimizer = w.distribute(SGD(held, lr=0.01))

    def of_rank(rank: int) -> torch.Tensor:
        images = torch.full((5, 40), 0.1 * (rank + 1), dtype=torch.float64, requires_grad=True)
        return (last(torch.tanh(first(images))) - rank).square().mean()

    for _ in range(4):
        optimizer.zero_grad()
        w.loss(of_rank).backward()
        w.synchronize(optimizer)
        w.look("gradients", [p.grad for p in held])
        optimizer.step()
        w.look("parameters", held)


# --- memory that moves --------------------------------------------------------------------------


def _cast(model: nn.Module) -> None:
    model.float()
    model.double()


def _channels_last(model: nn.Module) -> None:
    model.to(memory_format=torch.channels_last)


def _clone_data(model: nn.Module) -> None:
    for p in model.parameters():
        p.data = p.data.clone()


def _share(model: nn.Module) -> None:
    model.share_memory()


def _share_gradients(model: nn.Module) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.share_memory_()


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(5, 20, 3)
        self.last = nn.Linear(20, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.conv(images.view(5, 5, 4, 2).repeat(1, 1, 1, 2)).mean((2, 3)))


@variants(_cast, _channels_last, _clone_data, _share, _share_gradients)
def a_model_that_moved(w: World, move: Callable[[nn.Module], None]) -> None:
    w.tolerance = 1e-5  # of float32 in between
    model = Convolution().double()
    optimizer = w.distribute(Adam(model.parameters(), lr=0.01), model.named_parameters())
    for _ in range(3):
        fit_steps(w, model, optimizer, 1)
        look_at_model(w, model)
        move(model)
        look_at_model(w, model)
        fit_steps(w, model, optimizer, 1)
        look_at_model(w, model)
    w.look("state", optimizer.state_dict())


@script()
def an_average_swapped_in_and_out(w: World) -> None:
    model = linear()
    average = [p.detach().clone() for p in model.parameters()]
    optimizer = w.distribute(Adam(model.parameters(), lr=0.01), model.named_parameters())
    for _ in range(3):
        fit_steps(w, model, optimizer, 1)
        for mean, p in zip(average, model.parameters(), strict=True):
            mean.mul_(0.9).add_(p.detach(), alpha=0.1)
        for _ in range(2):  # in, and out again
            for number, p in enumerate(model.parameters()):
                average[number], p.data = p.data, average[number]
            look_at_model(w, model)
    look_at_model(w, model)
    w.look("average", average)


@script()
def an_averaged_model(w: World) -> None:
    model = linear()
    optimizer = w.distribute(SGD(model.parameters(), lr=0.1), model.named_parameters())
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(3):
        fit_steps(w, model, optimizer, 1)
        average.update_parameters(model)
    w.look("average", average.state_dict())


@script()
def numpy_views_of_parameters(w: World) -> None:
    p = ramp(LARGE)
    before = p.detach().numpy()
    optimizer = w.distribute(SGD([p], lr=0.1))
    after = p.detach().numpy()
    train(w, optimizer, [p])
    w.look("before", before)
    w.look("after", after)


# --- the optimizer's state ----------------------------------------------------------------------


@script()
def state_cleared(w: World) -> None:
    p = ramp(700)
    optimizer = w.distribute(Adam([p], lr=0.1))
    train(w, optimizer, [p])
    optimizer.state.clear()
    train(w, optimizer, [p])
    look(w, p=p)
    w.look("state", optimizer.state_dict())


@script()
def state_of_a_parameter_popped(w: World) -> None:
    p, q = ramp(700), ramp(5)
    optimizer = w.distribute(Adam([p, q], lr=0.1))
    train(w, optimizer, [p, q])
    optimizer.state.pop(p)
    train(w, optimizer, [p, q])
    look(w, p=p, q=q)
    w.look("state", optimizer.state_dict())


@script()
def state_replaced(w: World) -> None:
    p = ramp(700)
    optimizer = w.distribute(AdamW([p], lr=0.1))
    train(w, optimizer, [p])
    optimizer.state = defaultdict(dict)
    train(w, optimizer, [p])
    look(w, p=p)
    w.look("state", optimizer.state_dict())


def _tensor_replaced(state: dict[str, torch.Tensor]) -> None:
    state["exp_avg"] = torch.full_like(state["exp_avg"], 0.5)


def _step_replaced(state: dict[str, torch.Tensor]) -> None:
    state["step"] = torch.tensor(50.0)


def _step_set_in_place(state: dict[str, torch.Tensor]) -> None:
    state["step"].fill_(50)


def _momentum_halved_in_place(state: dict[str, torch.Tensor]) -> None:
    state["exp_avg"].mul_(0.5)


@variants(_tensor_replaced, _step_replaced, _step_set_in_place, _momentum_halved_in_place)
def state_edited(w: World, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    p = ramp(700)
    optimizer = w.distribute(Adam([p], lr=0.1))
    train(w, optimizer, [p])
    edit(optimizer.state[p])
    train(w, optimizer, [p])
    look(w, p=p)
    w.look("state", optimizer.state_dict())


@script()
def state_read_on_one_rank(w: World) -> None:
    p = ramp(LARGE)
    optimizer = w.distribute(Adam([p], lr=0.1))
    for _ in range(3):
        train(w, optimizer, [p])
        if w.rank == 1:
            w.look("state", optimizer.state_dict(), common=False)
            w.look("exp_avg", optimizer.state[p]["exp_avg"], common=False)
    look(w, p=p)


def _shared(tensor: torch.Tensor) -> None:
    tensor.share_memory_()


def _queued(tensor: torch.Tensor) -> None:
    send_to_oneself(tensor)


@variants(_shared, _queued)
def state_tensors_that_moved(w: World, move: Callable[[torch.Tensor], None]) -> None:
    p = ramp(LARGE)
    optimizer = w.distribute(Adam([p], lr=0.1))
    train(w, optimizer, [p], 1)
    for tensor in optimizer.state[p].values():
        move(tensor)
    train(w, optimizer, [p], 3)
    look(w, p=p)
    w.look("state", optimizer.state_dict())


@script()
def a_group_removed(w: World) -> None:
    p, q = ramp(700), ramp(600)
    optimizer = w.distribute(SGD([{"params": [p]}, {"params": [q], "lr": 0.2}], lr=0.1))
    train(w, optimizer, [p, q])
    optimizer.param_groups.pop()
    train(w, optimizer, [p, q])
    look(w, p=p, q=q)


@script()
def a_group_removed_before_the_first_step(w: World) -> None:
    p, q = ramp(700), ramp(600)
    optimizer = w.distribute(SGD([{"params": [p]}, {"params": [q], "lr": 0.2}], lr=0.1))
    del optimizer.param_groups[0]
    train(w, optimizer, [p, q])
    look(w, p=p, q=q)


@script()
def the_first_group_removed(w: World) -> None:
    p, q = ramp(700), ramp(600)
    optimizer = w.distribute(SGD([{"params": [p]}, {"params": [q], "lr": 0.2}], lr=0.1))
    train(w, optimizer, [p, q])
    del optimizer.param_groups[0]
    train(w, optimizer, [p, q])
    look(w, p=p, q=q)


@script()
def a_parameter_removed(w: World) -> None:
    p, q = ramp(700), ramp(600)
    optimizer = w.distribute(Adam([p, q], lr=0.1))
    train(w, optimizer, [p, q])
    del optimizer.param_groups[0]["params"][0]
    train(w, optimizer, [p, q])
    look(w, p=p, q=q)


@script()
def a_parameter_appended(w: World) -> None:
    p, q = ramp(700), ramp(600)
    optimizer = w.distribute(SGD([p], lr=0.1, momentum=0.9))
    train(w, optimizer, [p])
    optimizer.param_groups[0]["params"].append(q)
    train(w, optimizer, [p, q])
    look(w, p=p, q=q)


@script()
def a_parameter_of_another_optimizer_appended(w: World) -> None:
    p, q, s = ramp(700), ramp(600), ramp(54)
    first = w.distribute(SGD([p, q], lr=0.02, momentum=0.9))
    second = w.distribute(SGD([q, p, s], lr=0.05))
    first.param_groups[0]["params"].append(s)
    train(w, first, [p, q, s])
    look(w, p=p, q=q, s=s)
    train(w, second, [p, q, s])
    look(w, p=p, q=q, s=s)


@script()
def a_group_added_and_a_layer_unfrozen(w: World) -> None:
    p, q, s = ramp(700), ramp(600), ramp(5)
    q.requires_grad_(False)
    optimizer = w.distribute(Adam([p, q], lr=0.1))
    train(w, optimizer, [p])
    q.requires_grad_(True)
    train(w, optimizer, [p, q])
    optimizer.add_param_group({"params": [s], "lr": 0.01})
    train(w, optimizer, [p, q, s])
    p.requires_grad_(False)
    train(w, optimizer, [q, s])
    look(w, p=p, q=q, s=s)
    w.look("state", optimizer.state_dict())


@script()
def adagrad_has_a_state_of_what_is_not_used(w: World) -> None:
    p, q, z = ramp(700), ramp(5), zeros(0, 3)
    q.requires_grad_(False)
    optimizer = w.distribute(Adagrad([p, q, z], lr=0.1, initial_accumulator_value=0.5))
    train(w, optimizer, [p])
    w.look("state", optimizer.state_dict())
    q.requires_grad_(True)
    train(w, optimizer, [p, q])
    look(w, p=p, q=q)
    w.look("state", optimizer.state_dict())


@script()
def momentum_from_zero(w: World) -> None:
    p = ramp(700)
    optimizer = w.distribute(SGD([p], lr=0.1))
    train(w, optimizer, [p])
    optimizer.param_groups[0]["momentum"] = 0.9
    train(w, optimizer, [p], 3)
    look(w, p=p)
    w.look("state", optimizer.state_dict())


@script()
def a_cycle_of_momentum(w: World) -> None:
    p = ramp(700)
    optimizer = w.distribute(SGD([p], lr=0.1))
    scheduler = torch.optim.lr_scheduler.CyclicLR(
        optimizer, base_lr=0.01, max_lr=0.1, step_size_up=2, base_momentum=0.0, max_momentum=0.9
    )
    for _ in range(6):
        train(w, optimizer, [p], 1)
        scheduler.step()
        look(w, p=p)
    w.look("state", optimizer.state_dict())


@script()
def state_loaded_into_another_optimizer(w: World) -> None:
    p = ramp(700)
    optimizer = w.distribute(RMSprop([p], lr=0.01, momentum=0.5))
    train(w, optimizer, [p])
    saved = io.BytesIO()
    torch.save(optimizer.state_dict(), saved)
    saved.seek(0)
    train(w, optimizer, [p])
    optimizer = w.distribute(RMSprop([p], lr=0.01, momentum=0.5))
    optimizer.load_state_dict(torch.load(saved))
    train(w, optimizer, [p])
    look(w, p=p)
    w.look("state", optimizer.state_dict())


@script()
def state_loaded_while_others_read_theirs(w: World) -> None:
    """No rank waits for another in either."""
    p = ramp(LARGE)
    optimizer = w.distribute(Adam([p], lr=0.01))
    for step in range(15):
        train(w, optimizer, [p], 1)
        time.sleep(0.002 * ((w.rank + step) % w.size))
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        w.look("state", optimizer.state_dict())
    look(w, p=p)


@script()
def a_state_kept_over_a_rebuild(w: World) -> None:
    kept = None
    for number in range(3):
        p = ramp(LARGE)
        optimizer = w.distribute(Adam([p], lr=0.1 * (number + 1)))
        train(w, optimizer, [p])
        if number == 0 and w.rank == 1:
            kept = optimizer.state_dict()
            w.look("kept", kept, common=False)
        del optimizer, p
        gc.collect()
    if kept is not None:
        w.look("kept", kept, common=False)


@script()
def state_tensors_kept_over_a_rebuild(w: World) -> None:
    kept = None
    for number in range(3):
        p = ramp(LARGE)
        optimizer = w.distribute(Adam([p], lr=0.1 * (number + 1)))
        train(w, optimizer, [p])
        if number == 0 and w.rank == 1:
            kept = optimizer.state[p]["exp_avg"]
        del optimizer, p
        gc.collect()
    if kept is not None:
        w.look("kept", kept, common=False)


@script(modes=("auto", "host"))
def a_shared_model_kept_over_a_rebuild(w: World) -> None:
    kept = []
    for number in range(3):
        p = ramp(LARGE)
        optimizer = w.distribute(SGD([p], lr=0.1 * (number + 1)), share_parameters=True)
        train(w, optimizer, [p])
        if w.rank == 1:
            kept.append(p)
        del optimizer, p
        gc.collect()
        w.look("kept", kept, common=False)


@script(modes=("auto", "host"))
def a_copy_of_a_shared_model(w: World) -> None:
    p = ramp(LARGE)
    optimizer = w.distribute(SGD([p], lr=0.1), share_parameters=True)
    train(w, optimizer, [p])
    kept = copy.deepcopy(p)
    train(w, optimizer, [p])
    w.look("kept", kept)
    del optimizer, p
    gc.collect()
    p = ramp(LARGE)
    optimizer = w.distribute(SGD([p], lr=0.1), share_parameters=True)
    train(w, optimizer, [p])
    w.look("kept", kept)
    look(w, p=p)


# --- saving, copies and processes ---------------------------------------------------------------


def _save(model: nn.Module) -> Any:
    torch.save(model.state_dict(), io.BytesIO())


def _touch_storage(model: nn.Module) -> Any:
    for p in model.parameters():
        p.untyped_storage()


def _hold_state(model: nn.Module) -> Any:
    return model.state_dict()


def _hold_storage(model: nn.Module) -> Any:
    return [p.untyped_storage() for p in model.parameters()]


def _load_assign(model: nn.Module) -> Any:
    model.load_state_dict(copy.deepcopy(model).state_dict(), assign=True)


@variants(_save, _touch_storage, _hold_state, _hold_storage, _load_assign)
def one_rank_before_wrapping(w: World, act: Callable[[nn.Module], Any]) -> None:
    model = linear()
    kept = act(model) if w.rank == 0 else None
    for p in model[2].parameters():
        p.requires_grad_(False)
    optimizer = w.distribute(Adam(model.parameters(), lr=0.01), model.named_parameters())
    fit_steps(w, model, optimizer)
    look_at_model(w, model)
    for p in model[2].parameters():
        p.requires_grad_(True)
    optimizer.zero_grad()
    fit_steps(w, model, optimizer)
    look_at_model(w, model)
    added = linear()
    kept = kept, act(added) if w.rank == 0 else None
    optimizer.add_param_group({"params": list(added.parameters())})
    fit_steps(w, added, optimizer)
    look_at_model(w, added)
    if isinstance(kept[0], dict):
        w.look("kept", kept[0], common=False)


@script()
def a_model_state_follows(w: World) -> None:
    model = linear()
    before = model.state_dict()
    optimizer = w.distribute(Adam(model.parameters(), lr=0.01), model.named_parameters())
    after = model.state_dict()
    fit_steps(w, model, optimizer)
    w.look("before", before)
    w.look("after", after)


@script()
def model_state_loaded(w: World) -> None:
    model = linear()
    optimizer = w.distribute(Adam(model.parameters(), lr=0.01), model.named_parameters())
    saved = copy.deepcopy(model.state_dict())
    fit_steps(w, model, optimizer)
    model.load_state_dict(saved)
    look_at_model(w, model)
    fit_steps(w, model, optimizer)
    look_at_model(w, model)


@script()
def copies_do_not_follow(w: World) -> None:
    model = linear()
    optimizer = w.distribute(Adam(model.parameters(), lr=0.01), model.named_parameters())
    fit_steps(w, model, optimizer)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]  # noqa: S301 - ours
    states = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]  # noqa: S301
    for _ in range(2):
        for number, each in enumerate(copies):
            look_at_model(w, each, f"copy {number}")
        for number, state in enumerate(states):
            w.look(f"state {number}", state.state_dict())
        fit_steps(w, model, optimizer)


@script()
def a_copy_is_trained_too(w: World) -> None:
    model = linear()
    optimizer = w.distribute(Adam(model.parameters(), lr=0.01), model.named_parameters())
    fit_steps(w, model, optimizer)
    other, of_other = copy.deepcopy((model, optimizer))
    fit_steps(w, model, optimizer)
    of_other = w.distribute(of_other, other.named_parameters())
    fit_steps(w, other, of_other)
    look_at_model(w, model)
    look_at_model(w, other, "copy")


def train_in_a_child(w: World, p: torch.Tensor) -> None:
    """By a process that was forked, to no avail."""
    child = os.fork()
    if child == 0:
        try:
            (p * 1000).sum().backward()
            with torch.no_grad():
                p.grad.zero_()
        finally:
            os._exit(0)
    w.look("child", wait_for_child(child))


@script()
def a_forked_child_trains(w: World) -> None:
    p = ramp(LARGE)
    optimizer = w.distribute(SGD([p], lr=0.1))
    bowl(w, p).backward()
    train_in_a_child(w, p)
    w.look_at_grad("p.grad", p)
    optimizer.step()
    train_in_a_child(w, p)
    w.look_at_grad("p.grad", p)
    look(w, p=p)


@script()
def a_forked_child_trains_between_passes(w: World) -> None:
    p = ramp(LARGE)
    optimizer = w.distribute(SGD([p], lr=0.01), backward_passes_per_step=2)
    for passes in (2, 1, 2):
        optimizer.zero_grad()
        for _ in range(passes):
            bowl(w, p).backward()
            train_in_a_child(w, p)
        optimizer.step()
        look(w, p=p)
        train_in_a_child(w, p)
        w.look_at_grad("p.grad", p)


def wait_for_child(child: int, limit_s: float = 10.0) -> int:
    """How it ended; a child that does not is killed."""
    deadline = time.monotonic() + limit_s
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, 9)
        time.sleep(0.001)


@script()
def tensors_outlive_their_world(w: World) -> None:
    p = ramp(LARGE)
    optimizer = w.distribute(Adam([p], lr=0.1))
    optimizer.zero_grad()
    bowl(w, p).backward()
    w.synchronize(optimizer)
    kept = [p.grad, p, optimizer.state_dict()]
    w.restart()
    w.look("kept", kept)
    del optimizer
    q = ramp(LARGE)
    optimizer = w.distribute(Adam([q], lr=0.2))
    train(w, optimizer, [q])
    w.look("kept", kept)
    look(w, q=q)


@script()
def broadcast_in_the_middle(w: World) -> None:
    model = linear()
    optimizer = w.distribute(Adam(model.parameters(), lr=0.01), model.named_parameters())
    w.broadcast_parameters(model.state_dict())
    w.broadcast_optimizer_state(optimizer)
    fit_steps(w, model, optimizer)
    w.broadcast_optimizer_state(optimizer)
    fit_steps(w, model, optimizer)
    w.broadcast_parameters(model.state_dict())
    fit_steps(w, model, optimizer)
    look_at_model(w, model)
    w.look("state", optimizer.state_dict())


@script()
def a_norm_is_clipped_by_step(w: World) -> None:
    p, q = ramp(700), ramp(5)
    optimizer = w.distribute(Adagrad([p, q], lr=0.1), max_grad_norm=1.0)
    train(w, optimizer, [p, q], 3)
    look(w, p=p, q=q)
