"""The doctor's program on each host.

It greets like an agent, then answers questions until the end of its standard input. Questions and
answers are lines of JSON.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import ciranda
from ciranda.doctor import tcp
from ciranda.doctor.facts import host_facts
from ciranda.launch.errors import LaunchError
from ciranda.launch.remote.meeting import Ports
from ciranda.launch.run import process_tree

Question = dict[str, Any]
Answer = dict[str, Any]


def main() -> None:
    process_tree.set_name("ciranda-doctor")
    questions, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)  # keeps other output from coming between the answers
    with open(questions, encoding="utf-8") as asked, open(answers, "w", encoding="utf-8") as said:
        print(f"ciranda {ciranda.__version__}", file=said, flush=True)
        for line in asked:
            print(json.dumps(answer(json.loads(line))), file=said, flush=True)


def answer(question: Question) -> Answer:
    """Answers a question; an error becomes the answer {"why_not": …}."""
    try:
        return _ANSWERS[question["ask"]](question)
    except (OSError, LaunchError) as error:
        return {"why_not": str(error)}


def _facts(question: Question) -> Answer:
    return host_facts(
        nic=question["nic"],
        ports=Ports(*question["ports"]),
        names=question["names"],
        folder=question["folder"],
    )


def _listen(question: Question) -> Answer:
    ports = Ports(*question["ports"])
    return {"port": tcp.listen(question["address"], ports, question["token"])}


def _call(question: Question) -> Answer:
    return tcp.call(question["address"], question["port"], question["token"])


_ANSWERS: dict[str, Callable[[Question], Answer]] = {
    "facts": _facts,
    "time": lambda _: {"time_s": time.time()},
    "listen": _listen,
    "call": _call,
}


if __name__ == "__main__":
    main()
