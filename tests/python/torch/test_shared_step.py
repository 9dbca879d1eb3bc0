"""The step that the ranks of a host share: breaks when it is not the optimizer's own any more."""

from __future__ import annotations

import copy
import io
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rank_checks import on_ranks
from sharing import any_size
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import ciranda.torch as hvd
from ciranda.errors import MismatchError

Make = Callable[[Any], torch.optim.Optimizer]

SGD: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01},
    {"momentum": 0.9, "nesterov": True, "maximize": True},
]
ADAM: list[dict[str, Any]] = [
    {},
    {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.02},
    {"amsgrad": True, "maximize": True},
]
RULES: list[tuple[type[torch.optim.Optimizer], list[dict[str, Any]]]] = [
    (torch.optim.SGD, SGD),
    (torch.optim.Adam, ADAM),
    (torch.optim.AdamW, ADAM),
    (
        torch.optim.Adagrad,
        [{}, {"lr_decay": 0.01, "weight_decay": 0.01, "initial_accumulator_value": 0.5}],
    ),
    (
        torch.optim.RMSprop,
        [
            {},
            {"alpha": 0.9, "momentum": 0.8, "centered": True, "weight_decay": 0.01},
            {"maximize": True, "momentum": 0.5},
        ],
    ),
    (hvd.optim.Lion, [{}, {"betas": (0.8, 0.95), "weight_decay": 0.02, "maximize": True}]),
]


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.Linear(33, 7), nn.Linear(7, 3)).to(dtype)


