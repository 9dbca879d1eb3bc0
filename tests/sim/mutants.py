"""Planted mistakes: each must be found by the tests that stand for its part of core.

A mutant replaces one piece of source text that occurs exactly once. The sources are copied to a
folder of their own, compiled once, and for each mutant its one file again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCHEDULES = 10_000
RUN_TIMEOUT_S = 60  # a whole run takes 4 s of CPU time


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str  # below csrc/core
    old: str
    new: str


@dataclass(frozen=True)
class Suite:
    """Mutants of one part of core, and the tests that shall find them."""

    name: str
    sources: tuple[str, ...]  # below csrc/core; may hold *
    tests: tuple[str, ...]  # below tests/cpp; may hold *
    mutants: tuple[Mutant, ...]
    filter: str = "*"
    libraries: tuple[str, ...] = ()


_OF_NEGOTIATION = (
    Mutant(
        "runs_when_one_rank_is_missing",
        "negotiate/negotiator.cc",
        "if (op->contributed == size_) complete(*op, out);",
        "if (op->contributed >= size_ - 1) complete(*op, out);",
    ),
    Mutant(
        "compares_no_specs",
        "negotiate/negotiator.cc",
        "if (request.spec != op->spec && *request.spec != *op->spec)",
        "if (false)",
    ),
    Mutant(
        "ignores_that_a_rank_left",
        "negotiate/negotiator.cc",
        "while (PendingOp* op = readiness_.oldest())",
        "while (PendingOp* op = static_cast<PendingOp*>(nullptr))",
    ),
    Mutant(
        "lets_the_departed_speak",
        "negotiate/negotiator.cc",
        "if (has_left(from))",
        "if (false)",
    ),
    Mutant(
        "waits_for_the_departed",
        "negotiate/negotiator.cc",
        "if (!departed_.empty()) {",
        "if (false) {",
    ),
    Mutant(
        "takes_a_second_submission_for_the_first",
        "negotiate/negotiator.cc",
        "} else if (op->contributions[rank].has_value()) {",
        "} else if (false) {",
    ),
    Mutant(
        "forgets_who_must_still_be_told",
        "negotiate/negotiator.cc",
        "readiness_.remember_failure(op, error);",
        "",
    ),
    Mutant(
        "answers_only_one_of_two_submissions",
        "negotiate/negotiator.cc",
        "fail_one(from, request, std::move(second), *error, out);",
        "(void)second;",
    ),
    Mutant(
        "gives_no_index_to_an_error",
        "negotiate/negotiator.cc",
        "response.verdict = Response::Verdict::kError;\n  response.index = next_index_++;",
        "response.verdict = Response::Verdict::kError;\n  response.index = next_index_;",
    ),
    Mutant(
        "allows_a_root_beyond_the_last_rank",
        "negotiate/negotiator.cc",
        "if (op.spec->root >= size_) {",
        "if (op.spec->root > size_) {",
    ),
    Mutant(
        "asks_the_wrong_submission_to_come_again",
        "negotiate/negotiator.cc",
        "response.resubmit_token = request.contribution.token;",
        "",
    ),
    Mutant(
        "does_not_renew_an_entry_used_by_number",
        "negotiate/response_cache.cc",
        "return found == by_id_.end() ? nullptr : renew(found->second);",
        "return found == by_id_.end() ? nullptr : &*found->second;",
    ),
    Mutant(
        "evicts_the_entry_used_last",
        "negotiate/response_cache.cc",
        "order_.splice(order_.begin(), order_, entry);",
        "order_.splice(order_.end(), order_, entry);",
    ),
    Mutant(
        "uses_an_evicted_number_again",
        "negotiate/response_cache.cc",
        "by_id_.erase(oldest.id);",
        "by_id_.erase(oldest.id);\n  next_id_ = oldest.id;",
    ),
    Mutant(
        "keeps_the_number_of_an_evicted_spec",
        "negotiate/response_cache.cc",
        "by_id_.erase(oldest.id);\n  by_spec_.erase(oldest.spec.get());",
        "by_id_.erase(oldest.id);",
    ),
    Mutant(
        "ignores_the_occurrence",
        "negotiate/readiness.cc",
        "const auto place = place_of(name.pending, occurrence);\n"
        "  return place != name.pending.end() && (*place)->occurrence == occurrence"
        " ? *place : nullptr;",
        "return occurrence != 0 && !name.pending.empty() ? name.pending.front() : nullptr;",
    ),
    Mutant(
        "keeps_a_finished_operation_pending",
        "negotiate/readiness.cc",
        "name.pending.erase(place);",
        "",
    ),
    Mutant(
        "tells_the_same_failure_twice",
        "negotiate/readiness.cc",
        "failure->owed[r] = false;",
        "",
    ),
    Mutant(
        "tells_those_who_know",
        "negotiate/readiness.cc",
        "failure->owed.push_back(!contribution);",
        "failure->owed.push_back(true);",
    ),
    Mutant(
        "fuses_different_dtypes",
        "plan/fusion.cc",
        "|| op.dtype != dtype ",
        "",
    ),
    Mutant(
        "fuses_different_scales",
        "plan/fusion.cc",
        "op.prescale == spec.prescale && op.postscale == spec.postscale",
        "op.prescale == spec.prescale",
    ),
    Mutant(
        "fuses_across_an_operation_that_stands_alone",
        "plan/fusion.cc",
        "open_.clear();",
        "",
    ),
    Mutant(
        "fuses_arena_tensors_of_two_operations",
        "plan/fusion.cc",
        "if (spec.in_arena) return add_bucket(response, spec);",
        "",
    ),
    Mutant(
        "plans_operations_that_failed",
        "plan/fusion.cc",
        "if (response.verdict != Response::Verdict::kRun) continue;",
        "if (response.verdict == Response::Verdict::kResubmit) continue;",
    ),
    Mutant(
        "keeps_the_rows_of_the_request_before",
        "wire/messages.cc",
        "own.rows.clear();",
        "",
    ),
    Mutant(
        "keeps_the_arena_place_of_the_request_before",
        "wire/messages.cc",
        "own.arena = {};",
        "",
    ),
    Mutant(
        "accepts_bytes_after_the_end",
        "wire/messages.cc",
        "if (in.ok() && in.remaining() != 0)",
        "if (false)",
    ),
    Mutant(
        "reports_a_host_when_one_rank_is_missing",
        "negotiate/joiner.cc",
        "if (complete(submitted)) joined_here_.push_back",
        "if (submitted.ranks + 1 >= local_ranks().size()) joined_here_.push_back",
    ),
    Mutant(
        "calls_ready_when_one_host_is_missing",
        "negotiate/joiner.cc",
        "if (++reported.hosts < hosts_.size()) return {};",
        "if (++reported.hosts < hosts_.size() - 1) return {};",
    ),
    Mutant(
        "lets_a_goodbye_overtake_what_was_said_before",
        "negotiate/joiner.cc",
        "review(tick, /*all=*/true);\n    send_alone();",
        "",
    ),
    Mutant(
        "orders_a_goodbye_before_what_was_reported",
        "negotiate/joiner.cc",
        "review(0, /*all=*/true);\n    order_joined();",
        "",
    ),
    Mutant(
        "holds_for_ever",
        "negotiate/joiner.cc",
        "|| tick - since_tick >= patience_",
        "",
    ),
    Mutant(
        "numbers_no_joined_run",
        "negotiate/negotiator.cc",
        "Response& response = out.emplace_back();\n      response.index = next_index_++;",
        "Response& response = out.emplace_back();\n      response.index = next_index_;",
    ),
)


_OF_PROOF = (
    Mutant(
        "believes_any_client",
        "wire/handshake.cc",
        "if (!equal_in_constant_time(client, input_.bytes()))",
        "if (false)",
    ),
    Mutant(
        "believes_any_server",
        "wire/handshake.cc",
        "                              proof)) {",
        "                              proof) && false) {",
    ),
    Mutant(
        "takes_a_rank_of_another_epoch",
        "wire/handshake.cc",
        "if (hello.epoch != keys_.epoch)",
        "if (false)",
    ),
    Mutant(
        "answers_whoever_looks_for_another_rank",
        "wire/handshake.cc",
        "if (hello.to != side_.self)",
        "if (false)",
    ),
    Mutant(
        "takes_its_own_bytes_back",
        "wire/handshake.cc",
        "if (hello.from == side_.self)",
        "if (false)",
    ),
    Mutant(
        "ignores_the_seal_of_a_frame",
        "wire/sealed.cc",
        'if (!equal_in_constant_time(seal_of(key_, "", sealed), seal))',
        "if (false)",
    ),
    Mutant(
        "counts_no_frames",
        "wire/sealed.cc",
        '  if (counter != counter_) {\n    return broken("was due',
        '  if (false) {\n    return broken("was due',
    ),
    Mutant(
        "ignores_the_seal_of_a_header",
        "wire/sealed.cc",
        "if (!equal_in_constant_time(seal_of(key_, kDataLabel, sealed),",
        "if (false && !equal_in_constant_time(seal_of(key_, kDataLabel, sealed),",
    ),
    Mutant(
        "counts_no_headers",
        "wire/sealed.cc",
        '  if (counter != counter_) {\n    return malformed("data header',
        '  if (false) {\n    return malformed("data header',
    ),
    Mutant(
        "compares_half_of_the_settings",
        "wire/settings.cc",
        "while (!settings.empty() || !of_rank_0.empty())",
        "while (!settings.empty() && !of_rank_0.empty())",
    ),
    Mutant(
        "seats_two_ranks_in_one_place",
        "wire/introduction.cc",
        "if (own != kNoRank)",
        "if (false)",
    ),
    Mutant(
        "lets_an_older_process_replace_a_newer",
        "transport/roster.cc",
        "if (client.incarnation > guest.incarnation)",
        "if (client.incarnation != guest.incarnation)",
    ),
    Mutant(
        "admits_one_caller_too_many",
        "transport/throttle.cc",
        "if (then_ns - now_ns > allowance_ns_) return false;",
        "if (then_ns - now_ns > allowance_ns_ + turn_ns_) return false;",
    ),
    Mutant(
        "gives_no_turn_back",
        "transport/throttle.cc",
        "full_ns_ -= turn_ns_;",
        "full_ns_ -= 0;",
    ),
)


class Workshop:
    """A private copy of the sources, compiled once."""

    def __init__(self, folder: Path, suite: Suite) -> None:
        self.folder = folder
        self.suite = suite
        self.core = folder / "csrc" / "core"
        for part in ("csrc/core", "tests/cpp"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.md"))

    def build(self, jobs: int) -> Path:
        """Compiles everything, without a mistake."""
        pending = [
            path
            for folder, patterns in (
                (self.core, self.suite.sources),
                (self.folder / "tests/cpp", self.suite.tests),
            )
            for pattern in patterns
            for path in sorted(folder.glob(pattern))
        ]
        running: list[subprocess.Popen[str]] = []
        self.objects = [self._object(source) for source in pending]
        while pending or running:
            while pending and len(running) < jobs:
                source = pending.pop()
                running.append(
                    subprocess.Popen(
                        self._compile(source, self._object(source)),
                        cwd=self.folder,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
            first = running.pop(0)
            _, errors = first.communicate()
            if first.returncode != 0:
                for other in running:
                    other.kill()
                    other.wait()
                raise RuntimeError(f"{first.args}\n{errors}")
        return self._link(self.objects, self.folder / "unmutated")

    def build_mutant(self, mutant: Mutant) -> Path:
        original = self.core / mutant.file
        text = original.read_text()
        if text.count(mutant.old) != 1:
            raise LookupError(
                f"{mutant.name}: its text occurs {text.count(mutant.old)} times in {mutant.file}"
            )
        folder = self.folder / mutant.name
        folder.mkdir()
        source = folder / original.name
        source.write_text(text.replace(mutant.old, mutant.new))
        changed = source.with_suffix(".o")
        self._call(self._compile(source, changed))
        replaced = self._object(original)
        objects = [changed if item == replaced else item for item in self.objects]
        return self._link(objects, folder / "mutated")

    def _object(self, source: Path) -> Path:
        return self.folder / f"{source.parent.name}_{source.stem}.o"

    def _compile(self, source: Path, target: Path) -> list[str]:
        compiler = [os.environ.get("CXX", "g++")]
        if (ccache := shutil.which("ccache")) is not None:
            compiler.insert(0, ccache)
        # Relative to the folder, whose name is another in each run: ccache knows them again.
        options = ["-std=c++20", "-O1", "-Icsrc", "-Itests/cpp"]
        return [*compiler, *options, "-c", str(source.relative_to(self.folder)), "-o", str(target)]

    def _link(self, objects: list[Path], target: Path) -> Path:
        libraries = ["-lgtest", "-lgtest_main", "-lpthread", *self.suite.libraries]
        self._call(
            [os.environ.get("CXX", "g++"), *map(str, objects), *libraries, "-o", str(target)]
        )
        return target

    def _call(self, command: list[str]) -> None:
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{command}\n{done.stderr}")


def run(
    program: Path, suite: Suite, timeout_s: float = RUN_TIMEOUT_S
) -> subprocess.CompletedProcess[str] | None:
    """Runs the suite's tests; None if they do not end."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("CIRANDA_SIM_")
    }
    environment["CIRANDA_SIM_SCHEDULES"] = str(SCHEDULES)
    try:
        return subprocess.run(
            [str(program), f"--gtest_filter={suite.filter}", "--gtest_fail_fast"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return None


def what_found_it(result: subprocess.CompletedProcess[str] | None) -> str:
    """The assertion that failed, of a test or of core itself; "" if none did. A time-out is none:
    it may be the machine's."""
    if result is None:
        return ""
    for line in (*result.stdout.splitlines(), *result.stderr.splitlines()):
        if ": Failure" in line or "broken invariant" in line:
            return line
    return ""


_BASE = ("base/assert.cc", "base/result.cc")
SUITES = (
    Suite(
        "negotiation",
        (
            *_BASE,
            "wire/codec.cc",
            "wire/messages.cc",
            "negotiate/*.cc",
            "plan/fusion.cc",
        ),
        ("sim/*.cc",),
        _OF_NEGOTIATION,
        filter="*InEverySchedule",
    ),
    Suite(
        "proof",
        (
            *_BASE,
            "base/secret.cc",
            "wire/codec.cc",
            "wire/handshake.cc",
            "wire/sealed.cc",
            "wire/settings.cc",
            "wire/introduction.cc",
            "wire/tls.cc",
            "transport/roster.cc",
            "transport/throttle.cc",
        ),
        (
            "wire/handshake_test.cc",
            "wire/sealed_test.cc",
            "wire/man_in_the_middle_test.cc",
            "wire/settings_test.cc",
            "wire/introduction_test.cc",
            "transport/roster_test.cc",
            "transport/throttle_test.cc",
        ),
        _OF_PROOF,
        libraries=("-lssl", "-lcrypto"),
    ),
)
