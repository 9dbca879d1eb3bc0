"""Random programs over the collectives: what every rank does, as JSON.

A raw action is drawn without a look at the others, so that hypothesis may leave any out; resolve()
gives each the process sets that are there when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from expected import CARRIED_AS, WHOLE
from hypothesis import strategies as st

Op = dict[str, Any]  # one collective: see call()
Action = dict[str, Any]

FLOATING = ["float16", "bfloat16", "float32", "float64"]
# Reduced as another, see CARRIED_AS; moved as they are.
CARRIED = list(CARRIED_AS)
SHAPES = [[3], [], [0], [1], [2, 3], [7], [2, 0, 3], [4, 1, 2], [300], [20_000]]
TAILS = [[], [2], [0], [3, 1], [500]]  # of what has rows
REDUCING = ["allreduce", "reducescatter", "reduce"]
GROUPED = ["allreduce", "allgather", "reducescatter"]
ROWS = ["allgather", "alltoall", "gather", "scatter"]
ROOTED = ["broadcast", "gather", "scatter", "reduce"]
IN_PLACE = ["allreduce", "broadcast", "reduce"]
KINDS = ["allreduce", "message", "broadcast", "reducescatter", "reduce", *ROWS]
OPS = {
    "allreduce": ["Sum", "Average", "Min", "Max", "Product", "Adasum"],
    "reduce": ["Sum", "Average", "Min", "Max", "Product"],
    "reducescatter": ["Sum", "Average"],
}
ORDERS_MAX = 4  # operations in flight at once
ACTIONS = 8  # of a program, some of them "nothing"
REFUSED = [
    "rows of 0-dim",
    "root above",
    "splits",
    "not contiguous",
    "dtype",
    "reducescatter's op",
    "bool's average",
    "complex maximum",
    "itself",
    "no set",
    "outside",
]


def _wrongs(op: Op) -> list[str]:
    """What one rank may do differently from the others."""
    wrongs = ["dtype", "shape"]
    wrongs += ["carrier"] if op["tensors"][0]["dtype"] in CARRIED_AS else []
    wrongs += ["prescale", "postscale"] if op["kind"] in REDUCING else []
    # A rank that takes bools for something to average is refused by itself.
    bools = any(tensor["dtype"] == "bool" for tensor in op["tensors"])
    wrongs += ["op"] if op["kind"] in REDUCING and not bools else []
    wrongs += ["root"] if op["kind"] in ROOTED and op["kind"] != "scatter" else []
    wrongs += ["count"] if op["kind"] in GROUPED and op["grouped"] else []
    return wrongs


@st.composite
def call(draw: Callable[..., Any], size: int, zeros: bool = False) -> Op:
    """One operation. With `zeros` one of those that go on without ranks, more often than not."""
    favoured = ["allreduce"] if zeros and draw(st.integers(0, 2)) else KINDS
    kind = draw(st.sampled_from([*favoured, "barrier"]))
    op: Op = {"kind": kind, "set": draw(st.integers(0, 3)), "seed": draw(st.integers(0, 9))}
    op["name"] = draw(st.sampled_from([None, "a", "b"]))
    if kind in REDUCING:
        ops = OPS[kind][:2] if zeros and draw(st.booleans()) else OPS[kind]
        op["op"] = draw(st.sampled_from(ops))
    dtypes = ["int8", "uint8", "int32", "int64", *FLOATING, *CARRIED]
    if op.get("op", "Sum") not in ("Sum", "Average"):
        dtypes.remove("complex64")
    if op.get("op") == "Average":
        dtypes.remove("bool")
    if op.get("op") == "Adasum":
        dtypes = FLOATING
    shapes = TAILS if kind in ROWS else SHAPES
    if kind == "reducescatter":
        shapes = [shape for shape in SHAPES if shape]
    op["grouped"] = kind in GROUPED and draw(st.booleans())
    op["in place"] = kind in IN_PLACE and draw(st.booleans())
    op["tensors"] = [
        {
            "dtype": draw(st.sampled_from(dtypes)),
            "shape": draw(st.sampled_from(shapes)),
            "rows": draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)),
        }
        for _ in range(draw(st.integers(1, 3)) if op["grouped"] else 1)
    ]
    if kind in REDUCING:
        whole = any(tensor["dtype"] in WHOLE for tensor in op["tensors"])
        factors = [1.0, 1.0, 0.5, 2.0] if whole else [1.0, 1.0, 0.5, 2.0, -1.0, 0.0]
        if any(tensor["dtype"] == "bool" for tensor in op["tensors"]):
            factors = [1.0]
        op["prescale"], op["postscale"] = draw(st.sampled_from(factors)), 1.0
        if not (whole and op["op"] in ("Average", "Product")):  # for what is exact, and fits int8
            op["postscale"] = draw(st.sampled_from(factors))
    if kind in ("alltoall", "scatter"):
        counts = st.lists(st.integers(0, 3), min_size=size, max_size=size)
        op["splits"] = draw(st.none() | st.lists(counts, min_size=size, max_size=size))
    op["root"], op["to"] = draw(st.integers(0, size - 1)), draw(st.integers(1, size - 1))
    op["wrong"] = None
    if kind != "barrier" and not zeros and draw(st.integers(0, 7)) == 7:
        op["wrong"] = draw(st.sampled_from(_wrongs(op)))
        op["wrong rank"] = draw(st.integers(0, size - 1))
    return op


def _actions(size: int) -> st.SearchStrategy[Action]:
    ranks, every = st.integers(0, size - 1), {"min_size": size, "max_size": size}
    orders = st.lists(st.permutations(range(ORDERS_MAX)), **every)
    batch = st.lists(call(size), min_size=2, max_size=ORDERS_MAX)
    members = st.lists(ranks, min_size=1, max_size=size, unique=True)
    choice, slow = st.integers(0, 3), st.none() | ranks

    def action(do: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Action]:
        return st.fixed_dictionaries({"do": st.just(do), **parts})

    # "nothing" comes first: a shorter program has it in the place of what can go.
    weighted: dict[str, tuple[int, st.SearchStrategy[Action]]] = {
        "nothing": (1, action("nothing")),
        "call": (6, action("call", op=call(size), slow=slow)),
        "batch": (
            6,
            action(
                "batch",
                ops=batch,
                submit=orders,
                finish=orders,
                between=st.none() | call(size),
                late=ranks,
                slow=slow,
            ),
        ),
        "join": (
            3,
            action(
                "join",
                ops=st.lists(call(size, zeros=True), min_size=1, max_size=4),
                batches=st.lists(st.integers(0, 4), **every),
                pending=st.booleans(),
                slow=slow,
            ),
        ),
        "add": (4, action("add", ranks=members)),
        "remove": (1, action("remove", set=choice)),
        "add differently": (1, action("add differently")),
        "remove pending": (2, action("remove pending", set=choice, first=ranks)),
        "duplicate": (1, action("duplicate", first=ranks)),
        "refused": (
            2,
            action("refused", what=st.sampled_from(REFUSED), rank=ranks, set=choice),
        ),
    }
    names = [name for name, (weight, _) in weighted.items() for _ in range(weight)]
    return st.sampled_from(names).flatmap(lambda name: weighted[name][1])


class _Resolver:
    """Knows which sets there are."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sets: dict[int, list[int]] = {}  # the ranks, by the number of the set in the program
        self._count = 0

    def add(self, action: Action) -> Action:
        ranks = sorted(action["ranks"])
        refused = len(ranks) == self.size or ranks in self.sets.values()
        if not refused:
            self._count += 1
            self.sets[self._count] = ranks
        return {**action, "key": self._count, "refused": refused}

    def one_of_sets(self, choice: int, with_global: bool = True) -> tuple[int, list[int]]:
        everyone = [(0, list(range(self.size)))] if with_global else []
        sets = [*everyone, *self.sets.items()]
        return sets[choice % len(sets)] if sets else (0, [])

    def op(self, raw: Op, name: str | None = None) -> Op:
        """With the members, the root among them, and who is wrong."""
        choice = 0 if raw["kind"] == "message" else raw["set"]
        key, members = self.one_of_sets(choice)
        op = {**raw, "key": key, "members": members, "root": members[raw["root"] % len(members)]}
        if name is not None and op["name"] is not None:
            op["name"] = name
        if op["kind"] == "message":
            op["members"] = [op["root"], (op["root"] + op["to"]) % self.size]
        if op["wrong"] and len(members) == 1:
            op["wrong"] = None
        if op["wrong"]:
            wrong = members[op["wrong rank"] % len(members)]
            op["wrong rank"] = op["members"][1] if op["kind"] == "message" else wrong
        return op

    def batch(self, action: Action) -> Action:
        raws = [raw for raw in action["ops"] if raw["kind"] != "barrier"]  # has no async form
        ops = [self.op(raw, f"n{index}") for index, raw in enumerate(raws)]
        resolved = {**action, "ops": ops}
        if action["between"] is not None:
            named = {**action["between"], "name": "between"}  # its order is not the others'
            resolved["between"] = self.op(named)
        for what in ("submit", "finish"):
            resolved[what] = [[i for i in order if i < len(ops)] for order in action[what]]
        for order in resolved["submit"]:  # what has no name goes by its order
            unnamed = [i for i in order if ops[i]["name"] is None]
            following = iter(sorted(unnamed))
            order[:] = [next(following) if i in unnamed else i for i in order]
        return resolved

    def remove(self, action: Action) -> Action:
        key, _ = self.one_of_sets(action["set"])
        self.sets.pop(key, None)
        return {**action, "key": key}

    def resolve(self, action: Action) -> Action | None:
        match action["do"]:
            case "nothing":
                return None
            case "call":
                return {**action, "op": self.op(action["op"])}
            case "batch":
                return self.batch(action)
            case "join":
                return {**action, "ops": [self.op(raw) for raw in action["ops"]]}
            case "add":
                return self.add(action)
            case "remove":
                return self.remove(action)
            case "remove pending":
                key, members = self.one_of_sets(action["set"], with_global=False)
                if len(members) < 2:
                    return None
                first = members[action["first"] % len(members)]
                return {**action, "key": key, "members": members, "first": first}
            case "refused":
                key, members = self.one_of_sets(action["set"])
                return {**action, "key": key, "members": members}
        return action


def resolve(raws: list[Action], size: int) -> list[Action]:
    """What ranks can run; it leaves no set behind."""
    resolver = _Resolver(size)
    program = [action for raw in raws if (action := resolver.resolve(raw)) is not None]
    return program + [{"do": "remove", "key": key} for key in resolver.sets]


def programs(size: int) -> st.SearchStrategy[list[Action]]:
    raws = st.lists(_actions(size), min_size=ACTIONS, max_size=ACTIONS)
    return raws.map(lambda drawn: resolve(drawn, size))
