"""The model: in NumPy, what a rank gives to an operation and what it must get."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Op = dict[str, Any]
Result = tuple[str, Array]  # the dtype's name in torch, and the values

WHOLE = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "bool")
CARRIED_AS = {  # what no backend reduces: it travels as the other
    "bool": "int32",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int64",
    "float8_e4m3fn": "float32",
    "complex64": "float32",  # of one more dimension, of 2
}
ZERO = {"Sum", "Average"}  # reductions to which a rank that has joined adds zeros
VALUES_MAX = 3  # of what is reduced, so that results are exact in every dtype


class Refused(Exception):
    """The operation raises `error`, with `text` in what it says."""

    def __init__(self, error: str, text: str) -> None:
        super().__init__(f"{error}: ...{text}...")
        self.error, self.text = error, text


def as_called(op: Op, rank: int) -> Op:
    """The operation as this rank calls it: otherwise than the others if it is the wrong one."""
    if op["wrong"] is None or op["wrong rank"] != rank:
        return op
    first, *rest = op["tensors"]
    match op["wrong"]:
        case "dtype":
            other = "float32" if first["dtype"] == "float64" else "float64"
            return {**op, "tensors": [{**first, "dtype": other}, *rest]}
        case "carrier":
            parts = [2] if first["dtype"] == "complex64" else []
            other = {"dtype": CARRIED_AS[first["dtype"]], "shape": [*first["shape"], *parts]}
            return {**op, "tensors": [{**first, **other}, *rest]}
        case "shape":
            return {**op, "tensors": [{**first, "shape": [*first["shape"], 2]}, *rest]}
        case "op":
            return {**op, "op": "Average" if op["op"] == "Sum" else "Sum"}
        case "root":
            place = op["members"].index(op["root"]) + 1
            return {**op, "root": op["members"][place % len(op["members"])]}
        case "count":
            return {**op, "tensors": [first, *op["tensors"]]}
    return {**op, op["wrong"]: op[op["wrong"]] + 1}  # a factor


def splits_of(op: Op, rank: int) -> list[int] | None:
    """Rows for each member."""
    if op["splits"] is None:
        return None
    return [op["splits"][rank][other] for other in op["members"]]


def rows_of(op: Op, tensor: dict[str, Any], rank: int) -> int:
    rows: int = tensor["rows"][rank]
    if op["kind"] == "alltoall" or (op["kind"] == "scatter" and rank == op["root"]):
        splits = splits_of(op, rank)
        return rows * len(op["members"]) if splits is None else sum(splits)
    return rows


def inputs(op: Op, rank: int) -> list[Result]:
    """Small whole numbers, others on each rank and in each tensor."""
    found = []
    for index, tensor in enumerate(op["tensors"]):
        shape, dtype = list(tensor["shape"]), tensor["dtype"]
        if op["kind"] in ("allgather", "alltoall", "gather", "scatter"):
            shape = [rows_of(op, tensor, rank), *shape]
        count = int(np.prod(shape))
        values = np.arange(count) * (3 + 2 * rank) + 5 * op["seed"] + 7 * rank + 2 * index
        if "op" in op:
            limit = 2 if op["op"] == "Product" else VALUES_MAX
            unsigned = dtype.startswith(("u", "bool"))
            values = values % (limit + 1 if unsigned else 2 * limit + 1)
            values = values if unsigned else values - limit
            if op["op"] == "Average" and dtype not in WHOLE:
                values = values * len(op["members"])
        else:
            values = values % (15 if dtype == "float8_e4m3fn" else 120)
        values = values % 2 if dtype == "bool" else values
        if dtype == "complex64":
            values = values * (1 + 2j)
        found.append((dtype, values.reshape(shape)))
    return found


def _scaled(values: Array, factor: float, dtype: str) -> Array:
    scaled = values * factor
    return np.trunc(scaled) if dtype in WHOLE else scaled


def _adasum(tensors: list[Array]) -> Array:
    if len(tensors) == 1:
        return tensors[0]
    middle = 1 << (len(tensors) - 1).bit_length() - 1
    one, other = _adasum(tensors[:middle]), _adasum(tensors[middle:])
    dot, of_one, of_other = (one * other).sum(), (one * one).sum(), (other * other).sum()
    one = (1 - dot / (2 * of_one) if of_one else 1) * one
    return one + (1 - dot / (2 * of_other) if of_other else 1) * other


def _reduced(op: Op, index: int, absent: list[int]) -> Result:
    """Of the group's tensor `index`, over all members; who is absent gives zeros."""
    given = [inputs(op, rank)[index] for rank in op["members"]]
    dtype = given[0][0]
    terms = [_scaled(values, op["prescale"], dtype) for _, values in given]
    terms = [term * (rank not in absent) for rank, term in zip(op["members"], terms, strict=True)]
    match op["op"]:
        case "Adasum":
            total = _adasum(terms)
        case "Min" | "Max" | "Product":
            total = {"Min": np.min, "Max": np.max, "Product": np.prod}[op["op"]](terms, axis=0)
        case _:
            total = np.sum(terms, axis=0)
    if op["op"] == "Average":
        total = _scaled(total / len(op["members"]), 1.0, dtype)
    return dtype, np.asarray(_scaled(total, op["postscale"], dtype))


def _pieces(values: Array, members: int) -> list[Array]:
    """Along dimension 0; the first get the remainder."""
    return list(np.array_split(values, members))


def _sent(op: Op, sender: int, receiver: int) -> Array:
    """The rows that `sender` has for `receiver`."""
    ((_, values),) = inputs(op, sender)
    place, splits = op["members"].index(receiver), splits_of(op, sender)
    if splits is None:
        splits = [len(values) // len(op["members"])] * len(op["members"])
    begin = sum(splits[:place])
    return values[begin : begin + splits[place]]


def expected(op: Op, rank: int, absent: list[int]) -> list[Result]:
    """What `rank` gets while `absent` members have joined. Raises Refused where it is refused."""
    kind, members = op["kind"], op["members"]
    if absent and kind != "barrier" and not (kind == "allreduce" and op["op"] in ZERO):
        raise Refused("UnsupportedError", "joined, and")
    if op["wrong"]:
        raise Refused("MismatchError", "differ")
    own = inputs(op, rank) if kind != "barrier" else []
    match kind:
        case "allreduce":
            return [_reduced(op, index, absent) for index in range(len(own))]
        case "reduce":
            return [_reduced(op, 0, absent)] if rank == op["root"] else own
        case "reducescatter":
            reduced = [_reduced(op, index, absent) for index in range(len(own))]
            place = members.index(rank)
            return [(dtype, _pieces(values, len(members))[place]) for dtype, values in reduced]
        case "broadcast":
            return inputs(op, op["root"])
        case "message":
            return inputs(op, op["root"]) if rank == members[1] else []
        case "scatter":
            return [(own[0][0], _sent(op, op["root"], rank))]
        case "allgather":
            given = [inputs(op, member) for member in members]
            return [
                (dtype, np.concatenate([each[index][1] for each in given]))
                for index, (dtype, _) in enumerate(own)
            ]
        case "gather":
            given = [inputs(op, member)[0][1] for member in members]
            joined = np.concatenate(given)
            return [(own[0][0], joined if rank == op["root"] else joined[:0])]
        case "alltoall":
            parts = [_sent(op, member, rank) for member in members]
            counts = np.array([len(part) for part in parts])
            return [(own[0][0], np.concatenate(parts)), ("int32", counts)]
    return []
