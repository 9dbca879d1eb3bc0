"""What cannot be with parameter servers is refused in one sentence that says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import mark, run_ranks, start_ranks, values_of, wait_until_told

import ciranda.torch as cr
from ciranda.errors import CirandaError, MismatchError
from ciranda.torch import ps


def make(optimizer: Any = torch.optim.SGD, **options: Any) -> tuple[torch.nn.Module, Any]:
    net = torch.nn.Linear(4, 2)
    options = {"ps": ps.Async()} | options
    plain = optimizer(net.parameters(), lr=0.1)
    return net, cr.DistributedOptimizer(plain, net.named_parameters(), **options)


def said(act: Callable[[], Any]) -> str:
    try:
        act()
    except (CirandaError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def step(net: torch.nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()


def refusals_without_servers() -> list[str]:
    cr.init()
    return [
        said(make),
        said(lambda: ps.average(1.0)),
        said(lambda: make(ps=None, backend="ring", mode=ps.Async())),
    ]


def test_without_servers_the_flag_is_named() -> None:
    for ps_is_refused, average_is_refused, mode_is_refused in values_of(
        run_ranks(refusals_without_servers, 2)
    ):
        assert (
            "this job has no parameter servers; start it with ciranda run --ps 1" in ps_is_refused
        )
        assert "ps.average: this job has no parameter servers" in average_is_refused
        assert "mode, update_on and force are of parameter servers" in mode_is_refused


def momentum(value: float) -> Callable[..., torch.optim.Optimizer]:
    return lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=value)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "ring": (
        lambda: make(ps=None),
        "this job has parameter servers; pass a mode, such as ps=ps.Async(), or start it without",
    ),
    "no mode": (lambda: make(ps="async"), "ps must be a mode: ps.Async(), ps.SSP(staleness), "),
    "former form": (lambda: make(mode=ps.Async()), "the former form of ps; give ps alone"),
    "former form without a mode": (
        lambda: make(ps=None, backend="ps"),
        "backend='ps' needs a mode; pass one as ps alone, such as ps=ps.Async(), not None",
    ),
    "option": (lambda: make(op=cr.Sum), "op is for ranks that reduce gradients among themselves"),
    "optimizer": (
        lambda: make(torch.optim.Adamax),
        "cannot make the step, because Adamax is not one of SGD, Adam, AdamW, Adagrad, RMSprop, "
        "Lion; choose a mode with update_on='worker'",
    ),
    "momentum": (
        lambda: make(momentum(0.9)),
        "momentum 0.9 with gradients that may be more than 2 pushes old usually diverges",
    ),
    "momentum of SSP": (lambda: make(momentum(0.9), ps=ps.SSP(3)), "momentum 0.9"),
    "backups": (
        lambda: make(ps=ps.Sync(backup_workers=2)),
        "Sync(backup_workers=2) would wait for none of the 2 workers",
    ),
    "ahead": (
        lambda: make(ps=ps.Async(update_on="worker", ahead=1)),
        "use Async(ahead=0)",
    ),
    "update_on": (
        lambda: make(ps=ps.Async(update_on="x")),
        "must be 'server' or 'worker', not 'x'",
    ),
    "allreduce": (
        lambda: cr.allreduce(torch.ones(2)),
        "the ranks of a job with parameter servers (--ps) do not meet, so there are no "
        "collectives; ps.average() gives the mean",
    ),
    "barrier": (cr.barrier, "do not meet"),
    "object": (lambda: cr.broadcast_object(1), "do not meet"),
    "root": (
        lambda: cr.broadcast_parameters({"a": torch.ones(1)}, root_rank=1),
        "broadcast_parameters: parameter servers begin with the parameters of rank 0",
    ),
    "comm": (lambda: (cr.shutdown(), cr.init(comm=[1, 0])), "comm has no meaning in a job with"),
}


def refusals() -> dict[str, str]:
    cr.init()
    return {what: said(act) for what, (act, _) in REFUSED.items()}


def trains_by_the_former_options() -> str:
    cr.init()
    with pytest.warns(DeprecationWarning, match="pass ps=mode"):
        net, optimizer = make(ps=None, backend="ps", mode=ps.Async(), update_on="worker")
    before = net.weight.detach().clone()
    step(net, optimizer)
    assert not torch.equal(net.weight, before)
    return str(optimizer.why_not_shared())


def test_the_former_options_choose_servers_too() -> None:
    (why_not_shared,) = values_of(run_ranks(trains_by_the_former_options, 1, servers=1))
    assert why_not_shared == "each worker makes its own step"


@pytest.fixture(scope="module")
def refused() -> list[dict[str, str]]:
    values: list[dict[str, str]] = values_of(run_ranks(refusals, 2, servers=1))
    return values


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused(refused: list[dict[str, str]], what: str) -> None:
    for each in refused:
        assert REFUSED[what][1] in each[what]


@pytest.mark.parametrize(
    ("make_mode", "sentence"),
    [
        (lambda: ps.Async(ahead=2), "ahead must be 0 or 1"),
        (lambda: ps.Async(policy="keep"), "policy must be"),  # type: ignore[arg-type]
        (lambda: ps.Async(max_staleness=3), "must be given together"),
        (lambda: ps.Async(policy="drop"), "must be given together"),
        (lambda: ps.Async(policy="drop", max_staleness=-1), "whole number of at least 0"),
        (lambda: ps.SSP(-1), "SSP: staleness must be a whole number"),
        (lambda: ps.Sync(backup_workers=0.5), "Sync: backup_workers must be"),  # type: ignore[arg-type]
    ],
)
def test_modes_that_make_no_sense(make_mode: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_mode()


def later_refusals() -> dict[str, str]:
    cr.init()
    net, optimizer = make(momentum(0.5))
    step(net, optimizer)
    answers = {
        "load": said(lambda: optimizer.load_state_dict(optimizer.state_dict())),
        "state": said(lambda: optimizer.state),
        "group": said(
            lambda: optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
        ),
        "second": said(make),
    }
    with torch.no_grad():
        net.bias.add_(1)
    answers["written"] = said(lambda: step(net, optimizer))
    return answers


def test_what_servers_do_not_see_is_refused() -> None:
    (answers,) = values_of(run_ranks(later_refusals, 1, servers=1))
    assert "cannot load one yet" in answers["load"]
    assert "state_dict() fetches a copy" in answers["state"]
    assert "give it all parameters before that" in answers["group"]
    assert "the parameters of one optimizer" in answers["second"]
    assert (
        "parameter 'bias' was written to, moved or converted outside of step()"
        in (answers["written"])
    )


def trains_something_else() -> str:
    cr.init()
    if cr.rank() == 0:
        net, optimizer = make()
        step(net, optimizer)
        mark("declared")
        wait_until_told("others are refused")
        step(net, optimizer)
        return ""
    wait_until_told("declared")
    net = torch.nn.Linear(4, 3 if cr.rank() == 1 else 2)
    kind = torch.optim.Adam if cr.rank() == 2 else torch.optim.SGD
    mode = ps.SSP(1) if cr.rank() == 3 else ps.Async()
    try:
        cr.DistributedOptimizer(kind(net.parameters(), lr=0.1), net.named_parameters(), ps=mode)
    except MismatchError as error:
        mark("refused")
        return str(error)
    return "no error"


def test_who_trains_something_else_hears_both_values_and_harms_nobody() -> None:
    with start_ranks(trains_something_else, 4, servers=1) as job:
        job.wait_for_mark(0, "declared")
        job.tell("declared")
        for rank in (1, 2, 3):
            job.wait_for_mark(rank, "refused")
        job.tell("others are refused")
        first, *others = values_of(job.wait())
    assert first == ""
    for error, difference in zip(
        others,
        (
            "parameter 'weight' is [3, 4] instead of [2, 4]",
            "the optimizer is Adam with exp_avg and exp_avg_sq instead of SGD",
            "the mode is SSP(1) instead of Async(policy=apply)",
        ),
        strict=True,
    ):
        assert "trains another model than the workers before it: " + difference in error


def in_a_fork() -> list[Any]:
    cr.init()
    net, optimizer = make()
    step(net, optimizer)
    before = net.weight.detach().clone()
    read, write = os.pipe()
    if os.fork() == 0:
        with torch.no_grad():
            net.weight.zero_()  # its own, from here on
        text = said(lambda: step(net, optimizer)) + said(lambda: ps.average(1.0))
        os.write(write, f"{cr.rank()} {text}".encode())
        os._exit(0)
    os.close(write)
    text = os.read(read, 4096).decode()
    same = torch.equal(net.weight, before)
    step(net, optimizer)
    return [text, same]


def test_a_forked_child_is_no_worker() -> None:
    ((text, same),) = values_of(run_ranks(in_a_fork, 1, servers=1))
    assert text.startswith("0 ")
    assert "this process was forked from a rank and is not a rank itself" in text
    assert same


def options_that_need_state() -> list[str]:
    """Set after DistributedOptimizer was made."""
    cr.init()
    net, optimizer = make(lambda p, lr: torch.optim.RMSprop(p, lr=lr, momentum=0.3, centered=True))
    group = optimizer.param_groups[0]
    for option, value in (("centered", False), ("momentum", 0.0), ("centered", True)):
        group[option] = value  # there is more state than that
        step(net, optimizer)
    return sorted(optimizer.state_dict()["state"][0])


def refuses_amsgrad() -> str:
    cr.init()
    net, optimizer = make(torch.optim.Adam)
    optimizer.param_groups[0]["amsgrad"] = True
    return said(lambda: step(net, optimizer))


def momentum_that_comes_and_goes() -> list[Any]:
    cr.init()
    net, optimizer = make(lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, dampening=0.1))
    group = optimizer.param_groups[0]
    group["momentum"] = 0.0
    step(net, optimizer)
    without = dict(optimizer.state_dict()["state"])
    group["momentum"] = 0.9
    refused = said(lambda: step(net, optimizer))
    group["dampening"] = 0.0
    step(net, optimizer)
    return [without, refused, sorted(optimizer.state_dict()["state"][0])]


def test_momentum_has_a_buffer_once_it_was_used() -> None:
    ((without, refused, then),) = values_of(run_ranks(momentum_that_comes_and_goes, 1, servers=1))
    assert without == {}
    assert "momentum with dampening was changed after DistributedOptimizer was made" in refused
    assert then == ["momentum_buffer"]


def test_an_option_without_state_is_named() -> None:
    (names,) = values_of(run_ranks(options_that_need_state, 1, servers=1))
    assert names == ["grad_avg", "momentum_buffer", "square_avg", "step"]
    (error,) = values_of(run_ranks(refuses_amsgrad, 1, servers=1))
    assert "amsgrad was changed after DistributedOptimizer was made, and servers" in error


def comes_again() -> list[str]:
    """To the servers that it has left, where another worker keeps them."""
    cr.init()
    table = ps.Embedding(10, 2, lr=0.1)
    model = torch.nn.ModuleList([table])
    options: dict[str, Any] = {"ps": ps.Async()}
    cr.DistributedOptimizer(
        torch.optim.SGD(model.parameters()), model.named_parameters(), **options
    )
    mark("declared")
    if cr.rank() == 0:
        wait_until_told("the other has come again")
        return []
    wait_until_told("declared")
    cr.shutdown()
    answers = [said(lambda: table(torch.tensor([1])))]
    cr.init()
    answers.append(said(lambda: table(torch.tensor([1]))))
    model = torch.nn.ModuleList([ps.Embedding(10, 2, lr=0.1)])
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD(model.parameters()), model.named_parameters(), **options
    )
    model[0](torch.tensor([1])).sum().backward()
    optimizer.step()
    mark("came again")
    return answers


def test_a_worker_may_leave_and_come_again() -> None:
    with start_ranks(comes_again, 2, servers=1) as job:
        for rank in (0, 1):
            job.wait_for_mark(rank, "declared")
        job.tell("declared")
        job.wait_for_mark(1, "came again")
        job.tell("the other has come again")
        _, (left, again) = values_of(job.wait())
    assert "has not been initialized" in left or "was made before shutdown()" in left
    assert "this table or layer was made before shutdown(), for servers that" in again