def batch(step: int, rank: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(6, 20, generator=generator).to(dtype)


class Pair:
    """A model under a shared step, and its copy under the plain optimizer."""

    def __init__(
        self,
        make: Make,
        shared_step: Any = "host",
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> None:
        self.dtype = dtype
        self.model = make_model(dtype)
        self.alone = copy.deepcopy(self.model)
        self.alone_optimizer = make(self.alone.parameters())
        with any_size():
            self.optimizer = hvd.DistributedOptimizer(
                make(self.model.parameters()),
                self.model.named_parameters(),
                shared_step=shared_step,
                **options,
            )
        assert self.optimizer._ciranda_shared_step is not None
        self.steps = 0

    def backward(self, *, same: bool = True) -> None:
        """With `same` every rank has the same batch: the mean is exact for 2^n ranks."""
        self.steps += 1
        rank = 0 if same else hvd.rank()
        self.model(batch(self.steps, rank, self.dtype)).square().mean().backward()
        for other in range(1 if same else hvd.size()):
            loss = self.alone(batch(self.steps, other, self.dtype)).square().mean()
            (loss / (1 if same else hvd.size())).backward()

    def step(self, *, same: bool = True) -> None:
        self.optimizer.zero_grad()
        self.alone_optimizer.zero_grad()
        self.backward(same=same)
        self.optimizer.step()
        self.alone_optimizer.step()

    def check(self, rtol: float = 1e-6, atol: float = 1e-7) -> None:
        for (name, ours), theirs in zip(
            self.model.named_parameters(), self.alone.parameters(), strict=True
        ):
            torch.testing.assert_close(
                ours, theirs, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
            )


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@on_ranks(2)
def test_every_rule_is_torchs() -> None:
    for optimizer, option_sets in RULES:
        for options, shared_step in itertools.product(option_sets, ("host", "auto")):
            lr = -1e-3 if options.get("maximize") else 1e-3

            def make(
                parameters: Any, optimizer: Any = optimizer, options: Any = options, lr: float = lr
            ) -> torch.optim.Optimizer:
                return optimizer(parameters, lr=abs(lr), **options)

            pair = Pair(make, shared_step)
            for _ in range(100):
                pair.step()
            pair.check()


@on_ranks(2)
def test_halves() -> None:
    # Not Adam with float16: its squares vanish there, in torch too.
    def adamw(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.01, fused=True)

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

    class RoundedSgd(torch.optim.SGD):
        """In float32, rounded where it is stored, as torch's fused kernels do since 2.15."""

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                momentum = parameter.grad.float()
                if parameter in self.state:
                    momentum = 0.9 * self.state[parameter]["m"].float() + momentum
                self.state[parameter]["m"] = momentum.to(parameter.dtype)
                parameter.copy_((parameter.float() - 0.01 * momentum).to(parameter.dtype))

    for dtype in (torch.bfloat16, torch.float16):
        pair = Pair(sgd, dtype=dtype)
        pair.alone_optimizer = RoundedSgd(pair.alone.parameters(), lr=0.01)
        for _ in range(20):
            pair.step()
        pair.check(rtol=0, atol=0)
    pair = Pair(adamw, dtype=torch.bfloat16)
    for _ in range(20):
        pair.step()
    pair.check(rtol=0, atol=0.02)


@on_ranks(2, 3, 4)
def test_ranks_with_batches_of_their_own() -> None:
    for make, shared_step in itertools.product((adam, momentum), ("host", "auto")):
        pair = Pair(make, shared_step, bucket_bytes=2000)
        for _ in range(20):
            pair.step(same=False)
        pair.check(rtol=1e-4, atol=1e-6)
        gathered = hvd.allgather(
            torch.cat([p.detach().flatten() for p in pair.model.parameters()])[None]
        )
        assert bool((gathered == gathered[0]).all())


@on_ranks(2)
def test_what_p_grad_holds() -> None:
    for shared_step in ("auto", "host"):
        pair = Pair(adam, shared_step)
        pair.step(same=False)
        pair.optimizer.zero_grad()
        pair.alone_optimizer.zero_grad()
        pair.backward(same=False)
        own = copy.deepcopy(make_model())
        own.load_state_dict(pair.model.state_dict())
        own(batch(pair.steps, hvd.rank())).square().mean().backward()
        expected = pair.alone if shared_step == "auto" else own
        for synchronized in (False, True):
            for ours, theirs in zip(pair.model.parameters(), expected.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
            if not synchronized:
                pair.optimizer.synchronize()
                expected = pair.alone
        pair.optimizer.step()
        pair.alone_optimizer.step()
        for ours, theirs in zip(pair.model.parameters(), pair.alone.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
        pair.check(rtol=1e-4, atol=1e-6)


@on_ranks(2)
def test_clipping_between_synchronize_and_step() -> None:
    for shared_step in ("auto", "host"):
        pair = Pair(momentum, shared_step)
        for _ in range(5):
            pair.optimizer.zero_grad()
            pair.alone_optimizer.zero_grad()
            pair.backward(same=False)
            pair.optimizer.synchronize()
            for model in (pair.model, pair.alone):
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            with pair.optimizer.skip_synchronize():
                pair.optimizer.step()
            pair.alone_optimizer.step()
        pair.check(rtol=1e-4, atol=1e-6)


@on_ranks(2)
def test_accumulation_groups_schedulers_and_new_groups() -> None:
    def groups(model: nn.Sequential) -> list[dict[str, Any]]:
        return [
            {"params": list(model[0].parameters()), "lr": 0.02},
            {"params": list(model[2].parameters()), "weight_decay": 0.1},
        ]

    for shared_step in ("auto", "host"):
        model = make_model()
        alone = copy.deepcopy(model)
        plain = torch.optim.Adam(groups(alone), lr=0.01)
        with any_size():
            ours = hvd.DistributedOptimizer(
                torch.optim.Adam(groups(model), lr=0.01),
                model.named_parameters(),
                backward_passes_per_step=2,
                shared_step=shared_step,
            )
        schedulers = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (ours, plain)]
        for step in range(8):
            if step == 3:
                ours.add_param_group({"params": list(model[3].parameters())})
                plain.add_param_group({"params": list(alone[3].parameters())})
            for optimizer in (ours, plain):
                optimizer.zero_grad()
            for part in range(2):
                for net in (model, alone):
                    net(batch(2 * step + part)).square().mean().backward()
            for optimizer, scheduler in zip((ours, plain), schedulers, strict=True):
                optimizer.step()
                scheduler.step()
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@on_ranks(2)
def test_a_learning_rate_that_is_a_tensor() -> None:
    pair = Pair(lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), fused=True))
    for step in range(4):
        for optimizer in (pair.optimizer, pair.alone_optimizer):
            optimizer.param_groups[0]["lr"].fill_(0.01 / (1 + step))
        pair.step()
    pair.check()


@on_ranks(2)
def test_unused_and_frozen_parameters() -> None:
    for shared_step in ("auto", "host"):
        pair = Pair(adam, shared_step)
        spare = [p for p in pair.model[3].parameters()]
        for step in range(6):
            pair.optimizer.zero_grad()
            pair.alone_optimizer.zero_grad()
            use_last = step % 3 == 0
            for net, rank in ((pair.model, hvd.rank()), (pair.alone, None)):
                # rank 1 uses the last layer in no step, rank 0 in some
                ranks = range(2) if rank is None else [rank]
                for r in ranks:
                    hidden = net[2](torch.tanh(net[0](batch(step, r))))
                    loss = hidden.square().mean()
                    if use_last and r == 0:
                        loss = loss + net[3](hidden).square().mean()
                    (loss / (2 if rank is None else 1)).backward()
            pair.optimizer.step()
            pair.alone_optimizer.step()
        pair.check(rtol=1e-4, atol=1e-6)
        assert all(float(pair.optimizer.state[p]["step"]) == 2 for p in spare)


@on_ranks(2)
def test_the_state_is_torchs_and_exists_once() -> None:
    for optimizer, option_sets in RULES:
        for options in option_sets:
            pair = Pair(lambda p, o=optimizer, k=options: o(p, lr=0.001, **k))
            before = pair.optimizer.state_dict()
            assert before.keys() == pair.alone_optimizer.state_dict().keys()
            for _ in range(3):
                pair.step()
            # no collective: a rank alone may ask
            if hvd.rank() == 0:
                ours, theirs = pair.optimizer.state_dict(), pair.alone_optimizer.state_dict()
                assert ours["param_groups"] == theirs["param_groups"]
                assert ours["state"].keys() == theirs["state"].keys()
                for number, entry in theirs["state"].items():
                    known = {k: v for k, v in entry.items() if v is not None}
                    assert ours["state"][number].keys() == known.keys()
                    for name, value in known.items():
                        torch.testing.assert_close(
                            ours["state"][number][name], value, rtol=1e-4, atol=1e-5
                        )


@on_ranks(2)
def test_saving_and_loading() -> None:
    pair = Pair(adam)
    for _ in range(3):
        pair.step()
    file = io.BytesIO()
    torch.save(pair.optimizer.state_dict(), file)
    weights = copy.deepcopy(pair.model.state_dict())
    for _ in range(3):
        pair.step()
    after = [p.detach().clone() for p in pair.model.parameters()]

    def again(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        model.load_state_dict(weights)
        file.seek(0)
        optimizer.load_state_dict(torch.load(file))
        go_on(optimizer, model)

    def go_on(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        for step in range(4, 7):
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizer.step()
        for ours, theirs in zip(model.parameters(), after, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)

    again(pair.optimizer, pair.model)  # the same one
    fresh = Pair(adam)
    again(fresh.optimizer, fresh.model)  # before its first step
    plain = make_model()
    again(adam(plain.parameters()), plain)  # torch's own
    copied = copy.deepcopy(pair.optimizer)
    assert type(copied) is torch.optim.Adam
    # An optimizer that had state before it was wrapped keeps it.
    old = make_model()
    old_optimizer = adam(old.parameters())
    file.seek(0)
    old_optimizer.load_state_dict(torch.load(file))
    with any_size():
        wrapped = hvd.DistributedOptimizer(
            old_optimizer, old.named_parameters(), shared_step="host"
        )
    old.load_state_dict(weights)
    go_on(wrapped, old)


@on_ranks(2)
def test_broadcast_of_the_state() -> None:
    model = make_model()
    optimizer = adam(model.parameters())
    if hvd.rank() == 0:
        for step in range(3):
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizer.step()
    alone, alone_optimizer = copy.deepcopy(model), None
    if hvd.rank() == 0:
        alone_optimizer = adam(alone.parameters())
        alone_optimizer.load_state_dict(optimizer.state_dict())
    with any_size():
        optimizer = hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), shared_step="host"
        )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(3, 6):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
        if alone_optimizer is not None:
            alone_optimizer.zero_grad()
            alone(batch(step)).square().mean().backward()
            alone_optimizer.step()
    if hvd.rank() == 0:
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    gathered = hvd.allgather(model[0].weight.detach()[None])
    assert bool((gathered == gathered[0]).all())


@on_ranks(2)
def test_closures_hooks_and_loss_scaling() -> None:
    pair = Pair(momentum)
    called: list[str] = []
    pair.optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: called.append(f"before {len(args)} {args[0] is optimizer}")
    )
    pair.optimizer.register_step_post_hook(lambda *_: called.append("after"))

    def closure() -> torch.Tensor:
        pair.optimizer.zero_grad()
        loss = pair.model(batch(1)).square().mean()
        loss.backward()
        return loss.detach()

    assert float(pair.optimizer.step(closure)) > 0
    assert called == ["before 2 True", "after"]

    for shared_step, fused in itertools.product(("auto", "host"), (True, False)):
        pair = Pair(lambda p, fused=fused: torch.optim.Adam(p, lr=0.01, fused=fused), shared_step)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
        for step in range(6):
            pair.optimizer.zero_grad()
            pair.alone_optimizer.zero_grad()
            pair.steps += 1
            images = batch(pair.steps)
            if step == 3 and hvd.rank() == 1:
                images = images * float("inf")  # one rank alone: all skip
            scaler.scale(pair.model(images).square().mean()).backward()
            if step == 4:
                pair.optimizer.synchronize()
                scaler.unscale_(pair.optimizer)
            scaler.step(pair.optimizer)
            scaler.update()
            if step != 3:
                pair.alone(batch(pair.steps)).square().mean().backward()
                pair.alone_optimizer.step()
        assert scaler.get_scale() == 512.0
        pair.check(rtol=1e-5, atol=1e-6)


