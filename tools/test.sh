#!/usr/bin/env bash
# All tests: core in C++ through ctest, the rest through pytest. Goes on after a failure and ends
# with a summary. Arguments are handed to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

build_core_tests() { cmake --preset release >/dev/null && cmake --build --preset release; }

python_tests() {
  local folders=()
  for folder in tests/python tests/net tests/fuzz tests/tidy tests/sim; do
    [[ -n "$(find $folder -name 'test_*.py' -print -quit 2>/dev/null)" ]] && folders+=("$folder")
  done
  "$python" -m pytest -m "not soak" --durations=20 "${folders[@]}" "$@"
}

stage "build core and its tests" build_core_tests &&
  stage "core tests (ctest)" ctest --preset release || true
stage "python, tidy and simulator tests (pytest)" python_tests "$@" || true
stage_summary "make test"
