"""Random programs on parameter servers, beside plain torch in one process that sees the joined
batch. What only servers have (ps.Embedding, ps.Layer) is there torch's own module, whose optimizer
steps when the model's does.

A program runs in a process of its own on each rank, with servers of its own: they hold one model.
"""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from bench import KINDS
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from world import Mode, World, parameters_of, run

import ciranda.torch as hvd
from ciranda.torch import ps

ROWS, COLUMNS, WIDTH = 20, 3, 4

CLASSES: list[tuple[Any, dict[str, Any]]] = [
    (SGD, {"lr": 0.02}),
    (SGD, {"lr": 0.02, "momentum": 0.9}),
    (SGD, {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (SGD, {"lr": 0.02, "momentum": 0.5, "dampening": 0.3, "maximize": True}),
    (Adam, {"lr": 0.05}),
    (Adam, {"lr": 0.05, "amsgrad": True, "weight_decay": 0.01}),
    (AdamW, {"lr": 0.05}),
    (Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1, "lr_decay": 0.01}),
    (RMSprop, {"lr": 0.02}),
    (RMSprop, {"lr": 0.02, "momentum": 0.5, "centered": True}),
]
OF_WORKERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.NAdam, {"lr": 0.05}),
    (torch.optim.Adamax, {"lr": 0.05}),
]


@dataclass(frozen=True)
class Served:
    """A mode of the machine."""

    mode: str  # of ciranda.torch.ps
    update_on: str = "server"

    def native(self) -> Any:
        made: dict[str, Callable[[], Any]] = {
            "async": ps.Async,
            "sync": ps.Sync,
            "ssp": lambda: ps.SSP(0),
            "downpour": ps.Downpour,
        }
        mode = made[self.mode]()
        return mode if self.update_on == "server" else replace(mode, update_on=self.update_on)


MODES = {
    "async": Served("async"),
    "sync": Served("sync"),
    "ssp": Served("ssp"),
    "downpour": Served("downpour"),
    "worker": Served("async", "worker"),
}
PLACES = [
    ("async", 1),
    ("sync", 1),
    ("ssp", 1),
    ("downpour", 1),
    ("worker", 1),
    ("sync", 2),
    ("sync", 3),
]

Verb = Callable[["Bench", random.Random], None]
VERBS: dict[str, tuple[Verb, float]] = {}


def verb(weight: float = 1.0) -> Callable[[Verb], Verb]:
    def register(made: Verb) -> Verb:
        VERBS[made.__name__] = (made, weight)
        return made

    return register


@dataclass(frozen=True)
class ServedProgram:
    seed: int
    actions: tuple[tuple[str, int], ...]

    def __call__(self, world: World) -> None:
        self._run(Bench(world, self.seed))

    def _run(self, bench: Bench) -> None:
        bench.look()
        for name, salt in self.actions:
            bench.world.doing = name
            VERBS[name][0](bench, random.Random(salt))
            bench.look()
        bench.world.doing = "the end"
        bench.look_at_state()

    def text(self, size: int, mode: Mode) -> str:
        """As a numbered script; of the run in plain torch."""
        world = PlainTorch(0, size, 1, mode)
        bench = Bench(world, self.seed)
        outcome = run(lambda _: self._run(bench), world)
        lines = [f"seed {self.seed}, {size} workers, {mode}"]
        lines += [f"{number:3}  {line}" for number, line in enumerate(bench.lines, 1)]
        if outcome.error is not None:
            lines.append(f"     raises {outcome.said}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {"seed": self.seed, "actions": self.actions}


def draw(seed: int, without: frozenset[str] = frozenset()) -> ServedProgram:
    rng = random.Random(f"served {seed}")
    verbs = [name for name in VERBS if name not in without]
    chosen = rng.choices(verbs, [VERBS[name][1] for name in verbs], k=rng.randint(4, 20))
    return ServedProgram(seed, tuple((name, rng.randrange(2**31)) for name in chosen))


# --- worlds -------------------------------------------------------------------------------------


class Workers(World):
    """ciranda, on this worker."""

    is_reference = False

    def loss(self, of_rank: Any, *, total: bool = False) -> torch.Tensor:
        return of_rank(self.rank)  # type: ignore[no-any-return]

    def table(self, lr: float, kind: str, number: int) -> nn.Module:
        return ps.Embedding(ROWS, COLUMNS, lr=lr, optimizer=kind, seed=number)  # type: ignore[arg-type]

    def layer(self, make: Callable[[], nn.Module], lr: float) -> nn.Module:
        return ps.Layer(make, lr=lr)

    def distribute(self, optimizer: Any, named: Any = None, **options: Any) -> Any:
        served = MODES[str(self.mode)]
        options |= {"ps": served.native()}
        return hvd.DistributedOptimizer(optimizer, named, **options)

    def own_steps(self, optimizer: Any, own: list[Any]) -> None:
        pass

    def set_rate(self, module: Any, lr: float) -> None:
        module.lr = lr

    def rows_of(self, table: Any) -> torch.Tensor:
        with torch.no_grad():
            return table(torch.arange(ROWS))  # type: ignore[no-any-return]

    def broadcast_parameters(self, state: Any) -> None:
        hvd.broadcast_parameters(state, root_rank=0)

    def broadcast_optimizer_state(self, optimizer: Any) -> None:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)


