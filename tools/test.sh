#!/usr/bin/env bash
# All tests: core in C++ through ctest, the rest through pytest, those that assert times alone at the
# end. Goes on after a failure and ends with a summary.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

build_core_tests() { cmake --preset release >/dev/null && cmake --build --preset release; }

python_tests() { "$python" -m pytest "${beside_each_other[@]}" --durations=20; }
timing_tests() { "$python" -m pytest -m "timing and not soak"; }

stage "build core and its tests" build_core_tests &&
  stage "core tests (ctest)" ctest --preset release || true
stage "python, tidy and simulator tests (pytest)" python_tests || true
stage "tests that assert times, one after another (pytest)" timing_tests || true
stage_summary "make test"
