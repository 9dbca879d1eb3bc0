"""The kinds of scripts that users write: one process with the joined batch against 2 and 3 ranks.

| kind | where |
|---|---|
| each optimizer of torch.optim | here |
| closures | differential/scripts.py: a_closure, lbfgs |
| parameter groups | here |
| tied weights | here |
| frozen first and unfrozen later | differential/scripts.py: a_group_added_and_a_layer_unfrozen |
| no gradient on one rank | differential/scripts.py: different_parameters_on_different_ranks |
| sparse embeddings | here |
| accumulation, clipping, loss scaling, autocast | here; each alone in differential/scripts.py |
| learning-rate schedulers | here |
| torch.compile, checkpoints, second derivatives | here |
| two optimizers against each other | differential/scripts.py: a_generator_and_a_discriminator |
| an average of the weights | differential/scripts.py: an_averaged_model |
| saved and gone on with other ranks | test_checkpoint.py |
| Lightning's loops, optimizers around ours, hooks, edited gradients | test_script_loops.py |
| parametrized, pruned and adapted weights, other backward passes | test_script_models.py |
| a part of the model under FSDP2 | test_fsdp.py |

"auto" shares a step here as it does for models of 65,536 parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from joined_batch import ALL_MODES, OWN_STEP, Run, compare, values
from rank_checks import on_ranks
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

import ciranda.torch as hvd
from ciranda.torch import shared_step

OPTIMIZERS = [
    known
    for known in vars(torch.optim).values()
    if isinstance(known, type) and issubclass(known, torch.optim.Optimizer)
    if known is not torch.optim.Optimizer
]


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3)
    )


def fit(run: Run, model: Callable[..., Any], optimizer: Any, steps: Any) -> None:
    for step in steps:
        x, y = run.batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


# --- optimizers ---------------------------------------------------------------------------------


def takes_dense_gradients(known: type[torch.optim.Optimizer]) -> bool:
    return known not in (torch.optim.SparseAdam, torch.optim.LBFGS)


def test_torch_has_the_optimizers_that_are_tried() -> None:
    assert len(OPTIMIZERS) >= 14


@on_ranks(2, 3)
def test_each_optimizer_with_its_defaults() -> None:
    for known in filter(takes_dense_gradients, OPTIMIZERS):

        def script(run: Run, known: Any = known) -> list[torch.Tensor]:
            model = mlp()
            trained = list(model.parameters())
            if known is torch.optim.Muon:  # takes matrices only
                for p in trained:
                    p.requires_grad_(p.ndim == 2)
                trained = [p for p in trained if p.ndim == 2]
            optimizer = run.distribute(known(trained), model)
            before = values(model)
            fit(run, model, optimizer, range(6))
            assert any(not torch.equal(p, q) for p, q in zip(before, values(model), strict=True))
            return values(model)

        shares = known in shared_step._RULES
        compare(script, ALL_MODES if shares else OWN_STEP, shares=shares)


@on_ranks(2, 3)
def test_lbfgs_with_its_defaults() -> None:
    def script(run: Run) -> list[torch.Tensor]:
        model = mlp()
        optimizer = run.distribute(torch.optim.LBFGS(model.parameters()), model)
        for step in range(2):
            x, y = run.batch(step)

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
        return values(model)

    compare(script, OWN_STEP, tolerance=1e-6, shares=False)  # its search multiplies rounding


@on_ranks(2, 3)
def test_groups_with_options_of_their_own() -> None:
    for make in (
        lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1),
        lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    ):

        def script(run: Run, make: Any = make) -> list[torch.Tensor]:
            model = mlp()
            matrices = [p for p in model.parameters() if p.ndim == 2]
            vectors = [p for p in model.parameters() if p.ndim == 1]
            groups = [
                {"params": matrices[:1], "lr": 0.02},
                {"params": matrices[1:], "weight_decay": 0.05},
                {"params": vectors, "weight_decay": 0.0, "lr": 0.005},
            ]
            optimizer = run.distribute(make(groups), model)
            for step in range(6):
                fit(run, model, optimizer, [step])
                for number, group in enumerate(optimizer.param_groups):
                    group["lr"] *= 0.9 - 0.1 * number
                optimizer.param_groups[1]["weight_decay"] = 0.02 * step
            return values(model)

        compare(script)


# --- models -------------------------------------------------------------------------------------


class TiedWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 20)
        self.mix = nn.Linear(20, 20)
        self.out = nn.Linear(20, 30, bias=False)
        self.out.weight = self.words.weight

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.mix(self.words(indices))))


def words(run: Run, step: int) -> torch.Tensor:
    return (run.batch(step, inputs=4)[0].abs() * 1000).long() % 30


@on_ranks(2, 3)
def test_tied_weights() -> None:
    def script(run: Run) -> list[torch.Tensor]:
        model = TiedWords()
        optimizer = run.distribute(torch.optim.Adam(model.parameters(), lr=0.01), model)
        for step in range(5):
            indices = words(run, step)
            optimizer.zero_grad()
            F.cross_entropy(model(indices).flatten(0, 1), indices.flatten()).backward()
            optimizer.step()
        assert model.out.weight is model.words.weight
        return values(model)

    compare(script)


class SparseWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 20, sparse=True, padding_idx=0)
        self.bag = nn.EmbeddingBag(30, 20, sparse=True, mode="mean")
        self.head = nn.Linear(20, 3)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.words(indices).mean(1) + self.bag(indices)))


@on_ranks(2, 3)
def test_sparse_embeddings() -> None:
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.5),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ):

        def script(run: Run, make: Any = make) -> list[torch.Tensor]:
            model = SparseWords()
            optimizer = run.distribute(make(model.parameters()), model)
            for step in range(5):
                optimizer.zero_grad()
                F.cross_entropy(model(words(run, step)), run.batch(step)[1]).backward()
                optimizer.step()
            return values(model)

        compare(script)


@on_ranks(2, 3)
def test_sparse_adam_beside_adam() -> None:
    def script(run: Run) -> list[torch.Tensor]:
        model = SparseWords()
        tables = torch.optim.SparseAdam([model.words.weight, model.bag.weight], lr=0.05)
        rest = torch.optim.Adam(model.head.parameters(), lr=0.05)
        optimizers = [run.distribute(tables, model), run.distribute(rest, model)]
        for step in range(5):
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=step % 2 == 0)
            F.cross_entropy(model(words(run, step)), run.batch(step)[1]).backward()
            for optimizer in optimizers:
                optimizer.step()
        return values(model)

    compare(script, [False], shares=False)


@on_ranks(2, 3)
def test_activation_checkpoints() -> None:
    for reentrant in (True, False):

        def script(run: Run, reentrant: bool = reentrant) -> list[torch.Tensor]:
            model = mlp()
            optimizer = run.distribute(torch.optim.Adam(model.parameters(), lr=0.01), model)

            def forward(x: torch.Tensor) -> torch.Tensor:
                x = model[:2](x)
                x = checkpoint(model[2:4], x, use_reentrant=reentrant)
                return checkpoint(model[4], x, use_reentrant=reentrant)

            fit(run, forward, optimizer, range(5))
            return values(model)

        compare(script)


@on_ranks(2)
def test_a_compiled_model() -> None:
    """Without inductor, which compiles C++ for half a minute and hands autograd the same graph."""

    def script(run: Run) -> list[torch.Tensor]:
        torch._dynamo.reset()
        model = mlp()
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = run.distribute(torch.optim.Adam(model.parameters(), lr=0.01), compiled)
        fit(run, compiled, optimizer, range(5))
        return values(model)

    compare(script)


@on_ranks(2, 3)
def test_a_penalty_on_the_gradient_of_the_input() -> None:
    def script(run: Run) -> list[torch.Tensor]:
        model = mlp()
        optimizer = run.distribute(torch.optim.Adam(model.parameters(), lr=0.01), model)
        for step in range(5):
            x, y = run.batch(step)
            x.requires_grad_()
            optimizer.zero_grad()
            score = model(x)
            (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
            penalty = (slope.norm(dim=1) - 1).square().mean()
            (F.cross_entropy(score, y) + 10 * penalty).backward()
            optimizer.step()
        return values(model)

    compare(script)


# --- recipes ------------------------------------------------------------------------------------


@on_ranks(2, 3)
def test_accumulation_clipping_and_a_schedule() -> None:
    """The last accumulation of the epoch is shorter, as where batches do not divide."""
    for declared, clipped_by in itertools.product((1, 2), ("torch", "step", "skip_synchronize")):

        def script(
            run: Run, declared: int = declared, clipped_by: str = clipped_by
        ) -> list[torch.Tensor]:
            model = mlp()
            options: dict[str, Any] = {"backward_passes_per_step": declared}
            if clipped_by == "step":
                options["max_grad_norm"] = 0.1
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            optimizer = run.distribute(optimizer, model, **options)
            schedule = lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
            norms = []
            optimizer.zero_grad()
            for step in range(7):
                x, y = run.batch(step)
                (F.cross_entropy(model(x), y) / 2).backward()
                if step % 2 == 0 and step < 6:
                    continue
                run.synchronize(optimizer)
                if clipped_by != "step" or type(run) is Run:
                    norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
                if clipped_by == "skip_synchronize" and type(run) is not Run:
                    with optimizer.skip_synchronize():
                        optimizer.step()
                else:
                    optimizer.step()
                if clipped_by == "step" and type(run) is not Run:
                    norms.append(torch.tensor(optimizer.grad_norm))
                schedule.step()
                optimizer.zero_grad()
            return [*values(model), *norms]

        compare(script)


@on_ranks(2, 3)
def test_autocast_with_a_scaler_and_an_inf_on_one_rank() -> None:
    """Each part's gradients are computed alone, as bfloat16 rounds. A mean of three and a shared
    step may differ in a float32's last bit, which now and then rounds to another bfloat16: 2^-8 of
    a gradient. A step of Adam's moves a parameter by 0.01."""
    for unscales in (False, True):

        def script(run: Run, unscales: bool = unscales) -> list[torch.Tensor]:
            model = mlp()
            optimizer = run.distribute(torch.optim.Adam(model.parameters(), lr=0.01), model)
            scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
            scales = []
            for step in range(8):
                x, y = run.batch(step)
                optimizer.zero_grad()
                parts = list(run.parts())
                for rank, own, labels in zip(
                    parts, x.chunk(len(parts)), y.chunk(len(parts)), strict=True
                ):
                    inf_here = step == 4 and rank == hvd.size() - 1
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = F.cross_entropy(model(own), labels)
                    scaler.scale(loss * (float("inf") if inf_here else 1.0)).backward()
                for p in model.parameters():
                    if len(parts) > 1:
                        p.grad /= len(parts)
                if unscales:
                    run.synchronize(optimizer)
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                scales.append(torch.tensor(scaler.get_scale()))
            return [*values(model), *scales]

        for mode in ALL_MODES:
            exact = hvd.size() == 2 and mode is False
            compare(script, [mode], tolerance=1e-6 if exact else 1e-3, dtype=torch.float32)


SCHEDULES: list[Callable[[Any], Any]] = [
    lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=10),
    lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5, threshold=0.2),
    lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=3),
    lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=3), lr_scheduler.StepLR(o, 2)],
        milestones=[3],
    ),
]


@on_ranks(2, 3)
def test_schedules_of_the_learning_rate() -> None:
    makes: list[Callable[[Any], Any]] = [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.01),
    ]
    for make, schedule_of in itertools.product(makes, SCHEDULES):

        def script(run: Run, make: Any = make, schedule_of: Any = schedule_of) -> Any:
            model = mlp()
            optimizer = run.distribute(make(model.parameters()), model)
            schedule = schedule_of(optimizer)
            rates = []
            for step in range(8):
                fit(run, model, optimizer, [step])
                if isinstance(schedule, lr_scheduler.ReduceLROnPlateau):
                    x, y = run.batch(100)
                    with torch.no_grad():
                        schedule.step(run.mean(F.cross_entropy(model(x), y)))
                else:
                    schedule.step()
                rates.append(torch.tensor(optimizer.param_groups[0]["lr"]))
            assert len(set(map(float, rates))) > 1
            return [*values(model), *rates]

        compare(script)