@on_ranks(2)
def test_profilers_and_hooks_for_all_optimizers_see_the_step() -> None:
    optimizer = Pair(momentum).optimizer
    with torch.profiler.profile() as profiler:
        optimizer.step()
    assert "Optimizer.step#SGD.step" in [event.name for event in profiler.events()]
    called: list[str] = []
    for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook):
        handle = register(lambda *_, name=register.__name__: called.append(name))
        optimizer.step()
        handle.remove()
    optimizer.step()
    assert called == ["register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"]


@on_ranks(2)
def test_ranks_with_other_hyper_parameters() -> None:
    pair = Pair(momentum)
    pair.step()
    pair.optimizer.param_groups[0]["lr"] = 0.1 + hvd.rank()
    pair.backward()
    with pytest.raises(
        MismatchError,
        match=r"update rules differ: rank 0 has 'SGD lr=0\.1 mom.*', rank 1 has 'SGD lr=1\.1",
    ):
        pair.optimizer.step()
    pair.optimizer.param_groups[0]["lr"] = 0.05
    pair.optimizer.zero_grad()
    pair.backward()
    pair.optimizer.step()


@on_ranks(2)
def test_what_cannot_be_shared() -> None:
    class Other(torch.optim.SGD):
        pass

    model = make_model()
    cases: list[tuple[str, torch.optim.Optimizer]] = [
        ("Other is not one of SGD, Adam", Other(model.parameters(), lr=0.1)),
        ("LBFGS is not one of", torch.optim.LBFGS(model.parameters())),
    ]
    for text, optimizer in cases:
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(optimizer, model.named_parameters(), shared_step="host")
    held = model.state_dict()
    with pytest.raises(ValueError, match=r"'0\.weight' shares its memory with another tensor"):
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            shared_step="host",
        )
    with any_size():
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
    assert optimizer.why_not_shared().startswith("parameter '0.weight' shares")
    del held
    with pytest.raises(ValueError, match="must be 'auto', 'host' or False"):
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            shared_step="yes",  # type: ignore[arg-type]
        )