class PlainTorch(World):
    """One process that sees the joined batch."""

    is_reference = True

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        self._own: dict[nn.Module, Any] = {}

    def loss(self, of_rank: Any, *, total: bool = False) -> torch.Tensor:
        return torch.stack([of_rank(rank) for rank in range(self.size)]).sum() / self.size

    def table(self, lr: float, kind: str, number: int) -> nn.Module:
        made = nn.Embedding(ROWS, COLUMNS, sparse=True)
        with torch.no_grad():
            made.weight.copy_(first_rows(number))
        self._own[made] = {"sgd": SGD, "adagrad": Adagrad}[kind](made.parameters(), lr=lr)
        return made

    def layer(self, make: Callable[[], nn.Module], lr: float) -> nn.Module:
        made = make()
        self._own[made] = SGD(made.parameters(), lr=lr)
        return made

    def distribute(
        self, optimizer: Any, named: Any = None, max_grad_norm: float | None = None
    ) -> Any:
        held = parameters_of(optimizer)
        own = {id(p) for module in self._own for p in module.parameters()}
        hidden: list[tuple[Any, Any]] = []
        for parameter in held:
            if id(parameter) in own:
                optimizer.state.pop(parameter, None)

        def before(*_: Any) -> None:
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(held, max_grad_norm)
            hidden[:] = [(p, p.grad) for p in held if id(p) in own]
            for p, _grad in hidden:
                p.grad = None

        def after(*_: Any) -> None:
            for p, grad in hidden:
                p.grad = grad
            for each in self._own.values():
                each.step()

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)
        return optimizer

    def set_rate(self, module: Any, lr: float) -> None:
        self._own[module].param_groups[0]["lr"] = lr

    def rows_of(self, table: Any) -> torch.Tensor:
        return table.weight.detach()  # type: ignore[no-any-return]

    def broadcast_parameters(self, state: Any) -> None:
        pass

    def broadcast_optimizer_state(self, optimizer: Any) -> None:
        pass


FIRST_ROWS: dict[int, torch.Tensor] = {}  # by number; what the servers began with


def first_rows(number: int) -> torch.Tensor:
    return FIRST_ROWS.get(number, torch.zeros(ROWS, COLUMNS))


# --- what a program works on --------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, kinds: list[str]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(len(kinds))
        for number, kind in enumerate(kinds):
            value = KINDS[kind](generator=generator, dtype=torch.float64)
            self.register_parameter(f"p{number}", nn.Parameter(value))
        self.tables = nn.ModuleList()
        self.layers = nn.ModuleList()


def make_layer() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


