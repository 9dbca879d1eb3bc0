"""The pure parts of `ciranda bench`: formulas, sizes, percentiles, tables, the file that it keeps.
A wrong factor or a row that is not read back would mislead everybody who compares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ciranda.bench.bandwidth import algbw_gbs, busbw_gbs
from ciranda.bench.case import Case, make_cases, parse_bytes, parse_names, sizes
from ciranda.bench.measuring import CALLS_MAX, CALLS_MIN, iterations_for
from ciranda.bench.record import Record, parse, read_json, write_csv, write_json
from ciranda.bench.row import Row, Timing, percentile
from ciranda.bench.tables import best_peer, by_case, machine_lines, note, report
from ciranda.launch.errors import LaunchError

MACHINE = {
    "cpu": "A CPU of which somebody has written the whole long name, 2.60GHz",
    "cores": 8,
    "memory_gib": 16.0,
    "kernel": "6.1",
    "python": "3.11.7",
    "torch": "2.15.0",
    "ciranda": "0.1.0",
    "load_average": 0.1,
    "utc": "2026-01-01 00:00",
}


def make_row(side: str, us: float, own: bool = False, size: int = 1 << 26) -> Row:
    timing = Timing(side, own, Case("allreduce", size // 4, "bfloat16", "prod"), 2, size, 0)
    timing.add_round([[us / 1e6] * 3, [us / 2e6] * 3])
    return timing.row()


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("allreduce", 2 * 3 / 4),
        ("allgather", 3 / 4),
        ("reducescatter", 3 / 4),
        ("alltoall", 3 / 4),
        ("broadcast", 1),
    ],
)
def test_busbw_is_algbw_times_the_factor_of_nccl_tests(op: str, factor: float) -> None:
    assert algbw_gbs(4_000_000, 1000) == pytest.approx(4)  # 4 MB in 1 ms
    assert busbw_gbs(op, 4, 4_000_000, 1000) == pytest.approx(4 * factor)


def test_count_is_of_a_piece_and_size_of_the_larger_buffer() -> None:
    cases = make_cases(["allreduce", "allgather"], ["float32"], ["sum"], [4, 1024], ranks=4)
    assert [(case.op, case.count, case.size(4)) for case in cases] == [
        ("allreduce", 1, 4),
        ("allreduce", 256, 1024),
        ("allgather", 1, 16),  # an element each, though 4 bytes were asked for
        ("allgather", 64, 1024),
    ]


def test_what_reduces_nothing_is_measured_once_and_not_once_a_reduction() -> None:
    cases = make_cases(["broadcast", "reducescatter"], ["int8"], ["sum", "avg"], [64], ranks=2)
    assert [(case.op, case.redop) for case in cases] == [
        ("broadcast", "none"),
        ("reducescatter", "sum"),
        ("reducescatter", "avg"),
    ]


@pytest.mark.parametrize(("text", "size"), [("4", 4), ("64K", 65536), ("64MiB", 1 << 26)])
def test_sizes_are_read_as_powers_of_1024(text: str, size: int) -> None:
    assert parse_bytes(text, "--max-bytes") == size


@pytest.mark.parametrize("text", ["", "0", "-4", "1.5M", "64X", "9999999999G"])
def test_what_is_no_size_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(LaunchError, match="--max-bytes must be a number of bytes"):
        parse_bytes(text, "--max-bytes")


def test_sizes_go_up_by_the_factor() -> None:
    assert list(sizes(4, 70, 4)) == [4, 16, 64]


def test_a_name_that_is_not_known_is_answered_with_those_that_are() -> None:
    assert parse_names("b, a,b", "--op", ["a", "b"]) == ["b", "a"]
    with pytest.raises(LaunchError, match="--op: there is no 'c'; there are a, b"):
        parse_names("a,c", "--op", ["a", "b"])


def test_percentiles_lie_between_values() -> None:
    assert percentile([3, 1, 2, 4], 50) == 2.5
    assert percentile([3, 1, 2, 4], 100) == 4
    assert percentile([7], 99) == 7


def test_a_round_counts_as_long_as_its_slowest_rank() -> None:
    row = make_row("shm", 10)
    assert row.time_us == pytest.approx(10)
    assert row.p99_us == pytest.approx(10)


def test_a_round_has_many_short_calls_and_few_long_ones() -> None:
    assert iterations_for(1e-7) == CALLS_MAX
    assert iterations_for(10) == CALLS_MIN
    assert iterations_for(0) == CALLS_MAX


def test_a_copy_is_no_peer_to_be_compared_with() -> None:
    rows = [make_row("shm", 5, own=True), make_row("memcpy", 1), make_row("c10d", 7)]
    (of_case,) = by_case(rows)
    peer = best_peer(of_case)
    assert peer is not None and peer.side == "c10d"


def test_tables_fit_a_terminal_of_100_columns() -> None:
    names = ["shm", "gloo", "c10d", "mpi", "memcpy"]
    rows = [make_row(name, 123_456, own=name in names[:2]) for name in names]
    rows += [make_row(name, 1.5, own=name in names[:2], size=4) for name in names]
    text = report(rows, {name: f"{name}: what it is" for name in names})
    text += "\n" + note("Not measured: " + "allreduce bfloat16 avg, " * 20)
    assert max(map(len, text.splitlines())) <= 100
    head = "size count type redop time algbw busbw #wrong p50 p95 p99"
    heads = [line for line in text.splitlines() if " ".join(line.split()) == head]
    assert len(heads) == len(names)
    assert "1.00 (1.00-1.00) c10d" in text


def test_a_side_without_a_row_has_a_dash() -> None:
    rows = [make_row("shm", 5, own=True), make_row("mpi", 5), make_row("shm", 5, True, size=4)]
    line = report(rows, {"shm": "", "mpi": ""}).splitlines()[-1]
    assert line.split() == ["4", "bfloat16", "prod", "5.00", "-", "-"]


def test_a_busy_machine_and_too_few_cores_are_said() -> None:
    assert not any("Warning" in line for line in machine_lines(MACHINE, 2, "cpu"))
    busy = machine_lines({**MACHINE, "load_average": 5.0}, 16, "cpu")
    assert "16 ranks share 8 cores" in "\n".join(busy)
    assert "the load is 5.0 on 8 cores" in "\n".join(busy)
    assert any("busbw is the bandwidth of its memory" in line for line in busy)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    record = Record(["ciranda", "bench"], MACHINE, 2, "cpu", [make_row("shm", 5, own=True)])
    path = str(tmp_path / "base.json")
    write_json(path, record)
    assert read_json(path, "--compare") == record


def test_csv_has_a_line_for_each_row(tmp_path: Path) -> None:
    write_csv(str(tmp_path / "rows.csv"), [make_row("shm", 5, own=True), make_row("c10d", 7)])
    head, *lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert head.startswith("side,own,op,size,count,type,redop,ranks,wrong,calls,time_us,")
    assert [line.split(",")[0] for line in lines] == ["shm", "c10d"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not JSON"),
        ("[]", "not a file of `ciranda bench --json`"),
        ('{"format": "ciranda-bench"}', "it lacks 'version'"),
        ('{"format": "ciranda-bench", "version": 2}', "this ciranda reads 1"),
    ],
)
def test_a_file_that_is_no_base_is_refused_in_a_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "base.json"
    path.write_text(text)
    with pytest.raises(LaunchError, match=sentence):
        read_json(str(path), "--compare")


def test_times_that_are_none_are_refused() -> None:
    record = Record([], MACHINE, 2, "cpu", [make_row("shm", 5)]).as_json()
    broken = json.loads(json.dumps(record))
    broken["rows"][0]["rounds_us"] = [0]
    with pytest.raises(ValueError, match="no numbers above 0"):
        parse(broken)


def test_a_file_that_is_not_there_is_said() -> None:
    with pytest.raises(LaunchError, match=r"--compare no/base\.json: No such file"):
        read_json("no/base.json", "--compare")