@on_ranks(2)
def test_parameters_that_the_user_moves() -> None:
    pair = Pair(adam)
    kept = [p.data for p in pair.model.parameters()]  # from before the first step
    pair.step()
    for data, parameter in zip(kept, pair.model.parameters(), strict=True):
        torch.testing.assert_close(data, parameter.detach(), rtol=0, atol=0)
    for model in (pair.model, pair.alone):
        vector = nn.utils.parameters_to_vector(model.parameters()).detach() * 0.5
        nn.utils.vector_to_parameters(vector, model.parameters())  # gives them other memory
    for _ in range(3):
        pair.step()
    pair.check()
    with torch.no_grad():
        for model in (pair.model, pair.alone):
            for parameter in model.parameters():
                parameter.clamp_(-0.1, 0.1)
    pair.step()
    pair.check()
    assert "was moved" in pair.optimizer.why_not_shared()


def emptied(model: nn.Module) -> list[tuple[nn.Parameter, torch.Tensor]]:
    """As programs do that keep weights elsewhere for a while."""
    kept = [(p, p.detach().clone()) for p in model.parameters()]
    for parameter, _ in kept:
        parameter.untyped_storage().resize_(0)
    return kept


def refill(kept: list[tuple[nn.Parameter, torch.Tensor]]) -> None:
    for parameter, values in kept:
        parameter.untyped_storage().resize_(values.nbytes)
        with torch.no_grad():
            parameter.copy_(values)


