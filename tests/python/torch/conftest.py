from __future__ import annotations

import pytest
import ranks
from backends import Backend


@pytest.fixture(autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice of backends.py, for the ranks that the test starts; without one, ours."""
    chosen: Backend | None = getattr(request, "param", None)
    if chosen is None:
        return
    if why := chosen.missing():
        pytest.skip(why)
    monkeypatch.setattr(ranks, "chosen", chosen)
