"""What the all-reduce means: wrong sums, a job that ends badly, speed far below the machine's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ciranda.doctor.job import LARGE_BYTES
from ciranda.doctor.job_checks import Expected, job_figures, job_lines, large_bytes, skipped_job
from ciranda.doctor.lines import Status, fail, line, ok

WARN, FAIL, OK = Status.WARN, Status.FAIL, Status.OK
RANK = {
    "rank": 0,
    "verified": True,
    "latency_s": 3e-6,
    "large_bytes": LARGE_BYTES,
    "allreduce_s": 0.010,
    "copy_s": 0.008,
}
ONE_HOST = Expected()
TWO_HOSTS = Expected(host_count=2, rtt_s=100e-6, bytes_per_s=1e9)


def of(check: str, expected: Expected = ONE_HOST, **changes):
    job = {"ranks": [RANK, {**RANK, "rank": 1, **changes}]}
    found = {each.check.name: each.verdict for each in job_lines(job, expected, "ciranda run X")}
    return found[check]


def test_a_job_that_is_well_has_three_lines_that_are_ok():
    job = {"ranks": [RANK, {**RANK, "rank": 1}]}
    for expected in (ONE_HOST, replace(TWO_HOSTS, rtt_s=10e-6)):
        lines = job_lines(job, expected, "")
        assert [each.check.name for each in lines] == ["allreduce", "latency", "bandwidth"]
        assert {each.verdict.status for each in lines} == {OK}


def test_a_wrong_sum_on_one_rank_fails_and_names_the_rank():
    verdict = of("allreduce", verified=False)
    assert verdict.status is FAIL
    assert "rank 1" in verdict.found
    assert "ciranda run X" in verdict.mend


def test_a_job_that_fails_is_told_in_the_words_of_its_failure_block():
    said = (
        "╭─ ciranda: the job failed ──\n│ culprit     rank 1 on node1, pid 7\n│ cause  Killed\n╰──"
    )
    (told,) = job_lines({"exit_code": 137, "said": said}, ONE_HOST, "ciranda run X")
    assert told.verdict.status is FAIL
    assert "137: culprit rank 1 on node1, pid 7; cause Killed" in told.verdict.found
    assert "ciranda run X" in told.verdict.mend


@pytest.mark.parametrize(
    ("expected", "mend"),
    [
        (ONE_HOST, "quota"),
        (replace(ONE_HOST, busy=True), "busy"),
        (replace(ONE_HOST, takes_turns=True), "slots"),
        (TWO_HOSTS, "--nic"),
    ],
)
@pytest.mark.parametrize(
    ("check", "slow"), [("latency", {"latency_s": 0.1}), ("bandwidth", {"allreduce_s": 5.0})]
)
def test_speed_far_below_the_machines_warns_and_says_where_to_look(check, slow, expected, mend):
    verdict = of(check, expected, **slow)
    assert verdict.status is WARN
    assert "far below" in verdict.found
    assert mend in verdict.mend


def test_between_hosts_the_measured_network_is_what_counts():
    slow = {"latency_s": 5e-3, "allreduce_s": 2.0}  # of a slow network this is good
    narrow = replace(TWO_HOSTS, rtt_s=2e-3, bytes_per_s=50e6)
    for check in ("latency", "bandwidth"):
        assert of(check, narrow, **slow).status is OK
        assert of(check, TWO_HOSTS, **slow).status is WARN


def test_figures_are_those_of_the_slowest_rank():
    figures = job_figures({"ranks": [RANK, {**RANK, "rank": 1, "latency_s": 7e-6}]})
    assert figures["latency_s"] == 7e-6
    assert figures["bytes_per_s"] == pytest.approx(LARGE_BYTES / 0.010)
    assert job_figures({"exit_code": 1, "said": ""}) == {}


@pytest.mark.parametrize(
    ("bytes_per_s", "wanted"), [(None, LARGE_BYTES), (1e12, LARGE_BYTES), (2.5e6, 1 << 20)]
)
def test_a_slow_network_is_given_less_to_reduce(bytes_per_s, wanted):
    assert large_bytes(bytes_per_s) == wanted


def test_a_job_that_cannot_run_names_the_lines_that_have_failed():
    lines = [line("ssh", "node1", fail("refused", "Mend it.")), line("cores", "node0", ok("2"))]
    (told,) = skipped_job(lines)
    assert told.verdict.status is Status.SKIP
    assert "ssh node1" in told.verdict.found
    assert "cores" not in told.verdict.found