class Bench:
    def __init__(self, world: Any, seed: int) -> None:
        rng = random.Random(f"served bench {seed}")
        self.world = world
        self.alone = world.size == 1
        self.served = MODES[str(world.mode)]
        self.lines: list[str] = []
        self.held: list[tuple[str, Any]] = []
        self.scheduler: Any = None
        self.graph: Any = None
        kinds = rng.choices(list(KINDS), k=rng.choice([0, 1, 2, 3, 4, 6]))
        self.net = Net(kinds)
        tables = rng.choice([0, 0, 0, 1, 2]) if kinds else rng.choice([1, 2])
        tables = tables if self.alone else 0  # in rounds rows are updated at once
        for number in range(tables):
            kind, lr = rng.choice(["sgd", "adagrad"]), rng.choice([0.1, 0.5])
            self.say(f"table {number} by {kind}, lr={lr}")
            self.net.tables.append(world.table(lr, kind, number))
        has_layer = rng.random() < 0.25 and self.served.mode == "async"
        if has_layer:
            self.net.layers.append(world.layer(make_layer, 0.1))
        if tables or has_layer:
            world.tolerance = 1e-5
        else:
            world.tolerance = 1e-12
        self._wrap(rng, kinds, has_layer)
        if not world.is_reference:
            for number, table in enumerate(self.net.tables):
                FIRST_ROWS[number] = world.rows_of(table).clone()

    def _wrap(self, rng: random.Random, kinds: list[str], has_layer: bool) -> None:
        classes = CLASSES + (OF_WORKERS if self.served.update_on == "worker" else [])
        if self.served.mode == "downpour":  # between pushes it makes steps of plain SGD
            classes = [(SGD, {"lr": 0.02}), *CLASSES[4:7]]
        make, options = rng.choice(classes)
        options = dict(options)
        own = {id(p) for p in self.net.layers.parameters()}  # one, in place of all
        parameters = [p for p in self.net.parameters() if id(p) not in own]
        fused = rng.random() < 0.15 and make in (SGD, Adam, AdamW) and not self.net.tables
        if fused and not has_layer and self.served.update_on == "server":
            # Torch's own misreads gradients of other strides, and makes momentum's buffers of what
            # was in memory where a GradScaler skips the first step.
            options["fused"] = not self.world.is_reference
        groups: list[Any] = [{"params": parameters}]
        how = rng.choice(["one", "two", "each"])
        if how == "two" and len(parameters) > 1:
            groups = [{"params": parameters[1:], "lr": 0.01}, {"params": parameters[:1]}]
        elif how == "each" and parameters:
            groups = [
                {"params": [p], "lr": rng.choice([0.01, 0.03]), "weight_decay": 0.01 * (i % 2)}
                for i, p in enumerate(parameters)
            ]
        groups[0]["params"] = [*groups[0]["params"], *self.net.layers.parameters()]
        more: dict[str, Any] = {}
        if rng.random() < 0.2 and self.alone and not has_layer:
            more["max_grad_norm"] = 0.7
        named = list(self.net.named_parameters()) if rng.random() < 0.7 else None
        self.say(f"{make.__name__}({how} of {kinds}, {options}), {more}")
        optimizer = make(groups, **options)
        self.clips_itself = bool(more)
        self.optimizer = self.world.distribute(optimizer, named, **more)
        self.takes_momentum = make is SGD and not options.get("nesterov")
        self.takes_momentum = self.takes_momentum and not options.get("dampening")

    def say(self, line: str) -> None:
        self.lines.append(line)

    def dense(self) -> list[tuple[str, nn.Parameter]]:
        return [(n, p) for n, p in self.net.named_parameters() if n.startswith("p")]

    def weights(self) -> list[tuple[str, Any]]:
        return [*self.dense(), *((f"table{i}", t.weight) for i, t in enumerate(self.net.tables))]

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [(n, p) for n, p in self.dense() if p.requires_grad]

    def with_gradient(self) -> list[tuple[str, nn.Parameter]]:
        return [(n, p) for n, p in self.dense() if p.grad is not None]

    # --- losses ---

    def loss(self, rng: random.Random, layer: bool = False) -> torch.Tensor | None:
        trainable = self.trainable()
        used = [trainable] * self.world.size
        if rng.random() < 0.3 and trainable:
            used = [rng.sample(trainable, rng.randint(1, len(trainable))) for _ in used]
        tables = [t for t in self.net.tables if t.weight.requires_grad and rng.random() < 0.8]
        salt = rng.randrange(2**31)
        layers = list(self.net.layers) if layer else []
        if not trainable and not tables and not layers:
            return None
        self.say(f"loss of {[n for n, _ in used[0]]}, {len(tables)} tables, {len(layers)} layers")

        def of_rank(rank: int) -> torch.Tensor:
            terms = [_term(p, salt + 1009 * rank + i) for i, (_, p) in enumerate(used[rank])]
            generator = torch.Generator().manual_seed(salt + rank)
            for table in tables:
                ids = torch.randint(ROWS, (3, 2), generator=generator)
                terms += [(table(ids) - 1).square().mean().double()]
                if salt % 2:
                    terms += [table(ids[0]).sum().double() * 0.1]
            for each in layers:
                terms += [each(torch.ones(2, WIDTH)).square().sum().double() * 0.1]
            return torch.stack(terms).sum()

        return self.world.loss(of_rank)  # type: ignore[no-any-return]

    def zero(self, rng: random.Random) -> None:
        to_none = rng.random() < 0.6
        if rng.random() < 0.5:
            self.say(f"optimizer.zero_grad(set_to_none={to_none})")
            self.optimizer.zero_grad(set_to_none=to_none)
        else:
            self.say(f"net.zero_grad(set_to_none={to_none})")
            self.net.zero_grad(set_to_none=to_none)

    def step(self) -> None:
        self.say("optimizer.step()")
        self.optimizer.step()
        if self.clips_itself:  # what p.grad is then, is nothing of plain torch's
            self.optimizer.zero_grad()
        self.forget_layers()

    def forget_layers(self) -> None:
        """Nothing is left of a layer's gradients: see ps.Layer."""
        for each in self.net.layers:
            each.zero_grad()

    # --- looking ---

    def look(self) -> None:
        for name, p in self.dense():
            self.world.look(name, p)
            self.world.look(f"{name}.grad", _strided(p.grad), self.alone, False)
        for number, table in enumerate(self.net.tables):
            self.world.look(f"rows of table {number}", self.world.rows_of(table))
            gradient = table.weight.grad
            if gradient is not None and gradient._nnz() == 0:
                gradient = None  # zero_grad() of our optimizer drops it
            self.world.look(f"gradient of table {number}", _strided(gradient), self.alone, False)
        for each in self.net.layers:
            state = {name: value.clone() for name, value in each.state_dict().items()}
            self.world.look("layer", state)
        for label, value in self.held:
            self.world.look(label, value, self.alone, False)
        if self.clips_itself and not self.world.is_reference:
            float(self.optimizer.grad_norm)

    def look_at_state(self) -> None:
        if len(self.net.layers):
            return  # has other numbers of parameters
        state = self.optimizer.state_dict()
        groups = [{**group, "fused": None} for group in state["param_groups"]]  # see _wrap()
        begun = {  # that momentum of no elements has begun means nothing
            number: values
            for number, values in state["state"].items()
            if set(values) != {"momentum_buffer"} or values["momentum_buffer"].numel() > 0
        }
        state = {"state": begun, "param_groups": groups}
        if self.served.mode == "downpour":
            state = {"param_groups": state["param_groups"]}
        self.world.look("state_dict()", state)