@on_ranks(2)
def test_parameters_without_memory_for_a_while() -> None:
    pair = Pair(adam)
    pair.step()
    refill(emptied(pair.model))
    for _ in range(2):
        pair.step()
    pair.check()
    assert "was moved" in pair.optimizer.why_not_shared()
    model = make_model()
    kept = emptied(model)
    optimizer = hvd.DistributedOptimizer(
        adam(model.parameters()), model.named_parameters(), shared_step="host"
    )
    refill(kept)
    model(batch(0)).sum().backward()
    optimizer.step()
    assert "was moved" in optimizer.why_not_shared()


@on_ranks(2)
def test_frozen_weights_are_of_any_dtype() -> None:
    for dtype in (torch.int8, torch.float8_e4m3fn):
        model = make_model()
        base = nn.Parameter(torch.ones(4).to(dtype), requires_grad=False)
        model.register_parameter("base", base)
        optimizer = hvd.DistributedOptimizer(
            adam(model.parameters()), model.named_parameters(), shared_step="host"
        )
        model(batch(0)).sum().backward()
        optimizer.step()
        assert optimizer.why_not_shared() == ""
        assert base.float().tolist() == [1.0] * 4


@on_ranks(2)
def test_a_step_is_one_threads() -> None:
    pair, begun, tried = Pair(adam), threading.Event(), threading.Event()

    def closure() -> torch.Tensor:
        begun.set()
        tried.wait()
        return torch.ones(())

    pair.backward()
    other = threading.Thread(target=pair.optimizer.step, args=(closure,))
    other.start()
    begun.wait()
    with pytest.raises(ValueError, match="while another thread of this rank is in step"):
        pair.optimizer.step()
    tried.set()
    other.join()
    pair.alone_optimizer.step()
    pair.step()
    pair.check()


@on_ranks(2)
def test_two_hundred_steps() -> None:
    for make, shared_step in itertools.product((momentum, adam), ("auto", "host")):
        pair = Pair(make, shared_step)
        for _ in range(200):
            pair.step(same=False)
        pair.check(rtol=1e-5, atol=1e-6)


