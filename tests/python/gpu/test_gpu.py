"""What GPUs compute through NCCL: collectives, training, and that the host waits for none of it.

Two ranks share a GPU where there is only one: NCCL takes ranks of one GPU for a mistake, unless
they seem to be on different hosts (NCCL_HOSTID).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rank_checks import on_ranks
from ranks import run_ranks, values_of
from torch import nn

import ciranda.torch as hvd
from ciranda.errors import CirandaError, RankLostError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),  # the first test runs all of them, on one rank and on two
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="no GPU: torch.cuda.is_available() says that there is none",
    ),
]

LONG_CYCLES = 2_000_000_000  # about a second of a GPU's clock
SHORT_S = 0.3  # the host is done long before the GPU
ENDS_S = 20.0  # however a job ends
STEPS = 5


def gpu() -> torch.device:
    """This rank's."""
    count = torch.cuda.device_count()
    if hvd.local_size() > count:
        os.environ["NCCL_HOSTID"] = f"rank-{hvd.rank()}"
    device = torch.device("cuda", hvd.local_rank() % count)
    torch.cuda.set_device(device)
    return device


def keep_busy() -> None:
    torch.cuda._sleep(LONG_CYCLES)


# --- collectives ---------------------------------------------------------------------------------


@on_ranks(1, 2)
def test_every_collective_gives_what_it_gives_on_the_cpu() -> None:
    rank, size, device = hvd.rank(), hvd.size(), gpu()
    tensor = torch.arange(8.0 * size).reshape(2 * size, 4) * (rank + 1)
    collectives: dict[str, Callable[[torch.Tensor], Any]] = {
        "allreduce": lambda t: hvd.allreduce(t, op=hvd.Sum),
        "average": hvd.allreduce,
        "scaled": lambda t: hvd.allreduce(t, prescale_factor=0.5, postscale_factor=4.0),
        "minimum": lambda t: hvd.allreduce(t, op=hvd.Min),
        "in place": lambda t: hvd.allreduce_(t.clone(), op=hvd.Sum),
        "group": lambda t: hvd.grouped_allreduce([t, t[0]], op=hvd.Sum)[1],
        "broadcast": lambda t: hvd.broadcast(t, size - 1),
        "allgather": lambda t: hvd.allgather(t[: rank + 1]),
        "alltoall": hvd.alltoall,
        "alltoallv": lambda t: hvd.alltoall(t, [2 * size - size + 1] + [1] * (size - 1))[0],
        "reducescatter": lambda t: hvd.reducescatter(t, op=hvd.Sum),
        "empty": lambda t: hvd.allreduce(t[:0]),
    }
    for name, collective in collectives.items():
        result = collective(tensor.to(device))
        assert result.device == device, name
        torch.testing.assert_close(
            result.cpu(), collective(tensor), msg=lambda m, n=name: f"{n}: {m}"
        )


@on_ranks(2)
def test_dtypes_are_summed() -> None:
    device = gpu()
    kinds = [torch.uint8, torch.int8, torch.int32, torch.int64]
    for dtype in [*kinds, torch.float16, torch.bfloat16, torch.float32, torch.float64]:
        result = hvd.allreduce(torch.ones(1000, dtype=dtype, device=device), op=hvd.Sum)
        assert result.dtype == dtype and bool((result == 2).all()), dtype


def sum_of_float8() -> None:
    hvd.init()
    device = gpu()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        mine = torch.full((1000,), 1.5, device=device).to(dtype)
        if torch.cuda.get_device_capability(device) < (9, 0):
            with pytest.raises(CirandaError, match="NCCL"):
                hvd.allreduce(mine, op=hvd.Sum)
            return
        result = hvd.allreduce(mine, op=hvd.Sum)
        assert result.dtype == dtype and bool((result.float() == 3).all()), dtype


def test_float8_is_summed_from_hopper_on_and_refused_before() -> None:
    values_of(run_ranks(sum_of_float8, 2))


@on_ranks(1, 2)
def test_the_host_does_not_wait_for_a_collective() -> None:
    device = gpu()
    tensor = torch.ones(1 << 20, device=device)
    hvd.allreduce_(tensor, name="warm-up")
    torch.cuda.synchronize()
    keep_busy()
    start = time.monotonic()
    handle = hvd.allreduce_async(tensor, name="x", op=hvd.Sum)
    hvd.allreduce_(torch.ones(1 << 20, device=device), name="y")
    assert not hvd.poll(handle)
    result = hvd.synchronize(handle)
    assert time.monotonic() - start < SHORT_S
    assert bool((result == hvd.size()).all())


