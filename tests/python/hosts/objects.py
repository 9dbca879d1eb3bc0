"""A rank of test_hosts.py: sends objects, and prints what came and what was refused."""

from __future__ import annotations

import json

import ciranda.torch as hvd


class Custom:
    """Travels by pickle only."""


def main() -> None:
    hvd.init()
    found = [
        hvd.broadcast_object({"from": hvd.rank()}, root_rank=root) for root in range(hvd.size())
    ]
    found.append(hvd.allgather_object("x" * hvd.rank()))
    refused = ""
    try:
        assert isinstance(hvd.broadcast_object(Custom(), allow_pickle=True), Custom)
    except ValueError as error:
        refused = str(error)
    print(json.dumps({"found": found, "refused": refused}))
    hvd.shutdown()


if __name__ == "__main__":
    main()