@on_ranks(3)
def test_one_copy_of_the_parameters() -> None:
    for make, shared_step in itertools.product((momentum, adam), ("auto", "host")):
        pair = Pair(make, shared_step, share_parameters=True, bucket_bytes=2000)
        for _ in range(20):
            pair.step(same=False)
        pair.check(rtol=1e-5, atol=1e-6)
        hvd.barrier()
        if hvd.rank() == 1:
            with torch.no_grad():
                pair.model[0].weight.fill_(0.25)
        hvd.barrier()
        assert bool((pair.model[0].weight == 0.25).all())

    model = nn.Linear(512, 512)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(hvd.rank() + 1.0)
    optimizer = hvd.DistributedOptimizer(
        adam(model.parameters()), model.named_parameters(), share_parameters=True
    )
    assert all(bool((parameter == 1.0).all()) for parameter in model.parameters())  # rank 0's
    saved = copy.deepcopy(model.state_dict())
    model(torch.ones(2, 512)).square().mean().backward()
    optimizer.step()
    arrays = optimizer._ciranda_reducer.arena_bytes() / model.weight.nbytes
    if hvd.rank() == 0:  # gradients, parameters, two moments
        assert 4 < arrays < 4.3
    else:
        assert 1 < arrays < 1.3
    hvd.barrier()
    model.load_state_dict(saved)  # every rank writes the same
    hvd.barrier()
    assert all(bool((parameter == 1.0).all()) for parameter in model.parameters())
    with pytest.raises(ValueError, match="share_parameters needs a shared step"):
        hvd.DistributedOptimizer(
            adam(make_model().parameters()), share_parameters=True, shared_step=False
        )
    with pytest.raises(ValueError, match=r"share_parameters is not possible: LBFGS is not one of"):
        hvd.DistributedOptimizer(
            torch.optim.LBFGS(make_model().parameters()), share_parameters=True
        )


@on_ranks(2)
def test_clipping_in_the_step() -> None:
    for make, shared_step in itertools.product((momentum, adam), ("auto", "host", False)):
        model = make_model()
        alone = copy.deepcopy(model)
        plain = make(alone.parameters())
        with any_size():
            optimizer = hvd.DistributedOptimizer(
                make(model.parameters()),
                model.named_parameters(),
                shared_step=shared_step,
                max_grad_norm=0.02,
                bucket_bytes=2000,
            )
        for step in range(6):
            optimizer.zero_grad()
            model(batch(step, hvd.rank())).square().mean().backward()
            optimizer.step()
            plain.zero_grad()
            for rank in range(2):
                (alone(batch(step, rank)).square().mean() / 2).backward()
            norm = nn.utils.clip_grad_norm_(alone.parameters(), 0.02)
            plain.step()
            assert optimizer.grad_norm == pytest.approx(float(norm), rel=1e-4)
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="max_grad_norm must be above 0"):
        hvd.DistributedOptimizer(make(make_model().parameters()), max_grad_norm=0.0)


@on_ranks(2)
def test_sparse_gradients_are_densified() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.words = nn.Embedding(10, 4, sparse=True)

        def forward(self, indices: torch.Tensor) -> torch.Tensor:
            return F.softplus(self.words(indices))

    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(parameters, lr=0.1)

    for shared_step in ("auto", "host"):
        model = Words()
        alone = copy.deepcopy(model)
        plain = make(alone.parameters())
        with any_size():
            optimizer = hvd.DistributedOptimizer(
                make(model.parameters()), model.named_parameters(), shared_step=shared_step
            )
        for step in range(4):
            optimizer.zero_grad()
            model(torch.tensor([step, 2 + hvd.rank()])).sum().backward()
            optimizer.step()
            plain.zero_grad()
            for rank in range(2):
                (alone(torch.tensor([step, 2 + rank])).sum() / 2).backward()
            plain.step()
            torch.testing.assert_close(model.words.weight, alone.words.weight)
