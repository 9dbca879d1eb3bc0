"""The choice of a backend: each mistake is one sentence, from init() where it can be known there,
and what is chosen runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends import GLOO
from ranks import run_ranks, values_of
from torch import nn

import ciranda.torch as hvd
from ciranda import _C, errors

ROWS = {row["name"]: row for row in _C.backends()}


def needs(backend: str) -> pytest.MarkDecorator:
    row = ROWS[backend]
    return pytest.mark.skipif(not row["available"], reason=row["why_not"])


def join_and_add() -> list[Any]:
    """What runs operations, whether that is Gloo, and the sum of the ranks' numbers and one."""
    try:
        hvd.init()
        total = hvd.allreduce(torch.tensor(hvd.rank() + 1), op=hvd.Sum).item()
        return [_C.cpu_operations(), hvd.gloo_enabled(), total]
    except Exception as error:
        return [type(error).__name__, str(error)]


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        (
            "CIRANDA_CPU_OPERATIONS",
            "ring",
            "it should be auto, shm or gloo: all ranks are on one host, and the ring joins hosts",
        ),
        ("CIRANDA_CPU_OPERATIONS", "tcp", "it should be auto, shm, ring or gloo"),
        (
            "CIRANDA_GPU_OPERATIONS",
            "gloo",
            "it should be auto or nccl: gloo is for tensors of the CPU",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_init(variable: str, value: str, text: str) -> None:
    ((name, said),) = values_of(run_ranks(join_and_add, 1, env={variable: value}))
    assert name == "InvalidArgumentError"
    assert said == f"the environment variable {variable} is '{value}'; {text}"


@pytest.mark.parametrize(
    ("variable", "value"),
    [("CIRANDA_CPU_OPERATIONS", "shm"), ("CIRANDA_GPU_OPERATIONS", "nccl")],
)
def test_our_own_runs_by_its_name_too(variable: str, value: str) -> None:
    results = run_ranks(join_and_add, 2, env={variable: value})
    assert values_of(results) == [["native", False, 3]] * 2
    assert all(result.stderr == "" for result in results)


def test_a_script_of_horovods_that_wants_mpi_runs_and_is_told() -> None:
    first, second = run_ranks(join_and_add, 2, env={"HOROVOD_CPU_OPERATIONS": "MPI"})
    assert values_of([first, second]) == [["native", False, 3]] * 2
    assert first.stderr.splitlines() == [
        "ciranda: rank 0: HOROVOD_CPU_OPERATIONS=MPI has no effect: ciranda does not use that "
        "library"
    ]
    assert second.stderr == ""


@pytest.mark.parametrize("available", [True, False])
def test_horovods_questions_are_about_what_can_run(
    monkeypatch: pytest.MonkeyPatch, available: bool
) -> None:
    rows = [
        {"name": name, "built": True, "available": available, "version": "2.27.3"}
        for name in ("gloo", "nccl")
    ]
    monkeypatch.setattr(_C, "backends", lambda: rows)
    assert hvd.gloo_built() is available
    assert hvd.nccl_built() == (22703 if available else 0)
    assert hvd.cuda_built(), "whatever this machine has"
    no = (hvd.mpi_built, hvd.mpi_enabled, hvd.ddl_built, hvd.ccl_built, hvd.rocm_built)
    assert not any(question() for question in no)
    assert hvd.mpi_threads_supported(), "scripts go on that want MPI for themselves"


@needs("gloo")
@pytest.mark.parametrize("trusted", ["0", "1"])
def test_gloo_runs_and_warns_unless_its_network_is_trusted(trusted: str) -> None:
    gloo = {"CIRANDA_CPU_OPERATIONS": "gloo", "CIRANDA_TRUSTED_NETWORK": trusted}
    results = run_ranks(join_and_add, 2, env=gloo)
    assert values_of(results) == [["gloo", True, 3]] * 2
    assert len(results[0].stderr.splitlines()) == (1 if trusted == "0" else 0)
    assert ("any user of this host can read" in results[0].stderr) == (trusted == "0")
    assert results[1].stderr == ""


@needs("gloo")
def test_ranks_that_chose_differently_are_told_on_every_rank() -> None:
    def choice(rank: int) -> dict[str, str]:
        return {"CIRANDA_CPU_OPERATIONS": ["shm", "gloo"][rank]}

    for name, said in values_of(run_ranks(join_and_add, 2, env=choice)):
        assert name == "InvalidArgumentError"
        assert all(word in said for word in ("CIRANDA_CPU_OPERATIONS", "rank 0", "rank 1", "gloo"))


def steps(shared_step: Any) -> list[Any]:
    """Why the step is not shared, and a weight after three steps."""
    hvd.init()
    torch.manual_seed(1)
    model = nn.Linear(300, 300)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        shared_step=shared_step,
    )
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 300), float(hvd.rank() + step))).square().mean().backward()
        optimizer.step()
    return [optimizer.why_not_shared(), model.weight[7, 7].item()]


@needs("gloo")
def test_with_gloo_the_ranks_share_a_step_only_where_told() -> None:
    weights = []
    for shared_step, expected in {
        "auto": "CIRANDA_CPU_OPERATIONS chose another backend, which cannot share the step",
        "host": "",
    }.items():
        for said, weight in values_of(run_ranks(steps, 2, args=[shared_step], env=GLOO.variables)):
            assert said == expected
            weights.append(weight)
    assert len(set(weights[:2])) == 1
    assert weights == pytest.approx([weights[0]] * 4, rel=1e-6)


def compress_natively() -> str:
    hvd.init()
    with pytest.raises(errors.UnsupportedError) as refused:
        _C.OptimizerCore(
            process_set=0,
            named_parameters=[("x", torch.zeros(1, requires_grad=True))],
            obstacle=None,
            op=hvd.Average,
            adasum=False,
            reduces=True,
            predivide_factor=1.0,
            backward_passes_per_step=1,
            compression=_C.Compression.fp16,
            sparse_as_dense=False,
            bucket_bytes=None,
            groups=[],
            shared_step=_C.SharedStepMode.off,
            auto_parameters_min=0,
            share_parameters=False,
            max_grad_norm=None,
            others="",
        )
    return str(refused.value)


@needs("gloo")
def test_gloo_compresses_nothing_for_programs_in_cpp() -> None:
    for said in values_of(run_ranks(compress_natively, 2, env=GLOO.variables)):
        assert "compression happens in ciranda's own ring" in said
        assert "CIRANDA_CPU_OPERATIONS chose another backend; leave out the" in said
