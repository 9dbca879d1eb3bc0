"""What a checkpoint holds: breaks when a tensor is saved twice, or a buffer of any rank is."""

from __future__ import annotations

import torch

from ciranda.torch.checkpoints.content import Content, memory_of


def test_what_only_rank_0_has_comes_first_and_shared_memory_is_saved_once() -> None:
    weight, buffer = torch.randn(4), torch.randn(3)
    state = {"a": {"weight": weight, "tied": weight}, "b": [buffer], "ciranda": {}}
    content = Content(state, {memory_of(weight)})
    assert [each.name for each in content.entries] == ["b.0", "a.weight"]
    assert content.own == 1


def test_the_digest_tells_states_apart() -> None:
    def digest(**tensors: torch.Tensor) -> str:
        return Content({**tensors, "ciranda": {}}, set()).digest()

    one = digest(a=torch.zeros(2, 3))
    assert one == digest(a=torch.ones(2, 3))
    others = [
        digest(a=torch.zeros(3, 2)),
        digest(b=torch.zeros(2, 3)),
        digest(a=torch.zeros(2, 3).double()),
        digest(a=torch.zeros(2, 3), b=torch.zeros(0)),
    ]
    assert len({one, *others}) == 5