def _strided(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _term(p: torch.Tensor, salt: int) -> torch.Tensor:
    """Its gradient depends on the parameter, the rank and the moment, and is not near 0."""
    generator = torch.Generator().manual_seed(salt)
    slope = 1 + torch.rand(p.shape, generator=generator, dtype=p.dtype)
    return (slope * p).sum() + 0.1 * (p + 5).square().sum()


# --- verbs --------------------------------------------------------------------------------------


@verb(10)
def train(b: Bench, rng: random.Random) -> None:
    b.zero(rng)
    loss = b.loss(rng, layer=rng.random() < 0.7)
    if loss is not None:
        b.say("loss.backward()")
        loss.backward()
        b.step()


@verb(5)
def backward(b: Bench, rng: random.Random) -> None:
    loss = b.loss(rng)
    if loss is not None:
        b.say("loss.backward()")
        loss.backward()


@verb(5)
def step(b: Bench, rng: random.Random) -> None:
    b.step()


@verb(3)
def zero_grad(b: Bench, rng: random.Random) -> None:
    b.zero(rng)


@verb(2)
def two_losses(b: Bench, rng: random.Random) -> None:
    """Of one forward pass."""
    first, second = b.loss(rng), b.loss(rng)
    if first is None or second is None:
        return
    shared = first + second
    b.say("(shared * 2).backward(retain_graph=True); (shared + first).backward()")
    (shared * 2).backward(retain_graph=True)
    (shared + first).backward()


@verb(1.5)
def discards_a_batch(b: Bench, rng: random.Random) -> None:
    backward(b, rng)
    b.zero(rng)
    b.step()


@verb(1.5)
def freeze(b: Bench, rng: random.Random) -> None:
    weights = b.weights()
    if weights:
        name, p = rng.choice(weights)
        b.say(f"{name}.requires_grad_({not p.requires_grad})")
        p.requires_grad_(not p.requires_grad)


@verb(1)
def unfreeze_all(b: Bench, rng: random.Random) -> None:
    b.say("net.requires_grad_(True)")
    b.net.requires_grad_(True)


@verb(1.5)
def clip(b: Bench, rng: random.Random) -> None:
    if not b.alone:
        return
    if rng.random() < 0.7:
        b.say("clip_grad_norm_(1.0)")
        b.world.look("norm", nn.utils.clip_grad_norm_(b.net.parameters(), 1.0))
    elif b.with_gradient():
        b.say("clip_grad_value_(0.9)")
        nn.utils.clip_grad_value_([p for _, p in b.dense()], 0.9)


@verb(1)
def scale_gradients(b: Bench, rng: random.Random) -> None:
    b.say("grad.mul_(0.5) for all")
    for _, p in b.weights():
        if p.grad is not None:
            p.grad.mul_(0.5)


@verb(0.7)
def grad_to_none(b: Bench, rng: random.Random) -> None:
    held = [(n, p) for n, p in b.weights() if p.requires_grad]  # rows' are not dense ones here
    if held and b.alone:
        name, p = rng.choice(held)
        b.say(f"{name}.grad = None")
        p.grad = None


@verb(1)
def grad_by_hand(b: Bench, rng: random.Random) -> None:
    if b.trainable() and b.alone:
        name, p = rng.choice(b.trainable())
        b.say(f"{name}.grad = a tensor of its own")
        generator = torch.Generator().manual_seed(rng.randrange(2**31))
        value = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        p.grad = value.t().contiguous().t() if rng.random() < 0.5 and p.dim() == 2 else value


@verb(0.5)
def swap_gradients(b: Bench, rng: random.Random) -> None:
    held = b.with_gradient()
    pairs = [(x, y) for x in held for y in held if x[1] is not y[1] and x[1].shape == y[1].shape]
    if pairs and b.alone:
        (left, p), (right, q) = rng.choice(pairs)
        b.say(f"swap the grads of {left} and {right}")
        p.grad, q.grad = q.grad, p.grad


@verb(0.5)
def grad_data(b: Bench, rng: random.Random) -> None:
    if b.alone and b.with_gradient():
        name, p = rng.choice(b.with_gradient())
        b.say(f"{name}.grad.data = 2 * grad")
        assert p.grad is not None
        p.grad.data = p.grad.data * 2


@verb(1)
def hold_gradient(b: Bench, rng: random.Random) -> None:
    if b.alone and b.with_gradient() and not b.clips_itself:  # a step leaves p.grad as it was
        name, p = rng.choice(b.with_gradient())
        b.say(f"keep {name}.grad")
        b.held.append((f"kept {name}.grad", p.grad))


@verb(1)
def change_lr(b: Bench, rng: random.Random) -> None:
    group = rng.randrange(len(b.optimizer.param_groups))
    b.say(f"param_groups[{group}]['lr'] *= 0.7")
    b.optimizer.param_groups[group]["lr"] *= 0.7
    if len(b.net.tables):
        lr = rng.choice([0.2, 0.3])
        b.say(f"table 0: lr = {lr}")
        b.world.set_rate(b.net.tables[0], lr)


@verb(1)
def change_options(b: Bench, rng: random.Random) -> None:
    group = rng.choice(b.optimizer.param_groups)
    name, value = rng.choice([("weight_decay", 0.02), ("maximize", True), ("momentum", 0.0)])
    if name == "momentum":
        if not b.takes_momentum:
            return
        value = rng.choice([0.0, 0.5, 0.8])
    if name in group:
        b.say(f"{name} = {value} in a group")
        group[name] = value


@verb(1)
def schedule(b: Bench, rng: random.Random) -> None:
    if b.scheduler is None:
        b.say("scheduler = StepLR(optimizer, 1, 0.8)")
        b.scheduler = torch.optim.lr_scheduler.StepLR(b.optimizer, 1, 0.8)
    else:
        b.say("scheduler.step()")
        b.scheduler.step()


@verb(2)
def scaled_step(b: Bench, rng: random.Random) -> None:
    if len(b.net.layers):
        return
    if b.clips_itself and "fused" in str(b.lines[:6]):
        return
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    b.zero(rng)
    loss = b.loss(rng)
    if loss is None or b.clips_itself:
        return
    if b.alone and rng.random() < 0.3:
        b.say("loss *= inf")
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    if rng.random() < 0.5:
        b.say("scaler.unscale_()")
        scaler.unscale_(b.optimizer)
        if b.alone and rng.random() < 0.5:
            nn.utils.clip_grad_norm_(b.net.parameters(), 0.5)
    b.say("scaler.step(optimizer), zero_grad()")
    scaler.step(b.optimizer)
    scaler.update()
    b.world.look("scale", scaler.get_scale())
    b.optimizer.zero_grad()


@verb(1)
def step_with_closure(b: Bench, rng: random.Random) -> None:
    if b.clips_itself:
        return
    salt = rng.random()

    def closure() -> torch.Tensor | None:
        b.optimizer.zero_grad()
        loss = b.loss(random.Random(salt))
        if loss is not None:
            loss.backward()
        return loss

    b.say("optimizer.step(closure) with")
    if b.world.is_reference:  # whose hooks run before a closure
        closure()
        b.optimizer.step()
    else:
        b.optimizer.step(closure)
    b.forget_layers()


@verb(1)
def save(b: Bench, rng: random.Random) -> None:
    how = rng.choice(["torch.save", "state_dict", "deepcopy"])
    b.say(how)
    state = {name: value for name, value in b.net.state_dict().items() if name.startswith("p")}
    if how == "torch.save":
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        b.world.look("loaded", torch.load(file))
    elif how == "state_dict":
        b.look_at_state()
    elif not len(b.net.tables) and not len(b.net.layers):
        b.held.append(("copy", dict(copy.deepcopy(b.net).named_parameters())))


@verb(0.7)
def hook(b: Bench, rng: random.Random) -> None:
    if b.trainable():
        name, p = rng.choice(b.trainable())
        b.say(f"{name}.register_hook(lambda grad: grad * 1.5)")
        p.register_hook(lambda grad: grad * 1.5)


@verb(0.7)
def broadcast(b: Bench, rng: random.Random) -> None:
    b.say("broadcast_parameters(), broadcast_optimizer_state()")
    b.world.broadcast_parameters(b.net.state_dict())
    b.world.broadcast_optimizer_state(b.optimizer)


@verb(0.5)
def watch(b: Bench, rng: random.Random) -> None:
    b.say("a profiler")
    with torch.autograd.profiler.profile():
        train(b, rng)


def program_of(value: Any) -> ServedProgram:
    return ServedProgram(value["seed"], tuple((verb, salt) for verb, salt in value["actions"]))