@on_ranks(1, 2)
def test_results_are_ordered_with_the_stream_that_asks() -> None:
    device = gpu()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        keep_busy()
        late = torch.ones(1 << 20, device=device)  # not there yet when it is submitted
        handle = hvd.allreduce_async(late, name="late", op=hvd.Sum)
        summed = hvd.allreduce(torch.ones(1 << 20, device=device), name="summed", op=hvd.Sum)
        gathered = hvd.allgather(torch.ones(1 << 20, device=device), name="gathered")
        for _ in range(4):  # in the memory of those inputs, if it was given back too early
            torch.full((1 << 20,), 7.0, device=device)
    del late
    torch.cuda.current_stream().wait_stream(side)
    assert bool((hvd.synchronize(handle) == hvd.size()).all())
    assert bool((summed == hvd.size()).all())
    assert bool((gathered == 1).all())


@on_ranks(2)
def test_state_on_a_gpu_is_broadcast() -> None:
    device = gpu()
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    if hvd.rank() == 0:
        model(torch.ones(2, 4, device=device)).sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    sums = [float(value.sum()) for value in model.state_dict().values()]
    for state in optimizer.state.values():
        assert state["exp_avg"].device == device
        sums.append(float(state["exp_avg"].sum()))
    assert hvd.allgather_object(sums) == [sums, sums]
    received = hvd.broadcast_object({"w": torch.full((2,), 3.0, device=device)}, 0)
    assert received["w"].tolist() == [3.0, 3.0]


@on_ranks(2)
def test_a_gpu_and_the_cpu_are_different_tensors() -> None:
    on_gpu = torch.ones(4, device=gpu())
    with pytest.raises(ValueError, match=r"one tensor is on cuda:\d and another on cpu"):
        hvd.grouped_allreduce([on_gpu, on_gpu.cpu()])
    with pytest.raises(hvd.HorovodInternalError, match="backends differ"):
        hvd.allreduce(on_gpu if hvd.rank() == 0 else on_gpu.cpu(), name="mixed")


# --- training ------------------------------------------------------------------------------------


class Branches(nn.Module):
    """A branch that only rank 1 uses, and one that nobody does."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.sometimes, self.never = nn.Linear(64, 4), nn.Linear(64, 4)

    def forward(self, images: torch.Tensor, branch: bool) -> torch.Tensor:
        features: torch.Tensor = self.body(images)
        return self.sometimes(features) if branch else features


def train(device: torch.device, ranks: range, passes: int = 1, **options: Any) -> Branches:
    """With options: on this rank's batches, distributed. Without: on all batches."""
    torch.manual_seed(0)
    model = Branches().to(device)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    if options:
        optimizer = hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), backward_passes_per_step=passes, **options
        )
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in ranks:
            for part in range(passes):
                generator = torch.Generator().manual_seed(100 * step + 10 * rank + part)
                images = torch.randn(16, 8, generator=generator).to(device)
                loss = model(images, rank == 1).square().mean()
                (loss / len(ranks)).backward()
        optimizer.step()
    assert model.never.weight.grad is None
    return model


@on_ranks(2)
def test_training_gives_what_one_process_with_all_batches_gives() -> None:
    device, everyone, own = gpu(), range(hvd.size()), range(hvd.rank(), hvd.rank() + 1)
    half = {"rtol": 1e-2, "atol": 1e-3}
    for options, tolerance in (
        ({"op": hvd.Average}, {}),
        ({"bucket_bytes": 1024}, {}),
        ({"num_groups": 3}, {}),
        ({"gradient_predivide_factor": 2.0}, {}),
        ({"compression": hvd.Compression.fp16}, half),
        ({"compression": hvd.Compression.bf16}, {"rtol": 1e-1, "atol": 1e-2}),
        ({"passes": 3, "op": hvd.Average}, {}),
    ):
        passes: int = options.pop("passes", 1)
        expected = train(device, everyone, passes)
        found = train(device, own, passes, **options)
        for (name, parameter), other in zip(
            found.named_parameters(), expected.parameters(), strict=True
        ):
            torch.testing.assert_close(
                parameter, other, msg=lambda m, n=name, o=options: f"{o} {n}: {m}", **tolerance
            )


