"""Random programs: the vocabulary, and how a program is drawn, run, printed and shrunk.

An action is a verb and a number that it draws its choices from, among what there is at its turn;
one that finds nothing to do does nothing. So a program stays one when actions are taken out of it.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from bench import KINDS, Bench, Model
from scripts import send_to_oneself, wait_for_child
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from world import Mode, Reference, World, parameters_of, run

Verb = Callable[[Bench, random.Random], None]
VERBS: dict[str, tuple[Verb, float]] = {}  # with the weight of each

SHARED_CLASSES: list[tuple[Any, dict[str, Any]]] = [
    (SGD, {"lr": 0.02}),
    (SGD, {"lr": 0.02, "momentum": 0.9}),
    (SGD, {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (Adam, {"lr": 0.05}),
    (Adam, {"lr": 0.05, "amsgrad": True}),
    (AdamW, {"lr": 0.05}),
    (Adagrad, {"lr": 0.1}),
    (RMSprop, {"lr": 0.02}),
    (RMSprop, {"lr": 0.02, "momentum": 0.5, "centered": True}),
]
OTHER_CLASSES: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.NAdam, {"lr": 0.05}),
    (torch.optim.LBFGS, {"lr": 0.05, "max_iter": 4}),
]


def verb(weight: float = 1.0) -> Callable[[Verb], Verb]:
    def register(run: Verb) -> Verb:
        VERBS[run.__name__] = (run, weight)
        return run

    return register


@dataclass(frozen=True)
class Program:
    seed: int
    actions: tuple[tuple[str, int], ...]

    def __call__(self, world: World) -> None:
        self._run(Bench(world, self.seed))

    def _run(self, bench: Bench) -> None:
        for verb, salt in self.actions:
            bench.world.doing = verb
            VERBS[verb][0](bench, random.Random(salt))
            bench.notice()
            if not bench.looks_at_the_end_only:
                bench.look()
        bench.world.doing = "the end"
        bench.look()
        bench.look_at_state()

    def text(self, size: int, mode: Mode) -> str:
        """As a numbered script; of the run in plain torch."""
        world = Reference(0, size, 1, mode)
        bench = Bench(world, self.seed)
        outcome = run(lambda _: self._run(bench), world)
        passes = f", {bench.passes} passes declared" if bench.passes > 1 else ""
        lines = [f"seed {self.seed}, {size} ranks, shared_step={mode!r}, {bench.dtype}{passes}"]
        lines += [f"{number:3}  {line}" for number, line in enumerate(bench.lines, 1)]
        if outcome.error is not None:
            lines.append(f"     raises {outcome.said}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {"seed": self.seed, "actions": self.actions}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Program:
        return Program(value["seed"], tuple((verb, salt) for verb, salt in value["actions"]))


def draw(seed: int, without: frozenset[str] = frozenset()) -> Program:
    """The program of a seed, the same everywhere; `without` some verbs, it is another."""
    rng = random.Random(f"program {seed}")
    verbs = [name for name in VERBS if name not in without]
    weights = [VERBS[name][1] for name in verbs]
    chosen = ["make_model", "wrap"]
    if rng.random() < 0.3:
        chosen.insert(1, rng.choices(verbs, weights)[0])
    chosen += rng.choices(verbs, weights, k=rng.randint(5, 25) - len(chosen))
    return Program(seed, tuple((verb, rng.randrange(2**31)) for verb in chosen))


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A program that still fails, and would not with any action less."""
    chunk = max(1, len(program.actions) // 2)
    while True:
        start, shorter = 0, False
        while start < len(program.actions):
            left = program.actions[:start] + program.actions[start + chunk :]
            candidate = replace(program, actions=left)
            if left and fails(candidate):
                program, shorter = candidate, True
            else:
                start += chunk
        if chunk == 1 and not shorter:
            return program
        chunk = max(1, chunk // 2)


# --- models and optimizers ----------------------------------------------------------------------


@verb(1)
def make_model(b: Bench, rng: random.Random) -> None:
    if len(b.models) == 2:
        return
    kinds = rng.choices(list(KINDS), k=rng.randint(1, 6))
    tied = rng.random() < 0.2
    name = f"model{b.number()}"
    b.say(f"{name} = Model({kinds}{', tied' if tied else ''})")
    b.models.append(Model(name, kinds, tied, b.dtype))


@verb(2)
def wrap(b: Bench, rng: random.Random) -> None:
    """Also beside an optimizer that trains the same parameters."""
    if not b.models:
        return
    if len(b.optimizers) == 3:
        b.drop(b.optimizers[0])
    model = rng.choice(b.models)
    parameters = list(model.parameters())
    whole = rng.random() < 0.7
    if not whole:
        parameters = rng.sample(parameters, rng.randint(1, len(parameters)))
    classes = SHARED_CLASSES * 3
    if b.world.mode != "host" and b.dtype == torch.float64:  # LBFGS makes much of a rounding
        classes += OTHER_CLASSES
    make, options = rng.choice(classes)
    groups: list[Any] = [{"params": parameters}]
    if len(parameters) > 1 and rng.random() < 0.3 and make is not torch.optim.LBFGS:
        groups = [{"params": parameters[:1], "lr": 0.01}, {"params": parameters[1:]}]
    more = {"max_grad_norm": 1.0} if rng.random() < 0.15 and make is not torch.optim.LBFGS else {}
    named = list(model.named_parameters()) if whole and rng.random() < 0.5 else None
    b.distribute(make(groups, **options), named, **more)


@verb(2)
def rebuild(b: Bench, rng: random.Random) -> None:
    if b.optimizers:
        b.drop(rng.choice(b.optimizers))
    wrap(b, rng)


@verb(0.5)
def drop_optimizer(b: Bench, rng: random.Random) -> None:
    if b.optimizers:
        b.drop(rng.choice(b.optimizers))


@verb(0.5)
def start_over(b: Bench, rng: random.Random) -> None:
    """New models and optimizers for old ones; what is kept of those stays."""
    b.drop_all()
    b.say("del all models")
    b.models, b.graph = [], None
    b.saved.clear()
    make_model(b, rng)
    wrap(b, rng)


@verb(1)
def freeze(b: Bench, rng: random.Random) -> None:
    if b.parameters():
        p = rng.choice(b.parameters())
        b.say(f"{b.name(p)}.requires_grad_({not p.requires_grad})")
        p.requires_grad_(not p.requires_grad)
        b.graph = None  # it may reach no parameter on some rank now


@verb(0.7)
def unfreeze_all(b: Bench, rng: random.Random) -> None:
    b.say("requires_grad_(True) for all")
    for p in b.parameters():
        p.requires_grad_(True)


@verb(0.7)
def add_group(b: Bench, rng: random.Random) -> None:
    optimizers = [each for each in b.optimizers if not isinstance(each, torch.optim.LBFGS)]
    if not optimizers or not b.models:
        return
    optimizer, model = rng.choice(optimizers), rng.choice(b.models)
    value = KINDS[rng.choice(list(KINDS))](
        generator=torch.Generator().manual_seed(5), dtype=b.dtype
    )
    name = f"added{b.number()}"
    model.register_parameter(name, nn.Parameter(value))
    b.say(f"{b.of(optimizer)}.add_param_group({model.name}.{name})")
    optimizer.add_param_group({"params": [getattr(model, name)], "lr": 0.01})


@verb(0.4)
def remove_group(b: Bench, rng: random.Random) -> None:
    optimizers = [each for each in b.optimizers if len(each.param_groups) > 1]
    if optimizers:
        optimizer = rng.choice(optimizers)
        position = rng.randrange(len(optimizer.param_groups))
        b.say(f"del {b.of(optimizer)}.param_groups[{position}]")
        del optimizer.param_groups[position]


@verb(0.3)
def append_parameter(b: Bench, rng: random.Random) -> None:
    for optimizer in b.optimizers:
        own = parameters_of(optimizer)
        others = [p for p in b.parameters() if all(p is not each for each in own)]
        if others and not isinstance(optimizer, (torch.optim.LBFGS, Adagrad)):
            p = rng.choice(others)
            b.say(f"{b.of(optimizer)}.param_groups[0]['params'].append({b.name(p)})")
            optimizer.param_groups[0]["params"].append(p)
            b.own.add(p)  # until a step
            return


# --- steps --------------------------------------------------------------------------------------


@verb(12)
def train(b: Bench, rng: random.Random) -> None:
    if b.optimizers:
        optimizer = rng.choice(b.optimizers)
        _zero(b, optimizer, rng)
        if not isinstance(optimizer, torch.optim.LBFGS):
            _backward(b, rng, parameters_of(optimizer))
        b.step(optimizer, rng)


@verb(6)
def backward(b: Bench, rng: random.Random) -> None:
    if b.models:
        _backward(b, rng, list(rng.choice(b.models).parameters()))


def _backward(b: Bench, rng: random.Random, parameters: list[nn.Parameter], **how: Any) -> None:
    loss = b.loss(rng, parameters)
    if loss is not None:
        b.backward(loss, parameters, **how)


@verb(0.7)
def backward_and_retain(b: Bench, rng: random.Random) -> None:
    if b.models:
        parameters = list(rng.choice(b.models).parameters())
        loss = b.loss(rng, parameters)
        if loss is not None:
            b.backward(loss, parameters, retain_graph=True)
            b.graph = (loss, parameters)


@verb(0.7)
def backward_again(b: Bench, rng: random.Random) -> None:
    """torch raises if a parameter has changed since."""
    if b.graph is not None:
        b.say("the retained loss:")
        b.backward(*b.graph, retain_graph=True)


@verb(0.3)
def backward_with_graph(b: Bench, rng: random.Random) -> None:
    if not b.models:
        return
    parameters = list(rng.choice(b.models).parameters())
    loss = b.loss(rng, parameters, everywhere=True)
    if loss is None:
        return
    b.backward(loss, parameters, create_graph=True)
    b.say("grad = grad.detach() for all")
    for p in parameters:
        if p.requires_grad:
            b.world.look("has a graph", p.grad.requires_grad)
            p.grad = p.grad.detach()


@verb(5)
def step(b: Bench, rng: random.Random) -> None:
    if b.optimizers:
        b.step(rng.choice(b.optimizers), rng)


@verb(0.7)
def step_with_closure(b: Bench, rng: random.Random) -> None:
    optimizers = [each for each in b.optimizers if each.takes_closures]
    if optimizers:
        b.step(rng.choice(optimizers), rng, closure=True)


@verb(1)
def synchronize(b: Bench, rng: random.Random) -> None:
    b.average_now()


@verb(3)
def zero_grad(b: Bench, rng: random.Random) -> None:
    if b.optimizers:
        _zero(b, rng.choice(b.optimizers), rng)


@verb(1.5)
def zero_grad_of_model(b: Bench, rng: random.Random) -> None:
    if b.models:
        model, to_none = rng.choice(b.models), rng.random() < 0.5
        b.say(f"{model.name}.zero_grad(set_to_none={to_none})")
        model.zero_grad(set_to_none=to_none)
        b.zeroed(model.parameters(), to_none)


def _zero(b: Bench, optimizer: Any, rng: random.Random) -> None:
    to_none = rng.random() < 0.6
    b.say(f"{b.of(optimizer)}.zero_grad(set_to_none={to_none})")
    optimizer.zero_grad(set_to_none=to_none)
    b.zeroed(parameters_of(optimizer), to_none)


@verb(0.7)
def step_in_hooks(b: Bench, rng: random.Random) -> None:
    """The optimizer in backward: one for each parameter."""
    if not b.models:
        return
    b.drop_all()
    model = rng.choice(b.models)
    model.zero_grad()
    b.zeroed(model.parameters())
    parameters = [p for p in model.parameters() if p.requires_grad]
    b.say(f"an optimizer for each of {b.names(parameters)}, with step and zero_grad in its hook")
    optimizers = {p: b.world.distribute(SGD([p], lr=0.02, momentum=0.9)) for p in parameters}

    def act(p: nn.Parameter) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    hooks = [p.register_post_accumulate_grad_hook(act) for p in parameters]
    for _ in range(2 if parameters else 0):
        salt = rng.randrange(2**31)
        b.world.loss(
            lambda rank, salt=salt: sum(
                ((p + 3) ** 2).sum() * (rank + 1 + salt % 3) for p in parameters
            )
        ).backward()
    for hook in hooks:
        hook.remove()


@verb(0.7)
def scaled_step(b: Bench, rng: random.Random) -> None:
    optimizers = [each for each in b.optimizers if not isinstance(each, torch.optim.LBFGS)]
    if not optimizers or b.dtype != torch.float64:
        return
    optimizer = rng.choice(optimizers)
    held = parameters_of(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer.zero_grad()
    b.zeroed(held)
    overflows = b.world.size - 1 if rng.random() < 0.3 else None
    loss = b.loss(rng, held, overflows_on=overflows)
    if loss is None:
        return
    b.backward(scaler.scale(loss), held)
    if rng.random() < 0.5:
        b.average_now()
        b.say("scaler.unscale_()")
        scaler.unscale_(optimizer)
    b.say(f"scaler.step({b.of(optimizer)}), optimizer.zero_grad()")
    scaler.step(optimizer)
    scaler.update()
    b.world.look("scale", scaler.get_scale())
    optimizer.zero_grad()
    b.zeroed(held)


# --- gradients by hand --------------------------------------------------------------------------


@verb(0.7)
def grad_to_none(b: Bench, rng: random.Random) -> None:
    if b.with_gradient():
        p = rng.choice(b.with_gradient())
        b.say(f"{b.name(p)}.grad = None")
        p.grad = None
        b.zeroed([p])


@verb(1)
def grad_by_hand(b: Bench, rng: random.Random) -> None:
    """In place of what backward made, or of nothing."""
    if not b.trainable():
        return
    parameters = rng.sample(b.trainable(), rng.randint(1, len(b.trainable())))
    salt = rng.randrange(2**31)
    loss = b.world.loss(
        lambda rank: sum((p * (salt % 5 + rank + 1)).sum() + (p * p).sum() for p in parameters)
    )
    b.say(f"grads of {b.names(parameters)} = autograd.grad(loss of the rank)")
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        b.set_by_hand(p, gradient)


@verb(1)
def scale_gradients(b: Bench, rng: random.Random) -> None:
    b.say("grad.mul_(0.5) for all")
    for p in b.with_gradient():
        if p.grad is not None:
            p.grad.mul_(0.5)


@verb(1)
def clip_gradients(b: Bench, rng: random.Random) -> None:
    b.average_now()
    averaged = b.averaged()
    if rng.random() < 0.7:
        b.say(f"clip_grad_norm_([{b.names(averaged)}], 1.0)")
        nn.utils.clip_grad_norm_(averaged, 1.0)
    else:
        b.say(f"clip_grad_value_([{b.names(averaged)}], 1.1)")
        nn.utils.clip_grad_value_(averaged, 1.1)


@verb(0.4)
def swap_gradients(b: Bench, rng: random.Random) -> None:
    pairs = [
        (left, right)
        for left in b.with_gradient()
        for right in b.with_gradient()
        if left is not right and left.shape == right.shape and left.dtype == right.dtype
    ]
    if pairs:
        left, right = rng.choice(pairs)
        b.say(f"swap the grads of {b.names((left, right))}")
        left.grad, right.grad = right.grad, left.grad
        if left in b.own or right in b.own:
            b.own |= {left, right}


@verb(0.4)
def grad_data(b: Bench, rng: random.Random) -> None:
    if b.with_gradient():
        p = rng.choice(b.with_gradient())
        b.say(f"{b.name(p)}.grad.data = 2 * grad")
        if p.grad is not None:
            p.grad.data = p.grad.data * 2


@verb(2)
def hold_gradient(b: Bench, rng: random.Random) -> None:
    if b.with_gradient():
        b.keep_gradient(rng.choice(b.with_gradient()))


@verb(0.5)
def project_gradients(b: Bench, rng: random.Random) -> None:
    """As PCGrad."""
    if not b.optimizers:
        return
    optimizer = rng.choice(b.optimizers)
    held = [p for p in parameters_of(optimizer) if p.requires_grad]
    tasks = []
    for _ in range(2):
        optimizer.zero_grad()
        b.zeroed(parameters_of(optimizer))
        _backward(b, rng, held)
        b.average_now()
        tasks.append([p.grad for p in held])
    optimizer.zero_grad()
    b.zeroed(parameters_of(optimizer))
    b.say("grads = a - (a.b)/(b.b) b of the last two")
    for p, a, g in zip(held, *tasks, strict=True):
        if a is not None and g is not None and g.numel() > 1:  # of one number nothing is left
            p.grad = a - (a * g).sum() / (g * g).sum() * g
    b.own |= set(held)


@verb(0.4)
def share_gradient(b: Bench, rng: random.Random) -> None:
    if b.with_gradient():
        p = rng.choice(b.with_gradient())
        if rng.random() < 0.5:
            b.say(f"{b.name(p)}.grad.share_memory_()")
            if p.grad is not None:
                p.grad.share_memory_()
        elif p not in b.own:
            b.say(f"queue.put({b.name(p)}.grad)")
            b.world.look("received", send_to_oneself(p.grad))


# --- settings -----------------------------------------------------------------------------------


@verb(1)
def change_lr(b: Bench, rng: random.Random) -> None:
    if b.optimizers:
        optimizer = rng.choice(b.optimizers)
        b.say(f"{b.of(optimizer)}: lr *= 0.7")
        rng.choice(optimizer.param_groups)["lr"] *= 0.7


@verb(0.5)
def change_momentum(b: Bench, rng: random.Random) -> None:
    optimizers = [each for each in b.optimizers if isinstance(each, SGD)]
    if optimizers:
        optimizer = rng.choice(optimizers)
        momentum = rng.choice([0.5, 0.9])
        b.say(f"{b.of(optimizer)}: momentum = {momentum}")
        for group in optimizer.param_groups:
            group["momentum"] = momentum


@verb(1)
def schedule(b: Bench, rng: random.Random) -> None:
    if not b.optimizers:
        return
    if not b.schedulers or rng.random() < 0.3:
        optimizer = rng.choice(b.optimizers)
        b.say(f"schedulers += [StepLR({b.of(optimizer)}, 1, 0.8)]")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
        b.schedulers.append((optimizer, scheduler))
    else:
        b.say("scheduler.step()")
        rng.choice(b.schedulers)[1].step()


# --- memory that moves --------------------------------------------------------------------------


@verb(1)
def move_model(b: Bench, rng: random.Random) -> None:
    if not b.models:
        return
    model = rng.choice(b.models)
    how = rng.choice(["cast", "channels_last", "clone", "share"])
    b.say(f"{model.name}: {how} and back")
    if how == "cast":
        other = torch.float32 if b.dtype == torch.float64 else torch.float64
        if other == torch.float32:
            b.world.tolerance = 1e-5
        model.to(other)
        model.to(b.dtype)
    elif how == "channels_last":
        model.to(memory_format=torch.channels_last)
    elif how == "clone":
        for p in model.parameters():
            p.data = p.data.clone()
    else:  # the memory that arrays look at is freed
        b.kept = [kept for kept in b.kept if not kept.label.startswith("array")]
        model.share_memory()


@verb(0.5)
def swap_average(b: Bench, rng: random.Random) -> None:
    """Other values for a while, and back."""
    if not b.models:
        return
    model = rng.choice(b.models)
    parameters = list(model.parameters())
    b.say(f"{model.name}: p.data = p.data * 0.9, a loss, and back")
    values = [p.data for p in parameters]
    for p in parameters:
        p.data = p.data * 0.9
    with torch.no_grad():
        b.world.look("loss", b.world.average(lambda rank: sum(p.sum() for p in parameters)))
    for p, value in zip(parameters, values, strict=True):
        p.data = value


@verb(0.5)
def write_parameters(b: Bench, rng: random.Random) -> None:
    if b.parameters():
        p = rng.choice(b.parameters())
        b.say(f"{b.name(p)} *= 0.9")
        with torch.no_grad():
            p.mul_(0.9)


# --- saving and keeping -------------------------------------------------------------------------


@verb(1.5)
def save(b: Bench, rng: random.Random) -> None:
    """On one rank, or on all."""
    if not b.models:
        return
    model = rng.choice(b.models)
    how = rng.choice(["torch.save", "untyped_storage", "pickle", "deepcopy"])
    rank = rng.choice([0, 0, None])
    if how == "torch.save":
        b.keep("saved", f"torch.save({model.name})", lambda: _save(model.state_dict()), rank)
    elif how == "untyped_storage":
        b.keep("storage", f"{model.name}'s untyped_storage()", lambda: _touch(model), rank)
    elif how == "pickle":
        b.keep("copy", f"pickled {model.name}", lambda: _values(_pickled(model)), rank)
    else:
        b.keep("copy", f"deepcopy({model.name})", lambda: _values(copy.deepcopy(model)), rank)


def _save(value: Any) -> None:
    torch.save(value, io.BytesIO())


def _touch(model: nn.Module) -> None:
    for p in model.parameters():
        p.untyped_storage()


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - ours


def _values(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())


@verb(1)
def hold_model_state(b: Bench, rng: random.Random) -> None:
    if b.models:
        model = rng.choice(b.models)
        b.keep("state", f"{model.name}.state_dict()", model.state_dict, rng.choice([0, None, None]))


@verb(0.5)
def hold_array(b: Bench, rng: random.Random) -> None:
    if b.parameters():
        p = rng.choice(b.parameters())
        b.keep("array", f"{b.name(p)}.detach().numpy()", lambda: p.detach().numpy())


@verb(1)
def hold_optimizer_state(b: Bench, rng: random.Random) -> None:
    optimizers = [each for each in b.optimizers if not isinstance(each, torch.optim.LBFGS)]
    if optimizers:
        optimizer = rng.choice(optimizers)
        rank = rng.choice([b.world.size - 1, None, None])
        line = f"{b.of(optimizer)}.state_dict()"
        # A copy or not: each rank has its own choice.
        b.keep("state", line, lambda: b.world.state_dict_of(optimizer), rank, common=False)


@verb(0.7)
def copy_optimizer(b: Bench, rng: random.Random) -> None:
    optimizers = [each for each in b.optimizers if not isinstance(each, torch.optim.LBFGS)]
    if optimizers:
        optimizer = rng.choice(optimizers)
        line = f"deepcopy({b.of(optimizer)}).state_dict()"
        b.keep("state", line, lambda: copy.deepcopy(optimizer).state_dict())


@verb(1)
def load_model_state(b: Bench, rng: random.Random) -> None:
    """A copy of a state, into the model that it is of."""
    if not b.models:
        return
    model = rng.choice(b.models)
    if model.name in b.saved and b.saved[model.name].keys() == model.state_dict().keys():
        assign = rng.random() < 0.3 and not b.optimizers
        b.say(f"{model.name}.load_state_dict(saved, assign={assign})")
        model.load_state_dict(copy.deepcopy(b.saved[model.name]), assign=assign)
    else:
        b.say(f"saved = deepcopy({model.name}.state_dict())")
        b.saved[model.name] = copy.deepcopy(model.state_dict())


@verb(1)
def reload_optimizer_state(b: Bench, rng: random.Random) -> None:
    """Through a file and, sometimes, another optimizer of the class."""
    optimizers = [each for each in b.optimizers if not isinstance(each, torch.optim.LBFGS)]
    if optimizers:
        optimizer = rng.choice(optimizers)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        b.say(f"{b.of(optimizer)}.load_state_dict(its own, from a file)")
        optimizer.load_state_dict(torch.load(file))


# --- the optimizer's state ----------------------------------------------------------------------


@verb(1)
def touch_state(b: Bench, rng: random.Random) -> None:
    optimizers = [
        each
        for each in b.optimizers
        if not isinstance(each, (torch.optim.LBFGS, Adagrad, torch.optim.NAdam))
    ]
    if not optimizers:
        return
    optimizer = rng.choice(optimizers)
    how = rng.choice(["clear", "pop", "replace", "edit", "set", "set step", "share"])
    b.say(f"{b.of(optimizer)}.state: {how}")
    held = [p for p in parameters_of(optimizer) if p in optimizer.state]
    if how == "clear":
        optimizer.state.clear()
    elif how == "replace":
        optimizer.state = defaultdict(dict)
    elif held:
        p = rng.choice(held)
        state = optimizer.state[p]
        tensors = {
            name: value
            for name, value in state.items()
            if isinstance(value, torch.Tensor) and name != "step"
        }
        if how == "pop":
            optimizer.state.pop(p)
        elif how == "edit":
            for value in tensors.values():
                value.mul_(0.5)
        elif how == "set":
            for name, value in tensors.items():
                state[name] = torch.full_like(value, 0.25)
        elif how == "share":
            for value in tensors.values():
                value.share_memory_()
        elif "step" in state:
            state["step"] = torch.tensor(9.0)


@verb(0.7)
def read_state(b: Bench, rng: random.Random) -> None:
    if b.optimizers:
        optimizer = rng.choice(b.optimizers)
        one = rng.random() < 0.7
        b.say(f"read {b.of(optimizer)}.state" + (" on rank 0" if one else ""))
        if b.world.rank == 0 or not one:
            values = [optimizer.state.get(p, {}) for p in parameters_of(optimizer)]
            b.world.look("state", values, common=not one)


# --- the world ----------------------------------------------------------------------------------


@verb(0.5)
def metric(b: Bench, rng: random.Random) -> None:
    value = rng.random()
    b.say("allreduce of a metric")
    b.world.look("metric", b.world.average(lambda rank: torch.tensor([value + rank])))


@verb(0.5)
def broadcast(b: Bench, rng: random.Random) -> None:
    if b.models and rng.random() < 0.6:
        model = rng.choice(b.models)
        b.say(f"broadcast_parameters({model.name}.state_dict())")
        b.world.broadcast_parameters(model.state_dict())
    elif b.optimizers and not isinstance(b.optimizers[0], torch.optim.LBFGS):
        b.say("broadcast_optimizer_state(optimizers[0])")
        b.world.broadcast_optimizer_state(b.optimizers[0])


@verb(0.3)
def fork(b: Bench, rng: random.Random) -> None:
    parameters = b.trainable()
    if not parameters:
        return
    b.say("a forked child runs backward")
    child = os.fork()
    if child == 0:
        try:
            sum((p * 100).sum() for p in parameters).backward()
        finally:
            os._exit(0)
    b.world.look("child", wait_for_child(child))


@verb(0.3)
def restart(b: Bench, rng: random.Random) -> None:
    b.drop_all()
    b.say("shutdown(), init()")
    b.world.restart()
    wrap(b, rng)