@on_ranks(2)
def test_sparse_gradients_are_gathered() -> None:
    device = gpu()
    torch.manual_seed(0)
    table = nn.Embedding(10, 3, sparse=True).to(device)
    before = table.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), op=hvd.Sum
    )
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([hvd.rank(), 5], device=device)).sum().backward()
        optimizer.step()
    moved = (before - table.weight).detach()[:, 0].tolist()
    assert moved == pytest.approx([2, 2, 0, 0, 0, 4, 0, 0, 0, 0])


def make_training(max_grad_norm: float | None = None) -> tuple[nn.Module, Any, torch.Tensor]:
    device = gpu()
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), fused=True),
        model.named_parameters(),
        max_grad_norm=max_grad_norm,
    )
    return model, optimizer, torch.ones(64, 512, device=device)


def one_step(model: nn.Module, optimizer: Any, images: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(images).square().mean().backward()
    optimizer.step()


@on_ranks(1, 2)
def test_a_step_does_not_wait_for_the_gpu() -> None:
    for max_grad_norm in (None, 1.0):
        model, optimizer, images = make_training(max_grad_norm)
        for _ in range(3):
            one_step(model, optimizer, images)
        torch.cuda.synchronize()
        hvd.barrier()
        keep_busy()
        start = time.monotonic()
        one_step(model, optimizer, images)
        assert time.monotonic() - start < SHORT_S
        torch.cuda.synchronize()
        assert time.monotonic() - start > SHORT_S, "the GPU was busy"


@on_ranks(2)
def test_no_call_in_a_step_waits_for_the_gpu() -> None:
    model, optimizer, images = make_training()
    for _ in range(3):
        one_step(model, optimizer, images)
    torch.cuda.synchronize()
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        with torch.profiler.record_function("the step"):
            one_step(model, optimizer, images)
        torch.cuda.synchronize()
    # The GPU's timeline has a "the step" of its own.
    on_the_host = torch.autograd.DeviceType.CPU
    events = [event for event in profile.events() or [] if event.device_type == on_the_host]
    (step,) = [event for event in events if event.name == "the step"]
    within = [
        event.name
        for event in events
        if step.time_range.start <= event.time_range.start < step.time_range.end
    ]
    assert "cudaLaunchKernel" in within, "the trace shows what the step calls"
    assert not [name for name in within if name.startswith("cu") and "Synchronize" in name]


# --- ends ----------------------------------------------------------------------------------------


def lose_rank_1(how: str) -> str:
    """In the middle of an operation: what rank 0 is told."""
    hvd.init()
    tensor = torch.ones(1 << 20, device=gpu())
    hvd.allreduce_(tensor, name="warm-up")
    keep_busy()
    hvd.allreduce_async_(tensor, name="in the middle")
    if hvd.rank() == 1:
        if how == "raises":
            raise ValueError("enough")
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(RankLostError) as lost:
        while True:
            hvd.allreduce_(tensor, name="next")
    torch.cuda.synchronize()
    assert time.monotonic() - start < ENDS_S
    return str(lost.value)


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_lost_rank_ends_the_others(how: str) -> None:
    other, lost = run_ranks(lose_rank_1, 2, args=[how])
    assert lost.exit_code != 0
    assert other.exit_code == 0, other.stderr
    if how == "raises":  # of a death NCCL may tell first
        assert "rank 1 " in other.value and "ValueError" in other.value


def entries() -> list[int]:
    """Of this process: descriptors and threads."""
    return [len(os.listdir(f"/proc/self/{folder}")) for folder in ("fd", "task")]


def init_and_shutdown() -> None:
    kept: list[int] = []
    for cycle in range(20):
        hvd.init()
        hvd.allreduce_(torch.ones(8, device=gpu()), name="x")
        torch.cuda.synchronize()
        hvd.shutdown()
        if cycle == 2:
            kept = entries()  # what CUDA and NCCL keep for the process
    deadline = time.monotonic() + ENDS_S
    while any(now > then for now, then in zip(entries(), kept, strict=True)):
        assert time.monotonic() < deadline, (kept, entries())
        time.sleep(0.05)


def test_twenty_worlds_leave_nothing() -> None:
    values_of(run_ranks(init_and_shutdown, 2, timeout=100))
